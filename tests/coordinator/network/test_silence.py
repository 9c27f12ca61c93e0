"""What counts as a node's silence, and what is the coordinator's own; who was silent is told so before another time costs."""

import msgspec

from coordinator.domain.audits.trust import Audit
from coordinator.domain.lease import Lease
from coordinator.services.network.nodes import NodeSession
from coordinator.store.memory import MemoryStore
from coordinator.store.records import NodeRecord
from protocol.node import HeldLease, Unanswered
from protocol.task import EVASION_AGAIN_S
from tests.coordinator import bench as benches
from tests.coordinator.audits.test_trust import AUDIT
from tests.coordinator.bench import CONFIG, Bench

NODE = 9
HELD = (HeldLease("held", 1),)


def attend(bench: Bench, seconds: float) -> None:
    """Time passes in which the coordinator listens."""
    until = bench.clock.t + seconds
    while bench.clock.t < until:
        bench.clock.t += min(1.0, until - bench.clock.t)
        bench.parts.leases.expired()


async def asked(bench: Bench) -> NodeSession:
    """A node that is here, and has just been asked to open a step."""
    job, session = await bench.job(), await bench.enter(NODE)
    attend(bench, 2 * CONFIG.lease_seconds)
    lease = Lease("held", job, session.node, session.payout, 1, 0, 0, bench.clock.t, "ready", seq=1)
    async with bench.store.transaction() as tx:
        await tx.insert(lease)
        await tx.insert(benches._round(job, AUDIT.round))
    async with bench.parts.desk.open(job) as work:
        deadline = work.now + CONFIG.audit_seconds
        own = {"job": job, "lease": "held", "node": session.node, "deadline": deadline}
        work.audits[AUDIT.id] = msgspec.structs.replace(AUDIT, **own)
    return session


async def looked(bench: Bench) -> Audit:
    """The audit after the coordinator has looked at the job once more."""
    async with bench.store.transaction() as tx:
        (audit,) = await tx.find(Audit)
    async with bench.parts.desk.open(audit.job) as work:
        await bench.parts.runs._verification.advance(work)
    async with bench.store.transaction() as tx:
        return await tx.get(Audit, audit.id)


def told(bench: Bench, node: str) -> list[float]:
    return [message.at for message in bench.sent[node] if isinstance(message, Unanswered)]


async def test_who_is_here_and_says_nothing_until_the_deadline_was_silent_and_is_told() -> None:
    bench = Bench()
    session = await asked(bench)
    attend(bench, CONFIG.audit_seconds)
    assert (await looked(bench)).state == "opening"
    attend(bench, 1.0)
    assert (await looked(bench)).blame == "refused"
    assert told(bench, session.node) == [bench.clock.t]


async def test_a_coordinator_that_stood_still_over_the_deadline_calls_nobody_silent() -> None:
    for stood in (30.0, 10 * CONFIG.audit_seconds):
        bench = Bench()
        session = await asked(bench)
        attend(bench, CONFIG.audit_seconds - 20.0)
        bench.clock.t += stood
        assert (await looked(bench)).state == "opening", "its answer may have been on its way all the time"
        attend(bench, min(stood, CONFIG.audit_seconds) - 1.0)
        assert (await looked(bench)).state == "opening"
        attend(bench, 2.0)
        assert (await looked(bench)).blame == "refused", "by then it would have come"
        assert told(bench, session.node) == [bench.clock.t]


async def test_who_was_cut_off_at_the_deadline_has_left_and_was_not_silent() -> None:
    bench = Bench()
    session = await asked(bench)
    bench.parts.nodes.leave(session)
    assert (await looked(bench)).away == bench.clock.t
    attend(bench, CONFIG.audit_seconds + 1.0)
    assert (await looked(bench)).state == "opening", "its time stands still"
    attend(bench, CONFIG.return_seconds)
    assert (await looked(bench)).blame == "gone"
    again = await bench.enter(NODE, HELD)
    assert told(bench, again.node) == []


async def test_who_has_just_come_back_may_say_again_what_was_lost_but_not_for_ever() -> None:
    bench = Bench()
    session = await asked(bench)
    attend(bench, CONFIG.audit_seconds - 1.0)
    bench.parts.nodes.leave(session)
    await bench.enter(NODE, HELD)
    attend(bench, 2.0)
    assert (await looked(bench)).state == "opening"
    attend(bench, CONFIG.lease_seconds)
    assert (await looked(bench)).blame == "refused"

    bench = Bench()
    session = await asked(bench)
    for _ in range(int(2 * CONFIG.audit_seconds / 5) + 1):  # As if what it says were lost each time.
        bench.parts.nodes.leave(session)
        session = await bench.enter(NODE, HELD)
        attend(bench, 5.0)
    assert (await looked(bench)).blame == "refused"


async def test_who_was_silent_hears_it_at_each_connection_also_of_the_next_coordinator_for_a_month() -> None:
    store = MemoryStore()
    bench = Bench(store=store)
    session = await asked(bench)
    attend(bench, CONFIG.audit_seconds + 1.0)
    await looked(bench)
    at = bench.clock.t
    after = Bench(store=store)
    await after.parts.nodes.recover()
    after.clock.t = at + EVASION_AGAIN_S - 1.0
    await after.enter(NODE, HELD)
    assert told(after, session.node) == [at]
    kinds = [type(message) for message in after.sent[session.node]]
    assert kinds.index(Unanswered) == 1, "nothing but the welcome comes before it"
    after.clock.t = at + EVASION_AGAIN_S + 1.0
    await after.enter(NODE, HELD)
    assert told(after, session.node) == [at], "a month later it is a first time again"
    async with store.transaction() as tx:
        assert (await tx.get(NodeRecord, session.node)).evaded == at
