"""Waiting for what other programs do."""

import time
from collections.abc import Callable

LIMIT_S = 30.0
HANGS_S = 60.0  # What takes longer hangs, also on a busy machine; that it takes less proves nothing.


def until_true(check: Callable[[], object], limit: float = LIMIT_S) -> None:
    """Ask again and again until it is; fails after ``limit`` seconds, half a minute if left out."""
    end = time.monotonic() + limit
    while not check():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)
