"""Steps that protect one example: each gradient is clipped by itself, and noise is as strong as it says."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from protocol.job.federated import PrivacySpec
from tests.trainer.learning import ALONE, NOBODY
from tests.trainer.outer.test_private_updates import Known, Silence
from tests.trainer.small import VOCABULARY, config_of, training
from trainer.data.data import Windows
from trainer.data.marks import BEGINS, UNLEARNT
from trainer.errors import RoundError
from trainer.outer.private import SystemNoise, update_norm
from trainer.outer.private_steps import StepPrivacy, private_gradients
from trainer.stage.model import Cut
from trainer.stage.stage import Stage
from trainer.stage.steps import accumulate

BATCH = 4
SPEC = training(batch=BATCH, micro_batches=1)
NO_CLIP = 1e9


def stage_of(family: str = "llama") -> Stage:
    return Stage(config_of(family), Cut(0, 3, True, True), SPEC)


def windows(count: int, seed: int = 3) -> Windows:
    """Documents of one window each, the later ones shorter and filled up."""
    found = np.random.default_rng(seed).integers(0, VOCABULARY, (count, SPEC.sequence + 1)).astype(np.int64)
    for row in range(count):
        length = SPEC.sequence + 1 - 3 * row
        found[row, 0] |= BEGINS | UNLEARNT
        found[row, length:] = UNLEARNT
        if length <= SPEC.sequence:
            found[row, length] |= BEGINS
    return found


def gradients_of(stage: Stage, given: Windows) -> Iterator[Tensor]:
    """Each example's own, by the step that every other job makes."""
    for row in range(len(given)):
        stage.gradients.zero_()
        single = np.repeat(given[row : row + 1], BATCH, axis=0)  # A whole batch of it has the same mean.
        accumulate(stage, ALONE, single, NOBODY)
        yield stage.gradients.clone()


def noised(
    given: Windows, clip: float, noise: float = 1.0, source: object = None, stage: Stage | None = None
) -> Tensor:
    stage = stage or stage_of()
    private_gradients(stage, given, StepPrivacy(clip, noise), source or Silence())  # type: ignore[arg-type]
    return stage.gradients.clone()


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_without_clip_and_noise_it_is_the_sum_of_each_examples_mean_gradient(family: str) -> None:
    given = windows(3)
    expected = torch.stack(list(gradients_of(stage_of(family), given))).sum(0) / BATCH
    found = noised(given, NO_CLIP, stage=stage_of(family))
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-7)
    assert update_norm(found) > 0.01


def test_each_example_is_clipped_by_itself_and_not_their_sum() -> None:
    given, stage = windows(4), stage_of()
    each = list(gradients_of(stage, given))
    norms = sorted(update_norm(one) for one in each)
    clip = (norms[1] + norms[2]) / 2
    found = noised(given, clip)
    expected = torch.stack([one * min(1.0, clip / update_norm(one)) for one in each]).sum(0) / BATCH
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-7)
    assert sum(norm > clip for norm in norms) == 2, "two are clipped, and two are left as they are"


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("clip", [1e-3, 0.3, NO_CLIP])
def test_an_example_changes_the_sum_by_the_clip_at_most(place: int, clip: float) -> None:
    """What the account counts, and what fails where a sum or a mean over those drawn is clipped or divided."""
    given = windows(4)
    apart = (noised(given, clip) - noised(np.delete(given, place, 0), clip)) * BATCH
    assert update_norm(apart) <= min(clip * (1 + 1e-3), 1e3)
    assert update_norm(apart) > 0.5 * min(clip, 0.1)


def test_noise_is_that_many_clips_on_the_sum_and_none_in_the_padding() -> None:
    stage, clip, noise = stage_of(), 0.25, 3.0
    nothing = np.zeros((0, SPEC.sequence + 1), np.int64)
    private_gradients(stage, nothing, StepPrivacy(clip, noise), SystemNoise())
    where = torch.cat([stage.gradients[slot.start : slot.start + slot.count] for slot in stage.slots])
    assert float(where.std()) * BATCH == pytest.approx(clip * noise, rel=0.02)
    padded = torch.ones(stage.size, dtype=torch.bool)
    for slot in stage.slots:
        padded[slot.start : slot.start + slot.count] = False
    assert int(padded.sum()) > 0
    assert not bool(stage.gradients[padded].any())


def test_noise_is_the_same_whatever_was_drawn() -> None:
    """Of the same source: what is left of two steps without their sums is one and the same noise."""
    left = [
        noised(given, 0.1, 2.0, Known(5)) - noised(given, 0.1, 2.0) for given in (windows(0), windows(1), windows(5))
    ]
    assert torch.allclose(left[0], left[1], atol=1e-6)
    assert torch.allclose(left[0], left[2], atol=1e-6)
    assert float(left[0].std()) == pytest.approx(0.1 * 2.0 / BATCH, rel=0.05)


def test_an_example_whose_gradient_is_not_finite_counts_as_none() -> None:
    stage = stage_of()
    passed = stage.summed_loss

    def odd(*given: Tensor) -> Tensor:
        return passed(*given) * (math.inf if int(given[0][0, 0]) == int(windows(2)[1, 0] & (BEGINS - 1)) else 1.0)

    stage.summed_loss = odd  # type: ignore[method-assign, assignment]
    found = noised(windows(2), 0.1, stage=stage)
    assert torch.equal(found, noised(windows(1), 0.1))


def test_an_example_of_which_nothing_is_learnt_counts_as_none() -> None:
    silent = windows(2)
    silent[1] |= UNLEARNT
    assert torch.equal(noised(silent, 0.1), noised(windows(1), 0.1))


def test_no_step_is_made_without_noise() -> None:
    with pytest.raises(RoundError, match="no step is made without noise"):
        StepPrivacy.of(PrivacySpec(unit="example", sampling=0.1))
    assert StepPrivacy.of(PrivacySpec("example", clip=0.5, noise_multiplier=2.0, sampling=0.1)) == StepPrivacy(0.5, 2.0)
