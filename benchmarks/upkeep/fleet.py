"""How many homes one coordinator carries: real WebSockets, a key for each home, the protocol's own messages, SQLite on a disk.

    python -m benchmarks.upkeep.fleet [--homes 50,200] [--share 0.4] [--seconds 40] [--postgres] [--fronts 2] [--readers 8]

A coordinator is a process of its own; all homes are another one. With ``--postgres`` it works with a PostgreSQL of this run's
own; with ``--fronts`` so many others stand by beside it, and all homes and readers come to those. Homes come all at once. Then so
many of them idle, and the others (``--share``) work in jobs of 2 stages x 2 replicas, whose rounds take some seconds: they report
progress once a second, and commit, open, audit, apply as real ones do. Workers, ledger and artifacts are stand-ins; what the
coordinator decides, stores and says is not. Figures are of the last seconds, after all jobs have begun:

* ``welcomed``: seconds until everybody was let in. ``core``: share of one core that the coordinator took.
* ``empty_core``: the same before anybody came. ``resting_core``: with everybody there, and no job.
* ``kilobytes_a_home``, ``rows_a_home``: of memory, when all jobs had begun, and in the database, before there was one.
* ``stored`` and ``progress``: reports a second. ``beats``: heartbeats a second.
* ``pages``: read a second, by ``--readers`` who read one after the other. ``fronts``: share of one core that all of them took.
* ``beat``, ``ack``, ``page``, ``command``: milliseconds until a heartbeat was answered, a stored report acknowledged, a page
  there, a job shared or no longer; of all but one in a hundred.

The first row is the peer: the size that one process was meant for before this was measured. Writes build/bench/fleet.json.
"""

import argparse
import asyncio
import multiprocessing
import resource
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import psutil
from aiohttp import web
from rich.console import Console
from rich.table import Table
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.common import publish
from common.clock import SystemClock
from coordinator.client.client import Client
from coordinator.config import Config
from coordinator.front import front_of
from coordinator.store.kept_sums import metadata
from coordinator.store.ownership import Ownership
from coordinator.web.connections import listen
from coordinator.web.signal import PATH
from protocol.codec import decode
from protocol.identity import NodeKey
from protocol.node import Acknowledged, Beat, Challenge, CoordinatorMessage, Heartbeat, HeldLease, Refused, Report
from protocol.rest.api import NewJob
from protocol.task import Progress, TaskReport
from tests.coordinator.conftest import FRONTS_SEED, ScriptedNode, opened
from tests.coordinator.fake_task import FakeTask
from tests.coordinator.fakes import FakeChain, Peers, spec
from tests.support.databases import Postgres

STAGES, REPLICAS = 2, 2
TICK_S = 1.0  # A home at work says where it is, and does what has become possible.
RESTING_S = 10.0  # In which nothing happens, to see what that takes.
PAGE_EVERY_S = 0.25
COMMAND_EVERY_S = 1.0
PAGES = ("/", "/network", "/api/v1/network", "/api/v1/jobs")
ROUNDS = 1_000
BUDGET = 3_000_000  # The wallet that pays for all of them has a thousand tokens.
FILES = 65_536
START_S = 300.0


@dataclass
class Fleet:
    """What all homes share: the coordinator's address, what their workers say to each other, and what was measured."""

    url: str
    http: aiohttp.ClientSession
    doors: list[str] = field(default_factory=list)
    peers: Peers = field(default_factory=Peers)
    counts: Counter[str] = field(default_factory=Counter)
    waits: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    refused: int = 0

    def measure_anew(self) -> None:
        """Forget what was counted."""
        self.counts.clear()
        self.waits.clear()


