"""A node that only stands by for a job goes to another one that waits for it, and the job that lent it goes on."""

from collections import Counter
from contextlib import suppress

import msgspec
import pytest

from coordinator.domain.job import Job as StoredJob
from coordinator.domain.job import JobState
from coordinator.domain.lease import Lease
from coordinator.errors import ConflictError
from coordinator.store.records import CommitRecord, RoundRecord
from protocol.job.job import JobSpec, ModelSpec, ServeSpec
from tests.coordinator.fakes import BUDGET, spec
from tests.sim.federated.test_federations import document, join
from tests.sim.test_everybody_leaves import calm, to_the_end, until_rounds
from tests.sim.test_faults import TURNS_TO_END, check_conduct, gather_nodes, open_rows, read, submit
from tests.sim.world import World
from tests.support.seeds import seeds

LENT = "another job waits for it"
SOON = 600  # Turns; of 0.04 s each on average.


def deployment(trained: str, stages: int = 1, replicas: int = 1) -> JobSpec:
    """A document whose nodes answer with the model of a job that is done."""
    serve = ServeSpec(replicas, stages=stages)
    return JobSpec("answers", ModelSpec(from_job=trained), BUDGET, deadline_hours=8.0, serve=serve)


async def held(world: World, job: str) -> list[Lease]:
    """Live leases of a job."""
    return [lease for lease in await read(world, Lease, job) if lease.state != "ended"]


async def spare(world: World, job: str) -> Lease:
    """The node that stands by for a job, once there is one."""
    for _ in range(SOON):
        await world.turn()
        if found := [lease for lease in await held(world, job) if lease.seat is None]:
            return found[0]
    raise AssertionError("nobody stands by")


async def until_held(world: World, job: str, seats: int) -> list[Lease]:
    for _ in range(SOON):
        await world.turn()
        if len(found := [lease for lease in await held(world, job) if lease.seat]) == seats:
            return found
    raise AssertionError(f"{len(found)} seats of {seats} are held")


async def both_over(world: World, job: str, other: str) -> None:
    """A job that trains comes to its end; the other one is stopped, and all money is where it belongs."""
    stored = await to_the_end(world, job)
    parts = world.parts or await world.start()
    with suppress(ConflictError):  # It is over already.
        await parts.jobs.cancel(other)
    for _ in range(TURNS_TO_END):
        await world.turn()
        if world.chain.escrows[other].ended and not await open_rows(world, other):
            break
    await check(world, job, stored)


async def check(world: World, job: str, stored: StoredJob) -> None:
    """A job has done each round once and paid what was verified, whatever other jobs there were."""
    assert world.peers.violations == []
    await check_conduct(world, job)
    complete = Counter(one.number for one in await read(world, RoundRecord, job) if one.state == "complete")
    assert sorted(complete) == list(range(stored.rounds_done + 1))
    escrow, due = world.chain.escrows[job], Counter[str]()
    for commit in await read(world, CommitRecord, job):
        assert commit.state != "pending"
        due[commit.payout] += commit.amount if commit.state == "verified" else 0
    assert (+due, escrow.balance) == (+Counter(escrow.paid), 0)
    assert sum(escrow.paid.values()) + escrow.refunded == escrow.deposited
    assert sum(world.chain.wallets.values()) == 1_000_000_000, "no unit was made or lost"


async def small_model(world: World) -> str:
    """A job that is done."""
    job = await submit(world, 1, 1, spec(1, 1, tokens=2 * 512))
    await to_the_end(world, job)
    return job


async def begun(world: World, rounds: int = 20) -> tuple[str, str, Lease]:
    """A model to deploy; a job that trains on four nodes, and the fifth, which stands by for it."""
    await gather_nodes(world)
    trained = await small_model(world)
    job = await submit(world, 2, 2, spec(2, 2, tokens=rounds * 1024))
    await until_rounds(world, job, 1)
    return trained, job, await spare(world, job)


@pytest.mark.parametrize("seed", seeds(2, of=12))
async def test_a_deployment_begins_with_a_spare_of_a_job_that_trains_on(seed: int) -> None:
    world = calm(seed, nodes=5)
    trained, job, standing_by = await begun(world)
    answers = await submit(world, 1, 1, deployment(trained))
    (seat,) = await until_held(world, answers, 1)
    assert seat.node == standing_by.node
    (ended,) = [lease for lease in await read(world, Lease, job) if lease.id == standing_by.id]
    assert (ended.end, ended.reason) == ("replaced", LENT)
    await to_the_end(world, job)
    assert [lease.id for lease in await held(world, answers)] == [seat.id], "it is not taken back"
    await both_over(world, job, answers)
    assert not [lease for lease in await read(world, Lease, job) if lease.granted > ended.granted], "nor asked again"


