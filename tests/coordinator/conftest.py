"""A whole coordinator in this process: real services, real store, real WebSocket; ledger and trainer are fakes."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from common.clock import SystemClock
from coordinator.app import add_interface, among_of
from coordinator.assembly import CoordinatorParts, assemble
from coordinator.cells_at_work import CellWork
from coordinator.config import Config
from coordinator.domain.cells import WHOLE
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.dataset_checks import DatasetChecks, Inspector
from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
from coordinator.services.artifacts.models import ModelWorkshop
from coordinator.services.artifacts.uploads import UploadService
from coordinator.store import sql
from coordinator.store.ownership import Ownership
from coordinator.store.ports import Store
from coordinator.store.sql import SqlStore
from coordinator.web.auth import Auth
from coordinator.web.connections import Connections
from coordinator.web.fronts.answering import FrontAnswers
from coordinator.web.fronts.between import BetweenAnswers, BetweenCells, BetweenSeal
from coordinator.web.fronts.misdirected import misdirected
from coordinator.web.fronts.seal import FrontSeal
from coordinator.web.monitoring.requests import measured
from coordinator.web.signal import PATH, NodeSocket
from protocol.codec import decode, encode
from protocol.identity import NodeKey
from protocol.node import (
    PROTOCOL,
    Acknowledged,
    Assign,
    Beat,
    Challenge,
    Command,
    CoordinatorMessage,
    Goodbye,
    Heartbeat,
    HeldLease,
    Hello,
    IceServers,
    JobEarned,
    NodeProfile,
    Refused,
    Report,
    Signal,
    Welcome,
)
from protocol.task import Progress, StopTask, TaskReport, Traffic, WorkerLog
from tests.coordinator.fake_task import FakeTask
from tests.coordinator.fakes import (
    COORDINATOR,
    WALLET,
    AllDelivered,
    FakeArtifacts,
    FakeChain,
    FakeModels,
    Lie,
    Peers,
    profile,
)
from tests.support.databases import Postgres

FRONTS_SEED = bytes(range(32))
FRONTS, BETWEEN = FrontSeal(FRONTS_SEED), BetweenSeal(FRONTS_SEED)
TURN_S, TURNS_OF_A_BEAT = 0.02, 8
BUSY_S = 240.0  # On a machine that others keep busy.


@dataclass
class House:
    """A running coordinator."""

    parts: CoordinatorParts
    chain: FakeChain
    models: FakeModels
    url: str
    loops: list[asyncio.Task[None]]
    peers: Peers = field(default_factory=Peers)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL of these tests' own; who kills it starts it again."""
    made = Postgres(durable=False)
    try:
        made.start()
        yield made
    finally:
        made.remove()


@pytest.fixture(autouse=True)
def power_stays_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests kill processes, which lose nothing that the system has taken: no commit waits for the disk."""
    monkeypatch.setattr(sql, "SYNCHRONOUS", "OFF")


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A quick coordinator."""
    return Config(
        data=tmp_path,
        ledger_url="http://ledger.test",
        lease_seconds=3.0,
        heartbeat_seconds=0.2,
        tick_seconds=0.05,
        start_grace_seconds=0.2,
        audit_seconds=5.0,
        return_seconds=2.0,
        audit_patience_seconds=0.3,
        settle_every=2,
        validations=0,
    )


async def one_ledger(_config: Config) -> str:
    """The identity of the ledger of coordinators whose ledger is a stand-in."""
    return "the chain/the market/the token"


