"""Carries one row of the outbox to the ledger: sign, store, send, follow; never twice, never half.

    queued ──sign, store──> sent ──final──> over
       ^                      │
       └── it never happened ─┘            (expired or failed for good; or refused beforehand, and its nonce not used)

What is signed is in the store before it is sent, and is signed anew only once the ledger has said that it can never happen. Rows
that move money carry a durable nonce and keep its account for as long as they live: of all transactions with one value of a nonce
at most one is executed, so that even an endpoint that lies about time cannot make a payment happen twice. A row may need steps
before it (token accounts, a lookup table); they are worked out from the ledger anew each time.
"""

import hashlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from coordinator.domain.job import Job
from coordinator.services.core.context import Context
from coordinator.services.payments.chain import ChainPort, Outcome
from coordinator.store.ports import col
from coordinator.store.records import OPEN_ROWS, NodeRecord, OutboxRecord
from ledger.errors import (
    LedgerAnswerError,
    LedgerError,
    LedgerUnavailableError,
    TransactionExpiredError,
    TransactionFailedError,
)
from ledger.money import Amount
from ledger.program.layout import Ruling
from ledger.states import Asked, PreparedTransaction

MAX_ATTEMPTS = 5  # An executed and refused transaction will be refused again; a few tries cover a changed balance.
# An endpoint may be behind, or on a fork that is left: what it says of accounts must stay so for long.
REFUSAL_S = 120.0
REST_S = 2.0  # Before something is tried again that was refused beforehand.
CONFIRM_POLLS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)  # Embedded: 5-8 ms. A cluster's answer is fetched at the next turn.

# Kinds that carry a nonce: all that only the coordinator signs, but memos.
_DURABLE = ("accept", "settle", "promise", "refund", "slash", "verdict", "table")
_PATIENT = ("settle", "promise", "refund", "table")  # What must not be given up because of one look at the ledger.

LOG = logging.getLogger(__name__)
FORGOTTEN_KEY = "forgotten:"


@dataclass(frozen=True)
class Carried:
    """How far a row has come: ``refused`` is for good, with its reason."""

    state: Literal["waiting", "confirmed", "refused"]
    row: OutboxRecord
    reason: str = ""


