"""Nobody holds a job up for ever by saying that it works, holding what it should send, coming and going, or being lost."""

from dataclasses import replace
from math import inf
from typing import cast

import pytest

from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import LIVE, Job, JobState
from coordinator.domain.lease import Lease
from coordinator.store.records import RoundRecord
from tests.cheats.schemes import Flapper, Idler
from tests.coordinator.fakes import spec
from tests.sim.test_everybody_leaves import TURNS, to_the_end
from tests.sim.test_faults import ROUNDS, check, gather_nodes, open_rows, read, submit, timeline
from tests.sim.world import World
from tests.support.seeds import seeds

ROUNDS_END = 30_000  # Turns in which twenty rounds end many times over.
BETWEEN_S = 15.0  # Restarts: more than an absence takes to be noted, and less than an audit has time.


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


async def alone_with_audits(world: World) -> tuple[str, str, set[str]]:
    """Trains in two replicas; one is lost for good once all is trained, and before it has run a step of the other again.

    Returns the job, who is left, and its audits that nobody has given up yet.
    """
    await gather_nodes(world)
    job = await submit(world, 1, 2, spec(1, 2, tokens=ROUNDS * 1024))
    for _ in range(TURNS):
        await world.turn()
        audits = [one for one in await read(world, Audit, job) if not one.over and one.outer is None]
        for one in audits if (await read(world, Job, job))[0].rounds_done == ROUNDS else ():
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
        stored: Job = (await read(world, Job, job))[0]
        if stored.state is JobState.SETTLED and not await open_rows(world, job):
            break
    assert stored.state is JobState.SETTLED
    await check(world, job, stored)
    audits = [one for one in await read(world, Audit, job) if one.id in open_then]
    assert {one.state for one in audits} <= {"passed", "void"}
