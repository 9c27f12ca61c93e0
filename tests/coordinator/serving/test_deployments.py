"""Deployments on virtual time: nodes answer, leave, fall silent and lie; what was said goes on, and what was right is paid."""

import asyncio

import msgspec
import pytest

from coordinator.domain import serving as rules
from coordinator.domain.job import JobAction, JobState
from coordinator.domain.rounds.run import RESTORED_EPOCHS
from coordinator.domain.serving import NodeUsage
from coordinator.errors import (
    ConflictError,
    FundsError,
    InvalidError,
    NotFoundError,
    TooManyError,
    UnavailableError,
)
from coordinator.store.ports import col
from coordinator.store.records import CommitRecord, RoundRecord
from protocol.job.job import JobSpec, ModelSpec, ServeSpec
from protocol.rest.api import NewJob
from tests.coordinator.fakes import BUDGET
from tests.coordinator.serving.deployed import Deployed, Home, TruthTeller


async def shares(bench: Deployed, job: str) -> list[CommitRecord]:
    async with bench.store.transaction() as tx:
        return await tx.find(CommitRecord, col(CommitRecord.job).equals(job))


async def count(bench: Deployed, job: str) -> None:
    """A period is over."""
    await bench.pass_time(rules.PERIOD_S, 5.0)
    await bench.turn(job)


async def one_period(bench: Deployed, job: str) -> None:
    """Of one answer."""
    asked = bench.ask(await bench.stored(job))
    await bench.pass_time(2.0)
    await asked.task
    await count(bench, job)
    await bench.turn(job)


async def two_homes(bench: Deployed) -> tuple[str, Home, Home]:
    one, two = await bench.come(1), await bench.come(2)
    job = await bench.deploy(replicas=2)
    assert (await bench.stored(job)).state is JobState.RUNNING
    return job, one, two


def who_answers(*homes: Home) -> Home:
    """The one that was asked first, of those that are answering."""
    return next(home for home in homes if home.answering)


@pytest.mark.parametrize(
    ("waiting", "freed", "now", "seconds"),
    [
        (64, (), 100.0, 5.0),  # Nobody knows yet.
        (64, (99.0, 99.5), 100.0, 32.0),
        (64, (99.9, 100.0), 100.0, 5.0),  # Not less than that: many who were refused come back.
        (64, (40.0, 50.0), 100.0, 60.0),  # Nor more than stock clients wait.
        (10, (90.0, 95.0, 98.0, 99.0), 100.0, 25.0),
    ],
)
def test_who_is_refused_comes_back_when_those_who_wait_have_had_their_places(
    waiting: int, freed: tuple[float, ...], now: float, seconds: float
) -> None:
    assert rules.again_in(waiting, freed, now) == pytest.approx(seconds)


async def test_a_deployment_is_seated_answers_is_counted_and_paid_by_its_tokens() -> None:
    bench = Deployed()
    one = await bench.come(1)
    job = await bench.deploy()
    stored = await bench.stored(job)
    assert stored.state is JobState.RUNNING
    assert one.lease is not None
    assert "model.zip" in one.lease.files
    async with bench.checking():
        asked = bench.ask(stored)
        await bench.pass_time(2.0)
        await asked.task
        assert asked.tokens == asked.right
        assert asked.end is not None
        assert (asked.end.tokens, asked.end.nodes) == (8, ("node-1",))
        await count(bench, job)
    (share,) = await shares(bench, job)
    rate, parameters = stored.quote.rate, stored.quote.parameters
    least = rules.worth(parameters, rate, NodeUsage(1, 3, 8, rules.PERIOD_S))
    assert least <= share.amount <= least + rules.worth(parameters, rate, NodeUsage(ready=30.0))
    assert (share.tokens, share.leaves, share.state) == (8, 1, "verified")
    assert len(bench.checker.checked) == 1, "the first answers of a node are all checked"
    async with bench.desk(job) as work:
        await bench.parts.runs.ask(work, JobAction.STOP)
    await bench.turn(job)
    over = await bench.stored(job)
    assert over.state is JobState.SETTLED
    assert over.paid == sum(one.amount for one in await shares(bench, job))
    assert over.paid + over.refunded == BUDGET


