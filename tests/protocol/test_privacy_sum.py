"""What an owner's node works out by itself, beside what the coordinator's library says of the same rounds."""

import math

import pytest

from coordinator.domain.privacy import PrivacyBudget, PrivateRelease, epsilon
from protocol.job.federated import PrivacySpec
from protocol.job.privacy_sum import gaussian_delta, keeps_to_budget


@pytest.mark.parametrize("noise", [0.5, 1.0, 2.5, 8.0])
@pytest.mark.parametrize("rounds", [1, 7, 200])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_both_sums_are_one_number(noise: float, rounds: int, delta: float) -> None:
    there = epsilon([PrivateRelease(noise, count=rounds)], delta)
    assert math.isclose(gaussian_delta(noise, rounds, there), delta, rel_tol=1e-4)


@pytest.mark.parametrize(("allowed", "rounds"), [(1.0, 3), (8.0, 20), (3.0, 500)])
def test_a_node_takes_what_the_coordinator_settles_and_no_round_more(allowed: float, rounds: int) -> None:
    budget = PrivacyBudget(allowed, 1e-5)
    noise = budget.noise(rounds)
    most = budget.rounds(noise)
    assert most >= rounds
    spec = PrivacySpec(epsilon=allowed, delta=1e-5, noise_multiplier=noise, most_rounds=most)
    assert keeps_to_budget(spec, most)
    assert not keeps_to_budget(spec, most + 1)


def test_without_noise_nothing_keeps_to_a_budget() -> None:
    assert gaussian_delta(0.0, 1, 8.0) == 1.0
    assert not keeps_to_budget(PrivacySpec(), 1)
    assert keeps_to_budget(PrivacySpec(), 0)
