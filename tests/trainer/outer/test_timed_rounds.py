"""Rounds of fixed time: the first stage of each replica ends them, all its stages stop after the same step, all of it replays."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from protocol.task import (
    AbandonRound,
    ApplyRound,
    AuditReport,
    OpenStep,
    Progress,
    ReplayStep,
    RoundApplied,
    RoundCommit,
    StepOpened,
)
from tests.trainer.router import Place, Router, make_plan
from tests.trainer.small import job
from trainer.worker.time_budget import TimeBudget

THREE = make_plan([(0, 1), (1, 2), (2, 3)], [0])
LINE: list[Place] = [(0, 0), (1, 0), (2, 0)]
TWO_BY_TWO = make_plan([(0, 1), (1, 3)], [0, 1])
PLACES: list[Place] = [(0, 0), (1, 0), (0, 1), (1, 1)]
MOST, TOTAL = 4000, 8000
AUDIT = "a" * 32

MakeRouter = Callable[[], AbstractAsyncContextManager[Router]]


@pytest.fixture
def routed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> MakeRouter:
    sockets = tmp_path_factory.mktemp("t")

    @asynccontextmanager
    async def make() -> AsyncIterator[Router]:
        async with Router(sockets, job(), folder) as router:
            yield router

    return make


class Clock:
    """Seconds that pass only when they are asked for."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        now, self.now = self.now, self.now + self.step
        return now


def test_a_round_ends_before_the_step_that_would_end_too_late() -> None:
    pace = TimeBudget(10.0, Clock(1.0))  # The question after each step comes a second after the one before.
    assert [pace.has_time(done) for done in range(1, 12)] == [True] * 9 + [False] * 2


def test_the_first_step_of_a_round_is_always_done() -> None:
    assert TimeBudget(0.001, Clock(5.0)).has_time(0)
    assert not TimeBudget(0.001, Clock(5.0)).has_time(1)


def test_a_round_of_a_fixed_number_of_steps_never_ends_by_time() -> None:
    pace = TimeBudget(None, Clock(1e9))
    assert all(pace.has_time(done) for done in range(10))


@pytest.mark.slow
async def test_all_stages_of_a_replica_end_after_the_same_step_and_it_replays(routed: MakeRouter) -> None:
    async with routed() as router:
        await router.start(THREE, LINE)
        await router.begin(THREE, 0, 0, MOST, TOTAL, seconds=0.4, rate_step=100)
        commits = await router.wait_commits(THREE, 0)
        leaves = {commit.leaves for commit in commits.values()}
        assert len(leaves) == 1
        assert 1 <= leaves.pop() < MOST
        for commit in commits.values():
            assert commit.tokens == commit.leaves * 4 * 16
        await router.apply(THREE, 0, commits)
        commit = commits[1, 0]
        await router.command((1, 0), OpenStep(AUDIT, 0, 0, commit.leaves - 1))
        await router.until(lambda: router.of((1, 0), StepOpened))
        opened = router.of((1, 0), StepOpened)[0].opening
        for at, (rate_step, verdict) in enumerate([(100, "match"), (0, "mismatch")]):
            name = f"{at:032x}"
            body = ReplayStep(
                name,
                THREE,
                1,
                0,
                0,
                0,
                commit.leaves - 1,
                TOTAL,
                commit.root,
                commit.leaves,
                commit.pseudo_gradient,
                None,
                opened,
                rate_step=rate_step,
            )
            await router.command((0, 0), body, router.artifacts[opened])
            await router.until(lambda name=name: router.of((0, 0), AuditReport, audit=name))
            report = router.of((0, 0), AuditReport, audit=name)[0]
            assert report.verdict == verdict, report.detail
        await router.begin(THREE, 1, MOST, 3, TOTAL, seconds=1000.0)
        after = await router.wait_commits(THREE, 1)
        assert {commit.leaves for commit in after.values()} == {3}


@pytest.mark.slow
async def test_a_late_replica_takes_the_others_update_and_goes_on(routed: MakeRouter) -> None:
    async with routed() as router:
        await router.start(TWO_BY_TWO, PLACES)
        router.deliver = lambda s, to, m, payload: None if m.name.kind == "end" and s[1] == 1 else payload
        await router.begin(TWO_BY_TWO, 0, 0, MOST, TOTAL, seconds=0.3)
        commits = await router.wait_commits(TWO_BY_TWO, 0, [0])
        assert not router.of((1, 1), RoundCommit), "it hears of no end and no step"
        for stage in (0, 1):
            await router.command((stage, 1), AbandonRound(0, 0))
        await router.apply(TWO_BY_TWO, 0, commits)
        router.deliver = lambda source, to, message, payload: payload
        await router.round(TWO_BY_TWO, 1, 2, TOTAL, first_step=MOST)


@pytest.mark.slow
async def test_steps_that_were_given_up_leave_no_trace(routed: MakeRouter) -> None:
    """A replica whose round was abandoned in its middle does the next one as if it had never begun that one."""
    roots = []
    for disturbed in (False, True):
        async with routed() as router:
            plan = make_plan([(0, 3)], [0, 1])
            await router.start(plan, [(0, 0), (0, 1)])
            await router.round(plan, 0, 2, TOTAL)
            await router.begin(plan, 1, 2, MOST, TOTAL, only=[(0, 1)])
            if disturbed:
                await router.until(lambda: router.of((0, 1), Progress, round=1, step=8))
            await router.command((0, 1), AbandonRound(0, 1))
            await router.begin(plan, 1, 2, 2, TOTAL, only=[(0, 0)])
            commits = await router.wait_commits(make_plan([(0, 3)], [0]), 1, [0])
            contributors = {0: commits[0, 0].pseudo_gradient}
            for place in ((0, 0), (0, 1)):
                await router.command(place, ApplyRound(0, 1, contributors))
            await router.until(lambda: all(router.of(place, RoundApplied, round=1) for place in ((0, 0), (0, 1))))
            await router.begin(plan, 2, 4, 2, TOTAL)
            done = await router.wait_commits(plan, 2)
            roots.append(done[0, 1].root)
    assert roots[0] == roots[1]
