"""How quick a node is at the work that it does, told from its rounds: the benchmark of its first day says little months later.

A node says how long its round computed, waiting left out. That could be a lie, as its benchmark could: either decides which
seat it is given, and a node that is slower than it said is what its replica waits for. So the figure moves slowly, and no
further from the benchmark than machines drift; and whoever is not known yet is planned with no more than others have shown.
"""

from collections.abc import Collection, Mapping
from math import inf
from statistics import median

SMOOTHING = 0.3  # Of the newest round: three rounds make two thirds of a change known.
# Times slower than its benchmark that a machine may be found; beyond, something else than speed is wrong.
FURTHEST = 16.0
QUICKEST = 2.0  # Times quicker: the benchmark is of a small model.
BEYOND = 2.0  # Times the median of the network that somebody of a class which nobody knows may be planned with.


def observed(known: float | None, benchmark: float, operations: float, busy: float, share: float) -> float:
    """A node's speed after another round, in the unit of its benchmark.

    Args:
        known: what earlier rounds told; None: nothing yet, then the benchmark counts.
        benchmark: operations a second that the node measured. ``share``: of them that steady work reaches.
        operations: of the round. ``busy``: seconds that it computed them; 0: not told.
    """
    before = benchmark if known is None else known
    if busy <= 0 or operations <= 0:
        return before
    found = operations / busy / share
    return (1 - SMOOTHING) * before + SMOOTHING * min(max(found, benchmark / FURTHEST), benchmark * QUICKEST)


class Shown:
    """What the rounds of nodes that are known have told, summed up once for all that are not."""

    def __init__(self, speeds: Mapping[str, Collection[float]]) -> None:
        """``speeds``: of each environment class."""
        every = [speed for of_class in speeds.values() for speed in of_class]
        self._most = {env_class: max(of_class) for env_class, of_class in speeds.items() if of_class}
        self._beyond = BEYOND * median(every) if every else inf

    def believed(self, claimed: float, env_class: str) -> float:
        """The speed that a node which is not known yet is planned with.

        Args:
            claimed: what it says itself, of its benchmark or its first rounds.
        """
        return min(claimed, self._most.get(env_class, self._beyond))
