"""A machine that crashed comes back with the records of its rounds: as good as with its worker, and no better."""

from dataclasses import replace

import pytest

from coordinator.errors import GoneError, NotFoundError
from coordinator.services.network.nodes import NodeSession
from coordinator.store.memory import MemoryStore
from protocol.artifacts import audit_answer
from protocol.node import Acknowledged, Beat, Goodbye, Heartbeat, HeldLease, Report
from protocol.task import BeginRound, OpeningMade, RoundCommit, StepOpened, TaskFailed, Traffic
from tests.coordinator.audits.test_returns import (
    MOST,
    OPENING,
    asks,
    away,
    elapse,
    lease_of,
    only_audit,
    refused,
    say,
    stopped,
)
from tests.coordinator.audits.test_trust import AUDIT
from tests.coordinator.bench import CONFIG, Bench
from tests.coordinator.fakes import digest
from tests.coordinator.network.test_silence import HELD, NODE, asked, looked

RESTORING = (HeldLease("held", 1, "restoring"),)
RESTORED = (HeldLease("held", 1, "restored"),)


async def beat(bench: Bench, session: NodeSession, held: tuple[HeldLease, ...]) -> None:
    await bench.parts.conversation.receive(session, Heartbeat(held, accepting=True))
    await elapse(bench, 1.0)


async def restart(bench: Bench, after: float) -> NodeSession:
    """The node's agent dies, and another one comes with its records."""
    await away(bench, after)
    bench.sent.clear()
    return await bench.enter(NODE, RESTORING)


@pytest.mark.parametrize("after", [0.5, 14.0, 400.0])
async def test_who_is_back_with_its_records_opens_once_its_worker_is_made_and_then_goes(after: float) -> None:
    bench = Bench()
    await asked(bench)
    session = await restart(bench, after)
    await elapse(bench, 30.0)
    await beat(bench, session, RESTORING)
    audit = await only_audit(bench)
    assert (await lease_of(bench)).end == "expired", "nobody waits for it with a seat"
    assert (audit.state, audit.away is not None) == ("opening", True), "its time stands still until the worker is there"
    assert not refused(bench, session)
    assert session.node not in {candidate.node for candidate in bench.parts.nodes.candidates()}
    before = len(bench.sent[session.node])
    await beat(bench, session, RESTORED)
    told = bench.sent[session.node][before:]
    assert Acknowledged("held", 1) in told, "it goes on from the reports that its predecessor made"
    assert [ask.audit for ask in asks(bench, session)] == [AUDIT.id]
    audit = await looked(bench)
    assert audit.away is None
    assert audit.deadline - bench.clock.t == pytest.approx(CONFIG.audit_seconds, abs=4.0)
    await say(bench, session, 2, OpeningMade(AUDIT.id, OPENING, 10))
    assert not stopped(bench, session)
    await say(bench, session, 3, StepOpened(AUDIT.id, OPENING))
    assert (await only_audit(bench)).opening == OPENING
    assert stopped(bench, session)
    assert session.node in {candidate.node for candidate in bench.parts.nodes.candidates()}


@pytest.mark.parametrize("restarted", [False, True], ids=["worker", "agent"])
async def test_what_had_been_made_and_not_sent_is_asked_for_once_more_and_no_other_is_taken(restarted: bool) -> None:
    bench = Bench()
    session = await asked(bench)
    await say(bench, session, 2, OpeningMade(AUDIT.id, OPENING, 10))
    if restarted:
        session = await restart(bench, 14.0)
    else:
        bench.sent[session.node].clear()
        await beat(bench, session, RESTORING)
    assert asks(bench, session) == []
    await beat(bench, session, RESTORED)
    await beat(bench, session, RESTORED)
    assert [ask.audit for ask in asks(bench, session)] == [AUDIT.id]
    answer = audit_answer(AUDIT.id)
    with pytest.raises(GoneError):
        await store(bench, session, answer, digest("another"))
    await store(bench, session, answer, OPENING)
    await say(bench, session, 3, StepOpened(AUDIT.id, OPENING))
    assert (await only_audit(bench)).opening == OPENING


async def test_who_is_back_with_the_worker_that_made_it_is_not_asked_again() -> None:
    bench = Bench()
    session = await asked(bench)
    await say(bench, session, 2, OpeningMade(AUDIT.id, OPENING, 10))
    await away(bench, 14.0)
    bench.sent.clear()
    session = await bench.enter(NODE, HELD)
    await beat(bench, session, HELD)
    assert asks(bench, session) == []


