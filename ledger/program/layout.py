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
from ledger.program.codes import ACCEPTED, FRONTIER, Consent

JOB_OFFSET = 168  # Of the job in an escrow account; a search by job compares here.
REASONS = 16  # Slashes that a stake remembers.

JUDGE_OFFSET = 88  # Of the accused node's coordinator, in a dispute account.
VERSION = 2  # Of every layout here. Accounts of version 1 belong to the program's first deployment.

_ESCROW = struct.Struct("<4B2Hq3Q32s32s32s32s32s")  # What stays of a closed escrow.
_TERMS = struct.Struct("<3QI2H32s")
_PAYEE = struct.Struct("<32sQ")
_STAKE = struct.Struct("<4B2H4q6Q32s32s32s32s32s32sq2HIq")
_DISPUTE = struct.Struct("<4BIqQ32s32s32s32s32s32s32s")
_MARKET = struct.Struct("<4B2H3qQ32s32s")
_TAG_ESCROW, _TAG_STAKE, _TAG_MARKET, TAG_DISPUTE = 1, 2, 3, 4
TOMBSTONE_SIZE = _ESCROW.size
ESCROW_SIZE = _ESCROW.size + _TERMS.size + FRONTIER * 32  # Without its table of payees.
PAYEE_SIZE = _PAYEE.size
STAKE_SIZE = _STAKE.size + REASONS * 32
DISPUTE_SIZE = _DISPUTE.size
_LOG_LIMIT = "Log truncated"
TRUNCATED = "CUT!"  # No event of the program: a node dropped the rest of the logs.


class EscrowStatus(IntEnum):
    """Life of an escrow: money may come in; everything left was returned; its accounts were given back."""

    OPEN = 1
    ENDED = 2
    CLOSED = 3


@dataclass(frozen=True)
class EscrowAccount:
    """An escrow account as it lies on the ledger.

    Attributes:
        payees: token accounts of the table, in its order, to what each was paid.
        cap: the most that is ever paid in sum.
        committed: sum of the earnings that the coordinator promised in ``period`` under ``earnings_root``.
        count, peaks: length of the list of payees and the peaks of its Merkle tree (``ledger.merkle``).
        accepted: the coordinator has found its terms here. ``lent``: entries of the table whose rent it lent.
    """

    status: EscrowStatus
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
    cap: int
    committed: int
    period: int
    count: int
    consent: Consent
    earnings_root: bytes
    peaks: tuple[bytes, ...]
    accepted: bool
    lent: int


@dataclass(frozen=True)
class StakeAccount:
    """A stake account as it lies on the ledger. Times in seconds.

    Attributes:
        hold: how long beyond a cool-down undecided disputes may keep what it was for; 0: no bound was set.
    """

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
    next_coordinator: Pubkey
    move_at: int
    challenger_bps: int
    disputes: int
    hold: int
    opened_at: int


class Ruling(IntEnum):
    """Life of a dispute: the coordinator has to decide; for the challenger; for the accused; nobody decided."""

    OPEN = 1
    UPHELD = 2
    REJECTED = 3
    EXPIRED = 4


@dataclass(frozen=True)
class DisputeAccount:
    """A dispute account as it lies on the ledger; ``evidence`` is all zero until the verdict."""

    ruling: Ruling
    deadline: int
    bond: int
    challenger: Pubkey
    node: Pubkey
    coordinator: Pubkey
    mint: Pubkey
    vault: Pubkey
    audit: bytes
    evidence: bytes


@dataclass(frozen=True)
class MarketTerms:
    """The market's terms. Shares in basis points, times in seconds.

    Attributes:
        revision: of the program that wrote them; 0 for one that knows no ``escrow_accept``.
    """

    slash_bps: int
    challenger_bps: int
    cooldown: int
    window: int
    verdict_time: int
    bond: int
    mint: Pubkey
    treasury: Pubkey
    revision: int


