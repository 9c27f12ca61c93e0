"""What a report costs the coordinator: real services over each store, homes without sockets that answer at once.

    python -m benchmarks.upkeep.reports [--jobs 20] [--rounds 6] [--stores memory,sqlite,postgresql]
    python -m benchmarks.upkeep.reports --cells 3 [--jobs 20] [--rounds 6]

So many jobs of 2 stages x 2 replicas train that many rounds, as fast as the coordinator takes what their homes say: commits,
holdings, applied updates, openings, audits. Homes are stand-ins in the same process, whose own work is taken off. Figures:

* ``reports_a_second``: stored and acknowledged, of the time from all jobs' second round to the end.
* ``ms``: processor time of the coordinator for each, all threads, with ticks and payments. ``database_ms``: of PostgreSQL.
* ``statements``, ``transactions``: for each report. ``ack_p99_ms``: from the report to its acknowledgement.

Writes build/bench/reports.json.

With ``--cells`` over PostgreSQL: one process with all jobs, then as many processes as cells, each with the homes of its cell's
jobs. They are measured from when the jobs of all have begun, and go on until the last one is. Figures are of each process and in
sum, where acknowledgements are of all, and PostgreSQL's of all processes; beside those of before:

* ``cores``: that coordinators took, ``home_cores``: homes, ``database_cores``: PostgreSQL.

Writes build/bench/reports_in_cells.json.
"""

import argparse
import asyncio
import cProfile
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.common import publish
from benchmarks.upkeep._cell_worlds import (
    Meeting,
    OpenedCell,
    Together,
    add_cells,
    check_cells,
    opened_cell,
    played_together,
)
from common.clock import SystemClock
from coordinator.assembly import CoordinatorParts, assemble
from coordinator.config import Config
from coordinator.domain.cells import Cell
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.models import ModelWorkshop
from coordinator.services.drivers.node_protocol import together
from coordinator.services.network.nodes import NodeSession
from coordinator.store.direct import Direct
from coordinator.store.memory import MemoryStore
from coordinator.store.ownership import Ownership
from coordinator.store.ports import Store
from coordinator.store.sql import SqlStore, SqlTransaction
from protocol.identity import NodeKey
from protocol.node import PROTOCOL, Acknowledged, Assign, Command, CoordinatorMessage, HeldLease, Hello, Report
from protocol.rest.api import NewJob
from protocol.task import Progress, StopTask, TaskReport, Traffic, WorkerLog
from tests.coordinator.fake_task import FakeTask
from tests.coordinator.fakes import COORDINATOR, WALLET, AllDelivered, FakeArtifacts, FakeChain, FakeModels, Peers, spec
from tests.coordinator.fakes import profile as profile_of
from tests.support.databases import Postgres

STAGES, REPLICAS = 2, 2
NONCE, HOST = b"n" * 32, "here"
LOOK_S = 0.1  # A home whose neighbours have done something sees it so soon.
LONG_S = 3_600.0  # Nobody beats, and nobody is late: the machine may be busy.
BUDGET = 3_000_000
BEGUN = 2  # Rounds that each job has done before anything is measured.
APART = 100_000  # Between the numbers of homes of two cells.


@dataclass
class Town:
    """All homes, and what was measured of them. ``done``: rounds of each job."""

    parts: CoordinatorParts
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)
    done: dict[str, int] = field(default_factory=dict)
    peers: Peers = field(default_factory=Peers)
    acks: list[float] = field(default_factory=list)
    own_s: float = 0.0
    begun: asyncio.Event = field(default_factory=asyncio.Event)


