"""Domain events of a unit of work: followed up once within it, told to handlers once it is stored, and never if it was not."""

import pytest

from coordinator.domain.job import JobState
from coordinator.errors import ConflictError
from coordinator.services.core.domain_events import AuditEvaded, LedgerRowQueued, NodeExpelled, RoundForged
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.store.records import OutboxRecord
from tests.coordinator.bench import Bench


async def test_an_event_is_taken_once_and_read_as_often_as_wanted() -> None:
    bench = Bench()
    async with bench.parts.desk.open(await bench.job()) as work:
        work.record(RoundForged(0, 3))
        work.record(AuditEvaded("node"))
        assert work.take(RoundForged) == [RoundForged(0, 3)]
        assert work.take(RoundForged) == []
        work.record(RoundForged(0, 4))
        assert work.take(RoundForged) == [RoundForged(0, 4)]
        assert work.recorded(RoundForged) == [RoundForged(0, 3), RoundForged(0, 4)]
        assert work.take(AuditEvaded) == [AuditEvaded("node")]


async def test_handlers_hear_their_kind_in_the_order_of_handlers_after_the_commit_whether_taken_or_not() -> None:
    bench = Bench()
    job = await bench.job()
    heard: list[object] = []

    def hear(work: UnitOfWork, event: RoundForged | NodeExpelled) -> None:
        heard.append((work.job.id, event))

    bench.parts.desk.on(RoundForged, hear)
    bench.parts.desk.on(NodeExpelled, hear)
    async with bench.parts.desk.open(job) as work:
        work.record(NodeExpelled("a"))
        work.record(AuditEvaded("c"))
        work.record(RoundForged(1, 0))
        work.take(RoundForged)
        assert heard == []
    assert heard == [(job, RoundForged(1, 0)), (job, NodeExpelled("a"))]


async def test_nobody_hears_of_what_was_not_stored() -> None:
    bench = Bench()
    job = await bench.job()
    heard: list[NodeExpelled] = []
    bench.parts.desk.on(NodeExpelled, lambda _work, event: heard.append(event))

    async def refused() -> None:
        async with bench.parts.desk.open(job) as work:
            work.record(NodeExpelled("a"))
            raise ConflictError("what follows is refused")

    with pytest.raises(ConflictError):
        await refused()
    assert heard == []


@pytest.mark.parametrize("how", ["row", "memo", "nothing"])
async def test_whatever_goes_to_the_ledger_wakes_who_carries_it(how: str) -> None:
    bench = Bench()
    job = await bench.job()
    heard: list[LedgerRowQueued] = []
    bench.parts.desk.on(LedgerRowQueued, lambda _work, event: heard.append(event))
    async with bench.parts.desk.open(job) as work:
        if how == "row":
            await work.store_now(OutboxRecord("refund:x", job, "refund", {}, work.now))
        elif how == "memo":
            work.queue(OutboxRecord("event:x", job, "event", {"text": "{}"}, work.now))
        else:
            work.change(state=JobState.RUNNING)
    assert len(heard) == (how != "nothing")
