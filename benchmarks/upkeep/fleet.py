"""How many homes coordinators carry: real WebSockets, a key for each home, the protocol's own messages, SQLite on a disk.

    python -m benchmarks.upkeep.fleet [--homes 50,200] [--share 0.4] [--seconds 40] [--postgres] [--fronts 2] [--readers 8]
    python -m benchmarks.upkeep.fleet --postgres --cells 3 [--homes 1000] [--share 0] [--beat 10] [--kill]

A coordinator is a process of its own; all homes are another one. With ``--postgres`` it works with a PostgreSQL of this run's
own; with ``--fronts`` so many others stand by beside it, and all homes and readers come to those. With ``--cells`` as many
processes carry a cell each, and homes and readers come in at all of them. Homes come all at once, and come back as agents do when
their connection ends. Then so many of them idle, and the others (``--share``) work in jobs of 2 stages x 2 replicas, whose rounds
take some seconds: they report progress once a second, and commit, open, audit, apply as real ones do. Workers, ledger and
artifacts are stand-ins; what coordinators decide, store and say is not. Figures are of the last seconds, with all jobs begun:

* ``welcomed``: seconds until everybody was let in. ``core``: share of one core that those took which carry jobs, and of several
  each (``core_1`` ..). ``fronts``, ``database``, ``homes``: those of fronts, of PostgreSQL, of this process; ``others``: of the
  rest of the machine.
* ``empty_core``: the same as ``core`` before anybody came. ``resting_core``: with everybody there, and no job.
* ``kilobytes_a_home``, ``rows_a_home``: of memory, when all jobs had begun, and in the database, before there was one.
* ``stored`` and ``progress``: reports a second. ``beats``: heartbeats a second. ``let_go``: nodes that went to another cell since
  the beginning. ``cuts``: connections that ended meanwhile.
* ``pages``: read a second, by ``--readers`` who read one after the other; each has been read once before.
* ``beat``, ``ack``, ``page``, ``command``: milliseconds until a heartbeat was answered, a stored report acknowledged, a page
  there, a job shared or no longer; of all but one in a hundred.
* ``lost``, ``back``: with ``--kill``, homes whose connection ended when one process was killed, and seconds until all were back.

The first row is the peer: the size that one process was meant for before this was measured. Writes build/bench/fleet.json.
"""

import argparse
import asyncio
import statistics
import time
from contextlib import suppress
from typing import Any

import aiohttp
import msgspec
import psutil
from rich.console import Console
from rich.table import Table
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.common import publish
from benchmarks.upkeep._coordinators import Town, TownOptions, allow_files, coordinators
from benchmarks.upkeep._homes import Fleet, Home
from common import gc_tuning
from coordinator.client.client import Client
from coordinator.store.kept_sums import metadata
from protocol.rest.api import NewJob
from tests.coordinator.fakes import spec

STAGES, REPLICAS = 2, 2
RESTING_S = 10.0  # In which nothing happens, to see what that takes.
BEGIN_S = 10.0  # After coordinators, or all jobs, have begun.
PAGE_EVERY_S = 0.25
COMMAND_EVERY_S = 1.0
PAGES = ("/", "/network", "/api/v1/network", "/api/v1/jobs")
ROUNDS = 1_000
BUDGET = 3_000_000  # The wallet that pays for all of them has a thousand tokens.
START_S = 300.0
LOOK_S = 0.1


class Cores:
    """Shares of a core that have been taken since this was made."""

    def __init__(self, town: Town) -> None:
        """From now on."""
        self._town = town
        self._began, self._before = time.perf_counter(), self._spent()

    def figures(self) -> dict[str, float]:
        """Until now."""
        passed, now = time.perf_counter() - self._began, self._spent()
        return {name: (now[name] - before) / passed for name, before in self._before.items()}

    def _spent(self) -> dict[str, float]:
        """Seconds of a core."""
        workers = [_cpu(one.process) for one in self._town.workers]
        spent = {"core": sum(workers), "fronts": sum(_cpu(one.process) for one in self._town.fronts)}
        if len(workers) > 1:
            spent |= {f"core_{number + 1}": each for number, each in enumerate(workers)}
        if (server := self._town.server) is not None:
            spent["database"] = sum(map(_cpu, server.children())) + sum(server.cpu_times()[:4])
        spent["homes"] = time.process_time()
        known = sum(spent.get(name, 0.0) for name in ("core", "fronts", "database", "homes"))
        machine = psutil.cpu_times()
        spent["others"] = sum(machine) - machine.idle - machine.iowait - machine.guest - machine.guest_nice - known
        return spent


def _cpu(process: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess):
        return float(sum(process.cpu_times()[:2]))
    return 0.0


