"""Every list and page of a coordinator whose database holds a million ended jobs of 1,000 nodes: real HTTP, its own process.

    python -m benchmarks.upkeep.many_jobs [--jobs 1000000] [--repeats 100] [--beside 1000] [--keep FOLDER]
        [--postgresql] [--explain MS]

A database is filled by SQL with copies of one job's rows: its run, lease, rounds, commits, audit, curve, timeline and what the
ledger was told, all ended. One in a thousand is shared; one in ten thousand has an audit that failed. `cottage serve` then
stands on it. The pages are those that links lead to from the first one, an example of each kind, and every list of the
interface. The peer is the same coordinator with few jobs, in the same run. SQLite on a disk, or the same
rows in a PostgreSQL of its own, whose plans of slow statements come to build/bench/many_jobs.plans. Writes
build/bench/many_jobs.json.
"""

import argparse
import asyncio
import contextlib
import re
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import asyncpg
from aiohttp import web
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sqlalchemy import Boolean, make_url

from benchmarks.common import publish
from coordinator.store.kept_sums import metadata
from coordinator.store.sql import SqlStore
from ledger.local.rpc import Rpc
from ledger.local.server import build_app
from tests.coordinator.ended_jobs import filled
from tests.ledger.world import World
from tests.support.databases import Postgres

GOAL_MS = 100.0
HOMES = 1_000
START_S = 120.0
LINK = re.compile(r'href="(/[^"#]*)"')
PLACE = re.compile(r"[0-9a-f]{32}|[1-9A-HJ-NP-Za-km-z]{32,44}")
_INDICES = """SELECT indexname, indexdef FROM pg_indexes
    WHERE schemaname = 'public' AND indexname NOT IN (SELECT conname FROM pg_constraint)"""
_FILLING = (
    "fsync = off",
    "synchronous_commit = off",
    "full_page_writes = off",
    "autovacuum = off",
    "max_wal_size = '8GB'",
)
NO_PAGE = re.compile(
    r"^/(?:static|favicon|api/|login|sign-out|download/|docs)|/(?:events|stream|artifact|model|checkpoint)"
)


