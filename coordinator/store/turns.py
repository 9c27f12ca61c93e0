"""Whose turn it is at the database: one transaction at a time, nodes and loops beside the requests of people and programs.

::

    nodes, loops ----first come----------------------.
                                                     +--one of each in turn--> the database
    requests --------that which arrived first--------'

A request has several transactions. Were they served as they come, a thousand requests at a time would all be over at the end;
so what belongs to the oldest request goes first. However many there are, every second turn is a node's or a loop's. Whoever
waits is not told that the database is away as long as others have their turns.
"""

import asyncio
import contextlib
import heapq
import itertools
from collections import deque
from collections.abc import Iterator
from contextvars import ContextVar

from coordinator.errors import StoreAwayError, StoreBusyError
from coordinator.store import faults

MAX_WAITING = 2_048  # Transactions of requests; some 40 s on a slow machine. Longer than that nobody waits anyway.
SLOW_S = 5.0  # A fault that took so long would take as long again for each who waits: they hear of it at once.

_ARRIVED: ContextVar[float | None] = ContextVar("arrived", default=None)
_Waiting = asyncio.Future[None]


@contextlib.contextmanager
def of_request() -> Iterator[None]:
    """What is done within belongs to a request that has just arrived."""
    token = _ARRIVED.set(asyncio.get_running_loop().time())
    try:
        yield
    finally:
        _ARRIVED.reset(token)


class Turns:
    """A lock with two queues."""

    def __init__(self) -> None:
        self._taken = False
        self._own: deque[_Waiting] = deque()
        self._asked: list[tuple[float, int, _Waiting]] = []
        self._numbers = itertools.count()
        self._own_next = True
        self._since = 0.0
        """When the turn was handed over last."""

    async def take(self) -> None:
        """Wait for the turn; ``give`` it back.

        Raises:
            StoreBusyError: too many requests wait.
            StoreAwayError: nobody's turn has ended for as long as the database may take.
        """
        loop = asyncio.get_running_loop()
        if not self._taken:
            self._taken, self._since = True, loop.time()
            return
        mine = self._queue(loop)
        try:
            while not mine.done():
                await asyncio.wait([mine], timeout=faults.ANSWER_S)
                if not mine.done() and loop.time() - self._since >= faults.ANSWER_S:
                    raise StoreAwayError(f"no answer within {faults.ANSWER_S:g} s")
            mine.result()
        except BaseException:
            if not mine.done():
                mine.cancel()
            elif not mine.cancelled() and mine.exception() is None:
                self.give()  # It had come, for somebody who is gone.
            raise

    def give(self, away: StoreAwayError | None = None) -> None:
        """Hand the turn on. ``away``: the database did not answer in it."""
        now = asyncio.get_running_loop().time()
        if away is not None and now - self._since >= SLOW_S:
            for waiting in (*self._own, *(one for *_, one in self._asked)):
                if not waiting.done():
                    waiting.set_exception(type(away)(away.cause))
            self._own.clear()
            self._asked.clear()
        following = self._next()
        self._taken, self._since = following is not None, now
        if following is not None:
            following.set_result(None)

    def _queue(self, loop: asyncio.AbstractEventLoop) -> _Waiting:
        mine: _Waiting = loop.create_future()
        arrived = _ARRIVED.get()
        if arrived is None:
            self._own.append(mine)
        else:
            if len(self._asked) >= MAX_WAITING:
                raise StoreBusyError(f"{MAX_WAITING:,} transactions of requests wait")
            heapq.heappush(self._asked, (arrived, next(self._numbers), mine))
        return mine

    def _next(self) -> _Waiting | None:
        """Who is next, of those who still wait."""
        while self._own and self._own[0].done():
            self._own.popleft()
        while self._asked and self._asked[0][2].done():
            heapq.heappop(self._asked)
        if self._own and (self._own_next or not self._asked):
            self._own_next = False
            return self._own.popleft()
        self._own_next = True
        return heapq.heappop(self._asked)[2] if self._asked else None
