"""Epsilon of what has left: as dp-accounting has it, never less after a resumption, never beyond the budget."""

import itertools
import math
import random
import subprocess
import sys

import dp_accounting
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.domain.privacy import (
    PrivacyBudget,
    PrivacyBudgetError,
    PrivateRelease,
    epsilon,
    next_clip,
)
from protocol.job.federated import LEAST_NOISE, AdaptiveClipping, PrivacySpec, both_noises

DELTA = 1e-5
releases = st.lists(
    st.builds(PrivateRelease, noise=st.floats(0.8, 40), sampling=st.just(1.0), count=st.integers(1, 200)),
    min_size=1,
    max_size=6,
)


def schedules() -> list[list[PrivateRelease]]:
    """Fifty of one to three stretches, a third of them without sampling."""
    drawn, found = random.Random(31), []
    for number in range(50):
        sampled = number % 3 > 0
        found.append(
            [
                PrivateRelease(
                    round(drawn.uniform(0.7, 12), 2),
                    round(drawn.choice([0.001, 0.01, 0.1, 0.3, 0.5]), 3) if sampled else 1.0,
                    drawn.randint(1, 400),
                )
                for _ in range(drawn.randint(1, 3))
            ]
        )
    return found


def library(schedule: list[PrivateRelease], delta: float, accountant: dp_accounting.PrivacyAccountant) -> float:
    """What an accountant of dp-accounting says of the rounds one after the other."""
    for release in schedule:
        event: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(release.noise)
        if release.sampling < 1:
            event = dp_accounting.PoissonSampledDpEvent(release.sampling, event)
        accountant.compose(event, release.count)
    return float(accountant.get_epsilon(delta))


@pytest.mark.parametrize("count", [16, pytest.param(50, marks=pytest.mark.long)])
def test_random_schedules_come_to_what_the_librarys_accountants_say(count: int) -> None:
    compared = 0
    for schedule in schedules()[:count]:
        ours = epsilon(schedule, DELTA)
        renyi = library(schedule, DELTA, dp_accounting.rdp.RdpAccountant())
        assert ours <= renyi * (1 + 1e-9)
        if renyi <= 20:
            interval = 1e-3 if renyi > 1 else 1e-4
            accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=interval)
            losses = library(schedule, DELTA, accountant)
            assert ours == pytest.approx(losses, rel=1e-2, abs=1e-4), schedule
            compared += 1
        elif any(release.sampling < 1 for release in schedule):
            assert ours == pytest.approx(renyi, rel=1e-9)
    assert compared >= count // 4