@contextlib.asynccontextmanager
async def served(data: Path, database: str = "") -> AsyncIterator[str]:
    """A coordinator on that folder, or another ``database``, and the embedded ledger; its address."""
    world, ready = World(), data.parent / "ready"
    runner = web.AppRunner(build_app(Rpc(world.chain, world.genesis), lambda: None), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    words = ["--open", "--port", "0", "--data", str(data), "--ready-file", str(ready), "--no-own-auditor"]
    words += ["--database-url", database] if database else []
    command = [sys.executable, "-m", "coordinator.cli", "serve", *words, "--ledger-url", f"http://{host}:{port}"]
    process = await asyncio.create_subprocess_exec(*command, stderr=(data.parent / "log").open("w"))
    try:
        async with asyncio.timeout(START_S):
            while not ready.exists():
                assert process.returncode is None, (data.parent / "log").read_text()[-2000:]
                await asyncio.sleep(0.1)
        yield ready.read_text()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
        await runner.cleanup()
        ready.unlink(missing_ok=True)


def _explaining(milliseconds: float) -> list[str]:
    """Settings with which PostgreSQL writes slow statements' plans to its log."""
    settings = {"log_min_duration": milliseconds, "log_analyze": "on", "log_buffers": "on", "log_timing": "off"}
    loaded = "session_preload_libraries = 'auto_explain'"
    return [loaded, *(f"auto_explain.{name} = '{value}'" for name, value in settings.items())]


def kind_of(path: str) -> str:
    """A page's address with what it is about left open."""
    parts = urlsplit(path)
    query = "&".join(sorted(word.partition("=")[0] for word in parts.query.split("&") if word))
    return PLACE.sub("*", parts.path) + (f"?{query}" if query else "")


async def pages_of(http: aiohttp.ClientSession, url: str) -> dict[str, str]:
    """An example of each kind of page that links lead to, and of each list of the interface."""
    found: dict[str, str] = {"/": "/"}
    waiting = deque(["/"])
    while waiting:
        async with http.get(url + waiting.popleft()) as answer:
            text = await answer.text() if answer.content_type == "text/html" and answer.status == 200 else ""
        for link in LINK.findall(text):
            link = link.replace("&amp;", "&")
            if not NO_PAGE.search(link) and kind_of(link) not in found:
                found[kind_of(link)] = link
                waiting.append(link)
    return found | dict(_interface(await (await http.get(f"{url}/openapi.json")).json()))


def _interface(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    base = urlsplit(document.get("servers", [{"url": ""}])[0]["url"]).path.rstrip("/")
    for path, methods in document["paths"].items():
        full = path if path.startswith("/api") else base + path
        if "get" in methods and not NO_PAGE.search(full.removeprefix("/api")) and "{" not in full.replace("{job}", ""):
            yield kind_of(full.replace("{job}", "0" * 32)), full.replace("{job}", f"{1:032x}")


async def measured(http: aiohttp.ClientSession, url: str, repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds of each page: median, and what all but one in a hundred take at most."""
    found = {}
    for kind, path in (await pages_of(http, url)).items():
        times, status = [], 0
        for number in range(repeats + 1):
            began = time.perf_counter()
            async with http.get(url + path) as answer:
                await answer.read()
                status = answer.status
            times.append(1000 * (time.perf_counter() - began))
            if number > 3 and sum(times) > 20_000:
                break
        times = sorted(times[1:])
        found[kind] = {
            "status": status,
            "median_ms": round(statistics.median(times), 1),
            "p99_ms": round(times[(len(times) * 99 - 1) // 100], 1),
        }
    return found


def _shown(batches: range) -> Iterable[int]:
    return track(batches, "filling the database", console=Console(stderr=True))


async def moved(database: Path, postgres: Postgres, explain: float | None = None) -> str:
    """The address of a database in PostgreSQL with all rows of one in SQLite, cleaned up as it is after months.

    Args:
        explain: milliseconds from which on PostgreSQL says how it found what it was asked for; None: it never does.
    """
    if (moved_to := database.with_suffix(".postgresql")).exists():
        return moved_to.read_text()
    url = postgres.url()
    await (await SqlStore.open(url)).close()
    source, name = sqlite3.connect(database), make_url(url).database
    target = await asyncpg.connect(host=str(postgres.folder), user="cottage", database=name)
    try:
        # Rows come before those that they name, and with what the database sums of them.
        await target.execute("SET session_replication_role = replica")
        await target.execute("SET maintenance_work_mem = '512MB'")
        for setting in _FILLING:
            await target.execute(f"ALTER SYSTEM SET {setting}")
        await target.execute("SELECT pg_reload_conf()")
        indices = await target.fetch(_INDICES)
        for index in indices:
            await target.execute(f"DROP INDEX {index['indexname']}")
        for table in metadata.sorted_tables:
            flags = [isinstance(column.type, Boolean) for column in table.c]
            names = [column.name for column in table.c]
            quoted = ", ".join(f'"{name}"' for name in names)
            rows = source.execute(f"select {quoted} from {table.name}")
            made = (
                tuple(
                    bool(value) if flag and value is not None else value for flag, value in zip(flags, row, strict=True)
                )
                for row in rows
            )
            await target.copy_records_to_table(table.name, records=made, columns=names)
            for column in table.c:
                if table.autoincrement_column is column:
                    counter = f"pg_get_serial_sequence('{table.name}', '{column.name}')"
                    await target.execute(f"SELECT setval({counter}, (SELECT max({column.name}) FROM {table.name}) + 1)")
        for index in indices:
            await target.execute(index["indexdef"])
        await target.execute("VACUUM ANALYZE")
        await target.execute("ALTER SYSTEM RESET ALL")
        await target.execute("SELECT pg_reload_conf()")
        for setting in () if explain is None else _explaining(explain):
            await target.execute(f"ALTER DATABASE {name} SET {setting}")
    finally:
        await target.close()
        source.close()
    moved_to.write_text(url)
    return url


async def figures(
    jobs: int, repeats: int, folder: Path, postgres: Postgres | None = None, explain: float | None = None
) -> dict[str, dict[str, float]]:
    """Of a coordinator with so many jobs; a folder that is filled already is taken as it is."""
    data = folder / str(jobs)
    if not (data / "coordinator.db").exists():
        data.mkdir(parents=True, exist_ok=True)
        await filled(data / "coordinator.db", jobs, HOMES, _shown, indexed=postgres is None)
    database = "" if postgres is None else await moved(data / "coordinator.db", postgres, explain)
    async with served(data, database) as url, aiohttp.ClientSession() as http:
        return await measured(http, url, repeats)


def shown(many: dict[str, dict[str, float]], few: dict[str, dict[str, float]]) -> Table:
    """For people, the slowest first."""
    table = Table(title="milliseconds, and beside few jobs")
    for name in ("", "status", "median", "p99", "p99 with few", "ratio"):
        table.add_column(name, justify="right" if name else "left")
    for kind, row in sorted(many.items(), key=lambda one: -one[1]["p99_ms"]):
        other = few.get(kind, {}).get("p99_ms")
        ratio = f"{row['p99_ms'] / other:.1f}" if other else ""
        cells = (int(row["status"]), row["median_ms"], row["p99_ms"], other or "", ratio)
        table.add_row(kind, *(str(cell) for cell in cells))
    return table


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--beside", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--postgresql", action="store_true", help="the same rows in PostgreSQL")
    parser.add_argument("--keep", type=Path, help="fill databases in this folder, or take those that are there")
    parser.add_argument("--explain", type=float, metavar="MS", help="keep the plans of statements that take longer")
    options = parser.parse_args()
    folder = options.keep or Path(tempfile.mkdtemp())
    kept = None if options.keep is None else options.keep / "postgresql"
    postgres = Postgres(kept) if options.postgresql else None
    try:
        if postgres is not None:
            postgres.start()
        few = asyncio.run(figures(options.beside, options.repeats, folder, postgres))
        many = asyncio.run(figures(options.jobs, options.repeats, folder, postgres, options.explain))
        if postgres is not None and options.explain is not None:
            shutil.copy(postgres.folder / "log", Path("build/bench/many_jobs.plans"))
    finally:
        if postgres is not None and options.keep is not None:
            postgres.stop()
        elif postgres is not None:
            postgres.remove()
        if options.keep is None:
            shutil.rmtree(folder)
    Console(stderr=True).print(shown(many, few))
    slow = {kind: row for kind, row in many.items() if row["p99_ms"] > GOAL_MS}
    kind = "SQLite" if postgres is None else "PostgreSQL"
    claim = f"with a million ended jobs every list and page takes at most {GOAL_MS:.0f} ms (p99)"
    publish("many_jobs", claim, {"database": kind, "jobs": options.jobs, "slow": slow, "many": many, "few": few})


if __name__ == "__main__":
    main()
