"""How a front leads nodes' connections to the coordinators at work, and back: whatever one side says, the other one hears.

With one cell a connection is led as it comes. With several the front asks the node who it is, as a coordinator at work would, and
leads it to its cell with what it said. The cell takes the front's challenge for its own, and checks the rest itself. One of the
same process takes the connection as it is.
"""

import asyncio
import secrets
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from types import MappingProxyType
from typing import Any

from aiohttp import ClientError, ClientWebSocketResponse, ClientWSTimeout, WSMsgType, WSServerHandshakeError, web

from common.clock import Clock
from common.untrusted_text import untrusted
from common.urls import moved
from coordinator.errors import UnavailableError
from coordinator.services.network.admission import Crowd
from coordinator.services.network.nodes import RETRY_SOON
from coordinator.web.auth.gate import address_of
from coordinator.web.fronts.cell_lines import FIRST, LinesToWork
from coordinator.web.fronts.choosing import NodeCells
from coordinator.web.fronts.headers import FrontHeaders
from coordinator.web.fronts.line import GONE, CoordinatorAtWork, while_at_work
from coordinator.web.signal import (
    CLOSE_S,
    HELLO_S,
    MAX_FRAME,
    MAX_REASON,
    NodePlace,
    NodeSocket,
    NoHelloError,
    hello_from,
    malformed,
)
from protocol.codec import MessageError, encode
from protocol.node import Challenge, Hello, Refused

OTHER_VERSION = "this coordinator is of another version than what is stored here: come back in a moment"


class NodeLines:
    """Leads them."""

    def __init__(
        self,
        lines: LinesToWork,
        headers: FrontHeaders,
        cells: NodeCells,
        clock: Clock,
        here: Mapping[int, NodeSocket] = MappingProxyType({}),
    ) -> None:
        """``here``: of cells that this process carries, by their numbers."""
        self._lines, self._headers, self._cells, self._clock = lines, headers, cells, clock
        self._here = here
        self._crowd: Crowd[None] = Crowd(clock)

    async def lead(self, request: web.Request) -> web.StreamResponse:
        """One connection, to its end.

        Raises:
            UnavailableError: nobody takes it now.
        """
        if len(self._lines) > 1:
            return await self._greeted(request)
        at = await self._lines.reach(FIRST)
        async with await self._connect(request, at) as far:
            near = _near()
            await near.prepare(request)
            return await _passed(near, far, at)

    async def _greeted(self, request: web.Request) -> web.StreamResponse:
        """After the node has said who it is."""
        await self._lines.reach_any()
        if not self._lines.reads:
            raise UnavailableError(OTHER_VERSION)  # What it holds is not known here.
        with ExitStack() as greeting:
            address = address_of(self._headers.asking(request))
            greeting.callback(await self._crowd.greeting(address))
            near = _near()
            await near.prepare(request)
            nonce, host = secrets.token_bytes(32), request.host[:200]
            try:
                await near.send_bytes(encode(Challenge(nonce, host)))
                hello, said = await hello_from(near)
                led = await self._led(request, hello, nonce, host)
            except NoHelloError as error:
                return await _closed(near, str(error))
            except MessageError as error:
                return await _closed(near, malformed(error))
            except UnavailableError as error:
                return await _closed(near, error.detail, again=True)
            if isinstance(led, NodeSocket):
                await led.take(near, NodePlace(host, address, greeting, nonce, hello))
                return near
            greeting.close()
            at, far = led
            async with far:
                return await _passed(near, far, at, said)

    async def _led(
        self, request: web.Request, hello: Hello, nonce: bytes, host: str
    ) -> NodeSocket | tuple[CoordinatorAtWork, ClientWebSocketResponse]:
        """Where a node's cell takes its connection; of a cell elsewhere its coordinator, and the connection to it."""
        began = self._clock.now()
        try:
            cell = await self._cells.of(hello, nonce, host)
            if (own := self._here.get(cell)) is not None:
                return own
            at = await self._lines.reach(cell, HELLO_S)  # So that the node hears why before it goes by itself.
            return at, await self._connect(request, at, nonce)
        finally:
            self._crowd.answered(self._clock.now() - began)

    async def _connect(
        self, request: web.Request, at: CoordinatorAtWork, nonce: bytes | None = None
    ) -> ClientWebSocketResponse:
        connecting = self._lines.http.ws_connect(
            moved(request.rel_url, at.url),
            headers=self._headers.of_node(request, nonce),
            max_msg_size=0,
            heartbeat=20.0,
            timeout=ClientWSTimeout(ws_close=CLOSE_S),
        )
        try:  # One that is frozen takes a connection, and says nothing: whoever carries its cell by then does.
            return await while_at_work(at, connecting)
        except WSServerHandshakeError as error:
            raise UnavailableError(f"the coordinator at work takes no connection now ({error.status})") from error
        except (ClientError, OSError, TimeoutError) as error:
            raise UnavailableError(GONE) from error


def _near() -> web.WebSocketResponse:
    return web.WebSocketResponse(max_msg_size=MAX_FRAME, heartbeat=20.0, timeout=CLOSE_S, compress=False)


async def _closed(near: web.WebSocketResponse, why: str, again: bool = False) -> web.WebSocketResponse:
    """End a connection as a coordinator at work does. ``again``: the node may come back soon."""
    with suppress(ConnectionError, TimeoutError):
        if again:
            await near.send_bytes(encode(Refused(untrusted(why), RETRY_SOON)))
        await near.close(code=1008, message=why.encode()[:MAX_REASON])
    return near


async def _passed(
    near: web.WebSocketResponse, far: ClientWebSocketResponse, at: CoordinatorAtWork, said: bytes | None = None
) -> web.WebSocketResponse:
    """Pass messages both ways until one side ends, or ``at`` is gone. ``said``: by the node already."""
    passing = [asyncio.create_task(_pass(far, near)), asyncio.create_task(_pass(near, far, said))]
    gone = asyncio.create_task(at.gone.wait())
    try:
        await asyncio.wait({*passing, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (*passing, gone):
            task.cancel()
        await asyncio.gather(*passing, gone, return_exceptions=True)
    code, reason = _ended(passing[0])
    with suppress(ConnectionError, TimeoutError):
        await near.close(code=code, message=reason)
    return near


async def _pass(one: Any, other: Any, first: bytes | None = None) -> tuple[int, bytes] | None:
    """Messages of one side to the other, until its end: how it closed, where it said so. ``first``: before those."""
    if first is not None:
        await other.send_bytes(first)
    while True:
        message = await one.receive()
        match message.type:
            case WSMsgType.BINARY:
                await other.send_bytes(message.data)
            case WSMsgType.TEXT:
                await other.send_str(message.data)
            case WSMsgType.CLOSE:
                return message.data, str(message.extra or "").encode()
            case _:
                return None


def _ended(from_far: "asyncio.Task[tuple[int, bytes] | None]") -> tuple[int, bytes]:
    """What a node is told at the end: what the one at work said, or that it has gone."""
    if from_far.cancelled() or from_far.exception() is not None or (said := from_far.result()) is None:
        return 1012, GONE.encode()
    return said
