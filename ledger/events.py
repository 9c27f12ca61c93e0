"""Lifecycle events of a job, written on the ledger as memos: a closed union, bounded to fit one memo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from ledger.errors import EventError

MAX_MEMO_BYTES = 566  # What the memo program is documented to take in one transaction with one signer.
MAX_NODES = 8  # Addresses that fit one "assigned" beside the rest; more make further events.

JobId = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
AuditId = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
Address = Annotated[str, Meta(pattern=r"\A[1-9A-HJ-NP-Za-km-z]{32,44}\Z")]
Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Units = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, lt=2**31)]


class _Event(msgspec.Struct, tag_field="event", tag=str.lower, frozen=True, forbid_unknown_fields=True):
    job: JobId


class Created(_Event, frozen=True):
    """A job was accepted; ``budget`` is what its submitter offers, ``document`` the digest of what was asked."""

    budget: Units
    document: Digest


class Funded(_Event, frozen=True):
    """The budget lies in escrow."""

    amount: Units


class Assigned(_Event, frozen=True):
    """Nodes were put on the job in its ``attempt``-th plan."""

    attempt: Count
    nodes: Annotated[tuple[Address, ...], Meta(min_length=1, max_length=MAX_NODES)]


class Committed(_Event, frozen=True):
    """A node committed to its steps of a round: ``root`` is the Merkle root."""

    round: Count
    node: Address
    root: Digest


class Verified(_Event, frozen=True):
    """An audit of one step of a node's round came to a verdict. Two of one round differ in the step: equal memos would be one."""

    epoch: Count
    round: Count
    step: Count
    node: Address
    auditor: Address
    verdict: Literal["match", "mismatch"]


class Rooted(_Event, frozen=True):
    """What is published about a round, as one Merkle root: ``commitments`` before audits are drawn, the ``outcome`` after them.

    A second outcome of the same epoch and round corrects the first.
    """

    epoch: Count
    round: Count
    what: Literal["commitments", "outcome"]
    leaves: Count
    root: Digest


class Ruled(_Event, frozen=True):
    """A dispute over an audit ended; ``evidence`` is the digest of all that was said in it."""

    round: Count
    audit: AuditId
    node: Address
    challenger: Address
    winner: Literal["prover", "challenger", "nobody"]
    evidence: Digest


class Settled(_Event, frozen=True):
    """Everything was paid or refunded."""

    paid: Units
    refunded: Units


class Slashed(_Event, frozen=True):
    """A node lost stake; ``reason`` is the digest of the proof."""

    node: Address
    amount: Units
    reason: Digest


Event: TypeAlias = Created | Funded | Assigned | Committed | Verified | Rooted | Ruled | Settled | Slashed

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Event)


def encode(event: Event) -> str:
    """The memo of an event.

    Raises:
        EventError: a field is out of its bounds.
    """
    text = _encoder.encode(event)
    decode(text.decode())  # The constructor does not check bounds, decoding does.
    return text.decode()


def decode(text: str) -> Event:
    """Read a memo.

    Raises:
        EventError: too long, no event, or a field out of its bounds.
    """
    size = len(text.encode())
    if size > MAX_MEMO_BYTES:
        raise EventError(f"a memo of {size} bytes: at most {MAX_MEMO_BYTES} fit")
    try:
        event: Event = _decoder.decode(text)
    except msgspec.DecodeError as error:
        raise EventError(f"{text[:100]!r} is no lifecycle event: {error}") from error
    return event


def text_of(kind: str, fields: Mapping[str, Any]) -> str:
    """The memo of an event that was read from the ledger.

    Raises:
        EventError: it is none.
    """
    return encode(decode(msgspec.json.encode({"event": kind, **fields}).decode()))


def assignments(job: str, attempt: int, nodes: Sequence[str]) -> list[Assigned]:
    """As many ``assigned`` events as the nodes need."""
    return [
        Assigned(job=job, attempt=attempt, nodes=tuple(nodes[start : start + MAX_NODES]))
        for start in range(0, len(nodes), MAX_NODES)
    ]
