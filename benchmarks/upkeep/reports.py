"""What a report costs the coordinator: real services over each store, homes without sockets that answer at once.

    python -m benchmarks.upkeep.reports [--jobs 20] [--rounds 6] [--stores memory,sqlite,postgresql]

So many jobs of 2 stages x 2 replicas train that many rounds, as fast as the coordinator takes what their homes say: commits,
holdings, applied updates, openings, audits. Homes are stand-ins in the same process, whose own work is taken off. Figures:

* ``reports_a_second``: stored and acknowledged, of the time from all jobs' second round to the end.
* ``ms``: processor time of the coordinator for each, all threads, with ticks and payments. ``database_ms``: of PostgreSQL.
* ``statements``, ``transactions``: for each report. ``ack_p99_ms``: from the report to its acknowledgement.

Writes build/bench/reports.json.
"""

import argparse
import asyncio
import cProfile
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.common import publish
from common.clock import SystemClock
from coordinator.assembly import CoordinatorParts, assemble
from coordinator.config import Config
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


@dataclass
class Town:
    """All homes, and what was measured of them."""

    parts: CoordinatorParts
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
        async with store_of(kind, folder) as (store, server):
            config = Config(
                data=Path(folder),
                ledger_url="http://ledger.test",
                validations=2,
                min_stake=0,
                lease_seconds=LONG_S,
                spares=0,
            )
            return await _played(config, store, server, jobs, rounds, profiled)


async def _played(
    config: Config, store: Store, server: psutil.Process | None, jobs: int, rounds: int, profiled: Path | None
) -> dict[str, float]:
    clock = SystemClock()
    models, artifacts = cast(ModelWorkshop, FakeModels()), cast(ArtifactStore, FakeArtifacts())
    parts = assemble(
        config, clock, store, FakeChain(), models, artifacts, COORDINATOR, WALLET, deliveries=AllDelivered(store, clock)
    )
    await parts.recover()
    town = Town(parts)
    homes = [Home(town, number + 1) for number in range(jobs * STAGES * REPLICAS)]
    tasks = [asyncio.create_task(loop(), name=name) for name, loop in parts.loops().items()]
    try:
        return await _measured(town, homes, jobs, rounds, server, tasks, profiled)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _measured(
    town: Town,
    homes: list[Home],
    jobs: int,
    rounds: int,
    server: psutil.Process | None,
    tasks: list["asyncio.Task[None]"],
    profiled: Path | None,
) -> dict[str, float]:
    tasks += [asyncio.create_task(home.run()) for home in homes]
    parts, counted, done = town.parts, _counted(), dict[str, int]()
    parts.desk.on_stored(lambda work: done.update({work.job.id: work.job.rounds_done}))
    await _until(lambda: len(parts.nodes.sessions()) == len(homes), tasks)
    document = msgspec.structs.replace(spec(STAGES, REPLICAS, tokens=1_000 * 1024), budget=BUDGET)
    made = []
    for _ in range(jobs):
        made.append((await parts.jobs.create(NewJob(document))).id)
        await parts.jobs.fund(made[-1])
    town.begun.set()
    await _until(lambda: len(done) == jobs and min(done.values()) >= BEGUN, tasks)
    profile = cProfile.Profile()
    if profiled is not None:
        profile.enable()
    target = sum(done.values()) + jobs * rounds
    town.acks.clear()
    counted.clear()
    town.own_s, began, spent, served = 0.0, time.perf_counter(), time.process_time(), _cpu(server)
    await _until(lambda: sum(done.values()) >= target, tasks)
    passed, own = time.perf_counter() - began, town.own_s
    spent, served = time.process_time() - spent - own, _cpu(server) - served
    if profiled is not None:
        profile.disable()
        profile.dump_stats(profiled)
    number, acks = len(town.acks), sorted(town.acks)
    return {
        "reports": number,
        "reports_a_second": round(number / passed, 1),
        "ms": round(1000 * spent / number, 2),
        "database_ms": round(1000 * served / number, 2),
        "statements": round(counted.count("statement") / number, 2),
        "transactions": round(counted.count("transaction") / number, 2),
        "ack_p50_ms": round(1000 * acks[len(acks) // 2], 1),
        "ack_p99_ms": round(1000 * acks[(len(acks) * 99 - 1) // 100], 1),
    }


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


async def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=6, help="of each job; default: %(default)s")
    parser.add_argument("--stores", default="memory,sqlite,postgresql")
    parser.add_argument("--profile", type=Path, help="a folder for cProfile's figures of each")
    options = parser.parse_args()
    rows = {}
    for kind in options.stores.split(","):
        where = None if options.profile is None else options.profile / f"{kind}.pstats"
        rows[kind] = await figures(kind, options.jobs, options.rounds, where)
        Console(stderr=True).print(f"{kind}: {rows[kind]}")
    table = Table("store", *next(iter(rows.values())), title=f"reports of {options.jobs} jobs")
    for kind, row in rows.items():
        table.add_row(kind, *(str(value) for value in row.values()))
    Console(stderr=True).print(table)
    publish("reports", "a report is some milliseconds of processor time", {"rows": rows})


if __name__ == "__main__":
    asyncio.run(main())
