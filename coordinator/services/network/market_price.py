"""The network's price of 10^15 operations, from what its nodes ask and what is queued."""

from dataclasses import dataclass

from coordinator.client.text import money
from coordinator.domain import pricing
from coordinator.domain.job import Job, JobState
from coordinator.services.core.context import Context
from coordinator.services.network.nodes import Nodes
from coordinator.store.ports import Transaction, col

QUEUED = (JobState.FUNDED, JobState.PLANNED, JobState.RUNNING)  # Not what nobody has paid for: that would cost nothing.
MAX_QUEUED = 1000  # Jobs that are counted; a longer queue has long reached the highest price.


@dataclass(frozen=True)
class MarketRate:
    """The price of 10^15 operations in millionths, with a sentence that says where it comes from."""

    per_petaflop: int
    reason: str


class Rates:
    """Works the price out anew each time, from the store and the nodes of all cells."""

    def __init__(self, context: Context, nodes: Nodes) -> None:
        self._context = context
        self._nodes = nodes

    async def now(self) -> MarketRate:
        """The price at this moment. It continues from an earlier job's, so that neither a restart nor a crowd makes it jump."""
        await self._nodes.elsewhere.look()
        async with self._context.everywhere.transaction() as tx:
            return await self.within(tx)

    async def within(self, tx: Transaction) -> MarketRate:
        """The same, as the transaction sees it."""
        now = self._context.clock.time()
        queued = await tx.find(Job, col(Job.state).in_(QUEUED), limit=MAX_QUEUED)
        before = await tx.find(Job, col(Job.created) < now - pricing.STEP_S, newest=True, limit=1)
        before = before or await tx.find(Job, limit=1)
        least = self._context.config.price_per_petaflop
        offers = [pricing.Offer(int(c.flops), c.floor) for c in self._nodes.everywhere()]
        waiting = sum(map(left, queued))
        target = rate = pricing.rate(offers, waiting, least)
        if before and before[0].quote.rate:
            steps = int(max(0.0, now - before[0].created) / pricing.STEP_S)
            rate = pricing.stepped(before[0].quote.rate, target, steps)
        return MarketRate(rate, _reason(offers, waiting, rate, target))


def left(job: Job) -> int:
    """Operations that a job still needs."""
    whole, tokens = int(job.quote.operations), max(1, job.quote.tokens)
    return whole * max(0, tokens - job.tokens_done) // tokens


def _reason(offers: list[pricing.Offer], queued: int, rate: int, target: int) -> str:
    speed = sum(offer.speed for offer in offers)
    willing = sum(offer.floor <= rate for offer in offers)
    hours = queued / (speed * pricing.HOUR) if speed else 0.0
    text = f"10^15 operations cost {money(rate)}: {willing} of {len(offers)} nodes work for that"
    text += f", and {hours:.1f} hours of work are queued" if queued else ", and nothing is queued"
    if target != rate:
        text += f"; on the way to {money(target)}, by an eighth in {pricing.STEP_S / 60:.0f} minutes"
    return text
