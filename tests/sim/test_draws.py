"""The draw waits for the ledger, everybody can repeat it, and a proven lie is taken out of the model again."""

import msgspec
import pytest

from coordinator.domain.audits import sampling as draws
from coordinator.domain.audits.sampling import WHOLE
from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import Job, JobState
from coordinator.services.audits.sampling import drawable_of
from coordinator.services.audits.verification import OPENING_LAG, SHOWING_LAG
from coordinator.store.records import CommitRecord, EventRecord, NodeRecord, RoundRecord, RunRecord
from protocol.task import TaskFailed
from tests.sim.test_faults import check, gather_nodes, read, run_world, submit
from tests.sim.world import World


async def test_anybody_can_repeat_every_draw_from_what_was_committed_and_the_ledgers_blocks() -> None:
    world = World(5, nodes=6, faults=0.0)
    job, stored = await run_world(world, 2, 2)
    await check(world, job, stored)
    audits: list[Audit] = await read(world, Audit, job)
    rounds: list[RoundRecord] = await read(world, RoundRecord, job)
    commits: list[CommitRecord] = await read(world, CommitRecord, job)
    trained = [record for record in rounds if record.state == "complete" and record.steps > 0]
    assert trained
    for record in trained:
        beacon = record.beacon
        assert beacon is not None
        assert beacon.after is not None
        assert beacon.slot is not None
        assert (beacon.slot, beacon.block) == await world.chain.block_after(beacon.after)
        own = [c for c in commits if (c.epoch, c.round) == (record.epoch, record.number)]
        drawable = drawable_of(own, beacon)
        seed = draws.seed_of(job, record.epoch, record.number, drawable, beacon.block)
        due = {(d.stage, d.replica, d.step, d.twice) for d in draws.draw(seed, drawable, beacon.least, beacon.twice)}
        mine = [a for a in audits if (a.epoch, a.round) == (record.epoch, record.number) and not a.canary]
        assert due == {(a.stage, a.replica, a.step, a.twice) for a in mine}
        assert {a.seed for a in mine} == {record.seed} == {seed.hex()}


async def test_no_more_rounds_begin_than_workers_keep_records_of_while_the_ledger_is_away() -> None:
    world = World(3, nodes=5, faults=0.0)
    await gather_nodes(world)
    job = await submit(world, 2, 2)
    for _ in range(600):
        await world.turn()
    world.chain.blocks_by_themselves = 0  # The ledger answers, and makes no more blocks.
    for _ in range(4_000):
        world.chain.height = 0
        await world.turn()
    run = (await read(world, RunRecord, job))[0].run
    waiting = run.undrawn
    assert 1 <= len(waiting) <= OPENING_LAG
    assert run.round is None
    held: list[CommitRecord] = await read(world, CommitRecord, job)
    assert {c.state for c in held if (c.epoch, c.round) in waiting} == {"pending"}, "nothing is paid before it is drawn"
    world.chain.blocks_by_themselves = 1
    for _ in range(30_000):
        await world.turn()
        stored = (await read(world, Job, job))[0]
        if stored.state is JobState.SETTLED:
            break
    assert stored.state is JobState.SETTLED
    assert stored.paid == stored.quote.price


@pytest.mark.parametrize("seed", [2, pytest.param(1, marks=pytest.mark.long)])
async def test_rounds_go_on_while_what_audits_ask_for_is_on_its_way_and_no_further_than_agreed(seed: int) -> None:
    slow = {number: {"upload": 9.0} for number in range(1, 6)}
    world = World(seed, nodes=5, faults=0.0, settings={"audit_seconds": 240.0}, special=slow)
    await gather_nodes(world)
    job = await submit(world, 2, 2)
    behind: set[int] = set()
    for _ in range(60_000):
        await world.turn()
        stored = (await read(world, Job, job))[0]
        if stored.state is JobState.SETTLED:
            break
        runs: list[RunRecord] = await read(world, RunRecord, job)
        if not runs or runs[0].run.round is None:
            continue
        for audit in await read(world, Audit, job):
            lag = runs[0].run.round.number - audit.round
            if audit.state == "opening":
                assert lag < OPENING_LAG, "the records of its round may be gone"
            elif audit.state == "showing":
                assert audit.made is not None
                behind.add(lag)
    assert stored.state is JobState.SETTLED
    assert OPENING_LAG <= max(behind) < SHOWING_LAG
    audits = [audit for audit in await read(world, Audit, job) if not audit.canary]
    assert {audit.state for audit in audits} == {"passed"}
    assert all(audit.made == audit.opening for audit in audits)


