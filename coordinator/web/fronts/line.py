"""A front's line to the coordinator at work: whether it is there, its news, and answers to what only it knows."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout

from coordinator.bus import Bus
from coordinator.errors import ElsewhereError, StoreAwayError, UnavailableError
from coordinator.web.fronts.answering import ASK, HEART_S, NEWS, FrontQuestion, LedgerFacts
from coordinator.web.fronts.seal import FrontSeal

T = TypeVar("T")

LOOK_S = 0.1
FOLLOW_S = 0.25  # Who is followed is looked at less often: where it serves is learnt no sooner.
WAIT_S = 15.0  # For another coordinator to take over: three seconds of silence, and its start.
SHARED_S = 0.25  # An answer that is no older is everybody's.
# So many times as old as it took is an answer given while the next one is asked for, and never older: what takes a moment is new.
OLD, OLDEST_S = 10.0, 3.0
ASK_S = 10.0
LATE_S = 0.5  # An answer that was under way when somebody else took over may still come.
MAX_KEPT = 256

GONE = "the coordinator stops: come back in a moment"

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class CoordinatorAtWork:
    """The coordinator at work, where it can be reached. ``gone``: is set once it cannot, or another one works."""

    url: str
    gone: asyncio.Event = field(default_factory=asyncio.Event)


async def while_at_work(at: CoordinatorAtWork, doing: Awaitable[T]) -> T:
    """What the one at work does; ClientError once it is not there, or not the one at work any more."""
    task, gone = asyncio.ensure_future(doing), asyncio.ensure_future(at.gone.wait())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            await asyncio.wait({task}, timeout=LATE_S)
        if not task.done():
            raise ClientError(GONE)
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


@dataclass
class _Answer:
    """One that was asked for at a moment; ``before``: the last one."""

    asked: float
    task: "asyncio.Task[tuple[Any, float]]"
    before: "_Answer | None"

    def may_be_told(self, now: float) -> bool:
        """Although another one is on its way."""
        if not self.task.done() or self.task.cancelled() or self.task.exception() is not None:
            return False
        return now - self.asked <= min(OLDEST_S, OLD * self.task.result()[1])

    def told(self, _kind: type[T]) -> T:
        said: T = self.task.result()[0]
        return said


class LineToWork:
    """Follows whoever works; ``run`` it."""

    def __init__(
        self,
        door: Callable[[], str],
        seal: FrontSeal,
        http: ClientSession,
        bus: Bus,
        fits: Callable[[], Awaitable[bool]],
    ) -> None:
        """Nobody is reached yet.

        Args:
            door: base address of the one at work; empty: none is known.
            bus: gets the news of the one at work.
            fits: whether this version may read the database.
        """
        self._door, self._seal, self._http, self._bus, self._fits = door, seal, http, bus, fits
        self._at: CoordinatorAtWork | None = None
        self._began, self._left = _now(), 0.0
        self._changed = asyncio.Condition()
        self._shared: dict[Any, _Answer] = {}
        self.looked = self.reads = False  # Whether it is known that what is stored may be read, and whether it may.
        self.facts: LedgerFacts | None = None

    @property
    def http(self) -> ClientSession:
        """What requests go out by."""
        return self._http

    @property
    def is_reached(self) -> bool:
        """Whether one at work is."""
        return self._at is not None

    @property
    def is_ready(self) -> bool:
        """Whether one at work is reached, or was a moment ago, so that waiting for the next one is worth it."""
        return self._at is not None or (self._left > 0 and _now() - self._left < WAIT_S)

    async def reach(self, seconds: float = WAIT_S) -> CoordinatorAtWork:
        """The one at work, as soon as it is reached.

        Raises:
            UnavailableError: nobody was within ``seconds``.
        """
        if not self.is_ready and _now() - self._began > WAIT_S:
            raise UnavailableError("This coordinator stands by: another one is at work. Come back in a moment.")
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: self._at is not None)
        if self._at is None:
            raise UnavailableError("no coordinator is at work now: another one is about to take over, come back then")
        return self._at

    async def ask(self, kind: type[T], what: str, nodes: tuple[str, ...] | None = None, address: str = "") -> T:
        """What the one at work knows, or has said lately.

        Raises:
            ElsewhereError: it does not say.
        """
        key, now = (what, nodes, address), _now()
        kept = self._shared.get(key)
        if kept is None or (kept.task.done() and now - kept.asked > SHARED_S):
            if self._at is None:
                raise ElsewhereError("the coordinator at work is not reached")
            self._shared = {other: one for other, one in self._shared.items() if now - one.asked <= OLDEST_S}
            asking = self._said(kind, FrontQuestion(what, nodes, address), self._at)
            kept = _Answer(now, asyncio.create_task(asking, name="ask-the-one-at-work"), kept)
            kept.task.add_done_callback(_heard)
            if len(self._shared) < MAX_KEPT:
                self._shared[key] = kept
        if kept.before is not None and not kept.task.done() and kept.before.may_be_told(now):
            return kept.before.told(kind)
        await asyncio.shield(kept.task)
        kept.before = None
        return kept.told(kind)

    async def run(self) -> None:
        """For ever: find the one at work, and follow it."""
        while True:
            if url := self._door():
                following = asyncio.create_task(self._follow(url), name="follow-the-one-at-work")
                try:
                    while not following.done() and self._door() == url:
                        await asyncio.wait({following}, timeout=FOLLOW_S)
                finally:
                    following.cancel()
                    await self._lose(url, await asyncio.gather(following, return_exceptions=True))
            await asyncio.sleep(LOOK_S)

    async def _follow(self, url: str) -> None:
        timeout = ClientTimeout(total=None, sock_connect=2.0, sock_read=4 * HEART_S)
        async with self._http.get(url + NEWS, headers=self._seal.headers, timeout=timeout) as answer:
            if answer.status != 200:
                return
            if (fits := await self._fits()) is not self.reads:
                LOG.info("this coordinator %s what is stored", "reads" if fits else "is of another version, and leaves")
            at, self.looked, self.reads = CoordinatorAtWork(url), True, fits
            self.facts = msgspec.json.decode(await self._ask(FrontQuestion("ledger"), at), type=LedgerFacts)
            await self._found(at)
            async for line in answer.content:
                if name := line.strip().decode(errors="replace"):
                    self._bus.publish(name)

    async def _said(self, kind: type[T], question: FrontQuestion, at: CoordinatorAtWork) -> tuple[T, float]:
        """What it says, and how many seconds that took."""
        began = _now()
        return msgspec.json.decode(await self._ask(question, at), type=kind), _now() - began

    async def _ask(self, question: FrontQuestion, at: CoordinatorAtWork) -> bytes:
        timeout = ClientTimeout(total=ASK_S, sock_connect=2.0)
        try:
            body, headers = msgspec.json.encode(question), self._seal.headers
            async with self._http.post(at.url + ASK, data=body, headers=headers, timeout=timeout) as answer:
                if answer.status != 200:
                    raise ElsewhereError(f"the coordinator at work answers {answer.status}")
                return await answer.read()
        except (ClientError, OSError, TimeoutError) as error:
            raise ElsewhereError("the coordinator at work does not answer") from error

    async def _found(self, at: CoordinatorAtWork) -> None:
        async with self._changed:
            self._at = at
            self._changed.notify_all()

    async def _lose(self, url: str, why: Sequence[BaseException | None]) -> None:
        passing = (asyncio.CancelledError, ClientError, OSError, TimeoutError, StoreAwayError, ElsewhereError)
        for error in why:
            if error is not None and not isinstance(error, passing):
                LOG.error("following the coordinator at %s", url, exc_info=error)
        if self._at is not None:
            self._at.gone.set()
            self._shared.clear()  # Whoever asks next waits for no answer of one that is gone.
            self._at, self._left = None, _now()


def _heard(asking: "asyncio.Task[Any]") -> None:
    """Nobody may wait for it: that it failed is told to whoever asks next."""
    if not asking.cancelled():
        asking.exception()


def _now() -> float:
    return asyncio.get_running_loop().time()
