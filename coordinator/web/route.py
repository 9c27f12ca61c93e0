"""One table says what the interface has: it registers the handlers and writes the OpenAPI document."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from coordinator.web.auth import access_of
from coordinator.web.once import KEY, Once
from coordinator.web.parameters import Query

if TYPE_CHECKING:
    from coordinator.web.pagination import Pager

BINARY = "application/octet-stream"
ARCHIVE = "application/zip"


@dataclass(frozen=True)
class Route:
    """One way in.

    Attributes:
        answer, body: msgspec types, or a media type as text where the bytes are not JSON.
        status: of an answer without a fault.
        errors: that it alone has; what follows from its shape (a path, a query, a body) need not be named.
        pager: cuts the list that it answers with.
        listed: a list that is cut otherwise.
        safe: changes nothing, whatever its method.
        secret: its answer is shown once.
        token: a node's token is needed.
        yaml: the body may be YAML too.
        events: the answer is Server-Sent Events where the body asks for them.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    answer: Any
    body: Any = None
    status: int = 200
    errors: tuple[int, ...] = ()
    queries: tuple[Query, ...] = field(default=())
    token: bool = False
    yaml: bool = False
    pager: Pager | None = None
    listed: bool = False
    safe: bool = False
    secret: bool = False
    events: bool = False

    @property
    def repeatable(self) -> bool:
        """Whether an idempotency key makes it happen once. Bytes of files need none: their place says whether they are there."""
        changes = self.method not in ("GET", "HEAD", "OPTIONS") and not (self.safe or self.token)
        return changes and not isinstance(self.body, str) and not access_of(self.handler).public

    @property
    def file(self) -> bool:
        """Whether it answers with a file, or the range of it that is asked for."""
        return self.method == "GET" and self.answer in (BINARY, ARCHIVE)

    @property
    def parameters(self) -> tuple[Query, ...]:
        """Everything that may be asked for beside the path."""
        return (
            self.queries + (self.pager.queries if self.pager is not None else ()) + ((KEY,) if self.repeatable else ())
        )

    @property
    def problems(self) -> frozenset[int]:
        """Every status that is an error."""
        found = {*self.errors, 429, 500, 503}
        found |= {507} if self.repeatable else set()
        found |= set() if access_of(self.handler).public else {401, 403}
        found |= {404} if "{" in self.path else set()
        found |= {422} if self.parameters else set()
        found |= {413, 422} if self.body is not None else set()
        found |= {409, 413, 422} if self.repeatable else set()
        found |= {403} if self.method not in ("GET", "HEAD") else set()
        return frozenset(found)


def register(app: web.Application, routes: Iterable[Route], once: Once) -> None:
    """Add the routes, and HEAD beside each GET."""
    for route in routes:
        if route.method == "GET":
            handler = tagged(route.handler)
            app.router.add_route("HEAD", route.path, handler)
        elif route.repeatable:
            handler = once.wrap(route.handler, route.secret)
        else:
            handler = route.handler
        app.router.add_route(route.method, route.path, handler)


def tagged(handler: Handler) -> Handler:
    """``handler``, whose answers carry an ``ETag`` and are not sent again to who has them (RFC 9110, section 13)."""

    @functools.wraps(handler)
    async def answered(request: web.Request) -> web.StreamResponse:
        response = await handler(request)
        if not isinstance(response, web.Response) or response.status != 200 or not isinstance(response.body, bytes):
            return response
        if "Tus-Resumable" in response.headers:  # The protocol forbids to keep it.
            return response
        tag = hashlib.blake2b(response.body, digest_size=12).hexdigest()
        headers = {hdrs.ETAG: f'"{tag}"', hdrs.CACHE_CONTROL: "private, no-cache"}
        response.headers.update(headers)
        known = request.if_none_match or ()
        if any(one.value in (tag, "*") for one in known):
            link = {hdrs.LINK: response.headers[hdrs.LINK]} if hdrs.LINK in response.headers else {}
            return web.Response(status=304, headers=headers | link)
        return response

    return answered
