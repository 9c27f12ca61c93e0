"""How quick a node is at the work that it does, told from its rounds: the benchmark of its first day says little months later.

A node says how long its round computed, waiting left out. That could be a lie, as its benchmark could: either only decides which
seat it is given, and a node that is slower than it said is what its replica waits for. So the figure moves slowly, and no
further from the benchmark than machines drift.
"""

SMOOTHING = 0.3  # Of the newest round: three rounds make two thirds of a change known.
FURTHEST = (
    16.0  # Times slower than its benchmark that a machine may be found; beyond, something else than speed is wrong.
)
QUICKEST = 2.0  # Times quicker: the benchmark is of a small model.


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
