"""What the coordinator at work tells fronts: news of jobs and nodes as they come, and what it alone knows."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from aiohttp import web

from coordinator.bus import Bus
from coordinator.errors import NotFoundError
from coordinator.services.payments.chain import ChainPort
from coordinator.web.auth import public
from coordinator.web.connections import Connections
from coordinator.web.fronts.seal import FrontSeal
from coordinator.web.http import answer, read_body
from coordinator.web.services import Services
from protocol import codec

NEWS: Final = "/fronts/stream"
ASK: Final = "/fronts/ask"
HEART_S: Final = 2.0  # An empty line, where there was nothing else to tell.
MAX_QUESTION: Final = 4 << 20  # The addresses of all nodes of a large job.


class LedgerFacts(msgspec.Struct, frozen=True):
    """What a front must know of the ledger to say it: addresses, none of them secret."""

    url: str
    program: str
    mint: str
    coordinator: str
    test_wallet: bool


class FrontQuestion(msgspec.Struct, frozen=True):
    """``what``: one of the words below; ``nodes``: about these; ``address``: about this one."""

    what: str
    nodes: tuple[str, ...] | None = None
    address: str = ""


class FrontAnswers:
    """Handlers of the two routes, which nobody but fronts may ask."""

    def __init__(
        self, seal: FrontSeal, services: Services, bus: Bus, chain: ChainPort, connections: Connections
    ) -> None:
        """``connections``: that are open here; those of fronts are counted differently."""
        self._seal, self._services, self._bus, self._chain = seal, services, bus, chain
        self._connections = connections
        self._stopping = asyncio.Event()

    def setup(self, app: web.Application) -> None:
        """Add the routes, and end the streams when the application stops."""
        app.router.add_get(NEWS, self.news)
        app.router.add_post(ASK, self.ask)
        app.on_shutdown.append(self._stop)

    @public
    async def news(self, request: web.Request) -> web.StreamResponse:
        """A line for each job or node that changed: its name."""
        self._check(request)
        response = web.StreamResponse(headers={"Cache-Control": "no-store"})
        response.content_type = "text/plain"
        await response.prepare(request)
        await response.write(b"\n")
        with self._connections.of_front(request):
            await self._tell(response)
        return response

    async def _tell(self, response: web.StreamResponse) -> None:
        names = self._bus.changes(None)
        following, stopping = asyncio.ensure_future(anext(names)), asyncio.ensure_future(self._stopping.wait())
        try:
            while not self._stopping.is_set():
                await asyncio.wait({following, stopping}, timeout=HEART_S, return_when=asyncio.FIRST_COMPLETED)
                line = b""
                if following.done():
                    line, following = following.result().encode(), asyncio.ensure_future(anext(names))
                await response.write(line + b"\n")
        finally:
            following.cancel()
            stopping.cancel()
            await asyncio.wait({following, stopping})
            await names.aclose()  # type: ignore[attr-defined]

    @public
    async def ask(self, request: web.Request) -> web.Response:
        """One question."""
        self._check(request)
        asked: FrontQuestion = codec.decode_json(await read_body(request, MAX_QUESTION), FrontQuestion, MAX_QUESTION)
        known = self._known(asked)
        if asked.what not in known:
            raise NotFoundError(f"fronts ask {', '.join(known)}, not {asked.what[:40]!r}")
        return answer(await known[asked.what]())

    def _known(self, asked: FrontQuestion) -> Mapping[str, Callable[[], Awaitable[Any]]]:
        network, market = self._services.network, self._services.market
        return {
            "network": network.view,
            "nodes": network.nodes,
            "relays": network.relays,
            "market": market.now,
            "health": market.health,
            "regions": lambda: market.regions(asked.nodes),
            "links": lambda: market.links(asked.nodes or ()),
            "earnings": lambda: market.earnings(asked.address),
            "withdrawals": self._services.withdrawals.terms,
            "ledger": self._facts,
        }

    async def _facts(self) -> LedgerFacts:
        view = await self._services.network.view()
        chain = self._chain
        return LedgerFacts(chain.url, chain.program, chain.mint, view.coordinator, view.test_wallet)

    def _check(self, request: web.Request) -> None:
        if not self._seal.is_on(request.headers):
            raise NotFoundError("nothing is here")  # As everywhere else where nothing is.

    async def _stop(self, _app: web.Application) -> None:
        self._stopping.set()