async def test_the_next_node_goes_on_where_one_vanished_with_the_same_tokens() -> None:
    bench = Deployed()
    job, one, two = await two_homes(bench)
    asked = bench.ask(await bench.stored(job), tokens=20)
    await bench.pass_time(0.75)
    gone = who_answers(one, two)
    said = len(asked.tokens)
    assert 0 < said < 20
    await gone.vanish()
    await bench.pass_time(3.0)
    await asked.task
    assert asked.tokens == asked.right
    assert "".join(report.text for report in asked.texts) == "".join(f"{token} " for token in asked.right)
    assert asked.end is not None
    assert asked.end.nodes == (gone.session.profile.name, (two if gone is one else one).session.profile.name)


async def test_who_falls_silent_is_left_for_somebody_who_answers_and_asked_again_once_it_speaks() -> None:
    bench = Deployed()
    job, one, two = await two_homes(bench)
    asked = bench.ask(await bench.stored(job), tokens=20)
    await bench.pass_time(0.75)
    silent = who_answers(one, two)
    silent.mute = True
    before = bench.time.now()
    while not asked.task.done():
        await bench.pass_time(0.25)
    assert bench.time.now() - before < rules.SILENCE_S + 3.0
    assert asked.tokens == asked.right
    other = two if silent is one else one
    again = [bench.ask(await bench.stored(job), seed=seed, tokens=4) for seed in range(4)]
    await bench.pass_time(2.0)
    assert all(one.task.done() for one in again)
    assert len(other.asked) >= 5, "nobody asks who is silent"
    silent.mute = False
    silent.silence()
    await bench.while_time_moves(bench.parts.homes.watch_once())
    await bench.pass_time(2.0)
    await bench.while_time_moves(bench.parts.homes.watch_once())
    fresh = [bench.ask(await bench.stored(job), seed=seed, tokens=4) for seed in range(4)]
    await bench.pass_time(2.0)
    assert all(one.task.done() for one in fresh)


async def test_alone_and_silent_it_is_waited_for() -> None:
    bench = Deployed()
    home = await bench.come(1)
    job = await bench.deploy()
    home.pace = 5.0
    asked = bench.ask(await bench.stored(job), tokens=3)
    await bench.pass_time(20.0, 0.5)
    assert asked.tokens == asked.right


@pytest.mark.parametrize("lie", ["token", "smaller", "text"])
async def test_a_lie_costs_what_is_not_verified_the_seat_and_the_standing_and_nobody_else_anything(lie: str) -> None:
    bench = Deployed()
    job, one, two = await two_homes(bench)
    if lie == "token":
        one.lie = lambda place, token: token + 1 if place == 5 else token
    elif lie == "smaller":
        one.lie = lambda _place, token: token // 2
    else:
        one.telling = "something else "
    async with bench.checking():
        asked = [bench.ask(await bench.stored(job), seed=seed) for seed in range(4)]
        await bench.pass_time(3.0)
        assert all(answer.task.done() for answer in asked)
        await bench.turn(job)
        assert one.lease is None, "its place is gone"
        assert two.lease is not None
        await count(bench, job)
    assert {share.node for share in await shares(bench, job) if share.amount} == {two.node}
    stored = await bench.stored(job)
    view = await bench.parts.jobs.get(job)
    assert view.serving is not None
    assert view.serving.wrong >= 1
    assert stored.state is JobState.RUNNING
    await bench.turn(job)
    assert one.lease is None, "nor does it come back"


async def test_what_a_node_said_for_another_is_checked_by_itself() -> None:
    """Who lies and falls silent takes nobody's pay along, and who goes on with lies is found, too."""
    bench = Deployed()
    job, one, two = await two_homes(bench)
    async with bench.checking():
        asked = bench.ask(await bench.stored(job), tokens=20)
        await bench.pass_time(0.75)
        liar = who_answers(one, two)
        honest = two if liar is one else one
        liar.lie = lambda _place, token: token + 1
        await bench.pass_time(0.4)
        await liar.vanish()
        await bench.pass_time(4.0)
        await asked.task
    assert asked.tokens != asked.right
    cut, rest = bench.checker.checked
    assert (cut.reason, rest.reason) == (None, "length")
    assert (len(cut.asked.begun), len(rest.asked.begun)) == (0, len(cut.tokens))
    assert len(cut.tokens) + len(rest.tokens) == 20
    view = await bench.parts.jobs.get(job)
    assert view.serving is not None
    assert (view.serving.checked, view.serving.wrong) == (2, 1)
    assert honest.lease is not None
    await bench.turn(job)
    assert bench.parts.leases.of_node(liar.node) == ()


