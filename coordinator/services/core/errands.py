"""What is to be done with jobs, in the order in which it was asked for: several share one transaction.

Each errand is done as if it were alone. They share the commit, which costs a disk or a network some milliseconds, and those of
one job share reading and bringing it further. All are stored, or none; where one fails, each is done again by itself.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from common.log_lines import about

T = TypeVar("T")
CLOSE_S = 5.0  # A database that does not answer keeps nobody from ending.
MAX_SHARING = 32  # Errands of a transaction: each takes milliseconds, and whoever comes next waits for all of them.


class Errand(Generic[T]):
    """One thing that is to be done with a job. ``then`` is done once after all errands of a job that name it."""

    def __init__(
        self,
        job: str,
        act: Callable[[Any], Awaitable[T]],
        then: Callable[[Any], Awaitable[None]] | None,
    ) -> None:
        self.job, self.then = job, then
        self.done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._act, self._context = act, contextvars.copy_context()

    async def carry_out(self, work: Any) -> T:
        """Do it, within the context of whoever asked for it."""
        return await asyncio.get_running_loop().create_task(self._acting(work), context=self._context)

    async def _acting(self, work: Any) -> T:
        with about(job=self.job):
            return await self._act(work)

    async def follow_up(self, work: Any) -> None:
        """Do what comes after it, likewise."""
        if self.then is not None:
            await asyncio.get_running_loop().create_task(self._following(work), context=self._context)

    async def _following(self, work: Any) -> None:
        if self.then is not None:
            with about(job=self.job):
                await self.then(work)

    def succeed(self, answer: T) -> None:
        """Tell whoever waits that it is stored."""
        if not self.done.done():
            self.done.set_result(answer)

    def fail(self, error: BaseException) -> None:
        """Tell whoever waits that nothing of it is."""
        if self.done.done():
            return
        if isinstance(error, asyncio.CancelledError):
            self.done.cancel()
        else:
            self.done.set_exception(error)
            self.done.exception()  # Whoever waits may have left.


class Errands:
    """Those that wait. ``carry`` does some of them, which it takes here, and tells whoever waits; it never raises for one."""

    def __init__(self, carry: Callable[[], Awaitable[None]]) -> None:
        self._carry = carry
        self._waiting: deque[Errand[Any]] = deque()
        self._carrier: asyncio.Task[None] | None = None

    def add(self, errand: Errand[Any]) -> None:
        """Have it done."""
        self._waiting.append(errand)
        if self._carrier is None or self._carrier.done():
            # Nobody's own task: who asked for the first one may leave before the last one is done.
            running = asyncio.get_running_loop()
            self._carrier = running.create_task(self._run(), name="errands", context=contextvars.Context())

    def take(self, most: int) -> list[Errand[Any]]:
        """The next ones that somebody still waits for."""
        taken: list[Errand[Any]] = []
        while self._waiting and len(taken) < most:
            errand = self._waiting.popleft()
            if not errand.done.done():
                taken.append(errand)
        return taken

    def put_back(self, errands: list[Errand[Any]]) -> None:
        """They were not begun, and come first the next time."""
        self._waiting.extendleft(reversed(errands))

    async def close(self) -> None:
        """Let what is under way end, where that is soon; whatever else waits is not done."""
        if self._carrier is None or self._carrier.done():
            return
        for errand in self.take(len(self._waiting)):
            errand.fail(asyncio.CancelledError())
        await asyncio.wait([self._carrier], timeout=CLOSE_S)
        self._carrier.cancel()
        await asyncio.wait([self._carrier])

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._carry()
        except BaseException as error:
            for errand in self.take(len(self._waiting)):
                errand.fail(error)
            raise
