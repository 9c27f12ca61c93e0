"""Server-Sent Events: what a page or a program watches live, with a bounded amount kept for a slow reader.

Nothing is queued. A change only marks the stream as due; when the reader has taken what was written, the present state is
read and sent, so a reader that stalls skips what happened meanwhile and gets the latest.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec
from aiohttp import web

from coordinator.errors import UnavailableError
from coordinator.services import ports

MAX_STREAMS = 512  # A stream costs a socket and a task; a coordinator for 1,000 nodes has a few dozen watchers.
LOOK_S = 5.0  # Looked at this often though nothing was announced; also shows that the line is alive.
PAUSE_S = 0.25  # Between two pushes: nobody reads faster, and a busy job changes a hundred times a second.
STALL_S = 30.0  # A reader that takes nothing for this long is cut off.
BATCH = 1000
TERMINAL = frozenset({"settled", "failed", "cancelled"})
_RESUME = re.compile(r"([0-9]{1,15})-([0-9]{1,15})")


class Writer:
    """One open stream."""

    def __init__(self, response: web.StreamResponse) -> None:
        self._response = response
        self._last: dict[str, bytes] = {}
        self._written = time.monotonic()

    async def send(self, event: str, value: Any, mark: str = "") -> None:
        """Write one event; ``mark`` comes back as ``Last-Event-ID`` when the reader connects again."""
        head = f"event: {event}\n" + (f"id: {mark}\n" if mark else "")
        await self._write(head.encode() + b"data: " + msgspec.json.encode(value) + b"\n\n")

    async def send_new(self, event: str, value: Any) -> None:
        """Write one event unless the last of its kind said the same."""
        encoded = msgspec.json.encode(value)
        if self._last.get(event) != encoded:
            self._last[event] = encoded
            await self.send(event, msgspec.Raw(encoded))

    async def alive(self) -> None:
        """Write a comment if nothing has been written for a while, which finds out whether anybody is there."""
        if time.monotonic() - self._written > LOOK_S:
            await self._write(b": alive\n\n")

    async def _write(self, data: bytes) -> None:
        async with asyncio.timeout(STALL_S):
            await self._response.write(data)
        self._written = time.monotonic()


class Streams:
    """All open streams of the process."""

    def __init__(self, jobs: ports.Jobs, network: ports.Network) -> None:
        self._jobs = jobs
        self._network = network
        self._due: set[asyncio.Event] = set()
        self._closing = False

    async def job(self, request: web.Request, job: str) -> web.StreamResponse:
        """``job`` (JobView), ``metrics``, ``events`` as they come; ``end`` once the job is over."""
        await self._jobs.get(job)
        resumed = _RESUME.fullmatch(request.headers.get("Last-Event-ID", ""))
        metrics, events = (int(resumed[1]), int(resumed[2])) if resumed else (0, 0)

        async def push(out: Writer) -> bool:
            nonlocal metrics, events
            view = await self._jobs.get(job)
            while points := (await self._jobs.metrics(job, metrics))[:BATCH]:
                metrics += len(points)
                await out.send("metrics", points, f"{metrics}-{events}")
            while news := (await self._jobs.events(job, events))[:BATCH]:
                events = news[-1].id
                await out.send("events", news, f"{metrics}-{events}")
            await out.send_new("job", view)
            if view.state in TERMINAL:
                await out.send("end", {"state": view.state})
            return view.state not in TERMINAL

        return await self._serve(request, self._jobs.changes(job), push)

    async def network(self, request: web.Request) -> web.StreamResponse:
        """``network`` (NetworkView) whenever a node or a job changed."""

        async def push(out: Writer) -> bool:
            await out.send_new("network", await self._network.view())
            return True

        return await self._serve(request, self._jobs.changes(None), push)

    async def close(self, _app: web.Application) -> None:
        """End every stream, so that the process can stop."""
        self._closing = True
        for due in self._due:
            due.set()

    async def _serve(
        self, request: web.Request, changes: AsyncIterator[str], push: Callable[[Writer], Awaitable[bool]]
    ) -> web.StreamResponse:
        if len(self._due) >= MAX_STREAMS:
            raise UnavailableError(f"{MAX_STREAMS} streams are open already: poll the resource instead")
        response = web.StreamResponse(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        response.content_type = "text/event-stream"
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        due = asyncio.Event()
        self._due.add(due)
        pump = asyncio.create_task(_mark(changes, due), name="sse-changes")
        try:
            await self._run(request, Writer(response), due, push)
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._due.discard(due)
            pump.cancel()
            await asyncio.wait([pump])
        return response

    async def _run(
        self, request: web.Request, out: Writer, due: asyncio.Event, push: Callable[[Writer], Awaitable[bool]]
    ) -> None:
        while not self._closing and not _gone(request) and await push(out):
            await out.alive()
            await asyncio.sleep(PAUSE_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await due.wait()
            due.clear()


def _gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


async def _mark(changes: AsyncIterator[str], due: asyncio.Event) -> None:
    async for _ in changes:
        due.set()