class Home:
    """A node whose connection is two queues."""

    def __init__(self, town: Town, number: int) -> None:
        """Not yet here."""
        self._town = town
        self._key = NodeKey(number.to_bytes(32, "big"))
        self._payout = NodeKey((1_000_000 + number).to_bytes(32, "big")).address
        self._profile = profile_of(f"node-{number}", 1e9 + number, "cpu")
        self._tasks: dict[str, FakeTask] = {}
        self._said: dict[str, int] = {}
        self._sent: dict[tuple[str, int], float] = {}
        self._inbox: asyncio.Queue[CoordinatorMessage] = asyncio.Queue()
        self._outbox: asyncio.Queue[Report] = asyncio.Queue()

    async def run(self) -> None:
        """Come in and obey, until cancelled."""
        signature = self._key.sign("cottage-hello", NONCE, HOST.encode())
        profile = msgspec.structs.replace(self._profile, memory_mb=8_000)
        hello = Hello(PROTOCOL, self._key.address, self._payout, signature, profile, cast(tuple[HeldLease, ...], ()))
        parts = self._town.parts
        session = await parts.nodes.enter(hello, NONCE, HOST, self._inbox.put_nowait, lambda reason: print(reason))
        await parts.conversation.begin(session, hello)
        await self._town.begun.wait()  # All jobs begin together.
        async with asyncio.TaskGroup() as group:
            group.create_task(self._talk(session))
            while True:
                try:
                    async with asyncio.timeout(LOOK_S):
                        messages = [await self._inbox.get()]
                except TimeoutError:
                    messages = []
                while not self._inbox.empty():
                    messages.append(self._inbox.get_nowait())
                began = time.thread_time()
                for message in messages:
                    self._obey(message)
                for lease, task in list(self._tasks.items()):
                    self._say(lease, task.work())
                self._town.own_s += time.thread_time() - began

    async def _talk(self, session: NodeSession) -> None:
        waiting: list[Report] = []
        while True:
            report = waiting.pop() if waiting else await self._outbox.get()
            more: list[Report] = []
            while not self._outbox.empty() and not waiting:
                following = self._outbox.get_nowait()
                (more if together(report, following) else waiting).append(following)
            await self._town.parts.conversation.receive(session, report, *more)

    def _obey(self, message: CoordinatorMessage) -> None:
        match message:
            case Assign():
                task = FakeTask(message, self._key.address, self._town.peers)
                self._tasks[message.lease] = task
                self._fence = message.fence
                self._say(message.lease, task.start())
            case Command(body=StopTask()):
                self._tasks.pop(message.lease, None)
            case Command() if message.lease in self._tasks:
                self._say(message.lease, self._tasks[message.lease].act(message.body))
            case Acknowledged(lease=lease, seq=seq):
                now = time.perf_counter()
                for key in [key for key in self._sent if key[0] == lease and key[1] <= seq]:
                    self._town.acks.append(now - self._sent.pop(key))

    def _say(self, lease: str, bodies: list[TaskReport]) -> None:
        for body in bodies:
            if isinstance(body, Progress | Traffic | WorkerLog):
                continue
            seq = self._said[lease] = self._said.get(lease, 0) + 1
            self._sent[lease, seq] = time.perf_counter()
            self._outbox.put_nowait(Report(lease, self._tasks[lease].assign.fence, seq, body))


@asynccontextmanager
async def store_of(kind: str, folder: str) -> AsyncIterator[tuple[Store, psutil.Process | None]]:
    """A new store; with PostgreSQL's first process."""
    if kind == "memory":
        yield MemoryStore(), None
    elif kind == "sqlite":
        made = await SqlStore.open(f"sqlite+aiosqlite:///{folder}/c.db")
        try:
            yield made, None
        finally:
            await made.close()
    else:
        server = Postgres()
        try:
            server.start()
            url = server.url()
            ownership = await Ownership.open(url, SystemClock(), "key", "files")
            assert await ownership.take(), "nobody else knows this database"
            made = await SqlStore.open(url, ownership)
            try:
                yield made, psutil.Process(server.process)
            finally:
                await made.close()
                await ownership.close()
        finally:
            server.remove()


async def figures(kind: str, jobs: int, rounds: int, profiled: Path | None = None) -> dict[str, float]:
    """Of one store."""
    with tempfile.TemporaryDirectory() as folder:
        async with store_of(kind, folder) as (store, server), _town(folder, store, jobs) as town:
            said = await _begun(town, jobs)
            return row([await _measured(town, said, jobs, rounds, server, profiled)])


