"""What is watched live, read and encoded once for everybody who watches it.

A feed holds the newest frames, at most ``KEPT_BYTES`` of them, and the present state of its subject. Readers share both: a reader
is a place among the frames and nothing more, so one that stalls costs no memory here. One that comes late, or has fallen behind
what is held, reads its own way up from the store in small batches and then joins.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import msgspec

from coordinator.services.jobs import ports

LOOKS_A_SECOND = 8.0  # On average: a busy job changes a hundred times a second, and nobody reads faster.
LOOKS_AT_ONCE = 4  # Beyond the average, one right after the other: what happens now and then is told at once.
LOOK_S = 5.0  # Looked at this often though nothing was announced.
KEPT_BYTES = 256 << 10
LOOK_FRAMES = 64  # Taken in one look: a flood of news must not keep the state from being told.
BATCH = 500  # Points or events in one frame: some fifty kilobytes.
TERMINAL = frozenset({"settled", "failed", "cancelled"})


class FeedMark(NamedTuple):
    """How far a reader is: points of the curves that it has, and the id of its last event."""

    points: int = 0
    event: int = 0

    def __str__(self) -> str:
        return f"{self.points}-{self.event}"


class FeedFrame(NamedTuple):
    """Bytes of one event of the stream, and the mark of who has read it."""

    data: bytes
    mark: FeedMark


class FeedSource(Protocol):
    """A subject."""

    async def mark(self) -> FeedMark:
        """Where its news end now."""

    async def news(self, after: FeedMark, until: FeedMark | None = None) -> FeedFrame | None:
        """The next frame behind a mark, with nothing behind ``until``; None where there is none."""

    async def state(self) -> tuple[bytes, bytes]:
        """Its present state as a frame, and one that ends the stream; empty while there may be more."""

    def changes(self) -> AsyncIterator[str]:
        """Yields whenever it changed."""


def frame(event: str, value: Any, mark: FeedMark | None = None) -> bytes:
    """One event of a stream of Server-Sent Events."""
    head = f"event: {event}\n" + (f"id: {mark}\n" if mark is not None else "")
    return head.encode() + b"data: " + msgspec.json.encode(value) + b"\n\n"


class JobSource:
    """A job: ``metrics`` and ``events`` as they come, ``job`` as it is, ``end`` once it is over."""

    def __init__(self, jobs: ports.JobsPort, job: str) -> None:
        self._jobs = jobs
        self._job = job

    async def mark(self) -> FeedMark:
        """Points and events that there are."""
        return FeedMark(*await self._jobs.mark(self._job))

    async def news(self, after: FeedMark, until: FeedMark | None = None) -> FeedFrame | None:
        """Points come before events: a reader sees the curve that an event speaks of."""
        wanted = BATCH if until is None else min(BATCH, until.points - after.points)
        if wanted > 0 and (points := await self._jobs.metrics(self._job, after.points, wanted)):
            mark = after._replace(points=after.points + len(points))
            return FeedFrame(frame("metrics", points, mark), mark)
        if until is not None and after.event >= until.event:
            return None
        found = await self._jobs.events(self._job, after.event, BATCH)
        if events := [event for event in found if until is None or event.id <= until.event]:
            mark = after._replace(event=events[-1].id)
            return FeedFrame(frame("events", events, mark), mark)
        return None

    async def state(self) -> tuple[bytes, bytes]:
        """The job's view."""
        view = await self._jobs.get(self._job)
        over = view.state in TERMINAL
        return frame("job", view), frame("end", {"state": view.state}) if over else b""

    def changes(self) -> AsyncIterator[str]:
        """News of the job."""
        return self._jobs.changes(self._job)


class NetworkSource:
    """The network as it is."""

    def __init__(self, jobs: ports.JobsPort, network: ports.NetworkPort) -> None:
        self._jobs = jobs
        self._network = network

    async def mark(self) -> FeedMark:
        """It has no history."""
        return FeedMark()

    async def news(self, after: FeedMark, until: FeedMark | None = None) -> FeedFrame | None:
        """It has no history."""
        return None

    async def state(self) -> tuple[bytes, bytes]:
        """The network's view."""
        return frame("network", await self._network.view()), b""

    def changes(self) -> AsyncIterator[str]:
        """News of any job or node."""
        return self._jobs.changes(None)


