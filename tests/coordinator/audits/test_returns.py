"""A machine whose lease ran out comes back with its worker: it is asked what was drawn of it, and then let go."""

from dataclasses import replace

import msgspec
import pytest

from coordinator.domain.audits.trust import Audit
from coordinator.domain.lease import Lease
from coordinator.errors import GoneError, NotFoundError
from coordinator.services.network.nodes import NodeSession
from coordinator.store.memory import MemoryStore
from protocol.artifacts import audit_answer
from protocol.node import Acknowledged, Beat, Command, Goodbye, Heartbeat, HeldLease, Report
from protocol.task import (
    LeafShown,
    OpeningMade,
    OpenStep,
    StepChallenge,
    StepOpened,
    StopTask,
    TaskFailed,
    TaskReport,
    Validation,
)
from tests.coordinator.audits.test_trust import AUDIT
from tests.coordinator.bench import CONFIG, Bench
from tests.coordinator.fakes import digest
from tests.coordinator.network.test_silence import HELD, NODE, asked, looked

OPENING = digest("opening")
MOST = CONFIG.return_seconds


async def away(bench: Bench, seconds: float) -> None:
    """The node's connection breaks off; its lease runs out, and time passes."""
    session = bench.parts.nodes.session((await only_audit(bench)).node)
    assert session is not None
    bench.parts.nodes.leave(session)
    await elapse(bench, seconds)


async def elapse(bench: Bench, seconds: float) -> None:
    """The coordinator goes on as it does."""
    until = bench.clock.t + seconds
    while bench.clock.t < until:
        bench.clock.t += min(2.0, until - bench.clock.t)
        await bench.parts.upkeep.tick()
        await looked(bench)


async def only_audit(bench: Bench) -> Audit:
    async with bench.store.transaction() as tx:
        (audit,) = await tx.find(Audit)
    return audit


async def lease_of(bench: Bench) -> Lease:
    async with bench.store.transaction() as tx:
        return await tx.get(Lease, "held")


async def say(bench: Bench, session: NodeSession, seq: int, body: TaskReport) -> None:
    await bench.parts.conversation.receive(session, Report("held", 1, seq, body))


def asks(bench: Bench, session: NodeSession) -> list[OpenStep]:
    told = [m.body for m in bench.sent[session.node] if isinstance(m, Command) and m.lease == "held"]
    return [body for body in told if isinstance(body, OpenStep)]


def stopped(bench: Bench, session: NodeSession) -> bool:
    told = [m.body for m in bench.sent[session.node] if isinstance(m, Command) and m.lease == "held"]
    return any(isinstance(body, StopTask) for body in told)


def refused(bench: Bench, session: NodeSession) -> bool:
    return any("held" in message.gone for message in bench.sent[session.node] if isinstance(message, Beat))


async def test_who_is_back_in_time_opens_under_its_old_lease_and_then_goes() -> None:
    bench = Bench()
    await asked(bench)
    await away(bench, 400.0)
    assert (await lease_of(bench)).end == "expired"
    audit = await only_audit(bench)
    assert (audit.state, audit.away is not None) == ("opening", True)
    bench.sent.clear()
    session = await bench.enter(NODE, HELD)
    assert not refused(bench, session)
    assert [ask.audit for ask in asks(bench, session)] == [AUDIT.id]
    audit = await looked(bench)
    assert audit.away is None
    assert audit.absent == pytest.approx(400.0, abs=3.0)
    assert audit.deadline - bench.clock.t == pytest.approx(CONFIG.audit_seconds, abs=3.0), "all of its time is left"
    assert session.node not in {candidate.node for candidate in bench.parts.nodes.candidates()}
    await say(bench, session, 2, OpeningMade(AUDIT.id, OPENING, 10))
    assert not stopped(bench, session), "its opening is on its way"
    await say(bench, session, 3, StepOpened(AUDIT.id, OPENING))
    assert bench.sent[session.node].count(Acknowledged("held", 3)) == 1
    assert (await only_audit(bench)).opening == OPENING
    assert stopped(bench, session)
    assert session.node in {candidate.node for candidate in bench.parts.nodes.candidates()}
    await bench.parts.conversation.receive(session, Heartbeat(HELD, accepting=True))
    assert refused(bench, session)


