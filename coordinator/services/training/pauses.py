"""Pauses and stops: a job comes to rest where nothing is lost, with everything verified that is paid, and goes on from there.

The round in flight is completed first, its state stored, its audits concluded; then nodes are released. A stop gives the round in
flight up, since nobody wants it any more. Everything here happens on an open desk (``UnitOfWork``).
"""

from collections.abc import Awaitable, Callable, Collection, Mapping

import msgspec

from coordinator.client.text import money
from coordinator.domain import pricing
from coordinator.domain.job import JobAction, JobPace, JobState, Wish, asked
from coordinator.domain.rounds import run as runs
from coordinator.domain.rounds.run import Run
from coordinator.errors import FundsError
from coordinator.services.audits.verification import Verification
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.services.payments.settlement import Settlement
from coordinator.store.ports import Condition, Transaction, col
from coordinator.store.records import CommitRecord

Rewind = Callable[[UnitOfWork], Awaitable[Run]]
WARN_PARTS = (4, 5)  # Of the budget: then its submitter is told.


class Pauses:
    """Asks, grants and undoes."""

    def __init__(self, verification: Verification, settlement: Settlement) -> None:
        self._verification = verification
        self._settlement = settlement

    async def ask(self, work: UnitOfWork, action: JobAction) -> None:
        """Take down what a submitter wishes; ``Runs.advance`` grants it.

        Raises:
            ConflictError: the job is in no state for it. FundsError: its budget is used up.
        """
        before, run = work.job, work.run
        after = asked(before, action, checkpoint=run is not None and bool(run.checkpoints))
        if after == before and not (action is JobAction.RESUME and before.state is JobState.PAUSED):
            return
        if action is JobAction.RESUME:
            await self._resume(work)
            return
        work.change(wish=after.wish, halt=after.halt)
        if action is JobAction.STOP:
            work.note("stopping", "the submitter stops the job: the model is made from the newest verified checkpoint")
            return
        work.note("pausing", "the submitter asked for a pause")
        if run is not None and run.round is not None:
            work.change_run(round=msgspec.structs.replace(run.round, store=True))

    async def _resume(self, work: UnitOfWork) -> None:
        if work.job.state is not JobState.PAUSED:
            work.change(wish=Wish.NONE, halt="")
            work.note("resumed", "the job goes on: the pause was taken back")
            return
        if work.run is not None and not await self.covers(work):
            raise FundsError(
                f"job {work.job.id} has used up its budget of {money(work.job.spec.budget)}: add to it", field="budget"
            )
        work.change(wish=Wish.NONE, halt="", pace=msgspec.structs.replace(work.job.pace, at=work.now))
        if work.run is None:
            work.advance(JobState.FUNDED, "the job goes on: it waits for nodes")
            return
        work.change_run(advanced=work.now)
        work.advance(JobState.PLANNED, f"the job goes on with round {work.run.done + 1}: it waits for its nodes")

    async def rests(self, work: UnitOfWork, rewind: Rewind) -> bool:
        """Whether no round may begin; grants the wish once nothing stands against it any more."""
        run = work.run
        if work.job.wish is Wish.NONE and run is not None and run.round is None and not await self.covers(work):
            if not self._verification.settled(work):
                return True  # A share that is not paid leaves money for another round: what is open decides.
            work.change(wish=Wish.PAUSE, halt="budget")
            work.note("pausing", f"the budget of {money(work.job.spec.budget)} is used up: the job pauses")
        if run is not None and run.finished and run.round is None:
            work.change(wish=Wish.NONE)  # It came too late: everything is trained.
        if work.job.wish is Wish.NONE:
            return False
        if run is None:
            self._pause(work, _reason(work))
            return True
        if run.round is not None or self._needs_a_round(work, run):
            return False
        if not await self._verification.conclude_all(work):
            return True
        if work.job.wish is Wish.STOP and run.checkpoints:
            await self._stop(work, run, rewind)
            return True
        lost = "the job was to be stopped, but no verified checkpoint is left to keep: resume or cancel it"
        self._pause(work, lost if work.job.wish is Wish.STOP else _reason(work))
        await self._settlement.settle_now(work)
        return True

    def _needs_a_round(self, work: UnitOfWork, run: Run) -> bool:
        """Whether the newest state is with the nodes only, and they can store it with the next round's."""
        asked_for = work.job.wish is Wish.PAUSE and work.job.halt == "asked"
        return asked_for and run.done != run.base.done and work.job.state is JobState.RUNNING

    def _pause(self, work: UnitOfWork, reason: str) -> None:
        for lease in list(work.leases.values()):
            work.end(lease.id, "stopped", "the job is paused")
        if work.run is not None:
            work.change_run(current=(), members=(), local={}, restarts=0)
        work.change(wish=Wish.NONE)
        work.advance(JobState.PAUSED, reason)

    async def _stop(self, work: UnitOfWork, run: Run, rewind: Rewind) -> None:
        if run.done != run.base.done:
            run = await rewind(work)  # What came after the newest stored state is paid, and not in the model.
        work.change(wish=Wish.NONE)
        work.change_run(finished=True)
        rounds = f"{run.done} of {run.total_rounds} rounds"
        work.advance(JobState.VERIFYING, f"the job was stopped after {rounds}: the model folder is under way")

    # --- the budget -----------------------------------------------------------------------------------------------------

    async def covers(self, work: UnitOfWork) -> bool:
        """Whether what is in escrow covers the most that the next round can cost."""
        return await self._room(work, 1)

    async def must_store(self, work: UnitOfWork) -> bool:
        """Whether the round that begins has to be stored: a pause is wished for, or the budget may end with it."""
        return work.job.wish is Wish.PAUSE or not await self._room(work, 2)

    async def _room(self, work: UnitOfWork, rounds: int) -> bool:
        job, run = work.job, work.run
        if run is None or run.trained or job.escrow >= job.quote.price:
            return True
        return await spent(work.tx, work.job.id) + _most(work, run, rounds) <= job.escrow

    async def warn(self, work: UnitOfWork) -> None:
        """Say once that four fifths of the budget are spent."""
        part, whole = WARN_PARTS
        budget = work.job.spec.budget
        if work.job.warned:
            return
        cost = await spent(work.tx, work.job.id)
        if cost * whole >= budget * part:
            work.change(warned=True)
            work.note("spent", f"{money(cost)} of the budget of {money(budget)} are spent")