async def test_a_deployment_gives_the_node_back_and_it_stands_by_again() -> None:
    world = calm(3, nodes=5)
    trained, job, standing_by = await begun(world, 40)
    answers = await submit(world, 1, 1, deployment(trained))
    await until_held(world, answers, 1)
    assert world.parts is not None
    await world.parts.jobs.cancel(answers)
    assert (await spare(world, job)).node == standing_by.node


async def test_a_seat_that_is_lost_takes_the_spare_before_another_job_does() -> None:
    world = calm(4, nodes=5)
    trained, job, standing_by = await begun(world)
    lost = next(lease for lease in await held(world, job) if lease.seat)
    node = next(node for node in world.nodes if node.key.address == lost.node)
    answers = await submit(world, 1, 1, deployment(trained))
    world._leave(node)
    node.forget()
    node.up, node.away_until = False, float("inf")
    assert world.parts is not None
    world.parts.leases.expire([lost.id])
    while lost.id in {lease.id for lease in await held(world, job)}:
        await world.turn()
    seats = await until_held(world, job, 4)
    assert standing_by.node in {lease.node for lease in seats}
    assert await held(world, answers) == []
    await to_the_end(world, job)
    await until_held(world, answers, 1)
    await both_over(world, job, answers)


async def test_a_second_job_that_trains_begins_with_the_spare_of_the_first() -> None:
    world = calm(5, nodes=3)
    await gather_nodes(world)
    first = await submit(world, 2, 1, spec(2, 1, tokens=20 * 512))
    await until_rounds(world, first, 1)
    standing_by = await spare(world, first)
    second = await submit(world, 1, 1, spec(1, 1, tokens=4 * 512))
    (seat,) = await until_held(world, second, 1)
    assert seat.node == standing_by.node
    ends = [await to_the_end(world, job) for job in (first, second)]
    for stored in ends:
        await check(world, stored.id, stored)


async def test_the_seat_of_a_node_that_left_is_filled_with_the_spare_of_another_job() -> None:
    world = calm(6, nodes=5)
    await gather_nodes(world)
    first = await submit(world, 2, 1, spec(2, 1, tokens=20 * 512))
    await until_rounds(world, first, 1)
    standing_by = await spare(world, first)
    second = await submit(world, 2, 1, spec(2, 1, tokens=20 * 512))
    await until_held(world, second, 2)
    lost = next(lease for lease in await held(world, second) if lease.seat)
    node = next(node for node in world.nodes if node.key.address == lost.node)
    world._leave(node)
    node.forget()
    node.up, node.away_until = False, float("inf")
    ends = [await to_the_end(world, job) for job in (first, second)]
    for stored in ends:
        await check(world, stored.id, stored)
    assert standing_by.node in {lease.node for lease in await read(world, Lease, second)}


async def test_an_owner_whose_node_stands_by_elsewhere_takes_part_in_a_federated_job() -> None:
    world = calm(8, nodes=4)
    await gather_nodes(world)
    job = await submit(world, 2, 1, spec(2, 1, tokens=20 * 512))
    await until_rounds(world, job, 1)
    standing_by = await spare(world, job)
    busy = {lease.node for lease in await held(world, job) if lease.seat}
    owners = [node for node in world.nodes if node.key.address not in busy]
    federated = await submit(world, 1, 2, document(owners, None))
    await join(world, federated, owners)
    seats = await until_held(world, federated, 2)
    assert standing_by.node in {lease.node for lease in seats}
    await both_over(world, job, federated)


async def test_a_lost_stage_of_a_deployment_is_filled_with_the_spare_of_a_job_that_trains() -> None:
    world = calm(7, nodes=5)
    await gather_nodes(world)
    trained = await small_model(world)
    answers = await submit(world, 1, 1, deployment(trained, stages=2))
    seats = await until_held(world, answers, 2)
    job = await submit(world, 2, 1, spec(2, 1, tokens=40 * 512))
    await until_rounds(world, job, 1)
    standing_by = await spare(world, job)
    gone = next(node for node in world.nodes if node.key.address == seats[0].node)
    world._leave(gone)
    gone.forget()
    gone.up, gone.away_until = False, float("inf")
    for _ in range(SOON):
        await world.turn()
        if standing_by.node in {lease.node for lease in await held(world, answers)}:
            break
    assert {lease.node for lease in await held(world, answers)} == {seats[1].node, standing_by.node}
    await both_over(world, job, answers)


