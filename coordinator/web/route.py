"""One table says what the interface has: it registers the handlers and writes the OpenAPI document."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler


@dataclass(frozen=True)
class Query:
    """A parameter of the query string or, with ``header``, of the headers."""

    name: str
    text: str
    kind: str = "integer"
    required: bool = False
    header: bool = False


@dataclass(frozen=True)
class Route:
    """One way in. ``body`` and ``answer`` are msgspec types, or a media type as text where the bytes are not JSON."""

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


def register(app: web.Application, routes: Iterable[Route]) -> None:
    """Add the routes, and HEAD beside each GET."""
    for route in routes:
        app.router.add_route(route.method, route.path, route.handler)
        if route.method == "GET":
            app.router.add_route("HEAD", route.path, route.handler)
