"""What a deployment does next: nodes are seated, counted and paid, and let go. Everything on an open desk.

::

    funded -> planned <-> running -> verifying -> settled
       ^         |           |          |
       '------ paused <------'     last checks, payments, the refund
"""

from collections.abc import Sequence

from coordinator.client.text import money
from coordinator.domain import pricing
from coordinator.domain import serving as rules
from coordinator.domain.job import ENDINGS, JobAction, JobState, Wish, asked
from coordinator.domain.lease import FAULTS, Lease, LeaseEnd
from coordinator.domain.serving import Blame, CountedPeriod
from coordinator.errors import FundsError
from coordinator.services.audits import credit
from coordinator.services.audits.audit_outcomes import reject
from coordinator.services.core.context import Context
from coordinator.services.core.domain_events import PeriodCounted
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.services.network.link_telemetry import Links
from coordinator.services.network.nodes import Nodes
from coordinator.services.payments.periods import (
    PeriodShare,
    conclude_periods,
    pending_shares,
    store_period,
)
from coordinator.services.payments.settlement import Settlement
from coordinator.services.serving.answers import DrawnAnswer
from coordinator.services.serving.homes import Homes
from coordinator.services.serving.seating import ReplicaStaffing
from coordinator.services.training.pauses import spent
from coordinator.services.training.staffing import shape_of
from coordinator.store.ports import Condition, col
from ledger import events as ledger_events
from protocol.job.job import ServeSpec
from protocol.merkle import merkle_root
from protocol.serving import CheckedReport

ANSWERS = frozenset({JobState.FUNDED, JobState.PLANNED, JobState.RUNNING})
START_S = 600.0  # To fetch the model and load it.
MAX_LOADS = 6  # Nodes that fail before any has answered; then it is the model.


