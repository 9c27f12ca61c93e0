"""When to stop waiting: a robust estimate from those that have arrived already. Pure statistics, times in seconds.

The deadline follows what the others need, so it fits a fast home network and a slow one alike, and one extreme value does not
move it. Source: median absolute deviation as a rule for outliers, Leys et al., J. Exp. Soc. Psychol. 49 (2013) 764; fixed
deadlines that fit nobody are a known complaint of averaging groups (hivemind #676).
"""

import statistics
from collections.abc import Sequence

# Median absolute deviations; for a normal spread 2.7 standard deviations, past which are 0.7 % of the honest.
LATENESS = 4.0
LEAST_SLACK = 0.1  # Of the median: three that arrive together have no spread, and a fourth is not late by a moment.
LEAST_SLACK_S = 1.0  # Messages of the same instant reach the coordinator a second apart on a busy home line.


def quorum(expected: int) -> int:
    """How many must have arrived before anybody is late: half of them, rounded up."""
    return -(-expected // 2)


def deadline(taken: Sequence[float], expected: int, lateness: float) -> float | None:
    """After how long nobody is waited for any more.

    Args:
        taken: how long each of those took that have arrived.
        expected: how many could.
        lateness: median absolute deviations beyond the median that are allowed.
    Returns:
        None while fewer than ``quorum(expected)`` have arrived.
    """
    if not taken or len(taken) < quorum(expected):
        return None
    middle = statistics.median(taken)
    spread = statistics.median(abs(value - middle) for value in taken)
    return middle + max(lateness * spread, LEAST_SLACK * middle, LEAST_SLACK_S)
