"""Time comes in through the front: code takes a ``Clock``, and tests hand it one that they move themselves."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

BACKOFF_FIRST_S = 0.25
BACKOFF_MAX_S = 15.0
BACKOFF_JITTER = 0.5  # Up to half is taken away by chance, so that many nodes do not knock in step.

instant: Callable[[], float] = time.perf_counter if sys.platform == "win32" else time.monotonic
"""Monotonic seconds for what is shorter than a round trip. Until Python 3.13 ``time.monotonic`` of Windows, which is the event
loop's time, too, moves every 15.6 ms."""

_T = TypeVar("_T")


class Clock(Protocol):
    """What time it is, and waiting."""

    def now(self) -> float:
        """Monotonic seconds, for intervals."""

    def time(self) -> float:
        """Seconds since 1970, for what other machines must understand."""

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds``."""

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        """Raise TimeoutError from the body that takes longer than ``seconds``; None waits for ever."""


class SystemClock:
    """The machine's own time."""

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def time(self) -> float:
        """Seconds since 1970."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds``."""
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        """Limit the body to ``seconds``."""
        return asyncio.timeout(seconds)


def backoff(attempt: int, jitter: Callable[[], float]) -> float:
    """Seconds to wait before try number ``attempt`` (from 1): doubling, capped, less a random part.

    Args:
        attempt: how many tries have failed, from 1.
        jitter: returns a number in [0, 1), such as ``random.random``.
    """
    full = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2 ** min(max(0, attempt - 1), 16))
    return float(full * (1 - BACKOFF_JITTER * jitter()))


async def within(seconds: float | None, work: Awaitable[_T]) -> _T:
    """Wait for ``work``, at most ``seconds`` (None: for ever), and end it where it takes longer or the caller is cancelled.

    What ``asyncio.wait_for`` does from Python 3.12 on. Before, it forgot that its caller was cancelled if the work was done at
    the same moment (cpython issue 86296), and whoever waits for the caller's end waits for ever. ``asyncio.timeout`` raises no
    TimeoutError in a task that is being cancelled before 3.11.3.

    Raises:
        TimeoutError: it took longer.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task,), timeout=seconds)
        if not task.done():
            raise TimeoutError
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
