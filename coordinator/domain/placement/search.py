"""Local search over seats: swap two nodes, keep what is better, and at first some of what is not.

The domain has no chance of its own: whoever calls gives a seed, and the same seed gives the same plan on every machine.

Source: simulated annealing, Kirkpatrick, Gelatt and Vecchi 1983; a generator of Steele, Lea and Flood 2014 (SplitMix64).
"""

import math
from collections.abc import Sequence
from typing import Protocol

WARMTH = 0.03  # A plan so much dearer is taken as often as not at the start; more only loses the good start again.
AIMED = 0.6  # Swaps that begin at what bounds the plan; the rest begin anywhere, or the search would circle.
_MASK = (1 << 64) - 1


class Chance:
    """Numbers that look random and follow from the seed alone."""

    def __init__(self, seed: int) -> None:
        """Begin at ``seed``, any integer."""
        self._state = seed & _MASK

    def below(self, limit: int) -> int:
        """A whole number from 0 to ``limit - 1``; the bias of the remainder is below 1e-12 for any plan."""
        return self._next() % limit

    def share(self) -> float:
        """A number from 0 to 1, 1 excluded."""
        return (self._next() >> 11) * 2.0**-53

    def _next(self) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return mixed ^ (mixed >> 31)


class Objective(Protocol):
    """What is minimised: places, each with a node; those from ``seats`` on are the bench."""

    places: list[int]
    seats: int

    def cost(self) -> float:
        """Of the places as they are."""
        ...

    def swap(self, one: int, other: int) -> float:
        """Exchange the nodes of two places; returns the cost after it. The same swap again undoes it."""
        ...

    def weak(self) -> Sequence[int]:
        """Places whose nodes bound the cost now."""
        ...

    def idle(self, one: int, other: int) -> bool:
        """Whether exchanging these two cannot change anything."""
        ...


def anneal(objective: Objective, steps: int, seed: int) -> float:
    """Improve ``objective`` in place by at most ``steps`` swaps; it ends at the best that was seen.

    Args:
        steps: swaps that are tried; the caller's budget, since the domain has no clock.
        seed: of the choice of swaps.
    Returns:
        the cost, never above that at the start.
    """
    count, chance = len(objective.places), Chance(seed)
    current = best = objective.cost()
    if objective.seats < 1 or count < 2:
        return best
    held = list(objective.places)
    for step in range(steps):
        one = _first(objective, chance)
        other = chance.below(count)
        if objective.idle(one, other):
            continue
        after = objective.swap(one, other)
        if after <= current or _accept(after - current, best, step / steps, chance):
            current = after
            if current < best * (1 - 1e-12):
                best, held = current, list(objective.places)
        else:
            objective.swap(one, other)
    _restore(objective, held)
    return best


def descend(objective: Objective, passes: int) -> float:
    """Try every swap of a seat with every place, ``passes`` times over or until none helps; returns the cost."""
    best = objective.cost()
    for _ in range(passes):
        before = best
        for one in range(objective.seats):
            for other in range(one + 1, len(objective.places)):
                if objective.idle(one, other):
                    continue
                after = objective.swap(one, other)
                if after < best * (1 - 1e-12):
                    best = after
                else:
                    objective.swap(one, other)
        if best >= before:
            break
    return best


def _first(objective: Objective, chance: Chance) -> int:
    if chance.share() < AIMED:
        weak = objective.weak()
        if weak:
            return weak[chance.below(len(weak))]
    return chance.below(objective.seats)


def _accept(worse: float, best: float, progress: float, chance: Chance) -> bool:
    warmth = WARMTH * best * (1 - progress) ** 2
    return warmth > 0 and worse < 20 * warmth and chance.share() < math.exp(-worse / warmth)


def _restore(objective: Objective, wanted: Sequence[int]) -> None:
    """Bring the places back to ``wanted`` by swaps, so that the objective's own sums follow."""
    where = {node: place for place, node in enumerate(objective.places)}
    for place, node in enumerate(wanted):
        at = where[node]
        if at != place:
            moved = objective.places[place]
            objective.swap(place, at)
            where[node], where[moved] = place, at
