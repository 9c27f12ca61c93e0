"""The nodes' WebSocket, ``/api/v1/node``: limits and framing here, meaning in ``services.drivers.node_protocol``."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from aiohttp import WSMsgType, web

from common import tracing
from common.clock import within
from common.log_lines import about
from common.untrusted_text import untrusted
from coordinator.errors import StoreAwayError
from coordinator.services.core.context import Context
from coordinator.services.core.store_retry import Patience
from coordinator.services.drivers.node_protocol import together
from coordinator.services.network.nodes import RETRY_SOON, NodeRefusedError, Nodes, NodeSession
from coordinator.web.auth import public
from coordinator.web.auth.gate import address_of
from coordinator.web.fronts.seal import FrontSeal
from protocol.codec import MessageError, decode, encode
from protocol.node import Challenge, CoordinatorMessage, Heartbeat, Hello, NodeMessage, Refused, Report

PATH = "/api/v1/node"
MAX_FRAME = 256 * 1024  # The largest message is a signalling envelope of 128 KB.
MAX_WAITING = 2_048  # Messages to one node; a node that reads nothing for so long is not there.
MAX_WAITING_BYTES = 32 << 20  # An assignment with a large plan has some hundred kilobytes, an envelope at most 128.
HELLO_S = 10.0  # To answer the challenge; signing takes a millisecond.
CLOSE_S = 2.0
RATE = 50.0  # Messages a second: four leases with progress, traffic and heartbeats need five.
BURST = 400.0  # After a reconnect a node sends everything that was not acknowledged.
TOKEN_BYTES = 16 << 10  # So what waits here of a node is some megabytes, also while the store is away.
MAX_TOGETHER = 16  # Reports of one node that are asked for at once: others' come in between, however many it sends.
MAX_UNHANDLED = 512  # Messages of one node that wait for their turn; then its connection is read no further.
MAX_REASON = 120  # Bytes that a close frame carries.

LOG = logging.getLogger(__name__)


class _Bucket:
    """Tokens for messages: ``RATE`` a second, ``BURST`` at most. A large message takes one for each ``TOKEN_BYTES`` more."""

    def __init__(self, now: float) -> None:
        self._tokens = BURST
        self._at = now

    def take(self, now: float, size: int) -> bool:
        self._tokens = min(BURST, self._tokens + (now - self._at) * RATE) - 1 - size // TOKEN_BYTES
        self._at = now
        return self._tokens >= 0


class _Outgoing:
    """Messages to one node, written by its own task so that nobody else waits for a slow reader."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_WAITING)
        self._bytes = 0
        self.closing: str | None = None

    def send(self, message: CoordinatorMessage) -> None:
        if self.closing is not None:
            return
        data = encode(message)
        if self._waiting.full() or self._bytes + len(data) > MAX_WAITING_BYTES:
            self.close(f"{self._waiting.qsize():,} messages of {self._bytes:,} bytes wait for you: read faster")
            return
        self._bytes += len(data)
        self._waiting.put_nowait(data)

    def close(self, reason: str) -> None:
        """End the connection once what was sent before is written."""
        if self.closing is None:
            self.closing = reason
            with contextlib.suppress(asyncio.QueueFull):
                self._waiting.put_nowait(None)

    async def write(self) -> None:
        """Write until closed; then say why."""
        while self.closing is None or not self._waiting.empty():
            data = await self._waiting.get()
            if data is None:
                break
            self._bytes -= len(data)
            await self._socket.send_bytes(data)
        await self._socket.close(code=1008, message=(self.closing or "").encode()[:MAX_REASON])


_Waiting = asyncio.Queue[NodeMessage | Exception | None]


async def _in_turn(waiting: _Waiting) -> AsyncIterator[tuple[NodeMessage, list[Report]]]:
    """Messages in their order until the connection is over, each with those behind it that may be handled with it.

    Raises:
        Exception: what was wrong with the connection, in its turn.
    """
    pending = [await waiting.get()]
    while (message := pending.pop()) is not None:
        if isinstance(message, Exception):
            raise message
        more: list[Report] = []
        while not waiting.empty() and not pending and len(more) < MAX_TOGETHER - 1:
            following = waiting.get_nowait()
            if isinstance(following, Report) and together(message, following):
                more.append(following)
            else:
                pending.append(following)
        yield message, more
        if not pending:
            pending.append(await waiting.get())


