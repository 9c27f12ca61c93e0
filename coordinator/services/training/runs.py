"""Drives jobs: reports come in, rounds begin and end, seats are filled, money is queued. Everything on an open desk."""

from math import inf

import msgspec

from coordinator.client.text import money
from coordinator.domain import pricing
from coordinator.domain.job import ENDINGS, JobAction, JobState, Wish
from coordinator.domain.lease import FAULTS, Lease
from coordinator.domain.rounds import round as rounds
from coordinator.domain.rounds import run as runs
from coordinator.domain.rounds.round import Round
from coordinator.domain.rounds.run import Run
from coordinator.services.arrays.array_jobs import ArrayJobs
from coordinator.services.audits.evidence import seal_commitments
from coordinator.services.audits.operator_audits import Looks
from coordinator.services.audits.sampling import AuditSampling
from coordinator.services.audits.verification import Verification
from coordinator.services.core.context import Context
from coordinator.services.core.domain_events import RoundForged, SeatsMoveNext
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.services.network.nodes import Nodes
from coordinator.services.payments.escrows import closing, owed, payable_work
from coordinator.services.payments.period_jobs import PeriodJobs
from coordinator.services.payments.settlement import Settlement
from coordinator.services.serving.deployments import Deployments
from coordinator.services.training import federating
from coordinator.services.training.commitments import commit_of
from coordinator.services.training.endings import Endings
from coordinator.services.training.job_faults import blamed_files, diverged, too_many_faults
from coordinator.services.training.moves import begin_anew
from coordinator.services.training.pauses import Pauses, fraction_of, paced
from coordinator.services.training.round_words import completed_words, last_stage, left_out_words
from coordinator.services.training.secure_sums import SecureSums
from coordinator.services.training.staffing import Staffing, holders, seats_ready, shape_of
from coordinator.services.training.validation import HeldOut
from coordinator.store.ports import Condition, col
from coordinator.store.records import CommitRecord, RoundRecord
from ledger import events as ledger_events
from protocol.ids import Digest
from protocol.node import Unpaid
from protocol.task import RoundApplied, RoundCommit, RoundHolding, StepChallenge, SumSaid, Validation

MAX_RESTARTS = 20  # A round that fails so often in a row will not come right.
MAX_ROLLBACKS = 8  # Each costs whoever forged its stake; where stakes are nothing, a job still has to end.
MAX_PASSES = 8  # Ending one round can begin the next and end it again; more passes wait for the next tick.
ACTIVE = frozenset({JobState.FUNDED, JobState.PLANNED, JobState.RUNNING, JobState.VERIFYING})

RoundReport = RoundCommit | RoundHolding | RoundApplied | Validation | SumSaid


