"""Arrays beside jobs that need all their seats at once: who waits is given what arrays can spare, and nothing is lost."""

from coordinator.domain.job import JobState
from coordinator.domain.lease import Lease
from coordinator.services.network.claims import CLAIM_S, LAPSE_S, Claims
from tests.coordinator.arrays.arrayed import IMAGE, ArrayWorld, truth
from tests.coordinator.arrays.test_array_jobs import check_books
from tests.coordinator.fakes import DATASET, spec
from tests.sim.world import SimClock


async def busy(nodes: int, **array: object) -> tuple[ArrayWorld, str]:
    """A world whose nodes all run elements of one array."""
    world = ArrayWorld()
    world.artifacts.kept[DATASET] = b"text"
    for number in range(1, nodes + 1):
        await world.come(number)
    job = await world.submit(world.document(400, **array))
    await turns(world, 20)
    assert held(world, job) == nodes
    return world, job


async def turns(world: ArrayWorld, count: int) -> None:
    for _ in range(count):
        await world.turn()


def held(world: ArrayWorld, job: str) -> int:
    return sum(lease.job == job for lease in world.parts.leases.live())


async def test_a_job_that_trains_gets_the_nodes_that_it_waits_for_from_an_array_that_goes_on() -> None:
    world, array = await busy(6)
    training = await world.submit(spec(2, 1))
    await turns(world, 40)
    assert (await world.stored(training)).state is JobState.PLANNED
    assert (held(world, training), held(world, array)) == (2, 4)
    done = len(await world.results(array))
    await turns(world, 40)
    assert len(await world.results(array)) > done, "it goes on with the others"
    assert sum(len(node.ran) for node in world.nodes) <= 2 * len(await world.results(array)) + 40
    await world.parts.jobs.cancel(training)
    await turns(world, 80)
    assert held(world, array) == 6, "and takes them back once they are free"
    assert (await world.until_over(array)).state == "settled"
    assert await world.results(array) == {index: truth(index) for index in range(400)}
    await check_books(world, array, world.nodes)


async def test_what_needs_more_than_its_share_begins_with_fewer_replicas() -> None:
    world, array = await busy(6)
    training = await world.submit(spec(1, 6))
    await turns(world, 200)
    assert (held(world, training), held(world, array)) == (3, 3)


async def test_an_array_keeps_as_many_owners_as_an_element_needs() -> None:
    world, array = await busy(4, owners=2)
    training = await world.submit(spec(3, 1))
    await turns(world, 100)
    assert (held(world, training), held(world, array)) == (0, 4), (
        "two are not enough, so they stay where they are of use"
    )
    await world.come(5)
    await turns(world, 60)
    assert (held(world, training), held(world, array)) == (3, 2)
    assert (await world.until_over(array)).state == "settled"


async def test_an_array_that_comes_later_leaves_free_nodes_to_who_waits_for_them() -> None:
    world, first = await busy(5)
    training = await world.submit(spec(3, 1))
    second = await world.submit(world.document(400))
    await turns(world, 80)
    assert held(world, training) == 3
    assert held(world, first) + held(world, second) == 2


async def test_the_seat_of_a_node_that_left_is_filled_from_an_array() -> None:
    world, array = await busy(6)
    training = await world.submit(spec(2, 1))
    await turns(world, 40)
    lost = next(node for node in world.nodes if node.lease is not None and node.lease.spec.array is None)
    await world.crash(lost)
    lost.up = False
    await turns(world, 300)
    assert held(world, training) == 2
    assert held(world, array) == 3


def test_a_claim_that_is_not_renewed_lapses_and_two_jobs_claim_no_node_twice() -> None:
    clock = SimClock()
    claims = Claims(clock)
    assert not claims.is_due("a"), "no array has anything"
    claims.lends("array", {"1", "2", "3"})
    claims.claim("a", {"1", "2"})
    assert claims.spare("b") == {"3"}
    assert claims.spare("a") == {"1", "2", "3"}
    assert not claims.is_due("a")
    clock.t += CLAIM_S
    assert claims.is_due("a")
    assert claims.renew("a", {"1", "2"})
    assert not claims.renew("a", {"1"}), "one of them is not to be had any more"
    clock.t += LAPSE_S
    assert claims.claimed() == set()
    claims.lends("array", None)
    assert claims.spare("a") == set()


def test_who_stands_by_for_another_job_can_be_claimed_and_who_has_a_seat_cannot() -> None:
    clock, leases = SimClock(), [lease("a", "1", None), lease("a", "2", 0), lease("b", "3", None)]
    claims = Claims(clock, lambda: [one for one in leases if one.seat is None])
    assert not claims.crowded, "nobody but a job that lacks something needs them"
    assert (claims.spare("a"), claims.spare("b"), claims.spare("c")) == ({"3"}, {"1"}, {"1", "3"})
    assert claims.is_due("c")
    claims.claim("c", {"1"})
    assert (claims.claimed(), claims.claimed("c"), claims.claimed("a")) == ({"1"}, set(), {"1"})
    assert claims.spare("b") == set(), "one job claims it"
    assert claims.share(3) == 3, "no array wants them"
    del leases[1:]
    clock.t += CLAIM_S
    assert not claims.is_due("a"), "only its own stands by"
    assert claims.renew("c", {"1"})
    claims.drop("c")
    assert claims.claimed() == set()


def lease(job: str, node: str, stage: int | None) -> Lease:
    return Lease(f"{job}{node}", job, node, "owner", 1, stage, stage, 0.0)


async def test_who_has_an_image_is_asked_first_to_run_it_again() -> None:
    world = ArrayWorld()
    other = world.artifacts.keep(IMAGE + b"other")
    for number in (1, 2):
        await world.come(number)
    first = await world.submit(world.document(10_000))
    await turns(world, 20)
    for number in (3, 4):
        await world.come(number)
    second = await world.submit(world.document(1, image=other))
    await world.until_over(second)
    await world.parts.jobs.cancel(first)
    await world.until_over(first)
    assert await nodes_of(world, second) == {3, 4}, "the others were busy"
    for image, nodes in ((other, {3, 4}), (world.artifacts.keep(IMAGE), {1, 2})):
        again = await world.submit(world.document(1, image=image))
        await world.until_over(again)
        assert await nodes_of(world, again) == nodes


async def nodes_of(world: ArrayWorld, job: str) -> set[int]:
    leased = {lease.node for lease in await world.leases(job)}
    return {node.number for node in world.nodes if node.node in leased}
