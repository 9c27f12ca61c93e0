"""Connections that are open at a time: of one address, and in sum. Beyond it the oldest rule of a door holds: it stays shut.

What a connection then does has bounds of its own; these are for those that do nothing. Beside them is how a port is opened, also
by a coordinator that only says that it is not ready yet.
"""

import asyncio
import ipaddress
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import hdrs, web
from aiohttp.web_protocol import RequestHandler

from common.open_files import raise_limit
from common.urls import ip_of

MAX_CONNECTIONS = 32_768  # 20,000 nodes, 4,096 streams, and pages.
MAX_EACH = 2_304  # Of one address: its nodes, and what its browsers open.
RESERVED_FILES = 256  # Of what the system grants this process: for the database, files and tools.
BACKLOG = 1_024  # That wait while the process is busy. Whoever finds no place tries again after 1, 3, 7 s.
IDLE_S = 75.0  # A connection without a request is closed, also one whose first request never comes.

LOG = logging.getLogger(__name__)


class Connections:
    """Counts what is open. ``behind_proxy``: all come from the proxy's address, which has no share of its own."""

    def __init__(self, behind_proxy: bool, total: int | None = None, each: int = MAX_EACH) -> None:
        self._each_counts = not behind_proxy
        self._total = _affordable() if total is None else total
        self._each = each
        self._open: dict[RequestHandler, str] = {}
        self._of: Counter[str] = Counter()
        self._fronts: Counter[str] = Counter()
        self.refused = 0

    @contextmanager
    def of_front(self, request: web.Request) -> Iterator[None]:
        """Meanwhile as many may be open as come from where this request came from: they are other people's, led here."""
        address = "" if request.transport is None else _address(request.transport)
        self._fronts[address] += 1
        try:
            yield
        finally:
            self._fronts -= Counter({address: 1})

    def guard(self, server: web.Server) -> None:
        """Refuse what is too much from now on."""
        came, left = server.connection_made, server.connection_lost

        def connection_made(handler: RequestHandler, transport: asyncio.Transport) -> None:
            came(handler, transport)
            address = _address(transport)
            counts = self._each_counts and not self._fronts[address] and not _is_here(address)
            if len(self._open) >= self._total or (counts and self._of[address] >= self._each):
                self.refused += 1
                transport.abort()
                return
            self._open[handler] = address
            self._of[address] += 1

        def connection_lost(handler: RequestHandler, exc: BaseException | None = None) -> None:
            if (address := self._open.pop(handler, None)) is not None:
                self._of -= Counter({address: 1})
            left(handler, exc)

        server.connection_made = connection_made  # type: ignore[method-assign]
        server.connection_lost = connection_lost  # type: ignore[method-assign]

    def __len__(self) -> int:
        return len(self._open)


async def listen(runner: web.AppRunner, host: str, port: int) -> None:
    """Open the port of an application that is set up; raises OSError where that is not possible."""
    await web.TCPSite(runner, host, port, backlog=BACKLOG).start()


def is_anywhere(host: str) -> bool:
    """Whether a port opened at ``host`` is open at all of this machine's addresses."""
    address = ip_of(host)
    return not host or (address is not None and address.is_unspecified)


def put_off(app: web.Application, why: str, seconds: int) -> None:
    """Answer everything that ``app`` has no route for with ``why``, and when to come back."""

    async def later(_request: web.Request) -> web.Response:
        return web.Response(status=503, text=f"{why}\n", headers={hdrs.RETRY_AFTER: str(seconds)})

    app.router.add_route("*", "/{rest:.*}", later)


def _address(transport: asyncio.BaseTransport) -> str:
    peer: Any = transport.get_extra_info("peername")
    return str(peer[0]).partition("%")[0] if isinstance(peer, tuple) and peer else ""


def _is_here(address: str) -> bool:
    """Whether it is this machine's own, or none: a proxy that nobody has told us of brings everybody from there."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return True


def _affordable() -> int:
    """As many as fit, with the system's limit on open files raised as far as it lets us."""
    granted = raise_limit(MAX_CONNECTIONS + RESERVED_FILES)
    found = MAX_CONNECTIONS if granted is None else max(1, min(MAX_CONNECTIONS, granted - RESERVED_FILES))
    if found < MAX_CONNECTIONS:
        LOG.warning(
            "connections at a time: %d, since the system grants %d open files and %d are kept for database and tools: "
            "raise the limit for more (ulimit -n)",
            found,
            granted,
            RESERVED_FILES,
        )
    return found
