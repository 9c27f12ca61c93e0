"""Ends of a WebRTC connection that a test steers alike: ours or stock aiortc's, here or in a home of the bed, and a browser.

Message ``n`` of a series begins with ``n`` in four bytes, the rest is random: so the other side can tell which ones came.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol

from aiortc import RTCConfiguration, RTCDataChannel, RTCPeerConnection, RTCSessionDescription

from tests.testbed.homes import Host
from tests.transport.sctp.pairs import until
from transport.sctp.connection import FastPeerConnection

KINDS: dict[str, type[RTCPeerConnection]] = {"ours": FastPeerConnection, "stock": RTCPeerConnection}
PAGE = Path(__file__).with_name("page.js")
HIGH, LOW = 1 << 20, 256 << 10
LIMIT_S = 60.0


class End(Protocol):
    """One end. Channels are named by their labels; every wait is bounded by ``LIMIT_S``."""

    async def offer(self, channels: dict[str, dict[str, Any]]) -> str:
        """Make channels, by label with the options of W3C's ``createDataChannel``, and an offer with all candidates."""

    async def answer(self, sdp: str) -> str:
        """Take an offer; returns the answer."""

    async def accept(self, sdp: str) -> None:
        """Take the answer."""

    async def open(self, label: str, options: dict[str, Any]) -> None:
        """Make one channel more and wait until it is open."""

    async def opened(self, label: str) -> dict[str, Any]:
        """Wait until a channel is open; returns how it understands its options."""

    async def say(self, label: str, texts: list[str | None]) -> None:
        """Send texts; None stands for an empty binary message."""

    async def send(self, label: str, count: int, size: int) -> str:
        """Send ``count`` binary messages with back-pressure until none waits; returns the SHA-256 of all of them."""

    async def digest(self, label: str, count: int) -> str:
        """Wait for ``count`` messages in all; returns the SHA-256 of all of them.

        They are taken in the order in which they came; on an unordered channel, which promises none, by their numbers.
        """

    async def heard(self, label: str, count: int) -> list[str | None]:
        """Wait for ``count`` messages in all; returns them as ``say`` takes them."""

    async def numbers(self, label: str) -> list[int]:
        """The numbers of the messages that have come, in that order."""

    async def close(self, label: str) -> None:
        """Close a channel."""

    async def closed(self, label: str) -> None:
        """Wait until a channel is closed."""

    async def end(self) -> None:
        """Close the connection."""


async def join(offerer: End, answerer: End, channels: dict[str, dict[str, Any]]) -> None:
    """Exchange offer and answer, and wait for every channel on both sides."""
    await offerer.accept(await answerer.answer(await offerer.offer(channels)))
    for label in channels:
        await asyncio.gather(offerer.opened(label), answerer.opened(label))


async def both_ways(one: End, two: End, label: str, count: int, size: int) -> None:
    """Send at the same time in both directions; every byte must come, in order where the channel has one."""
    sent = await asyncio.gather(one.send(label, count, size), two.send(label, count, size))
    came = await asyncio.gather(two.digest(label, count), one.digest(label, count))
    assert came == sent


async def may_be_lost(
    sender: End, receiver: End, label: str, reliable: str, *, count: int, size: int, least: int
) -> list[int]:
    """Send messages that are not sent again, and a reliable one behind them; returns the numbers of those that came.

    What comes in order may wait for the news that something before it was given up: ``least`` must come in the end.
    """
    end = f"the end of {label}"
    await sender.send(label, count, size)
    await sender.say(reliable, [end])
    heard: list[str | None] = []
    while end not in heard:
        heard = await receiver.heard(reliable, len(heard) + 1)
    numbers: list[int] = []
    async with asyncio.timeout(LIMIT_S):
        while len(numbers) < least:
            numbers = await receiver.numbers(label)
    return numbers


