"""What goes between a worker and others: little of it in memory, the rest on the disk, read piece by piece.

::

    SmallPayload    bytes                         what peers send each other, and whatever is short
    FilePayload     somewhere on the disk         a state, a record, an opening: read when it is asked for
    Spooled         a file of its own             one that has just come: moved where it is kept, or deleted when it is let go
                                                  (``desktop.agent.jobs.spool``)
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from common.errors import SealedFileError

BORDER = 8 << 20  # What a worker hands over beyond it is a file: shorter ones are not worth a file each.
PIECE = 1 << 20  # Of a payload on the disk, in memory at a time.


class Payload(Protocol):
    """Some bytes, wherever they are. Any thread may read."""

    @property
    def size(self) -> int:
        """How many."""

    def read(self, begin: int = 0, end: int | None = None) -> bytes:
        """Bytes ``begin <= i < end``; to the end by default.

        Raises:
            SealedFileError, OSError: the disk cannot give them. Or there are fewer.
        """


@dataclass(frozen=True)
class SmallPayload:
    """Bytes in memory."""

    data: bytes

    @property
    def size(self) -> int:
        """How many."""
        return len(self.data)

    def read(self, begin: int = 0, end: int | None = None) -> bytes:
        """Some of them."""
        return self.data[begin:end]


@dataclass(frozen=True)
class FilePayload:
    """Bytes that ``span`` reads from the disk; it may give fewer where they are not there any more."""

    size: int
    span: Callable[[slice], bytes]

    def read(self, begin: int = 0, end: int | None = None) -> bytes:
        """Some of them."""
        return self.span(slice(begin, self.size if end is None else end))


@dataclass(frozen=True)
class PartPayload:
    """``size`` bytes of another payload, from ``begin`` on."""

    whole: Payload
    begin: int
    size: int

    def read(self, begin: int = 0, end: int | None = None) -> bytes:
        """Some of them."""
        end = self.size if end is None else min(end, self.size)
        return self.whole.read(self.begin + begin, self.begin + end)


def as_payload(data: bytes | Payload) -> Payload:
    """Bytes as a payload."""
    return SmallPayload(data) if isinstance(data, bytes) else data


def read_pieces(payload: Payload) -> Iterable[bytes]:
    """All of a payload, a little at a time.

    Raises:
        OSError: it is not there any more, or was changed.
    """
    for begin in range(0, payload.size, PIECE):
        end = min(begin + PIECE, payload.size)
        try:
            data = payload.read(begin, end)
        except SealedFileError as error:
            raise OSError(str(error)) from error
        if len(data) != end - begin:
            raise OSError(f"bytes {begin:,} to {end:,} of {payload.size:,} are not on the disk any more")
        yield data


async def pieces_of(*payloads: Payload) -> AsyncIterator[bytes]:
    """The same of one after the other; what is on the disk is read in threads."""
    for payload in payloads:
        pieces = iter(read_pieces(payload))
        if isinstance(payload, SmallPayload):
            for piece in pieces:
                yield piece
        else:
            while piece := await asyncio.to_thread(next, pieces, b""):
                yield piece
