"""A coordinator that falls behind, or stood still, takes nobody for dead who was heard in time."""

import asyncio
import itertools
import time
from dataclasses import replace

import pytest

from coordinator.config import Config
from coordinator.domain.lease import Lease
from coordinator.store.ports import col
from coordinator.web import signal
from protocol.codec import MessageError
from protocol.node import NodeMessage, Report
from protocol.rest.api import NewJob
from protocol.task import AuditReport, TaskFailed
from tests.coordinator.bench import CONFIG, Bench
from tests.coordinator.conftest import House, nodes, opened, until
from tests.coordinator.fakes import FakeChain, spec


async def begun(house: House) -> str:
    job = (await house.parts.jobs.create(NewJob(spec(tokens=40_960)))).id
    await house.parts.jobs.fund(job)

    async def done() -> bool:
        return (await house.parts.jobs.get(job)).rounds_done > 0

    await until(done)
    return job


async def lost(house: House) -> list[str]:
    async with house.parts.context.store.transaction() as tx:
        return [lease.reason for lease in await tx.find(Lease, col(Lease.state).equals("ended"))]


async def test_heartbeats_count_while_reports_wait_for_their_turn(config: Config) -> None:
    config = replace(config, lease_seconds=1.0)
    async with opened(config, FakeChain()) as house, nodes(house, 4) as made:
        job = await begun(house)
        async with house.parts.desk.open(job):
            for node in made:
                lease = next(iter(node.tasks))
                await node.send(Report(lease, node.fences[lease], 1, TaskFailed("was said before, so nothing happens")))
            await asyncio.sleep(3 * config.lease_seconds)
            assert house.parts.leases.expired() == ()
            sessions = [house.parts.nodes.session(node.key.address) for node in made]
            assert all(session and session.unhandled for session in sessions)
        await asyncio.sleep(5 * config.tick_seconds)
        assert await lost(house) == []
        assert all(house.parts.nodes.session(node.key.address) for node in made)


async def test_what_has_arrived_is_in_time_but_nobody_stretches_a_deadline_for_ever() -> None:
    bench = Bench()
    session, late = await bench.enter(1), bench.parts.nodes.late
    assert not late(session.node, 100.0, now=100.0)
    assert late(session.node, 100.0, now=100.1)
    session.unhandled = 1
    assert not late(session.node, 100.0, now=100.1 + CONFIG.audit_seconds / 2)
    assert late(session.node, 100.0, now=100.1 + CONFIG.audit_seconds)
    bench.parts.nodes.leave(session)
    assert late(session.node, 100.0, now=100.1), "whoever is gone has nothing here"


async def test_reports_of_a_lease_that_wait_are_handled_together_and_everything_keeps_its_order() -> None:
    def answer(seq: int, lease: str = "one", fence: int = 1) -> Report:
        return Report(lease, fence, seq, AuditReport("a" * 32, "match"))

    failed, other = Report("one", 1, 4, TaskFailed("out of memory")), answer(1, "other")
    fault = MessageError("what was sent is no message")
    waiting: asyncio.Queue[NodeMessage | Exception | None] = asyncio.Queue()
    come: list[NodeMessage | Exception] = [
        answer(1),
        answer(2),
        answer(3),
        failed,
        answer(5),
        other,
        answer(6, fence=2),
        fault,
    ]
    for message in come:
        waiting.put_nowait(message)
    turns = signal._in_turn(waiting)
    batches = [[first, *more] for first, more in [await anext(turns) for _ in range(3)]]
    with pytest.raises(MessageError, match="no message"):
        await anext(turns)
    assert batches == [[answer(1), answer(2), answer(3), failed, answer(5)], [other], [answer(6, fence=2)]]


async def test_of_one_node_so_many_reports_are_asked_for_at_once_that_others_come_in_between() -> None:
    waiting: asyncio.Queue[NodeMessage | Exception | None] = asyncio.Queue()
    for seq in range(1, 2 * signal.MAX_TOGETHER + 2):
        waiting.put_nowait(Report("one", 1, seq, AuditReport("a" * 32, "match")))
    turns = signal._in_turn(waiting)
    batches = [[first.seq, *(one.seq for one in more)] for first, more in [await anext(turns) for _ in range(3)]]  # type: ignore[union-attr]
    assert [len(batch) for batch in batches] == [signal.MAX_TOGETHER, signal.MAX_TOGETHER, 1]
    assert [seq for batch in batches for seq in batch] == list(range(1, 2 * signal.MAX_TOGETHER + 2))


async def test_who_stood_still_gives_everybody_the_time_it_missed(config: Config) -> None:
    async with opened(config, FakeChain()) as house, nodes(house, 4):
        await begun(house)
        for _ in range(2):
            time.sleep(config.lease_seconds + 0.2)  # noqa: ASYNC251 - as in a suspended machine, nothing runs
            await asyncio.sleep(5 * config.tick_seconds)
        assert await lost(house) == []


async def test_looking_at_all_jobs_takes_a_fifth_of_the_time_and_holds_up_no_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    upkeep, clock = bench.parts.upkeep, bench.clock
    looked: list[float] = []
    expired: list[float] = []
    began, seconds = clock.now(), 300.0

    async def look(_job: str, _act: object) -> None:
        await clock.sleep(0.5)
        looked.append(clock.now())

    async def expire() -> None:
        expired.append(clock.now())
        if clock.now() > began + seconds:
            raise TimeoutError

    monkeypatch.setattr(upkeep, "_active", {f"job{number}": float(number) for number in range(12)})
    monkeypatch.setattr(upkeep, "_guarded", look)
    monkeypatch.setattr(upkeep, "_expire_leases", expire)
    with pytest.raises(TimeoutError):
        await upkeep.run()
    assert 0.15 <= 0.5 * len(looked) / seconds <= 0.25
    assert len(looked) % 12 == 0, "each as often as the others"
    while_nobody_looks = [later - at for at, later in itertools.pairwise(expired) if later - at < 6.0]
    assert max(while_nobody_looks) <= CONFIG.tick_seconds
    assert len(while_nobody_looks) > 400