async def test_a_worker_that_is_quicker_than_the_word_of_it_sends_what_was_asked_of_the_first() -> None:
    bench = Bench()
    session = await asked(bench)
    await beat(bench, session, RESTORING)
    await store(bench, session, audit_answer(AUDIT.id), OPENING)
    with pytest.raises(GoneError):
        await store(bench, session, audit_answer("another"), digest("another"))
    await beat(bench, session, RESTORED)
    await say(bench, session, 2, StepOpened(AUDIT.id, OPENING))
    assert (await only_audit(bench)).opening == OPENING


async def store(bench: Bench, session: NodeSession, answers: str, artifact: str) -> None:
    """The node sends an artifact under its lease."""
    async with bench.parts.doors.storing(session.node, "held", answers, artifact, 10, "127.0.0.1"):
        pass


async def test_what_may_get_lost_of_what_it_says_while_the_worker_is_made_ends_nothing() -> None:
    bench = Bench()
    await asked(bench)
    session = await restart(bench, 14.0)
    await bench.parts.conversation.receive(session, Report("held", 1, 0, Traffic(1, 2, 3, 4, 5)))
    assert not refused(bench, session)
    await bench.parts.conversation.receive(session, Report("another", 1, 0, Traffic(1, 2, 3, 4, 5)))
    assert any("another" in message.gone for message in bench.sent[session.node] if isinstance(message, Beat))


async def test_its_worker_may_die_while_the_connection_lives() -> None:
    bench = Bench()
    session = await asked(bench)
    await beat(bench, session, HELD)
    assert (await lease_of(bench)).end is None
    await beat(bench, session, RESTORING)
    assert (await lease_of(bench)).end == "expired"
    assert not stopped(bench, session)
    assert (await only_audit(bench)).away is not None
    await beat(bench, session, RESTORED)
    assert Acknowledged("held", 1) in bench.sent[session.node]
    await say(bench, session, 2, StepOpened(AUDIT.id, OPENING))
    assert (await only_audit(bench)).opening == OPENING
    assert stopped(bench, session)


async def test_a_live_lease_is_given_no_round_to_a_restored_worker() -> None:
    bench = Bench()
    session = await asked(bench)
    await beat(bench, session, RESTORED)
    await beat(bench, session, RESTORED)
    assert (await lease_of(bench)).end == "expired"
    await say(bench, session, 2, RoundCommit(1, 2, digest("root"), 4, digest("gradient"), 1, 1))
    assert not any(isinstance(getattr(m, "body", None), BeginRound) for m in bench.sent[session.node])
    assert (await only_audit(bench)).state == "opening", "what else it says changes nothing"


async def test_who_takes_too_long_has_left_though_it_says_all_the_time_that_it_comes() -> None:
    bench = Bench()
    await asked(bench)
    session = await restart(bench, 14.0)
    for _ in range(int(MOST / 2) + 10):
        await beat(bench, session, RESTORING)
        await elapse(bench, 1.0)
    assert (await only_audit(bench)).blame == "gone"
    await beat(bench, session, RESTORED)
    assert asks(bench, session) == []
    assert refused(bench, session) or stopped(bench, session)


async def test_who_comes_too_late_has_left() -> None:
    bench = Bench()
    await asked(bench)
    session = await restart(bench, MOST + 15.0)
    await beat(bench, session, RESTORED)
    assert (await only_audit(bench)).blame == "gone"
    assert asks(bench, session) == []
    assert refused(bench, session)


async def test_a_second_crash_adds_to_the_first_and_goes_on_from_what_was_said_in_between() -> None:
    bench = Bench()
    await asked(bench)
    session = await restart(bench, 100.0)
    await beat(bench, session, RESTORED)
    await say(bench, session, 2, OpeningMade(AUDIT.id, OPENING, 10))
    bench.parts.nodes.leave(session)
    await elapse(bench, 100.0)
    bench.sent.clear()
    session = await bench.enter(NODE, RESTORING)
    assert (await looked(bench)).away is not None
    await beat(bench, session, RESTORED)
    assert Acknowledged("held", 2) in bench.sent[session.node]
    assert (await only_audit(bench)).absent == pytest.approx(200.0, abs=6.0)
    await say(bench, session, 3, StepOpened(AUDIT.id, OPENING))
    assert (await only_audit(bench)).opening == OPENING