async def test_those_who_pass_are_looked_at_less_and_less() -> None:
    world = World(1, nodes=6, faults=0.0)
    job, _ = await run_world(world, 2, 2)
    rounds: list[RoundRecord] = await read(world, RoundRecord, job)
    rates = [sum(r.beacon.rates) for r in rounds if r.beacon is not None]
    assert rates[0] == 4 * WHOLE
    assert rates[-1] < rates[0] * 6 // 10
    nodes = await everybody(world)
    verified = [c for c in await read(world, CommitRecord, job) if c.state == "verified"]
    assert sum(node.rounds for node in nodes) == len(verified)
    assert not any(node.faults for node in nodes)


@pytest.mark.parametrize("seed", [1, pytest.param(4, marks=pytest.mark.long)])
async def test_a_job_goes_back_before_a_forged_round_and_honest_work_stays_paid(seed: int) -> None:
    world = World(seed, nodes=7, faults=0.0, special={7: {"lie": "root"}})
    job, stored = await run_world(world, 2, 2)
    await check(world, job, stored)
    assert stored.state is JobState.SETTLED
    liar = world.nodes[6].key.address
    forged = [a for a in await read(world, Audit, job) if a.blame == "wrong"]
    assert {a.node for a in forged} == {liar}
    first = min(a.round for a in forged)
    assert any("was forged" in e.text for e in await read(world, EventRecord, job) if e.kind == "lost")
    commits: list[CommitRecord] = await read(world, CommitRecord, job)
    again = max(c.epoch for c in commits)
    standing = [c for c in commits if c.round >= first and c.epoch == again and c.state == "verified"]
    assert standing, "the forged round was trained again"
    assert not any(c.node == liar for c in standing)
    before = [c for c in commits if c.round == first and c.epoch < again and c.node != liar]
    assert before
    assert {c.state for c in before} == {"verified"}, "who worked honestly in the forged round is paid"
    assert stored.paid <= stored.quote.price


async def everybody(world: World) -> list[NodeRecord]:
    async with world.records.transaction() as tx:
        return [msgspec.structs.replace(record) for record in await tx.find(NodeRecord)]


async def test_a_node_in_whose_sandbox_a_hand_was_seen_loses_its_seat_and_is_looked_at_more_often() -> None:
    world = World(4, nodes=6, faults=0.0)
    await gather_nodes(world)
    await submit(world, 2, 2)
    while not any(node.tasks for node in world.nodes):
        await world.turn()
    node = next(node for node in world.nodes if node.tasks)
    lease = min(node.tasks)
    node.say(lease, [TaskFailed("somebody reached into the container", tampered=True)])
    node.tasks.pop(lease)
    for _ in range(50):
        await world.turn()
    records = {record.address: record for record in await everybody(world)}
    assert records[node.key.address].faults == 1
    assert sum(record.faults for record in records.values()) == 1
    assert lease not in {other for each in world.nodes for other in each.tasks}


async def test_what_a_blind_auditor_approved_is_looked_at_again_once_it_is_found_out() -> None:
    settings = {"disputes": True, "canaries": 500_000, "audit_twice": 0}
    for seed in range(1, 9):
        world = World(seed, nodes=6, faults=0.0, settings=settings, special={1: {"blind": True}, 2: {"blind": True}})
        job, stored = await run_world(world, 2, 2)
        await check(world, job, stored)
        blind = {node.address for node in await everybody(world) if node.banned}
        assert blind <= {world.nodes[0].key.address, world.nodes[1].key.address}
        passed = [a for a in await read(world, Audit, job) if a.state == "passed" and not a.canary]
        places = {a.id: (a.epoch, a.round, a.stage, a.replica, a.step) for a in passed}
        approved = {places[a.id] for a in passed if {v.auditor for v in a.verdicts} <= blind}
        assert approved <= {places[a.id] for a in passed if not {v.auditor for v in a.verdicts} & blind}
        if blind and approved:
            return  # An honest auditor has looked at all of them.
    raise AssertionError("in no world did a blind auditor approve anything before it was found out")


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
async def test_the_model_is_finished_only_when_no_round_can_turn_out_to_be_forged_any_more(seed: int) -> None:
    world = World(seed, nodes=6, faults=0.0, settings={"canaries": 0})
    job, _ = await run_world(world, 2, 2)
    kinds = [event.kind for event in await read(world, EventRecord, job)]
    assert "audit" not in kinds[kinds.index("verifying") :]
