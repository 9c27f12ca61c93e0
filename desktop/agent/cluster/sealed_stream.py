"""The agent's end of a pod's standard streams: sealed frames on one side, a socket like any worker's on the other.

What a frame is stands in ``door_program``. The connection is the one that Kubernetes carries an attachment on, whose messages
begin with a channel's number: 0 the pod's input, 1 its output, 2 its errors, 3 how it ended (subprotocol v4.channel.k8s.io).
"""

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Awaitable, Callable
from typing import Protocol

import aiohttp
from cryptography.exceptions import InvalidTag

from desktop.agent.base.log import LOG, printable
from desktop.agent.cluster.door_program import (
    DATA,
    END,
    FREEZE,
    FROM_AGENT,
    FROM_POD,
    KEY,
    MAX_FRAME,
    NOTHING,
    PIECE,
    TAKEN,
    THAW,
    Seal,
)
from desktop.agent.sandbox.base import MAX_LOG_BYTES

# Bytes that the pod has and the worker has not read; a word to hold the worker never waits behind more.
WINDOW = 8 << 20
CLOSE_S = 2.0
KEEP_S = 60.0  # A kubelet cuts attachments on which nothing passes, after four hours or sooner; spares are silent for longer.


class AttachedSocket(Protocol):
    """What carries the messages: a WebSocket of aiohttp."""

    async def send_bytes(self, data: bytes) -> None: ...

    async def receive(self) -> aiohttp.WSMessage: ...

    async def close(self) -> object: ...


class SealedStream:
    """From the key's way to the pod until either end is closed. ``end`` is read and written like a worker's socket."""

    def __init__(self, attached: AttachedSocket, lost: Callable[[str], None]) -> None:
        """``attached``: connected already. ``lost``: called where the pod says what only another program can have said."""
        self.end, self._inner = socket.socketpair()
        for one in (self.end, self._inner):
            one.setblocking(False)
        self._attached, self._lost = attached, lost
        key = secrets.token_bytes(KEY)
        self._key = key
        self._outward, self._inward = Seal(key, FROM_AGENT), Seal(key, FROM_POD)
        self._came, self._said = bytearray(), bytearray()
        self._sending, self._under_way = asyncio.Lock(), 0
        self._room = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Hand over the key; from then on it runs by itself."""
        await self._attached.send_bytes(b"\x00" + self._key)
        for run in (self._from_pod, self._to_pod, self._keep):
            self._tasks.append(asyncio.create_task(self._guarded(run), name=f"pod-{run.__name__.strip('_')}"))

    def said(self) -> str:
        """The last that the pod said on its standard error."""
        return bytes(self._said).decode(errors="replace")

    async def hold(self, frozen: bool) -> None:
        """Stop the worker's processes, or let them go on."""
        await self._send(FREEZE if frozen else THAW)

    async def close(self) -> None:
        """Let go; the worker's input ends."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
            async with asyncio.timeout(CLOSE_S):
                await self._attached.close()
        self._inner.close()
        self.end.close()

    async def _guarded(self, run: Callable[[], Awaitable[None]]) -> None:
        try:
            await run()
        except (OSError, aiohttp.ClientError, InvalidTag, ValueError) as error:
            LOG.debug("a pod's streams were cut: %s", printable(str(error) or type(error).__name__))
            if isinstance(error, InvalidTag | ValueError):
                self._lost("its standard output has what its worker did not say")
        if run == self._from_pod:
            with contextlib.suppress(OSError):
                self._inner.shutdown(socket.SHUT_WR)

    async def _send(self, kind: int, data: bytes = b"") -> None:
        async with self._sending:  # Frames are counted: their order is that of their sealing.
            await self._attached.send_bytes(b"\x00" + self._outward.seal(kind, data))

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(KEEP_S)
            await self._send(NOTHING)

    async def _to_pod(self) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(self._inner, PIECE):
            while self._under_way + len(data) > WINDOW:
                self._room.clear()
                await self._room.wait()
            self._under_way += len(data)
            await self._send(DATA, data)
        await self._send(END)

    async def _from_pod(self) -> None:
        while True:
            message = await self._attached.receive()
            if message.type is not aiohttp.WSMsgType.BINARY:
                return  # Closed, or lost; text does not come.
            channel, data = message.data[:1], message.data[1:]
            if channel == b"\x01":
                self._came += data
                await self._take()
            elif channel == b"\x02":
                self._said += data
                del self._said[:-MAX_LOG_BYTES]
            elif channel == b"\x03":
                return

    async def _take(self) -> None:
        """What has come whole."""
        loop = asyncio.get_running_loop()
        while len(self._came) >= 4:
            size = int.from_bytes(self._came[:4], "big")
            if size > MAX_FRAME:
                raise ValueError(f"a frame of {size:,} bytes")
            if len(self._came) < 4 + size:
                return
            kind, data = self._inward.open(bytes(self._came[4 : 4 + size]))
            del self._came[: 4 + size]
            if kind == DATA:
                await loop.sock_sendall(self._inner, data)
            elif kind == TAKEN:
                self._under_way -= int.from_bytes(data, "big")
                self._room.set()
            elif kind == END:
                with contextlib.suppress(OSError):
                    self._inner.shutdown(socket.SHUT_WR)