async def test_what_was_said_to_somebody_who_went_away_is_counted_and_checked() -> None:
    bench = Deployed()
    home = await bench.come(1)
    job = await bench.deploy()
    async with bench.checking():
        asked = bench.ask(await bench.stored(job), tokens=200)
        await bench.pass_time(1.05)
        await asked.leave()
        await bench.pass_time(0.5)
        assert not home.answering, "nobody computes what nobody hears"
        await count(bench, job)
    (check,) = bench.checker.checked
    assert (check.reason, check.prompt, len(check.tokens)) == (None, None, len(asked.tokens))
    (share,) = await shares(bench, job)
    assert (share.tokens, share.state) == (len(asked.tokens), "verified")
    assert len(asked.tokens) >= 8


async def test_answers_under_way_end_before_a_pause_and_no_new_ones_begin() -> None:
    bench = Deployed()
    home = await bench.come(1)
    job = await bench.deploy()
    asked = bench.ask(await bench.stored(job), tokens=30)
    await bench.pass_time(0.5)
    async with bench.desk(job) as work:
        await bench.parts.runs.ask(work, JobAction.PAUSE)
    assert (await bench.stored(job)).state is JobState.RUNNING
    assert "Pausing" in (await bench.parts.jobs.get(job)).sentence
    with pytest.raises(ConflictError, match="being paused or stopped"):
        await anext(bench.parts.homes.generate(await bench.stored(job), asked.command, 60.0))
    await bench.pass_time(4.0)
    await asked.task
    assert asked.tokens == asked.right
    await bench.turn(job)
    assert ((await bench.stored(job)).state, home.lease) == (JobState.PAUSED, None)
    async with bench.desk(job) as work:
        await bench.parts.runs.ask(work, JobAction.RESUME)
    await bench.turn(job)
    home.pace = 60.0
    endless = bench.ask(await bench.stored(job), tokens=30)
    await bench.pass_time(1.0)
    async with bench.desk(job) as work:
        await bench.parts.runs.ask(work, JobAction.STOP)
    await bench.pass_time(rules.REST_S, 1.0)
    await bench.turn(job)
    assert home.lease is None, "it is not waited for longer"
    await bench.pass_time(1.0)
    with pytest.raises(ConflictError):
        await endless.task


async def test_a_node_that_leaves_was_ready_until_it_was_heard_last() -> None:
    bench = Deployed()
    job, one, two = await two_homes(bench)
    asked = [bench.ask(await bench.stored(job), seed=seed) for seed in range(2)]
    await bench.pass_time(2.0)
    await asyncio.gather(*(one.task for one in asked))
    await bench.pass_time(rules.PROBE_S, 5.0)
    await bench.while_time_moves(bench.parts.homes.watch_once())
    async with bench.desk(job) as work:
        work.end(one.lease.lease if one.lease else "", "left", "it goes")
    await count(bench, job)
    amounts = {share.node: share.operations for share in await shares(bench, job)}
    assert amounts[one.node] > 0.3 * amounts[two.node]
    assert amounts[one.node] < 0.7 * amounts[two.node]


async def test_a_node_that_nobody_asks_is_asked_now_and_then_and_only_who_answers_was_ready() -> None:
    bench = Deployed()
    job, one, two = await two_homes(bench)
    two.mute = True
    await bench.pass_time(rules.PROBE_S, 5.0)
    await bench.while_time_moves(bench.parts.homes.watch_once())
    await bench.pass_time(3.0)
    assert len(one.asked) == 1
    await bench.turn(job)
    await count(bench, job)
    paid = {share.node: share.amount for share in await shares(bench, job)}
    assert set(paid) == {one.node}
    assert paid[one.node] >= rules.worth(1_000, 1, NodeUsage(ready=1.0))