class Carrier:
    """Signs, stores, sends and follows. One at a time for a row."""

    def __init__(
        self, context: Context, chain: ChainPort, store: Callable[[OutboxRecord], Awaitable[OutboxRecord]]
    ) -> None:
        """``store``: has a row stored as it is now, and returns it so."""
        self._context = context
        self._chain = chain
        self._store = store
        self._nonces: frozenset[str] | None = None  # Of this cell.
        self._lent: frozenset[str] = frozenset()  # Those of them that other cells' rows carry.
        self._forgotten: dict[
            str, str
        ] = {}  # Signatures of events that a restored coordinator has found on the ledger.
        self._free: deque[str] = deque()
        self._refused: dict[int, float] = {}
        self._resting: dict[int, float] = {}
        self._made: dict[
            int, tuple[str, ...]
        ] = {}  # Payees to whom a row's steps gave, or are giving, a token account.

    def forget(self) -> None:
        """Learn anew what is in memory alone."""
        self._nonces = None

    async def open(self, rows: Iterable[OutboxRecord]) -> None:
        """Learn which nonces there are, and which events were forgotten, once; ``rows`` is everything that is open.

        Raises:
            LedgerUnavailableError: the ledger does not answer.
        """
        if self._nonces is not None:
            await self._take_back()
            return
        try:
            nonces = await self._chain.nonces(self._context.cell)
        except (LedgerUnavailableError, LedgerAnswerError):
            raise
        except LedgerError as error:
            LOG.warning("there are no durable nonces, blockhashes serve: %s", error)
            nonces = ()
        # Jobs are hexadecimal.
        between = (col(OutboxRecord.key) > FORGOTTEN_KEY, col(OutboxRecord.key) < f"{FORGOTTEN_KEY}g")
        async with self._context.store.transaction() as tx:
            self._forgotten = {row.key: row.signature for row in await tx.find(OutboxRecord, *between)}
        self._lent = frozenset() if self._context.cell.of == 1 else await self._with_others(nonces)
        taken = {row.nonce for row in rows} | self._lent
        self._nonces = frozenset(nonces)
        self._free = deque(nonce for nonce in nonces if nonce not in taken)

    async def _take_back(self) -> None:
        """Use what was with rows of other cells once those are over."""
        if self._lent:
            before, self._lent = self._lent, await self._with_others(sorted(self._lent))
            for nonce in sorted(before - self._lent):
                self._release(nonce)

    async def _with_others(self, nonces: Sequence[str]) -> frozenset[str]:
        """Those of these that open rows of other cells carry, and keep: they took them when there was another number of cells."""
        states, named = col(OutboxRecord.state).in_(OPEN_ROWS), col(OutboxRecord.nonce).in_(nonces)
        async with self._context.everywhere.transaction() as tx:
            rows = await tx.find(OutboxRecord, states, named)
        return frozenset(row.nonce for row in rows if not self._context.cell.has(row.job))

    async def carry(self, job: Job, row: OutboxRecord) -> Carried:
        """Bring a row as far as it goes now.

        Raises:
            LedgerUnavailableError, LedgerAnswerError: the ledger does not answer, or not sensibly; nothing is decided.
        """
        if self._resting.get(row.id, 0.0) > self._context.clock.time():
            return Carried("waiting", row)
        while True:
            if row.state == "queued":
                signed = await self._sign(job, row)
                if isinstance(signed, Carried):
                    return signed
                row = signed
            outcome = await self._send(_prepared(row))
            if outcome == "confirmed" and row.step:
                row = await self._again(row, nonce="", step="", lookup=row.lookup)
                continue
            if outcome in ("confirmed", "pending"):
                return Carried("confirmed" if outcome == "confirmed" else "waiting", row)
            # Whether an escrow is accepted, its submitter can decide anew each time; money is due whatever is said of it.
            for_good = outcome == "failed" or (outcome == "refused" and row.kind == "accept")
            if for_good and row.attempts >= MAX_ATTEMPTS:
                return Carried("refused", row, "the ledger refused it each time")
            if row.step == "wallets":
                self._made.pop(row.id, None)  # They were not made.
            again = await self._again(row)
            self._context.metrics.count("ledger_retried_total")
            if outcome == "refused":
                self._resting[row.id] = self._context.clock.time() + REST_S
            return Carried("waiting", again)

    def over(self, row: OutboxRecord) -> None:
        """Forget a row that is over; others may have its nonce."""
        self._release(row.nonce)
        self._refused.pop(row.id, None)
        self._resting.pop(row.id, None)
        self._made.pop(row.id, None)

    async def _sign(self, job: Job, row: OutboxRecord) -> OutboxRecord | Carried:
        """Prepare a row's transaction and store it before anybody sends it."""
        if row.kind == "event" and self._forgotten and (written := self._forgotten.get(forgotten_key(row))):
            return Carried("confirmed", msgspec.structs.replace(row, signature=written))
        nonce = row.nonce or self._take(row)
        if nonce is None:
            return Carried("waiting", row)  # All nonces are on their way; one comes back with the next that is over.
        try:
            prepared, amount = await self._prepare(job, row, nonce)
        except LedgerError as error:
            self._keep(row, nonce)
            if isinstance(error, LedgerUnavailableError | LedgerAnswerError):
                raise
            return self._judge(row, error)
        if prepared is None:
            self._keep(row, nonce)
            return Carried("confirmed", row)
        self._refused.pop(row.id, None)
        if prepared.made:
            self._made[row.id] = (*self._made.get(row.id, ()), *prepared.made)
        return await self._store(
            msgspec.structs.replace(
                row,
                state="sent",
                signature=prepared.signature,
                wire=prepared.wire,
                amount=amount,
                last_height=prepared.last_valid_block_height,
                attempts=row.attempts + (not prepared.step),
                nonce=prepared.nonce,
                step=prepared.step,
                lookup=prepared.table or row.lookup,
            )
        )

    def _judge(self, row: OutboxRecord, error: LedgerError) -> Carried:
        """Whether what an endpoint says of accounts is to be believed: once for what can be asked for again, long for money."""
        now = self._context.clock.time()
        if row.kind in _PATIENT and now < self._refused.setdefault(row.id, now) + REFUSAL_S:
            self._resting[row.id] = now + REST_S
            return Carried("waiting", row)
        return Carried("refused", row, str(error))

    async def _prepare(self, job: Job, row: OutboxRecord, nonce: str) -> tuple[PreparedTransaction | None, int]:
        chain = self._chain
        match row.kind:
            case "event":
                return await chain.prepare_memo(str(row.payload["text"]), job.submitter, job.id), 0
            case "accept":
                note = str(row.payload["text"])
                return await chain.prepare_acceptance(job.submitter, job.id, _asked(row), note, nonce), 0
            case "fund" if "total" in row.payload:
                return await chain.prepare_deposit(job.id, int(row.payload["total"])), row.amount
            case "fund":
                return await chain.prepare_fund(job.id, row.amount, int(row.payload["deadline"])), row.amount
            case "settle":
                tables, had = await self._known(job, row)
                paying = await chain.prepare_settlement(job.submitter, job.id, totals_of(row), nonce, tables, had)
                return paying, row.amount
            case "promise":
                return await chain.prepare_promise(job.submitter, job.id, totals_of(row), nonce), row.amount
            case "refund":
                return await chain.prepare_refund(job.submitter, job.id, nonce), row.amount
            case "slash":
                return await self._prepare_slash(row, nonce)
            case "verdict":
                return await self._prepare_verdict(row, nonce)
            case "table":
                return await chain.prepare_end_of_table(str(row.payload["table"]), nonce), 0

    async def _known(self, job: Job, row: OutboxRecord) -> tuple[list[str], frozenset[str]]:
        """What a payout builds on.

        Returns:
            the lookup tables that payouts of the job have made, oldest first; and payees who have had a token account: they
            were paid before, or this row gave them one. It is given once.
        """
        of_job = col(OutboxRecord.job).equals(job.id)
        async with self._context.store.transaction() as tx:
            rows = await tx.find(OutboxRecord, of_job, col(OutboxRecord.kind).equals("settle"))
            paid = await tx.find(NodeRecord, col(NodeRecord.payout).in_(tuple(row.payload)), col(NodeRecord.earned) > 0)
        tables = [name for name in dict.fromkeys([*(other.lookup for other in rows), row.lookup]) if name]
        return tables, frozenset({*(node.payout for node in paid), *self._made.get(row.id, ())})

    async def _prepare_slash(self, row: OutboxRecord, nonce: str) -> tuple[PreparedTransaction, int]:
        node = str(row.payload["node"])
        state = await self._chain.stake(node)
        amount = 0 if state is None else int(state.slashable(self._context.clock.time()))
        if state is not None and "bps" in row.payload:
            amount = min(amount, state.balance * int(row.payload["bps"]) // 10_000)
        if amount == 0:
            raise LedgerError(f"node {node} has no stake that may be slashed now")
        reason, challenger = bytes.fromhex(str(row.payload["reason"])), row.payload.get("challenger")
        accuser, audit = str(row.payload.get("accuser", "")), str(row.payload.get("audit", ""))
        # Who accused has bonded: the verdict takes the stake with it.
        if accuser and await self._waits(accuser, audit):
            decided = await self._chain.prepare_verdict(accuser, audit, reason, upheld=True, slash=amount, nonce=nonce)
            return decided, amount
        who = None if challenger is None else str(challenger)
        return await self._chain.prepare_slash(node, amount, reason, nonce, who), amount

    async def _prepare_verdict(self, row: OutboxRecord, nonce: str) -> tuple[PreparedTransaction | None, int]:
        accuser, audit = str(row.payload["accuser"]), str(row.payload["audit"])
        if not await self._waits(accuser, audit):
            return None, row.amount  # It was decided with the slash, or has expired.
        evidence, upheld = bytes.fromhex(str(row.payload["evidence"])), bool(row.payload["upheld"])
        return await self._chain.prepare_verdict(accuser, audit, evidence, upheld=upheld, nonce=nonce), row.amount

    async def _waits(self, accuser: str, audit: str) -> bool:
        """Whether a bonded dispute waits for a verdict that may still be given."""
        state = await self._chain.dispute(accuser, audit)
        return state is not None and state.ruling is Ruling.OPEN and self._context.clock.time() < state.deadline

    async def _send(self, prepared: PreparedTransaction) -> Outcome | Literal["refused"]:
        try:
            await self._chain.submit(prepared)
        except (TransactionFailedError, TransactionExpiredError) as error:
            # It may still have happened through an earlier sending: only the outcome tells.
            outcome = await self._outcome(prepared)
            # With a nonce it never expires. It may be signed anew with the same nonce: one of both happens at most.
            refused = outcome == "pending" and prepared.nonce and isinstance(error, TransactionFailedError)
            return "refused" if refused else outcome
        for seconds in CONFIRM_POLLS:
            await self._context.clock.sleep(seconds)
            outcome = await self._outcome(prepared)
            if outcome != "pending":
                return outcome
        return "pending"

    async def _outcome(self, prepared: PreparedTransaction) -> Outcome:
        if prepared.nonce:
            return await self._chain.outcome_of(prepared)
        return await self._chain.outcome(prepared.signature, prepared.last_valid_block_height)

    async def _again(self, row: OutboxRecord, **fields: str) -> OutboxRecord:
        stored = await self._store(msgspec.structs.replace(row, state="queued", **fields))
        if row.nonce != stored.nonce:
            self._release(row.nonce)
        return stored

    # Nonces: the one that has rested longest goes first, because each serves once a block.

    def _take(self, row: OutboxRecord) -> str | None:
        if row.kind not in _DURABLE or not self._nonces:
            return ""
        return self._free.popleft() if self._free else None

    def _keep(self, row: OutboxRecord, nonce: str) -> None:
        if nonce != row.nonce:
            self._release(nonce)

    def _release(self, nonce: str) -> None:
        if self._nonces and nonce in self._nonces and nonce not in self._free:
            self._free.append(nonce)


def forgotten_key(row: OutboxRecord) -> str:
    """Where a restored coordinator keeps an event that it finds on the ledger and does not know."""
    text = str(row.payload["text"])
    return f"{FORGOTTEN_KEY}{row.job}:{hashlib.sha256(text.encode()).hexdigest()}"


def _prepared(row: OutboxRecord) -> PreparedTransaction:
    return PreparedTransaction(row.signature, row.wire, row.last_height, row.nonce, row.step, row.lookup)


def totals_of(row: OutboxRecord) -> dict[str, int]:
    """What each payee of a settlement or promise shall have received in total."""
    return {payee: int(total) for payee, total in row.payload.items()}


def _asked(row: OutboxRecord) -> Asked:
    terms = {name: int(row.payload[name]) for name in ("deadline", "cap", "amount", "max_payees")}
    return Asked(terms["deadline"], Amount(terms["cap"]), Amount(terms["amount"]), terms["max_payees"])