def read_escrow(data: bytes) -> EscrowAccount:
    """Decode an escrow account.

    Raises:
        LedgerAnswerError: the bytes are no escrow of this version.
    """
    if len(data) < _ESCROW.size or data[0] != _TAG_ESCROW or data[3] != VERSION:
        raise LedgerAnswerError(f"{len(data)} bytes are no escrow of version {VERSION}: is this the right program?")
    _, _, status, _, capacity, used, deadline, deposited, paid, refunded, *keys = _ESCROW.unpack_from(data)
    submitter, coordinator, mint, vault = (Pubkey.from_bytes(key) for key in keys[:4])
    if status == EscrowStatus.CLOSED:
        cap = committed = period = count = consent = lent = 0
        earnings, peaks, entries = bytes(32), tuple[bytes, ...](), dict[Pubkey, int]()
    else:
        _check_length(data, ESCROW_SIZE + used * _PAYEE.size)
        cap, committed, period, count, consent, lent, earnings = _TERMS.unpack_from(data, _ESCROW.size)
        peaks = _read_peaks(data[ESCROW_SIZE - FRONTIER * 32 : ESCROW_SIZE], count)
        table = _PAYEE.iter_unpack(data[ESCROW_SIZE : ESCROW_SIZE + used * _PAYEE.size])
        entries = {Pubkey.from_bytes(account): amount for account, amount in table}
    return EscrowAccount(
        EscrowStatus(status),
        deadline,
        deposited,
        paid,
        refunded,
        submitter,
        coordinator,
        mint,
        vault,
        keys[4],
        capacity,
        entries,
        cap,
        committed,
        period,
        count,
        Consent(consent & ~ACCEPTED),
        earnings,
        peaks,
        bool(consent & ACCEPTED),
        lent,
    )


def _check_length(data: bytes, needed: int) -> None:
    if len(data) < needed:
        raise LedgerAnswerError(f"an escrow of {len(data)} bytes, {needed} are needed: is this the right program?")


def _read_peaks(frontier: bytes, count: int) -> tuple[bytes, ...]:
    """The peaks of a list, largest first; the account keeps the one of 2^k leaves in place k."""
    return tuple(frontier[32 * k : 32 * (k + 1)] for k in reversed(range(FRONTIER)) if count >> k & 1)


def read_stake(data: bytes) -> StakeAccount:
    """Decode a stake account.

    Raises:
        LedgerAnswerError: the bytes are no stake of this version.
    """
    if len(data) != STAKE_SIZE or data[0] != _TAG_STAKE or data[2] != VERSION:
        raise LedgerAnswerError(f"{len(data)} bytes are no stake of version {VERSION}: is this the right program?")
    _, _, _, _, slash_bps, _, cooldown, window, window_start, unlock_at, *rest = _STAKE.unpack_from(data)
    amounts, keys = rest[:6], rest[6:12]
    more = [*(Pubkey.from_bytes(key) for key in keys), *rest[12:]]
    return StakeAccount(slash_bps, cooldown, window, window_start, unlock_at, *amounts, *more)


def read_dispute(data: bytes) -> DisputeAccount:
    """Decode a dispute account.

    Raises:
        LedgerAnswerError: the bytes are no dispute of this version.
    """
    if len(data) != DISPUTE_SIZE or data[0] != TAG_DISPUTE or data[3] != VERSION:
        raise LedgerAnswerError(f"{len(data)} bytes are no dispute of version {VERSION}: is this the right program?")
    _, _, ruling, _, _, deadline, bond, *keys = _DISPUTE.unpack_from(data)
    challenger, node, coordinator, mint, vault = (Pubkey.from_bytes(key) for key in keys[:5])
    return DisputeAccount(Ruling(ruling), deadline, bond, challenger, node, coordinator, mint, vault, keys[5], keys[6])


def read_terms(data: bytes) -> MarketTerms:
    """Decode the market's terms.

    Raises:
        LedgerAnswerError: the bytes are no terms of this version.
    """
    if len(data) != _MARKET.size or data[0] != _TAG_MARKET or data[2] != VERSION:
        raise LedgerAnswerError(f"{len(data)} bytes are no terms of version {VERSION}: is this the right program?")
    *head, slash_bps, challenger_bps, cooldown, window, verdict_time, bond, mint, treasury = _MARKET.unpack(data)
    keys = Pubkey.from_bytes(mint), Pubkey.from_bytes(treasury)
    return MarketTerms(slash_bps, challenger_bps, cooldown, window, verdict_time, bond, *keys, revision=head[3])


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
