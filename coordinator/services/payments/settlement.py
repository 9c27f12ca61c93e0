"""What is due of a job's escrow: payouts for verified work, and at the end the refund.

It is queued in the same transaction that makes it due; ``outbox_lanes`` carries the queue to the ledger. Payouts are cumulative,
so even a repeated one pays nothing more.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import msgspec

from common import tracing
from common.untrusted_text import untrusted
from coordinator.domain import pricing
from coordinator.domain.cells import cell_of
from coordinator.domain.job import LIVE
from coordinator.services.core.context import Context
from coordinator.services.core.display_names import listed
from coordinator.services.core.unit_of_work import JobDesk, UnitOfWork
from coordinator.services.payments.promises import UNPAID, PromiseService
from coordinator.store.ports import Condition, col
from coordinator.store.records import MONEY_ROWS, OPEN_ROWS, CommitRecord, OutboxRecord
from ledger.program.codes import MAX_BATCH

MAX_PAYEES_A_ROW = MAX_BATCH  # What one transaction pays; their token accounts and a lookup table are there by then.
MAX_SHARES = 500  # Of a payee, looked through at a time.
CLAIM_S = 600.0  # Between two claims of a payee.
MAX_CLAIMS = 5_000  # Within that time: about one transaction in eight of the coordinator's capacity.


class ClaimsBeside(Protocol):
    """Other cells, whose jobs owe payees something, too."""

    def claim(self, payee: str, cells: Collection[int]) -> None:
        """Let these cells know, in a moment, that a payee asks for what it has earned in their jobs."""


class Settlement:
    """Queues payouts and refunds."""

    def __init__(
        self, context: Context, desk: JobDesk, promises: PromiseService, beside: ClaimsBeside | None = None
    ) -> None:
        """``beside``: other cells, where there are any."""
        self._context = context
        self._desk = desk
        self._promises = promises
        self._beside = beside
        self._claimed: dict[str, float] = {}

    async def settle_if_due(self, work: UnitOfWork) -> None:
        """Queue payouts once enough rounds are verified; who has earned less than is worth the fee is promised it."""
        commits = await self._unsettled(work)
        if len({(commit.epoch, commit.round) for commit in commits}) >= self._context.config.settle_every:
            worth = self._worth(commits, pricing.worth_paying)
            paid = {commit.payout for commit in worth}
            await self._settle(work, worth)
            await self._promises.queue(work, [commit for commit in commits if commit.payout not in paid])

    async def settle_now(self, work: UnitOfWork) -> None:
        """Queue what is verified and more than its fee: the job rests, and nobody knows for how long."""
        await self._settle(work, self._worth(await self._unsettled(work), pricing.worth_claiming))

    async def claim(self, payee: str) -> None:
        """Queue what a payee has earned in all jobs and asks for; what the fee alone would eat waits on. Jobs of other cells are
        for these to look at, which hear of it."""
        await self.claim_here(payee)
        if self._beside is not None:
            self._beside.claim(payee, await self._cells_beside(payee))

    async def claim_here(self, payee: str) -> None:
        """Likewise, in all jobs of this cell.

        Once in CLAIM_S: each costs a transaction of the coordinator's.
        """
        now = self._context.clock.time()
        self._claimed = {who: at for who, at in self._claimed.items() if at + CLAIM_S > now}
        if payee in self._claimed or len(self._claimed) >= MAX_CLAIMS:
            return
        async with self._context.store.transaction() as tx:
            found = await tx.find(CommitRecord, col(CommitRecord.payout).equals(payee), *UNPAID, limit=MAX_SHARES)
        jobs = {commit.job for commit in found}
        if not jobs:
            return  # Nor is it remembered: whoever has earned nothing keeps nobody from claiming.
        self._claimed[payee] = now
        for job in sorted(jobs):
            async with self._desk.open(job) as work:
                commits = [commit for commit in await self._unsettled(work) if commit.payout == payee]
                if work.job.state in LIVE:
                    await self._settle(work, self._worth(commits, pricing.worth_claiming))

    async def _cells_beside(self, payee: str) -> set[int]:
        """Those whose jobs owe a payee something that waits."""
        mine = col(CommitRecord.payout).equals(payee)
        async with self._context.everywhere.transaction() as tx:
            owed = await tx.sums(CommitRecord, col(CommitRecord.amount), (col(CommitRecord.job),), mine, *UNPAID)
        cell = self._context.cell
        return {cell_of(str(job), cell.of) for (job,) in owed} - {cell.number}

    async def finish(self, work: UnitOfWork) -> None:
        """Queue the last payouts and the refund, once; nothing where no escrow was seen.

        An escrow that is spent is refunded as well: only that keeps it from taking deposits that nobody would look for, and
        lets the submitter have its rent back.
        """
        refunds = await work.tx.find(
            OutboxRecord, col(OutboxRecord.job).equals(work.job.id), col(OutboxRecord.kind).equals("refund"), limit=1
        )
        if work.job.escrow == 0 or refunds:
            return
        await self._settle(work, await self._unsettled(work))
        rest = work.job.escrow - work.job.verified
        key = f"refund:{work.job.id}"
        detail = f"back to wallet {work.job.submitter}"
        await work.store_now(
            OutboxRecord(key, work.job.id, "refund", {}, work.now, amount=rest, detail=untrusted(detail))
        )

    async def is_done(self, work: UnitOfWork) -> bool:
        """Whether no money of the job is still on its way."""
        where: tuple[Condition, ...] = (
            col(OutboxRecord.job).equals(work.job.id),
            col(OutboxRecord.kind).in_(MONEY_ROWS),
            col(OutboxRecord.state).in_(OPEN_ROWS),
        )
        return not await work.tx.find(OutboxRecord, *where, limit=1)

    def _worth(self, commits: Sequence[CommitRecord], worth: Callable[[int, int, int], bool]) -> list[CommitRecord]:
        """Commits of those whose payout is worth its part of a transaction's fee."""
        earned: dict[str, int] = defaultdict(int)
        for commit in commits:
            earned[commit.payout] += commit.amount
        fee = -(-pricing.SIGNATURE_LAMPORTS // max(1, min(len(earned), MAX_PAYEES_A_ROW)))
        paid = {who for who, amount in earned.items() if worth(amount, fee, self._context.config.sol_price)}
        return [commit for commit in commits if commit.payout in paid]

    async def _unsettled(self, work: UnitOfWork) -> list[CommitRecord]:
        return await work.tx.find(CommitRecord, col(CommitRecord.job).equals(work.job.id), *UNPAID)

    @tracing.traced("settle")
    async def _settle(self, work: UnitOfWork, commits: Sequence[CommitRecord]) -> None:
        """Queue cumulative payouts to everybody who has something new, and mark what they cover."""
        if not commits:
            return
        verified = await work.tx.find(
            CommitRecord, col(CommitRecord.job).equals(work.job.id), col(CommitRecord.state).equals("verified")
        )
        total: dict[str, int] = defaultdict(int)
        for commit in verified:
            total[commit.payout] += commit.amount
        new: dict[str, list[CommitRecord]] = defaultdict(list)
        for commit in commits:
            new[commit.payout].append(commit)
        payees = sorted(new)
        before = len(
            await work.tx.find(
                OutboxRecord, col(OutboxRecord.job).equals(work.job.id), col(OutboxRecord.kind).equals("settle")
            )
        )
        for part, start in enumerate(range(0, len(payees), MAX_PAYEES_A_ROW)):
            chosen = payees[start : start + MAX_PAYEES_A_ROW]
            covered = [commit for payee in chosen for commit in new[payee]]
            amount = sum(commit.amount for commit in covered)
            nodes = list(dict.fromkeys(c.node for c in sorted(covered, key=lambda c: (c.replica, c.stage))))
            detail = f"to {listed(nodes)} for {_rounds(covered, 'round' if work.job.spec.trains else 'period')}"
            record = await work.store_now(
                OutboxRecord(
                    f"settle:{work.job.id}:{before + part}",
                    work.job.id,
                    "settle",
                    {payee: total[payee] for payee in chosen},
                    work.now,
                    amount,
                    untrusted(detail),
                )
            )
            paying = [msgspec.structs.replace(commit, settlement=record.id) for commit in covered]
            await work.tx.update_all(paying, covered)


def _rounds(commits: Sequence[CommitRecord], called: str) -> str:
    """Rounds of commits as people count them, from 1. ``called``: what one is to them, a round or a period."""
    first, last = min(commit.round for commit in commits) + 1, max(commit.round for commit in commits) + 1
    return f"{called} {first}" if first == last else f"{called}s {first} to {last}"
