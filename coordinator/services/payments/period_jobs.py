"""The life of a job that is paid by periods: it runs, rests, goes on and ends alike, whatever its nodes do. On an open desk.

::

    funded -> planned <-> running -> verifying -> settled
       ^         |           |          |
       '------ paused <------'     last payments, the refund
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from coordinator.client.text import money
from coordinator.domain.job import ENDINGS, JobAction, JobState, Wish, asked
from coordinator.domain.lease import FAULTS, Lease
from coordinator.errors import FundsError
from coordinator.services.core.context import Context
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.services.payments.periods import conclude_periods, pending_shares
from coordinator.services.payments.settlement import Settlement
from coordinator.services.training.pauses import spent
from coordinator.store.ports import Condition, col
from coordinator.store.records import CommitRecord
from ledger import events as ledger_events

AT_WORK = frozenset({JobState.FUNDED, JobState.PLANNED, JobState.RUNNING})
MAX_LOADS = 6  # Nodes that fail before any has done a thing; then it is what they load.


@dataclass(frozen=True)
class PeriodJobWords:
    """What such a job is called, and how people are told of it.

    Attributes:
        noun: what it is. anew: what somebody does whose budget is used up.
        resting: how it comes to rest. ending: what happens before it ends early; ``last``: before it is over.
    """

    noun: str
    anew: str
    resting: str
    ending: str
    last: str


class PeriodJobs(ABC):
    """Jobs of one kind that are paid by periods."""

    words: ClassVar[PeriodJobWords]

    def __init__(self, context: Context, settlement: Settlement) -> None:
        self._context, self._settlement = context, settlement

    # --- what differs by kind ---------------------------------------------------------------------------------------------

    @abstractmethod
    async def _works(self, work: UnitOfWork) -> None:
        """Bring one that has escrow, and that nobody wants to rest or end, as far as it goes now."""

    @abstractmethod
    async def _release(self, work: UnitOfWork, reason: str) -> None:
        """Count what was done, and let all nodes go."""

    @abstractmethod
    def _forget(self, job: str) -> None:
        """It is over: nothing of it has to be in memory any more."""

    @abstractmethod
    def _done(self, work: UnitOfWork) -> str:
        """What it has come to, as half a sentence."""

    def _waits(self, _commit: CommitRecord) -> bool:
        """Whether something of a share is still to be checked."""
        return False

    def _may_rest(self, _work: UnitOfWork) -> bool:
        """Whether one that is to rest has nothing under way that is waited for."""
        return True

    # --- what all do alike ------------------------------------------------------------------------------------------------

    async def advance(self, work: UnitOfWork) -> None:
        """Bring the job as far as it goes now."""
        state, verified = work.job.state, work.job.verified
        if state not in AT_WORK | {JobState.PAUSED, JobState.VERIFYING}:
            return
        await self._conclude(work)
        if work.job.wish in ENDINGS:
            await self._ends(work)
        elif state is JobState.VERIFYING:
            await self._close(work)
        elif work.job.wish is not Wish.NONE:
            await self._rest(work)
        elif state in AT_WORK:
            await self._works(work)
        if work.job.verified != verified and work.job.state in AT_WORK:
            await self._settlement.settle_if_due(work)

    async def ask(self, work: UnitOfWork, action: JobAction) -> None:
        """Rest, go on or end, as its owner asks.

        Raises:
            ConflictError: it is in no state for it. FundsError: its budget is used up.
        """
        after = asked(work.job, action, checkpoint=True)
        match action:
            case JobAction.PAUSE | JobAction.STOP if after.wish is not work.job.wish:
                work.change(wish=after.wish, halt="asked")
                work.note("pausing" if action is JobAction.PAUSE else "stopping", self.words.resting)
            case JobAction.RESUME if work.job.state is JobState.PAUSED:
                if await spent(work.tx, work.job.id) >= work.job.escrow:
                    called = f"{self.words.noun} {work.job.id}"
                    raise FundsError(f"the budget of {called} is used up: add to it, or {self.words.anew}", "budget")
                work.change(halt="")
                work.advance(JobState.FUNDED, f"the {self.words.noun} goes on: it waits for nodes")
            case JobAction.RESUME:
                work.change(wish=after.wish, halt=after.halt)
        await self.advance(work)

    async def stop(self, work: UnitOfWork, state: JobState, reason: str) -> None:
        """End it before its time: pay what is verified, refund the rest."""
        if work.job.wish in ENDINGS:
            return
        await self._release(work, reason)
        work.change(wish=Wish.CANCEL if state is JobState.CANCELLED else Wish.FAIL, halt="", reason=reason)
        if not await self._ends(work):
            work.note("ending", f"{reason}: {self.words.ending}")

    async def _conclude(self, work: UnitOfWork) -> None:
        """Verify shares of which nothing is to be checked any more; then their periods are over."""
        await conclude_periods(work, self._waits)

    async def _rest(self, work: UnitOfWork) -> None:
        """Pause or stop, as was asked for."""
        if not self._may_rest(work):
            return
        wish, noun = work.job.wish, self.words.noun
        work.change(wish=Wish.NONE)
        if wish is Wish.STOP:
            await self._finish(work, f"the submitter stopped the {noun}")
            return
        await self._release(work, f"the {noun} rests")
        work.advance(JobState.PAUSED, f"the submitter paused the {noun}: its nodes are let go")
        await self._settlement.settle_now(work)

    async def _run_out(self, work: UnitOfWork, what: Literal["hours", "budget"]) -> None:
        """Its time or its money is over."""
        if what == "hours":
            await self._finish(work, f"its {work.job.spec.deadline_hours:g} hours are over")
        else:
            await self._finish(work, f"its budget of {money(work.job.spec.budget)} is used up")

    async def _finish(self, work: UnitOfWork, why: str) -> None:
        if work.job.state is JobState.FUNDED:
            await self.stop(work, JobState.CANCELLED, f"{why}, and no node was free for it")
            return
        await self._release(work, why)
        work.advance(JobState.VERIFYING, f"{why}: {self.words.last}")
        await self._conclude(work)
        await self._close(work)

    async def _close(self, work: UnitOfWork) -> None:
        """Settle once everything is checked, and everybody's money is safe."""
        if await pending_shares(work):
            return
        await self._settlement.finish(work)
        if not await self._settlement.is_done(work):
            return
        self._forget(work.job.id)
        text = f"the {self.words.noun} is over: {self._done(work)}, and it cost {money(work.job.paid)}"
        work.advance(JobState.SETTLED, text)
        event = ledger_events.Settled(job=work.job.id, paid=work.job.paid, refunded=work.job.refunded)
        work.memo("settled", event)

    async def _ends(self, work: UnitOfWork) -> bool:
        await self._conclude(work)
        if await pending_shares(work):
            return False
        self._forget(work.job.id)
        state = ENDINGS[work.job.wish]
        work.change(wish=Wish.NONE)
        work.advance(state, work.job.reason)
        await self._settlement.finish(work)
        return True


def give_up_late(work: UnitOfWork, after: float) -> None:
    """Let go of nodes that have not loaded what they work with ``after`` so many seconds."""
    for lease in [one for one in work.leases.values() if one.state == "starting"]:
        if work.now - lease.granted > after:
            work.note("lost", f"node {lease.node} was not ready after {after:g} s and is given up")
            work.end(lease.id, "stalled", f"not ready after {after:g} s")


async def failed_leases(work: UnitOfWork) -> Mapping[str, Lease]:
    """The job's leases that have ended by a fault; none where no further one has, in this unit of work."""
    if all(lease.end not in FAULTS for lease in work.ended):
        return {}
    where: tuple[Condition, ...] = (col(Lease.job).equals(work.job.id), col(Lease.end).in_(tuple(sorted(FAULTS))))
    every = (*await work.tx.find(Lease, *where), *work.ended)
    return {lease.id: lease for lease in every if lease.end in FAULTS}
