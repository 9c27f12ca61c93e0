"""What rounds of noised updates tell at most, as an owner's node works it out by itself before it joins and before each round.

The coordinator keeps the account (``coordinator.domain.privacy``) with a library; whoever's data it is need not believe it.
Without sampling the sum is exact. With it Renyi divergences of whole orders bound it: about a tenth more than the library's
distributions of losses find, and the noise of a document is chosen so that this bound keeps to the budget as well.
"""

import math
from functools import lru_cache

from protocol.job.federated import LEAST_HELD, FederatedSpec, PrivacySpec

ORDERS = (*range(2, 65), 80, 96, 128, 192, 256, 384, 512)


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


@lru_cache(maxsize=64)
def renyi_divergences(noise: float, sampling: float) -> tuple[float, ...]:
    """Of one release of Gaussian noise on a sum that each example is drawn for, for each of ``ORDERS``, in nats.

    Source: Mironov, Talwar and Zhang, arXiv 1908.10530, section 3.3.
    """
    found = []
    for order in ORDERS:
        terms = [
            math.lgamma(order + 1)
            - math.lgamma(taken + 1)
            - math.lgamma(order - taken + 1)
            + taken * math.log(sampling)
            + (order - taken) * math.log1p(-sampling)
            + (taken * taken - taken) / (2 * noise * noise)
            for taken in range(order + 1)
        ]
        most = max(terms)
        found.append((most + math.log(math.fsum(math.exp(term - most) for term in terms))) / (order - 1))
    return tuple(found)


def sampled_epsilon(noise: float, sampling: float, count: int, delta: float) -> float:
    """What so many releases of Gaussian noise tell of an example at most, which each draws by chance, in nats.

    Args:
        noise: standard deviation in units of what one example can change. sampling: how likely it is drawn, below 1.
    Source: Canonne, Kamath and Steinke, arXiv 2004.00010, proposition 12, of the divergences above.
    """
    if count == 0:
        return 0.0
    if noise <= 0:
        return math.inf
    pairs = zip(ORDERS, renyi_divergences(noise, sampling), strict=True)
    least: float = min(
        count * told + math.log1p(-1 / order) - math.log(delta * order) / (order - 1) for order, told in pairs
    )
    return max(0.0, least)


def keeps_to_budget(privacy: PrivacySpec, rounds: int, inner_steps: int = 1) -> bool:
    """Whether so many rounds stay within the epsilon and delta that their document promises.

    Args:
        inner_steps: of a round, in each of which there is noise where ``unit`` is example.
    """
    noise, count = privacy.noise_multiplier or 0.0, rounds * privacy.releases(inner_steps)
    if privacy.sampling is not None:
        return sampled_epsilon(noise, privacy.sampling, count, privacy.delta) <= privacy.epsilon * (1 + 1e-6)
    return gaussian_delta(noise, count, privacy.epsilon) <= privacy.delta * (1 + 1e-6)


def loss_noise(privacy: PrivacySpec) -> float:
    """Standard deviation of the noise on what an owner tells of a held-out loss, of which one unit changes 1 at most.

    With owners as the unit it is that of the share of the budget. With examples, each that is measured with is in no step, and is
    told of once a round: those releases have all of epsilon and delta to themselves.

    Raises:
        ValueError: noise and rounds are not settled.
    """
    if not privacy.per_example:
        return privacy.settled_noise / math.sqrt(privacy.loss_share)
    if privacy.most_rounds is None:
        raise ValueError("privacy.most_rounds is not settled yet: the coordinator does so when the job is quoted")
    return _plain_noise(privacy.epsilon, privacy.delta, max(1, privacy.most_rounds))


def loss_error(federated: FederatedSpec) -> float | None:
    """Standard deviation of the noise on the mean loss of a round, in nats a token, at most; None where no loss is told."""
    privacy = federated.privacy
    if privacy is None or privacy.heldout is None:
        return None
    changed = privacy.heldout.most / 2 / (LEAST_HELD if privacy.per_example else 1)
    alike = federated.honest if federated.sum == "secure" else 1  # Who share one noise.
    return loss_noise(privacy) * changed / math.sqrt(federated.least_owners * alike)


@lru_cache(maxsize=64)
def _plain_noise(epsilon: float, delta: float, rounds: int) -> float:
    low, high = 0.0, 1.0
    while gaussian_delta(high, rounds, epsilon) > delta:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if gaussian_delta(middle, rounds, epsilon) <= delta else (middle, high)
    return high
