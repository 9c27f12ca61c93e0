"""The composition root: what a coordinator stands on is opened here; it is served, looped and drained here."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from aiohttp import DummyCookieJar, web

from common.clock import Clock, SystemClock
from common.http_sessions import open_session
from common.own_folders import make_folder
from common.urls import parse_url, url_of
from coordinator import restoring, standby
from coordinator.assembly import AmongCells, CoordinatorParts, assemble
from coordinator.cells_at_work import CellWork, serve_cells
from coordinator.config import Config
from coordinator.domain.cells import WHOLE, Cell
from coordinator.errors import StoreError
from coordinator.own_door import warn_of_door
from coordinator.own_ledger import place_of
from coordinator.ownauditor import OwnAuditor, lacks
from coordinator.services.accounts.budgets import Budgets
from coordinator.services.arrays.published_images import PublishedImages
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.dataset_checks import DatasetChecks
from coordinator.services.artifacts.disk_space import Room
from coordinator.services.artifacts.file_ownership import FileOwnership
from coordinator.services.artifacts.models import TrainerTools
from coordinator.services.artifacts.stores import store_of
from coordinator.services.artifacts.uploads import UploadService
from coordinator.services.jobs.idempotency import IdempotentAnswers
from coordinator.services.payments.chain import LedgerChain
from coordinator.services.payments.withdrawals import LedgerSponsor
from coordinator.services.serving.engines import Engines
from coordinator.services.views.market_views import nobody_looks
from coordinator.services.views.vital_signs import VitalSigns
from coordinator.store.ownership import Ownership
from coordinator.store.sql import SqlStore
from coordinator.store.together import at_one_moment
from coordinator.web import application
from coordinator.web.auth import Auth
from coordinator.web.connections import IDLE_S, Connections, is_anywhere, listen
from coordinator.web.fronts.answering import FrontAnswers
from coordinator.web.fronts.between import BetweenAnswers, BetweenCells, BetweenSeal
from coordinator.web.fronts.misdirected import misdirected
from coordinator.web.fronts.seal import FrontSeal
from coordinator.web.monitoring.requests import measured, show_metrics
from coordinator.web.services import Services
from coordinator.web.signal import NodeSocket
from ledger.client import Ledger
from ledger.errors import LedgerError
from ledger.money import Amount
from protocol.identity import NodeKey

TEST_FUNDS = Amount(1_000_000_000_000)  # A million tokens: more than any test on one PC will spend.
TEST_LAMPORTS = 1_000_000_000_000
CONNECTIONS: Final = web.AppKey("connections", Connections)
NODES: Final = web.AppKey("nodes", NodeSocket)
SHUTDOWN_S = 5.0  # Connections that are still busy by then are cut.

LOG = logging.getLogger(__name__)


@asynccontextmanager
async def build(
    config: Config,
    clock: Clock | None = None,
    ownership: Ownership | None = None,
    beside: CellWork | None = None,
    ends: Sequence[asyncio.Event] = (),
) -> AsyncIterator[tuple[web.Application, CoordinatorParts]]:
    """A coordinator with its ledger, database and folders, ready to be served and looped.

    Args:
        ownership: of a database that other coordinators wait for.
        beside: of which cell it is, where there are several.
        ends: what says that it is to end, also while it catches up.
    Raises:
        EndedError: it was to end while it did.
        LedgerError: the ledger does not answer, or has no market program.
        StoreError: the database or the bucket cannot be used.
        KeyFileError: the coordinator's key cannot be read.
    """
    make_folder(config.data)
    key = NodeKey.load_or_generate(config.data / "coordinator.key")
    wallet = NodeKey.load_or_generate(config.data / "test-wallet.key")
    async with AsyncExitStack() as stack:
        ledger = await _ledger_of(stack, config, ownership)
        has_wallet = config.test_wallet and await _fill(ledger, key.address, wallet.address)
        chain = LedgerChain(ledger, config.ledger_url, key.seed, wallet.seed, key.address)
        cell = WHOLE if beside is None else beside.cell
        store = await SqlStore.open(config.database, ownership, cell)
        stack.push_async_callback(store.close)
        clock = clock or SystemClock()
        between = None if beside is None else await _between(stack, beside, key, clock)
        folder = _folder(config, cell)
        artifacts = await stack.enter_async_context(store_of(config, clock, key.address, cell, folder))
        room = Room(config.data)
        files = FileOwnership(store, clock, artifacts.total, config.retention.uploads)
        uploads = UploadService(folder / "uploads", artifacts, clock, kept=files, room=room)
        tools = TrainerTools(artifacts, folder / "scratch", config.prepare_seconds, config.prepare_memory_mb)
        engines = Engines(tools.served)
        stack.push_async_callback(engines.close)
        sponsor = LedgerSponsor(ledger, config.ledger_url, key.seed, key.address)
        parts = assemble(
            config,
            clock,
            store,
            chain,
            tools,
            artifacts,
            key.address,
            wallet.address if has_wallet else None,
            judge=tools,
            forger=tools,
            generator=engines,
            task_runner=tools,
            room=room if config.store is None else Room(config.data, artifacts.free),
            sponsor=sponsor,
            key=key,
            among=None if beside is None or between is None else among_of(beside, between),
        )
        stack.push_async_callback(parts.desk.close)
        budgets = Budgets(store, clock)
        signs = VitalSigns(parts.context, parts.nodes, parts.leases, sponsor, artifacts)
        checks = DatasetChecks(folder / "checks", artifacts, tools, budgets)
        parts = replace(parts, checks=checks, vital_signs=signs, between=between)
        auth = Auth(store, clock, config, budgets=budgets, fronts=FrontSeal(key.seed))
        app = _application(parts, uploads, artifacts, auth, chain, key)
        show_metrics(app, parts.context.metrics, signs.look)
        if not config.open and cell.number == 0 and not await auth.accounts.any():
            LOG.warning("no account yet: make the operator's on the page /sign-up, with the code %s", auth.setup.make())
        await _recover(parts, chain, artifacts, key, ends)
        yield app, parts


async def _recover(
    parts: CoordinatorParts, chain: LedgerChain, artifacts: ArtifactStore, key: NodeKey, ends: Sequence[asyncio.Event]
) -> None:
    """Go on from what is stored; after a restore, from what nodes and the ledger know."""
    if restoring.is_restored(parts.context.config.data):
        await restoring.catch_up(parts.context, chain, artifacts, key, ends)
    await parts.recover()


async def _ledger_of(stack: AsyncExitStack, config: Config, ownership: Ownership | None) -> Ledger:
    """The ledger, connected; an owner of a database says which it is."""
    ledger = await stack.enter_async_context(await Ledger.connect(place_of(config)))
    if ownership is not None and not ownership.ledger:  # Who stood by, or carries cells, has asked already.
        ownership.ledger = await ledger.identity()
    return ledger


async def _between(stack: AsyncExitStack, beside: CellWork, key: NodeKey, clock: Clock) -> BetweenCells:
    """The line to other cells."""
    http = await stack.enter_async_context(open_session(proxies=False, cookie_jar=DummyCookieJar()))
    return BetweenCells(beside.cell, beside.others.doors, BetweenSeal(key.seed), http, clock)


def among_of(beside: CellWork, between: BetweenCells) -> AmongCells:
    """What a cell's coordinator has to do with the others, whom it asks by ``between``."""
    stay = frozenset[str]() if beside.own is None else frozenset({beside.own})
    return AmongCells(beside.cell, between, beside.others.states, beside.tell, stay)