@dataclass(frozen=True)
class NodePlace:
    """Where a connection comes in: the name it asked for, where it is from, what counts it until it has said who it is.

    Attributes:
        nonce: what a front has challenged the node with; None: nobody has yet. ``hello``: what it answered, where that was heard.
    """

    host: str
    address: str
    greeting: contextlib.ExitStack
    nonce: bytes | None
    hello: Hello | None = None


class NoHelloError(Exception):
    """What a node says first is no Hello. The text is for its owner."""


async def hello_from(socket: web.WebSocketResponse) -> tuple[Hello, bytes]:
    """What a node answers to its challenge, and the same as it came.

    Raises:
        NoHelloError: something else, or nothing within ``HELLO_S``.
        MessageError: it is malformed.
    """
    try:
        async with asyncio.timeout(HELLO_S):
            frame = await socket.receive()
    except TimeoutError as error:
        raise NoHelloError(f"no Hello within {HELLO_S:g} s") from error
    if frame.type is not WSMsgType.BINARY:
        raise NoHelloError("the first message must be a Hello, in a binary frame")
    hello: Hello = decode(frame.data, Hello, MAX_FRAME)
    return hello, frame.data


def malformed(error: MessageError) -> str:
    """Why a connection ends on which something malformed came."""
    return f"malformed message: {error}"


class NodeTalk(Protocol):
    """What is said to nodes once they have come in."""

    async def begin(self, session: NodeSession, hello: Hello) -> None:
        """A node is here."""

    async def receive(self, session: NodeSession, message: NodeMessage, *more: Report) -> None:
        """Act on one message, and on ``more`` that go together with it."""

    def left(self, session: NodeSession) -> None:
        """A connection is over."""