async def spent(tx: Transaction, job: str) -> int:
    """What a job's work so far has earned or will have earned once it is verified, in millionths."""
    return (await spent_by(tx, (job,))).get(job, 0)


async def spent_by(tx: Transaction, jobs: Collection[str]) -> Mapping[str, int]:
    """The same of each job that has any."""
    where: tuple[Condition, ...] = (
        col(CommitRecord.job).in_(jobs),
        col(CommitRecord.state).in_(("pending", "verified")),
    )
    sums = await tx.sums(CommitRecord, col(CommitRecord.amount), (col(CommitRecord.job),), *where)
    return {str(job): total for (job,), (_, total) in sums.items()}


def paced(pace: JobPace, run: Run, now: float, started: float) -> JobPace:
    """The pace after one more complete round of ``run``, which began at ``started``."""
    fraction = fraction_of(run)
    done = fraction - pace.fraction
    seconds = pace.seconds
    if done > 0:
        since = pace.at if pace.at else started
        seconds = (*seconds, max(0.0, now - since) / done)[-runs.MAX_POINTS :]
    return JobPace(now, fraction, seconds)


def fraction_of(run: Run) -> float:
    """How much of the training is done, 0 to 1."""
    if run.round_seconds is None:
        return min(1.0, run.schedule.round(run.done)[0] / max(1, run.total_steps))
    return min(1.0, run.progress / max(1, run.total_steps * run.replicas))


def _most(work: UnitOfWork, run: Run, rounds: int) -> int:
    """The most that the next rounds can cost, where every replica takes part in them."""
    training, per_step = work.job.spec.training, work.job.spec.training.batch * work.job.spec.training.sequence
    steps = sum(
        run.schedule.round(run.done + more)[1] if run.round_seconds is None else training.inner_steps
        for more in range(rounds)
        if run.round_seconds is not None or run.done + more < run.total_rounds
    )
    total, start, done = run.total_steps * per_step * run.replicas, run.price_from, work.job.tokens_done
    after = min(total, done + steps * run.replicas * per_step)
    return pricing.pot(
        work.job.quote.price - start.spent, done - start.tokens, after - start.tokens, total - start.tokens
    )


def _reason(work: UnitOfWork) -> str:
    job, run = work.job, work.run
    why = "the submitter paused the job"
    if job.halt == "budget":
        why = f"the budget of {money(job.spec.budget)} is used up: add to it and the job goes on"
    if run is None:
        return why
    where = f"after round {run.done} of {run.total_rounds}" if run.done else "before its first round"
    return f"{why} ({where})"
