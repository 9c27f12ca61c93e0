"""A node that takes its stake back while it works: what follows for its seat, its rate, its spare, and what was paid."""

from dataclasses import replace

import pytest

from coordinator.domain.account import LOCAL_ACCOUNT
from coordinator.domain.audits.sampling import WHOLE
from coordinator.domain.job import Job as StoredJob
from coordinator.domain.lease import Lease
from coordinator.store.records import CreditRecord, EventRecord, NodeRecord, RoundRecord
from tests.coordinator.fakes import spec
from tests.sim.test_everybody_leaves import calm, seats, to_the_end, until_rounds
from tests.sim.test_faults import check, gather_nodes, read, submit
from tests.sim.world import World

STAKE = 1_000_000
LONG = spec(2, 2, tokens=24 * 512)  # Twelve rounds.


async def rates_of(world: World, job: str, node: str) -> dict[int, int]:
    """The rate of each complete round that a node was in."""
    found: dict[int, int] = {}
    for record in await read(world, RoundRecord, job):
        if record.state == "complete" and record.beacon is not None and record.beacon.rates:
            members = sorted(record.plan.members, key=lambda member: (member.replica, member.stage))
            rates = dict(zip((member.node for member in members), record.beacon.rates, strict=True))
            if node in rates:
                found[record.number] = rates[node]
    return found


async def settle_looks(world: World) -> None:
    """Time for a look."""
    for _ in range(1_500):
        await world.turn()


@pytest.mark.parametrize("part", [1, STAKE])
async def test_its_seat_goes_to_another_between_two_rounds_and_its_work_stays_paid(part: int) -> None:
    world = calm(5, nodes=6)
    world.config = replace(world.config, min_stake=STAKE)
    await gather_nodes(world)
    job = await submit(world, 2, 2, LONG)
    await until_rounds(world, job, 2)
    leaving = next(iter(await seats(world, job)))
    world.chain.requested[leaving] = part
    await settle_looks(world)
    stored: StoredJob = await to_the_end(world, job)
    await check(world, job, stored)
    assert leaving not in {lease.node for lease in await read(world, Lease, job) if lease.end == "failed"}
    mine = [lease for lease in await read(world, Lease, job) if lease.node == leaving and lease.seat]
    assert [lease.end for lease in mine] == ["replaced"], "once, and never again"
    assert "stake" in mine[0].reason
    assert any(event.kind == "stake" and leaving in event.text for event in await read(world, EventRecord, job))
    assert all(record.state == "complete" for record in await read(world, RoundRecord, job)), "no round was broken off"
    node = next(node for node in world.nodes if node.key.address == leaving)
    assert world.chain.wallets.get(node.payout, 0) > 0


async def test_with_nobody_to_take_its_seat_it_stays_and_is_looked_at_more() -> None:
    world = calm(6, nodes=4)
    await gather_nodes(world)
    async with world.records.transaction() as tx:
        for record in await tx.find(NodeRecord):  # Known for long, so that conduct asks for little.
            await tx.insert(CreditRecord(record.address, LOCAL_ACCOUNT, watched=False, amount=10**12, exact=True))
    job = await submit(world, 2, 2, LONG)
    await until_rounds(world, job, 2)
    leaving = sorted(await seats(world, job))[0]
    world.chain.requested[leaving] = STAKE
    asked_at = (await read(world, StoredJob, job))[0].rounds_done
    await to_the_end(world, job)
    mine = [lease for lease in await read(world, Lease, job) if lease.node == leaving]
    assert [lease.end for lease in mine] == ["stopped"], "to the job's end"
    rates = await rates_of(world, job, leaving)
    before = max(rate for number, rate in rates.items() if number < asked_at)
    after = [rate for number, rate in rates.items() if number > asked_at + 1]
    assert after, "it went on"
    assert min(after) > 4 * before, "the rate follows what can still be taken"
    assert max(after) == WHOLE


async def test_a_spare_without_stake_stands_by_no_more() -> None:
    world = calm(7, nodes=6)
    await gather_nodes(world)
    job = await submit(world, 2, 2, LONG)
    await until_rounds(world, job, 1)
    assert world.parts is not None
    spare = next(lease for lease in world.parts.leases._live.values() if lease.seat is None)
    del world.chain.stakes[spare.node]
    await settle_looks(world)
    ended = next(lease for lease in await read(world, Lease, job) if lease.id == spare.id)
    assert ended.state == "ended"
    assert "stake" in ended.reason
    later = [
        lease for lease in await read(world, Lease, job) if lease.node == spare.node and lease.granted > spare.granted
    ]
    assert later == []