class Deployments:
    """Jobs that answer."""

    def __init__(self, context: Context, nodes: Nodes, settlement: Settlement, homes: Homes, links: Links) -> None:
        self._context = context
        self._seating = ReplicaStaffing(nodes, links)
        self._nodes = nodes
        self._settlement = settlement
        self._homes = homes
        self._counted: dict[str, float] = {}
        self._resting: dict[str, float] = {}

    async def advance(self, work: UnitOfWork) -> None:
        """Bring the deployment as far as it goes now."""
        state, verified = work.job.state, work.job.verified
        if state is JobState.CREATED or state not in ANSWERS | {JobState.PAUSED, JobState.VERIFYING}:
            return
        await self._conclude(work)
        if work.job.wish in ENDINGS:
            await self._ends(work)
        elif state is JobState.VERIFYING:
            await self._close(work)
        elif work.job.wish is not Wish.NONE:
            await self._rest(work)
        elif state in ANSWERS and not await self._ends_by_itself(work):
            await self._staff(work)
            if (
                self._context.clock.now() - self._counted.setdefault(work.job.id, self._context.clock.now())
                >= rules.PERIOD_S
            ):
                await self._count(work)
        if work.job.verified != verified and work.job.state in ANSWERS:
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
                work.note("pausing" if action is JobAction.PAUSE else "stopping", "answers under way end first")
            case JobAction.RESUME if work.job.state is JobState.PAUSED:
                if await spent(work.tx, work.job.id) >= work.job.escrow:
                    raise FundsError(
                        f"the budget of deployment {work.job.id} is used up: add to it, or deploy the model again",
                        "budget",
                    )
                work.change(halt="")
                work.advance(JobState.FUNDED, "the deployment goes on: it waits for nodes")
            case JobAction.RESUME:
                work.change(wish=after.wish, halt=after.halt)
        await self.advance(work)

    async def _rest(self, work: UnitOfWork) -> None:
        """Pause or stop, as was asked for, once the answers under way have ended; for a minute they are waited for."""
        now, (under_way, _, _) = self._context.clock.now(), self._homes.now(work.job.id)
        if under_way and now - self._resting.setdefault(work.job.id, now) < rules.REST_S:
            return
        self._resting.pop(work.job.id, None)
        wish = work.job.wish
        work.change(wish=Wish.NONE)
        if wish is Wish.STOP:
            await self._finish(work, "the submitter stopped the deployment")
            return
        await self._release(work, "the deployment rests")
        work.advance(JobState.PAUSED, "the submitter paused the deployment: its nodes are let go")
        await self._settlement.settle_now(work)

    async def stop(self, work: UnitOfWork, state: JobState, reason: str) -> None:
        """End it before its time: pay what is verified, refund the rest."""
        if work.job.wish in ENDINGS:
            return
        await self._release(work, reason)
        work.change(wish=Wish.CANCEL if state is JobState.CANCELLED else Wish.FAIL, halt="", reason=reason)
        if not await self._ends(work):
            work.note("ending", f"{reason}: the last answers are checked, then paid")

    def _sleeps(self, work: UnitOfWork) -> bool:
        """Whether its nodes are let go until somebody asks; it waits for its first ones all the same."""
        minutes = _serve(work).idle_minutes
        return minutes is not None and work.run is not None and self._homes.idle(work.job.id) >= minutes * 60

    # --- nodes ------------------------------------------------------------------------------------------------------------

    async def _staff(self, work: UnitOfWork) -> None:
        """Have nodes hold the model, or nobody while nobody asks. What is lost is told before who comes for it."""
        if self._sleeps(work):
            await self._release(work, "nobody has asked for it for a while")
            self._move(work)
            return
        stays = await self._let_go(work)
        self._move(work)
        if stays:
            owed = {period.lease.replica for period in self._homes.periods(work.job.id)}
            await self._seating.fill(work, owed, self._homes.presence.shunned)
            self._move(work)

    async def _let_go(self, work: UnitOfWork) -> bool:
        """Let go who does not answer, and who leaves; whether the deployment goes on."""
        for lead, why in self._homes.broken(work.job.id):
            if lead in work.leases:
                self._seating.let_go(work, lead, why)
        for held, why in self._homes.away(work.job.id):
            if held in work.leases:
                self._seating.give_up(work, work.leases[held], why)
        for lease in [one for one in work.leases.values() if one.state == "starting"]:
            if work.now - lease.granted > START_S:
                work.note("lost", f"node {lease.node} was not ready after {START_S:g} s and is given up")
                work.end(lease.id, "stalled", f"not ready after {START_S:g} s")
        if why := await self._unloadable(work):
            await self.stop(work, JobState.FAILED, why)
            return False
        for lease in [one for one in work.leases.values() if self._nodes.is_draining(one.node)]:
            work.end(lease.id, "replaced", self._nodes.why_draining(lease.node))
        return True

    async def _unloadable(self, work: UnitOfWork) -> str:
        """Why no node can ever answer; empty: some may."""
        if work.run is None or work.run.served.answers or all(lease.end not in FAULTS for lease in work.ended):
            return ""
        where: tuple[Condition, ...] = (col(Lease.job).equals(work.job.id), col(Lease.end).in_(tuple(sorted(FAULTS))))
        failed = {lease.id: lease for lease in (*await work.tx.find(Lease, *where), *work.ended) if lease.end in FAULTS}
        if len(failed) < MAX_LOADS or any(period.usage.answers for period in self._homes.periods(work.job.id)):
            return ""
        return f"{len(failed)} times a node could not load the model: {work.ended[-1].reason}"

    def _move(self, work: UnitOfWork) -> None:
        """Whether it answers now."""
        if work.run is not None:
            stages, leases = len(work.run.layers), list(work.leases.values())
            epoch, joins = rules.joined(stages, work.run.epoch, work.run.joins, leases)
            secret = work.run.secret or (self._context.entropy(16).hex() if joins else "")
            work.change_run(epoch=epoch, joins=joins, secret=secret)
        ready = work.run is not None and bool(rules.answering(work.run.layers, work.run.joins, work.leases))
        if ready and work.job.state is JobState.PLANNED:
            work.advance(JobState.RUNNING, "the model answers")
        elif not ready and work.job.state is JobState.RUNNING:
            why = "the deployment waits for others"
            if self._sleeps(work):
                why = f"nobody has asked for {_serve(work).idle_minutes} minutes, and the next request has it seated again"
            held = "no node holds" if work.run is not None and len(work.run.layers) == 1 else "no nodes together hold"
            work.advance(JobState.PLANNED, f"{held} the whole model any more: {why}")

    # --- pay --------------------------------------------------------------------------------------------------------------

    async def _count(self, work: UnitOfWork) -> None:
        """Store what replicas have done since the last time as a period, with a share for each of their seats."""
        self._counted[work.job.id] = self._context.clock.now()
        for periods in rules.waves(self._homes.periods(work.job.id)):
            await self._store(work, periods)

    async def _store(self, work: UnitOfWork, periods: Sequence[CountedPeriod]) -> None:
        if work.run is None:
            return
        shape, layers = shape_of(work), work.run.layers
        shares: list[PeriodShare] = []
        for one in periods:
            operations = rules.operations_by_seat(shape, layers, one)
            shares += [_share(one, seat, operations[seat.id]) for seat in one.paid]
        tokens, answers = sum(one.usage.tokens for one in periods), sum(one.usage.answers for one in periods)
        await store_period(work, shares, work.now - rules.PERIOD_S, answers, tokens)
        served = work.run.served
        for one in periods:
            served = served.plus(one.usage)
        work.change_run(served=served)
        work.change(tokens_done=work.job.tokens_done + tokens, tokens_per_second=tokens / rules.PERIOD_S)
        work.record(PeriodCounted(periods))

    async def _conclude(self, work: UnitOfWork) -> None:
        """Verify shares of which nothing is to be checked any more; then their periods are over."""
        await conclude_periods(work, lambda commit: self._homes.waits(commit.lease, commit.round))

    async def checked(self, work: UnitOfWork, drawn: DrawnAnswer, report: CheckedReport) -> None:
        """An answer was drawn again. One that is not the model's costs who made it so all that is not verified, seat and
        standing. Where that is one of two, neither is paid, and they hold no replica together any more."""
        if work.run is None:
            return
        blame = rules.blame(len(drawn.seats), report.stages, drawn.silent) if report.wrong else Blame()
        every, unpaid = [seat.node for seat in drawn.seats], [drawn.seats[stage] for stage in blame.unpaid]
        served = work.run.served.looked_at(every, {seat.node for seat in unpaid}, bool(report.wrong))
        work.change_run(served=served)
        if not report.wrong:
            return
        self._context.metrics.count("answers_wrong_total")
        await self._unpaid(work, unpaid)
        for stage in blame.guilty:
            await self._found(work, drawn.seats[stage], report.wrong)
        if not blame.guilty:
            self._part(work, drawn, blame, report.wrong)

    async def _unpaid(self, work: UnitOfWork, seats: Sequence[Lease]) -> None:
        """Nothing of these nodes is paid that is not verified."""
        nodes = {seat.node for seat in seats}
        self._homes.forget({seat.id for seat in seats})
        for commit in await pending_shares(work):
            if commit.node in nodes:
                await reject(work, commit, "wrong")

    async def _found(self, work: UnitOfWork, seat: Lease, wrong: str) -> None:
        """A node made a wrong answer: it has no place in the job any more, nor a standing."""
        work.note("fault", f"node {seat.node} gave an answer that is not the model's: {wrong}")
        for lease in [one.id for one in work.leases.values() if one.node == seat.node]:
            work.end(lease, "rejected", f"an answer was not the model's: {wrong}")
        await credit.lose(work, seat.node, everywhere=True)

    def _part(self, work: UnitOfWork, drawn: DrawnAnswer, blame: Blame, wrong: str) -> None:
        """Nobody knows who of several made a wrong answer: those that it may have been go; the rest gets other partners."""
        assert work.run is not None
        what = f"an answer of replica {(drawn.seats[0].replica or 0) + 1} is not the model's: {wrong}"
        if blame.apart:
            one, other = (drawn.seats[stage].node for stage in blame.apart)
            work.change_run(apart=tuple(dict.fromkeys((*work.run.apart, (one, other)))))
            why = f"node {one} or node {other} made it so: they hold no replica together any more"
        elif blame.silent:
            nodes = " and ".join(drawn.seats[stage].node for stage in blame.silent)
            why = f"node {nodes} has not said what crossed"
        else:
            why = "nothing tells who made it"
        work.note("fault", f"{what}; {why}")
        stages = blame.unpaid or range(len(drawn.seats))
        how: LeaseEnd = "stalled" if blame.silent else "replaced"
        self._seating.part(work, [drawn.seats[stage] for stage in stages], f"{what}; {why}", how)

    # --- the end ----------------------------------------------------------------------------------------------------------

    async def _ends_by_itself(self, work: UnitOfWork) -> bool:
        due = await spent(work.tx, work.job.id)
        if work.run is not None:
            shape, layers = shape_of(work), work.run.layers
            for one in self._homes.periods(work.job.id):
                done = rules.operations_by_seat(shape, layers, one).values()
                due += pricing.price(sum(done), work.job.quote.rate, 0)
        match rules.ending(work.now, work.job.deadline, due, work.job.escrow):
            case "hours":
                await self._finish(work, f"its {work.job.spec.deadline_hours:g} hours are over")
            case "budget":
                await self._finish(work, f"its budget of {money(work.job.spec.budget)} is used up")
            case _:
                return False
        return True

    async def _release(self, work: UnitOfWork, reason: str) -> None:
        """Count what was done, and let all nodes go."""
        await self._count(work)
        for lease in list(work.leases):
            work.end(lease, "stopped", reason)

    async def _finish(self, work: UnitOfWork, why: str) -> None:
        if work.job.state is JobState.FUNDED:
            await self.stop(work, JobState.CANCELLED, f"{why}, and no node was free for it")
            return
        await self._release(work, why)
        work.advance(JobState.VERIFYING, f"{why}: the last answers are checked and paid")
        await self._conclude(work)
        await self._close(work)

    async def _close(self, work: UnitOfWork) -> None:
        """Settle once everything is checked, and everybody's money is safe."""
        if await pending_shares(work):
            return
        await self._settlement.finish(work)
        if not await self._settlement.is_done(work):
            return
        self._seating.forget(work.job.id)
        tokens = f"{work.job.tokens_done:,} tokens were answered"
        work.advance(JobState.SETTLED, f"the deployment is over: {tokens}, and it cost {money(work.job.paid)}")
        event = ledger_events.Settled(job=work.job.id, paid=work.job.paid, refunded=work.job.refunded)
        work.memo("settled", event)

    async def _ends(self, work: UnitOfWork) -> bool:
        await self._conclude(work)
        if await pending_shares(work):
            return False
        self._seating.forget(work.job.id)
        state = ENDINGS[work.job.wish]
        work.change(wish=Wish.NONE)
        work.advance(state, work.job.reason)
        await self._settlement.finish(work)
        return True


def _serve(work: UnitOfWork) -> ServeSpec:
    assert work.job.spec.serve is not None
    return work.job.spec.serve


def _share(period: CountedPeriod, seat: Lease, operations: int) -> PeriodShare:
    """What a seat did in a period; its root is over the answers of its replica."""
    return PeriodShare(
        seat.id,
        seat.node,
        seat.payout,
        seat.stage or 0,
        seat.replica or 0,
        merkle_root(period.leaves).hex(),
        period.usage.answers,
        operations,
        period.usage.tokens,
    )
