"""Asks the ledger for the blocks that open draws wait for."""

import asyncio
import contextlib
import logging
from functools import partial

from coordinator.services.audits.evidence import seal_of
from coordinator.services.audits.sampling import AuditSampling
from coordinator.services.core.context import Context
from coordinator.services.core.unit_of_work import JobDesk, UnitOfWork
from coordinator.services.payments.chain import ChainPort
from coordinator.services.training.runs import Runs
from coordinator.store.ports import Condition, col
from coordinator.store.records import OutboxRecord, RoundRecord
from ledger.errors import LedgerError

POLL_S = 0.4  # A slot.

LOG = logging.getLogger(__name__)


class DrawBlocks:
    """Asks the ledger for what open draws wait for."""

    def __init__(self, context: Context, desk: JobDesk, drawing: AuditSampling, runs: Runs, chain: ChainPort) -> None:
        self._context = context
        self._desk = desk
        self._drawing = drawing
        self._runs = runs
        self._chain = chain
        self._waiting: dict[str, tuple[tuple[int, int], ...]] = {}
        self._wake = asyncio.Event()
        desk.on_stored(self._notice)

    async def run(self) -> None:
        """Ask for ever."""
        while True:
            self._wake.clear()
            await self.poll()
            with contextlib.suppress(TimeoutError):
                async with self._context.clock.timeout(POLL_S if self._waiting else None):
                    await self._wake.wait()

    async def poll(self) -> None:
        """Bring every open draw as far as it goes now."""
        for job in sorted(self._waiting):
            try:
                await self._poll_job(job)
            except LedgerError as error:
                self._context.metrics.count("draws_late_total")
                LOG.info("job %s: the draw waits for the ledger: %s", job, error)

    async def _poll_job(self, job: str) -> None:
        where: tuple[Condition, ...] = (
            col(RoundRecord.job).equals(job),
            col(RoundRecord.state).equals("complete"),
            col(RoundRecord.concluded).equals(False),
        )
        async with self._context.store.transaction() as tx:
            records = [r for r in await tx.find(RoundRecord, *where) if r.beacon is not None and r.beacon.slot is None]
            waiting = [(r.epoch, r.number, r.beacon, await seal_of(tx, r)) for r in records if r.beacon is not None]
        for epoch, number, beacon, seal in waiting:
            after = beacon.after
            if after is None:
                after = await self._slot(seal)
                if after is None:
                    continue
                await self._desk.ask(job, partial(self._note, epoch, number, after))
            found = await self._chain.block_after(after)
            if found is not None:
                await self._desk.ask(job, partial(self._draw, epoch, number, found), self._runs.advance)

    async def _note(self, epoch: int, number: int, slot: int, work: UnitOfWork) -> None:
        await self._drawing.note_slot(work, epoch, number, slot)

    async def _draw(self, epoch: int, number: int, block: tuple[int, str], work: UnitOfWork) -> None:
        await self._drawing.draw(work, epoch, number, *block)

    async def _slot(self, seal: OutboxRecord | None) -> int | None:
        """After which slot the draw's block comes: that of the memo with the commitments, which nobody can choose afterwards.

        Only where there will be no memo the newest slot is taken: ``cottage ledger check`` misses it. None: unknown yet.
        """
        if seal is None or seal.state == "failed":
            return await self._chain.slot()
        return await self._chain.slot_of(seal.signature) if seal.state == "confirmed" else None

    def _notice(self, work: UnitOfWork) -> None:
        undrawn = () if work.run is None else work.run.undrawn
        if not undrawn:
            self._waiting.pop(work.job.id, None)
        elif self._waiting.get(work.job.id) != undrawn:
            self._waiting[work.job.id] = undrawn
            self._wake.set()
