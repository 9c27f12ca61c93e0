"""What is to be done with jobs, in the order in which it was asked for: several share one transaction.

Each errand is done as if it were alone. They share the commit, which costs a disk or a network some milliseconds, and those of
one job share reading and bringing it further. All are stored, or none; where one fails, each is done again by itself.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from common.log_lines import about

T = TypeVar("T")
E = TypeVar("E", bound="Asked[Any]")
Q = TypeVar("Q")
A = TypeVar("A")
CLOSE_S = 5.0  # A database that does not answer keeps nobody from ending.
MAX_JOINT = 64  # Questions that are answered at once.
MAX_SHARING = 32  # Errands of a transaction: each takes milliseconds, and whoever comes next waits for all of them.


class Asked(Generic[T]):
    """What somebody waits for."""

    def __init__(self) -> None:
        self.done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

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


class Errand(Asked[T]):
    """One thing that is to be done with a job. ``then`` is done once after all errands of a job that name it."""

    def __init__(
        self,
        job: str,
        act: Callable[[Any], Awaitable[T]],
        then: Callable[[Any], Awaitable[None]] | None,
    ) -> None:
        super().__init__()
        self.job, self.then = job, then
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


@contextmanager
def told(asked: Sequence[Asked[Any]]) -> Iterator[None]:
    """Whoever asked hears why there is no answer, where the body fails; what ends this process goes on."""
    try:
        yield
    except BaseException as error:
        for one in asked:
            one.fail(error)
        if not isinstance(error, Exception):
            raise


class Errands(Generic[E]):
    """Those that wait. ``carry`` does some of them, which it takes here, and tells whoever waits; it never raises for one."""

    def __init__(self, carry: Callable[[], Awaitable[None]]) -> None:
        self._carry = carry
        self._waiting: deque[E] = deque()
        self._carrier: asyncio.Task[None] | None = None

    def add(self, errand: E) -> None:
        """Have it done."""
        self._waiting.append(errand)
        if self._carrier is None or self._carrier.done():
            # Nobody's own task: who asked for the first one may leave before the last one is done.
            running = asyncio.get_running_loop()
            self._carrier = running.create_task(self._run(), name="errands", context=contextvars.Context())

    def take(self, most: int) -> list[E]:
        """The next ones that somebody still waits for."""
        taken: list[E] = []
        while self._waiting and len(taken) < most:
            errand = self._waiting.popleft()
            if not errand.done.done():
                taken.append(errand)
        return taken

    def put_back(self, errands: list[E]) -> None:
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


class _Question(Asked[A], Generic[Q, A]):
    def __init__(self, asked: Q) -> None:
        super().__init__()
        self.asked = asked


class Joint(Generic[Q, A]):
    """Answers what was asked while it answered others all at once, so that thousands who come together share transactions."""

    def __init__(self, answer: Callable[[Sequence[Q]], Awaitable[Sequence[A | Exception]]]) -> None:
        """``answer``: each of so many questions, in their order; an exception is raised where that one was asked."""
        self._answer = answer
        self._waiting: Errands[_Question[Q, A]] = Errands(self._carry)

    async def ask(self, question: Q) -> A:
        """What it is; raises what keeps it from being answered."""
        self._waiting.add(asked := _Question[Q, A](question))
        return await asked.done

    async def _carry(self) -> None:
        asked = self._waiting.take(MAX_JOINT)
        with told(asked):
            answers = await self._answer([one.asked for one in asked]) if asked else ()
            for one, answer in zip(asked, answers, strict=True):
                if isinstance(answer, Exception):
                    one.fail(answer)
                else:
                    one.succeed(answer)
        await asyncio.sleep(0)  # Whoever was answered has acted on it before the next ones are.
