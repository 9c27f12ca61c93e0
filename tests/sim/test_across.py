"""A node that is alone in its environment class is looked at by machines of others, which can only lower its trust."""

from coordinator.domain.audits.rate import AFAR
from coordinator.domain.audits.sampling import WHOLE
from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import Job, JobState
from coordinator.store.ports import col
from coordinator.store.records import CommitRecord, CreditRecord, EventRecord, NodeRecord, RoundRecord
from tests.sim.test_draws import everybody
from tests.sim.test_faults import check, read, run_world
from tests.sim.world import World

ALONE = 7


async def credits_of(world: World, node: str) -> list[CreditRecord]:
    """What a node's verified work is worth, by account."""
    async with world.records.transaction() as tx:
        return await tx.find(CreditRecord, col(CreditRecord.node).equals(node))


async def beside_others(**odd: object) -> tuple[World, str, Job, NodeRecord, list[Audit]]:
    """A job that a node of another class takes part in; its record at the end, and the audits of its inner steps."""
    world = World(2, nodes=7, faults=0.0, special={ALONE: {"env_class": "gpu", "flops": 1e10, **odd}})
    job, stored = await run_world(world, 2, 2)
    await check(world, job, stored)
    address = world.nodes[ALONE - 1].key.address
    record = next(node for node in await everybody(world) if node.address == address)
    audits = [a for a in await read(world, Audit, job) if a.node == address and a.outer is None and not a.canary]
    return world, job, stored, record, audits


async def test_honest_work_of_a_class_with_one_owner_is_looked_at_from_afar_and_its_rate_falls_a_little() -> None:
    world, job, stored, record, audits = await beside_others()
    assert stored.state is JobState.SETTLED
    looked = [audit for audit in audits if audit.verdicts]
    assert looked
    assert world.peers.across >= len(looked)
    assert {(audit.state, audit.across, audit.ending) for audit in looked} == {("passed", True, True)}
    assert all("across environment classes" in verdict.detail for audit in looked for verdict in audit.verdicts)
    assert (record.faults, record.banned) == (0, False)
    (credit,) = await credits_of(world, record.address)
    commits: list[CommitRecord] = await read(world, CommitRecord, job)
    earned = [c for c in commits if c.node == record.address and c.state == "verified"]
    seen = {audit.round for audit in looked}
    assert credit.amount == sum(c.amount // AFAR if c.round in seen else c.amount for c in earned)
    assert not credit.exact
    beacons = {r.number: r.beacon for r in await read(world, RoundRecord, job) if r.beacon}
    rates = [beacon.rates[-1] for beacon in beacons.values()]
    assert min(rates) >= WHOLE // 2, "whom nobody has seen bit for bit is never drawn less than every other time"
    assert world.chain.slashed == {}
    others = [a for a in await read(world, Audit, job) if a.node != record.address and a.outer is None]
    assert not any(audit.ending or audit.across for audit in others), "the others have their like"


async def test_a_liar_that_is_alone_in_its_class_loses_trust_and_nothing_else() -> None:
    world, job, stored, record, audits = await beside_others(lie="skips")
    assert stored.state is JobState.SETTLED
    found = [audit for audit in audits if audit.verdicts]
    assert found
    assert {(audit.state, audit.blame, audit.across) for audit in found} == {("void", "distant", True)}
    assert (record.faults, record.banned, record.stake > 0) == (len(found), False, True)
    assert record.rounds <= 20 - max(audit.round for audit in found), "its standing began anew"
    assert world.chain.slashed == {}
    commits: list[CommitRecord] = await read(world, CommitRecord, job)
    assert {c.state for c in commits if c.node == record.address and c.drawable} == {"verified"}
    lines = [event.text for event in await read(world, EventRecord, job) if "another class came to" in event.text]
    assert len(lines) == len(found)
    assert all("only raises its rate" in line for line in lines)
