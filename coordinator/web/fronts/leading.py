"""How a front leads requests to the coordinators at work, and answers back.

A request that could not have been begun there is led to the next one that works, and so is one that may be done twice: it only
reads, or has an idempotency key. Of any other the sender is told that nobody knows. With several cells a request goes to the one
that it names (``directing``); where it turns out to be about another one's job, nothing was done, and it is led there.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Final

from aiohttp import (
    ClientConnectorError,
    ClientError,
    ClientResponse,
    ClientTimeout,
    hdrs,
    web,
)
from aiohttp.typedefs import Handler

from common.untrusted_text import untrusted
from common.urls import moved
from coordinator.errors import CottageError, ElsewhereError, TooLargeError, UnavailableError
from coordinator.web.auth.gate import address_of
from coordinator.web.auth.origin import SAFE_METHODS
from coordinator.web.fronts.answering import ASK, NEWS
from coordinator.web.fronts.cell_lines import LinesToWork
from coordinator.web.fronts.choosing import CellChoice
from coordinator.web.fronts.directing import MAX_HELD, MAX_HELD_DOCUMENT, cell_in, way_of
from coordinator.web.fronts.headers import FrontHeaders, end_to_end
from coordinator.web.fronts.line import WAIT_S, CoordinatorAtWork, while_at_work
from coordinator.web.fronts.misdirected import MISDIRECTED
from coordinator.web.fronts.node_lines import NodeLines
from coordinator.web.fronts.seal import CELL, STANDS_BY, FrontSeal
from coordinator.web.http import CLOSED, WHOSE, answer, problem_answer, read_body, read_chunks, say_when
from coordinator.web.monitoring.watchers import METRICS
from coordinator.web.once import KEY
from coordinator.web.signal import PATH
from coordinator.web.stream import has_gone, while_there
from protocol.rest.api import Problem

AGAIN_S: Final = 2  # Whoever could not be led anywhere comes back then.
PAUSE_S: Final = 0.1
MAX_OTHERS: Final = 2  # Cells that a request is led to after the first one.
# What is the one at work's alone, though it is only read: its figures, and ways to sign in, which change something.
_NOT_HERE: Final = (METRICS, "/sign-", "/account/identities")
_FRONTS_OWN: Final = (ASK, NEWS)  # Asked by a front of itself: led, a stranger's question would have its seal.
# Where a method changes what follows on a connection (CONNECT), the next request there is somebody else's.
_METHODS: Final = SAFE_METHODS | {hdrs.METH_POST, hdrs.METH_PUT, hdrs.METH_PATCH, hdrs.METH_DELETE}
_MADE: Final = (201, 303)  # A job, by a program or on a page.
_OURS: Final = (hdrs.USER_AGENT, hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE)

Body = bytes | AsyncIterator[bytes] | None
"""Of a request: whole, as it comes, or none."""


class _NotBegunError(Exception):
    """Nothing of the request was done."""


class _OtherCellError(_NotBegunError):
    """Nor will it be there: it is about another cell's job."""

    def __init__(self, cell: int) -> None:
        super().__init__()
        self.cell = cell


