"""How many requests there are, how they end and how long they take; and ``/metrics``, which says it.

A request is told apart by the kind of its route, which is ours, and never by its path, which is a stranger's.
"""

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from common import tracing
from common.clock import instant
from coordinator.domain.account import Scope
from coordinator.metrics import CONTENT_TYPE, Metrics
from coordinator.store.turns import of_request
from coordinator.web.auth import needs
from coordinator.web.http import API, CLOSED
from coordinator.web.monitoring.watchers import METRICS
from coordinator.web.signal import PATH

_STAYING: Final = frozenset({"node", "stream"})  # Connections that last as long as their other end likes.
_UNTRACED: Final = _STAYING | {"probe"}
_PROBES: Final = ("/healthz", "/readyz", METRICS)
_KINDS: Final = ((f"{API}/uploads", "upload"), (f"{API}/artifacts", "artifact"), (API, "api"), ("/static", "static"))


def measured(metrics: Metrics) -> Middleware:
    """What counts every request; it stands before all other middlewares, so that it sees what they answer."""

    @web.middleware
    async def measure(request: web.Request, handler: Handler) -> web.StreamResponse:
        kind, began, status = kind_of(request), instant(), CLOSED
        try:
            handle = handler if kind in _UNTRACED or not tracing.is_on() else partial(_traced, handler)
            # What stays is nobody's request: a node's messages have turns of their own at the database.
            with nullcontext() if kind in _STAYING else of_request():
                response = await handle(request)
            status = response.status
        except web.HTTPException as error:
            status = error.status
            raise
        finally:
            metrics.count("http_requests_total", labels=(kind, str(status)))
            if kind not in _STAYING:
                metrics.observe("http_request_seconds", instant() - began, labels=(kind,))
        return response

    return measure


async def _traced(handler: Handler, request: web.Request) -> web.StreamResponse:
    """A trace of its own: strangers' ``traceparent`` is not followed."""
    place = _place(request)
    with tracing.span(f"{request.method} {place or 'nothing'}", "", http_request_method=request.method) as span:
        answer: web.StreamResponse | web.HTTPException
        try:
            answer = await handler(request)
        except web.HTTPException as error:  # An answer like any other.
            answer = error
        span.add(http_response_status_code=answer.status, http_route=place)
    if isinstance(answer, web.HTTPException):
        raise answer
    return answer


def kind_of(request: web.Request) -> str:
    """One of few words for where a request goes: ``none`` where there is nothing."""
    place = _place(request)
    if not place:
        return "none"
    if place == PATH:
        return "node"
    if place in _PROBES:
        return "probe"
    if place.endswith("/stream"):
        return "stream"
    return next((kind for prefix, kind in _KINDS if place.startswith(prefix)), "page")


def _place(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return "" if resource is None else resource.canonical


def show_metrics(app: web.Application, metrics: Metrics, look: Callable[[], Awaitable[None]]) -> None:
    """Add ``GET /metrics`` to ``app``. ``look``: brings up to date what is not counted as it happens."""

    @needs(Scope.OPERATE)
    async def answer(_request: web.Request) -> web.Response:
        await look()
        return web.Response(text=metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    app.router.add_get(METRICS, answer)
