"""Periods of pay: what jobs without rounds (deployments, arrays) store in place of rounds. Everything on an open desk."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from coordinator.domain import pricing, serving
from coordinator.domain.rounds.run import era
from coordinator.services.audits.evidence import correct_outcomes, seal_commitments, seal_outcome
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.services.training.pauses import spent
from coordinator.store.ports import Condition, col
from coordinator.store.records import CommitRecord, RoundRecord
from protocol.ids import Digest, NodeAddress


@dataclass(frozen=True)
class PeriodShare:
    """What a lease did in a period. ``root``: over what it did; ``leaves``: how many of them there are."""

    lease: str
    node: NodeAddress
    payout: NodeAddress
    stage: int
    replica: int
    root: Digest
    leaves: int
    operations: int
    tokens: int = 0

    @property
    def place(self) -> str:
        """Its name among the shares of a period: by place, as rounds are split, so that everybody finds the same amounts."""
        return f"{self.replica}:{self.stage}"

    def record(self, job: str, epoch: int, number: int, amount: int) -> CommitRecord:
        """As it is stored."""
        return CommitRecord(
            job=job,
            epoch=epoch,
            round=number,
            stage=self.stage,
            replica=self.replica,
            lease=self.lease,
            node=self.node,
            payout=self.payout,
            root=self.root,
            leaves=self.leaves,
            pseudo_gradient=self.root,
            tokens=self.tokens,
            operations=self.operations,
            drawable=False,
            state="pending",
            amount=amount,
        )


async def store_period(work: UnitOfWork, shares: Sequence[PeriodShare], began: float, steps: int, tokens: int) -> None:
    """Store a period with its shares, whose pot is bounded by what is left in escrow; ``steps``: answers, or elements."""
    assert work.run is not None
    epoch, number = era(work.run), work.job.rounds_done
    room = work.job.escrow - await spent(work.tx, work.job.id)
    pot = serving.pot([one.operations for one in shares], work.job.quote.rate, room)
    amounts = pricing.shares(pot, {one.place: one.operations for one in shares})
    record = RoundRecord(
        work.job.id,
        epoch,
        number,
        "complete",
        work.plan(),
        first_step=0,
        steps=steps,
        total_steps=0,
        started=max(began, work.job.created),
        ended=work.now,
        tokens=tokens,
        pot=pot,
    )
    record = await work.tx.insert(record)
    commits = [
        await work.tx.insert(one.record(work.job.id, epoch, number, amounts.get(one.place, 0))) for one in shares
    ]
    work.change(rounds_done=number + 1)
    seal_commitments(work, record, commits)


async def pending_shares(work: UnitOfWork) -> Sequence[CommitRecord]:
    """Shares of which something is still to be checked."""
    where: tuple[Condition, ...] = (
        col(CommitRecord.job).equals(work.job.id),
        col(CommitRecord.state).equals("pending"),
    )
    return await work.tx.find(CommitRecord, *where)


async def conclude_periods(work: UnitOfWork, waits: Callable[[CommitRecord], bool]) -> None:
    """Verify shares of which nothing ``waits`` to be checked any more; then their periods are over."""
    left: set[tuple[int, int]] = set()
    due = []
    for commit in await pending_shares(work):
        if waits(commit):
            left.add((commit.epoch, commit.round))
        else:
            due.append(commit)
    await work.tx.update_all([msgspec.structs.replace(commit, state="verified") for commit in due], due)
    work.change(verified=work.job.verified + sum(commit.amount for commit in due))
    waiting: tuple[Condition, ...] = (
        col(RoundRecord.job).equals(work.job.id),
        col(RoundRecord.state).equals("complete"),
        col(RoundRecord.concluded).equals(False),
    )
    for record in await work.tx.find(RoundRecord, *waiting):
        if (record.epoch, record.number) not in left:
            await seal_outcome(work, await work.tx.update(msgspec.structs.replace(record, concluded=True)))
    await correct_outcomes(work)
