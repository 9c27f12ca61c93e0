"""Coordinators at work of several cells, as fronts meet them: real ones for nodes, and ones that keep what they are asked for."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from common.clock import SystemClock
from coordinator.assembly import assemble
from coordinator.config import Config
from coordinator.domain.cells import Cell, CellState
from coordinator.front import front_of
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.models import ModelWorkshop
from coordinator.store.sql import SqlStore
from coordinator.web.connections import Connections
from coordinator.web.fronts.answering import ASK, NEWS, FrontAnswers, LedgerFacts
from coordinator.web.fronts.misdirected import misdirected
from coordinator.web.http import answer, protect
from coordinator.web.services import Services
from coordinator.web.signal import PATH, NodeSocket
from protocol.identity import NodeKey
from tests.coordinator.conftest import FRONTS, FRONTS_SEED, House, until
from tests.coordinator.fakes import COORDINATOR, WALLET, AllDelivered, FakeArtifacts, FakeChain, FakeModels

FACTS = LedgerFacts("http://ledger.test", "program", "mint", COORDINATOR, True)

Says = Callable[[web.Request, bytes], web.StreamResponse | None]


def job_of(cell: int, cells: int, number: int = 0) -> str:
    """The id of a job that belongs to a cell."""
    return f"{number * cells + cell:07x}" + 25 * "0"


@dataclass
class CameIn:
    """A request that has come to a carrier."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Carrier:
    """One that keeps what it is asked for.

    ``says``: its answer to a request. ``knows``: to what fronts ask, ``slow`` seconds later. ``socket``: what it does with nodes.
    """

    number: int
    door: str = ""
    asked: list[CameIn] = field(default_factory=list)
    says: Says = lambda _request, _body: None
    knows: dict[str, Any] = field(default_factory=dict)
    slow: float = 0.0
    socket: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None

    @asynccontextmanager
    async def serves(self) -> AsyncIterator[None]:
        """Meanwhile its door is open."""
        app = web.Application(client_max_size=1 << 24)
        app.router.add_get(NEWS, self._news)
        app.router.add_post(ASK, self._ask)
        if self.socket is not None:
            app.router.add_get(PATH, self.socket)
        app.router.add_route("*", "/{rest:.*}", self._anything)
        server = TestServer(app)
        await server.start_server()
        self.door = str(server.make_url("/")).rstrip("/")
        try:
            yield
        finally:
            self.door = ""
            await server.close()

    async def _news(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"\n")
        while self.door:
            await asyncio.sleep(0.02)
        return response

    async def _ask(self, request: web.Request) -> web.Response:
        what = (await request.json())["what"]
        if what == "ledger":
            return answer(FACTS)
        await asyncio.sleep(self.slow)
        return answer(self.knows[what]) if what in self.knows else web.Response(status=503)

    async def _anything(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.asked.append(CameIn(request.method, request.path_qs, request.headers.copy(), body))
        said = self.says(request, body)
        return answer({"cell": self.number}) if said is None else said


@asynccontextmanager
async def front(
    config: Config,
    doors: Sequence[Callable[[], str]],
    states: Callable[[], Mapping[int, CellState]] = dict,
    **changes: Any,
) -> AsyncIterator[str]:
    """The address of a front, which has reached all of them if all are open."""
    config = replace(config, open=True, **changes)
    async with front_of(config, SystemClock(), doors, NodeKey(FRONTS_SEED), states) as app:
        server = TestServer(app)
        await server.start_server()
        url = str(server.make_url("/")).rstrip("/")
        if all(door() for door in doors):
            await until(lambda: is_ready(url))
        try:
            yield url
        finally:
            await server.close()


async def is_ready(url: str) -> bool:
    """Whether a front says that it has reached every cell."""
    async with aiohttp.ClientSession() as http, http.get(f"{url}/readyz") as said:
        reached, _, cells = (await said.json()).get("cells", "").partition(" of ")
        return said.status == 200 and reached == cells


@asynccontextmanager
async def carried(config: Config, cell: Cell) -> AsyncIterator[House]:
    """A real coordinator of a cell, for nodes."""
    store = await SqlStore.open(config.database, None, cell)
    chain, models, clock = FakeChain(), FakeModels(), SystemClock()
    files = cast(ArtifactStore, FakeArtifacts())
    delivered = AllDelivered(store, clock)
    workshop = cast(ModelWorkshop, models)
    parts = assemble(config, clock, store, chain, workshop, files, COORDINATOR, WALLET, deliveries=delivered)
    await parts.recover()
    app = web.Application(middlewares=[misdirected(FRONTS)])
    protect(app, lambda *_: None)
    NodeSocket(parts.context, parts.nodes, parts.conversation, parts.patience, FRONTS).setup(app)
    services = cast(
        Services, SimpleNamespace(network=parts.network, market=parts.market, withdrawals=parts.withdrawals)
    )
    FrontAnswers(FRONTS, services, parts.context.bus, chain, Connections(False)).setup(app)
    server = TestServer(app)
    await server.start_server()
    loops = [asyncio.create_task(loop(), name=name) for name, loop in parts.loops().items()]
    try:
        yield House(parts, chain, models, str(server.make_url(PATH)), loops)
    finally:
        for task in loops:
            task.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await server.close()
        await parts.desk.close()
        await store.close()


@asynccontextmanager
async def all_carried(config: Config, cells: int) -> AsyncIterator[list[House]]:
    """Real ones, of all cells."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(carried(config, Cell(number, cells))) for number in range(cells)]


def doors_of(carriers: Sequence[Carrier]) -> list[Callable[[], str]]:
    """Where fronts find them."""
    return [lambda carrier=carrier: carrier.door for carrier in carriers]  # type: ignore[misc]
