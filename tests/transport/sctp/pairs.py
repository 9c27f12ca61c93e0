"""Two peer connections on loopback, joined without a signalling server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import aioice.ice
from aiortc import RTCConfiguration, RTCDataChannel, RTCPeerConnection

from tests.support.wait import HANGS_S
from transport.sctp.connection import FastPeerConnection

LOW = 256 << 10


async def until(condition: Callable[[], bool], limit_s: float = HANGS_S) -> None:
    """Return once ``condition`` holds; TimeoutError says that it never did."""
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.002)


@dataclass
class End:
    """One side: its connection, its channel, and what has arrived there."""

    connection: RTCPeerConnection
    channel: RTCDataChannel
    received: list[bytes | str] = field(default_factory=list)

    @property
    def sctp(self) -> Any:
        return self.connection.sctp

    async def send_all(self, messages: list[bytes]) -> None:
        """Send with back-pressure, as links do."""
        room = asyncio.Event()
        self.channel.bufferedAmountLowThreshold = LOW
        self.channel.on("bufferedamountlow", room.set)
        for message in messages:
            while self.channel.bufferedAmount > 4 * LOW:
                room.clear()
                await room.wait()
            self.channel.send(message)


async def shake_hands(offerer: RTCPeerConnection, answerer: RTCPeerConnection) -> None:
    """Exchange offer and answer over 127.0.0.1 only."""
    with patch.object(aioice.ice, "get_host_addresses", lambda **families: ["127.0.0.1"]):
        await offerer.setLocalDescription(await offerer.createOffer())
        await answerer.setRemoteDescription(offerer.localDescription)
        await answerer.setLocalDescription(await answerer.createAnswer())
        await offerer.setRemoteDescription(answerer.localDescription)


@asynccontextmanager
async def joined(
    offerer: type[RTCPeerConnection] = FastPeerConnection,
    answerer: type[RTCPeerConnection] = FastPeerConnection,
    prepare: Callable[[RTCPeerConnection], None] = lambda connection: None,
    **channel: Any,
) -> AsyncIterator[tuple[End, End]]:
    """Two connections with one data channel, which the first has opened in band."""
    alone = RTCConfiguration(iceServers=[])  # Without a word, aiortc asks one of Google's servers.
    first, second = offerer(alone), answerer(alone)
    opened = asyncio.get_running_loop().create_future()
    second.once("datachannel", opened.set_result)
    one = End(first, first.createDataChannel("test", **channel))
    prepare(first)
    try:
        await shake_hands(first, second)
        prepare(second)
        async with asyncio.timeout(HANGS_S):
            two = End(second, await opened)
        for end in (one, two):
            end.channel.on("message", end.received.append)
        await until(lambda: one.channel.readyState == "open")
        yield one, two
    finally:
        await asyncio.gather(first.close(), second.close())
