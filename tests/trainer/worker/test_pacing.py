"""A worker that stands for a slower machine computes the same, only later."""

import time

import pytest
import torch

from protocol.boundary import Position
from tests.trainer.small import config_of, training
from trainer.data.data import TokenFile
from trainer.stage.model import Cut
from trainer.stage.stage import Stage
from trainer.stage.steps import Recorded, accumulate
from trainer.worker.throttle import _Late, _paced, slow_down

PACE = 0.02


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_a_paced_step_has_the_same_bits_and_takes_three_paces_a_micro_batch(schedule: str, tokens: TokenFile) -> None:
    gradients, losses, took = [], [], 0.0
    for paced in (False, True):
        stage = Stage(config_of(), Cut(0, 3, True, True), training(schedule=schedule, micro_batches=2))
        if paced:
            slow_down(stage, PACE)
        windows, _ = tokens.sample(1, 0, 0, stage.training.batch)
        began = time.perf_counter()
        losses.append(accumulate(stage, Position(0, 1), windows, Recorded({})))
        took = time.perf_counter() - began
        gradients.append(stage.gradients)
    assert losses[0] == losses[1]
    assert torch.equal(gradients[0], gradients[1])
    assert took >= 2 * 3 * PACE


def test_validation_is_as_quick_as_it_is(tokens: TokenFile) -> None:
    stage = Stage(config_of(), Cut(0, 3, True, True), training())
    slow_down(stage, 3600.0)
    windows, _ = tokens.sample(1, 0, 0, 2)
    with torch.no_grad():
        assert stage.forward(torch.from_numpy(windows[:, :-1])).shape[:2] == windows[:, :-1].shape


class Sleepy:
    """Time in which every sleep takes a quarter too long."""

    def __init__(self) -> None:
        self.at = 0.0

    def perf_counter(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += 1.25 * seconds


@pytest.mark.parametrize(("between", "each"), [(0.001, 1.0), (0.1, 1.25)], ids=["at once", "after a wait"])
def test_what_is_slept_too_long_is_taken_off_the_next_pass_unless_that_has_waited(
    between: float, each: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, passes = Sleepy(), 40
    monkeypatch.setattr("trainer.worker.throttle.time", clock)
    paced = _paced(lambda: None, lambda: 1.0, _Late())
    for _ in range(passes):
        paced()
        clock.at += between
    assert clock.at == pytest.approx(passes * (each + between), rel=0.01)
    assert clock.at >= passes * (1.0 + between)


def test_a_computation_that_takes_too_long_is_not_caught_up_with(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Sleepy()
    monkeypatch.setattr("trainer.worker.throttle.time", clock)

    def compute() -> None:
        clock.at += 1.5

    paced = _paced(compute, lambda: 1.0, _Late())
    for _ in range(10):
        paced()
    assert clock.at == pytest.approx(15.0)
