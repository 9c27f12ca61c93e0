"""A job that was stopped and started again: the same bits as one that ran through, in one environment class."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import torch

from protocol.task import Progress, RoundApplied, RoundCommit
from tests.trainer.router import Place, Router, make_plan, replace
from tests.trainer.small import config_of, job
from trainer.errors import WeightsError
from trainer.stage.model import Cut
from trainer.stage.stage import Stage, StageState
from trainer.worker.checkpoint import read_moments, write_moments

CUTS = [(0, 1), (1, 3)]
PLAN = make_plan(CUTS, [0, 1])
PLACES: list[Place] = [(0, 0), (1, 0), (0, 1), (1, 1)]
STEPS, TOTAL = 3, 12

MakeRouter = Callable[[], AbstractAsyncContextManager[Router]]
Seen = list[tuple[Place, int, str, str, float | None]]


@pytest.fixture
def routed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> MakeRouter:
    sockets = tmp_path_factory.mktemp("r")

    @asynccontextmanager
    async def make() -> AsyncIterator[Router]:
        async with Router(sockets, job(activations="int8"), folder) as router:
            yield router

    return make


def seen(router: Router, rounds: tuple[int, ...]) -> Seen:
    """What every member committed to and came to, with the losses."""
    found: Seen = []
    for place in PLACES:
        for number in rounds:
            commit = router.of(place, RoundCommit, round=number)[-1]
            applied = router.of(place, RoundApplied, round=number)[-1]
            found.append((place, number, commit.root, applied.parameters, commit.loss))
    return found


@pytest.mark.slow
async def test_a_run_that_is_stopped_in_mid_round_goes_on_with_the_same_bits(routed: MakeRouter) -> None:
    async with routed() as router:
        await router.start(PLAN, PLACES)
        for number in range(4):
            await router.round(PLAN, number, STEPS, TOTAL)
        through = seen(router, (2, 3))
    async with routed() as router:
        await router.start(PLAN, PLACES)
        await router.round(PLAN, 0, STEPS, TOTAL)
        states = await router.round(PLAN, 1, STEPS, TOTAL)
        moments = dict(router.moments)
        await router.begin(PLAN, 2, 2 * STEPS, STEPS, TOTAL)
        await router.until(lambda: router.of((0, 0), Progress, round=2))
    async with routed() as router:  # Everything was stopped; these are other processes.
        again = replace(PLAN, epoch=1)
        await router.start(again, PLACES)
        await router.begin(again, 2, 2 * STEPS, STEPS, TOTAL, states=states, moments=moments)
        await router.apply(again, 2, await router.wait_commits(again, 2))
        await router.round(again, 3, STEPS, TOTAL)
        assert seen(router, (2, 3)) == through


@pytest.mark.slow
async def test_without_the_moments_the_bits_are_others(routed: MakeRouter) -> None:
    """What the test above would not notice if it compared nothing."""
    roots = []
    for with_moments in (True, False):
        async with routed() as router:
            await router.start(PLAN, PLACES)
            states = await router.round(PLAN, 0, STEPS, TOTAL)
            moments = dict(router.moments) if with_moments else None
            again = replace(PLAN, epoch=1)
            await router.begin(again, 1, STEPS, STEPS, TOTAL, states=states, moments=moments)
            roots.append((await router.wait_commits(again, 1))[0, 0].root)
    assert roots[0] != roots[1]


def stage() -> Stage:
    return Stage(config_of(), Cut(0, 1, True, False), job().training)


def test_moments_come_back_as_they_were() -> None:
    part = stage()
    part.gradients.normal_(generator=torch.Generator().manual_seed(1))
    part.adam_step(0.01)
    before = part.state()
    again = read_moments(write_moments(before, 7), part, before.parameters, 7)
    assert again.digest() == before.digest()


@pytest.mark.parametrize("spoil", ["round", "size", "nan", "negative", "bytes", "steps"])
def test_moments_of_another_round_or_size_or_that_are_no_numbers_are_refused(spoil: str) -> None:
    part = stage()
    state = part.state()
    first, second, steps, of_round, data = state.first_moment, state.second_moment, 3, 7, b""
    if spoil == "round":
        of_round = 6
    elif spoil == "size":
        first = first[:-1]
    elif spoil == "nan":
        second[0] = float("nan")
    elif spoil == "negative":
        second[0] = -1.0
    elif spoil == "steps":
        steps = -1
    else:
        data = b"no tensors"
    data = data or write_moments(StageState(state.parameters, first, second, steps), of_round)
    with pytest.raises(WeightsError):
        read_moments(data, part, state.parameters, 7)
