"""What a federated job spends of its privacy budget: epsilon of what has left so far, and what may still leave.

A *release* is what leaves once a round: updates that were clipped to a norm, and Gaussian noise of ``noise`` such norms. All of
them together, by whichever rounds and in whatever order, tell of one owner (or one example) at most what ``epsilon`` and
``delta`` bound. Neighbouring are two runs of which one lacks what that owner has: its updates are zero there.

What was spent is kept as the releases themselves and never as an epsilon, so that a run that is resumed, and one that went
through, come to the same number. A release is charged when its round begins: noise that may have left counts as having left.

Without sampling, releases are one Gaussian mechanism together, whose epsilon is exact (Balle and Wang, arXiv 1805.06530). With
it the privacy loss distribution is composed, rounded to the worse side (Koskela et al., arXiv 1906.03049; Doroshenko et al.,
arXiv 2207.04380). Where that would be long, and little private, Renyi divergences bound it (Mironov, arXiv 1702.07476). All
three are those of ``dp-accounting``, which is imported when a job first asks: it brings SciPy, and takes a second and 100 MB.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from coordinator.errors import InvalidError
from protocol.job.federated import LEAST_NOISE
from protocol.job.job import JobSpec

MOST_RELEASES = 10_000_000
LITTLE_PRIVATE = 20.0
"""Epsilon from which on the bound by Renyi divergences will do."""
_COARSE, _FINE = 1e-3, 1e-4  # Between the privacy losses that are told apart: beyond an epsilon of 1, and below.
_TOLERANCE = 1e-5  # Relative, of a noise that is looked for.


class PrivacyBudgetError(InvalidError):
    """No noise, or no round at all, keeps to a budget."""


class PrivateRelease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What left in ``count`` rounds alike.

    ``noise``: standard deviation on the sum of all updates, in clipping norms. ``sampling``: how likely an owner (or an example)
    takes part, drawn for each by itself and told to nobody; 1: all take part.
    """

    noise: Annotated[float, Meta(ge=LEAST_NOISE, le=10_000)]
    sampling: Annotated[float, Meta(gt=0, le=1)] = 1.0
    count: Annotated[int, Meta(ge=1, le=MOST_RELEASES)] = 1


