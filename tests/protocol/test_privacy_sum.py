"""What an owner's node works out by itself, beside what the coordinator's library says of the same rounds."""

import math
import random

import dp_accounting
import pytest

from coordinator.domain.privacy import PrivacyBudget, PrivateRelease, epsilon
from protocol.job.federated import PrivacySpec
from protocol.job.privacy_sum import ORDERS, gaussian_delta, keeps_to_budget, sampled_epsilon


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


def sampled_schedules() -> list[tuple[float, float, int, float]]:
    """Fifty of noise, sampling, steps and delta, as jobs whose unit is an example have them."""
    drawn, found = random.Random(83), []
    for _ in range(50):
        sampling = drawn.choice([0.0003, 0.001, 0.005, 0.02, 0.1, 0.5])
        steps = drawn.choice([1, 20, 400, 6_000, 100_000])
        found.append((round(drawn.uniform(0.4, 6), 2), sampling, steps, drawn.choice([1e-4, 1e-5, 1e-7])))
    return found


def test_of_fifty_schedules_with_sampling_it_is_the_librarys_renyi_accountant() -> None:
    for noise, sampling, steps, delta in sampled_schedules():
        accountant = dp_accounting.rdp.RdpAccountant(orders=list(ORDERS))
        event = dp_accounting.PoissonSampledDpEvent(sampling, dp_accounting.GaussianDpEvent(noise))
        accountant.compose(event, steps)
        ours, theirs = sampled_epsilon(noise, sampling, steps, delta), accountant.get_epsilon(delta)
        if theirs > 0:
            assert ours == pytest.approx(theirs, rel=1e-8), (noise, sampling, steps)
        else:  # It also knows when a delta is so large that there is no epsilon at all.
            assert ours < 0.1, (noise, sampling, steps)


@pytest.mark.parametrize("count", [6, pytest.param(50, marks=pytest.mark.long)])
def test_it_is_never_less_than_what_the_coordinator_counts_and_seldom_much_more(count: int) -> None:
    """The coordinator composes distributions of losses, which is tighter; a node that believed less would send too much."""
    near = []
    for noise, sampling, steps, delta in sampled_schedules()[:count]:
        ours, theirs = (
            sampled_epsilon(noise, sampling, steps, delta),
            epsilon([PrivateRelease(noise, sampling, steps)], delta),
        )
        assert theirs <= ours * (1 + 1e-6), (noise, sampling, steps)
        near += [theirs / ours] if ours > 0.5 else []
    assert sorted(near)[len(near) // 4] > 0.85, near


def test_sampling_rarely_and_more_noise_spend_less_and_nothing_spends_nothing() -> None:
    assert sampled_epsilon(1.0, 0.01, 0, 1e-5) == 0.0
    assert sampled_epsilon(0.0, 0.01, 1, 1e-5) == math.inf
    rates = [sampled_epsilon(1.0, rate, 500, 1e-5) for rate in (0.001, 0.01, 0.1, 0.5)]
    noises = [sampled_epsilon(noise, 0.01, 500, 1e-5) for noise in (8.0, 2.0, 1.0, 0.5)]
    steps = [sampled_epsilon(1.0, 0.01, count, 1e-5) for count in (1, 10, 500, 501)]
    for one in (rates, noises, steps):
        assert one == sorted(one)
        assert len(set(one)) == 4


def test_a_round_is_charged_with_all_its_steps_where_the_unit_is_an_example() -> None:
    spec = PrivacySpec("example", 3.0, 1e-5, noise_multiplier=1.0, sampling=0.01)
    most = next(count for count in range(1, 10_000) if sampled_epsilon(1.0, 0.01, count, 1e-5) > 3.0) - 1
    assert keeps_to_budget(spec, most // 20, 20)
    assert not keeps_to_budget(spec, most // 20 + 1, 20)
    assert not keeps_to_budget(spec, 1, most + 1)