async def test_more_requests_than_room_wait_in_turn_and_beyond_that_are_refused_with_a_time() -> None:
    bench = Deployed()
    home = await bench.come(1)
    job = await bench.deploy()
    stored = await bench.stored(job)
    room = rules.PROMISED_AT_ONCE
    asked = [bench.ask(stored, seed=seed, tokens=2) for seed in range(room + rules.MAX_WAITING)]
    await bench.hear()
    await asyncio.sleep(0)
    await bench.hear()
    assert len(home.asked) == room
    with pytest.raises(TooManyError, match="64 requests wait") as refused:
        await anext(bench.parts.homes.generate(stored, asked[0].command, 60.0))
    assert refused.value.retry_s == rules.LEAST_AGAIN_S, "no place has become free yet"
    for _ in range(40):
        await bench.pass_time(0.5)
    assert all(one.task.done() and one.tokens == one.right for one in asked), "nobody starves"
    order = [command.sampling.seed for command in home.asked if hasattr(command, "sampling")]
    assert order == list(range(room + rules.MAX_WAITING)), "who waits longest is next"


async def test_pausing_lets_nodes_go_and_going_on_seats_them_again() -> None:
    bench = Deployed()
    home = await bench.come(1)
    job = await bench.deploy()
    asked = bench.ask(await bench.stored(job))
    await bench.pass_time(2.0)
    await asked.task
    async with bench.desk(job) as work:
        await bench.parts.runs.ask(work, JobAction.PAUSE)
    await bench.hear()
    stored = await bench.stored(job)
    assert (stored.state, home.lease) == (JobState.PAUSED, None)
    assert [share.tokens for share in await shares(bench, job)] == [8]
    with pytest.raises(ConflictError, match="resume"):
        await anext(bench.parts.homes.generate(stored, asked.command, 60.0))
    async with bench.desk(job) as work:
        await bench.parts.runs.ask(work, JobAction.RESUME)
    await bench.turn(job)
    assert (await bench.stored(job)).state is JobState.RUNNING
    again = bench.ask(await bench.stored(job))
    await bench.pass_time(2.0)
    await again.task
    assert again.tokens == again.right


async def test_nodes_are_let_go_when_nobody_asks_and_seated_again_for_whoever_does() -> None:
    bench = Deployed()
    home = await bench.come(1)
    job = await bench.deploy(idle=2)
    asked = bench.ask(await bench.stored(job))
    await bench.pass_time(2.0)
    await asked.task
    await bench.pass_time(100.0, 1.0)
    await bench.turn(job)
    assert home.lease is not None, "it is two minutes"
    await bench.pass_time(30.0, 1.0)
    await bench.turn(job)
    stored = await bench.stored(job)
    assert (stored.state, home.lease) == (JobState.PLANNED, None)
    assert "Asleep" in (await bench.parts.jobs.get(job)).sentence
    assert [share.tokens for share in await shares(bench, job)] == [8], "what was done is counted"
    await count(bench, job)
    assert len(await shares(bench, job)) == 1, "nothing is spent asleep"
    again = bench.ask(stored)
    await bench.pass_time(0.1)
    await bench.turn(job)
    assert (await bench.stored(job)).state is JobState.RUNNING
    await bench.pass_time(2.0)
    await again.task
    assert again.tokens == again.right


async def test_it_ends_with_its_hours_and_with_its_budget_and_never_pays_more() -> None:
    bench = Deployed()
    await bench.come(1)
    job = await bench.deploy(hours=0.5)
    await count(bench, job)
    await bench.pass_time(1_800, 10.0)
    await bench.turn(job, 6)
    stored = await bench.stored(job)
    assert stored.state is JobState.SETTLED
    assert stored.paid + stored.refunded == BUDGET

    bench = Deployed()
    await bench.come(1)
    job = await bench.deploy()
    async with bench.desk(job) as work:
        work.change(escrow=3, quote=msgspec.structs.replace(work.job.quote, rate=10**6))
    asked = [bench.ask(await bench.stored(job), seed=seed, tokens=200) for seed in range(10)]
    async with bench.checking():
        await bench.pass_time(30.0, 0.1)
        ends = await asyncio.gather(*(one.task for one in asked), return_exceptions=True)
        assert all(end is None or isinstance(end, ConflictError) for end in ends)
        await bench.turn(job, 6)
    stored = await bench.stored(job)
    assert stored.verified <= 3
    assert stored.state in (JobState.VERIFYING, JobState.SETTLED)
    assert sum(share.amount for share in await shares(bench, job)) == 3