class Home(ScriptedNode):
    """A node that says as much as an agent does, as often."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        """Not yet connected."""
        super().__init__(fleet, number)  # type: ignore[arg-type]  # It asks for address and peers alone.
        self._fleet = fleet
        self._door = fleet.doors[number % len(fleet.doors)] + PATH
        self._beat_sent = 0.0
        self._next = 0.0
        self._sent: dict[tuple[str, int], float] = {}
        self._step = 0
        self._let_in = asyncio.Event()

    async def run(self) -> None:
        """Connect and obey, until cancelled or closed."""
        async with self._fleet.http.ws_connect(self._door, max_msg_size=0) as socket:
            self._socket = socket
            await self.send(self.hello(decode(await socket.receive_bytes(), Challenge)))
            async with asyncio.TaskGroup() as group:
                living = group.create_task(self._live())
                async for frame in socket:
                    message: CoordinatorMessage = decode(frame.data, CoordinatorMessage)
                    self._time(message)
                    await self._obey(message)
                    if self.welcomes:
                        self._let_in.set()
                living.cancel()

    def _time(self, message: CoordinatorMessage) -> None:
        now = time.perf_counter()
        match message:
            case Beat(next_seconds=seconds):
                self._fleet.waits["beat"].append(now - self._beat_sent)
                self._next = now + seconds
            case Acknowledged(lease=lease, seq=seq):
                for key in [key for key in self._sent if key[0] == lease and key[1] <= seq]:
                    self._fleet.waits["ack"].append(now - self._sent.pop(key))
            case Refused():
                self._fleet.refused += 1
            case _:
                pass

    async def _live(self) -> None:
        await self._let_in.wait()
        await asyncio.sleep(TICK_S * (int(self.key.address[-1], 36) / 36))  # Nobody starts on the stroke of the clock.
        while True:
            now = time.perf_counter()
            if now >= self._next:
                self._beat_sent, self._next = now, now + self.welcomes[-1].heartbeat_seconds
                self._fleet.counts["beats"] += 1
                await self.send(Heartbeat(tuple(HeldLease(lease, self.fences[lease]) for lease in self.tasks)))
            for lease, task in list(self.tasks.items()):
                if task.assign.stage is not None:
                    self._step += 1
                    await self._say(lease, [self._progress(task), *task.work()])
            await asyncio.sleep(TICK_S)

    def _progress(self, task: FakeTask) -> Progress:
        plan, begun = task.assign.plan, task.begun
        epoch, number = (plan.epoch, 0) if begun is None else (begun.plan.epoch, begun.round)
        return Progress(epoch, number, self._step, 1024, 5.0)

    @property
    def works(self) -> bool:
        """Whether it has a seat, and is no spare."""
        return any(task.assign.stage is not None for task in self.tasks.values())

    async def _say(self, lease: str, bodies: list[TaskReport]) -> None:
        await super()._say(lease, bodies)
        for body in bodies:
            self._fleet.counts["progress" if isinstance(body, Progress) else "stored"] += 1

    async def send(self, message: Any) -> None:
        """Send it, and note when, where it is acknowledged."""
        if isinstance(message, Report) and message.seq:
            self._sent.setdefault((message.lease, message.seq), time.perf_counter())
        await super().send(message)


def serve(folder: str, database: str | None, pipe: Connection) -> None:
    """The coordinator's process: says its address, and ends when it is told to."""
    _allow_files()

    async def run() -> None:
        config = replace(_config(folder), database_url=database)
        ownership = None if database is None else await Ownership.open(database, SystemClock(), "key", "files")
        if ownership is not None:
            assert await ownership.take(), "nobody else knows this database"
        async with opened(config, FakeChain(), rest=True, ownership=ownership) as house:
            pipe.send(house.url.removesuffix(PATH))
            await asyncio.to_thread(pipe.recv)

    asyncio.run(run())


def stand_by(folder: str, database: str, door: str, pipe: Connection) -> None:
    """A front's process, likewise."""
    _allow_files()

    async def run() -> None:
        config = replace(_config(folder), database_url=database, open=True)
        async with front_of(config, SystemClock(), lambda: door, NodeKey(FRONTS_SEED)) as app:
            runner = web.AppRunner(app)
            await runner.setup()
            await listen(runner, "127.0.0.1", 0)
            pipe.send(f"http://127.0.0.1:{runner.addresses[0][1]}")
            await asyncio.to_thread(pipe.recv)
            await runner.cleanup()

    asyncio.run(run())


def _config(folder: str) -> Config:
    return Config(data=Path(folder), ledger_url="http://ledger.test", validations=2)


def _allow_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, most), most))