@asynccontextmanager
async def _town(folder: str, store: Store, jobs: int, cell: OpenedCell | None = None) -> AsyncIterator[Town]:
    """A coordinator, and the homes of so many jobs on their way to it."""
    config = Config(
        data=Path(folder),
        ledger_url="http://ledger.test",
        validations=2,
        min_stake=0,
        lease_seconds=LONG_S,
        spares=0,
    )
    clock, among = SystemClock(), None if cell is None else cell.among
    models, artifacts = cast(ModelWorkshop, FakeModels()), cast(ArtifactStore, FakeArtifacts())
    given = (config, clock, store, FakeChain(), models, artifacts, COORDINATOR, WALLET)
    parts = assemble(*given, deliveries=AllDelivered(store, clock), among=among)
    await parts.recover()
    town = Town(parts)
    first = 1 if cell is None else 1 + APART * cell.cell.number
    homes = [Home(town, number) for number in range(first, first + jobs * STAGES * REPLICAS)]
    town.tasks += [asyncio.create_task(loop(), name=name) for name, loop in parts.loops().items()]
    try:
        parts.desk.on_stored(lambda work: town.done.update({work.job.id: work.job.rounds_done}))
        town.tasks += [asyncio.create_task(home.run()) for home in homes]
        await _until(lambda: len(parts.nodes.sessions()) == len(homes), town.tasks)
        yield town
    finally:
        for task in town.tasks:
            task.cancel()
        await asyncio.gather(*town.tasks, return_exceptions=True)


async def _begun(town: Town, jobs: int) -> list[str]:
    """So many jobs that train; what is said to the database from now on."""
    said = _counted()
    document = msgspec.structs.replace(spec(STAGES, REPLICAS, tokens=1_000 * 1024), budget=BUDGET)
    for _ in range(jobs):
        made = (await town.parts.jobs.create(NewJob(document))).id
        await town.parts.jobs.fund(made)
    town.begun.set()
    await _until(lambda: len(town.done) == jobs and min(town.done.values()) >= BEGUN, town.tasks)
    return said


@dataclass(frozen=True)
class Measured:
    """What a process took for so many ``reports``, in seconds. ``acks``: sorted. ``own_s``: of homes; ``database_s``: of
    PostgreSQL, as far as this process asks for it."""

    reports: int
    passed_s: float
    spent_s: float
    own_s: float
    database_s: float
    statements: int
    transactions: int
    acks: list[float]


async def _measured(
    town: Town, said: list[str], jobs: int, rounds: int, server: psutil.Process | None, profiled: Path | None = None
) -> Measured:
    profile = cProfile.Profile()
    if profiled is not None:
        profile.enable()
    target = sum(town.done.values()) + jobs * rounds
    town.acks.clear()
    said.clear()
    town.own_s, began, spent, served = 0.0, time.perf_counter(), time.process_time(), _cpu(server)
    await _until(lambda: sum(town.done.values()) >= target, town.tasks)
    passed, own = time.perf_counter() - began, town.own_s
    spent, served = time.process_time() - spent - own, _cpu(server) - served
    if profiled is not None:
        profile.disable()
        profile.dump_stats(profiled)
    counts = said.count("statement"), said.count("transaction")
    return Measured(len(town.acks), passed, spent, own, served, *counts, sorted(town.acks))