class PrivacyBudget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What may be spent in all."""

    epsilon: Annotated[float, Meta(gt=0, le=10_000)]
    delta: Annotated[float, Meta(gt=0, le=0.01)]

    def allows(self, spent: Iterable[PrivateRelease], release: PrivateRelease) -> bool:
        """Whether a further release keeps to it."""
        return epsilon([*spent, release], self.delta) <= self.epsilon

    def rounds(self, noise: float, sampling: float = 1.0, spent: Iterable[PrivateRelease] = ()) -> int:
        """How many further rounds of such a noise it has room for, ``MOST_RELEASES`` at most.

        Raises:
            PrivacyBudgetError: noise below ``LEAST_NOISE``.
        """
        before = list(spent)

        def fits(count: int) -> bool:
            return epsilon([*before, _release(noise, sampling, count)], self.delta) <= self.epsilon

        _release(noise, sampling, 1)
        return most_that(fits, MOST_RELEASES)

    def noise(self, rounds: int, sampling: float = 1.0, spent: Iterable[PrivateRelease] = ()) -> float:
        """The least noise with which so many further rounds keep to it, never less than it has to be.

        Raises:
            PrivacyBudgetError: even the most noise would not do.
        """
        before = list(spent)

        def fits(noise: float) -> bool:
            return epsilon([*before, _release(noise, sampling, rounds)], self.delta) <= self.epsilon

        if (found := least_noise(fits)) is None:
            raise PrivacyBudgetError(self.beyond(rounds))
        return found

    def beyond(self, rounds: int) -> str:
        """Why so many rounds cannot be had."""
        return (
            f"no noise keeps {rounds} rounds within epsilon {self.epsilon:g} at delta {self.delta:g}: allow more epsilon, or "
            "fewer rounds"
        )


def least_noise(fits: Callable[[float], bool]) -> float | None:
    """The least noise that fits, where all above do; None: even the most does not."""
    low, high = LEAST_NOISE, LEAST_NOISE
    while not fits(high):
        if high >= 10_000:
            return None
        low, high = high, min(10_000.0, 2 * high)
    while high - low > _TOLERANCE * high:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def releases_of(spec: JobSpec, rounds: int) -> list[PrivateRelease]:
    """What left in so many rounds of a federated job, whose noise is settled.

    Where the unit is an example each step is one: its noised gradient counts as seen, though the sum of a round's steps is all
    that leaves.
    """
    privacy = None if spec.federated is None else spec.federated.privacy
    if privacy is None or privacy.noise_multiplier is None or not rounds:
        return []
    sampling = 1.0 if privacy.sampling is None else privacy.sampling
    count = rounds * privacy.releases(spec.training.inner_steps)
    return [_release(privacy.noise_multiplier, sampling, count)]


def epsilon(releases: Iterable[PrivateRelease], delta: float) -> float:
    """What all releases together spend, in nats; 0 of none.

    The same for every order and grouping of the same releases: those that are alike are counted together.

    Args:
        delta: in (0, 1).
    """
    counts: Counter[tuple[float, float]] = Counter()
    for release in releases:
        counts[release.noise, release.sampling] += release.count
    if not counts:
        return 0.0
    kinds = sorted((noise, sampling, count) for (noise, sampling), count in counts.items())
    return _epsilon(tuple(kinds), delta)


def next_clip(clip: float, unclipped: Sequence[float], quantile: float, rate: float) -> float:
    """The clip of the next round, in norms of an update.

    Args:
        unclipped: of each owner whether its update was within the clip, 1 or 0, each with its noise.
        quantile: of updates that the clip is to leave as they are. rate: of its change.
    Source: arXiv 1905.03871, section 2.1, the geometric update.
    """
    if not unclipped:
        return clip
    share = min(1.0, max(0.0, math.fsum(unclipped) / len(unclipped)))
    return clip * math.exp(-rate * (share - quantile))


def _release(noise: float, sampling: float, count: int) -> PrivateRelease:
    try:
        return msgspec.convert({"noise": noise, "sampling": sampling, "count": count}, PrivateRelease)
    except msgspec.ValidationError as error:
        raise PrivacyBudgetError(
            f"{count} rounds with noise {noise:g} and sampling {sampling:g}: {error}. Noise below {LEAST_NOISE} hides nothing"
        ) from error


def most_that(fits: Callable[[int], bool], most: int) -> int:
    """The largest number up to ``most`` that fits, where all below do; 0 where none does."""
    low, high = 0, 1
    while high < most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


@lru_cache(maxsize=4096)
def _epsilon(kinds: tuple[tuple[float, float, int], ...], delta: float) -> float:
    import dp_accounting  # As the top of the module says.

    logging.getLogger("absl").setLevel(logging.ERROR)  # Orders that it leaves out are a warning each.
    plain = [(noise, count) for noise, sampling, count in kinds if sampling == 1.0]
    sampled = [(noise, sampling, count) for noise, sampling, count in kinds if sampling < 1.0]
    alone = math.fsum(count / noise**2 for noise, count in plain) ** -0.5 if plain else math.inf
    if not sampled:
        return float(dp_accounting.get_epsilon_gaussian(alone, delta))
    accountant = dp_accounting.rdp.RdpAccountant()
    if plain:
        accountant.compose(dp_accounting.GaussianDpEvent(alone))
    for noise, sampling, count in sampled:
        event = dp_accounting.PoissonSampledDpEvent(sampling, dp_accounting.GaussianDpEvent(noise))
        accountant.compose(event, count)
    bound = float(accountant.get_epsilon(delta))
    if bound > LITTLE_PRIVATE:
        return bound
    composed, interval = None, _COARSE if bound > 1 else _FINE
    for noise, sampling, count in [*sampled, *([(alone, 1.0, 1)] if plain else [])]:
        part = _losses(noise, sampling, interval).self_compose(count)
        composed = part if composed is None else composed.compose(part)
    assert composed is not None
    return min(bound, float(composed.get_epsilon_for_delta(delta)))


@lru_cache(maxsize=16)
def _losses(noise: float, sampling: float, interval: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=sampling, value_discretization_interval=interval
    )