def _application(
    parts: CoordinatorParts,
    uploads: UploadService,
    artifacts: ArtifactStore,
    auth: Auth,
    chain: LedgerChain,
    key: NodeKey,
) -> web.Application:
    """What is served: nodes' connections, the interface and pages, and what other coordinators ask."""
    seal, context = FrontSeal(key.seed), parts.context
    app = web.Application(middlewares=[measured(context.metrics), misdirected(seal)])
    app[NODES] = NodeSocket(context, parts.nodes, parts.conversation, parts.patience, seal)
    app[NODES].setup(app)
    assert parts.checks is not None
    services = add_interface(app, parts, uploads, parts.checks, artifacts, auth)
    app[CONNECTIONS] = Connections(context.config.behind_proxy)
    FrontAnswers(seal, services, context.bus, chain, app[CONNECTIONS]).setup(app)
    if parts.between is not None:
        parts.relays.on_announced(parts.between.relay)
        asked = (parts.nodes, parts.leases, parts.relays, parts.federations, parts.settlement)
        BetweenAnswers(BetweenSeal(key.seed), context.cell, *asked).setup(app)
    return app


def add_interface(
    app: web.Application,
    parts: CoordinatorParts,
    uploads: UploadService,
    checks: DatasetChecks,
    artifacts: ArtifactStore,
    auth: Auth,
) -> Services:
    """Add the REST interface and the pages of ``parts`` to ``app``, which has not started; returns what stands behind them."""
    context = parts.context
    services = Services(
        parts.jobs,
        parts.network,
        parts.market,
        parts.books,
        parts.outputs,
        parts.notice_settings,
        uploads,
        checks,
        artifacts,
        parts.withdrawals,
        parts.doors,
        parts.operation,
        parts.nodes.lenders,
        parts.private,
        PublishedImages(context.store, artifacts),
        parts.elements,
        context.config.data / "downloads",
        context.config.public_url,
        partial(at_one_moment, context.store),
    )
    answers = IdempotentAnswers(context.store, context.clock, new_id=context.new_job)
    application.setup(app, services, parts.nodes.authorise, auth, answers)
    return services


