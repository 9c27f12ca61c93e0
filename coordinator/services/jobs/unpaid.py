"""Jobs that nobody has paid anything for: how many there may be, what is made ready for them, and when they are gone.

A job costs the coordinator before anybody pays for it: its dataset is tokenised in a process, its files lie on the disk, its rows
in the database. Once funded, ending it costs transactions. So an account has so many that are not funded yet, or ended within
a day without paying anybody, and so have all together. A job that nobody funds ends after a day; a day later it is gone.
"""

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from coordinator.domain.account import LOCAL_ACCOUNT
from coordinator.domain.job import ENDED_EARLY, Job, JobState
from coordinator.errors import CottageError, FullError, NotFoundError, StoreAwayError, TooManyError
from coordinator.services.accounts.budgets import (
    ALL_SHARE,
    FAULTY_S,
    FILE_SHARE,
    FUND_S,
    MAX_FAULTY_JOBS,
    MAX_PREPARED_AT_ONCE,
    MAX_PREPARED_EACH,
    MAX_PREPARED_WAITING,
    MAX_UNPAID_JOBS,
    MAX_UNPAID_JOBS_OF_ALL,
    LaneBudget,
)
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.core.context import Context
from coordinator.services.core.unit_of_work import JobDesk
from coordinator.services.payments.funding import FundingService
from coordinator.services.training.job_faults import faulty_jobs
from coordinator.services.training.runs import Runs
from coordinator.store.ports import Condition, col
from coordinator.store.records import EventRecord, LogRecord, NoticeRecord, OutboxRecord, OutputRecord
from ledger.errors import LedgerError

DAY = 86_400.0
LOOK_S = 60.0
MAX_A_LOOK = 20  # Each may ask the ledger once more for its escrow.
TOKEN_BYTES = 2  # A byte of a dataset is a token of two bytes at the most, as the tokenizer of bytes makes it.
RETRY_S = 3600.0
GIGABYTE = 10**9

LOG = logging.getLogger(__name__)


class _Made(NamedTuple):
    account_id: str
    size: int


