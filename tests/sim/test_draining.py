"""A node that its operator drains: it keeps its seat until another can take it, gets no new one, and has no harm from it."""

from coordinator.domain.account import LOCAL_PRINCIPAL
from coordinator.domain.job import Job as StoredJob
from coordinator.domain.lease import Lease
from coordinator.services.operation.ports import OrderedBy
from coordinator.store.records import NodeRecord, RoundRecord
from protocol.rest.admin import NodeOrder
from tests.coordinator.fakes import spec
from tests.sim.test_everybody_leaves import calm, seats, to_the_end, until_rounds
from tests.sim.test_faults import check, gather_nodes, read, submit
from tests.sim.world import World

SHORT = spec(2, 2, tokens=12 * 512)  # Six rounds.
BY = OrderedBy(LOCAL_PRINCIPAL, "session", "127.0.0.1")


async def order(world: World, node: str, word: NodeOrder, reason: str = "a new fan") -> None:
    assert world.parts is not None
    await world.parts.operation.order(node, word, reason, BY)


async def of(world: World, job: str, node: str) -> list[Lease]:
    return [lease for lease in await read(world, Lease, job) if lease.node == node]


async def test_its_seat_goes_to_another_between_two_rounds_and_its_work_stays_paid() -> None:
    world = calm(5, nodes=6)
    await gather_nodes(world)
    job = await submit(world, 2, 2, SHORT)
    await until_rounds(world, job, 2)
    leaving = next(iter(await seats(world, job)))
    await order(world, leaving, "drain")
    stored: StoredJob = await to_the_end(world, job)
    await check(world, job, stored)
    mine = [lease for lease in await of(world, job, leaving) if lease.seat]
    assert [(lease.end, lease.reason) for lease in mine] == [
        ("replaced", "the operator drains it: another node takes the seat")
    ], "once, and never again"
    assert all(record.state == "complete" for record in await read(world, RoundRecord, job)), "no round was broken off"
    node = next(node for node in world.nodes if node.key.address == leaving)
    assert world.chain.wallets.get(node.payout, 0) > 0
    async with world.records.transaction() as tx:
        record = await tx.get(NodeRecord, leaving)
    assert (record.faults, record.banned) == (0, False)
    assert record.rounds > 0, "what it has done counts for it"


async def test_with_nobody_to_take_its_seat_it_keeps_it_through_a_restart_and_gets_none_in_the_next_job() -> None:
    world = calm(6, nodes=4)
    await gather_nodes(world)
    job = await submit(world, 2, 2, SHORT)
    await until_rounds(world, job, 2)
    draining = sorted(await seats(world, job))[0]
    await order(world, draining, "drain")
    for node in world.nodes:
        node.cut()
    world.parts = None
    await gather_nodes(world)
    assert world.parts is not None
    assert world.parts.nodes.is_draining(draining), "the coordinator that begins anew knows"
    await to_the_end(world, job)
    assert [lease.end for lease in await of(world, job, draining) if lease.seat] == ["stopped"]
    following = await submit(world, 2, 1, spec(2, 1, tokens=4 * 512))
    await to_the_end(world, following)
    assert await of(world, following, draining) == []
    await order(world, draining, "undrain")
    assert draining in {candidate.node for candidate in world.parts.nodes.candidates()}


async def test_a_spare_that_drains_stands_by_no_more() -> None:
    world = calm(7, nodes=6)
    await gather_nodes(world)
    job = await submit(world, 2, 2, SHORT)
    await until_rounds(world, job, 1)
    assert world.parts is not None
    spare = next(lease for lease in world.parts.leases.live() if lease.seat is None)
    await order(world, spare.node, "drain")
    await until_rounds(world, job, 4)
    (ended,) = [lease for lease in await of(world, job, spare.node) if lease.granted >= spare.granted]
    assert (ended.end, ended.reason) == ("replaced", "the operator drains it")


async def test_when_everybody_drains_the_job_goes_on_with_those_that_it_has() -> None:
    world = calm(8, nodes=4)
    await gather_nodes(world)
    job = await submit(world, 2, 2, SHORT)
    await until_rounds(world, job, 1)
    for node in await seats(world, job):
        await order(world, node, "drain")
    stored: StoredJob = await to_the_end(world, job)
    await check(world, job, stored)
    assert {lease.end for lease in await read(world, Lease, job)} == {"stopped"}


async def test_a_ban_takes_no_stake_and_nothing_that_was_verified_and_the_job_goes_on() -> None:
    world = calm(9, nodes=6)
    await gather_nodes(world)
    job = await submit(world, 2, 2, SHORT)
    await until_rounds(world, job, 3)
    gone = sorted(await seats(world, job))[0]
    assert world.parts is not None
    verified = sum(one.verified for one in await world.parts.jobs.nodes(job) if one.node == gone)
    await order(world, gone, "ban", "its owner resells it")
    stored: StoredJob = await to_the_end(world, job)
    await check(world, job, stored)
    assert world.chain.stakes[gone] == 1_000_000
    paid = sum(one.paid for one in await world.parts.jobs.nodes(job) if one.node == gone)
    assert paid >= verified > 0
    assert all(lease.state == "ended" for lease in await of(world, job, gone))
    assert world.parts.nodes.session(gone) is None
