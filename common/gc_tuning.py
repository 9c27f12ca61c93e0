"""Fewer and shorter pauses of Python's cyclic garbage collector in a process that serves.

A full collection walks every object that there is: 50 to 100 ms with a thousand open streams (``benchmarks.upkeep.streams``), and
nobody is answered meanwhile. What was loaded and made until the start stays as long as the process, so it is not walked again;
and collections are rarer, since little that serving makes refers to itself: the records of packets on their way alone, 80,000 a
second at 1 Gbit/s, had the young ones walked a hundred times a second.
"""

import gc

YOUNG, MIDDLE, OLD = 10_000, 10, 50  # Objects, then collections of the generation below; Python's own: 700, 10, 10.


def settle() -> None:
    """Once everything is loaded and before the first request."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
