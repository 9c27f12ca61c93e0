"""Carries the outbox to the ledger: a lane for each job's money, in order, and one for each other kind; many lanes at a time.

``outbox_dispatcher`` signs, stores, sends and follows a row; ``confirmations`` is what comes of it.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from common import tracing
from coordinator.client.text import money
from coordinator.domain.job import Job, JobState
from coordinator.services.core.context import Context
from coordinator.services.core.domain_events import LedgerRowQueued
from coordinator.services.core.unit_of_work import JobDesk
from coordinator.services.payments.chain import ChainPort
from coordinator.services.payments.confirmations import Confirmations
from coordinator.services.payments.escrows import owed, unsecured
from coordinator.services.payments.outbox_dispatcher import Carrier
from coordinator.services.payments.promises import PromiseService
from coordinator.store.ports import col
from coordinator.store.records import MONEY_ROWS, OPEN_ROWS, OutboxKind, OutboxRecord
from ledger.errors import LedgerAnswerError, LedgerError, LedgerUnavailableError

MAX_LANES = 16  # Jobs whose money moves at the same time: the ledger's endpoint limits connections.
MAX_ROWS = 500  # Loaded at a time.
REST_S = 2.0  # Where nothing is open; whoever queues a row wakes it.
POLL_S = 0.5
_ATTEMPTS: Mapping[OutboxKind, str] = {
    "fund": "opening the escrow",
    "accept": "accepting the escrow",
    "settle": "paying the nodes",
    "promise": "promising earnings",
    "refund": "the refund",
    "slash": "taking the stake",
    "verdict": "deciding a dispute on the ledger",
    "event": "writing an event",
    "table": "closing a lookup table",
}

LOG = logging.getLogger(__name__)


class Lanes:
    """Carries rows for ever; a row that is refused for good is given up in words."""

    def __init__(
        self, context: Context, desk: JobDesk, chain: ChainPort, promises: PromiseService, confirmations: Confirmations
    ) -> None:
        self._context = context
        self._desk = desk
        self._chain = chain
        self._promises = promises
        self._confirmations = confirmations
        self._carrier = Carrier(context, chain, self._store)
        self._trouble = ""
        self._wake = asyncio.Event()
        self._has_open = False
        desk.on(LedgerRowQueued, lambda _work, _event: self._wake.set())

    async def run(self) -> None:
        """Carry rows for ever. Begun anew, it learns anew which nonces are free: some were taken for what was never stored."""
        self._carrier.forget()
        while True:
            self._wake.clear()
            if not await self.drain():
                await self._pause()

    async def drain(self) -> bool:
        """Carry what is open as far as it goes now; whether anything was finished."""
        async with self._context.store.transaction() as tx:
            rows = await tx.find(OutboxRecord, col(OutboxRecord.state).in_(OPEN_ROWS), limit=MAX_ROWS)
            sent = (
                await tx.find(OutboxRecord, col(OutboxRecord.state).equals("sent")) if len(rows) == MAX_ROWS else rows
            )
            self._has_open = bool(rows)
            names = tuple(sorted({row.job for row in rows}))
            jobs = {job.id: job for job in await tx.find(Job, col(Job.id).in_(names))} if names else {}
        try:
            await self._carrier.open((*rows, *sent))
        except (LedgerUnavailableError, LedgerAnswerError) as error:
            self._unanswered(error)
            return False
        lanes: dict[tuple[str, str], list[OutboxRecord]] = defaultdict(list)
        for row in rows:
            # Money of a job moves in order: the refund ends what payouts are made from. The rest needs not wait for it.
            lanes[row.job, "money" if row.kind in MONEY_ROWS else row.kind].append(row)
        for lane in lanes.values():
            lane.sort(key=lambda row: row.kind == "refund")  # Also what has turned out to be owed since goes before it.
        gate = asyncio.Semaphore(MAX_LANES)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._carry_lane(gate, jobs[job], lane), name="carry")
                for (job, _), lane in lanes.items()
            ]
        return any(task.result() for task in tasks)

    async def _pause(self) -> None:
        try:
            async with self._context.clock.timeout(POLL_S if self._has_open else REST_S):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _carry_lane(self, gate: asyncio.Semaphore, job: Job, rows: Sequence[OutboxRecord]) -> bool:
        finished = False
        async with gate:
            for row in rows:
                try:
                    with tracing.span(f"ledger {row.kind}", "", job=row.job):
                        done = await self._carry(job, row)
                    if not done:
                        break
                except (LedgerUnavailableError, LedgerAnswerError) as error:
                    self._unanswered(error)
                    break
                finished = True
        return finished

    def _unanswered(self, error: LedgerError) -> None:
        self._context.metrics.count("ledger_unavailable_total")
        if str(error) != self._trouble:  # An outage is told once and not at each turn.
            self._trouble = str(error)
            LOG.warning("payments wait for the ledger: %s", error)

    async def _carry(self, job: Job, row: OutboxRecord) -> bool:
        """Bring one row on; whether it is over. ``job``: as it was when its rows were read."""
        opening = row.kind == "accept" or (row.kind == "fund" and "total" not in row.payload)
        if row.state == "queued" and opening:
            async with self._context.store.transaction() as tx:
                job = await tx.get(Job, row.job)
            if job.state is not JobState.CREATED:
                await self._give_up(row, f"the job is {job.state} already")
                return True
        if row.state == "queued" and row.kind == "refund" and (waits := await self._secure(row)):
            return waits == "given up"
        carried = await self._carrier.carry(job, row)
        match carried.state:
            case "waiting":
                return False
            case "confirmed":
                await self._confirmations.follow_up(job, carried.row)
            case "refused":
                await self._give_up(carried.row, carried.reason)
        self._carrier.over(carried.row)
        return True

    async def _store(self, row: OutboxRecord) -> OutboxRecord:
        """Store a row as it is now, in a transaction that others share: what is signed at the same time waits for one commit."""
        return await self._desk.ask(row.job, lambda work: work.tx.update(row))

    async def _secure(self, row: OutboxRecord) -> Literal["", "waiting", "given up"]:
        """Promise what could not be paid before the rest goes back; whether the refund has to wait, or must not be."""
        async with self._desk.open(row.job) as work:
            left = await owed(work.tx, row.job)
            if not left:
                return ""
            promises = await work.tx.find(
                OutboxRecord, col(OutboxRecord.job).equals(row.job), col(OutboxRecord.kind).equals("promise")
            )
            if any(promise.state in OPEN_ROWS for promise in promises):
                return "waiting"
            if not any(promise.state == "failed" and promise.id > row.id for promise in promises):
                shares = await unsecured(work.tx, row.job)
                free = [msgspec.structs.replace(share, settlement=None) for share in shares]
                await self._promises.queue(work, await work.tx.update_all(free, shares), always=True)
                return "waiting"
            submitter = work.job.submitter
        state = await self._chain.escrow(submitter, row.job)
        if state is None or state.ended:
            return ""  # Its submitter has taken it back: that is taken note of.
        await self._give_up(row, f"{money(left)} of verified work can be neither paid nor promised, so all of it stays")
        return "given up"

    async def _give_up(self, row: OutboxRecord, reason: str) -> None:
        async with self._desk.open(row.job) as work:
            work.count("ledger_failed_total")
            detail = f"{row.detail}: {reason}" if row.detail else reason
            await work.tx.update(msgspec.structs.replace(row, state="failed", detail=detail[:500]))
            if row.kind == "promise":
                await self._promises.given_up(work.tx, row)
            if row.kind not in ("event", "table"):
                work.note("ledger", f"{_ATTEMPTS[row.kind]} failed: {reason}")