@dataclass(frozen=True)
class Town:
    """Processes that run: where the one at work serves, and where everybody comes in; and its database."""

    work: str
    database: str
    doors: list[str]
    worker: psutil.Process
    fronts: list[psutil.Process]


@asynccontextmanager
async def _process(target: Any, *given: Any) -> AsyncIterator[tuple[str, psutil.Process]]:
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    process = spawning.Process(target=target, args=(*given, theirs))
    process.start()
    try:
        yield await asyncio.to_thread(ours.recv), psutil.Process(process.pid)
    finally:
        ours.send(None)
        await asyncio.to_thread(process.join, 30)
        process.kill()


@asynccontextmanager
async def coordinators(postgres: bool, fronts: int) -> AsyncIterator[Town]:
    """One at work, and those beside it."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        database = None
        if postgres:
            server = Postgres()
            stack.callback(server.remove)
            server.start()
            database = server.url()
        work, worker = await stack.enter_async_context(_process(serve, folder, database))
        beside = [await stack.enter_async_context(_process(stand_by, folder, database, work)) for _ in range(fronts)]
        database = database or _config(folder).database
        yield Town(work, database, [url for url, _ in beside] or [work], worker, [one for _, one in beside])


async def row(homes: int, jobs: int, options: argparse.Namespace) -> dict[str, float]:
    """One size of fleet."""
    async with (
        coordinators(options.postgres, options.fronts) as town,
        aiohttp.ClientSession(connector=_unbounded()) as http,
    ):
        empty, empty_core, rows = town.worker.memory_info().rss, await _resting(town), await _rows(town.database)
        fleet = Fleet(town.work, http, town.doors)
        made = [Home(fleet, number + 1) for number in range(homes)]
        began = time.perf_counter()
        running = [asyncio.create_task(home.run()) for home in made]
        try:
            await _until(lambda: all(home.welcomes or home.refused for home in made), running)
            welcomed = time.perf_counter() - began
            resting, grown = await _resting(town), await _rows(town.database) - rows
            job = await _submitted(town.doors[0], jobs)
            await _until(lambda: sum(home.works for home in made) >= jobs * STAGES * REPLICAS, running)
            await asyncio.sleep(10.0)
            fleet.measure_anew()
            before, since = [_cpu([town.worker]), _cpu(town.fronts)], time.perf_counter()
            readers = [_pages(fleet, reader, options.seconds) for reader in range(options.readers)]
            await asyncio.gather(*readers, _commands(fleet, job, options.seconds))
            passed = time.perf_counter() - since
            figures = {
                "welcomed": welcomed,
                "refused": float(fleet.refused),
                "at_work": float(sum(home.works for home in made)),
                "empty_core": empty_core,
                "resting_core": resting,
                "rows_a_home": grown / homes,
                "core": (_cpu([town.worker]) - before[0]) / passed,
                "fronts": (_cpu(town.fronts) - before[1]) / passed,
                "kilobytes_a_home": (town.worker.memory_info().rss - empty) / 1000 / homes,
            }
            figures |= {name: fleet.counts[name] / passed for name in ("beats", "stored", "progress", "pages")}
            waits = {name: fleet.waits[name] for name in ("beat", "ack", "page", "command")}
            figures |= {f"{name}_p50_ms": 1000 * statistics.median(found) for name, found in waits.items() if found}
            figures |= {f"{name}_p99_ms": 1000 * _p99(found) for name, found in waits.items() if found}
            return {name: round(value, 3) for name, value in figures.items()}
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


def _cpu(processes: list[psutil.Process]) -> float:
    """Seconds of a core that processes have taken."""
    return sum(sum(one.cpu_times()[:2]) for one in processes)


async def _resting(town: Town) -> float:
    """Share of a core that the one at work takes while nothing happens."""
    before, since = _cpu([town.worker]), time.perf_counter()
    await asyncio.sleep(RESTING_S)
    return (_cpu([town.worker]) - before) / (time.perf_counter() - since)


async def _rows(database: str) -> int:
    """How many there are, in all tables."""
    engine = create_async_engine(database)
    try:
        async with engine.connect() as connection:
            counts = [
                await connection.scalar(select(func.count()).select_from(table)) for table in metadata.sorted_tables
            ]
        return sum(count or 0 for count in counts)
    finally:
        await engine.dispose()


def _unbounded() -> aiohttp.TCPConnector:
    return aiohttp.TCPConnector(limit=0)


async def _until(condition: Any, running: list["asyncio.Task[None]"]) -> None:
    async with asyncio.timeout(START_S):
        while not condition():
            ended = [task for task in running if task.done()]
            assert not ended, ended[0].exception()
            await asyncio.sleep(0.1)


async def _submitted(url: str, jobs: int) -> str:
    """The first of them."""
    document = spec(STAGES, REPLICAS, tokens=ROUNDS * 1024)
    document, made = msgspec.structs.replace(document, budget=BUDGET), []
    async with Client(url) as client:
        for _ in range(jobs):
            made.append((await client.create_job(msgspec.to_builtins(NewJob(document).spec))).id)
            await client.fund(made[-1])
    return made[0]


async def _pages(fleet: Fleet, reader: int, seconds: float) -> None:
    """Pages in turn, until the time is over."""
    until, turn, url = time.perf_counter() + seconds, reader, fleet.doors[reader % len(fleet.doors)]
    while time.perf_counter() < until:
        began = time.perf_counter()
        async with fleet.http.get(url + PAGES[turn % len(PAGES)]) as answer:
            assert answer.status == 200, await answer.text()
            await answer.read()
        fleet.waits["page"].append(time.perf_counter() - began)
        fleet.counts["pages"] += 1
        turn += 1
        await asyncio.sleep(PAGE_EVERY_S)


async def _commands(fleet: Fleet, job: str, seconds: float) -> None:
    """A job is shared, and not, in turn."""
    until, shared = time.perf_counter() + seconds, False
    while time.perf_counter() < until:
        began, shared = time.perf_counter(), not shared
        where = f"{fleet.doors[0]}/api/v1/jobs/{job}/share"
        async with fleet.http.put(where, json={"shared": shared}) as answer:
            assert answer.status == 200, await answer.text()
        fleet.waits["command"].append(time.perf_counter() - began)
        await asyncio.sleep(COMMAND_EVERY_S)


def _p99(found: list[float]) -> float:
    return sorted(found)[(len(found) * 99 - 1) // 100]


def shown(rows: dict[str, dict[str, float]]) -> Table:
    """For people."""
    rates = ("welcomed", "empty_core", "resting_core", "core", "fronts", "beats", "stored", "progress", "pages")
    rates += ("kilobytes_a_home", "rows_a_home")
    names = (*rates, "beat_p99_ms", "ack_p99_ms", "page_p99_ms", "command_p99_ms")
    table = Table(title="one coordinator at work")
    for name in ("homes (at work)", *names):
        table.add_column(name, justify="right")
    for name, found in rows.items():
        table.add_row(
            f"{name} ({found['at_work']:.0f})", *(f"{found[one]:.2f}" if one in found else "" for one in names)
        )
    return table


async def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--homes", default="50,200")
    parser.add_argument("--share", type=float, default=0.4, help="of them that work; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=40.0, help="that are measured; default: %(default)s")
    parser.add_argument("--postgres", action="store_true", help="instead of SQLite")
    parser.add_argument("--fronts", type=int, default=0, help="that stand by beside it; needs --postgres (%(default)s)")
    parser.add_argument("--readers", type=int, default=1, help="of pages, at a time (%(default)s)")
    options = parser.parse_args()
    if options.fronts and not options.postgres:
        parser.error("--fronts stand by for PostgreSQL alone: add --postgres")
    _allow_files()
    rows, console = {}, Console(stderr=True)
    for homes in map(int, options.homes.split(",")):
        jobs = int(homes * options.share) // (STAGES * REPLICAS)
        with console.status(f"{homes:,} homes, {jobs:,} jobs"), suppress(asyncio.CancelledError):
            rows[f"{homes:,}"] = await row(homes, jobs, options)
        console.print(f"{homes:,} homes: {rows[f'{homes:,}']}")
    console.print(shown(rows))
    claim = "200 homes of which 80 work in rounds of some seconds are one process's"
    publish("fleet", claim, {"rows": rows})


if __name__ == "__main__":
    asyncio.run(main())
