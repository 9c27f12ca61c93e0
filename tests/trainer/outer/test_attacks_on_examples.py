"""Whether one example was trained on, told from noised steps: within the bound, near it, and plain where there is no noise.

Two see it. One sees every noised gradient, as the account supposes, and makes the best test there is. The other sees the update
that a round of such steps leaves, and is told what it looks like with and without the example. Both know the model, all other
examples and that all of them are in every step; only whether this one was drawn is a coin, as it is at an owner.

Source: Nasr et al., arXiv 2101.04535, of DP-SGD's worst cases.
"""

import math
from dataclasses import dataclass
from functools import cache

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from torch import Tensor

from tests.trainer.outer.test_private_updates import Silence
from tests.trainer.small import VOCABULARY, config_of, training
from trainer.data.data import Windows
from trainer.outer.private import SystemNoise, update_norm
from trainer.outer.private_steps import StepPrivacy, private_gradients
from trainer.stage.model import Cut
from trainer.stage.stage import Stage, StageState

SPEC = training(batch=3, micro_batches=1)
STEPS, SAMPLING, CLIP, RATE = 2, 0.5, 0.05, 1e-5
TRIALS, SEEN = 160, 40
NOISE, NONE = 0.6, 1e-5


@dataclass(frozen=True)
class Home:
    """An owner's model and examples, the last of which is asked about; its gradient, and the sum of the others'."""

    stage: Stage
    start: StageState
    others: Windows
    asked: Windows
    gradient: Tensor
    common: Tensor


@cache
def home() -> Home:
    drawn = np.random.default_rng(7).integers(0, VOCABULARY, (3, SPEC.sequence + 1)).astype(np.int64)
    stage = Stage(config_of(), Cut(0, 3, True, True), SPEC)
    sums = []
    for rows in (drawn[2:], drawn[:2]):
        private_gradients(stage, rows, StepPrivacy(CLIP, NOISE), Silence())
        sums.append(stage.gradients.double() * SPEC.batch)
    stage.gradients.zero_()
    return Home(stage, stage.state(), drawn[:2], drawn[2:], *sums)


@dataclass(frozen=True)
class RoundSeen:
    """What a round shows: a measure of each, which is larger where the example was there."""

    steps: float
    update: float


def a_round(member: bool, noise: float, coin: np.random.Generator) -> RoundSeen:
    """Steps as a worker makes them, of all others, and of the example where it is the owner's and the coin says so."""
    here, ratio = home(), 0.0
    here.stage.restore(here.start)
    begun = here.stage.values().clone()
    for _ in range(STEPS):
        drawn = member and coin.random() < SAMPLING
        rows = np.concatenate([here.others, here.asked]) if drawn else here.others
        private_gradients(here.stage, rows, StepPrivacy(CLIP, noise), SystemNoise())
        rest = here.stage.gradients.double() * SPEC.batch - here.common
        square = float(here.gradient @ here.gradient)
        told = (2 * float(rest @ here.gradient) - square) / (2 * (noise * CLIP) ** 2)
        ratio += float(np.logaddexp(math.log1p(-SAMPLING), math.log(SAMPLING) + told))
        here.stage.adam_step(RATE)
    moved = (begun - here.stage.values()).double()
    return RoundSeen(ratio, float(moved @ here.gradient))


@cache
def rounds(noise: float) -> tuple[list[RoundSeen], list[RoundSeen]]:
    """Of an owner that has it, and of one that does not."""
    coin = np.random.default_rng(11)
    with_it, without = ([a_round(member, noise, coin) for _ in range(TRIALS)] for member in (True, False))
    return with_it, without


def advantage(noise: float, what: str) -> tuple[float, float]:
    """True minus false positives, and the standard error; the best line between both is found on the first ``SEEN`` of each."""
    with_it, without = ([getattr(one, what) for one in some] for some in rounds(noise))
    line = 0.0
    if what == "update":
        lines = sorted(with_it[:SEEN] + without[:SEEN])
        line = max(
            lines, key=lambda at: sum(one > at for one in with_it[:SEEN]) - sum(one > at for one in without[:SEEN])
        )
        with_it, without = with_it[SEEN:], without[SEEN:]
    found, wrong = (float(np.mean([one > line for one in some])) for some in (with_it, without))
    error = math.sqrt((found * (1 - found) + wrong * (1 - wrong)) / len(with_it) + 1 / len(with_it) ** 2)
    return found - wrong, error


def most(noise: float) -> float:
    """The most that any test comes to: delta at an epsilon of zero, by the library's distributions of losses."""
    accountant = PLDAccountant()
    event = dp_accounting.PoissonSampledDpEvent(SAMPLING, dp_accounting.GaussianDpEvent(noise))
    return float(accountant.compose(event, STEPS).get_delta(0.0))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("what", ["update", "steps"])
def test_with_noise_no_attack_on_an_example_does_better_than_the_bound(what: str) -> None:
    bound = most(NOISE)
    assert 0.2 < bound < 0.6, "far enough from both ends that the test could fail"
    assert update_norm(home().gradient.float()) == pytest.approx(CLIP, rel=1e-3), "it is clipped: a worst case"
    found, error = advantage(NOISE, what)
    assert found <= bound + 3.5 * error
    if what == "steps":
        assert found >= bound / 2 - 3.5 * error, "the best attack comes near: there is no more noise than is promised"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("what", ["update", "steps"])
def test_without_noise_whether_an_example_was_drawn_is_plain(what: str) -> None:
    """Whoever was drawn in no step cannot be found: three in four are."""
    found, error = advantage(NONE, what)
    assert found > 1 - (1 - SAMPLING) ** STEPS - 3.5 * error
    assert found > most(NOISE)


def test_two_examples_of_one_person_are_told_apart_better_than_one() -> None:
    """What the promise does not cover, and its words say: the sum moves by two clips."""
    here, terms = home(), StepPrivacy(CLIP, NOISE)
    twice = np.concatenate([here.others, here.asked, here.asked])
    private_gradients(here.stage, twice, terms, Silence())
    apart = here.stage.gradients.double() * SPEC.batch - here.common
    assert float(torch.linalg.vector_norm(apart)) == pytest.approx(2 * CLIP, rel=1e-3)