async def test_who_is_back_later_or_never_has_left() -> None:
    bench = Bench()
    await asked(bench)
    await away(bench, MOST - 10.0)
    assert (await only_audit(bench)).state == "opening"
    await elapse(bench, 15.0)
    assert (await only_audit(bench)).blame == "gone"
    bench.sent.clear()
    session = await bench.enter(NODE, HELD)
    await elapse(bench, 2.0)
    assert asks(bench, session) == []
    assert refused(bench, session) or stopped(bench, session)


async def test_coming_and_going_adds_up() -> None:
    bench = Bench()
    await asked(bench)
    for _ in range(2):
        await away(bench, MOST / 2 - 20.0)
        await bench.enter(NODE, HELD)
    assert (await only_audit(bench)).state == "opening"
    await away(bench, 60.0)
    assert (await only_audit(bench)).blame == "gone"


async def test_who_is_back_and_silent_has_no_more_time_than_anybody() -> None:
    bench = Bench()
    await asked(bench)
    await away(bench, 100.0)
    session = await bench.enter(NODE, HELD)
    for _ in range(int(CONFIG.audit_seconds) + 6):
        bench.clock.t += 1.0
        await bench.parts.conversation.receive(session, Heartbeat(HELD, accepting=True))
        await looked(bench)
    assert (await only_audit(bench)).blame == "refused"


@pytest.mark.parametrize("held", [(), (HeldLease("held", 2),)])
async def test_who_is_back_without_its_worker_has_left_at_once(held: tuple[HeldLease, ...]) -> None:
    bench = Bench()
    await asked(bench)
    await away(bench, 30.0)
    session = await bench.enter(NODE, held)
    assert (await looked(bench)).blame == "gone"
    assert refused(bench, session) == bool(held)


async def test_whoever_ends_it_is_not_waited_for() -> None:
    for end in (Goodbye("enough"), Report("held", 1, 2, TaskFailed("out of memory")), Heartbeat((), accepting=True)):
        bench = Bench()
        await asked(bench)
        await away(bench, 30.0)
        session = await bench.enter(NODE, HELD)
        await bench.parts.conversation.receive(session, end)
        assert (await looked(bench)).blame == "gone", end

    bench = Bench()
    session = await asked(bench)
    await bench.parts.conversation.receive(session, Goodbye("enough"))
    assert (await looked(bench)).blame == "gone"


async def test_another_key_gets_nothing_by_naming_the_lease() -> None:
    bench = Bench()
    await asked(bench)
    await away(bench, 30.0)
    thief = await bench.enter(NODE + 1, HELD)
    assert refused(bench, thief)
    await say(bench, thief, 2, StepOpened(AUDIT.id, OPENING))
    audit = await looked(bench)
    assert (audit.opening, audit.away is not None) == (None, True), "its own node may still come back"
    assert asks(bench, thief) == []
    with pytest.raises(GoneError):
        async with bench.parts.doors.storing(thief.node, "held", audit_answer(AUDIT.id), OPENING, 10, ""):
            pass
    session = await bench.enter(NODE, HELD)
    with pytest.raises(NotFoundError):
        await bench.parts.doors.check_read(session.node, digest("train.bin"))
    async with bench.parts.doors.storing(session.node, "held", audit_answer(AUDIT.id), OPENING, 10, ""):
        pass


async def test_nothing_else_that_it_says_counts() -> None:
    bench = Bench()
    await asked(bench)
    await away(bench, 30.0)
    before = (await bench.stored((await only_audit(bench)).job)).audits
    session = await bench.enter(NODE, HELD)
    await say(bench, session, 2, Validation(1, 2, 0.5, 100, digest("anchor"), digest("sums")))
    await say(bench, session, 3, StepChallenge(2, 0, 0, 1))
    await say(bench, session, 4, LeafShown(AUDIT.id, None))
    assert (await lease_of(bench)).seq == 4, "it is taken, so that what matters comes in its turn"
    audit = await only_audit(bench)
    assert audit.state == "opening"
    assert (await bench.stored(audit.job)).audits == before