@asynccontextmanager
async def opened(
    config: Config,
    chain: FakeChain,
    models: FakeModels | None = None,
    rest: bool = False,
    over: Callable[[Store], Store] = lambda store: store,
    key: NodeKey | None = None,
    signed_in: bool = False,
    ownership: Ownership | None = None,
    beside: CellWork | None = None,
) -> AsyncIterator[House]:
    """Serve a coordinator whose database lies in ``config.data``; a second one continues the first one's work.

    ``rest``: with the REST interface and the pages too; ``signed_in``: which ask who somebody is.
    ``over``: what stands between services and the database. ``beside``: it carries a cell.
    """
    models = models or FakeModels()
    store = over(await SqlStore.open(config.database, ownership, WHOLE if beside is None else beside.cell))
    http = aiohttp.ClientSession()
    between = None if beside is None else _between(beside, http)
    parts = assemble(
        config,
        SystemClock(),
        store,
        chain,
        cast(ModelWorkshop, models),
        cast(ArtifactStore, FakeArtifacts()),
        COORDINATOR,
        WALLET,
        deliveries=AllDelivered(store, SystemClock()),
        key=key,
        among=None if beside is None or between is None else among_of(beside, between),
    )
    parts = replace(parts, between=between)
    await parts.recover()
    outermost = [measured(parts.context.metrics), misdirected(FRONTS)]
    app = web.Application(middlewares=outermost if ownership is not None else [])
    sockets = NodeSocket(parts.context, parts.nodes, parts.conversation, parts.patience, FRONTS)
    sockets.setup(app)
    if between is not None:
        asked = (parts.nodes, parts.leases, parts.relays, parts.federations, parts.settlement)
        BetweenAnswers(BETWEEN, parts.context.cell, *asked).setup(app)
    if rest:
        artifacts = DiskArtifacts(config.data / "artifacts")
        uploads = UploadService(config.data / "uploads", artifacts)
        auth = Auth(store, SystemClock(), replace(config, open=not signed_in), fronts=FRONTS)
        checks = DatasetChecks(config.data / "checks", artifacts, cast(Inspector, models))
        services = add_interface(app, parts, uploads, checks, artifacts, auth)
        if ownership is not None:
            FrontAnswers(FRONTS, services, parts.context.bus, chain, Connections(False)).setup(app)
    server = TestServer(app)
    await server.start_server()
    if ownership is not None:
        ownership.open_door(str(server.make_url("/")).rstrip("/"), anywhere=False)
    loops = [asyncio.create_task(loop(), name=name) for name, loop in parts.loops().items()]
    try:
        with nullcontext() if beside is None else beside.others.taking(beside.cell.number, sockets):
            yield House(parts, chain, models, str(server.make_url(PATH)), loops)
    finally:
        for task in loops:
            task.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await server.close()
        await parts.desk.close()
        await store.close()
        await http.close()


def _between(beside: CellWork, http: aiohttp.ClientSession) -> BetweenCells:
    return BetweenCells(beside.cell, beside.others.doors, BETWEEN, http, SystemClock())


@pytest.fixture
async def house(config: Config) -> AsyncIterator[House]:
    """A coordinator with a fake ledger."""
    async with opened(config, FakeChain()) as made:
        yield made


