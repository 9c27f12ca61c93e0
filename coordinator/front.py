"""What a coordinator answers and leads in the place of those at work, put together (``web.fronts``)."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from types import MappingProxyType
from typing import Any

from aiohttp import ClientTimeout, DummyCookieJar, TCPConnector, web

from common.clock import Clock
from common.http_sessions import open_session
from coordinator.config import Config
from coordinator.services.accounts.budgets import Budgets
from coordinator.services.accounts.notification_settings import NoticeService
from coordinator.services.arrays.element_books import ElementBooks
from coordinator.services.arrays.published_images import PublishedImages
from coordinator.services.artifacts.checkpoints import Checkpoints
from coordinator.services.artifacts.output_buckets import OutputBuckets
from coordinator.services.artifacts.outputs import JobOutputs
from coordinator.services.artifacts.step_openings import StepOpenings
from coordinator.services.core.context import Context
from coordinator.services.core.logs import JobLogs
from coordinator.services.jobs.idempotency import IdempotentAnswers
from coordinator.services.jobs.jobs import JobService
from coordinator.services.views.ledger_views import BookService
from coordinator.store.reading import ReadingStore
from coordinator.store.together import at_one_moment
from coordinator.web import application
from coordinator.web.auth import Auth
from coordinator.web.fronts.cell_lines import LinesToWork
from coordinator.web.fronts.choosing import CellChoice, CellStates, NodeCells, nothing_told
from coordinator.web.fronts.far import AwayPort, FarChain, FarMarket, FarNetwork, FarWithdrawals, absent, elsewhere
from coordinator.web.fronts.headers import FrontHeaders
from coordinator.web.fronts.leading import Leading
from coordinator.web.fronts.line import LineToWork
from coordinator.web.fronts.node_lines import NodeLines
from coordinator.web.fronts.seal import FrontSeal
from coordinator.web.services import Services
from coordinator.web.signal import NodeSocket
from protocol.identity import NodeKey

LED = ClientTimeout(total=300.0, sock_connect=30.0)  # Where a question has no limit of its own.
MAX_LED = 0  # Connections to the one at work: as many as there are nodes and requests.


@asynccontextmanager
async def front_of(
    config: Config,
    clock: Clock,
    doors: Sequence[Callable[[], str]],
    key: NodeKey,
    states: CellStates = nothing_told,
    here: Mapping[int, NodeSocket] = MappingProxyType({}),
) -> AsyncIterator[web.Application]:
    """A front, ready to be served.

    Args:
        doors: base addresses of the coordinators at work, one for each cell in their order; empty: none is known.
        key: the coordinator's, which all of them have.
        states: what cells have told of themselves lately, by their numbers.
        here: where cells take nodes that this process carries, by their numbers.
    """
    async with AsyncExitStack() as stack:
        way = TCPConnector(limit=MAX_LED)
        http = await stack.enter_async_context(
            open_session(timeout=LED, connector=way, proxies=False, cookie_jar=DummyCookieJar())
        )
        store = ReadingStore(config.database)
        stack.push_async_callback(store.close)
        context = Context(config, clock, store, secrets.token_bytes)
        seal = FrontSeal(key.seed)
        each = [LineToWork(door, seal, http, context.bus, store.fits) for door in doors]
        lines, choice, headers = LinesToWork(each), CellChoice(states), FrontHeaders(seal, config.behind_proxy)
        cells = NodeCells(store, clock, lines, choice, config.return_seconds, here.keys())
        leading = Leading(lines, seal, headers, NodeLines(lines, headers, cells, clock, here), choice)
        app = web.Application(middlewares=[leading.lead])
        auth = Auth(store, clock, config, budgets=Budgets(store, clock))
        application.setup(app, _services(context, lines, key.address), elsewhere, auth, IdempotentAnswers(store, clock))
        following = [asyncio.create_task(line.run(), name="line-to-work") for line in each]
        try:
            yield app
        finally:
            for task in following:
                task.cancel()
            for task in following:
                with suppress(asyncio.CancelledError):
                    await task


def _services(context: Context, lines: LinesToWork, address: str) -> Services:
    """Those that read what is stored, those that ask those at work, and for the rest nothing."""
    chain: Any = FarChain(lines)
    port: Any = AwayPort()
    checkpoints = Checkpoints(context, port, absent())
    jobs = JobService(
        context,
        desk=absent(),
        nodes=absent(),
        links=absent(),
        runs=absent(),
        funding=absent(),
        chain=chain,
        models=absent(),
        artifacts=port,
        checkpoints=checkpoints,
        coordinator=address,
        test_wallet=None,
        traffic_of=lambda lease: lease.traffic,
        unpaid=absent(),
        homes=absent(),
    )
    buckets = OutputBuckets(context, port, checkpoints, absent())
    outputs = JobOutputs(checkpoints, port, JobLogs(context), StepOpenings(context, port), buckets)
    return Services(
        jobs=jobs,
        network=FarNetwork(lines),
        market=FarMarket(lines),
        books=BookService(context, chain, absent(), absent(), address, absent()),
        outputs=outputs,
        notices=NoticeService(context, context.config.mail is not None),
        uploads=port,
        checks=port,
        artifacts=port,
        withdrawals=FarWithdrawals(lines),
        doors=port,
        operation=port,
        lenders=port,
        private=port,
        images=PublishedImages(context.store, port),
        elements=ElementBooks(context, absent(), port),
        downloads=context.config.data / "downloads",
        public_url=context.config.public_url,
        moment=partial(at_one_moment, context.store),
    )