class Leading:
    """What stands before every route of a front."""

    def __init__(
        self, lines: LinesToWork, seal: FrontSeal, headers: FrontHeaders, nodes: NodeLines, choice: CellChoice
    ) -> None:
        """``nodes``: leads their connections. ``choice``: of cells for jobs that are not there yet."""
        self._lines, self._seal, self._headers, self._nodes, self._choice = lines, seal, headers, nodes, choice

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
                return answer({"status": "standby" if len(self._lines) == 1 else "ok"})
            case "/readyz":
                return self._ready(request)
            case _ if request.path == PATH:
                return await self._unless_nobody(request, self._nodes.lead(request))
        if request.method in SAFE_METHODS and self._lines.reads and not request.path.startswith(_NOT_HERE):
            try:
                return await handler(request)
            except ElsewhereError:
                pass
        return await self._unless_nobody(request, self._answer(request))

    def _ready(self, request: web.Request) -> web.Response:
        cells = len(self._lines)
        if self._lines.is_ready:
            return answer(
                {"status": "ready"} | ({"cells": f"{len(self._lines.reached)} of {cells}"} if cells > 1 else {})
            )
        if cells > 1:
            return _not_now(request, "No cell has a coordinator at work now. Come back in a moment.")
        return _not_now(request, "This coordinator stands by: another one is at work. Come back in a moment.")

    async def _unless_nobody(
        self, request: web.Request, leading: Coroutine[Any, Any, web.StreamResponse]
    ) -> web.StreamResponse:
        try:
            return await leading
        except ConnectionError:
            return web.Response(status=CLOSED)  # Whoever asked has gone, and may go a million times: it is not logged.
        except UnavailableError as error:
            return _not_now(request, error.detail)
        except CottageError as error:
            found = Problem(error.code, untrusted(error.detail), error.field)
            response = problem_answer(request, error.status, found)
            say_when(response, error)
            return response

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        way = way_of(request, len(self._lines))
        body = await self._held(request, way.held)
        cell = way.cell
        if cell is None:
            cell = self._choice.for_job(await self._lines.reach_any())
        elif way.held > MAX_HELD and isinstance(body, bytes):
            cell = cell_in(body, len(self._lines)) or cell
        if not way.makes:
            return await self._led(request, cell, body)
        with self._choice.making(cell) as job:
            response = await self._led(request, cell, body)
            job.made = response.status in _MADE
        return response

    async def _led(self, request: web.Request, cell: int, body: Body) -> web.StreamResponse:
        again = body is None or isinstance(body, bytes)
        twice = again and (request.method in SAFE_METHODS or KEY.name in request.headers)
        until, others = _now() + WAIT_S, 0
        while True:
            at = await self._lines.reach(cell, max(0.0, until - _now()))
            try:
                async with while_there(request):
                    return await self._through(request, at, body, others < MAX_OTHERS)
            except _OtherCellError as error:
                if not again:
                    raise TooLargeError(
                        f"this is about a job of another cell, to which a body of unknown length or of more than "
                        f"{MAX_HELD_DOCUMENT:,} bytes cannot be sent a second time: send a shorter one, with its length"
                    ) from error
                cell, others = error.cell, others + 1
                continue
            except _NotBegunError as error:
                if not again:
                    raise UnavailableError("the coordinator at work has gone: send the file's part again") from error
            except (ClientError, OSError, TimeoutError) as error:
                if isinstance(error, ConnectionError) and has_gone(request):
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
        self, request: web.Request, at: CoordinatorAtWork, body: Body, goes_on: bool
    ) -> web.StreamResponse:
        """``goes_on``: to another cell, if this one says so."""
        # A length of what is not sent would have the next request on that connection, somebody else's, taken for a body.
        kept = () if body is None or isinstance(body, bytes) else (hdrs.CONTENT_LENGTH,)
        sending = self._lines.http.request(
            request.method,
            moved(request.rel_url, at.url),
            headers=self._headers.of(request, kept),
            data=body,
            skip_auto_headers=_OURS,
            allow_redirects=False,
            auto_decompress=False,
            timeout=ClientTimeout(total=None, sock_connect=2.0),
        )
        try:
            found = await while_at_work(at, sending)
        except ClientConnectorError as error:
            raise _NotBegunError from error
        async with found:
            if STANDS_BY in found.headers:
                raise _NotBegunError
            if goes_on and (cell := self._other_cell(found)) is not None:
                raise _OtherCellError(cell)
            return await _passed_on(request, found, at)

    def _other_cell(self, found: ClientResponse) -> int | None:
        """The cell that an answer says has it; None: it says nothing of one."""
        said = found.headers.get(CELL, "")
        known = found.status == MISDIRECTED and said.isascii() and said.isdigit() and len(said) < 4
        return int(said) if known and int(said) < len(self._lines) else None

    async def _held(self, request: web.Request, most: int) -> Body:
        """The body: whole where it has at most so many bytes, else as it comes."""
        if not request.body_exists:
            return None
        length = request.content_length
        if length is None and most > MAX_HELD and not request.content_type.startswith("multipart/"):
            length = most  # A document, of which there is no more; with a file it may be longer.
        if length is None or length > most:
            return read_chunks(request)
        if length <= MAX_HELD:
            return b"".join([chunk async for chunk in read_chunks(request)])
        request[WHOSE] = f"address {address_of(self._headers.asking(request))}"
        return await read_body(request, most)


async def _passed_on(request: web.Request, found: ClientResponse, at: CoordinatorAtWork) -> web.StreamResponse:
    """An answer as it comes. One that breaks off breaks off here, too."""
    headers = end_to_end(found.headers, (hdrs.CONTENT_LENGTH,))
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


def _not_now(request: web.Request, why: str) -> web.Response:
    response = problem_answer(request, 503, Problem("unavailable", untrusted(why)))
    response.headers[hdrs.RETRY_AFTER] = str(math.ceil(AGAIN_S))
    return response


def _now() -> float:
    return asyncio.get_running_loop().time()