async def row(homes: int, jobs: int, options: argparse.Namespace) -> dict[str, float]:
    """One size of fleet."""
    asked = TownOptions(options.postgres, options.fronts, options.cells, options.beat)
    async with (
        coordinators(asked) as town,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
    ):
        await asyncio.sleep(BEGIN_S)  # What follows a start is over.
        empty, empty_core, rows = _memory(town), await _resting(town), await _rows(town.database)
        fleet = Fleet(town.doors, http)
        made = [Home(fleet, number + 1) for number in range(homes)]
        began = time.perf_counter()
        running = [asyncio.create_task(home.run()) for home in made]
        try:
            await _until(lambda: all(home.here for home in made), running)
            figures = {
                "welcomed": time.perf_counter() - began,
                "empty_core": empty_core,
                "refused": fleet.counts["refused"],
            }
            figures["resting_core"] = await _resting(town)
            figures["rows_a_home"] = (await _rows(town.database) - rows) / homes
            job = await _submitted(town, jobs)
            await _until(lambda: sum(home.works for home in made) >= jobs * STAGES * REPLICAS, running)
            await asyncio.sleep(BEGIN_S)
            figures |= await _measured(town, fleet, job, options)
            figures["at_work"] = sum(home.works for home in made)
            figures["kilobytes_a_home"] = (_memory(town) - empty) / 1000 / homes
            figures["let_go"] = sum([(await one.told()).let_go for one in town.workers])
            if options.kill:
                figures |= await _killed(town, fleet, made, running)
            return {name: round(value, 3) for name, value in figures.items()}
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def _measured(town: Town, fleet: Fleet, job: str, options: argparse.Namespace) -> dict[str, float]:
    """What happens within the seconds that are asked for, while people read pages and send commands."""
    for door in fleet.doors:
        for page in PAGES:
            await _read(fleet, door + page)
    fleet.measure_anew()
    cores, since = Cores(town), time.perf_counter()
    readers = [_pages(fleet, reader, options.seconds) for reader in range(options.readers)]
    await asyncio.gather(*readers, _commands(fleet, job, options.seconds))
    passed, figures = time.perf_counter() - since, cores.figures()
    figures |= {name: fleet.counts[name] / passed for name in ("beats", "stored", "progress", "pages")}
    figures["cuts"] = fleet.counts["cuts"]
    waits = {name: fleet.waits[name] for name in ("beat", "ack", "page", "command")}
    figures |= {f"{name}_p50_ms": 1000 * statistics.median(found) for name, found in waits.items() if found}
    figures |= {f"{name}_p99_ms": 1000 * _p99(found) for name, found in waits.items() if found}
    return figures


async def _killed(town: Town, fleet: Fleet, homes: list[Home], running: list["asyncio.Task[None]"]) -> dict[str, float]:
    """One process dies that carries jobs: how long it takes until all homes are connected to those that are left."""
    fleet.measure_anew()
    dying = town.workers.pop()
    if dying.url in fleet.doors:
        fleet.doors.remove(dying.url)
    began = time.perf_counter()
    dying.kill()
    async with asyncio.timeout(START_S):
        while await town.nodes() < len(homes) or not all(home.here for home in homes):
            assert not any(task.done() for task in running)
            await asyncio.sleep(LOOK_S)
    return {"lost": fleet.counts["cuts"], "back": time.perf_counter() - began}


def _memory(town: Town) -> int:
    """Bytes of all that carry jobs or stand by."""
    return sum(int(one.process.memory_info().rss) for one in (*town.workers, *town.fronts))


async def _resting(town: Town) -> float:
    """Share of a core that those take which carry jobs while nothing happens."""
    cores = Cores(town)
    await asyncio.sleep(RESTING_S)
    return cores.figures()["core"]


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


async def _until(condition: Any, running: list["asyncio.Task[None]"]) -> None:
    async with asyncio.timeout(START_S):
        while not condition():
            ended = [task for task in running if task.done()]
            assert not ended, ended[0].exception()
            await asyncio.sleep(0.1)


async def _submitted(town: Town, jobs: int) -> str:
    """The first of them; where none is asked for, one that never begins."""
    document = spec(STAGES, REPLICAS, tokens=ROUNDS * 1024)
    document, made = msgspec.structs.replace(document, budget=BUDGET), []
    for number in range(max(1, jobs)):
        async with Client(town.doors[number % len(town.doors)]) as client:
            made.append((await client.create_job(msgspec.to_builtins(NewJob(document).spec))).id)
            if number < jobs:
                await client.fund(made[-1])
    return made[0]


async def _pages(fleet: Fleet, reader: int, seconds: float) -> None:
    """Pages in turn, until the time is over."""
    until, turn, url = time.perf_counter() + seconds, reader, fleet.doors[reader % len(fleet.doors)]
    while time.perf_counter() < until:
        began = time.perf_counter()
        await _read(fleet, url + PAGES[turn % len(PAGES)])
        fleet.waits["page"].append(time.perf_counter() - began)
        fleet.counts["pages"] += 1
        turn += 1
        await asyncio.sleep(PAGE_EVERY_S)


async def _read(fleet: Fleet, page: str) -> None:
    async with fleet.http.get(page) as answer:
        assert answer.status == 200, await answer.text()
        await answer.read()


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
    table = Table("", *(f"{name} homes" for name in rows))
    for name in max(rows.values(), key=len):
        table.add_row(name, *(f"{found[name]:.2f}" if name in found else "" for found in rows.values()))
    return table


async def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--homes", default="50,200")
    parser.add_argument("--share", type=float, default=0.4, help="of them that work; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=40.0, help="that are measured; default: %(default)s")
    parser.add_argument("--postgres", action="store_true", help="instead of SQLite")
    parser.add_argument("--fronts", type=int, default=0, help="that stand by beside it; needs --postgres (%(default)s)")
    parser.add_argument(
        "--cells", type=int, default=1, help="carried by as many processes; needs --postgres (%(default)s)"
    )
    parser.add_argument("--readers", type=int, default=1, help="of pages, at a time (%(default)s)")
    parser.add_argument("--beat", type=float, default=2.0, help="seconds between a home's heartbeats (%(default)s)")
    parser.add_argument("--kill", action="store_true", help="one process at the end; needs --cells, and --share 0")
    options = parser.parse_args()
    if (options.fronts or options.cells > 1) and not options.postgres:
        parser.error("several coordinators share PostgreSQL alone: add --postgres")
    if options.kill and options.cells == 1:
        parser.error("nobody would be left: add --cells")
    if options.kill and options.share:
        parser.error("each process has a ledger of its own, so no other one could pay for its jobs: add --share 0")
    allow_files()
    gc_tuning.settle()
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