def row(found: Sequence[Measured]) -> dict[str, float]:
    """As it is shown, of one process, or of several at a time."""
    number, acks = sum(one.reports for one in found), sorted(ack for one in found for ack in one.acks)
    return {
        "reports": number,
        "reports_a_second": round(sum(one.reports / one.passed_s for one in found), 1),
        "ms": round(1000 * sum(one.spent_s for one in found) / number, 2),
        "database_ms": round(1000 * sum(one.database_s for one in found) / number, 2),
        "statements": round(sum(one.statements for one in found) / number, 2),
        "transactions": round(sum(one.transactions for one in found) / number, 2),
        "ack_p50_ms": round(1000 * acks[len(acks) // 2], 1),
        "ack_p99_ms": round(1000 * acks[(len(acks) * 99 - 1) // 100], 1),
    }


async def carry(url: str, cell: Cell, meeting: Meeting, jobs: int, rounds: int) -> None:
    """Carry a cell, which has its share of so many jobs, until all are measured."""
    own = len(range(cell.number, jobs, cell.of))
    with tempfile.TemporaryDirectory() as folder:
        async with (
            opened_cell(url, cell) as here,
            _town(folder, here.store, own, here) as town,
            here.answers(town.parts),
        ):
            said = await _begun(town, own)
            await meeting.begun()
            meeting.measured(await _measured(town, said, own, rounds, None))
            await _until(lambda: meeting.over, town.tasks)
            meeting.ends(len(town.acks))


def cell_figures(jobs: int, rounds: int, cells: int) -> dict[str, dict[str, float]]:
    """Of so many jobs over one PostgreSQL: of each process that carries some, and in sum."""
    found: Together[Measured] = played_together(cells, carry, jobs, rounds)
    rows = {f"cell {number + 1} of {cells}": _shared([one]) for number, one in enumerate(found.each) if cells > 1}
    database = {
        "database_ms": round(found.database_ms, 2),
        "database_cores": round(found.database_s / found.seconds, 2),
    }
    return rows | {"1 process" if cells == 1 else f"{cells} processes": _shared(found.each) | database}


def _shared(found: Sequence[Measured]) -> dict[str, float]:
    """Of processes with one PostgreSQL, of which none knows what it took for itself."""
    cores = {
        "cores": round(sum(one.spent_s / one.passed_s for one in found), 2),
        "home_cores": round(sum(one.own_s / one.passed_s for one in found), 2),
    }
    return {name: value for name, value in row(found).items() if name != "database_ms"} | cores


def _counted() -> list[str]:
    """Statements and transactions from now on."""
    found: list[str] = []

    def count(of: Any, name: str, what: str) -> None:
        as_it_is = getattr(of, name)

        def counted(self: Any, *given: Any, **named: Any) -> Any:
            found.append(what)
            return as_it_is(self, *given, **named)

        setattr(of, name, counted)

    count(SqlTransaction, "_execute", "statement")
    count(Direct, "_said", "statement")
    count(SqlStore, "_transaction", "transaction")
    return found


async def _until(reached: Callable[[], bool], tasks: list["asyncio.Task[None]"]) -> None:
    while not reached():
        ended = [task for task in tasks if task.done()]
        assert not ended, ended[0].exception()
        await asyncio.sleep(0.02)


def _cpu(server: psutil.Process | None) -> float:
    if server is None:
        return 0.0
    return sum(sum(one.cpu_times()[:2]) for one in (server, *server.children()))


def shown(rows: dict[str, dict[str, float]], title: str) -> Table:
    """For people."""
    names = max(rows.values(), key=len)
    table = Table("", *names, title=title)
    for name, row in rows.items():
        table.add_row(name, *(str(row.get(column, "")) for column in names))
    return table


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=6, help="of each job; default: %(default)s")
    parser.add_argument("--stores", default="memory,sqlite,postgresql")
    parser.add_argument("--profile", type=Path, help="a folder for cProfile's figures of each")
    add_cells(parser)
    options = parser.parse_args()
    check_cells(parser, options.cells, options.jobs)
    rows: dict[str, dict[str, float]] = {}
    console, title = Console(stderr=True), f"reports of {options.jobs} jobs"
    if options.cells is not None:
        for cells in sorted({1, options.cells}):
            rows |= cell_figures(options.jobs, options.rounds, cells)
        console.print(shown(rows, title))
        publish("reports_in_cells", "processes that carry a cell each take reports beside each other", {"rows": rows})
        return
    for kind in options.stores.split(","):
        where = None if options.profile is None else options.profile / f"{kind}.pstats"
        rows[kind] = asyncio.run(figures(kind, options.jobs, options.rounds, where))
        console.print(f"{kind}: {rows[kind]}")
    console.print(shown(rows, title))
    publish("reports", "a report is some milliseconds of processor time", {"rows": rows})


if __name__ == "__main__":
    main()
