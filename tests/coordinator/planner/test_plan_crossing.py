"""What crosses between the stages of a plan where a job leaves it open: measured lines in, codecs and micro-batches out."""

import msgspec
import pytest

from coordinator.domain.job import Job as StoredJob
from coordinator.domain.network import NetworkMap
from coordinator.domain.placement import Candidate, Placement, choose, settle_crossing
from coordinator.domain.placement.crossing import Chosen, edge_of
from coordinator.domain.rounds.run import Run, training_of
from coordinator.store.ports import col
from coordinator.store.records import EventRecord, RunRecord
from protocol.job.job import CrossingPlan, JobSpec, TrainingSpec
from protocol.network import NetworkReport, PeerMeasure
from protocol.node import Assign
from protocol.rest.api import NewJob
from protocol.task import Layers
from tests.coordinator.bench import Bench
from tests.coordinator.fakes import spec
from tests.coordinator.planner.test_placement import SHAPE, node
from tests.coordinator.planner.test_plan_reasons import lines
from tests.sim.test_faults import check, gather_nodes, open_rows, read
from tests.sim.world import World

OPEN = TrainingSpec(tokens=10_000_000, sequence=256, batch=32, micro_batches=4, activations="auto")
NODES = [node(i, 1e12) for i in range(1, 4)]


def plan(nodes: list[Candidate], stages: int) -> Placement:
    return choose(SHAPE, OPEN, nodes, stages, len(nodes) // stages)


def settled(stages: int, network: NetworkMap | None, training: TrainingSpec = OPEN) -> Chosen | None:
    nodes = NODES[:stages]
    return settle_crossing(SHAPE, training, plan(nodes, stages), {n.node: n for n in nodes}, network)


def test_eight_bits_on_a_quick_line_and_four_both_ways_on_a_slow_one() -> None:
    quick = settled(2, lines({n.node: 1000.0 for n in NODES}, down=1000.0))
    slow = settled(2, lines({n.node: 8.0 for n in NODES}))
    assert quick is not None
    assert slow is not None
    assert quick.crossing.activations == "int8"
    assert (slow.crossing.activations, slow.crossing.boundary_gradients) == ("int4", "int4")
    assert quick.reason.startswith("between stages int8: a batch takes ")
    assert slow.reason.startswith("between stages int4: a batch takes ")


def test_a_codec_that_the_job_names_is_kept_with_everything_else() -> None:
    named = msgspec.structs.replace(OPEN, activations="int8")
    assert settled(2, lines({n.node: 8.0 for n in NODES}), named) is None
    assert training_of(None, named) == named


def test_a_long_way_puts_more_micro_batches_in_flight() -> None:
    far = NetworkMap()
    for one in NODES:
        peers = tuple(PeerMeasure(o.node, "host/host", 0.2, 0.0, 0.0, 0.0) for o in NODES if o != one)
        far.learn(one.node, NetworkReport(peers=peers), 0.0)
    near, long = settled(2, None), settled(2, far)
    assert near is not None
    assert long is not None
    assert long.crossing.lookahead > near.crossing.lookahead


def test_a_stage_between_two_others_sends_both_ways_over_its_one_line() -> None:
    network = lines({n.node: 20.0 for n in NODES})
    two = edge_of(SHAPE, OPEN, [4, 4], [NODES[:2]], network)
    three = edge_of(SHAPE, OPEN, [3, 3, 2], [NODES], network)
    assert two.bits_per_second == pytest.approx(20e6)
    assert three.bits_per_second == pytest.approx(10e6)


def test_the_slowest_machine_of_all_replicas_and_the_fewest_bytes_a_token_decide() -> None:
    slow = node(9, 1e11, memory_mb=2_000)
    edge = edge_of(SHAPE, OPEN, [4, 4], [[NODES[0], NODES[1]], [NODES[2], slow]])
    alone = edge_of(SHAPE, OPEN, [4, 4], [[NODES[0], NODES[1]]])
    assert edge.stage_seconds == pytest.approx(10 * alone.stage_seconds)
    assert edge.room < alone.room


def test_what_the_rule_cannot_fit_stays_as_the_document_has_it_and_says_why() -> None:
    cramped = [msgspec.structs.replace(n, memory_mb=601) for n in NODES[:2]]
    found = Placement((Layers(0, 4), Layers(4, 8)), {(s, 0): n.node for s, n in enumerate(cramped)})
    chosen = settle_crossing(SHAPE, OPEN, found, {n.node: n for n in cramped})
    assert chosen is not None
    assert chosen.crossing == CrossingPlan("int8", "auto", 4, 0, False)
    assert "shorter sequences" in chosen.reason


def test_what_was_settled_replaces_only_what_was_left_open() -> None:
    crossing = CrossingPlan("int4", "int4", 16, 3, True)
    run = Run((Layers(0, 8),), 1, total_steps=10, inner_steps=5, evaluate=(), crossing=crossing)
    applied = training_of(run, OPEN)
    assert CrossingPlan.of(applied) == crossing
    changed = {name for name in OPEN.__struct_fields__ if getattr(applied, name) != getattr(OPEN, name)}
    assert changed == set(CrossingPlan.__struct_fields__)


def test_a_spec_that_leaves_it_open_is_no_plan() -> None:
    with pytest.raises(msgspec.ValidationError):
        CrossingPlan.of(OPEN)


def open_job() -> JobSpec:
    document = spec()
    return msgspec.structs.replace(
        document, training=msgspec.structs.replace(document.training, activations="auto", tokens=20_480)
    )


async def test_workers_get_what_was_settled_the_document_stays_and_the_timeline_says_why() -> None:
    bench = Bench()
    job = await bench.job(open_job())
    async with bench.parts.desk.open(job) as work:
        await bench.parts.funding.queue_funding(work)
    assigned = await until_assigned(bench, job)
    async with bench.store.transaction() as tx:
        run = (await tx.find(RunRecord, col(RunRecord.job).equals(job)))[0].run
        events = [e.text for e in await tx.find(EventRecord, col(EventRecord.job).equals(job)) if e.kind == "crossing"]
    assert run.crossing is not None
    assert {CrossingPlan.of(assign.spec.training) for assign in assigned} == {run.crossing}
    assert (await bench.stored(job)).spec.training.activations == "auto", "the ledger has the document's digest"
    assert len(events) == 1
    assert "between stages int8" in events[0]


async def until_assigned(bench: Bench, job: str) -> list[Assign]:
    for _ in range(200):
        await bench.parts.lanes.drain()
        await bench.parts.upkeep.tick()
        found = [m for sent in bench.sent.values() for m in sent if isinstance(m, Assign) and m.job == job]
        if len(found) == 4:
            return found
        bench.clock.t += 0.5
        bench.fake.height += 1
    raise AssertionError("nobody was assigned")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(2))
