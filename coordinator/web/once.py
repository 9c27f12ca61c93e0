"""A changing request that carries an ``Idempotency-Key`` happens once, however often it is sent."""

import functools
import hashlib
import re
from collections.abc import Callable
from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from coordinator.errors import ConflictError, InvalidError
from coordinator.services.jobs.idempotency import IdempotentAnswers
from coordinator.web.http import BODY, read_body
from coordinator.web.parameters import Query

HEADER: Final = "Idempotency-Key"
MAX_KEY: Final = 200
KEY = Query(
    HEADER,
    "Any text of your own that names this request. Sent again with the same key it is answered as before and changes nothing.",
    "string",
    header=True,
    bounds={"minLength": 1, "maxLength": MAX_KEY, "pattern": "^[!-~]+$"},
)
_TOLD = (hdrs.CONTENT_TYPE, "Upload-Length", "Upload-Metadata")  # Headers that say what is asked for.
_KEY = re.compile(r"[!-~]{1,200}")
RESOURCE: Final = web.RequestKey("resource", str)
"""The id that what a request makes is to have, where it carries a key."""


class Once:
    """Wraps handlers."""

    def __init__(self, replays: IdempotentAnswers, account_of: Callable[[web.Request], str]) -> None:
        self._replays = replays
        self._account_of = account_of

    def wrap(self, handler: Handler, secret: bool) -> Handler:
        """``handler``, which is not asked twice for one key.

        Args:
            secret: its answer is shown once and never kept; who repeats the request is told that it was done.
        """

        @functools.wraps(handler)
        async def answered(request: web.Request) -> web.StreamResponse:
            key = request.headers.get(HEADER)
            return await handler(request) if key is None else await self._answer(request, key, handler, secret)

        return answered

    async def _answer(self, request: web.Request, key: str, handler: Handler, secret: bool) -> web.StreamResponse:
        if _KEY.fullmatch(key) is None:
            raise InvalidError(f"{HEADER} is {key[:40]!r}: use 1 to {MAX_KEY} visible ASCII characters", HEADER)
        body = request[BODY] = await read_body(request)
        said = (request.method, request.path_qs, *(request.headers.get(name, "") for name in _TOLD))
        fingerprint = hashlib.sha256("\n".join(said).encode() + b"\n" + body).hexdigest()
        async with self._replays.turn(self._account_of(request), key, fingerprint) as turn:
            if turn.over:
                return _replayed(turn.record.status, turn.record.location, turn.record.body, secret)
            request[RESOURCE] = turn.record.resource
            response = await handler(request)
            if isinstance(response, web.Response) and 200 <= response.status < 300:
                kept = response.body if isinstance(response.body, bytes) and not secret else b""
                turn.keep(response.status, response.headers.get(hdrs.LOCATION, ""), kept)
            return response


def _replayed(status: int, location: str, body: bytes, secret: bool) -> web.Response:
    if secret:
        raise ConflictError("this was done already, and what it answered is shown only once: make another", HEADER)
    headers = {hdrs.CACHE_CONTROL: "no-store", "Idempotency-Replayed": "true"}
    if location:
        headers[hdrs.LOCATION] = location
    if not body:
        return web.Response(status=status, headers=headers)
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)
