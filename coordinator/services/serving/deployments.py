"""What a deployment does next: nodes are seated, counted and paid, and let go. Everything on an open desk.

Its life is that of ``payments.period_jobs``.
"""

from collections.abc import Sequence
from hashlib import sha256

import msgspec

from common.untrusted_text import untrusted
from coordinator.domain import pricing
from coordinator.domain import serving as rules
from coordinator.domain.accusations import AccusedAnswer
from coordinator.domain.job import JobState
from coordinator.domain.lease import Lease, LeaseEnd
from coordinator.domain.serving import Blame, CountedPeriod
from coordinator.services.audits import credit
from coordinator.services.audits.audit_outcomes import reject, send_away
from coordinator.services.core.context import Context
from coordinator.services.core.domain_events import PeriodCounted
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.services.network.link_telemetry import Links
from coordinator.services.network.nodes import Nodes
from coordinator.services.payments.period_jobs import (
    MAX_LOADS,
    PeriodJobs,
    PeriodJobWords,
    failed_leases,
    give_up_late,
)
from coordinator.services.payments.periods import PeriodShare, pending_shares, store_period
from coordinator.services.payments.settlement import Settlement
from coordinator.services.serving.answers import DrawnAnswer
from coordinator.services.serving.homes import Homes
from coordinator.services.serving.seating import ReplicaStaffing
from coordinator.services.training.pauses import spent
from coordinator.services.training.staffing import shape_of
from coordinator.store.records import CommitRecord, OutboxRecord
from protocol.job.job import ServeSpec
from protocol.merkle import merkle_root
from protocol.serving import CheckedReport, CheckEmbeddingsCommand

START_S = 600.0  # To fetch the model and load it.


class Deployments(PeriodJobs):
    """Jobs that answer."""

    words = PeriodJobWords(
        noun="deployment",
        anew="deploy the model again",
        resting="answers under way end first",
        ending="the last answers are checked, then paid",
        last="the last answers are checked and paid",
    )

    def __init__(self, context: Context, nodes: Nodes, settlement: Settlement, homes: Homes, links: Links) -> None:
        super().__init__(context, settlement)
        self._seating = ReplicaStaffing(nodes, links)
        self._nodes = nodes
        self._homes = homes
        self._counted: dict[str, float] = {}
        self._resting: dict[str, float] = {}

    async def _works(self, work: UnitOfWork) -> None:
        if await self._ends_by_itself(work):
            return
        await self._staff(work)
        now = self._context.clock.now()
        if now - self._counted.setdefault(work.job.id, now) >= rules.PERIOD_S:
            await self._count(work)

    def _may_rest(self, work: UnitOfWork) -> bool:
        """Answers under way are waited for, for a minute."""
        now, (under_way, _, _) = self._context.clock.now(), self._homes.now(work.job.id)
        if under_way and now - self._resting.setdefault(work.job.id, now) < rules.REST_S:
            return False
        self._resting.pop(work.job.id, None)
        return True

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
        give_up_late(work, START_S)
        if why := await self._unloadable(work):
            await self.stop(work, JobState.FAILED, why)
            return False
        for lease in [one for one in work.leases.values() if self._nodes.is_draining(one.node)]:
            work.end(lease.id, "replaced", self._nodes.why_draining(lease.node))
        return True

    async def _unloadable(self, work: UnitOfWork) -> str:
        """Why no node can ever answer; empty: some may."""
        if work.run is None or work.run.served.answers:
            return ""
        failed = await failed_leases(work)
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

    def _waits(self, commit: CommitRecord) -> bool:
        return self._homes.waits(commit.lease, commit.round)

    async def checked(self, work: UnitOfWork, drawn: DrawnAnswer, report: CheckedReport) -> None:
        """An answer was drawn again. One that is not the model's costs who made it so all that is not verified, seat and
        standing. Where that is one of two, neither is paid, and they hold no replica together any more."""
        if work.run is None:
            return
        blame = Blame()
        if report.wrong and isinstance(drawn.check, CheckEmbeddingsCommand):
            blame = rules.blame_of_embeddings(len(drawn.seats))
        elif report.wrong:
            blame = rules.blame(len(drawn.seats), report.stages, drawn.silent)
        every, unpaid = [seat.node for seat in drawn.seats], [drawn.seats[stage] for stage in blame.unpaid]
        served = work.run.served.looked_at(every, {seat.node for seat in unpaid}, bool(report.wrong))
        work.change_run(served=served)
        if not report.wrong:
            return
        work.count("answers_wrong_total")
        await self._unpaid(work, unpaid)
        for stage in blame.guilty:
            await self._found(work, drawn.seats[stage], report.wrong)
        if not blame.guilty:
            self._part(work, drawn, blame, report.wrong)
        elif accused := drawn.accusation(
            f"accused-{self._context.entropy(12).hex()}", self._context.entropy(32).hex(), work.now
        ):
            await work.tx.insert(accused)

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

    async def proven(self, work: UnitOfWork, accused: AccusedAnswer) -> None:
        """No rounding explains an answer: it costs what a false step costs."""
        for commit in await pending_shares(work):
            if commit.node == accused.node:
                await reject(work, commit, "expelled")
        reason = f"an answer was not the model's: {accused.detail}"
        for lease in [one.id for one in work.leases.values() if one.node == accused.node]:
            work.end(lease, "rejected", reason)
        owners = len(accused.witnesses)
        work.note("rejected", f"node {accused.node}: {reason}, as {owners} owners' machines of its class found")
        record = await send_away(work, accused.node, reason)
        if record is None or not record.stake:
            return
        proof = sha256(msgspec.json.encode(accused)).hexdigest()
        payload: dict[str, str | int] = {"node": accused.node, "reason": proof}
        told = untrusted(f"{accused.node}: {reason}"[:500])
        work.queue(OutboxRecord(f"slash:{accused.id}", work.job.id, "slash", payload, work.now, detail=told))

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
        over = rules.ending(work.now, work.job.deadline, due, work.job.escrow)
        if over:
            await self._run_out(work, over)
        return bool(over)

    async def _release(self, work: UnitOfWork, reason: str) -> None:
        """Count what was done, and let all nodes go."""
        await self._count(work)
        for lease in list(work.leases):
            work.end(lease, "stopped", reason)

    def _forget(self, job: str) -> None:
        self._seating.forget(job)

    def _done(self, work: UnitOfWork) -> str:
        return f"{work.job.tokens_done:,} tokens were answered"


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
