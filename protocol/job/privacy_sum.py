"""What rounds of noised updates tell at most, as an owner's node works it out by itself before it joins and before each round.

The coordinator keeps the account (``coordinator.domain.privacy``) with a library; whoever's data it is need not believe it.
"""

import math

from protocol.job.federated import PrivacySpec


def gaussian_delta(noise: float, rounds: int, epsilon: float) -> float:
    """The least delta with which so many releases of Gaussian noise keep to ``epsilon``, exactly.

    Args:
        noise: standard deviation in units of what one owner can change.
    Source: Balle and Wang, arXiv 1805.06530, theorem 8.
    """
    if rounds == 0:
        return 0.0
    if noise <= 0:
        return 1.0
    far = math.sqrt(rounds) / noise
    tail = _below(-far / 2 - epsilon / far)
    other = math.exp(min(700.0, epsilon + math.log(tail))) if tail > 0 else 0.0
    return max(0.0, _below(far / 2 - epsilon / far) - other)


def _below(value: float) -> float:
    """How likely a standard normal value is below: exact also where that is hardly ever."""
    return math.erfc(-value / math.sqrt(2)) / 2


def keeps_to_budget(privacy: PrivacySpec, rounds: int) -> bool:
    """Whether so many rounds stay within the epsilon and delta that their document promises."""
    return gaussian_delta(privacy.noise_multiplier or 0.0, rounds, privacy.epsilon) <= privacy.delta * (1 + 1e-6)
