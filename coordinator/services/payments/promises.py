"""Earnings that are too small to be worth a payout: promised on the ledger, where their payees can have them at any time.

A promise is one transaction for all payees of a job: the Merkle root of what each shall have received in total. It is written
where a payout is not, so that nobody's money depends on the coordinator staying alive. What is promised can no longer be void,
whatever an audit finds later; so only shares are promised that would be paid if they were larger.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from common.untrusted_text import untrusted
from coordinator.domain import pricing
from coordinator.domain.job import Job
from coordinator.errors import NotFoundError
from coordinator.services.core.context import Context
from coordinator.services.core.errands import Joint
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.services.payments.chain import ChainPort
from coordinator.store.ports import Condition, Transaction, col
from coordinator.store.records import CommitRecord, OutboxRecord
from protocol.node import Promised
from protocol.rest.ledger import PromisedAmount, PromiseView

# Shares that are verified, and that nothing was queued for.
UNPAID: Sequence[Condition] = (
    col(CommitRecord.state).equals("verified"),
    col(CommitRecord.settlement).equals(None),
)
MAX_JOBS = 500  # Of one payee, with promises that were not paid since: of those that it hears after a reconnect.


class PromiseService:
    """Queues promises, and tells everybody what was promised."""

    def __init__(self, context: Context, chain: ChainPort) -> None:
        self._context = context
        self._chain = chain
        self._owed = Joint(self._who_is_owed)

    async def queue(self, work: UnitOfWork, waiting: Sequence[CommitRecord], *, always: bool = False) -> None:
        """Promise verified shares that wait to be paid, if together they are worth the one fee; once each.

        ``always``: whatever it costs, since they cannot be paid otherwise.
        """
        new = [commit for commit in waiting if commit.promised is None]
        amount = sum(commit.amount for commit in new)
        if amount == 0 or not (
            always or pricing.worth_promising(amount, pricing.SIGNATURE_LAMPORTS, self._context.config.sol_price)
        ):
            return
        fresh = {_key(commit) for commit in new}
        totals: dict[str, int] = defaultdict(int)
        for commit in await work.tx.find(
            CommitRecord, col(CommitRecord.job).equals(work.job.id), col(CommitRecord.state).equals("verified")
        ):
            if commit.bound or _key(commit) in fresh:
                totals[commit.payout] += commit.amount
        count = len(
            await work.tx.find(
                OutboxRecord, col(OutboxRecord.job).equals(work.job.id), col(OutboxRecord.kind).equals("promise")
            )
        )
        payees = len({commit.payout for commit in new})
        detail = f"to {payees} payee{'s' if payees > 1 else ''}, who can claim it from now on"
        record = await work.store_now(
            OutboxRecord(
                f"promise:{work.job.id}:{count}",
                work.job.id,
                "promise",
                dict(sorted(totals.items())),
                work.now,
                amount,
                untrusted(detail),
            )
        )
        await work.tx.update_all([msgspec.structs.replace(commit, promised=record.id) for commit in new], new)

    async def given_up(self, tx: Transaction, row: OutboxRecord) -> None:
        """A promise never came onto the ledger: its shares wait as before."""
        covered = await tx.find(
            CommitRecord, col(CommitRecord.job).equals(row.job), col(CommitRecord.promised).equals(row.id)
        )
        await tx.update_all([msgspec.structs.replace(commit, promised=None) for commit in covered], covered)

    async def told(self, job: Job, row: OutboxRecord) -> dict[str, Promised]:
        """What each payee is to hear of a promise that is on the ledger: its own amount, and the proof that claims it."""
        amounts = {payee: int(total) for payee, total in row.payload.items()}
        earned = await asyncio.to_thread(self._chain.promise, amounts)
        return {
            payee: Promised(
                job=job.id,
                submitter=job.submitter,
                payee=payee,
                cumulative=amounts[payee],
                root=earned.root.hex(),
                index=proof.index,
                count=proof.count,
                path=proof.path,
            )
            for payee, proof in earned.proofs.items()
        }

    async def of_payee(self, payee: str) -> list[Promised]:
        """The newest promise of every job that owes this payee something, for a node that has come back."""
        if not await self._owed.ask(payee):
            return []
        async with self._context.everywhere.transaction() as tx:
            commits = await tx.find(CommitRecord, col(CommitRecord.payout).equals(payee), *UNPAID, newest=True)
            names = list(dict.fromkeys(commit.job for commit in commits if commit.promised is not None))[:MAX_JOBS]
            found = [(await tx.get(Job, name), row) for name in names if (row := await _newest(tx, name)) is not None]
        told = [(await self.told(job, row)).get(payee) for job, row in found]
        return [message for message in told if message is not None]

    async def _who_is_owed(self, payees: Sequence[str]) -> Sequence[bool]:
        """Of each, whether anything is: most of those that come back together have nothing to come."""
        async with self._context.everywhere.transaction() as tx:
            mine = col(CommitRecord.payout).in_(sorted(set(payees)))
            owed = await tx.sums(CommitRecord, col(CommitRecord.amount), (col(CommitRecord.payout),), mine, *UNPAID)
        return [(payee,) in owed for payee in payees]

    async def view(self, job: str) -> PromiseView:
        """The newest promise of a job, whole: whoever has it can make everybody's proof.

        Raises:
            NotFoundError: there is no such job, or nothing was promised.
        """
        async with self._context.everywhere.transaction() as tx:
            jobs, row = await tx.find(Job, col(Job.id).equals(job)), await _newest(tx, job)
        if not jobs:
            raise NotFoundError(f"there is no job {job}: look it up in the list of jobs", "job")
        if row is None:
            raise NotFoundError(f"nothing of job {job} was promised: what it owes is paid without being claimed", "job")
        amounts = {payee: int(total) for payee, total in row.payload.items()}
        earned = await asyncio.to_thread(self._chain.promise, amounts)
        return PromiseView(
            job=job,
            submitter=jobs[0].submitter,
            escrow=self._chain.escrow_address(jobs[0].submitter, job),
            root=earned.root.hex(),
            total=int(earned.total),
            signature=row.signature,
            time=row.created,
            payees=tuple(PromisedAmount(payee, total) for payee, total in amounts.items()),
        )


async def _newest(tx: Transaction, job: str) -> OutboxRecord | None:
    where: tuple[Condition, ...] = (
        col(OutboxRecord.job).equals(job),
        col(OutboxRecord.kind).equals("promise"),
        col(OutboxRecord.state).equals("confirmed"),
    )
    return next(iter(await tx.find(OutboxRecord, *where, newest=True, limit=1)), None)


def _key(commit: CommitRecord) -> tuple[int, int, int, int]:
    return commit.epoch, commit.round, commit.stage, commit.replica
