"""What every answer has in common: errors as ``Problem``, limits on bodies, headers that keep a browser safe."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
from aiohttp import ClientConnectionError, hdrs, web
from aiohttp.typedefs import Handler

from coordinator.errors import CottageError, ForbiddenError, InvalidError, TooLargeError
from transport.wire import codec
from transport.wire.api import Problem

API = "/api/v1"
MAX_JSON_BYTES = 1 << 20  # A job with the largest config.json in use has 30 KB.
BODY_SECONDS = 60.0  # A document that takes longer is somebody holding a connection open.
CHUNK_BYTES = 1 << 18

SAFE_METHODS: Final = frozenset({hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS})
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

_log = logging.getLogger(__name__)


def answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """``value`` (a Struct, a sequence of them, plain data) as JSON."""
    return web.Response(
        body=msgspec.json.encode(value),
        status=status,
        content_type="application/json",
        headers={"Cache-Control": "no-store", **(headers or {})},
    )


def problem(status: int, code: str, detail: str, field: str = "") -> web.Response:
    """An error of the interface."""
    return answer(Problem(code, detail, field), status)


async def read_body(request: web.Request, limit: int = MAX_JSON_BYTES) -> bytes:
    """The whole body, in memory.

    Raises:
        TooLargeError: more than ``limit`` bytes, whether announced or not.
        InvalidError: the sender took longer than ``BODY_SECONDS`` or went away.
    """
    if (request.content_length or 0) > limit:
        raise TooLargeError(f"a body of {request.content_length:,} bytes: at most {limit:,} are taken here")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > limit:
                    raise TooLargeError(f"a body of more than {limit:,} bytes: at most {limit:,} are taken here")
    except (TimeoutError, ClientConnectionError, web.RequestPayloadError) as error:
        raise InvalidError("the body did not arrive whole: send it again") from error
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


def protect(app: web.Application) -> None:
    """Give every answer of ``app`` its headers, and every error its shape."""
    app.middlewares.append(_errors)
    app.on_response_prepare.append(_harden)


async def _harden(_request: web.Request, response: web.StreamResponse) -> None:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers[hdrs.SERVER] = "cottage"


def same_origin(request: web.Request) -> None:
    """Refuse a change that another site's page asks for in the user's browser.

    Raises:
        ForbiddenError: the browser names another origin than ours.
    """
    origin = request.headers.get(hdrs.ORIGIN)
    site = request.headers.get("Sec-Fetch-Site", "none")
    foreign = origin is not None and origin.partition("://")[2] != request.host
    if request.method not in SAFE_METHODS and (foreign or site not in ("none", "same-origin")):
        raise ForbiddenError("this request comes from a page of another site: open the coordinator's own page")


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every error into an answer: a Problem for programs; pages have their own middleware inside this one."""
    try:
        same_origin(request)
        return await handler(request)
    except CottageError as error:
        return problem(error.status, error.code, error.detail, error.field)
    except codec.MessageError as error:
        return problem(422, "invalid", str(error), field_of(str(error)))
    except web.HTTPException as error:
        if error.status < 400:
            raise
        answered = problem(error.status, "http", f"{request.method} {request.path[:200]}: {error.reason}")
        if hdrs.ALLOW in error.headers:
            answered.headers[hdrs.ALLOW] = error.headers[hdrs.ALLOW]
        return answered
    except ConnectionError:
        raise  # The other side has gone: there is nobody to answer.
    except Exception:  # noqa: BLE001 - the outermost boundary: whatever it is, log it and answer without its text
        _log.exception("%s %s failed", request.method, request.path)
        return problem(
            500, "internal", "the coordinator failed at this; its log says why. Try again, or tell its operator"
        )


def field_of(message: str) -> str:
    """The field that a message of the codec is about: ``... - at `$.training.tokens` `` gives ``training.tokens``."""
    _, _, path = message.rpartition("at `$")
    return path.rstrip("`").lstrip(".") if path != message and "`" in path else ""