class RtcEnd:
    """An ``End`` over an aiortc connection in this process."""

    def __init__(self, kind: str) -> None:
        """Make a connection of a kind of ``KINDS``. No server is asked: without a word, aiortc asks one of Google's."""
        self.connection = connection = KINDS[kind](RTCConfiguration(iceServers=[]))
        self._channels: dict[str, RTCDataChannel] = {}
        self._messages: dict[str, list[bytes | str]] = defaultdict(list)
        connection.on("datachannel", self._adopt)

    async def offer(self, channels: dict[str, dict[str, Any]]) -> str:
        """See End."""
        for label, options in channels.items():
            self._adopt(self.connection.createDataChannel(label, **options))
        await self.connection.setLocalDescription(await self.connection.createOffer())
        return str(self.connection.localDescription.sdp)

    async def answer(self, sdp: str) -> str:
        """See End."""
        await self.connection.setRemoteDescription(RTCSessionDescription(sdp, "offer"))
        await self.connection.setLocalDescription(await self.connection.createAnswer())
        return str(self.connection.localDescription.sdp)

    async def accept(self, sdp: str) -> None:
        """See End."""
        await self.connection.setRemoteDescription(RTCSessionDescription(sdp, "answer"))

    async def open(self, label: str, options: dict[str, Any]) -> None:
        """See End."""
        self._adopt(self.connection.createDataChannel(label, **options))
        await self.opened(label)

    async def opened(self, label: str) -> dict[str, Any]:
        """See End."""
        await until(lambda: label in self._channels and self._channels[label].readyState == "open", LIMIT_S)
        channel = self._channels[label]
        return {
            name: getattr(channel, name)
            for name in ("id", "ordered", "protocol", "negotiated", "maxRetransmits", "maxPacketLifeTime")
        }

    async def say(self, label: str, texts: list[str | None]) -> None:
        """See End."""
        for text in texts:
            self._channels[label].send(b"" if text is None else text)

    async def send(self, label: str, count: int, size: int) -> str:
        """See End."""
        channel, whole = self._channels[label], hashlib.sha256()
        for number in range(count):
            message = number.to_bytes(4, "big") + os.urandom(size - 4)
            whole.update(message)
            channel.send(message)
            if channel.bufferedAmount > HIGH:
                await until(lambda: channel.bufferedAmount <= LOW, LIMIT_S)
        await until(lambda: channel.bufferedAmount == 0, LIMIT_S)
        return whole.hexdigest()

    async def digest(self, label: str, count: int) -> str:
        """See End."""
        await until(lambda: len(self._messages[label]) >= count, LIMIT_S)
        whole = hashlib.sha256()
        messages = [message.encode() if isinstance(message, str) else message for message in self._messages[label]]
        for message in messages if self._channels[label].ordered else sorted(messages):
            whole.update(message)
        return whole.hexdigest()

    async def heard(self, label: str, count: int) -> list[str | None]:
        """See End."""
        await until(lambda: len(self._messages[label]) >= count, LIMIT_S)
        return [message if isinstance(message, str) else None for message in self._messages[label]]

    async def numbers(self, label: str) -> list[int]:
        """See End."""
        return [int.from_bytes(message[:4], "big") for message in self._messages[label] if isinstance(message, bytes)]

    async def close(self, label: str) -> None:
        """See End."""
        self._channels[label].close()

    async def closed(self, label: str) -> None:
        """See End."""
        await until(lambda: self._channels[label].readyState == "closed", LIMIT_S)

    async def end(self) -> None:
        """See End."""
        await self.connection.close()

    def _adopt(self, channel: RTCDataChannel) -> None:
        self._channels[channel.label] = channel
        channel.on("message", self._messages[channel.label].append)


class _Asked:
    """An ``End`` elsewhere, to which the names and arguments of methods are carried."""

    async def _ask(self, method: str, *arguments: Any) -> Any:
        raise NotImplementedError

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)

        async def ask(*arguments: Any) -> Any:
            async with asyncio.timeout(2 * LIMIT_S):
                return await self._ask(method, *arguments)

        return ask


class PageEnd(_Asked):
    """An ``End`` in a page of a browser."""

    def __init__(self, page: Any) -> None:
        """Use a page that ``opened_page`` has prepared."""
        self._page = page

    async def _ask(self, method: str, *arguments: Any) -> Any:
        return await self._page.evaluate("([method, given]) => end[method](...given)", [method, arguments])


async def opened_page(browser: Any) -> PageEnd:
    """A page that holds an ``End``. It comes from no server: the browser may be where there is none."""
    page = await browser.new_page()
    await page.route("**/*", lambda route: route.fulfill(body="<!doctype html>", content_type="text/html"))
    await page.goto("http://localhost/")  # A page from anywhere else may not use crypto.subtle.
    await page.evaluate(PAGE.read_text())
    return PageEnd(page)


class ProgramEnd(_Asked):
    """An ``End`` in a program on a host of the bed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        """Use a running ``python -m tests.transport.sctp.interop.program``."""
        self._process = process
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    async def read(self) -> None:
        """Take answers until the program ends."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            number, result = json.loads(line)
            self._waiting.pop(number).set_result(result)
        for future in self._waiting.values():
            future.set_exception(RuntimeError(f"the program ended with {await self._process.wait()}"))

    async def _ask(self, method: str, *arguments: Any) -> Any:
        assert self._process.stdin is not None
        number = max(self._waiting, default=0) + 1
        self._waiting[number] = asyncio.get_running_loop().create_future()
        self._process.stdin.write(json.dumps([number, method, arguments]).encode() + b"\n")
        return await self._waiting[number]


@contextlib.asynccontextmanager
async def program(host: Host, kind: str) -> AsyncIterator[ProgramEnd]:
    """An end of a kind of ``KINDS`` on a host."""
    process = await host.python("tests.transport.sctp.interop.program", kind, stderr=sys.stderr)
    assert process.stdin is not None
    end = ProgramEnd(process)
    reading = asyncio.ensure_future(end.read())
    try:
        yield end
    finally:
        process.stdin.close()
        await reading
        await process.wait()
