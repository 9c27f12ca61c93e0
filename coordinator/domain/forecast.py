"""How far a job's time and cost lie from what its plan says: ranges that nine of ten jobs should end in.

What earlier jobs took beside their plans is the best witness of what the next will take: of n of them the k-th smallest and
the k-th largest hold the next one with probability 1 - 2k / (n + 1), whatever the distribution, if jobs are alike (order
statistics; this is split conformal prediction, Vovk et al., Algorithmic Learning in a Random World, 2005). Until there are
enough, assumed ones stand in.
"""

import math
from collections.abc import Sequence
from statistics import median

import msgspec

from coordinator.domain.pricing import HOUR, LEAVES_HOURS

OUTSIDE = 0.1  # Of jobs, on both sides together.
RECENT = 60  # Earlier jobs that count.
ASSUMED = (0.5, 3.0, 0.6, 2.2, 0.7, 1.6, 0.85, 1.3, 0.95, 1.1)  # Taken beside planned, the widest first: they go first.
ASSUMED_PAID = (0.5, 0.7, 0.8, 0.9, 0.95)  # Paid beside the price where replicas may miss rounds; the lowest go first.
STUMBLES = 2  # Rounds that a replica misses although nobody leaves for good: a line is cut, a machine stalls.
LEAST_WEEKS = 12  # Of machines, from which on they say what another may expect.
TAUGHT = 4  # Earlier jobs that stand for one assumed one.
TAUGHT_PAID = 6  # The same of what was paid: calm days say little about rough ones.


class JobOutcome(msgspec.Struct, frozen=True):
    """An earlier job: ``time``, training's hours beside those of its plan; ``paid``, what was paid beside its price.

    A job of one replica always pays its price: rounds that it misses are done again. It is no witness for others.
    """

    time: float
    paid: float
    replicas: int


class Range(msgspec.Struct, frozen=True):
    """Nine of ten lie between ``low`` and ``high``, half of them below ``middle``."""

    low: float
    middle: float
    high: float


def time(outcomes: Sequence[JobOutcome]) -> Range:
    """Factors of a plan's hours."""
    known = [outcome.time for outcome in outcomes[:RECENT]]
    values = sorted([*known, *ASSUMED[len(known) // TAUGHT :]])
    aside = max(0, math.floor((len(values) + 1) * OUTSIDE / 2) - 1)
    return Range(values[aside], median(values), values[len(values) - 1 - aside])


def paid(outcomes: Sequence[JobOutcome], replicas: int, members: int, rounds: int, hours: float) -> Range:
    """Shares of a job's price: what leaves takes its replica's part of a round along.

    Who leaves is assumed to follow a Poisson process, once in LEAVES_HOURS for each of ``members``; earlier jobs say where
    that is too good. Of that process so many losses are counted as 19 of 20 jobs have at most, and STUMBLES besides.
    """
    if replicas == 1:
        return Range(1.0, 1.0, 1.0)
    leaving = members * hours / LEAVES_HOURS
    parts = replicas * max(1, rounds)
    least = 1 / replicas
    model = 1 - (_most(leaving) + STUMBLES) / parts
    known = [outcome.paid for outcome in outcomes[:RECENT] if outcome.replicas > 1]
    values = sorted([*known, *ASSUMED_PAID[len(known) // TAUGHT_PAID :]])
    seen = values[max(0, math.floor((len(values) + 1) * OUTSIDE / 2) - 1)]
    low = min(1.0, max(least, min(model, seen)))
    return Range(low, max(low, 1 - min(1.0, leaving / parts)), 1.0)


def pay(weeks: Sequence[float]) -> Range | None:
    """What a machine's week brings, from what other machines' weeks brought; None where too few are known.

    Both are amounts for 10^15 operations that a machine was there for, whether it had work or not.
    """
    if len(weeks) < LEAST_WEEKS:
        return None
    values = sorted(weeks)
    aside = max(0, math.floor((len(values) + 1) * OUTSIDE / 2) - 1)
    return Range(values[aside], median(values), values[len(values) - 1 - aside])


def _most(mean: float) -> int:
    """Events that a Poisson process stays at or below in 19 of 20 cases."""
    if mean > 100:
        return math.ceil(mean + 1.645 * math.sqrt(mean))
    count, chance = 0, math.exp(-mean)
    below = chance
    while below < 1 - OUTSIDE / 2:
        count += 1
        chance *= mean / count
        below += chance
    return count


def hours(planned_seconds: float, factor: float) -> float:
    """Hours of a plan's seconds."""
    return planned_seconds * factor / HOUR
