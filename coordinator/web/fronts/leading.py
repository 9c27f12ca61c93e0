"""How a front leads requests and nodes' connections to the coordinator at work, and back.

A request that could not have been begun there is led to the next one that works, and so is one that may be done twice: it only
reads, or has an idempotency key. Of any other the sender is told that nobody knows.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from aiohttp import (
    ClientConnectorError,
    ClientError,
    ClientResponse,
    ClientTimeout,
    ClientWSTimeout,
    WSMsgType,
    WSServerHandshakeError,
    hdrs,
    web,
)
from aiohttp.typedefs import Handler
from multidict import CIMultiDict

from common.untrusted_text import untrusted
from common.urls import moved
from coordinator.errors import ElsewhereError, UnavailableError
from coordinator.web.auth.gate import as_the_proxy_says
from coordinator.web.auth.origin import SAFE_METHODS
from coordinator.web.fronts.answering import ASK, NEWS
from coordinator.web.fronts.line import WAIT_S, CoordinatorAtWork, LineToWork
from coordinator.web.fronts.seal import FRONT, STANDS_BY, FrontSeal
from coordinator.web.http import answer, problem_answer, read_chunks
from coordinator.web.monitoring.watchers import METRICS
from coordinator.web.once import KEY
from coordinator.web.signal import CLOSE_S, MAX_FRAME, PATH
from coordinator.web.stream import while_there
from protocol.rest.api import Problem

T = TypeVar("T")

AGAIN_S: Final = 2  # Whoever could not be led anywhere comes back then.
PAUSE_S: Final = 0.1
LATE_S: Final = 0.5  # An answer that was under way when somebody else took over may still come.
MAX_HELD: Final = 1 << 16  # Bytes of a body that are held, so that it can be sent a second time.
GONE: Final = "the coordinator stops: come back in a moment"
# What is the one at work's alone, though it is only read: its figures, and ways to sign in, which change something.
_NOT_HERE: Final = (METRICS, "/sign-", "/account/identities")
_FRONTS_OWN: Final = (ASK, NEWS)  # Asked by a front of itself: led, a stranger's question would have its seal.
# Where a method changes what follows on a connection (CONNECT), the next request there is somebody else's.
_METHODS: Final = SAFE_METHODS | {hdrs.METH_POST, hdrs.METH_PUT, hdrs.METH_PATCH, hdrs.METH_DELETE}
_OF_ONE_HOP: Final = frozenset(
    name.lower()
    for name in (
        hdrs.CONNECTION,
        hdrs.KEEP_ALIVE,
        hdrs.PROXY_AUTHENTICATE,
        hdrs.PROXY_AUTHORIZATION,
        hdrs.TE,
        hdrs.TRAILER,
        hdrs.TRANSFER_ENCODING,
        hdrs.UPGRADE,
        hdrs.EXPECT,
        hdrs.X_FORWARDED_FOR,
        hdrs.X_FORWARDED_PROTO,
        FRONT,
        STANDS_BY,
    )
)
_OURS: Final = (hdrs.USER_AGENT, hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE)


class _NotBegunError(Exception):
    """Nothing of the request was done."""


class Leading:
    """What stands before every route of a front. ``behind_proxy``: as in ``Config``."""

    def __init__(self, line: LineToWork, seal: FrontSeal, behind_proxy: bool) -> None:
        self._line, self._seal, self._behind_proxy = line, seal, behind_proxy

    @web.middleware
    async def lead(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer what is read here, and lead the rest."""
        if self._seal.is_on(request.headers):  # Another front takes this one for the one at work.
            return web.Response(status=503, headers={STANDS_BY: "1", hdrs.RETRY_AFTER: str(AGAIN_S)})
        if request.method not in _METHODS:
            return problem_answer(request, 405, Problem("http", untrusted(f"no method {request.method[:40]} here")))
        if request.path in _FRONTS_OWN:
            return problem_answer(request, 404, Problem("not_found", untrusted("nothing is here")))
        match request.path:
            case "/healthz":
                return answer({"status": "standby"})
            case "/readyz":
                return self._ready(request)
            case _ if request.path == PATH:
                return await self._unless_nobody(request, self._node(request))
        if request.method in SAFE_METHODS and self._line.reads and not request.path.startswith(_NOT_HERE):
            try:
                return await handler(request)
            except ElsewhereError:
                pass
        return await self._unless_nobody(request, self._answer(request))

    def _ready(self, request: web.Request) -> web.Response:
        if self._line.is_ready:
            return answer({"status": "ready"})
        return _not_now(request, "This coordinator stands by: another one is at work. Come back in a moment.")

    async def _unless_nobody(
        self, request: web.Request, leading: Coroutine[Any, Any, web.StreamResponse]
    ) -> web.StreamResponse:
        try:
            return await leading
        except UnavailableError as error:
            return _not_now(request, error.detail)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await _held(request)
        again = body is None or isinstance(body, bytes)
        twice = again and (request.method in SAFE_METHODS or KEY.name in request.headers)
        until = _now() + WAIT_S
        while True:
            at = await self._line.reach(max(0.0, until - _now()))
            try:
                async with while_there(request):
                    return await self._through(request, at, body)
            except _NotBegunError as error:
                if not again:
                    raise UnavailableError("the coordinator at work has gone: send the file's part again") from error
            except (ClientError, OSError, TimeoutError) as error:
                if isinstance(error, ConnectionResetError) and request.transport is None:
                    raise
                if not twice:
                    raise UnavailableError(
                        "the coordinator at work went away while it had this request, and nobody knows whether it was done: "
                        "look, or send it again with an Idempotency-Key, which does it once"
                    ) from error
            if _now() > until:
                raise UnavailableError("the coordinator at work does not answer: come back in a moment")
            await asyncio.sleep(PAUSE_S)

    async def _through(
        self, request: web.Request, at: CoordinatorAtWork, body: bytes | AsyncIterator[bytes] | None
    ) -> web.StreamResponse:
        # A length of what is not sent would have the next request on that connection, somebody else's, taken for a body.
        kept = () if body is None or isinstance(body, bytes) else (hdrs.CONTENT_LENGTH,)
        sending = self._line.http.request(
            request.method,
            moved(request.rel_url, at.url),
            headers=self._headers(request, kept),
            data=body,
            skip_auto_headers=_OURS,
            allow_redirects=False,
            auto_decompress=False,
            timeout=ClientTimeout(total=None, sock_connect=2.0),
        )
        try:
            found = await _while_there(at, sending)
        except ClientConnectorError as error:
            raise _NotBegunError from error
        async with found:
            if STANDS_BY in found.headers:
                raise _NotBegunError
            return await _passed_on(request, found, at)

    def _headers(self, request: web.Request, kept: tuple[str, ...] = ()) -> CIMultiDict[str]:
        """Those that came, and who asks, as far as this one knows."""
        asking = as_the_proxy_says(request) if self._behind_proxy else request
        headers = _end_to_end(request.headers, kept)
        headers.update(self._seal.headers)
        headers[hdrs.X_FORWARDED_FOR] = asking.remote or ""
        headers[hdrs.X_FORWARDED_PROTO] = asking.scheme
        return headers

    async def _node(self, request: web.Request) -> web.StreamResponse:
        """A node's connection: whatever one side says, the other one hears."""
        at = await self._line.reach()
        names = (hdrs.HOST, hdrs.USER_AGENT)
        headers = self._headers(request)
        headers = CIMultiDict({n: v for n, v in headers.items() if n in (*names, FRONT) or n.startswith("X-Forwarded")})
        try:
            far = await self._line.http.ws_connect(
                moved(request.rel_url, at.url),
                headers=headers,
                max_msg_size=0,
                heartbeat=20.0,
                timeout=ClientWSTimeout(ws_close=CLOSE_S),
            )
        except WSServerHandshakeError as error:
            raise UnavailableError(f"the coordinator at work takes no connection now ({error.status})") from error
        except (ClientError, OSError, TimeoutError) as error:
            raise UnavailableError(GONE) from error
        async with far:
            near = web.WebSocketResponse(max_msg_size=MAX_FRAME, heartbeat=20.0, timeout=CLOSE_S, compress=False)
            await near.prepare(request)
            passing = [asyncio.create_task(_pass(far, near)), asyncio.create_task(_pass(near, far))]
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


