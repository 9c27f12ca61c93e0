"""What every answer has in common: errors as ``Problem``, limits on bodies, headers that keep a browser safe."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec
from aiohttp import ClientConnectionError, hdrs, web
from aiohttp.typedefs import Handler

from common.untrusted_text import untrusted
from coordinator.errors import (
    CottageError,
    ElsewhereError,
    FullError,
    InvalidError,
    StoreAwayError,
    TooLargeError,
    TooManyError,
    UnableError,
)
from coordinator.services.accounts.budgets import Bodies
from coordinator.web.packing import pack
from protocol import codec
from protocol.rest.api import Problem
from protocol.rest.completions import api_error

API = "/api/v1"
COMPLETION = "/v1/"
"""Where programs come in that speak OpenAI's API, and read its errors."""
PROBLEM = "application/problem+json"
BODY: Final = web.RequestKey("body", bytes)  # A body that has been read already.
WHOSE: Final = web.RequestKey("whose", str)  # Whose bytes are counted together: an account's, or an address's.
BODIES: Final = web.AppKey("bodies", Bodies)
MAX_JSON_BYTES = 1 << 20  # A job with the largest config.json in use has 30 KB.
CLOSED = 499  # As proxies write it down; nobody reads it.
BODY_S = 60.0  # A document that takes longer is somebody holding a connection open.
CHUNK_BYTES = 1 << 18
SHOULD_RETRY: Final = "x-should-retry"
"""Clients of OpenAI's API ask again after 408, 409, 429 and 5xx, unless this says false."""

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}

LOG = logging.getLogger(__name__)


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """``value`` (a Struct, a sequence of them, plain data) as JSON."""
    return web.Response(
        body=msgspec.json.encode(value),
        status=status,
        content_type="application/json",
        headers={hdrs.CACHE_CONTROL: "no-store", **(headers or {})},
    )


def problem_answer(request: web.Request, status: int, found: Problem) -> web.Response:
    """An error as RFC 9457 has it, or as clients of OpenAI's API read it."""
    if request.path.startswith(COMPLETION):
        detail = found.detail if found.code != "http" or status != 404 else untrusted(_no_such(request))
        status, told = api_error(status, found.code, detail, found.field)
        return answer(told, status)
    whole = msgspec.structs.replace(
        found,
        type=f"/docs/api#{found.code}",
        title=HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Error",
        status=status,
        instance=request.path[:200],
    )
    response = answer(whole, status)
    response.content_type = PROBLEM
    return response


def _no_such(request: web.Request) -> str:
    """What programs are told that ask for a part of OpenAI's API that is not here."""
    ways = f"{COMPLETION}chat/completions, {COMPLETION}completions and {COMPLETION}embeddings"
    why = "it is not among what is answered"
    return f"there is no {request.method} {request.path[:80]}: {why}; models answer at {ways}"


async def read_body(request: web.Request, limit: int = MAX_JSON_BYTES) -> bytes:
    """The whole body, in memory.

    Raises:
        TooLargeError: more than ``limit`` bytes, whether announced or not.
        InvalidError: the sender took longer than ``BODY_S`` or went away.
        TooManyError: more is arriving, of the same sender or of everybody, than there is room for.
    """
    if (request.content_length or 0) > limit:
        raise TooLargeError(f"a body of {request.content_length:,} bytes: at most {limit:,} are taken here")
    body = bytearray(request.get(BODY, b""))
    if len(body) > limit:
        raise TooLargeError(f"a body of {len(body):,} bytes: at most {limit:,} are taken here")
    bodies, whose, counted = request.app[BODIES], request.get(WHOSE, ""), 0
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.content.iter_any():
                bodies.add(whose, len(chunk))
                counted += len(chunk)
                body += chunk
                if len(body) > limit:
                    raise TooLargeError(f"a body of more than {limit:,} bytes: at most {limit:,} are taken here")
    except (TimeoutError, ClientConnectionError, ConnectionError, web.RequestPayloadError) as error:
        raise InvalidError("the body did not arrive whole: send it again") from error
    finally:
        bodies.free(whose, counted)
    return bytes(body)


async def read_chunks(request: web.Request) -> AsyncIterator[bytes]:
    """The body as it comes; ends with InvalidError where the line is cut, so that nothing takes it for whole."""
    try:
        async for chunk in request.content.iter_chunked(CHUNK_BYTES):
            yield chunk
    except (ClientConnectionError, ConnectionError, web.RequestPayloadError) as error:
        raise InvalidError(
            "the line was cut in the middle of the body: ask for the offset and go on from there"
        ) from error


def integer(request: web.Request, name: str, default: int, low: int, high: int) -> int:
    """A whole number from the query.

    Raises:
        InvalidError: not a number, or not within ``low..high``.
    """
    text = request.query.get(name, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 19 or not low <= int(text) <= high:
        raise InvalidError(f"{name} is {text[:40]!r}: give a whole number from {low:,} to {high:,}", name)
    return int(text)


ErrorPage = Callable[[web.Request, int, Problem], web.Response | None]


def protect(app: web.Application, error_page: ErrorPage) -> None:
    """Give every answer of ``app`` its headers, and every error its shape.

    Args:
        app: not yet started.
        error_page: draws an error for a person; None where a program asked, which gets a ``Problem``.
    """

    @web.middleware
    async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except ConnectionError:
            # The other side has gone: there is nobody to answer, and nothing to log, which strangers could fill a disk with.
            return web.Response(status=CLOSED)
        except ElsewhereError:
            raise  # Whoever can answer it is asked (``fronts``).
        except Exception as error:  # The outermost boundary: whatever it is, log it and answer without its text.
            if isinstance(error, web.HTTPException) and error.status < 400:
                raise
            status, found = _understood(request, error)
            shown = error_page(request, status, found) or problem_answer(request, status, found)
            say_when(shown, error)
            if status == 401:
                shown.headers[hdrs.WWW_AUTHENTICATE] = "Bearer"
            if isinstance(error, web.HTTPException) and hdrs.ALLOW in error.headers:
                shown.headers[hdrs.ALLOW] = error.headers[hdrs.ALLOW]
            return shown

    app[BODIES] = Bodies()
    app.middlewares.extend([pack, errors])
    app.on_response_prepare.append(_harden)


def say_when(response: web.StreamResponse, error: Exception) -> None:
    """Say when to ask again: too often, for more than there is room for, or while the store is away; or that it is in vain."""
    if isinstance(error, TooManyError | FullError | StoreAwayError):
        response.headers[hdrs.RETRY_AFTER] = str(math.ceil(error.retry_s))
    if isinstance(error, UnableError):
        response.headers[SHOULD_RETRY] = "false"


async def _harden(_request: web.Request, response: web.StreamResponse) -> None:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers[hdrs.SERVER] = "cottage"


def _understood(request: web.Request, error: Exception) -> tuple[int, Problem]:
    """Status and text for an error; one that nobody foresaw goes into the log and says nothing of itself."""
    match error:
        case CottageError():
            return error.status, Problem(error.code, untrusted(error.detail), error.field)
        case codec.MessageError():
            said = str(error)
            said = f"the body {said[3:]}" if not error.field and said.startswith("it ") else said
            return 422, Problem("invalid", untrusted(said), error.field)
        case web.HTTPException():
            return error.status, Problem("http", untrusted(f"{request.method} {request.path[:200]}: {error.reason}"))
        case _:
            LOG.error("%s %s failed", request.method, request.path, exc_info=error)
            said = "the coordinator failed at this; its log says why. Try again, or tell its operator"
            return 500, Problem("internal", untrusted(said))
