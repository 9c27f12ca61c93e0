"""How often the store is searched for what shares and standings follow from: counted, not timed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from coordinator.domain.job import JobState
from coordinator.domain.rounds.run import Run
from coordinator.services.audits import credit
from coordinator.services.core.domain_events import SharesMayBeDue
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.store.memory import MemoryStore
from coordinator.store.ports import col
from coordinator.store.records import CommitRecord, RoundRecord
from protocol.identity import NodeKey
from protocol.task import Layers
from tests.coordinator.bench import Bench
from tests.coordinator.desk.conftest import CountedStore

ROUNDS, MEMBERS = 5, 4


@asynccontextmanager
async def waiting(bench: Bench) -> AsyncIterator[UnitOfWork]:
    """A job of four nodes whose rounds all wait to be drawn."""
    nodes = [NodeKey((100 + number).to_bytes(32, "big")).address for number in range(MEMBERS)]
    job = await bench.verified([dict.fromkeys(nodes, 100) for _ in range(ROUNDS)])
    async with bench.parts.desk.open(job) as work:
        for record in await work.tx.find(RoundRecord, col(RoundRecord.job).equals(job)):
            await work.tx.update(msgspec.structs.replace(record, concluded=False))
        for commit in await work.tx.find(CommitRecord, col(CommitRecord.job).equals(job)):
            await work.tx.update(msgspec.structs.replace(commit, state="pending"))
        undrawn = tuple((1, number) for number in range(ROUNDS))
        work.run = Run((Layers(0, 4),), MEMBERS, ROUNDS, 1, (), undrawn=undrawn)
        work.change(state=JobState.RUNNING)
        yield work
        work.run = None


async def test_rounds_that_wait_are_searched_for_once_each_time_something_has_ended() -> None:
    counted = CountedStore(MemoryStore())
    bench = Bench(store=counted)
    conclusion = bench.parts.runs._verification._conclusion
    async with waiting(bench) as work:
        counted.counts.clear()
        await conclusion.advance(work)
        assert counted.counts["reads"] == 0, "nothing has ended"
        work.record(SharesMayBeDue())
        work.record(SharesMayBeDue())
        await conclusion.advance(work)
        assert counted.counts["reads"] == 2, "the rounds, and the shares of all of them"
        await conclusion.advance(work)
        assert counted.counts["reads"] == 2, "nothing has ended since"


async def test_standings_of_a_rounds_members_take_three_searches_however_many_they_are() -> None:
    counted = CountedStore(MemoryStore())
    bench = Bench(store=counted)
    async with waiting(bench) as work:
        commits = await work.tx.find(CommitRecord, col(CommitRecord.round).equals(0))
        counted.counts.clear()
        found = await credit.standings_of(work, commits, ())
        assert counted.counts["reads"] == 3
    assert len(commits) == len(found) == MEMBERS
    assert {standing.share for standing in found.values()} == {100}
    assert {standing.credit for standing in found.values()} == {(ROUNDS - 1) * 100}, (
        "what waits counts as if it were verified"
    )
