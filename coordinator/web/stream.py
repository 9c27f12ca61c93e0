"""Server-Sent Events: what a page or a program watches live, at a cost that a slow reader cannot raise.

A reader is a place in a feed (``feed``). While it takes nothing, nothing is written for it: at most ``BUFFER_BYTES`` and a piece
wait in this process and ``SOCKET_BYTES`` in the system, and after ``STALL_S`` it is cut off. Every event that is not merely
the present state has an id; who connects again sends it as ``Last-Event-ID`` and misses nothing.
"""

import asyncio
import re
import socket
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import hdrs, web

from coordinator.errors import CottageError, UnavailableError
from coordinator.services.jobs import ports
from coordinator.web.feed import TERMINAL, Feed, FeedMark, FeedSource, JobSource, NetworkSource

HEART_S = 15.0  # A comment is written when nothing else was for so long: it shows that the line is alive, and finds out whether.
PACE_S = 5.0  # Whoever waits for an answer that comes in pieces is told so as often: a proxy would cut a line that is silent.
WAITING = b": waiting\n\n"
GONE_S = 0.25  # Whoever waits for an answer and has gone is noticed within this time.
LOOK_S = 2.0  # A stream whose reader has gone is noticed within this time, and makes room.
STALL_S = 30.0  # A reader that does not take a piece within this time is cut off.
LIFE_S = 3600.0  # Then a stream ends, and its reader connects again where it was: nobody keeps a connection for ever.
PIECE_BYTES = 16 << 10
BUFFER_BYTES = 16 << 10
SMALL_BYTES = 4 << 10  # Of this, into an empty buffer, nothing has to wait.
SOCKET_BYTES = 128 << 10  # 20 Mbit/s at a round trip of 50 ms.
RETRY_MS = 2000
_RESUME = re.compile(r"([0-9]{1,15})-([0-9]{1,15})")

__all__ = ["TERMINAL", "StreamLimits", "Streams"]


@dataclass(frozen=True)
class StreamLimits:
    """Streams that are open at a time: of all readers, and of one account or address."""

    total: int = 4096
    each: int = 128


class Writer:
    """One open stream."""

    def __init__(self, response: web.StreamResponse, transport: asyncio.Transport | None) -> None:
        self._response = response
        self._transport = transport
        self._written = time.monotonic()
        self._turn = asyncio.Lock()

    async def alive(self, seconds: float | None = None, comment: bytes = b": alive\n\n") -> None:
        """Write a comment if nothing was written for so long, by default ``HEART_S``."""
        seconds = HEART_S if seconds is None else seconds
        if not self._turn.locked() and time.monotonic() - self._written >= seconds:
            await self.write(comment)

    @asynccontextmanager
    async def kept_alive(self) -> AsyncGenerator[None]:
        """Meanwhile ``WAITING`` is written whenever nothing was for ``PACE_S``. A reader that takes nothing is cut off."""

        async def beat() -> None:
            while True:
                await asyncio.sleep(max(0.0, self._written + PACE_S - time.monotonic()) or PACE_S)
                try:
                    await self.alive(PACE_S, WAITING)
                except (TimeoutError, ConnectionError):
                    if self._transport is not None:
                        self._transport.abort()
                    return

        beating = asyncio.create_task(beat(), name="keep-alive")
        try:
            yield
        finally:
            beating.cancel()
            await asyncio.wait({beating})

    async def write(self, data: bytes) -> None:
        """Write piece by piece, so that what waits for a reader is never more than a buffer and a piece.

        Raises:
            TimeoutError: the reader took nothing for ``STALL_S``.
            ConnectionError: it has gone.
        """
        async with self._turn:
            await self._write(data)

    async def _write(self, data: bytes) -> None:
        if len(data) <= SMALL_BYTES and self._transport is not None and not self._transport.get_write_buffer_size():
            await self._response.write(data)
            self._written = time.monotonic()
            return
        for start in range(0, len(data), PIECE_BYTES):
            async with asyncio.timeout(STALL_S):
                await self._response.write(data[start : start + PIECE_BYTES])
        self._written = time.monotonic()


@asynccontextmanager
async def streamed(
    request: web.Request,
    response: web.StreamResponse,
    coming: "asyncio.Future[Any]",
    told: Callable[[CottageError], bytes],
) -> AsyncGenerator[Writer]:
    """Server-Sent Events that begin once the first piece is there, or after ``PACE_S`` without it, and are kept alive to the end.

    Args:
        coming: the first piece. told: how a refusal in mid-stream is written.
    Raises:
        Exception: what ``coming`` was refused with before the beginning: it is an ordinary answer.
    """
    try:
        out = await _begun(request, response, coming)
        try:
            async with out.kept_alive():
                yield out
        except CottageError as error:
            await out.write(told(error))
        await response.write_eof()
    except TimeoutError:  # A reader that takes nothing is cut off.
        if request.transport is not None:
            request.transport.abort()
    finally:
        if coming.cancel():
            await asyncio.wait({coming})


async def _begun(request: web.Request, response: web.StreamResponse, coming: "asyncio.Future[Any]") -> Writer:
    response.content_type = "text/event-stream"
    await asyncio.wait({coming}, timeout=PACE_S)
    if coming.done():
        coming.result()
    await response.prepare(request)
    bound(request.transport)
    out = Writer(response, request.transport)
    if not coming.done():
        await out.write(WAITING)
    return out