async def serve(config: Config, ready: Callable[[str], None], stopping: asyncio.Event) -> None:
    """Serve until ``stopping`` is set; then stop answering, let nodes go, end the loops.

    Args:
        ready: called with the base address once it serves.
    """
    if config.cells > 1:
        if restoring.is_restored(config.data):
            raise StoreError(
                "this coordinator was restored from a backup: start it once without --cells, with all others ended; "
                "when it serves, its nodes have told what they know, and it can be ended and parted again"
            )
        await serve_cells(config, ready, stopping, partial(_carry, config))
        return
    config, own = _with_auditor(config, config.data)
    async with standby.ownership_of(config, SystemClock()) as ownership:
        if ownership is None:
            await _work(config, own, ready, (stopping,))
            return
        while not stopping.is_set() and await standby.wait(config, ownership, stopping):
            async with ownership.kept() as lost:
                await _work(config, own, ready, (stopping, lost), ownership)


async def _carry(config: Config, work: CellWork) -> None:
    """Be the coordinator of a cell, at a port of its own."""
    config, own = _with_auditor(replace(config, port=0), _folder(config, work.cell))
    work = replace(work, own=None if own is None else own.address)
    await _work(config, own, lambda _: None, work.ends, work.ownership, work)


def _folder(config: Config, cell: Cell) -> Path:
    """Where a cell keeps what no other one may touch; the first one's is the data folder."""
    folder = config.data if cell.number == 0 else config.data / f"cell-{cell.number}"
    make_folder(folder)
    return folder


def _with_auditor(config: Config, folder: Path) -> tuple[Config, OwnAuditor | None]:
    """The settings with the auditor that runs beside this coordinator, if one can; its key is in ``folder``."""
    own = None
    if why_not := lacks() if config.own_auditor else "it is switched off":
        config = replace(config, no_auditor=why_not)
    else:
        own = OwnAuditor(folder, SystemClock())
        config = replace(config, auditors=config.auditors | {own.address})
    if not config.auditors:
        LOG.warning("%s", nobody_looks(config))
    return config, own


async def _work(
    config: Config,
    own: OwnAuditor | None,
    ready: Callable[[str], None],
    ends: Sequence[asyncio.Event],
    ownership: Ownership | None = None,
    beside: CellWork | None = None,
) -> None:
    """Be the coordinator, until one of ``ends`` says that it is asked to stop, or that another one is."""
    with suppress(restoring.EndedError):
        async with build(config, ownership=ownership, beside=beside, ends=ends) as (app, parts):
            runner = web.AppRunner(app, shutdown_timeout=SHUTDOWN_S, keepalive_timeout=IDLE_S)
            await runner.setup()
            assert runner.server is not None
            app[CONNECTIONS].guard(runner.server)
            try:
                await listen(runner, config.host, config.port)
                url = url_of(config.host, _port_of(runner))
                if ownership is not None:
                    anywhere = config.reachable_at is None and is_anywhere(config.host)
                    ownership.open_door(_reached_at(config, url), anywhere)
                ready(url)
                loops = parts.loops()
                if own is not None:
                    loops["auditor"] = partial(own.run, url)
                if ownership is not None and beside is None and config.reachable_at is not None:
                    loops["own door"] = partial(warn_of_door, config.reachable_at)
                with nullcontext() if beside is None else beside.others.taking(beside.cell.number, app[NODES]):
                    await _loop(loops, *ends)
            finally:
                await runner.cleanup()


def _reached_at(config: Config, url: str) -> str:
    """Where other coordinators reach this one, which serves at ``url``; of a cell they know the machine, and not the port."""
    if config.reachable_at is None or config.cells == 1:
        return config.reachable_at or url
    return str(parse_url(config.reachable_at).with_port(parse_url(url).port))


async def _loop(loops: Mapping[str, Callable[[], Coroutine[Any, Any, None]]], *ends: asyncio.Event) -> None:
    """Run the loops until one of ``ends``. One that fails ends the process: a coordinator without it would only seem alive."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(loop(), name=name) for name, loop in loops.items()]
        waiting = [group.create_task(end.wait()) for end in ends]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in (*tasks, *waiting):
            task.cancel()


async def _fill(ledger: Ledger, coordinator: str, wallet: str) -> bool:
    """Put test money where it is needed; False on a ledger that has no faucet."""
    try:
        if await ledger.lamports(coordinator) < TEST_LAMPORTS // 2:
            await ledger.faucet(coordinator, Amount(0), TEST_LAMPORTS)
        if await ledger.balance(wallet) < TEST_FUNDS // 2:
            await ledger.faucet(wallet, TEST_FUNDS, TEST_LAMPORTS)
    except LedgerError as error:
        LOG.info("no test wallet: %s", error)
        return False
    return True


def _port_of(runner: web.AppRunner) -> int:
    """The port that was bound, where 0 asked for any."""
    return int(runner.addresses[0][1])
