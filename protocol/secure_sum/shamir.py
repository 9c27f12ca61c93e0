"""A secret in shares: so many of them put it together, and fewer tell nothing at all.

The secret is a polynomial's value at 0, a share its value at a place above; the polynomial's other coefficients are the operating
system's randomness. Source: Shamir, How to share a secret, CACM 22 (1979) 612.
"""

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache

PRIME = (1 << 256) + 297
"""The smallest above 2^256: every 32 bytes are a number below it."""
SHARE_BYTES = 33


def split(secret: bytes, places: Sequence[int], threshold: int) -> dict[int, bytes]:
    """Shares of 32 bytes, by place.

    Args:
        places: distinct, from 1 on. threshold: shares that put it together, from 1 to as many as there are places.
    """
    if len(secret) != 32 or not 1 <= threshold <= len(places) or len({*places}) < len(places) or min(places) < 1:
        raise ValueError(
            f"{len(secret)} bytes cannot be split for {len(places)} places with a threshold of {threshold}"
        )
    coefficients = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return {place: _value(coefficients, place).to_bytes(SHARE_BYTES, "big") for place in places}


def join(shares: Mapping[int, bytes]) -> bytes:
    """The secret, of at least as many shares as its threshold.

    Raises:
        ValueError: they are no shares of 32 bytes.
    """
    numbers = {place: int.from_bytes(share, "big") for place, share in shares.items()}
    if not numbers or any(not 0 <= number < PRIME for number in numbers.values()):
        raise ValueError("no shares, or one that is no number of the field")
    places = tuple(sorted(numbers))
    secret = sum(numbers[place] * factor for place, factor in zip(places, _factors(places), strict=True)) % PRIME
    if secret >= 1 << 256:
        raise ValueError("the shares put no secret together: one of them is false")
    return secret.to_bytes(32, "big")


def _value(coefficients: Sequence[int], place: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * place + coefficient) % PRIME
    return value


@lru_cache(maxsize=512)
def _factors(places: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's, for the value at 0."""
    factors = []
    for place in places:
        above, below = 1, 1
        for other in places:
            if other != place:
                above, below = above * other % PRIME, below * (other - place) % PRIME
        factors.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(factors)
