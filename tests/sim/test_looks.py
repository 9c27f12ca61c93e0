"""The operator's own auditor looks at what was drawn, has no seat and no stake, and goes where a look is waited for."""

import pytest

from coordinator.domain.job import Job, JobState
from coordinator.domain.lease import Lease
from coordinator.domain.trust import Audit
from tests.coordinator.fakes import spec
from tests.sim.test_faults import TURNS_TO_END, check, gather_nodes, read, run_world, submit
from tests.sim.world import World

OPERATOR = 6


def watched(seed: int, nodes: int = OPERATOR, **odd: dict[str, object]) -> World:
    """A network whose last node is the operator's auditor."""
    special = {int(number.removeprefix("n")): kinds for number, kinds in odd.items()}
    return World(seed, nodes=nodes, faults=0.0, operators=(nodes,), special=special)


async def test_the_operators_auditor_looks_at_what_is_drawn_without_a_seat_or_a_stake() -> None:
    world = watched(1)
    job, stored = await run_world(world, 2, 2)
    await check(world, job, stored)
    assert stored.state is JobState.SETTLED
    assert stored.paid == stored.quote.price
    own = world.nodes[OPERATOR - 1].key.address
    held: list[Lease] = [lease for lease in await read(world, Lease, job) if lease.node == own]
    assert held
    assert all(lease.seat is None for lease in held)
    assert own not in world.chain.stakes
    audits: list[Audit] = [audit for audit in await read(world, Audit, job) if not audit.canary]
    assert all(audit.verdicts[-1].auditor == own and audit.verdicts[-1].own for audit in audits)


async def test_rounds_go_on_while_the_operators_auditor_is_away_and_the_end_waits_for_it() -> None:
    world = watched(2)
    operator = world.nodes[OPERATOR - 1]
    await gather_nodes(world)
    job = await submit(world, 2, 2)
    assert world.parts is not None
    assert operator.session is not None
    world.parts.nodes.leave(operator.session)
    operator.cut()
    operator.up, operator.away_until = False, float("inf")
    for _ in range(20_000):
        await world.turn()
    stored = await _job(world, job)
    assert stored.rounds_done >= 20
    assert stored.state in (JobState.RUNNING, JobState.VERIFYING)
    operator.up, operator.away_until = True, 0.0
    for _ in range(TURNS_TO_END):
        await world.turn()
        if (await _job(world, job)).state is JobState.SETTLED:
            break
    stored = await _job(world, job)
    assert stored.state is JobState.SETTLED
    assert stored.verified == stored.quote.price


async def test_an_auditor_that_takes_no_lease_now_gets_none_until_it_does() -> None:
    world = watched(4)
    operator = world.nodes[OPERATOR - 1]
    operator.accepting = False
    await gather_nodes(world)
    job = await submit(world, 2, 2)
    for _ in range(2_000):
        await world.turn()
    assert not [lease for lease in await read(world, Lease, job) if lease.node == operator.key.address]
    operator.accepting = True
    for _ in range(TURNS_TO_END):
        await world.turn()
        if (await _job(world, job)).state is JobState.SETTLED:
            break
    assert (await _job(world, job)).state is JobState.SETTLED
    assert [lease for lease in await read(world, Lease, job) if lease.node == operator.key.address]


async def test_a_second_auditor_comes_to_help_where_many_looks_wait() -> None:
    world = World(5, nodes=7, faults=0.0, operators=(6, 7), special={6: {"rerun": 8.0}, 7: {"rerun": 8.0}})
    job, stored = await run_world(world, 2, 2)
    await check(world, job, stored)
    assert stored.state is JobState.SETTLED
    own = {world.nodes[number - 1].key.address for number in (6, 7)}
    looked = {verdict.auditor for audit in await read(world, Audit, job) for verdict in audit.verdicts if verdict.own}
    assert looked == own


async def test_rounds_wait_once_as_many_looks_wait_as_the_disk_may_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.domain.auditors.MOST_LOOKS", 10)
    world = watched(6, n6={"rerun": 10.0})
    await gather_nodes(world)
    job = await submit(world, 2, 2)
    most = 0
    for turn in range(2 * TURNS_TO_END):
        await world.turn()
        if turn % 100 == 0:
            most = max(most, sum(a.state == "replaying" and a.look for a in await read(world, Audit, job)))
            if (await _job(world, job)).state is JobState.SETTLED:
                break
    assert (await _job(world, job)).state is JobState.SETTLED
    assert 10 <= most <= 10 + 3 * 4 * 2, "what was drawn of the rounds in flight came on top"


async def test_one_auditor_serves_two_jobs() -> None:
    world = watched(3, nodes=9)
    await gather_nodes(world)
    jobs = [await submit(world, 2, 2, spec(2, 2, tokens=10 * 1024)) for _ in range(2)]
    for _ in range(2 * TURNS_TO_END):
        await world.turn()
        if all([(await _job(world, job)).state is JobState.SETTLED for job in jobs]):
            break
    assert [(await _job(world, job)).state for job in jobs] == [JobState.SETTLED] * 2


async def _job(world: World, job: str) -> Job:
    return (await read(world, Job, job))[0]