class FeedPace:
    """When the next look may be: ``LOOKS_AT_ONCE`` right away, and ``LOOKS_A_SECOND`` in the long run (GCRA, ITU-T I.371)."""

    def __init__(self) -> None:
        self._earned = 0.0  # When everything that was looked at so far would be paid for.

    def wait(self, now: float) -> float:
        """Seconds until the next look, which is counted."""
        gap = 1.0 / LOOKS_A_SECOND
        self._earned = max(now, self._earned) + gap
        return max(0.0, self._earned - now - LOOKS_AT_ONCE * gap)


class Feed:
    """One subject and its readers. Make it with ``open``; ``close`` it when the last reader is gone."""

    def __init__(self, source: FeedSource, mark: FeedMark, state: bytes, end: bytes) -> None:
        self.source = source
        self.mark = mark
        self.state = state
        self.end = end
        self.version = 1  # Of the state.
        self.next = 0  # Number of the frame that comes next.
        self.failed = False
        self._frames: deque[FeedFrame] = deque()
        self._bytes = 0
        self._readers: set[asyncio.Event] = set()
        self._task = asyncio.create_task(self._follow(), name="feed")

    @classmethod
    async def open(cls, source: FeedSource) -> "Feed":
        """Read where the subject stands and follow it."""
        mark = await source.mark()
        state, end = await source.state()
        return cls(source, mark, state, end)

    async def close(self) -> None:
        """Follow it no longer."""
        self._task.cancel()
        await asyncio.wait([self._task])

    def enter(self, reader: asyncio.Event) -> None:
        """Set ``reader`` at every change from now on."""
        self._readers.add(reader)

    def leave(self, reader: asyncio.Event) -> bool:
        """Stop that. True: nobody reads any more."""
        self._readers.discard(reader)
        return not self._readers

    def after(self, number: int, mark: FeedMark, most: int) -> tuple[bytes, int, FeedMark] | None:
        """What a reader at frame ``number`` and ``mark`` reads next: as many frames as fit ``most`` bytes, but one at least.

        Returns:
            the bytes, and where the reader then is. None: the frame is not held any more.
        """
        first = self.next - len(self._frames)
        if number < first:
            return None
        data = bytearray()
        for place in range(number - first, len(self._frames)):
            held = self._frames[place]
            if data and len(data) + len(held.data) > most:
                break
            data += held.data
            number, mark = number + 1, held.mark
        return bytes(data), number, mark

    async def _follow(self) -> None:
        due, pace = asyncio.Event(), FeedPace()
        due.set()  # Something may have happened since ``open`` had read.
        pump = asyncio.create_task(_set(self.source.changes(), due), name="feed-changes")
        try:
            while not self.end:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await due.wait()
                await asyncio.sleep(pace.wait(time.monotonic()))
                due.clear()
                if await self._look():
                    due.set()
        except Exception:
            self.failed = True  # Its readers end and connect anew; the error is in the log of who waits for this task.
            raise
        finally:
            pump.cancel()
            await asyncio.wait([pump])
            self._wake()

    async def _look(self) -> bool:
        """Take what is new; True: there may be more."""
        changed = False
        for _ in range(LOOK_FRAMES):
            found = await self.source.news(self.mark)
            if found is None:
                more = False
                break
            self._frames.append(found)
            self._bytes += len(found.data)
            self.mark = found.mark
            self.next += 1
            changed = True
            while self._bytes > KEPT_BYTES and len(self._frames) > 1:
                self._bytes -= len(self._frames.popleft().data)
        else:
            more = True
        state, end = await self.source.state()
        if state != self.state or end != self.end:
            self.state, self.end = state, end
            self.version += 1
            changed = True
        if changed:
            self._wake()
        return more

    def _wake(self) -> None:
        for reader in self._readers:
            reader.set()


async def _set(changes: AsyncIterator[str], due: asyncio.Event) -> None:
    async for _ in changes:
        due.set()
