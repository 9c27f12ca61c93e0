"""A coordinator that falls behind, or stood still, takes nobody for dead who was heard in time."""

import asyncio
import time
from dataclasses import replace

from coordinator.config import Config
from coordinator.domain.lease import Lease
from tests.coordinator.conftest import House, nodes, opened, until
from tests.coordinator.fakes import FakeChain, spec
from transport.wire.api import NewJob
from transport.wire.node import Report
from transport.wire.task import TaskFailed


async def begun(house: House) -> str:
    job = (await house.parts.jobs.create(NewJob(spec(tokens=40_960)))).id
    await house.parts.jobs.fund(job)

    async def done() -> bool:
        return (await house.parts.jobs.get(job)).rounds_done > 0

    await until(done)
    return job


async def lost(house: House) -> list[str]:
    async with house.parts.context.store.transaction() as tx:
        return [lease.reason for lease in await tx.find(Lease, ("state", "=", "ended"))]


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
        await asyncio.sleep(5 * config.tick_seconds)
        assert await lost(house) == []
        assert all(house.parts.nodes.session(node.key.address) for node in made)


async def test_who_stood_still_gives_everybody_the_time_it_missed(config: Config) -> None:
    async with opened(config, FakeChain()) as house, nodes(house, 4):
        await begun(house)
        for _ in range(3):
            time.sleep(config.lease_seconds + 0.2)  # noqa: ASYNC251 - as in a suspended machine, nothing runs
            await asyncio.sleep(5 * config.tick_seconds)
        assert await lost(house) == []