class Unpaid:
    """``disk``: bytes that there is room for in all; None: those of the data folder's disk."""

    def __init__(
        self,
        context: Context,
        desk: JobDesk,
        runs: Runs,
        funding: FundingService,
        artifacts: ArtifactStore,
        disk: Callable[[], int] | None = None,
    ) -> None:
        """``disk``: bytes of the disk that the files lie on; that of the coordinator's folder unless given."""
        self._context = context
        self._desk = desk
        self._runs = runs
        self._funding = funding
        self._artifacts = artifacts
        self._disk = disk or (lambda: shutil.disk_usage(context.config.data).total)
        self._jobs: dict[str, _Made] | None = None
        waiting = MAX_PREPARED_AT_ONCE + MAX_PREPARED_WAITING
        self._lane = LaneBudget("jobs that are made ready", MAX_PREPARED_EACH, waiting, 30.0)
        self._turn = asyncio.Semaphore(MAX_PREPARED_AT_ONCE)
        self._strangers_turn = asyncio.Semaphore(MAX_PREPARED_AT_ONCE - 1)  # Whoever is known waits for no crowd.

    @asynccontextmanager
    async def making(self, account_id: str, dataset: str | None = None) -> AsyncIterator[None]:
        """Make a job's files inside, once it is the account's turn; ``dataset``: what they are made of, if it takes room.

        Raises:
            TooManyError: the account has too many unpaid jobs, or too many that failed by their own files lately, or too many
                are being made ready.
            FullError: all accounts have, or there is no room for the files.
            NotFoundError: the dataset is not here.
        """
        size = 0 if dataset is None else await self._artifacts.size(dataset)
        known = account_id == LOCAL_ACCOUNT or await self._may(account_id, size)
        with self._lane.enter(account_id):
            if known:
                async with self._turn:
                    yield
            else:
                async with self._strangers_turn, self._turn:
                    yield

    async def _may(self, account_id: str, dataset_bytes: int) -> bool:
        """See that there is room for one more; whether its account is known."""
        await self._pause_after_faults(account_id)
        size = dataset_bytes * TOKEN_BYTES
        jobs = await self._known_jobs()
        own = [made.size for made in jobs.values() if made.account_id == account_id]
        if len(own) >= MAX_UNPAID_JOBS:
            raise TooManyError(
                f"{len(own)} jobs of yours are not funded, or ended within a day without paying anybody: fund one, or wait",
                RETRY_S,
            )
        async with self._context.everywhere.transaction() as tx:
            known = bool(await tx.find(Job, col(Job.account_id).equals(account_id), col(Job.paid) > 0, limit=1))
        total = self._disk()
        if sum(own) + size > total // FILE_SHARE:
            held, most = sum(own) / GIGABYTE, total / FILE_SHARE / GIGABYTE
            raise FullError(
                f"what was made ready for your unpaid jobs has {held:,.1f} GB of {most:,.1f}: fund or cancel some",
                RETRY_S,
            )
        others = [made.size for made in jobs.values() if made.account_id != LOCAL_ACCOUNT]
        if not known and (len(others) >= MAX_UNPAID_JOBS_OF_ALL or sum(others) + size > total // ALL_SHARE):
            raise FullError(f"{len(others):,} jobs wait here for somebody to pay for them: try again later", RETRY_S)
        return known

    async def _pause_after_faults(self, account_id: str) -> None:
        """TooManyError while as many jobs of the account as may have failed by their own files within a day."""
        now = self._context.clock.time()
        async with self._context.everywhere.transaction() as tx:
            failed = await faulty_jobs(tx, account_id, now)
        ends = sorted((job.ended or now for job in failed), reverse=True)
        if len(ends) >= MAX_FAULTY_JOBS:
            raise TooManyError(
                f"{len(ends)} jobs of yours failed within a day since their own files cannot be used: their pages say why; "
                "mend the files meanwhile",
                ends[MAX_FAULTY_JOBS - 1] + FAULTY_S - now,
            )

    async def made(self, job: Job) -> None:
        """A job was made, and is not paid for."""
        if self._jobs is not None:
            self._jobs[job.id] = await self._measured(job)

    async def _measured(self, job: Job) -> _Made:
        if job.account_id == LOCAL_ACCOUNT:
            return _Made(job.account_id, 0)
        sizes = 0
        for digest in set(job.files.values()):
            with suppress(NotFoundError):
                sizes += await self._artifacts.size(digest)
        return _Made(job.account_id, sizes)

    async def _known_jobs(self) -> dict[str, _Made]:
        if self._jobs is None or self._context.cell.of > 1:  # Others make jobs, too.
            await self._count()
        return self._jobs or {}

    async def _count(self) -> None:
        """Look again which jobs are unpaid; each is measured once."""
        now, known = self._context.clock.time(), self._jobs or {}
        waiting: tuple[Condition, ...] = (col(Job.state).equals(JobState.CREATED),)
        ended: tuple[Condition, ...] = (
            col(Job.state).in_(tuple(sorted(ENDED_EARLY))),
            col(Job.paid).equals(0),
            col(Job.ended) > now - DAY,
        )
        found: dict[str, _Made] = {}
        async with self._context.store.transaction() as tx:
            ids = [
                str(job)
                for where in (waiting, ended)
                for (job,) in await tx.sums(Job, col(Job.version), (col(Job.id),), *where)
            ]
        for job in ids:
            if job in known:
                found[job] = known[job]
                continue
            async with self._context.everywhere.transaction() as tx:
                stored = await tx.find(Job, col(Job.id).equals(job))
            found |= {one.id: await self._measured(one) for one in stored}
        self._jobs = found

    async def run(self) -> None:
        """End what nobody funds, and forget what nobody has funded, for ever."""
        while True:
            await self.look()
            await self._context.clock.sleep(LOOK_S)

    async def look(self) -> None:
        """End a few jobs that nobody has funded in time, and forget a few that ended so."""
        now = self._context.clock.time()
        late: tuple[Condition, ...] = (col(Job.state).equals(JobState.CREATED), col(Job.created) < now - FUND_S)
        over: tuple[Condition, ...] = (
            col(Job.state).in_(tuple(sorted(ENDED_EARLY))),
            col(Job.escrow).equals(0),
            col(Job.ended) < now - DAY,
        )
        async with self._context.store.transaction() as tx:
            waiting = await tx.find(Job, *late, limit=MAX_A_LOOK)
            ended = await tx.find(Job, *over, limit=MAX_A_LOOK)
        try:
            for job in waiting:
                await self._end(job)
            for job in ended:
                if not await self._funding.return_deposit(job):
                    await self._forget(job)
        except LedgerError as error:
            LOG.info("unpaid jobs wait for the ledger: %s", error)
        await self._count()

    async def _end(self, job: Job) -> None:
        """Unless its escrow is there after all.

        Raises:
            LedgerError: the ledger does not answer.
        """
        try:
            await self._funding.see_escrow(job)
        except StoreAwayError:
            raise
        except CottageError:
            async with self._desk.open(job.id) as work:
                if work.job.state is JobState.CREATED:
                    hours = FUND_S / 3600
                    await self._runs.stop(work, JobState.CANCELLED, f"nobody funded it within {hours:.0f} hours")

    async def _forget(self, job: Job) -> None:
        of_jobs = (
            col(EventRecord.job),
            col(LogRecord.job),
            col(OutboxRecord.job),
            col(NoticeRecord.job),
            col(OutputRecord.job),
        )
        async with self._context.store.transaction() as tx:
            for of_job in of_jobs:
                await tx.forget(of_job.of, of_job.equals(job.id))
            await tx.delete(job)
