"""Bounded memory: whoever wants to hold bytes asks first, and waits."""

import asyncio
from collections import deque


class ByteBudget:
    """At most ``limit`` bytes in at most ``count`` pieces at a time; a single larger piece passes when nothing else is held.

    Served in the order of asking, so that a large piece is not starved by small ones.
    """

    def __init__(self, limit: int, count: int) -> None:
        """Take both limits."""
        self._limit = limit
        self._count = count
        self._held = 0
        self._pieces = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def held(self) -> int:
        """Bytes held now."""
        return self._held

    def try_take(self, size: int) -> bool:
        """Take ``size`` bytes if that is possible at once."""
        if self._waiting or not self._fits(size):
            return False
        self._add(size)
        return True

    def force(self, size: int) -> None:
        """Count ``size`` bytes that are in memory already and cannot be refused."""
        self._add(size)

    async def take(self, size: int) -> None:
        """Take ``size`` bytes, waiting until there is room."""
        if self.try_take(size):
            return
        granted = asyncio.get_running_loop().create_future()
        self._waiting.append((size, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.give(size)
            self._serve()
            raise

    def give(self, size: int) -> None:
        """Give ``size`` bytes back."""
        self._held -= size
        self._pieces -= 1
        self._serve()

    def _fits(self, size: int) -> bool:
        return self._pieces == 0 or (self._held + size <= self._limit and self._pieces < self._count)

    def _add(self, size: int) -> None:
        self._held += size
        self._pieces += 1

    def _serve(self) -> None:
        while self._waiting:
            size, granted = self._waiting[0]
            if granted.done():  # Its waiter was cancelled.
                self._waiting.popleft()
                continue
            if not self._fits(size):
                return
            self._waiting.popleft()
            self._add(size)
            granted.set_result(None)
