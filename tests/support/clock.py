"""Time that tests move themselves."""

import asyncio
import heapq
import itertools
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

_SETTLE_ROUNDS = 25  # Rounds of the event loop between two timers: enough for a chain of awaits to run through.


class VirtualClock:
    """Time that stands still until ``advance`` moves it: hours pass in milliseconds, the same way every time."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        """Start at ``start`` monotonic and unix seconds."""
        self._now = start
        self._order = itertools.count()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []

    def now(self) -> float:
        """Virtual seconds."""
        return self._now

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Return once ``advance`` has passed the moment."""
        done = asyncio.get_running_loop().create_future()
        self._at(self._now + max(0.0, seconds), lambda: None if done.done() else done.set_result(None))
        await done

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[object]:
        """Limit the body to ``seconds`` of virtual time."""
        limit = asyncio.timeout(None)
        if seconds is not None:
            self._at(self._now + max(0.0, seconds), lambda: _expire(limit))
        return limit

    async def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass, waking sleepers in the order of their times and letting each run on."""
        end = self._now + seconds
        await _settle()
        while self._timers and self._timers[0][0] <= end:
            at, _, action = heapq.heappop(self._timers)
            self._now = max(self._now, at)
            action()
            await _settle()
        self._now = end

    def _at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (when, next(self._order), action))


def _expire(limit: asyncio.Timeout) -> None:
    """End the body of a time limit, if it still runs."""
    try:
        limit.reschedule(asyncio.get_running_loop().time())
    except RuntimeError:
        return  # The body has ended, or not begun: there is nothing to interrupt.


async def _settle() -> None:
    for _ in range(_SETTLE_ROUNDS):
        await asyncio.sleep(0)
