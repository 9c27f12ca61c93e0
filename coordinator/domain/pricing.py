"""What work is worth: operations, the price, the pot of a round and exact shares. Integers wherever money is."""

from collections.abc import Mapping, Sequence
from fractions import Fraction

OPERATIONS_PER_PARAMETER = 6  # Forward 2, backward 4, for each parameter and token.
PETAFLOP = 10**15


def operations(parameters: int, tokens: int) -> int:
    """Floating-point operations of training ``parameters`` on ``tokens``."""
    return OPERATIONS_PER_PARAMETER * parameters * tokens


def least(job_price: int, replicas: int) -> int:
    """What a job that trains all its rounds pays at least, where every share is verified: one replica's part of each round.

    A round pays for the tokens of the replicas that contributed, which are between one and ``replicas``; all of them in every
    round make ``job_price``, and nothing makes more.
    """
    return job_price // replicas


def price(total_operations: int, per_petaflop: int, minimum: int) -> int:
    """Price in millionths, rounded up; never below ``minimum``."""
    return max(minimum, -(-total_operations * per_petaflop // PETAFLOP))


def pot(job_price: int, tokens_before: int, tokens_after: int, tokens_total: int) -> int:
    """What the tokens between two points of the job are worth: pots of a job in parts sum up to the price, exactly."""
    return _worth(job_price, tokens_after, tokens_total) - _worth(job_price, tokens_before, tokens_total)


def shares(amount: int, weights: Mapping[str, int]) -> dict[str, int]:
    """Split ``amount`` by weight with the largest remainder first; ties go by key. The parts sum to ``amount``.

    No weights at all, or only zeros: an empty split, and nothing is owed.
    """
    total = sum(weights.values())
    if total <= 0:
        return {}
    exact = {key: Fraction(amount * weight, total) for key, weight in weights.items()}
    parts = {key: int(value) for key, value in exact.items()}
    rest = amount - sum(parts.values())
    for key in sorted(exact, key=lambda key: (parts[key] - exact[key], key))[:rest]:
        parts[key] += 1
    return parts


def round_weights(stage_parameters: Sequence[int], members: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Weight of each member (key -> stage, steps): the operations that a token costs there, for each step."""
    return {key: OPERATIONS_PER_PARAMETER * stage_parameters[stage] * steps for key, (stage, steps) in members.items()}


def _worth(job_price: int, tokens: int, tokens_total: int) -> int:
    return job_price * min(tokens, tokens_total) // tokens_total
