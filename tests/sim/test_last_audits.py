"""A job that is trained, and whose last audits have lost those who were to run the steps again."""

from math import inf

import pytest

from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import Job as StoredJob
from coordinator.domain.job import JobState
from coordinator.domain.lease import Lease
from tests.coordinator.fakes import spec
from tests.sim.test_everybody_leaves import TURNS, to_the_end
from tests.sim.test_faults import ROUNDS, check, gather_nodes, open_rows, read, submit
from tests.sim.world import World
from tests.support.seeds import seeds

BETWEEN_S = 15.0  # Restarts: more than an absence takes to be noted, and less than an audit has time.


async def alone_with_audits(world: World) -> tuple[str, str, set[str]]:
    """Trains in two replicas; one is lost for good once all is trained, and before it has run a step of the other again.

    Returns the job, who is left, and its audits that nobody has given up yet.
    """
    await gather_nodes(world)
    job = await submit(world, 1, 2, spec(1, 2, tokens=ROUNDS * 1024))
    for _ in range(TURNS):
        await world.turn()
        audits = [one for one in await read(world, Audit, job) if not one.over and one.outer is None]
        for one in audits if (await read(world, StoredJob, job))[0].rounds_done == ROUNDS else ():
            away = [node for node in world.nodes if node.tasks and node.key.address != one.node]
            if one.state == "replaying" and one.auditor is not None and away:
                for node in away:
                    node.forget()
                    node.up, node.away_until = False, inf
                    world._leave(node)
                awaited = [other for other in audits if not other.tried or other.auditor is not None]
                return job, one.node, {other.id for other in awaited if other.node == one.node}
    raise AssertionError("no audit was open at the end")


@pytest.mark.parametrize("seed", seeds(3, of=12))
async def test_another_node_takes_the_seat_and_runs_the_steps_again(seed: int) -> None:
    settings = {"spares": 0, "audit_patience_seconds": 60.0, "audits_per_round": 2, "audit_twice": 0}
    world = World(seed, nodes=4, faults=0.0, settings=settings)
    world.crashes = False
    job, left, open_then = await alone_with_audits(world)
    before = {lease.id for lease in await read(world, Lease, job)}
    stored = await to_the_end(world, job)
    await check(world, job, stored)
    others = [lease for lease in await read(world, Lease, job) if lease.id not in before]
    assert others, "a node that was free takes a seat"
    assert left not in {lease.node for lease in others}
    audits = [one for one in await read(world, Audit, job) if one.id in open_then]
    assert {one.state for one in audits} == {"passed"}, [one.detail for one in audits]


@pytest.mark.parametrize("seed", seeds(2, of=12))
async def test_restarts_do_not_put_off_for_ever_what_nobody_can_run_again(seed: int) -> None:
    settings = {"spares": 0, "audit_seconds": 60.0, "audits_per_round": 2}
    world = World(seed, nodes=2, faults=0.0, settings=settings)
    world.crashes = False
    job, _, open_then = await alone_with_audits(world)
    due, most = world.clock.t + BETWEEN_S, world.clock.t + 20 * BETWEEN_S
    while world.clock.t < most:
        await world.turn()
        if world.clock.t >= due:
            world._fall()
            due = world.clock.t + BETWEEN_S
        stored: StoredJob = (await read(world, StoredJob, job))[0]
        if stored.state is JobState.SETTLED and not await open_rows(world, job):
            break
    assert stored.state is JobState.SETTLED
    await check(world, job, stored)
    audits = [one for one in await read(world, Audit, job) if one.id in open_then]
    assert {one.state for one in audits} <= {"passed", "void"}
