"""Coordinators of one network as processes of their own: one at work, fronts beside it, or several that carry cells.

Workers, ledger and artifacts are stand-ins; HTTP, the database and what a coordinator decides are not.
"""

import asyncio
import multiprocessing
import resource
import signal
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import psutil
from aiohttp import web

from common import gc_tuning
from common.clock import SystemClock
from coordinator.cells_at_work import CellWork, serve_cells
from coordinator.config import Config
from coordinator.front import front_of
from coordinator.store.ownership import Ownership
from coordinator.web.connections import listen
from coordinator.web.signal import PATH
from protocol.identity import NodeKey
from tests.coordinator.conftest import FRONTS_SEED, House, one_ledger, opened
from tests.coordinator.fakes import FakeChain
from tests.support.databases import Postgres

FILES = 65_536
LEASE_BEATS = 5  # Heartbeats that may be lost before a lease ends, as the settings have it by default.
SETTLE_S = 60.0  # Until each process carries its share of cells.
LOOK_S = 0.1


class TownOptions(msgspec.Struct, frozen=True):
    """Which coordinators. ``beat_seconds``: between two heartbeats of a node."""

    postgres: bool = False
    fronts: int = 0
    cells: int = 1
    beat_seconds: float = Config.heartbeat_seconds

    def config(self, folder: str, database: str | None) -> Config:
        """Settings of each of them."""
        return Config(
            data=Path(folder),
            ledger_url="http://ledger.test",
            database_url=database,
            validations=2,
            heartbeat_seconds=self.beat_seconds,
            lease_seconds=max(Config.lease_seconds, LEASE_BEATS * self.beat_seconds),
            cells=self.cells,
            open=True,
            port=0,
        )


class ProcessTold(msgspec.Struct, frozen=True):
    """How a process does: cells that it carries, nodes that are connected to these, and those that they have let go."""

    cells: tuple[int, ...] = ()
    nodes: int = 0
    let_go: int = 0


def serve(folder: str, options: TownOptions, database: str | None, pipe: Connection) -> None:
    """The process at work: says its address, and ends when it is told to."""
    allow_files()

    async def run() -> None:
        ownership = None if database is None else await Ownership.open(database, SystemClock(), "key", "files")
        if ownership is not None:
            assert await ownership.take(), "nobody else knows this database"
        async with opened(options.config(folder, database), FakeChain(), rest=True, ownership=ownership) as house:
            pipe.send(house.url.removesuffix(PATH))
            await _answers(pipe, lambda: ProcessTold((0,), len(house.parts.nodes.sessions())))

    asyncio.run(run())


def stand_by(folder: str, options: TownOptions, database: str, door: str, pipe: Connection) -> None:
    """A front's process, likewise."""
    allow_files()

    async def run() -> None:
        config = options.config(folder, database)
        async with front_of(config, SystemClock(), [lambda: door], NodeKey(FRONTS_SEED)) as app:
            runner = web.AppRunner(app)
            await runner.setup()
            await listen(runner, "127.0.0.1", 0)
            pipe.send(f"http://127.0.0.1:{runner.addresses[0][1]}")
            await _answers(pipe, ProcessTold)
            await runner.cleanup()

    asyncio.run(run())


class _Cells:
    """Of one process: what it carries, by cell."""

    def __init__(self, config: Config) -> None:
        self._config, self._chain = config, FakeChain()
        self._houses: dict[int, House] = {}
        self._let_go = 0  # By those that it carries no longer.

    async def work(self, work: CellWork) -> None:
        """Be the coordinator of a cell."""
        number = work.cell.number
        async with opened(self._config, self._chain, rest=True, ownership=work.ownership, beside=work) as house:
            self._houses[number] = house
            ends = [asyncio.create_task(end.wait()) for end in work.ends]
            try:
                await asyncio.wait([*ends, *house.loops], return_when=asyncio.FIRST_COMPLETED)
                assert not any(loop.done() for loop in house.loops), [loop for loop in house.loops if loop.done()]
            finally:
                for one in ends:
                    one.cancel()
                self._let_go += _let_go(self._houses.pop(number))

    def told(self) -> ProcessTold:
        """How they do."""
        houses = self._houses.values()
        nodes = sum(len(house.parts.nodes.sessions()) for house in houses)
        return ProcessTold(tuple(sorted(self._houses)), nodes, self._let_go + sum(map(_let_go, houses)))