class NodeSocket:
    """Handler of the route."""

    def __init__(
        self,
        context: Context,
        nodes: Nodes,
        conversation: NodeTalk,
        patience: Patience,
        seal: FrontSeal | None = None,
    ) -> None:
        """``seal``: of fronts, which may have challenged a node already; None: none lead nodes here that way."""
        self._seal = seal
        self._context = context
        self._nodes = nodes
        self._conversation = conversation
        self._patience = patience
        self._open: dict[_Outgoing, asyncio.Task[Any]] = {}

    def setup(self, app: web.Application) -> None:
        """Add the route, and let go of everybody when the application stops."""
        app.router.add_get(PATH, self.handle)
        app.on_shutdown.append(self._drain)

    @public
    async def handle(self, request: web.Request) -> web.WebSocketResponse:
        """One connection from its challenge to its end."""
        address = address_of(request)
        with contextlib.ExitStack() as greeting:
            greeting.callback(await self._nodes.greeting(address))
            socket = web.WebSocketResponse(max_msg_size=MAX_FRAME, heartbeat=20.0, timeout=CLOSE_S, compress=False)
            await socket.prepare(request)
            nonce = None if self._seal is None else self._seal.nonce_of(request.headers)
            await self.take(socket, NodePlace(request.host[:200], address, greeting, nonce))
        return socket

    async def take(self, socket: web.WebSocketResponse, place: NodePlace) -> None:
        """A connection that is open, to its end; also one at which a front of this process has heard who the node is."""
        outgoing, handling = _Outgoing(socket), asyncio.current_task()
        assert handling is not None
        self._open[outgoing] = handling
        writer = asyncio.create_task(outgoing.write(), name="write-to-node")
        try:
            await self._talk(place, socket, outgoing)
        finally:
            del self._open[outgoing]
            outgoing.close("the connection ended")
            with contextlib.suppress(asyncio.CancelledError, ConnectionError, TimeoutError):
                await within(CLOSE_S, writer)

    async def _talk(self, place: NodePlace, socket: web.WebSocketResponse, outgoing: _Outgoing) -> None:
        session: NodeSession | None = None
        try:
            with tracing.span("node connects", ""):
                entered = await self._greet(place, socket, outgoing)
            place.greeting.close()
            if entered is not None:
                session, hello = entered
                with about(node=session.node):
                    await self._converse(session, hello, socket, outgoing)
        except MessageError as error:
            self._context.metrics.count("messages_malformed_total")
            outgoing.close(malformed(error))
        except StoreAwayError as away:
            outgoing.close(away.detail)
        except Exception:  # The boundary of one connection: a fault in it must not end the others.
            LOG.exception("connection of %s", session.node if session else "a node that had not said who it is")
            outgoing.close("internal error")
        finally:
            if session is not None:
                self._conversation.left(session)

    async def _converse(
        self, session: NodeSession, hello: Hello, socket: web.WebSocketResponse, outgoing: _Outgoing
    ) -> None:
        """Handle messages in their order while the connection is read on.

        Heartbeats count when they arrive, and pings are answered: a coordinator with much to do takes nobody for dead.
        """
        waiting: _Waiting = asyncio.Queue(MAX_UNHANDLED)
        reading = asyncio.create_task(self._read_on(session, socket, outgoing, waiting), name="read-from-node")
        try:
            await self._stored(reading, partial(self._conversation.begin, session, hello))
            async for message, more in _in_turn(waiting):
                if outgoing.closing is not None:
                    break
                await self._stored(reading, partial(self._conversation.receive, session, message, *more))
                session.unhandled -= 1 + len(more)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _stored(self, reading: asyncio.Task[None], act: Callable[[], Awaitable[None]]) -> None:
        """Do what needs the store, when it can be had: the node is beating, and says nothing twice."""
        await self._patience.once("a node's report", act, lambda: not reading.done())

    async def _read_on(
        self, session: NodeSession, socket: web.WebSocketResponse, outgoing: _Outgoing, waiting: _Waiting
    ) -> None:
        """Until the connection is over: its end, or what is wrong with it, comes last in ``waiting``."""
        bucket = _Bucket(self._context.clock.now())
        try:
            while (message := await self._read(socket, outgoing, bucket)) is not None:
                if isinstance(message, Heartbeat):
                    await self._conversation.receive(session, message)
                else:
                    session.unhandled += 1
                    await waiting.put(message)
        except Exception as error:  # noqa: BLE001 - raised where messages are handled, once those before it are.
            await waiting.put(error)
        else:
            await waiting.put(None)

    async def _greet(
        self, place: NodePlace, socket: web.WebSocketResponse, outgoing: _Outgoing
    ) -> tuple[NodeSession, Hello] | None:
        nonce, host = place.nonce or self._context.entropy(32), place.host
        if place.nonce is None:
            outgoing.send(Challenge(nonce, host))
        try:
            hello = place.hello or (await hello_from(socket))[0]
        except NoHelloError as error:
            outgoing.close(str(error))
            return None
        try:
            session = await self._nodes.enter(hello, nonce, host, outgoing.send, outgoing.close, place.address)
        except NodeRefusedError as refused:
            self._context.metrics.count("connections_refused_total")
            outgoing.send(Refused(untrusted(refused.reason), refused.retry_seconds))
            outgoing.close(refused.reason)
            return None
        except StoreAwayError as away:
            outgoing.send(Refused(untrusted(away.detail), RETRY_SOON))
            outgoing.close(away.detail)
            return None
        return session, hello

    async def _read(self, socket: web.WebSocketResponse, outgoing: _Outgoing, bucket: _Bucket) -> NodeMessage | None:
        """The next message; None when the connection is over."""
        frame = await socket.receive()
        if frame.type is WSMsgType.TEXT:
            raise MessageError("messages are binary frames here, this one is text")
        if frame.type is not WSMsgType.BINARY or outgoing.closing is not None:
            return None
        if not bucket.take(self._context.clock.now(), len(frame.data)):
            self._context.metrics.count("messages_throttled_total")
            outgoing.close(f"more than {RATE:g} messages of {TOKEN_BYTES:,} bytes a second: slow down")
            return None
        message: NodeMessage = decode(frame.data, NodeMessage, MAX_FRAME)
        return message

    async def _drain(self, _app: web.Application) -> None:
        ending = dict(self._open)
        for outgoing in ending:
            outgoing.close("the coordinator stops: come back in a moment")
        if ending:  # Those that a front has brought are nobody else's to wait for.
            await asyncio.wait(ending.values(), timeout=CLOSE_S)