async def test_a_lease_that_runs_out_on_a_connection_that_hangs_is_not_stopped_and_goes_on_with_a_heartbeat() -> None:
    bench = Bench()
    session = await asked(bench)
    await elapse(bench, 2 * CONFIG.lease_seconds)
    assert (await lease_of(bench)).end == "expired"
    assert not stopped(bench, session)
    assert (await only_audit(bench)).away is not None
    assert session.node not in {candidate.node for candidate in bench.parts.nodes.candidates()}
    await bench.parts.conversation.receive(session, Heartbeat(HELD, accepting=True))
    await elapse(bench, 2.0)
    assert (await only_audit(bench)).away is None
    assert asks(bench, session)


async def test_a_restart_of_the_coordinator_in_between_changes_nothing() -> None:
    store = MemoryStore()
    first = Bench(store=store)
    await asked(first)
    await away(first, 300.0)
    bench = Bench(store=store)
    bench.clock.t = first.clock.t + 5_000.0  # It was away itself, which is nobody's absence.
    await bench.parts.leases.recover()
    async with bench.parts.desk.open((await only_audit(bench)).job) as work:
        bench.parts.runs.resume(work)
    await elapse(bench, 300.0)
    session = await bench.enter(NODE, HELD)
    assert asks(bench, session)
    await say(bench, session, 2, StepOpened(AUDIT.id, OPENING))
    assert (await only_audit(bench)).opening == OPENING


async def test_who_has_nothing_to_open_is_let_go_at_once() -> None:
    bench = Bench()
    await asked(bench)
    async with bench.parts.desk.open((await only_audit(bench)).job) as work:
        work.audits[AUDIT.id] = msgspec.structs.replace(work.audits[AUDIT.id], node=AUDIT.node, lease="other")
    session = bench.parts.nodes.session((await lease_of(bench)).node)
    assert session is not None
    bench.parts.nodes.leave(session)
    await elapse(bench, 30.0)
    session = await bench.enter(NODE, HELD)
    assert stopped(bench, session)
    assert session.node in {candidate.node for candidate in bench.parts.nodes.candidates()}


async def test_rounds_go_on_while_a_prover_is_away_as_its_records_stay_with_it() -> None:
    bench = Bench()
    await asked(bench)
    verification = bench.parts.runs._verification
    async with bench.parts.desk.open((await only_audit(bench)).job) as work:
        assert not verification.may_begin(work, AUDIT.round + 2), "it would drop them for the next round's"
    await away(bench, 30.0)
    async with bench.parts.desk.open((await only_audit(bench)).job) as work:
        assert verification.may_begin(work, AUDIT.round + 2)
        assert not verification.may_begin(work, AUDIT.round + 40), "a lie would be too far back to be taken out"


async def test_an_operator_who_waits_for_nobody_has_them_leave_as_soon_as_their_lease_is_over() -> None:
    bench = Bench(replace(CONFIG, return_seconds=0.0))
    await asked(bench)
    await away(bench, 2 * CONFIG.lease_seconds)
    assert (await only_audit(bench)).blame == "gone"


async def test_the_interface_says_until_when_and_since_when() -> None:
    bench = Bench()
    await asked(bench)
    job = (await only_audit(bench)).job
    (view,) = await bench.parts.jobs.audits(job)
    assert (view.deadline, view.away) == ((await only_audit(bench)).deadline, None)
    await away(bench, 30.0)
    (view,) = await bench.parts.jobs.audits(job)
    assert view.away == (await only_audit(bench)).away
    session = await bench.enter(NODE, HELD)
    await say(bench, session, 2, StepOpened(AUDIT.id, OPENING))
    (view,) = await bench.parts.jobs.audits(job)
    assert (view.deadline, view.away) == (None, None)
