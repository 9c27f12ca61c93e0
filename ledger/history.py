"""Reads back what happened to a job: lifecycle events and movements of money, from the ledger alone."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction_status import EncodedConfirmedTransactionWithStatusMeta, UiRawMessage, UiTransaction
from spl.memo.constants import MEMO_PROGRAM_ID

from common import base58
from ledger import events
from ledger.connection import PAGE, Connection
from ledger.errors import EventError, LedgerAnswerError
from ledger.program.layout import TRUNCATED, ProgramEvent, read_events
from ledger.program.stakes import describe

MAX_AT_ONCE = 8  # Transactions asked for together: quick, and below what public endpoints take for flooding.
MAX_TRANSACTIONS = 20_000  # A job of 20 nodes and 500 rounds stays well below; beyond it somebody is flooding.
_UNITS = struct.Struct("<Q")
_PAID = struct.Struct("<32sQQ")
_OPENED = struct.Struct("<32sqQ2HI")
_ACCEPTED = struct.Struct("<qQQ2H")
_LISTED = struct.Struct("<II32s")
_MONEY = {"FUND": "deposited", "REFD": "refunded"}
_NO_SLOT = 2**32 - 1


@dataclass(frozen=True)
class LedgerEvent:
    """One thing that happened to a job.

    Attributes:
        kind: a lifecycle event (``created`` .. ``slashed``), or ``opened``, ``accepted``, ``extended``, ``deposited``,
            ``admitted``, ``enrolled``, ``grown``, ``promised``, ``paid``, ``refunded``, ``closed`` for what the market program
            did;
            ``stake_opened``, ``stake_slashed``, ``disputed`` .. for stakes and disputes (``program.stakes``);
            ``truncated`` where a node dropped logs that may have held an event.
        time: Unix seconds of its block.
        fields: amounts in smallest units, addresses and digests as text.
        author: who signed a lifecycle event; empty for what the market program did.
    """

    signature: str
    slot: int
    time: int
    kind: str
    fields: Mapping[str, Any]
    author: str = ""


async def read_history(
    connection: Connection, program: Pubkey, escrow: Pubkey, authors: frozenset[str]
) -> list[LedgerEvent]:
    """Everything that happened to one escrow, oldest first.

    Anybody may mention an address in a memo, so only memos signed by ``authors`` count.

    Raises:
        LedgerAnswerError: more than MAX_TRANSACTIONS mention the escrow, or the ledger's answer is malformed.
    """
    found: list[LedgerEvent] = []
    signatures = (await read_signatures(connection, escrow))[::-1]
    for start in range(0, len(signatures), MAX_AT_ONCE):
        part = signatures[start : start + MAX_AT_ONCE]
        for signature, transaction in zip(part, await asyncio.gather(*map(connection.transaction, part)), strict=True):
            found.extend(_read_transaction(str(signature), transaction, program, escrow, authors))
    return found


async def read_payouts(connection: Connection, program: Pubkey, wallet: Pubkey) -> list[LedgerEvent]:
    """Every payout of the market to one token account, whichever job paid it, oldest first.

    Raises:
        LedgerAnswerError: more than MAX_TRANSACTIONS mention the account, or the ledger's answer is malformed.
    """
    found: list[LedgerEvent] = []
    signatures = (await read_signatures(connection, wallet))[::-1]
    for start in range(0, len(signatures), MAX_AT_ONCE):
        part = signatures[start : start + MAX_AT_ONCE]
        for signature, transaction in zip(part, await asyncio.gather(*map(connection.transaction, part)), strict=True):
            meta, time = transaction.transaction.meta, transaction.block_time or 0
            for event in read_events(meta.log_messages or [] if meta is not None else [], program):
                for kind, fields in _describe(event, {}) if event.kind == "PAID" else ():
                    if fields["account"] == str(wallet):
                        told = {"escrow": str(event.account), **fields}
                        found.append(LedgerEvent(str(signature), transaction.slot, time, kind, told))
    return found


async def read_signatures(connection: Connection, escrow: Pubkey) -> list[Signature]:
    """Successful transactions that mention an account, newest first.

    Raises:
        LedgerAnswerError: more than MAX_TRANSACTIONS do.
    """
    found: list[Signature] = []
    before: Signature | None = None
    for _ in range(0, MAX_TRANSACTIONS, PAGE):
        page = await connection.signatures(escrow, before)
        found.extend(entry.signature for entry in page if entry.err is None)
        if len(page) < PAGE:
            return found
        before = page[-1].signature
    raise LedgerAnswerError(f"more than {MAX_TRANSACTIONS} transactions mention {escrow}: read it with an indexer")


def _read_transaction(
    signature: str,
    transaction: EncodedConfirmedTransactionWithStatusMeta,
    program: Pubkey,
    escrow: Pubkey,
    authors: frozenset[str],
) -> Iterator[LedgerEvent]:
    body, meta = transaction.transaction.transaction, transaction.transaction.meta
    if meta is None or not isinstance(body, UiTransaction) or not isinstance(body.message, UiRawMessage):
        raise LedgerAnswerError(f"transaction {signature} came in an unknown encoding: is this a Solana ledger?")
    keys = [str(key) for key in body.message.account_keys]
    if meta.loaded_addresses is not None:
        keys += [str(key) for key in (*meta.loaded_addresses.writable, *meta.loaded_addresses.readonly)]
    owners = {keys[balance.account_index]: str(balance.owner) for balance in meta.post_token_balances or []}
    time = transaction.block_time or 0
    calls = sum(keys[instruction.program_id_index] == str(program) for instruction in body.message.instructions)
    told = 0
    for event in read_events(meta.log_messages or [], program):
        if event.kind == TRUNCATED:
            # An instruction tells before it pays: where as many told as were called, only other programs' lines are lost.
            if told < calls:
                yield LedgerEvent(signature, transaction.slot, time, "truncated", {})
            continue
        told += 1
        if event.account == escrow:
            for kind, fields in _describe(event, owners):
                yield LedgerEvent(signature, transaction.slot, time, kind, fields)
    for memo, author in _memos(body.message, keys, authors):
        try:
            events.decode(memo)
        except EventError:
            continue  # A signed note that is no lifecycle event.
        document: dict[str, Any] = msgspec.json.decode(memo)
        yield LedgerEvent(signature, transaction.slot, time, document.pop("event"), document, author)


def _describe(event: ProgramEvent, owners: Mapping[str, str]) -> list[tuple[str, dict[str, Any]]]:
    try:
        return list(_fields(event, owners))
    except struct.error as error:
        raise LedgerAnswerError(f"event {event.kind} of {event.account} is malformed: {error}") from error


def _fields(event: ProgramEvent, owners: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    payload = event.payload
    match event.kind:
        case "OPEN":
            coordinator, deadline, cap, capacity, consent, listed = _OPENED.unpack_from(payload)
            terms = {"cap": cap, "max_payees": capacity, "consent": consent, "listed": listed}
            yield "opened", {"coordinator": str(Pubkey.from_bytes(coordinator)), "deadline": deadline, **terms}
        case "ACPT":
            deadline, cap, amount, capacity, consent = _ACCEPTED.unpack(payload)
            terms = {"cap": cap, "amount": amount, "max_payees": capacity, "consent": consent}
            yield "accepted", {"deadline": deadline, **terms}
        case "FUND" | "REFD":
            yield _MONEY[event.kind], {"amount": _UNITS.unpack(payload)[0]}
        case "PAID":
            for account, amount, cumulative in _PAID.iter_unpack(payload):
                wallet = str(Pubkey.from_bytes(account))
                payee = owners.get(wallet, wallet)
                yield "paid", {"payee": payee, "amount": amount, "cumulative": cumulative, "account": wallet}
        case "ADMT" | "ENRL":
            index, slot, account = _LISTED.unpack(payload)
            place = {} if slot == _NO_SLOT else {"slot": slot}
            kind = "admitted" if event.kind == "ADMT" else "enrolled"
            yield kind, {"index": index, **place, "wallet": str(Pubkey.from_bytes(account))}
        case "GROW":
            yield "grown", {"max_payees": struct.unpack("<H", payload)[0]}
        case "CMIT":
            root, total, period = struct.unpack("<32sQQ", payload)
            yield "promised", {"root": root.hex(), "total": total, "period": period}
        case "EXTD":
            cap, deadline = struct.unpack("<Qq", payload)
            yield "extended", {"cap": cap, "deadline": deadline}
        case "CLOS":
            deposited, paid, refunded = struct.unpack("<3Q", payload)
            yield "closed", {"deposited": deposited, "paid": paid, "refunded": refunded}
        case _:
            yield describe(event)


def _memos(message: UiRawMessage, keys: Sequence[str], authors: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Memos and who of ``authors`` signed each."""
    for instruction in message.instructions:
        signers = {keys[index] for index in instruction.accounts}
        if keys[instruction.program_id_index] == str(MEMO_PROGRAM_ID) and signers & authors:
            yield base58.decode(instruction.data).decode("utf-8", "replace"), min(signers & authors)