async def _pass(one: Any, other: Any) -> tuple[int, bytes] | None:
    """Messages of one side to the other, until its end: how it closed, where it said so."""
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


async def _passed_on(request: web.Request, found: ClientResponse, at: CoordinatorAtWork) -> web.StreamResponse:
    """An answer as it comes. One that breaks off breaks off here, too."""
    headers = _end_to_end(found.headers, (hdrs.CONTENT_LENGTH,))
    response = web.StreamResponse(status=found.status, reason=found.reason, headers=headers)
    await response.prepare(request)
    ending = asyncio.create_task(_close_after(at, found))
    try:
        async for piece in found.content.iter_any():
            await response.write(piece)
        await response.write_eof()
    except (ClientError, OSError, TimeoutError):
        if request.transport is not None:
            request.transport.abort()
    finally:
        ending.cancel()
    return response


async def _close_after(at: CoordinatorAtWork, found: ClientResponse) -> None:
    await at.gone.wait()
    found.close()


async def _while_there(at: CoordinatorAtWork, doing: Any) -> Any:
    """What the one at work does; ClientError once it is not there, or not the one at work any more."""
    task, gone = asyncio.ensure_future(doing), asyncio.ensure_future(at.gone.wait())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            await asyncio.wait({task}, timeout=LATE_S)
        if not task.done():
            raise ClientError(GONE)
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _held(request: web.Request) -> bytes | AsyncIterator[bytes] | None:
    """The body: whole where it is small, else as it comes."""
    if not request.body_exists:
        return None
    if request.content_length is None or request.content_length > MAX_HELD:
        return read_chunks(request)
    return b"".join([chunk async for chunk in read_chunks(request)])


def _end_to_end(headers: Mapping[str, str], kept: tuple[str, ...]) -> CIMultiDict[str]:
    """Headers that are not of one hop alone; the length of a body where it is ``kept``."""
    lengths = {hdrs.CONTENT_LENGTH.lower()} - {name.lower() for name in kept}
    named = {name.strip().lower() for name in headers.get(hdrs.CONNECTION, "").split(",")}
    dropped = _OF_ONE_HOP | lengths | named | {FRONT.lower(), STANDS_BY.lower()}
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in dropped)


def _not_now(request: web.Request, why: str) -> web.Response:
    response = problem_answer(request, 503, Problem("unavailable", untrusted(why)))
    response.headers[hdrs.RETRY_AFTER] = str(math.ceil(AGAIN_S))
    return response


def _now() -> float:
    return asyncio.get_running_loop().time()