async def test_cancelling_pays_what_was_right_and_refunds_the_rest() -> None:
    bench = Deployed()
    home = await bench.come(1)
    job = await bench.deploy()
    asked = bench.ask(await bench.stored(job))
    await bench.pass_time(2.0)
    await asked.task
    await bench.parts.jobs.cancel(job)
    await bench.hear()
    assert home.lease is None
    assert (await bench.stored(job)).state is not JobState.CANCELLED, "its answer is still to be checked"
    async with bench.checking():
        await bench.pass_time(1.0)
        await bench.turn(job)
    stored = await bench.stored(job)
    assert stored.state is JobState.CANCELLED
    await bench.turn(job)
    stored = await bench.stored(job)
    assert stored.paid > 0
    assert stored.paid + stored.refunded == BUDGET


async def test_nobodys_pay_waits_for_a_checker_that_cannot_check() -> None:
    checker = TruthTeller()
    checker.able = False
    bench = Deployed(checker)
    await bench.come(1)
    job = await bench.deploy()
    async with bench.checking():
        asked = bench.ask(await bench.stored(job))
        await bench.pass_time(2.0)
        await asked.task
        await count(bench, job)
    assert [share.state for share in await shares(bench, job)] == ["verified"]


async def test_periods_are_rounds_with_roots_on_the_ledger() -> None:
    bench = Deployed()
    await bench.come(1)
    job = await bench.deploy()
    async with bench.checking():
        await one_period(bench, job)
    async with bench.store.transaction() as tx:
        (period,) = await tx.find(RoundRecord, col(RoundRecord.job).equals(job))
    assert period.concluded
    assert {row.detail for row in await bench.rows(job, "event")} >= {"round 1: commitments", "round 1: outcome"}


async def test_periods_after_a_restore_are_none_that_the_ledger_has_already() -> None:
    """Those that a backup does not have were told to the ledger with their roots, and would have had the same numbers."""
    bench = Deployed()
    await bench.come(1)
    job = await bench.deploy()
    async with bench.checking():
        for restored in (False, True):
            if restored:
                async with bench.parts.desk.open(job) as work:
                    assert work.run is not None
                    work.change_run(epoch=work.run.epoch + RESTORED_EPOCHS)
                    work.change(rounds_done=0)
            await one_period(bench, job)
    async with bench.store.transaction() as tx:
        periods = await tx.find(RoundRecord, col(RoundRecord.job).equals(job))
    assert [(one.epoch, one.number) for one in periods] == [(0, 0), (RESTORED_EPOCHS, 0)]
    assert [(one.epoch, one.round) for one in await shares(bench, job)] == [(0, 0), (RESTORED_EPOCHS, 0)]


async def test_what_no_node_can_hold_and_what_no_budget_covers_is_refused_before_the_escrow() -> None:
    bench = Deployed()
    away = await bench.come(3)
    trained = await bench.trained()
    bench.parts.nodes.leave(away.session)
    spec = JobSpec("moo", ModelSpec(from_job=trained), BUDGET, serve=ServeSpec())
    await bench.enter(1, memory_mb=300)
    with pytest.raises(InvalidError, match="no node holds the whole model"):
        await bench.parts.jobs.create(NewJob(spec))
    await bench.come(2)
    poor = JobSpec("moo", ModelSpec(from_job=trained), 10, serve=ServeSpec(replicas=2))
    with pytest.raises(FundsError, match=r"the budget ¤ 0\.00001 is below ¤ 1\.00"):
        await bench.parts.jobs.create(NewJob(poor))
    with pytest.raises(NotFoundError):
        await bench.parts.jobs.create(NewJob(JobSpec("moo", ModelSpec(from_job="0" * 32), BUDGET, serve=ServeSpec())))
    long = JobSpec("moo", ModelSpec(from_job=trained), BUDGET, serve=ServeSpec(context=100_000))
    with pytest.raises(InvalidError, match="1,024 tokens that this model reads"):
        await bench.parts.jobs.create(NewJob(long))


