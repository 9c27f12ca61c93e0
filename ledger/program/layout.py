"""Reads the market program's accounts and events. ``market.h`` draws the same layouts in C."""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from solders.pubkey import Pubkey

from ledger.errors import LedgerAnswerError

JOB_OFFSET = 168  # Of the job in an escrow account; a search by job compares here.
REASONS = 16  # Slashes that a stake remembers.

_ESCROW = struct.Struct("<4B2Hq3Q32s32s32s32s32s")
_PAYEE = struct.Struct("<32sQ")
_STAKE = struct.Struct("<4B2H4q6Q32s32s32s32s32s")
_TAG_ESCROW, _TAG_STAKE = 1, 2
STAKE_SIZE = _STAKE.size + REASONS * 32
_LOG_LIMIT = "Log truncated"
TRUNCATED = "CUT!"  # No event of the program: a node dropped the rest of the logs.


class Status(IntEnum):
    """Life of an escrow: money may come in; everything left was returned; its accounts were given back."""

    OPEN = 1
    ENDED = 2
    CLOSED = 3


@dataclass(frozen=True)
class EscrowAccount:
    """An escrow account as it lies on the ledger. ``payees`` maps token accounts to what each was paid."""

    status: Status
    deadline: int
    deposited: int
    paid: int
    refunded: int
    submitter: Pubkey
    coordinator: Pubkey
    mint: Pubkey
    vault: Pubkey
    job: bytes
    capacity: int
    payees: Mapping[Pubkey, int]


@dataclass(frozen=True)
class StakeAccount:
    """A stake account as it lies on the ledger. Times in seconds."""

    slash_bps: int
    cooldown: int
    window: int
    window_start: int
    unlock_at: int
    window_base: int
    window_slashed: int
    requested: int
    deposited: int
    slashed: int
    withdrawn: int
    node: Pubkey
    coordinator: Pubkey
    mint: Pubkey
    vault: Pubkey
    treasury: Pubkey


def read_escrow(data: bytes) -> EscrowAccount:
    """Decode an escrow account.

    Raises:
        LedgerAnswerError: the bytes are no escrow of this version.
    """
    if len(data) < _ESCROW.size or data[0] != _TAG_ESCROW or data[3] != 1:
        raise LedgerAnswerError(f"{len(data)} bytes are no escrow account of version 1: is this the right program?")
    _, _, status, _, capacity, used, deadline, deposited, paid, refunded, *keys = _ESCROW.unpack_from(data)
    entries = _PAYEE.iter_unpack(data[_ESCROW.size : _ESCROW.size + used * _PAYEE.size])
    submitter, coordinator, mint, vault = (Pubkey.from_bytes(key) for key in keys[:4])
    return EscrowAccount(
        Status(status), deadline, deposited, paid, refunded, submitter, coordinator, mint, vault, keys[4],
        capacity, {Pubkey.from_bytes(account): amount for account, amount in entries},
    )  # fmt: skip


def read_stake(data: bytes) -> StakeAccount:
    """Decode a stake account.

    Raises:
        LedgerAnswerError: the bytes are no stake of this version.
    """
    if len(data) != STAKE_SIZE or data[0] != _TAG_STAKE or data[2] != 1:
        raise LedgerAnswerError(f"{len(data)} bytes are no stake account of version 1: is this the right program?")
    _, _, _, _, slash_bps, _, cooldown, window, window_start, unlock_at, *rest = _STAKE.unpack_from(data)
    amounts, keys = rest[:6], (Pubkey.from_bytes(key) for key in rest[6:])
    return StakeAccount(slash_bps, cooldown, window, window_start, unlock_at, *amounts, *keys)


@dataclass(frozen=True)
class ProgramEvent:
    """One line that the market program logged: a kind of four letters, its account, the payload."""

    kind: str
    account: Pubkey
    payload: bytes


def read_events(logs: Iterable[str], program: Pubkey) -> Iterator[ProgramEvent]:
    """The market program's events among a transaction's log lines.

    Other programs may log look-alikes, so the lines that say who runs are followed. Where a node cut the
    logs short, the last event is ``TRUNCATED`` with an empty payload.

    Raises:
        LedgerAnswerError: an event of the market program is malformed.
    """
    stack: list[str] = []
    for line in logs:
        words = line.split(" ")
        if line == _LOG_LIMIT:
            yield ProgramEvent(TRUNCATED, program, b"")
        if words[0] != "Program" or len(words) < 3:
            continue
        if words[2] == "invoke":
            stack.append(words[1])
        elif stack and words[1] == stack[-1] and words[2].rstrip(":") in {"success", "failed"}:
            stack.pop()
        elif words[1] == "data:" and stack and stack[-1] == str(program):
            yield _read_event(words[2:])


def _read_event(fields: list[str]) -> ProgramEvent:
    try:
        kind, account, payload = (base64.b64decode(field, validate=True) for field in fields)
        return ProgramEvent(kind.decode("ascii"), Pubkey.from_bytes(account), payload)
    except (ValueError, binascii.Error) as error:
        raise LedgerAnswerError(f"an event of the market program is malformed: {' '.join(fields)[:200]}") from error