class ScriptedNode:
    """A node that speaks the wire over a real WebSocket and runs ``FakeTask`` workers."""

    def __init__(self, house: House, number: int, **options: Any) -> None:
        self.key = NodeKey(number.to_bytes(32, "big"))
        self.payout = NodeKey((1000 + number).to_bytes(32, "big")).address
        self.house = house
        self.profile = replace_profile(number, options)
        self.lie: Lie | None = options.get("lie")
        self.tasks: dict[str, FakeTask] = {}
        self.fences: dict[str, int] = {}
        self.reports: dict[str, list[Report]] = {}
        self.refused: Refused | None = None
        self.said: dict[str, int] = {}
        self.earned: list[JobEarned] = []
        self.signals: list[Signal] = []
        self.commands: list[Command] = []
        self.welcomes: list[Welcome] = []
        self.ice_servers: list[IceServers] = []
        self.silent = False
        self.frozen = False
        self.closed = ""
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def run(self) -> None:
        """Connect, obey, until cancelled or closed."""
        async with aiohttp.ClientSession() as http, http.ws_connect(self.house.url) as socket:
            self._socket = socket
            challenge = decode(await socket.receive_bytes(), Challenge)
            await self.send(self.hello(challenge))
            welcomed = asyncio.Event()
            beats = asyncio.create_task(self._beat(welcomed))
            try:
                async for frame in socket:
                    await self._obey(decode(frame.data, CoordinatorMessage))
                    welcomed.set()  # What was kept goes out before anything new.
            finally:
                beats.cancel()
            self.closed = str(socket.close_code)

    def hello(self, challenge: Challenge) -> Hello:
        signature = self.key.sign("cottage-hello", challenge.nonce, challenge.host.encode())
        held = tuple(HeldLease(lease, self.fences[lease]) for lease in self.tasks)
        return Hello(PROTOCOL, self.key.address, self.payout, signature, self.profile, held)

    async def send(self, message: Any) -> None:
        assert self._socket is not None
        await self._socket.send_bytes(encode(message))

    async def goodbye(self) -> None:
        await self.send(Goodbye("the owner wants to play"))

    async def _beat(self, welcomed: asyncio.Event) -> None:
        await welcomed.wait()
        for turn in itertools.count():
            if not self.silent:
                if turn % TURNS_OF_A_BEAT == 0:  # A coordinator of which more is asked for does little else.
                    await self.send(Heartbeat(tuple(HeldLease(lease, self.fences[lease]) for lease in self.tasks)))
                for lease in list(self.tasks):
                    await self._say(lease, self.tasks[lease].work())
            await asyncio.sleep(TURN_S)

    async def _obey(self, message: CoordinatorMessage) -> None:
        match message:
            case Refused():
                self.refused = message
            case Welcome():
                self.welcomes.append(message)
                for report in itertools.chain.from_iterable(self.reports.values()):
                    await self.send(report)
            case Assign():
                task = FakeTask(message, self.key.address, self.house.peers, self.lie, self.profile.env_class)
                self.tasks[message.lease], self.fences[message.lease] = task, message.fence
                self.reports[message.lease] = []
                await self._say(message.lease, task.start())
            case Command():
                self.commands.append(message)
                await self._command(message)
            case Acknowledged():
                kept = self.reports.get(message.lease, [])
                self.reports[message.lease] = [r for r in kept if r.seq > message.seq]
            case Beat():
                for lease in message.gone:
                    self.tasks.pop(lease, None)
            case Signal():
                self.signals.append(message)
            case IceServers():
                self.ice_servers.append(message)
            case JobEarned():
                self.earned.append(message)

    async def _command(self, command: Command) -> None:
        task = self.tasks.get(command.lease)
        if task is None or self.frozen:
            return
        if isinstance(command.body, StopTask):
            del self.tasks[command.lease]
            return
        await self._say(command.lease, [*task.act(command.body), *task.work()])

    async def _say(self, lease: str, bodies: list[TaskReport]) -> None:
        for body in bodies:
            lossy = isinstance(body, Progress | Traffic | WorkerLog)
            seq = 0 if lossy else self.said.get(lease, 0) + 1
            report = Report(lease, self.fences[lease], seq, body)
            if not lossy:
                self.said[lease] = seq
                self.reports[lease].append(report)
            await self.send(report)


def replace_profile(number: int, options: dict[str, Any]) -> NodeProfile:
    """The node's profile with what a test wants different."""
    base = profile(f"node-{number}", options.get("flops", 1e9 + number), options.get("env_class", "cpu"))
    return msgspec.structs.replace(base, memory_mb=options.get("memory_mb", 8_000))


@asynccontextmanager
async def nodes(house: House, count: int, first: int = 1, **options: Any) -> AsyncIterator[list[ScriptedNode]]:
    """Connected nodes, numbered from ``first``."""
    made = [ScriptedNode(house, first + i, **options) for i in range(count)]
    tasks = [asyncio.create_task(node.run()) for node in made]
    try:
        await until(lambda: all(house.parts.nodes.session(node.key.address) and node.welcomes for node in made))
        yield made
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], Any], seconds: float = BUSY_S) -> None:
    """Wait until the condition holds; fails the test after ``seconds``."""
    async with asyncio.timeout(seconds):
        while True:
            result, pause = condition(), 0.01
            if isinstance(result, Awaitable):
                result, pause = await result, 0.1  # It reads the store, where the coordinator that is waited for works.
            if result:
                return
            await asyncio.sleep(pause)
