"""Nobody holds a job up for ever by saying that it works, by holding what it should send, or by coming and going."""

from dataclasses import replace
from typing import cast

import pytest

from coordinator.domain.job import LIVE, Job, JobState
from coordinator.domain.lease import Lease
from coordinator.store.records import RoundRecord
from tests.cheats.schemes import Flapper, Idler
from tests.sim.test_faults import check, gather_nodes, open_rows, read, submit, timeline
from tests.sim.world import World

ROUNDS_END = 30_000  # Turns in which twenty rounds end many times over.


@pytest.mark.parametrize("how", ["was", "further", "holds"])
async def test_who_only_says_that_it_works_loses_its_seat_and_the_job_goes_on(how: str) -> None:
    """One of two nodes of the only replica held a job until its deadline."""
    world = World(3, nodes=4, faults=0.0, special={4: {"flops": 1e10, "scheme": Idler(how)}})
    await gather_nodes(world)
    job = await submit(world, 2, 1)
    stored = await settled(world, job)
    await check(world, job, stored)
    idler = [lease for lease in await read(world, Lease, job) if lease.node == world.nodes[3].key.address]
    assert {lease.end for lease in idler if lease.seat} == {"stalled"}
    assert world.chain.slashed == {}


@pytest.mark.parametrize(
    ("flapper", "replicas", "cheats"),
    [
        (Flapper("crashes"), 1, 2),
        pytest.param(Flapper("crashes"), 2, 4, marks=pytest.mark.long),
        (Flapper("cuts"), 1, 4),
        (Flapper("leaves", fresh=True), 1, 4),
        pytest.param(Flapper("leaves", fresh=True), 2, 4, marks=pytest.mark.long),
    ],
    ids=lambda one: f"{one.how}{'-fresh' * one.fresh}" if isinstance(one, Flapper) else str(one),
)
async def test_who_comes_and_goes_does_not_have_a_job_fail(flapper: Flapper, replicas: int, cheats: int) -> None:
    """Two of them, the quickest, had any job fail within a minute: "round 1 failed 21 times in a row"."""
    special = {8 - n: {"flops": 1e10 + n, "scheme": replace(flapper)} for n in range(cheats)}
    world = World(0, nodes=8, faults=0.0, special=special, settings={"min_stake": 0})
    await gather_nodes(world)
    job = await submit(world, 2, replicas)
    stored = await settled(world, job)
    await check(world, job, stored)
    assert any(record.state == "void" for record in await read(world, RoundRecord, job)), "it was tried"


async def settled(world: World, job: str) -> Job:
    for _ in range(ROUNDS_END):
        await world.turn()
        (stored,) = await read(world, Job, job)
        if stored.state not in LIVE and not await open_rows(world, job):
            break
    assert stored.state is JobState.SETTLED, await timeline(world, job)
    return cast(Job, stored)
