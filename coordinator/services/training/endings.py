"""Ends before their time: cancelled by the submitter, failed, or out of time.

No round begins any more, and what was done before is still looked at: or whoever has a model's checkpoint could end its job
before anybody has looked, and have the work for nothing. Everything here happens on an open desk (``UnitOfWork``).
"""

from coordinator.domain.job import ENDINGS, JobState, Wish
from coordinator.services.audits.verification import Verification
from coordinator.services.core.context import Context
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.services.payments.escrows import closing
from coordinator.services.payments.settlement import Settlement


class Endings:
    """Takes down that a job is to end, and ends it once all that it has to pay is known."""

    def __init__(self, context: Context, verification: Verification, settlement: Settlement) -> None:
        self._auditors = context.config.auditors
        self._verification = verification
        self._settlement = settlement

    async def begin(self, work: UnitOfWork, state: JobState, reason: str) -> None:
        """From now on the job only ends; the round in flight was given up."""
        wish = Wish.CANCEL if state is JobState.CANCELLED else Wish.FAIL
        work.change(wish=wish, halt="", reason=reason)
        if not await self.ends(work):
            work.note("ending", f"{reason}: no round begins any more, and what is done is still looked at, then paid")

    async def ends(self, work: UnitOfWork) -> bool:
        """Whether the job has ended: once everything was looked at, or in time for what is verified to be paid."""
        if work.now <= closing(work.job) and not await self._verification.conclude_all(work):
            self._release(work)
            return False
        await self.now(work, ENDINGS[work.job.wish], work.job.reason)
        return True

    def _release(self, work: UnitOfWork) -> None:
        """Let nodes go that nothing is waited for of, where the operator's own machines look at what is opened."""
        if not self._auditors or (work.run is not None and work.run.undrawn):
            return
        needed: set[str | None] = {audit.auditor_lease for audit in work.audits.values()}
        for audit in work.audits.values():
            needed |= {audit.lease, *(side.lease for side in audit.sides)} if audit.unopened else set()
        disputes = [record.dispute for record in work.disputes.values()]
        busy = self._auditors | {node for it in disputes for node in (it.prover, it.challenger)}
        for lease in list(work.leases.values()):
            if lease.id not in needed and lease.node not in busy:
                work.end(lease.id, "stopped", work.job.reason)

    async def now(self, work: UnitOfWork, state: JobState, reason: str) -> None:
        """Stop tasks, pay what is verified, refund the rest; what nobody has looked at is not paid."""
        work.change(wish=Wish.NONE)
        await self._verification.give_up(work)
        for lease in list(work.leases):
            work.end(lease, "stopped", reason)
        work.advance(state, reason)
        await self._settlement.finish(work)