class Runs:
    """What a job does next. Timers (silence, grace) live in memory: after a restart everybody gets the full time again.

    Attributes:
        arrays: brings those jobs further that run containers. sums: puts federated rounds' secure sums together.
    """

    def __init__(
        self,
        context: Context,
        nodes: Nodes,
        staffing: Staffing,
        looks: Looks,
        drawing: AuditSampling,
        verification: Verification,
        settlement: Settlement,
        deployments: Deployments,
        arrays: ArrayJobs,
        sums: SecureSums,
    ) -> None:
        self._context = context
        self.arrays, self.sums = arrays, sums
        self._deployments = deployments
        self._nodes = nodes
        self._staffing = staffing
        self._looks = looks
        self._verification = verification
        self._settlement = settlement
        self._drawing = drawing
        self._heldout = HeldOut(context)
        self._pauses = Pauses(verification, settlement)
        self._endings = Endings(context, verification, settlement)
        self._heard: dict[str, float] = {}
        self._whole_since: dict[str, float] = {}
        self._advanced: dict[str, float] = {}  # When a job was looked at last.
        self._since = context.clock.time()

    def heard(self, job: str) -> None:
        """Somebody in the job's round is at work."""
        self._heard[job] = self._context.clock.now()

    def is_due(self, job: str, seconds: float) -> bool:
        """Whether a job was not looked at for so long."""
        return self._context.clock.now() - self._advanced.get(job, -inf) >= seconds

    def ended(self, job: str) -> None:
        """A job is over, or rests: nothing of it need be remembered."""
        for known in (self._advanced, self._heard, self._whole_since):
            known.pop(job, None)
        self._staffing.forget(job)

    def resume(self, work: UnitOfWork) -> None:
        """After a restart of the coordinator: what was due meanwhile gets its full time again."""
        self.heard(work.job.id)
        self._verification.extend(work)

    async def challenge(self, work: UnitOfWork, lease: str, wanted: StepChallenge) -> None:
        """Somebody asks to audit a finished round; only training has any."""
        if work.job.spec.trains:
            await self._drawing.challenge(work, lease, wanted)

    def fold(self, work: UnitOfWork, lease: str, report: RoundReport) -> None:
        """Take a report into the round in flight."""
        if work.run is None or work.run.round is None:
            return
        before = work.run.round
        seat = before.seat(lease)
        fits = (report.epoch, report.round) == (before.epoch, before.number)
        if isinstance(report, RoundCommit) and seat is not None and fits and not rounds.fits(before, report.leaves):
            most = "" if before.seconds is None else "at most "
            reason = f"committed to {report.leaves} steps in round {before.number + 1}, which has {most}{before.steps}"
            work.note("fault", f"node {seat.node} {reason}")
            work.end(lease, "failed", reason)
            return
        after = rounds.fold(before, lease, report, work.now)
        if after is not before:
            work.change_run(round=after)
        if rounds.is_news(before, after):
            self.heard(work.job.id)

    def answer(self, work: UnitOfWork, lease: str, said: SumSaid) -> None:
        """Take what an owner says for a secure sum; who says what cannot be is out."""
        if why := self.sums.take(work, lease, said):
            work.note("fault", f"node {work.leases[lease].node}: {why}")
            work.end(lease, "failed", why)
        else:
            self.fold(work, lease, said)

    def _others(self, work: UnitOfWork) -> PeriodJobs | None:
        """Who brings a job further that has no rounds."""
        if work.job.spec.array is not None:
            return self.arrays
        return None if work.job.spec.serve is None else self._deployments

    async def advance(self, work: UnitOfWork) -> None:
        """Bring the job as far as it goes now."""
        self._advanced[work.job.id] = self._context.clock.now()
        if (others := self._others(work)) is not None:
            await others.advance(work)
            return
        verified = work.job.verified
        for _ in range(MAX_PASSES):
            if work.job.state not in ACTIVE:
                return
            if await self._must_stop(work):
                return
            before = (work.job, work.run, dict(work.leases), dict(work.audits))
            await self._pass(work)
            if before == (work.job, work.run, work.leases, work.audits):
                break
        if work.job.state in ACTIVE and work.job.verified != verified:
            await self._settlement.settle_if_due(work)

    async def ask(self, work: UnitOfWork, action: JobAction) -> None:
        """Pause, resume, or stop and keep the model: what its submitter asks for, as far as it can be done now.

        Raises:
            ConflictError: the job is in no state for it. FundsError: its budget is used up.
        """
        if (others := self._others(work)) is not None:
            await others.ask(work, action)
            return
        await self._pauses.ask(work, action)
        if work.job.wish is Wish.STOP:
            await self._give_up_round(work)
        if work.job.state is JobState.PAUSED and work.job.wish is Wish.STOP:
            await self._pauses.rests(work, self._rewind)
        await self.advance(work)

    async def stop(self, work: UnitOfWork, state: JobState, reason: str) -> None:
        """End a job before its time, once what is done was looked at: pay what is verified, refund the rest."""
        if (others := self._others(work)) is not None:
            await others.stop(work, state, reason)
            return
        if work.job.wish in ENDINGS:
            return
        await self._give_up_round(work)
        await self._endings.begin(work, state, reason)

    async def _give_up_round(self, work: UnitOfWork) -> None:
        if work.run is not None and work.run.round is not None:
            await self._store_round(work, work.run.round, "void", "ended")
            work.change_run(round=None)

    async def _pass(self, work: UnitOfWork) -> None:
        if work.job.state is JobState.FUNDED and not await self._pauses.rests(work, self._rewind):
            await self._staffing.plan(work)
        if work.run is None or work.job.state is JobState.PAUSED:
            return
        if work.run.round is not None:
            if (seen := rounds.look(work.run.round, work.now)) is not work.run.round:
                work.change_run(round=seen)
            self.sums.attend(work)
            await self._heldout.weigh(work)
        await self._take(work)
        await self._verification.advance(work, await self._looks.attend(work))
        if work.job.wish in ENDINGS:
            self._staffing.give_back(work)
            await self._roll_back(work)
            await self._endings.ends(work)
            return
        if work.job.state is JobState.VERIFYING:
            self._staffing.give_back(work)
            await self._close(work)
            return
        await self._roll_back(work)
        if await self._pauses.rests(work, self._rewind):
            self._staffing.give_back(work)
            return
        enough = work.run.trained and seats_ready(work)[1] and not self._verification.lacks_auditors(work)
        if work.run.finished or enough:  # For the last validation one replica is enough.
            self._staffing.give_back(work)
        else:
            await self._staffing.repair(work)
        self._unblock(work)
        await self._begin(work)
        if work.run.finished and work.job.state is JobState.RUNNING:
            work.advance(
                JobState.VERIFYING, "all rounds are trained: the last audits and the model folder are under way"
            )

    async def _must_stop(self, work: UnitOfWork) -> bool:
        reason = ""
        if work.job.state is not JobState.VERIFYING and work.job.wish not in ENDINGS:
            if work.now > work.job.deadline:
                reason = f"the deadline of {work.job.spec.deadline_hours:g} hours has passed"
            elif work.run is not None and (why := federating.why_ended(work.run)):
                reason = why
            elif work.run is not None and work.run.restarts > MAX_RESTARTS:
                reason = f"round {work.run.done + 1} failed {work.run.restarts} times in a row"
            else:
                reason = await self._own_doing(work)
        if reason:
            await self.stop(work, JobState.FAILED, reason)
        return bool(reason)

    async def _own_doing(self, work: UnitOfWork) -> str:
        if all(lease.end not in FAULTS for lease in work.ended):
            return ""
        own, able = self._context.config.auditors, self._staffing.able(work)
        return (
            await blamed_files(work, able, own)
            or await diverged(work, able, own)
            or await too_many_faults(work, able, own)
        )

    # --- rounds ---------------------------------------------------------------------------------------------------------

    async def _begin(self, work: UnitOfWork) -> None:
        run = work.run
        if run is None or run.round is not None or run.finished or not self._may_begin(work):
            return
        if runs.is_lost(run, holders(work)):
            run = await self._go_back(work, "nobody who keeps the newest state of a stage is left")
        if run.summed:
            run = federating.resized(run, work.job.spec, shape_of(work))
        after = runs.begin(run, holders(work), work.now)
        if after.round is None:
            return
        if await self._pauses.must_store(work):
            after = msgspec.structs.replace(after, round=msgspec.structs.replace(after.round, store=True))
        work.run, begun = after, after.round
        assert begun is not None
        if work.job.spec.federated is not None:
            work.change(released=after.released)
        self._whole_since.pop(work.job.id, None)
        await work.tx.insert(
            RoundRecord(
                work.job.id,
                begun.epoch,
                begun.number,
                "training",
                begun.plan,
                begun.first_step,
                begun.steps,
                begun.total_steps,
                begun.started,
                rate_step=begun.rate_step,
                released=0 if work.job.spec.federated is None else after.released,
            )
        )
        if work.job.state is JobState.PLANNED:
            work.advance(JobState.RUNNING, f"round {begun.number + 1} begins")
        self.heard(work.job.id)

    async def _roll_back(self, work: UnitOfWork) -> None:
        """Go back before the first round in which a lie was proven: its update is in every state since.

        The honest nodes of the rounds that are done again did what they were asked to, so they stay paid.
        """
        forged = work.take(RoundForged)
        if not forged or work.run is None or work.run.rollbacks >= MAX_ROLLBACKS:
            return
        where: tuple[Condition, ...] = (
            col(RoundRecord.job).equals(work.job.id),
            col(RoundRecord.state).equals("complete"),
        )
        done = await work.tx.find(RoundRecord, *where)
        newest = {record.number: record.epoch for record in sorted(done, key=lambda record: record.epoch)}
        standing = [lie.round for lie in forged if lie.round < work.run.done and newest[lie.round] == lie.epoch]
        if not standing:
            return
        if work.run.round is not None:
            await self._store_round(work, work.run.round, "void", "again")
        before = min(standing)
        work.change_run(rollbacks=work.run.rollbacks + 1)
        work.count("rollbacks_total")
        if work.job.wish in ENDINGS:
            await self._rewind(work, before)  # Only that nobody is handed a checkpoint with the lie in it.
        else:
            await self._go_back(work, f"round {before + 1} was forged", before)

    async def _go_back(self, work: UnitOfWork, why: str, before: int | None = None) -> Run:
        """Rounds since the last stored point, or the last one before round ``before``, are done again.

        What was paid for them stays paid; the rest of the price is spread over all tokens that are to be trained from here.
        """
        assert work.run is not None
        lost = work.run.done
        run = await self._rewind(work, before)
        if not run.checkpoints:  # Nothing can put a worker back to the very beginning but a new start.
            begin_anew(work, [lease.id for lease in work.leases.values() if lease.seat])
        again = f"round {run.done + 1}" + (f" to {lost}" if lost > run.done + 1 else "")
        work.note("lost", f"{why}: {again} is done again")
        work.count("rounds_lost_total", lost - run.done)
        return run

    async def _rewind(self, work: UnitOfWork, before: int | None = None) -> Run:
        """Put the run back to its last stored point, or the last one before round ``before``."""
        assert work.run is not None
        work.run = runs.go_back(work.run, before)
        where: tuple[Condition, ...] = (
            col(RoundRecord.job).equals(work.job.id),
            col(RoundRecord.state).equals("complete"),
        )
        done = await work.tx.find(RoundRecord, *where)
        newest = {record.number: record for record in sorted(done, key=lambda record: record.epoch)}
        tokens = sum(record.tokens for number, record in newest.items() if number < work.run.done)
        spent = max(sum(record.pot for record in done), await payable_work(work.tx, work.job.id))
        work.change_run(price_from=runs.PriceFrom(tokens, spent))
        pace = msgspec.structs.replace(work.job.pace, at=work.now, fraction=fraction_of(work.run))
        work.change(rounds_done=work.run.done, tokens_done=tokens, pace=pace)
        return work.run

    def _may_begin(self, work: UnitOfWork) -> bool:
        """In mid-run whole replicas go on at once; at a start they wait a little for the others."""
        assert work.run is not None
        everybody, whole = seats_ready(work)
        if not whole:
            self._whole_since.pop(work.job.id, None)
            if work.job.state is JobState.RUNNING:
                work.advance(JobState.PLANNED, "no replica has all its nodes any more: the job waits for others")
            return False
        if work.recorded(SeatsMoveNext) or not self._verification.may_begin(work, work.run.done):
            return False
        if work.run.trained and not self._verification.settled(work):
            return False  # The model is finished only when no round can turn out to be forged any more.
        if (everybody or work.job.state is JobState.RUNNING) and not self._awaits_returners(work):
            return True
        since = self._whole_since.setdefault(work.job.id, self._context.clock.now())
        return self._context.clock.now() - since >= self._context.config.start_grace_seconds

    def _awaits_returners(self, work: UnitOfWork) -> bool:
        """Whether nobody who is here has the anchor in memory, and some of those that are to load it are on their way."""
        assert work.run is not None
        seated = [lease for lease in work.leases.values() if lease.seat]
        away = {lease.id for lease in seated if self._nodes.session(lease.node) is None}
        if work.run.done == 0 or set(work.run.current).intersection(work.leases) - away:
            return False
        # Whoever has just come back without its task gets its seat again at the next turn.
        back = any(lease.seat and self._nodes.session(lease.node) is not None for lease in work.ended)
        on_their_way = any(lease.state != "ready" or lease.id in away for lease in seated)
        return back or on_their_way or (self._staffing.is_deserted(work) and not seats_ready(work)[0])

    async def _take(self, work: UnitOfWork) -> None:
        """Store what became of the round in flight."""
        assert work.run is not None
        over = work.run.round
        if over is None or over.phase in ("training", "reducing"):
            return
        if over.phase == "applying":
            await self._store_decision(work, over)
        elif over.phase == "void":
            await self._void(work, over)
        elif over.steps == 0:
            await self._store_round(work, over, "complete", "late")
            work.run = runs.close(work.run)
        else:
            await self._complete(work, over)

    async def _store_decision(self, work: UnitOfWork, over: Round) -> None:
        record = await work.tx.get(RoundRecord, work.job.id, over.epoch, over.number)
        if record.state == "training":
            decided = msgspec.structs.replace(record, state="applying", contributors=over.contributors or ())
            await work.tx.update(decided)

    async def _void(self, work: UnitOfWork, over: Round) -> None:
        assert work.run is not None
        work.count("rounds_void_total")
        lost = "it has lost all replicas" if over.sum is None or not over.sum.lost else over.sum.lost
        work.note("void", f"round {over.number + 1} is done again from the last checkpoint: {lost}")
        await self._store_round(work, over, "void", "again")
        begin_anew(work, runs.beyond_repair(work.run))
        work.run = runs.close(work.run)

    async def _complete(self, work: UnitOfWork, over: Round) -> None:
        assert work.run is not None
        job, training = work.job, work.job.spec.training
        contributors = over.contributors or ()
        per_step = training.batch * training.sequence
        tokens = over.contributed() * per_step
        total = work.run.total_steps * per_step * work.run.replicas
        after, start = job.tokens_done + tokens, work.run.price_from
        points = (job.tokens_done - start.tokens, after - start.tokens, total - start.tokens)
        pot = pricing.pot(job.quote.price - start.spent, *points)
        losses = [s.commit.loss for s in last_stage(over) if s.commit is not None and s.commit.loss is not None]
        loss = sum(losses) / len(losses) if losses else None
        speed = tokens / max(1e-3, work.now - over.started)
        told = federating.tell_loss(work, over)
        commits = await self._store_commits(work, over, pot, "late" if job.spec.federated is None else "unopened")
        record = await work.tx.get(RoundRecord, job.id, over.epoch, over.number)
        record = msgspec.structs.replace(
            record,
            state="complete",
            contributors=contributors,
            ended=work.now,
            tokens=tokens,
            pot=pot,
            train_loss=loss,
            validation_loss=over.validation if told is None else told,
            agreement=over.agreement,
            preference=over.preference,
            parameters=tuple(p for stage in range(len(over.layers)) if (p := rounds.agreed(over, stage))),
        )
        work.run = msgspec.structs.replace(runs.close(work.run), advanced=work.now)
        work.change(
            rounds_done=work.run.done,
            tokens_done=after,
            tokens_per_second=speed,
            train_loss=loss if loss is not None else job.train_loss,
            pace=paced(job.pace, work.run, work.now, over.started),
        )
        await self._pauses.warn(work)
        work.note("round", completed_words(over.number, len(contributors), work.run.replicas, loss))
        if words := left_out_words(over, training.loss_scale):
            work.note("overflow", words)
        if job.spec.federated is None:
            record = await work.tx.update(await self._drawing.prepare(work, record, commits))
            seal_commitments(work, record, commits)
        else:
            await federating.conclude(work, record, commits)
        work.count("rounds_complete_total")

    async def _store_commits(self, work: UnitOfWork, over: Round, pot: int, why: Unpaid) -> list[CommitRecord]:
        """A record for every member that committed; contributors share the pot by operations, others nothing: ``why``."""
        shape, layers, training = shape_of(work), over.layers, work.job.spec.training
        parameters = [
            shape.stage_parameters(part.first, part.last, stage == 0, stage == len(layers) - 1)
            for stage, part in enumerate(layers)
        ]
        contributors = set(over.contributors or ()) if work.job.spec.federated is None else set()
        seats = {seat.lease: seat for seat in over.seats if seat.commit is not None}
        # By place, which is published, and not by lease: where remainders are equal, everybody must find the same split.
        places = {
            lease: f"{seat.replica}:{seat.stage}" for lease, seat in seats.items() if seat.replica in contributors
        }
        sharing = {
            places[lease]: (seat.stage, seat.commit.leaves)
            for lease, seat in seats.items()
            if seat.commit is not None and lease in places
        }
        split = pricing.shares(pot, pricing.round_weights(parameters, sharing))
        shares = {lease: split[place] for lease, place in places.items() if place in split}
        payouts = {lease.id: lease.payout for lease in (*work.leases.values(), *work.ended)}
        anchors = await self._anchors(work, over)
        stored: list[CommitRecord] = []
        for lease, seat in seats.items():
            payout = payouts.get(lease) or await self._payout(work, lease)
            tokens = seat.commit.leaves * training.batch * training.sequence if lease in shares and seat.commit else 0
            state = "void" if lease not in shares else "rejected" if self._nodes.is_banned(seat.node) else "pending"
            anchor = None if seat.state or seat.kept else anchors.get(seat.stage)
            share = shares.get(lease, 0)
            made = commit_of(work.job, over, seat, payout, parameters[seat.stage], tokens, state, share, anchor)
            unpaid = "" if state == "pending" else why if state == "void" else "expelled"
            stored.append(msgspec.structs.replace(made, why=unpaid))
        await work.tx.insert_all(stored)
        return stored

    async def _anchors(self, work: UnitOfWork, over: Round) -> dict[int, Digest]:
        """Parameters that the round before came to, by stage: what everyone begins with who did not take a checkpoint.

        A checkpoint's content is vouched for by whoever made it, so its taker is not held to them.
        """
        before = await work.tx.find(
            RoundRecord,
            col(RoundRecord.job).equals(work.job.id),
            col(RoundRecord.state).equals("complete"),
            col(RoundRecord.number).equals(over.number - 1),
        )
        newest = max(before, key=lambda record: record.epoch, default=None)
        if newest is None:
            return {}
        where = (
            col(CommitRecord.job).equals(work.job.id),
            col(CommitRecord.epoch).equals(newest.epoch),
            col(CommitRecord.round).equals(newest.number),
        )
        said = [(c.stage, c.parameters) for c in await work.tx.find(CommitRecord, *where) if c.parameters]
        # Where members differ, each has its outer step audited; until then nobody can be held to what another said.
        return {
            stage: agreed
            for stage, agreed in enumerate(newest.parameters)
            if said.count((stage, agreed)) == sum(s == stage for s, _ in said)
        }

    async def _payout(self, work: UnitOfWork, lease: str) -> str:
        """Where the holder of a lease that ended earlier is paid."""
        return (await work.tx.get(Lease, lease)).payout

    async def _store_round(self, work: UnitOfWork, over: Round, state: str, why: Unpaid) -> None:
        """Store the end of a round that trained nothing that counts; ``why`` it is not paid."""
        record = await work.tx.get(RoundRecord, work.job.id, over.epoch, over.number)
        ended = msgspec.structs.replace(
            record,
            state=state,
            ended=work.now,
            validation_loss=over.validation,
            agreement=over.agreement,
            preference=over.preference,
            concluded=True,
        )
        await work.tx.update(ended)
        if over.steps > 0:
            await self._store_commits(work, msgspec.structs.replace(over, contributors=()), 0, why)

    def _unblock(self, work: UnitOfWork) -> None:
        """A round from which nothing was heard for too long goes on without those that it waits for; a start likewise."""
        now, config = self._context.clock.now(), self._context.config
        for lease in list(work.leases.values()):
            if lease.state == "starting" and work.now - max(lease.granted, self._since) > config.start_seconds:
                work.note("lost", f"node {lease.node} was not ready after {config.start_seconds:g} s and is given up")
                work.end(lease.id, "stalled", f"not ready after {config.start_seconds:g} s")
        if work.run is None or work.run.round is None:
            return
        if now - self._heard.setdefault(work.job.id, now) <= config.stall_seconds:
            return
        self.heard(work.job.id)
        for culprit in sorted(rounds.culprits(work.run.round)):
            if culprit in work.leases:
                node, number = work.leases[culprit].node, work.run.round.number + 1
                work.note("lost", f"round {number} has waited too long for node {node}, which is given up")
                work.end(culprit, "stalled", f"nothing heard in round {number}")
            else:
                work.change_run(round=rounds.fold(work.run.round, culprit, rounds.Lost(), work.now))

    # --- the end --------------------------------------------------------------------------------------------------------

    async def _close(self, work: UnitOfWork) -> None:
        """All audits over: let the nodes go and settle; settled once the model is there and everybody's money is safe."""
        if work.audits or await self._unconcluded(work):
            if work.now > closing(work.job):
                reason = "its last audits were not over in time: what is verified has to be paid before its escrow ends"
                await self._endings.now(work, JobState.FAILED, reason)
            return
        for lease in list(work.leases):
            work.end(lease, "stopped", "the job is done")
        await self._settlement.finish(work)
        if not await self._settlement.is_done(work):
            return
        if left := await owed(work.tx, work.job.id):
            reason = f"{money(left)} of its work could be neither paid nor promised, so its model is not handed out"
            work.advance(JobState.FAILED, reason)
        elif work.job.model is not None:
            work.advance(JobState.SETTLED, f"the job is done: the model is ready, and it cost {money(work.job.paid)}")
            event = ledger_events.Settled(job=work.job.id, paid=work.job.paid, refunded=work.job.refunded)
            work.memo("settled", event)

    async def _unconcluded(self, work: UnitOfWork) -> bool:
        where: tuple[Condition, ...] = (
            col(RoundRecord.job).equals(work.job.id),
            col(RoundRecord.state).equals("complete"),
            col(RoundRecord.concluded).equals(False),
        )
        return bool(await work.tx.find(RoundRecord, *where, limit=1))
