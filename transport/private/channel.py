"""Whole messages over one data channel, with somebody that may be a browser.

A message goes as frames of at most ``FRAME_BYTES``: a byte, 0 where more of it follows and 1 at its end, and a part of it.
"""

import asyncio
from collections import deque

from common.clock import Clock
from common.errors import ConnectError, MalformedFrameError, PeerUnreachableError
from protocol.private.sessions import FRAME_BYTES
from transport.ice.rtc import RtcConnection
from transport.messages.lanes import Lane

MORE, LAST = b"\0", b"\1"
HIGH_BYTES, LOW_BYTES = 256 << 10, 64 << 10  # Of what waits to be sent; above that a sender waits.
SLOW_S = 20.0  # For a reader that takes nothing; then it is cut off.
MAX_WAITING = 256  # Messages that have come and nobody has read.
CLOSE_S = 2.0


class PrivateChannel:
    """One side of an open connection; ``aclose`` it."""

    def __init__(self, connection: RtcConnection, clock: Clock, largest: int) -> None:
        """Take over a connection that is open. ``largest``: bytes of a message that may come."""
        self._connection, self._clock, self._largest = connection, clock, largest
        self._lane = connection.lanes[Lane.CONTROL]
        self._low = asyncio.Event()
        self._parts: list[bytes] = []
        self._size = 0
        self._came: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._fault = ""
        self._turn = asyncio.Lock()
        self._lost = asyncio.create_task(connection.lost(), name="private-lost")
        self._lost.add_done_callback(lambda _: self._wake())
        self._lane.low = LOW_BYTES
        self._lane.attach(self._received, self._low.set)

    @property
    def pair(self) -> str:
        """Kinds of the candidates that carry it."""
        return self._connection.pair

    async def send(self, message: bytes) -> None:
        """Hand over one message, once there is room.

        Raises:
            PeerUnreachableError: the connection is lost, or the other side takes nothing.
        """
        async with self._turn:
            for start in range(0, max(1, len(message)), FRAME_BYTES - 1):
                part = message[start : start + FRAME_BYTES - 1]
                await self._room()
                end = LAST if start + len(part) >= len(message) else MORE
                try:
                    self._lane.send(end + part)
                except ConnectError as error:
                    raise PeerUnreachableError(f"the other side is gone: {error}") from None

    async def receive(self) -> bytes:
        """The next message.

        Raises:
            PeerUnreachableError: the connection is lost. MalformedFrameError: what came is no message, or too much.
        """
        while not self._came:
            if self._fault:
                raise MalformedFrameError(self._fault)
            if self._lost.done():
                raise PeerUnreachableError("the other side is gone")
            self._news.clear()
            await self._news.wait()
        return self._came.popleft()

    async def aclose(self) -> None:
        """End the connection."""
        self._lane.detach()
        self._lost.cancel()
        await asyncio.wait((self._lost,))
        await self._connection.close(CLOSE_S)

    async def _room(self) -> None:
        """Wait until little waits to be sent."""
        if self._lane.buffered <= HIGH_BYTES:
            return
        try:
            async with self._clock.timeout(SLOW_S):
                while self._lane.buffered > LOW_BYTES:
                    if self._lost.done():
                        raise PeerUnreachableError("the other side is gone")
                    self._low.clear()
                    await self._low.wait()
        except TimeoutError:
            raise PeerUnreachableError(f"the other side has taken nothing for {SLOW_S:g} s") from None

    def _received(self, frame: bytes) -> None:
        if self._fault:
            return
        self._size += len(frame) - 1
        self._parts.append(frame[1:])
        if frame[:1] not in (MORE, LAST) or len(frame) > FRAME_BYTES:
            self._refuse("a frame that is none of this protocol")
        elif self._size > self._largest or len(self._parts) > self._largest // FRAME_BYTES + 2:
            self._refuse(f"a message of more than {self._largest:,} bytes")
        elif len(self._came) >= MAX_WAITING:
            self._refuse(f"more than {MAX_WAITING} messages wait")
        elif frame[:1] == LAST:
            self._came.append(b"".join(self._parts))
            self._parts, self._size = [], 0
            self._news.set()

    def _refuse(self, why: str) -> None:
        self._fault, self._parts = why, []
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._low.set()
