"""A node that may not lend any more while it works: as with one that drains, nothing is broken off, and then it leaves."""

from pathlib import Path

from coordinator.domain.job import Job as StoredJob
from coordinator.domain.lease import Lease
from coordinator.store.records import NodeRecord, RoundRecord
from protocol.node import Refused
from tests.coordinator.fakes import spec
from tests.coordinator.network.test_lenders import written
from tests.sim.test_draining import SHORT, of
from tests.sim.test_everybody_leaves import seats, to_the_end, until_rounds
from tests.sim.test_faults import check, gather_nodes, read, submit
from tests.sim.world import SimNode, World


def private(seed: int, nodes: int, folder: Path) -> World:
    """A world whose list names everybody."""
    settings = {"stall_seconds": 90.0, "who_may_lend": "listed", "lenders": folder / "lenders.txt"}
    world = World(seed, nodes=nodes, faults=0.0, settings=settings)
    world.crashes = False
    strike(world, folder)
    return world


def strike(world: World, folder: Path, *gone: str) -> None:
    """Take these off the list."""
    written(folder, "".join(f"node {one.key.address}\n" for one in world.nodes if one.key.address not in gone))


async def part(world: World) -> None:
    assert world.parts is not None
    for _ in range(2):  # The list counts once it is the same at two looks.
        await world.parts.nodes.part()


def by(world: World, node: str) -> SimNode:
    return next(one for one in world.nodes if one.key.address == node)


async def test_its_seat_goes_to_another_between_two_rounds_its_work_stays_paid_and_it_is_told_why(
    tmp_path: Path,
) -> None:
    world = private(5, 6, tmp_path)
    await gather_nodes(world)
    job = await submit(world, 2, 2, SHORT)
    await until_rounds(world, job, 2)
    leaving = next(iter(await seats(world, job)))
    strike(world, tmp_path, leaving)
    await part(world)
    assert world.parts is not None
    assert world.parts.nodes.session(leaving) is not None, "it works on until somebody has its seat"
    assert leaving not in {one.node for one in world.parts.nodes.candidates()}
    told: list[object] = []
    session = world.parts.nodes.session(leaving)
    assert session is not None
    before = session.send
    session.send = lambda message: (told.append(message), before(message))[1]
    stored: StoredJob = await to_the_end(world, job)
    await check(world, job, stored)
    (mine,) = [lease for lease in await of(world, job, leaving) if lease.seat]
    assert (mine.end, mine.reason) == ("replaced", "it may not lend here any more: another node takes the seat")
    assert all(record.state == "complete" for record in await read(world, RoundRecord, job)), "no round was broken off"
    await part(world)
    assert world.parts.nodes.session(leaving) is None
    (refused,) = [message for message in told if isinstance(message, Refused)]
    assert "only computers on this network's list" in refused.reason
    assert world.chain.wallets.get(by(world, leaving).payout, 0) > 0
    async with world.records.transaction() as tx:
        record = await tx.get(NodeRecord, leaving)
    assert (record.faults, record.banned, record.evaded) == (0, False, 0.0)


async def test_with_nobody_to_take_its_seat_it_works_to_the_end_also_through_a_restart(tmp_path: Path) -> None:
    world = private(6, 4, tmp_path)
    await gather_nodes(world)
    job = await submit(world, 2, 2, SHORT)
    await until_rounds(world, job, 2)
    leaving = sorted(await seats(world, job))[0]
    strike(world, tmp_path, leaving)
    await part(world)
    for node in world.nodes:
        node.cut()
    world.parts = None
    await gather_nodes(world)
    await to_the_end(world, job)
    assert [lease.end for lease in await of(world, job, leaving) if lease.seat] == ["stopped"]
    await part(world)
    assert world.parts is not None
    assert world.parts.nodes.session(leaving) is None, "then it goes"
    following = await submit(world, 2, 1, spec(2, 1, tokens=4 * 512))
    await to_the_end(world, following)
    assert leaving not in {lease.node for lease in await read(world, Lease, following)}