async def test_whoever_joins_or_audits_after_crashes_does_the_steps_as_they_were_made(seed: int) -> None:
    world = World(seed, nodes=6)
    await gather_nodes(world)
    world.crashes = False
    parts = world.parts
    assert parts is not None
    job = (await parts.jobs.create(NewJob(open_job()))).id
    async with parts.desk.open(job) as work:
        await parts.funding.queue_funding(work)
    world.crashes, seen = True, set()
    for turn in range(30_000):
        if turn == 3_000:
            world.faults, world.crashes = 0.0, False
            for machine in world.nodes:
                machine.up, machine.away_until, machine.hung = True, 0.0, False
        await world.turn()
        seen |= {task.assign.spec.training for machine in world.nodes for task in machine.tasks.values()}
        (stored,) = await read(world, StoredJob, job)
        if stored.state in ("settled", "failed") and not await open_rows(world, job):
            break
    await check(world, job, stored)
    assert len(seen) == 1
    assert CrossingPlan.of(seen.pop())


async def test_workers_of_a_job_in_epochs_have_a_share_of_the_windows_each() -> None:
    bench = Bench()
    document = spec(1, 3)
    document = msgspec.structs.replace(document, training=msgspec.structs.replace(document.training, sampling="epochs"))
    job = await bench.job(document)
    async with bench.parts.desk.open(job) as work:
        await bench.parts.funding.queue_funding(work)
    assigned = await until_assigned(bench, job)
    assert {assign.spec.training.shares for assign in assigned} == {3}
    async with bench.store.transaction() as tx:
        run = (await tx.find(RunRecord, col(RunRecord.job).equals(job)))[0].run
    assert training_of(run, document.training).shares == 3, "auditors run steps again as they were made"
    assert (await bench.stored(job)).spec.training.shares is None
    old = msgspec.structs.replace(run, shares=None)
    assert training_of(old, document.training) == document.training, "runs that began before go on as they began"