class Streams:
    """All open streams of the process."""

    def __init__(
        self,
        jobs: ports.JobsPort,
        network: ports.NetworkPort,
        limits: StreamLimits | None = None,
        reader_of: Callable[[web.Request], str] = lambda request: request.remote or "",
    ) -> None:
        """Nothing is followed before somebody watches.

        Args:
            reader_of: whose a request is: the streams of one reader are counted together.
        """
        self._jobs = jobs
        self._network = network
        self._limits = limits or StreamLimits()
        self._reader_of = reader_of
        self._open: Counter[str] = Counter()
        self._feeds: dict[str, Feed] = {}
        self._turn = asyncio.Lock()
        self._due: set[asyncio.Event] = set()
        self._closing = False

    async def job(self, request: web.Request, job: str) -> web.StreamResponse:
        """``job`` (JobView), ``metrics``, ``events`` as they come; ``end`` once the job is over."""
        await self._jobs.get(job)
        return await self._serve(request, job, lambda: JobSource(self._jobs, job))

    async def network(self, request: web.Request) -> web.StreamResponse:
        """``network`` (NetworkView) whenever a node or a job changed."""
        return await self._serve(request, "", lambda: NetworkSource(self._jobs, self._network))

    async def close(self, _app: web.Application) -> None:
        """End every stream, so that the process can stop."""
        self._closing = True
        for due in self._due:
            due.set()

    async def _serve(self, request: web.Request, name: str, source: Callable[[], FeedSource]) -> web.StreamResponse:
        reader = self._reader_of(request)
        if self._open.total() >= self._limits.total or self._open[reader] >= self._limits.each:
            raise UnavailableError(
                f"{self._open.total():,} streams are open, {self._open[reader]:,} of them yours: "
                "close some, or poll the resource instead"
            )
        response = web.StreamResponse(headers={hdrs.CACHE_CONTROL: "no-store", "X-Accel-Buffering": "no"})
        response.content_type = "text/event-stream"
        if request.method == "HEAD":
            await response.prepare(request)
            return response
        self._open[reader] += 1
        due = asyncio.Event()
        self._due.add(due)
        try:
            feed = await self._enter(name, source, due)
            try:
                await response.prepare(request)
                bound(request.transport)
                await self._run(request, Writer(response, request.transport), feed, due)
            finally:
                await self._leave(name, feed, due)
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._due.discard(due)
            self._open -= Counter({reader: 1})
        return response

    async def _enter(self, name: str, source: Callable[[], FeedSource], due: asyncio.Event) -> Feed:
        async with self._turn:
            feed = self._feeds.get(name)
            if feed is None or feed.failed:
                feed = self._feeds[name] = await Feed.open(source())
            feed.enter(due)
            return feed

    async def _leave(self, name: str, feed: Feed, due: asyncio.Event) -> None:
        if feed.leave(due):
            if self._feeds.get(name) is feed:
                del self._feeds[name]
            await feed.close()

    async def _run(self, request: web.Request, out: Writer, feed: Feed, due: asyncio.Event) -> None:
        await out.write(f"retry: {RETRY_MS}\n\n".encode())
        ends = time.monotonic() + LIFE_S
        mark, number, version = _mark_of(request, feed), -1, 0
        while not (self._closing or feed.failed or has_gone(request)) and time.monotonic() < ends:
            due.clear()
            found = feed.after(number, mark, PIECE_BYTES)
            if found is None:
                mark, number = await _catch_up(feed, out, mark)
                continue
            data, number, mark = found
            if number == feed.next:
                if version != feed.version:
                    data, version = data + feed.state, feed.version
                if feed.end:
                    await out.write(data + feed.end)
                    return
            if data:
                await out.write(data)
            if number == feed.next and version == feed.version and not await _woken(due):
                await out.alive()


async def _catch_up(feed: Feed, out: Writer, mark: FeedMark) -> tuple[FeedMark, int]:
    """Write what lies between ``mark`` and where the feed is; returns both as they are at the same moment."""
    while mark != feed.mark:
        found = await feed.source.news(mark, feed.mark)
        if found is None:  # Rows that the feed has seen are gone: there is nothing to wait for.
            return feed.mark, feed.next
        await out.write(found.data)
        mark = found.mark
    return mark, feed.next


async def _woken(due: asyncio.Event) -> bool:
    """Wait for news, ``LOOK_S`` at most; False: for nothing. A timer costs half of what a timeout does."""
    late = asyncio.get_running_loop().call_later(LOOK_S, due.set)
    try:
        await due.wait()
    finally:
        late.cancel()
    return not late.when() <= asyncio.get_running_loop().time()


def _mark_of(request: web.Request, feed: Feed) -> FeedMark:
    """Where the reader was; never ahead of the feed."""
    seen = _RESUME.fullmatch(request.headers.get("Last-Event-ID", ""))
    if seen is None:
        return FeedMark()
    return FeedMark(min(int(seen[1]), feed.mark.points), min(int(seen[2]), feed.mark.event))


def bound(transport: Any) -> None:
    """Have little wait in this process and in the system for a reader that takes nothing."""
    if transport is not None:
        transport.set_write_buffer_limits(high=BUFFER_BYTES)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)


@asynccontextmanager
async def while_there(request: web.Request) -> AsyncGenerator[None]:
    """What is done within is cancelled once whoever asked has gone, also while nothing comes that could be written.

    Raises:
        ConnectionResetError: they have gone.
    """
    loop, limit = asyncio.get_running_loop(), asyncio.timeout(None)
    next_look: asyncio.TimerHandle | None = None

    def look() -> None:
        nonlocal next_look
        if has_gone(request):
            limit.reschedule(loop.time())
        else:
            next_look = loop.call_later(GONE_S, look)

    try:
        async with limit:
            look()
            yield
    except TimeoutError:
        if limit.expired():
            raise ConnectionResetError("nobody waits for the answer any more") from None
        raise
    finally:
        if next_look is not None:
            next_look.cancel()


def has_gone(request: web.Request) -> bool:
    """Whether nobody waits for the answer any more."""
    return request.transport is None or request.transport.is_closing()
