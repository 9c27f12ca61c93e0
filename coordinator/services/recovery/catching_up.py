"""Every job of a restored coordinator, one after the other: read the ledger, then bring the books up to date."""

import logging
from collections.abc import Mapping, Sequence

from coordinator.domain.job import LIVE, Job, JobState
from coordinator.domain.rounds.run import RESTORED_EPOCHS
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.core.context import Context
from coordinator.services.payments.chain import ChainPort
from coordinator.services.recovery.job_records import JobRecords
from coordinator.services.recovery.restoration import JobRestoration, LedgerTruth
from coordinator.store.ports import col
from coordinator.store.records import CommitRecord, NodeRecord, RunRecord
from ledger.errors import LedgerAnswerError, LedgerUnavailableError

PAUSE_S = 2.0  # Between two questions to a ledger that does not answer: without it nothing can be known.
TRIES = 3  # An endpoint may list a transaction a moment before it has it.

LOG = logging.getLogger(__name__)


class CatchingUp:
    """Brings up to date whatever a backup did not have."""

    def __init__(self, context: Context, chain: ChainPort, artifacts: ArtifactStore) -> None:
        self._context, self._chain, self._artifacts = context, chain, artifacts

    async def at_work(self) -> dict[str, tuple[int, int]]:
        """Jobs of the backup that are not over, and where each stands: epoch and complete rounds."""
        async with self._context.store.transaction() as tx:
            jobs = await tx.find(Job, col(Job.state).in_(tuple(sorted(LIVE))))
            runs = {record.job: (record.run.epoch, record.run.done) for record in await tx.find(RunRecord)}
        return {job.id: runs.get(job.id, (-1, 0)) for job in jobs if job.state is not JobState.CREATED}

    async def run(self, found: Mapping[str, Sequence[JobRecords]], backup: Mapping[str, tuple[int, int]]) -> None:
        """Bring up each job that is at work in the backup, or that nodes know of.

        Args:
            backup: where jobs stood in it (``at_work``). One whose epoch has jumped ahead since was brought up before a crash.
        """
        now = await self.at_work()
        done = {job for job, (epoch, _) in now.items() if epoch - backup.get(job, (-1, 0))[0] >= RESTORED_EPOCHS}
        for job in sorted({*now, *found} - done):
            entries = found.get(job, ())
            ledger = await self._read(job, entries)
            async with self._context.store.transaction() as tx:
                await JobRestoration(tx, self._context.clock.time(), ledger, self._artifacts.has).bring_up(job, entries)

    async def _read(self, job: str, entries: Sequence[JobRecords]) -> LedgerTruth:
        """What the ledger has of a job, as soon as it answers."""
        async with self._context.store.transaction() as tx:
            known = await tx.find(Job, col(Job.id).equals(job))
            commits = await tx.find(CommitRecord, col(CommitRecord.job).equals(job))
            payees = {record.payout for record in await tx.find(NodeRecord)}
        submitter = (known or [records.job for records in entries])[0].submitter
        for records in entries:
            commits += records.commits
            payees |= {lease.payout for lease in records.leases}
        payees |= {commit.payout for commit in commits}
        while True:
            try:
                escrow = await self._chain.escrow(submitter, job)
                if escrow is None:
                    return LedgerTruth(None)
                paid = await self._chain.received(submitter, job, payees)
                return LedgerTruth(escrow, paid, await self._written(submitter, job))
            except LedgerUnavailableError as error:
                LOG.warning("the restore waits for the ledger: %s", error)
                await self._context.clock.sleep(PAUSE_S)

    async def _written(self, submitter: str, job: str) -> Mapping[str, str]:
        """The job's events that are on the ledger already.

        Where they cannot be read, since a stranger has named the escrow in thousands of transactions or the ledger lacks one of
        them, the job goes on all the same: what is sent again stands there twice.
        """
        for _ in range(TRIES):
            try:
                return await self._chain.written(submitter, job)
            except LedgerAnswerError as error:
                LOG.warning("what is on the ledger of job %s: %s", job, error)
                await self._context.clock.sleep(PAUSE_S)
        return {}