@pytest.mark.parametrize("held", [(), (HeldLease("held", 2, "restoring"),), (HeldLease("held", 0x77, "restored"),)])
async def test_without_records_or_under_another_fence_it_has_left_at_once(held: tuple[HeldLease, ...]) -> None:
    bench = Bench()
    await asked(bench)
    await away(bench, 14.0)
    session = await bench.enter(NODE, held)
    assert (await looked(bench)).blame == "gone"
    assert refused(bench, session) == bool(held)


async def test_whoever_ended_it_before_is_not_waited_for() -> None:
    for end in (Goodbye("enough"), TaskFailed("out of memory")):
        bench = Bench()
        session = await asked(bench)
        if isinstance(end, Goodbye):
            await bench.parts.conversation.receive(session, end)
        else:
            await say(bench, session, 2, end)
        bench.parts.nodes.leave(session)
        session = await bench.enter(NODE, RESTORING)
        await beat(bench, session, RESTORED)
        assert (await looked(bench)).blame == "gone", end
        assert refused(bench, session)


async def test_a_worker_that_cannot_show_it_has_left_and_was_not_silent() -> None:
    bench = Bench()
    await asked(bench)
    session = await restart(bench, 14.0)
    await beat(bench, session, RESTORED)
    await say(bench, session, 2, TaskFailed("the records on the disk do not show it"))
    assert (await looked(bench)).blame == "gone"


async def test_who_is_banned_is_not_asked() -> None:
    bench = Bench()
    session = await asked(bench)
    await away(bench, 14.0)
    assert (await only_audit(bench)).state == "opening"
    bench.parts.nodes.ban(session.node, "an audit found it")
    assert (await looked(bench)).blame == "gone"


async def test_another_key_gets_nothing_by_naming_the_lease() -> None:
    bench = Bench()
    await asked(bench)
    await away(bench, 14.0)
    thief = await bench.enter(NODE + 1, RESTORING)
    assert refused(bench, thief)
    await beat(bench, thief, RESTORED)
    with pytest.raises(NotFoundError):
        await bench.parts.doors.check_read(thief.node, digest("train.bin"))
    assert (await only_audit(bench)).state == "opening"
    session = await bench.enter(NODE, RESTORING)
    assert not refused(bench, session)


async def test_another_key_does_not_end_a_live_lease_by_naming_it() -> None:
    bench = Bench()
    session = await asked(bench)
    thief = await bench.enter(NODE + 1, RESTORING)
    await beat(bench, session, HELD)
    assert refused(bench, thief)
    assert (await lease_of(bench)).end is None


async def test_its_files_are_read_again_while_the_worker_is_made_and_not_longer() -> None:
    bench = Bench()
    await asked(bench)
    job = (await only_audit(bench)).job
    files = (await bench.stored(job)).files
    session = await restart(bench, 14.0)
    await elapse(bench, 200.0)
    for artifact in files.values():
        await bench.parts.doors.check_read(session.node, artifact)
    with pytest.raises(NotFoundError):
        await bench.parts.doors.check_read(session.node, digest("somebody else's"))
    await bench.parts.conversation.receive(session, Heartbeat((), accepting=True))
    await elapse(bench, 2.0)
    await elapse(bench, MOST + 100.0)
    for artifact in files.values():
        with pytest.raises(NotFoundError):
            await bench.parts.doors.check_read(session.node, artifact)


async def test_a_restart_of_the_coordinator_in_between_changes_nothing() -> None:
    store = MemoryStore()
    first = Bench(store=store)
    await asked(first)
    await away(first, 14.0)
    bench = Bench(store=store)
    bench.clock.t = first.clock.t + 100.0
    await bench.parts.leases.recover()
    async with bench.parts.desk.open((await only_audit(bench)).job) as work:
        bench.parts.runs.resume(work)
    session = await bench.enter(NODE, RESTORING)
    await beat(bench, session, RESTORED)
    await say(bench, session, 2, StepOpened(AUDIT.id, OPENING))
    assert (await only_audit(bench)).opening == OPENING


async def test_an_operator_who_waits_for_nobody_waits_for_no_records_either() -> None:
    bench = Bench(replace(CONFIG, return_seconds=0.0))
    session = await asked(bench)
    await beat(bench, session, RESTORING)
    assert (await looked(bench)).blame == "gone"
    assert stopped(bench, session)
