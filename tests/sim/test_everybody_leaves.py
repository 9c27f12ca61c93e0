"""A job whose nodes and coordinator are all stopped, and started again: it goes on from the seats and states that it had."""

import pytest

from coordinator.domain.job import Job as StoredJob
from coordinator.domain.job import JobState
from coordinator.domain.lease import Lease
from coordinator.store.records import EventRecord, RoundRecord
from tests.sim.test_faults import check, gather_nodes, open_rows, read, submit
from tests.sim.world import World
from tests.support.seeds import seeds

TURNS = 20_000


async def until_rounds(world: World, job: str, rounds: int) -> None:
    for _ in range(TURNS):
        await world.turn()
        if (await read(world, StoredJob, job))[0].rounds_done >= rounds:
            return
    raise AssertionError("the job does not get so far")


async def to_the_end(world: World, job: str) -> StoredJob:
    for _ in range(TURNS):
        await world.turn()
        stored: StoredJob = (await read(world, StoredJob, job))[0]
        if stored.state is JobState.SETTLED and not await open_rows(world, job):
            return stored
    raise AssertionError(f"stuck as {stored.state}")


async def seats(world: World, job: str) -> dict[str, tuple[int, int]]:
    leases = await read(world, Lease, job)
    return {lease.node: lease.seat for lease in leases if lease.seat and lease.state != "ended"}


def calm(seed: int, nodes: int) -> World:
    # Whose turn it is is drawn: once in a hundred jobs a node has none for 20 seconds, and would be given up.
    world = World(seed, nodes=nodes, faults=0.0, settings={"stall_seconds": 90.0})
    world.crashes = False
    return world


@pytest.mark.parametrize("seed", seeds(2, of=12))
async def test_everybody_comes_back_to_the_seat_whose_optimizer_it_has(seed: int) -> None:
    world = calm(seed, nodes=4)
    await gather_nodes(world)
    job = await submit(world, 2, 2)
    await until_rounds(world, job, 5)
    before = await seats(world, job)
    for node in world.nodes:
        node.forget()
        node.up, node.away_until = False, world.clock.t + world.chance.uniform(0.5, 4.0)
    world._fall()
    await until_rounds(world, job, 6)
    assert await seats(world, job) == before
    assert world.peers.resumed >= 4, "each begins with its own moments, from its own disk"
    resumed = [
        record for record in await read(world, RoundRecord, job) if record.state == "complete" and record.number == 5
    ]
    assert [record.contributors for record in resumed] == [(0, 1)], "nobody went on before all were back"
    stored = await to_the_end(world, job)
    await check(world, job, stored)
    done = [record.number for record in await read(world, RoundRecord, job) if record.state == "complete"]
    assert len(done) == len(set(done)), "no complete round was done again"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("rounds", [2, 6])  # The coordinator stores every fourth.
async def test_a_stage_whose_keepers_never_come_back_costs_rounds_and_not_the_run(rounds: int) -> None:
    world = calm(3, nodes=6)
    await gather_nodes(world)
    job = await submit(world, 2, 2)
    await until_rounds(world, job, rounds)
    lost = {node for node, seat in (await seats(world, job)).items() if seat[0] == 1}
    for node in [node for node in world.nodes if node.key.address in lost]:
        world._leave(node)
        node.forget()
        node.up, node.away_until = False, float("inf")
    stored = await to_the_end(world, job)
    await check(world, job, stored)
    assert any("is done again" in event.text for event in await read(world, EventRecord, job))
    done = [record for record in await read(world, RoundRecord, job) if record.state == "complete"]
    assert len(done) > len({record.number for record in done})
    assert sum(record.pot for record in done) <= stored.quote.price, (
        "work that is done again costs the submitter no more"
    )
    assert stored.tokens_done >= stored.spec.training.tokens // 2
