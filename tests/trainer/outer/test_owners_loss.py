"""The loss of what an owner holds back: what it is, how little one unit changes it, and how much noise it is told with."""

import math

import numpy as np
import pytest
import torch

from coordinator.domain.privacy import PrivateRelease, epsilon
from protocol.job.federated import LEAST_HELD, FederatedSpec, HeldoutLoss, PrivacySpec
from protocol.job.privacy_sum import loss_error, loss_noise
from tests.trainer.outer.test_private_updates import Known, Silence
from tests.trainer.outer.test_summed import owners
from tests.trainer.small import SEQUENCE, VOCABULARY, config_of, job
from trainer.data.data import Windows
from trainer.outer.owners_loss import OwnersLoss, owners_loss
from trainer.stage.model import Cut
from trainer.stage.stage import Stage
from trainer.stage.steps import Recorded, heldout_loss

OWNER = PrivacySpec(noise_multiplier=2.0, most_rounds=20, heldout=HeldoutLoss(share=0.25))
EXAMPLE = PrivacySpec("example", noise_multiplier=1.0, sampling=0.1, most_rounds=20, heldout=HeldoutLoss())


@pytest.fixture(scope="module")
def stage() -> Stage:
    return Stage(config_of(), Cut(0, 3, True, True), job().training)


def windows(count: int, seed: int = 1) -> Windows:
    return np.random.default_rng(seed).integers(0, VOCABULARY, (count, SEQUENCE + 1)).astype(np.int64)


def nats(found: OwnersLoss, most: float) -> float:
    return most / 2 * (1 + found.mean)


def test_it_is_the_held_out_loss_that_other_jobs_tell(stage: Stage) -> None:
    given = windows(12)
    found = owners_loss(stage, given, 20.0)
    assert found.windows == 12
    assert nats(found, 20.0) == pytest.approx(heldout_loss(stage, [given], Recorded({})), rel=1e-5)


def test_a_window_counts_with_no_more_than_the_most_and_one_that_is_not_finite_with_that(stage: Stage) -> None:
    given = windows(12)
    single = [nats(owners_loss(stage, given[at : at + 1], 20.0), 20.0) for at in range(12)]
    most = float(np.median(single))
    cut = owners_loss(stage, given, most)
    assert nats(cut, most) == pytest.approx(float(np.mean(np.minimum(single, most))), rel=1e-6)
    before = stage.values().clone()
    try:
        stage.load(torch.full_like(before, math.nan))
        assert owners_loss(stage, given, 6.0).mean == 1.0
    finally:
        stage.load(before)


def test_one_example_changes_the_mean_by_no_more_than_what_noise_is_counted_for(stage: Stage) -> None:
    given, most = windows(40), 6.0
    whole = owners_loss(stage, given, most)
    for at in range(40):
        without = (whole.mean * 40 - owners_loss(stage, given[at : at + 1], most).mean) / 40
        assert abs(whole.mean - without) <= 1 / 40 + 1e-12


@pytest.mark.parametrize(("privacy", "windows"), [(OWNER, 50), (EXAMPLE, 50), (EXAMPLE, 400)])
def test_it_is_told_with_the_noise_that_is_counted(privacy: PrivacySpec, windows: int) -> None:
    loss, most = OwnersLoss(0.2, windows), 6.0
    assert loss.told(privacy, Silence()) == pytest.approx(most / 2 * 1.2)
    told = np.array([loss.told(privacy, Known(seed)) for seed in range(800)])
    unit = most / 2 / (windows if privacy.per_example else 1)
    assert told.std() == pytest.approx(loss_noise(privacy) * unit, rel=0.1)


def test_with_owners_as_the_unit_both_together_tell_what_the_document_allows() -> None:
    alone = PrivacySpec(noise_multiplier=2.0)
    assert alone.update_noise == 2.0
    together = OWNER.update_noise**-2 + loss_noise(OWNER) ** -2
    assert together == pytest.approx(2.0**-2)
    assert loss_noise(OWNER) ** -2 == pytest.approx(0.25 * 2.0**-2)
    both = epsilon([PrivateRelease(OWNER.update_noise, count=20), PrivateRelease(loss_noise(OWNER), count=20)], 1e-5)
    assert both == pytest.approx(epsilon([PrivateRelease(2.0, count=20)], 1e-5))


def test_with_examples_as_the_unit_those_that_are_measured_with_have_the_budget_for_themselves() -> None:
    """They are in no step, so nothing else tells of them; and steps have the noise that they have without it."""
    noise = loss_noise(EXAMPLE)
    spent = epsilon([PrivateRelease(noise, count=20)], EXAMPLE.delta)
    assert EXAMPLE.epsilon * 0.999 < spent <= EXAMPLE.epsilon
    assert EXAMPLE.update_noise == 1.0
    federated = FederatedSpec(owners(8), 20, 8, EXAMPLE)
    assert loss_error(federated) == pytest.approx(noise * 3.0 / LEAST_HELD / math.sqrt(8))
    with pytest.raises(ValueError, match="most_rounds is not settled"):
        loss_noise(PrivacySpec("example", sampling=0.1, noise_multiplier=1.0, heldout=HeldoutLoss()))


def test_a_mean_beyond_what_there_is_counts_as_none_or_all() -> None:
    heldout = HeldoutLoss(most=5.0)
    assert [heldout.nats(mean) for mean in (-3.0, -1.0, 0.0, 1.0, 9.0)] == [0.0, 0.0, 2.5, 5.0, 5.0]