def test_without_sampling_epsilon_is_that_of_the_gaussian_mechanism_itself() -> None:
    """Delta at our epsilon, by the formula of Balle and Wang, which nothing here computes with."""

    def normal(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    for noise, count in ((1.0, 1), (4.0, 30), (20.0, 500)):
        sigma, found = noise / math.sqrt(count), epsilon([PrivateRelease(noise, 1.0, count)], DELTA)
        delta = normal(0.5 / sigma - found * sigma) - math.exp(found) * normal(-0.5 / sigma - found * sigma)
        assert delta == pytest.approx(DELTA, rel=1e-6)


@given(releases, st.integers(0, 5), st.integers(1, 50))
@settings(max_examples=60, deadline=None)
def test_a_run_that_was_resumed_comes_to_the_same_epsilon(whole: list[PrivateRelease], cut: int, part: int) -> None:
    """However the rounds are grouped and ordered when they are kept: never less, by not one bit."""
    split = list(whole)
    one = split[cut % len(split)]
    if one.count > part:
        split[cut % len(split)] = PrivateRelease(one.noise, one.sampling, part)
        split.insert(0, PrivateRelease(one.noise, one.sampling, one.count - part))
    assert epsilon(reversed(split), DELTA) == epsilon(whole, DELTA)


@given(releases, st.builds(PrivateRelease, noise=st.floats(0.8, 40), sampling=st.just(1.0)))
@settings(max_examples=60, deadline=None)
def test_every_further_release_spends(whole: list[PrivateRelease], further: PrivateRelease) -> None:
    assert epsilon([*whole, further], DELTA) > epsilon(whole, DELTA)


def test_more_noise_fewer_rounds_and_rarer_sampling_spend_less() -> None:
    for sampling in (0.3, 1.0):
        noises = [epsilon([PrivateRelease(noise, sampling, 50)], DELTA) for noise in (0.9, 2.0, 30.0)]
        counts = [epsilon([PrivateRelease(2.0, sampling, count)], DELTA) for count in (1, 10, 11, 200)]
        assert noises == sorted(noises, reverse=True)
        assert counts == sorted(counts)
    shares = [epsilon([PrivateRelease(1.5, sampling, 50)], DELTA) for sampling in (0.01, 0.3, 0.9, 1.0)]
    assert shares == sorted(shares)


def test_nothing_that_left_spends_nothing() -> None:
    assert epsilon([], DELTA) == 0.0


@pytest.mark.parametrize("sampling", [1.0, 0.2])
@pytest.mark.parametrize("most", [0.5, 3.0, 8.0])
def test_a_budget_has_room_for_exactly_so_many_rounds(most: float, sampling: float) -> None:
    budget = PrivacyBudget(most, DELTA)
    spent = [PrivateRelease(12.0, 1.0, 2)]
    rounds = budget.rounds(4.0, sampling, spent)
    assert rounds >= 1 or most < 3
    for count in {0, 1, rounds // 3, rounds - 2, rounds - 1} & set(range(rounds)):
        assert budget.allows(
            [*spent, *([PrivateRelease(4.0, sampling, count)] if count else [])], PrivateRelease(4.0, sampling)
        )
    full = [*spent, *([PrivateRelease(4.0, sampling, rounds)] if rounds else [])]
    assert not budget.allows(full, PrivateRelease(4.0, sampling))
    assert epsilon(full, DELTA) <= most


@pytest.mark.parametrize(("rounds", "sampling"), [*itertools.product([1, 30, 500], [1.0]), (30, 0.1)])
def test_the_noise_that_is_found_is_the_least_that_keeps_the_budget(rounds: int, sampling: float) -> None:
    budget = PrivacyBudget(4.0, DELTA)
    noise = budget.noise(rounds, sampling)
    assert epsilon([PrivateRelease(noise, sampling, rounds)], DELTA) <= 4.0
    assert noise == LEAST_NOISE or epsilon([PrivateRelease(noise * 0.999, sampling, rounds)], DELTA) > 4.0


def test_what_no_noise_can_keep_is_refused_with_the_way_out() -> None:
    spent = [PrivateRelease(1.0, 1.0, 10)]
    with pytest.raises(PrivacyBudgetError, match="allow more epsilon, or fewer rounds"):
        PrivacyBudget(1.0, DELTA).noise(1, 1.0, spent)
    assert PrivacyBudget(1.0, DELTA).rounds(50.0, 1.0, spent) == 0
    with pytest.raises(PrivacyBudgetError, match="hides nothing"):
        PrivacyBudget(1.0, DELTA).rounds(0.1)


def test_an_update_and_a_bit_tell_as_much_as_the_noise_that_was_asked_for() -> None:
    for noise, bit in ((1.0, 4.0), (3.0, 10.0), (0.6, 0.4)):
        more = both_noises(noise, bit)
        assert more > noise
        assert PrivacySpec(noise_multiplier=noise, adaptive=AdaptiveClipping(bit_noise=bit)).update_noise == more
        both = [PrivateRelease(more), PrivateRelease(2 * bit)]  # The bit is half a unit from its middle.
        assert epsilon(both, DELTA) == pytest.approx(epsilon([PrivateRelease(noise)], DELTA), rel=1e-6)
    with pytest.raises(ValueError, match="bit_noise above 2"):
        PrivacySpec(noise_multiplier=4.0, adaptive=AdaptiveClipping(bit_noise=2.0))


def test_the_clip_goes_to_the_quantile_that_was_asked_for() -> None:
    """Updates of known norms, bits with noise: the clip ends where half of them are within it."""
    drawn, clip = random.Random(5), 100.0
    norms = [0.5 + 0.1 * place for place in range(40)]
    ends = []
    for number in range(400):
        bits = [(norm <= clip) + drawn.gauss(0, 2.0) for norm in norms]
        clip = next_clip(clip, bits, 0.5, 0.2)
        ends += [clip] if number >= 300 else []
    assert sum(ends) / len(ends) == pytest.approx(2.45, rel=0.15)
    assert next_clip(1.5, [], 0.5, 0.2) == 1.5
    assert next_clip(1.0, [1e9], 0.5, 1.0) >= math.exp(-1.0)  # Noise of any size moves it no further than a bit can.


def test_a_coordinator_without_federated_jobs_does_not_read_the_library() -> None:
    asked = "import sys, coordinator.domain.privacy; sys.exit('dp_accounting' in sys.modules or 'scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked], timeout=60).returncode == 0
