"""Where the bytes of an outgoing message come from: a payload that is all there, or chunks that are still being made."""

import asyncio
from collections import deque
from typing import Protocol

from common.errors import StreamBrokenError

# Made before the peer has agreed, so that making and asking overlap; more would be made for nothing.
READ_AHEAD = 1 << 20


class MessageSource(Protocol):
    """Bytes by their offset in the message."""

    @property
    def base(self) -> int:
        """Bytes before this offset are gone."""

    @property
    def end(self) -> int:
        """Bytes from this offset on are not there yet."""

    def read(self, offset: int, limit: int) -> bytes | memoryview:
        """Return 1 to ``limit`` bytes from ``offset`` on, which lies between ``base`` and ``end``."""

    def release(self, offset: int) -> None:
        """The peer holds everything before ``offset``."""

    def allow(self, offset: int) -> None:
        """What comes before ``offset`` may be made."""

    def clear(self) -> None:
        """Nothing more is wanted."""


class Whole:
    """A payload in memory."""

    base = 0

    def __init__(self, payload: memoryview) -> None:
        """Take bytes that stay as they are until ``clear``."""
        self._payload = payload

    @property
    def end(self) -> int:
        """All of it is there."""
        return self._payload.nbytes

    def read(self, offset: int, limit: int) -> memoryview:
        """Return a view."""
        return self._payload[offset : offset + limit]

    def release(self, offset: int) -> None:
        """Keep it: it costs nothing, and a peer that restarts needs it from the start."""

    def allow(self, offset: int) -> None:
        """Nothing waits for room."""

    def clear(self) -> None:
        """Let go of the payload."""
        self._payload = memoryview(b"")


class Chunks:
    """A payload that arrives in chunks and is kept only until the peer holds it."""

    def __init__(self, total: int, window: int) -> None:
        """Take the length in bytes, and how many may be kept (by up to one chunk more)."""
        self._total = total
        self._window = window
        self._kept: deque[memoryview] = deque()
        self._first = 0  # Offset of the first kept chunk; ``base`` may lie within it.
        self._base = 0
        self._end = 0
        self._upto = 0
        self._index = (0, 0)  # The chunk that was read last and its offset: reading goes on from there.
        self._changed = asyncio.Event()

    @property
    def base(self) -> int:
        """What the peer holds is forgotten."""
        return self._base

    @property
    def end(self) -> int:
        """What was fed."""
        return self._end

    def feed(self, chunk: bytes | bytearray | memoryview) -> None:
        """Append a chunk that does not change any more.

        Raises:
            StreamBrokenError: it goes beyond the length.
        """
        view = memoryview(chunk).cast("B")
        if self._end + view.nbytes > self._total:
            raise StreamBrokenError(
                f"the chunks hold {self._end + view.nbytes} bytes or more, but {self._total} were announced"
            )
        if view.nbytes:
            self._kept.append(view)
            self._end += view.nbytes

    def finish(self) -> None:
        """No chunk follows.

        Raises:
            StreamBrokenError: there should be more.
        """
        if self._end != self._total:
            raise StreamBrokenError(f"the chunks ended after {self._end} bytes, but {self._total} were announced")

    async def room(self) -> None:
        """Return once another chunk may be made."""
        while self._end - self._base >= self._window or self._end >= self._upto:
            if self._end == self._total and self._upto:
                return  # What follows can only be the end of the chunks, or one too many.
            self._changed.clear()
            await self._changed.wait()

    def read(self, offset: int, limit: int) -> bytes | memoryview:
        """Return a view into one chunk, or a copy where ``limit`` bytes span several."""
        index, start = self._find(offset)
        at = offset - start
        view = self._kept[index][at : at + limit]
        if view.nbytes == limit or index + 1 == len(self._kept):
            return view
        parts = [view]
        missing = limit - view.nbytes
        while missing and index + 1 < len(self._kept):
            index += 1
            parts.append(self._kept[index][:missing])
            missing -= parts[-1].nbytes
        return b"".join(parts)

    def _find(self, offset: int) -> tuple[int, int]:
        """Which chunk holds ``offset``, and where that begins."""
        index, start = self._index
        if offset < start:
            index, start = 0, self._first
        while offset >= start + self._kept[index].nbytes:
            start += self._kept[index].nbytes
            index += 1
        self._index = index, start
        return index, start

    def release(self, offset: int) -> None:
        """Forget the chunks before ``offset``."""
        self._base = max(self._base, offset)
        index, start = self._index
        while self._kept and self._first + self._kept[0].nbytes <= self._base:
            self._first += self._kept.popleft().nbytes
            index -= 1
        self._index = (index, start) if index >= 0 else (0, self._first)
        self._changed.set()

    def allow(self, offset: int) -> None:
        """Let chunks be made up to ``offset``."""
        self._upto = max(self._upto, offset)
        self._changed.set()

    def clear(self) -> None:
        """Forget all chunks; ``base`` then tells that the beginning is gone."""
        self._kept.clear()
        self._first = self._base = self._end
        self._index = (0, self._first)