async def test_a_node_was_not_ready_while_it_was_silent() -> None:
    bench = Deployed()
    job, one, two = await two_homes(bench)
    asked = [bench.ask(await bench.stored(job), seed=seed, tokens=20) for seed in range(2)]
    await bench.pass_time(0.5)
    one.mute = True
    while not all(answer.task.done() for answer in asked):
        await bench.pass_time(0.5)
    silent = 120.0
    await bench.pass_time(silent, 1.0)
    one.mute = False
    await bench.while_time_moves(bench.parts.homes.watch_once())
    ready = {period.lease.node: period.usage.ready for period in bench.parts.homes.periods(job)}
    assert ready[two.node] - ready[one.node] > 0.9 * silent
    assert ready[one.node] < 20.0


async def test_what_is_too_long_to_be_drawn_again_is_not_paid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.services.serving.homes.MAX_LINE", 2_000)
    bench = Deployed()
    await bench.come(1)
    job = await bench.deploy()
    async with bench.checking():
        asked = [bench.ask(await bench.stored(job), seed=tokens, tokens=tokens) for tokens in (8, 200)]
        await bench.pass_time(25.0)
        assert all(answer.task.done() for answer in asked)
        await count(bench, job)
    (share,) = await shares(bench, job)
    assert (share.leaves, share.tokens) == (1, 8)


async def test_a_queue_without_any_node_says_so_and_who_leaves_it_makes_room() -> None:
    bench = Deployed()
    await bench.come(1)
    job = await bench.deploy(alone=True)
    stored = await bench.stored(job)
    waiting = [bench.ask(stored, seed=seed, tokens=2) for seed in range(rules.MAX_WAITING)]
    await bench.pass_time(0.5)
    with pytest.raises(TooManyError, match="64 requests wait for this deployment already: no node holds its model yet"):
        await anext(bench.parts.homes.generate(stored, waiting[0].command, 60.0))
    for one in waiting:
        await one.leave()
    hasty = anext(bench.parts.homes.generate(stored, waiting[0].command, 1.0))
    with pytest.raises(UnavailableError, match="holds its model yet: try again"):
        await bench.while_time_moves(hasty)
    home = await bench.come(2)
    await bench.turn(job)
    late = bench.ask(stored, tokens=2)
    await bench.pass_time(2.0)
    await late.task
    assert len(home.asked) == 1, "nobody answers for those who have gone"


async def test_a_deployment_that_waits_for_its_first_node_is_stopped_and_refunded() -> None:
    bench = Deployed()
    await bench.come(1)
    job = await bench.deploy(alone=True)
    assert (await bench.stored(job)).state is JobState.FUNDED
    waiting = bench.ask(await bench.stored(job))
    await bench.pass_time(0.5)
    async with bench.desk(job) as work:
        await bench.parts.runs.ask(work, JobAction.STOP)
    await bench.turn(job)
    stored = await bench.stored(job)
    assert (stored.state, stored.paid, stored.refunded) == (JobState.CANCELLED, 0, BUDGET)
    with pytest.raises(ConflictError):
        await waiting.task


async def test_one_that_answered_rested_and_waits_again_is_stopped_with_pay_and_refund() -> None:
    bench = Deployed()
    home = await bench.come(1)
    job = await bench.deploy()
    async with bench.checking():
        asked = bench.ask(await bench.stored(job))
        await bench.pass_time(2.0)
        await asked.task
        async with bench.desk(job) as work:
            await bench.parts.runs.ask(work, JobAction.PAUSE)
        await home.vanish()
        async with bench.desk(job) as work:
            await bench.parts.runs.ask(work, JobAction.RESUME)
        await bench.turn(job)
        assert (await bench.stored(job)).state is JobState.FUNDED
        async with bench.desk(job) as work:
            await bench.parts.runs.ask(work, JobAction.STOP)
        await bench.pass_time(2.0)
        await bench.turn(job)
    stored = await bench.stored(job)
    assert stored.state is JobState.CANCELLED
    assert stored.paid > 0
    assert stored.paid + stored.refunded == BUDGET


@pytest.mark.parametrize("action", [JobAction.PAUSE, JobAction.STOP])
async def test_what_is_refused_of_a_deployment_is_refused_in_its_own_words(action: JobAction) -> None:
    bench = Deployed()
    await bench.come(1)
    job = await bench.deploy()
    async with bench.desk(job) as work:
        work.job = msgspec.structs.replace(work.job, state=JobState.VERIFYING)
        with pytest.raises(ConflictError, match="it answers no more: its last answers are checked and paid"):
            await bench.parts.runs.ask(work, action)
