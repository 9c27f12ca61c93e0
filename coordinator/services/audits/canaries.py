"""Auditors are tested: now and then one is given a step that the coordinator has made false.

The forged step passes every check that costs nothing; only re-running it shows the lie. An auditor that finds it right has not
re-run it, and is sent away. Which audits are canaries is the coordinator's own secret chance, not the beacon's: an auditor that
could compute it would re-run just those.
"""

import asyncio
import logging
from typing import Protocol

from coordinator.domain.audits import trust
from coordinator.domain.audits.sampling import WHOLE
from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import JobState
from coordinator.errors import CottageError, StoreAwayError
from coordinator.services.core.context import Context
from coordinator.services.core.unit_of_work import JobDesk, UnitOfWork
from protocol.ids import Digest

MAX_WAITING = 16  # Forged at a time; each copies an opening.

LOG = logging.getLogger(__name__)


class Forger(Protocol):
    """Makes a true opening false."""

    async def forge(self, opening: Digest, leaves: int, step: int) -> tuple[Digest, Digest]:
        """The forged artifact, and the root under which its step is committed to."""


class Canaries:
    """Plants forged steps among the audits of a job."""

    def __init__(self, context: Context, desk: JobDesk, forger: Forger | None) -> None:
        """Take ``forger`` None where nothing can be forged: then no auditor is tested."""
        self._context = context
        self._desk = desk
        self._forger = forger
        self._waiting: list[Audit] = []
        self._wake = asyncio.Event()
        desk.on_stored(self._notice)

    async def run(self) -> None:
        """Plant for ever."""
        while True:
            self._wake.clear()
            await self.poll()
            await self._wake.wait()

    async def poll(self) -> None:
        """Plant what waits."""
        while self._waiting:
            audit = self._waiting[0]
            try:
                await self._plant(audit)
            except StoreAwayError:
                raise
            except CottageError as error:
                LOG.warning("job %s: no canary was made of audit %s: %s", audit.job, audit.id, error.detail)
            del self._waiting[0]

    async def _plant(self, audit: Audit) -> None:
        assert self._forger is not None
        assert audit.opening is not None
        opening, root = await self._forger.forge(audit.opening, audit.leaves, audit.step)
        async with self._desk.open(audit.job) as work:
            if work.job.state is not JobState.RUNNING:
                return
            deadline = work.now + self._context.config.audit_patience_seconds
            canary = trust.canary(audit, self._context.new_id(), self._context.entropy(32), opening, root, deadline)
            work.audits[canary.id] = canary

    def _notice(self, work: UnitOfWork) -> None:
        for audit in work.concluded:
            if (
                self._forger is not None
                and not audit.canary
                and audit.outer is None
                and audit.state == "passed"
                and not audit.across
                and audit.anchor_in == "opening"
                and len(self._waiting) < MAX_WAITING
                and int.from_bytes(self._context.entropy(8), "big") % WHOLE < self._context.config.canaries
            ):
                self._waiting.append(audit)
                self._wake.set()