@pytest.mark.parametrize("seed", seeds(3, of=40))
async def test_whatever_happens_both_have_their_nodes_in_the_end(seed: int) -> None:
    world = World(seed, nodes=5, faults=0.0)
    world.crashes = False
    trained, job, _ = await begun(world)
    answers = await submit(world, 1, 1, deployment(trained))
    world.faults, world.crashes = 1.0, True
    for _ in range(2_000):
        await world.turn()
    world.faults, world.crashes = 0.0, False
    for node in world.nodes:
        node.up, node.away_until, node.hung, node.accepting, node.careless = True, 0.0, False, True, True
    parts = world.parts or await world.start()
    for _ in [node for node in world.nodes if parts.nodes.is_banned(node.key.address)]:
        world.join()
    for _ in range(TURNS_TO_END):
        await world.turn()
        stored: StoredJob = (await read(world, StoredJob, job))[0]
        if stored.state is JobState.SETTLED and not await open_rows(world, job):
            break
    await until_held(world, answers, 1)
    await both_over(world, job, answers)


async def test_who_looks_at_a_liar_stays_whoever_else_waits() -> None:
    world = World(5, nodes=3, faults=0.0, settings={"stall_seconds": 90.0}, special={3: {"lie": "root"}})
    world.crashes = False
    await gather_nodes(world)
    job = await submit(world, 1, 1, spec(1, 1, tokens=20 * 512))
    await spare(world, job)
    for _ in range(2):
        await submit(world, 1, 1, spec(1, 1, tokens=40 * 512))
    await to_the_end(world, job)
    assert world.chain.slashed, "the lie was found, and cost stake"


async def test_a_plan_that_nobody_could_look_at_takes_no_spare() -> None:
    world = World(5, nodes=3, faults=0.0, operators=(3,), settings={"stall_seconds": 90.0})
    world.crashes = False
    await gather_nodes(world)
    job = await submit(world, 1, 1, spec(1, 1, tokens=400 * 512))
    await spare(world, job)
    await submit(world, 1, 1, spec(1, 1, tokens=4 * 512))
    assert world.parts is not None
    own = world.nodes[2].key.address
    session = world.parts.nodes.session(own)
    assert session is not None
    session.profile = msgspec.structs.replace(session.profile, flops=0.001)
    for _ in range(SOON):
        await world.turn()
    lent = [one for one in await read(world, Lease, job) if one.seat is None and one.node != own]
    assert [one.reason for one in lent] == [""]


async def test_a_federation_that_cannot_begin_claims_nobody() -> None:
    world = calm(8, nodes=4)
    await gather_nodes(world)
    job = await submit(world, 2, 1, spec(2, 1, tokens=200 * 512))
    await until_rounds(world, job, 1)
    standing = await spare(world, job)
    owner = next(one for one in world.nodes if one.key.address == standing.node)
    owners = [owner, *[one for one in world.nodes if one is not owner][:2]]
    federated = await submit(world, 1, 3, document(owners, None, least=3))
    await join(world, federated, [owner])
    for _ in range(SOON):
        await world.turn()
    assert world.parts is not None
    assert not world.parts.nodes.claims.claimed()
    assert standing.id in {one.id for one in await held(world, job)}


async def test_spares_of_a_job_that_waits_for_its_auditor_alone_are_lent() -> None:
    world = World(5, nodes=4, faults=0.0, operators=(4,), settings={"stall_seconds": 90.0})
    world.crashes = False
    await gather_nodes(world)
    auditor = world.nodes[3]
    job = await submit(world, 1, 1, spec(1, 1, tokens=4 * 512))
    await spare(world, job)
    world._leave(auditor)
    auditor.forget()
    auditor.up, auditor.away_until = False, float("inf")
    for _ in range(10 * SOON):
        await world.turn()
        if (await read(world, StoredJob, job))[0].rounds_done >= 4:
            break
    second = await submit(world, 1, 1, spec(1, 1, tokens=4 * 512))
    assert len(await until_held(world, second, 1)) == 1
