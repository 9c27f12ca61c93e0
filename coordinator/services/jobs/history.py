"""Earlier jobs' outcomes: what they took and cost beside their plans. A job's timeline is ``UnitOfWork.note``'s."""

from collections.abc import Sequence

from coordinator.domain.forecast import RECENT, JobOutcome
from coordinator.domain.job import Job, JobState
from coordinator.services.core.context import Context
from coordinator.store.ports import Transaction, col
from coordinator.store.records import RoundRecord, RunRecord

FRESH_S = 60.0  # A form asks for a quote with every key; jobs end more rarely.


class KnownOutcomes:
    """Looks at the latest settled jobs, now and then."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._known: tuple[JobOutcome, ...] = ()
        self._looked = float("-inf")

    async def outcomes(self) -> Sequence[JobOutcome]:
        """The latest settled jobs that trained all their rounds, newest first: those that lost parts of them, too."""
        now = self._context.clock.time()
        if now - self._looked > FRESH_S:
            async with self._context.everywhere.transaction() as tx:
                jobs = await tx.find(Job, col(Job.state).equals(JobState.SETTLED), newest=True, limit=RECENT)
                found = [await _outcome(tx, job) for job in jobs]
            self._known, self._looked = tuple(one for one in found if one is not None), now
        return self._known


async def _outcome(tx: Transaction, job: Job) -> JobOutcome | None:
    first = await tx.find(RoundRecord, col(RoundRecord.job).equals(job.id), limit=1)
    last = await tx.find(RoundRecord, col(RoundRecord.job).equals(job.id), newest=True, limit=1)
    records = await tx.find(RunRecord, col(RunRecord.job).equals(job.id))
    planned = job.quote.hours_planned * 3600
    if not first or not last or last[0].ended is None or planned <= 0:
        return None
    if not records or not records[0].run.trained:
        return None  # It was stopped before its end.
    hours = (last[0].ended - first[0].started) / planned
    return JobOutcome(hours, job.paid / max(1, job.quote.price), job.quote.replicas)
