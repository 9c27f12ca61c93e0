"""Lifecycle events of a job, written on the ledger as memos: a closed union, bounded to fit one memo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from ledger import merkle
from ledger.errors import EventError

MAX_MEMO_BYTES = 566  # What the memo program is documented to take in one transaction with one signer.
MAX_NODES = 8  # Addresses that fit one "assigned" beside the rest; more make further events.

JobId = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
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


class Rounded(_Event, frozen=True):
    """All that was assigned, committed and audited in a round, as one Merkle root (``round_of``) instead of a memo each."""

    epoch: Count
    round: Count
    assigned: Count
    committed: Count
    audited: Count
    root: Digest


class Settled(_Event, frozen=True):
    """Everything was paid or refunded."""

    paid: Units
    refunded: Units


class Slashed(_Event, frozen=True):
    """A node lost stake; ``reason`` is the digest of the proof."""

    node: Address
    amount: Units
    reason: Digest


Event: TypeAlias = Created | Funded | Assigned | Committed | Verified | Rounded | Settled | Slashed
Frequent: TypeAlias = Assigned | Committed | Verified

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


def assignments(job: str, attempt: int, nodes: Sequence[str]) -> list[Assigned]:
    """As many ``assigned`` events as the nodes need."""
    return [
        Assigned(job=job, attempt=attempt, nodes=tuple(nodes[start : start + MAX_NODES]))
        for start in range(0, len(nodes), MAX_NODES)
    ]


def round_leaves(told: Sequence[Frequent]) -> list[bytes]:
    """The leaves of a round's tree: each event's memo text, in the order assigned, committed, audited, then by text.

    The order follows from the events alone, so whoever has them finds the same root.
    """
    places: dict[type, int] = {Assigned: 0, Committed: 1, Verified: 2}
    texts = sorted((places[type(event)], encode(event)) for event in told)
    return [text.encode() for _, text in texts]


def round_of(job: str, epoch: int, number: int, told: Sequence[Frequent]) -> Rounded:
    """One memo for a round: the root over all of its frequent events, and how many there were of each kind.

    Raises:
        EventError: an event is of another job, occurs twice, or is out of its bounds.
    """
    for event in told:
        if event.job != job:
            raise EventError(f"{type(event).__name__.lower()} of job {event.job} is no event of job {job}")
    leaves = round_leaves(told)
    if len(set(leaves)) != len(leaves):
        raise EventError(f"round {number} of job {job} tells an event twice: leave the repetition out")
    assigned, committed, audited = (
        sum(isinstance(event, kind) for event in told) for kind in (Assigned, Committed, Verified)
    )
    root = merkle.root(leaves).hex()
    return Rounded(
        job=job, epoch=epoch, round=number, assigned=assigned, committed=committed, audited=audited, root=root
    )


def in_round(memo: Rounded, event: Frequent, proof: merkle.Proof) -> bool:
    """Whether a round's memo binds this event. ``proof`` comes from ``merkle.prove(round_leaves(all), place)``."""
    return proof.count == memo.assigned + memo.committed + memo.audited and merkle.verify(
        bytes.fromhex(memo.root), encode(event).encode(), proof
    )