def carry(folder: str, options: TownOptions, database: str, pipe: Connection) -> None:
    """A process that carries cells, and is a front at its port."""
    allow_files()

    async def run() -> None:
        config, stopping = options.config(folder, database), asyncio.Event()
        cells, ready = _Cells(config), asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(serve_cells(config, ready.set_result, stopping, cells.work, one_ledger))
        await asyncio.wait([serving, ready], return_when=asyncio.FIRST_COMPLETED)
        pipe.send((await ready).rstrip("/"))
        await _answers(pipe, cells.told)
        stopping.set()
        await serving

    asyncio.run(run())


def _let_go(house: House) -> int:
    return house.parts.context.metrics.value("nodes_let_go_total")


async def _answers(pipe: Connection, told: Callable[[], ProcessTold]) -> None:
    """Say how this process does whenever it is asked, until it is told to end."""
    gc_tuning.settle()  # As ``cottage serve`` does.
    with suppress(EOFError):
        while await asyncio.to_thread(pipe.recv):
            pipe.send(told())


def allow_files() -> None:
    """As many as the system lets this process have open."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, most), most))


class CoordinatorProcess:
    """One that runs, as its parent sees it. ``url``: where it serves."""

    def __init__(self, url: str, process: psutil.Process, pipe: Connection) -> None:
        self.url, self.process, self._pipe = url, process, pipe

    async def told(self) -> ProcessTold:
        """How it does now."""
        self._pipe.send(True)
        found: ProcessTold = await asyncio.to_thread(self._pipe.recv)
        return found

    def kill(self) -> None:
        """With -9."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@dataclass(frozen=True)
class Town:
    """Processes that run, and their database: those that carry jobs, and those that stand by.

    Attributes:
        server: PostgreSQL's first process; None: the database is a file.
    """

    database: str
    workers: list[CoordinatorProcess]
    fronts: list[CoordinatorProcess] = field(default_factory=list)
    server: psutil.Process | None = None

    @property
    def doors(self) -> list[str]:
        """Where everybody comes in."""
        return [one.url for one in self.fronts or self.workers]

    async def nodes(self) -> int:
        """How many are connected, to all of them."""
        return sum([(await one.told()).nodes for one in self.workers])

    async def settled(self, cells: int) -> None:
        """Return once all cells are carried, and no process has two more than another."""
        async with asyncio.timeout(SETTLE_S):
            while True:
                shares = [len((await one.told()).cells) for one in self.workers]
                if sum(shares) == cells and max(shares) - min(shares) < 2:
                    return
                await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def _process(target: Any, *given: Any) -> AsyncIterator[CoordinatorProcess]:
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    process = spawning.Process(target=target, args=(*given, theirs))
    process.start()
    theirs.close()
    try:
        yield CoordinatorProcess(await asyncio.to_thread(ours.recv), psutil.Process(process.pid), ours)
    finally:
        with suppress(OSError):  # It was killed.
            ours.send(None)
        await asyncio.to_thread(process.join, 30)
        process.kill()


@asynccontextmanager
async def coordinators(options: TownOptions) -> AsyncIterator[Town]:
    """One at work, and those beside it; with cells as many processes as there are cells."""
    async with AsyncExitStack() as stack:
        folder, database, server = stack.enter_context(tempfile.TemporaryDirectory()), None, None
        if options.postgres:
            postgres = Postgres()
            stack.callback(postgres.remove)
            postgres.start()
            database, server = postgres.url(), psutil.Process(postgres.process)

        async def made(target: Any, *given: Any) -> CoordinatorProcess:
            return await stack.enter_async_context(_process(target, folder, options, database, *given))

        if options.cells > 1:
            NodeKey(FRONTS_SEED).save(Path(folder) / "coordinator.key")
            assert database is not None
            town = Town(database, [await made(carry) for _ in range(options.cells)], [], server)
            await town.settled(options.cells)
        else:
            worker = await made(serve)
            fronts = [await made(stand_by, worker.url) for _ in range(options.fronts)]
            town = Town(options.config(folder, database).database, [worker], fronts, server)
        yield town
