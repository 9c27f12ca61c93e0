"""A store that fails for a while, and one that cannot be used at all: nobody ends, nothing is lost, and somebody says why."""

import asyncio
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest
from yarl import URL

from common.clock import SystemClock
from coordinator.config import Config
from coordinator.domain.lease import Lease
from coordinator.errors import ConflictError, ReplacedError, StoreAwayError, StoreError
from coordinator.metrics import Metrics
from coordinator.services.core import store_retry
from coordinator.services.core.store_retry import Patience
from coordinator.store import faults, sql
from coordinator.store.memory import MemoryStore
from coordinator.store.ports import Store, Transaction, col
from coordinator.store.sql import SqlStore
from tests.coordinator.bench import Bench
from tests.coordinator.conftest import BUSY_S, House, nodes, opened, until
from tests.coordinator.fakes import FakeChain
from tests.coordinator.jobs.test_lifecycle import JOB
from tests.coordinator.test_faults import ended, reached, start
from tests.coordinator.test_serve import ledger_url as ledger_url
from tests.coordinator.test_serve import start as start_process
from tests.support.databases import Postgres, needs_postgres
from tests.support.seeds import seeds


async def get(house: House, path: str) -> tuple[int, str | None, str]:
    """Status, Retry-After and text of an answer."""
    async with aiohttp.ClientSession() as http, http.get(URL(house.url).origin().with_path(path)) as answer:
        return answer.status, answer.headers.get("Retry-After"), await answer.text()


@pytest.mark.long
@needs_postgres
@pytest.mark.slow
async def test_postgresql_is_killed_under_a_running_job_and_comes_back(
    config: Config, postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(config, database_url=postgres.migrated_url())
    async with opened(config, FakeChain(), rest=True) as house, nodes(house, 5) as made:
        job = await start(house, rounds=6)
        await reached(house, job, 2)
        caplog.clear()
        postgres.kill()
        try:
            for path in ("/readyz", "/api/v1/network", f"/api/v1/jobs/{job}", f"/jobs/{job}", "/network"):
                status, later, text = await get(house, path)
                assert (status, later) == (503, "2"), (path, text)
                assert "does not answer now" in text
                assert "asyncpg" not in text, "what the driver says is for the operator"
            assert (await get(house, "/healthz"))[0] == 200
            await asyncio.sleep(2 * config.lease_seconds)  # Longer than a lease: nobody may lose one for that.
            assert not any(node.closed for node in made), "connections stay"
        finally:
            postgres.start()
        view = await ended(house, job)
        assert (view.state, view.rounds_done) == ("settled", 6)
        account = house.chain.escrows[job]
        assert 0 < view.paid == sum(account.paid.values()) <= view.quote.price
        assert view.paid + view.refunded == view.escrow == account.deposited
        async with house.parts.context.store.transaction() as tx:
            assert not [
                lease.end for lease in await tx.find(Lease, col(Lease.job).equals(job)) if lease.end == "expired"
            ]
        assert house.peers.violations == []
        assert (await get(house, "/readyz"))[0] == 200
        assert house.parts.context.metrics.value("store_away_total") > 0
    told = [record.getMessage() for record in caplog.records if "stored" in record.getMessage()]
    assert len(told) == 2, told
    assert "can be reached again" in told[1]
    assert not [record for record in caplog.records if record.exc_info], "an outage is no traceback"


@needs_postgres
@pytest.mark.slow
async def test_a_server_that_stands_still_holds_nobody(
    config: Config, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(config, database_url=postgres.migrated_url())
    async with opened(config, FakeChain(), rest=True) as house, nodes(house, 4) as made:
        job = await start(house, rounds=6)
        await reached(house, job, 1)
        monkeypatch.setattr(faults, "ANSWER_S", 1.0)
        postgres.freeze()
        try:
            async with asyncio.timeout(60):
                assert (await get(house, "/api/v1/network"))[:2] == (503, "2")
            assert not any(node.closed for node in made)
        finally:
            postgres.thaw()
            monkeypatch.undo()
        assert (await ended(house, job)).state == "settled"


class Flaky:
    """A store that is away now and then: before a transaction, in it, or when nobody can tell whether it was committed."""

    def __init__(self, inner: Store, seed: int) -> None:
        self.inner = inner
        self.failures = 0
        self.share = 0.0
        self.where = ""  # Of the next ones, whatever the share.
        self._random = Random(seed)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        drawn = self._random.choice(("before", "within", "after")) if self._random.random() < self.share else ""
        where = self.where or drawn
        self.failures += where != ""
        if where == "before":
            raise StoreAwayError("no connection")
        async with self.inner.transaction() as tx:
            yield tx
            if where == "within":
                raise StoreAwayError("cut")
        if where == "after":
            raise StoreAwayError("cut while it committed")

    async def close(self) -> None:
        await self.inner.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(1, of=3))
async def test_a_job_survives_a_store_that_is_away_every_tenth_time(
    config: Config, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_retry, "MAX_PAUSE", 0.1)
    made: list[Flaky] = []

    def over(store: Store) -> Store:
        made.append(Flaky(store, seed))
        return made[0]

    async with opened(config, FakeChain(), over=over) as house, nodes(house, 5) as here:
        job = await start(house, rounds=8)
        made[0].share = 0.1
        async with asyncio.timeout(BUSY_S):
            while house.chain.escrows[job].refunded == 0:
                await asyncio.sleep(0.1)
        made[0].share = 0.0
        view = await ended(house, job)
        account = house.chain.escrows[job]
        assert (view.state, view.rounds_done) == ("settled", 8)
        assert view.paid == sum(account.paid.values()) <= view.quote.price
        assert view.paid + view.refunded == view.escrow
        assert made[0].failures > 20
        assert not any(node.closed for node in here)
        assert house.peers.violations == []
        async with house.parts.context.store.transaction() as tx:
            live = await tx.find(Lease, col(Lease.state).in_(("starting", "ready")))
        assert live == []
        await until(lambda: house.parts.leases.busy() == frozenset())


async def test_leases_that_ended_in_a_commit_of_doubt_end_with_the_next_work_on_their_job() -> None:
    store = Flaky(MemoryStore(), seed=0)
    bench = Bench(store=store)
    job = await bench.fund(await bench.job())
    await bench.parts.upkeep.tick()
    async with bench.parts.desk.open(job.id) as work:
        ended = next(iter(work.leases.values()))
    store.where = "after"
    with pytest.raises(StoreAwayError):
        async with bench.parts.desk.open(job.id) as work:
            work.end(ended.id, "stopped", "it is over")
    store.where = ""
    assert ended in bench.parts.leases.live(), "nobody could be told"
    async with bench.parts.desk.open(job.id) as work:
        assert ended.id not in work.leases
    assert ended.node not in bench.parts.leases.busy()


# --- the rule -----------------------------------------------------------------------------------------------------------


def failing(*errors: BaseException) -> tuple[Callable[[], Awaitable[None]], list[int]]:
    """A loop that raises these, one at each beginning, and then runs for ever."""
    left, begun = list(errors), [0]

    async def loop() -> None:
        begun[0] += 1
        if left:
            raise left.pop(0)
        await asyncio.Event().wait()

    return loop, begun


AWAY = StoreAwayError("gone")


@pytest.mark.parametrize(
    "error",
    [AWAY, OSError(28, "No space left on device"), ExceptionGroup("lanes", [AWAY, ExceptionGroup("inner", [AWAY])])],
    ids=["the store", "the disk", "tasks of a loop"],
)
async def test_a_loop_begins_anew_when_the_store_is_back(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    loop, begun = failing(error, error)
    back: list[int] = []

    async def recovered() -> None:
        back.append(begun[0])

    task = asyncio.create_task(Patience(SystemClock(), metrics).forever("loop", loop, recovered))
    await until(lambda: begun[0] == 3)
    assert not task.done()
    assert back == [1, 2], "first what an earlier process would have left"
    assert metrics.value("store_away_total") == 2
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_who_was_replaced_says_so_calmly_and_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    gone = ReplacedError("another coordinator has taken over")
    loop, begun = failing(gone, ExceptionGroup("lanes", [gone]))
    task = asyncio.create_task(Patience(SystemClock(), Metrics()).forever("withdrawals", loop))
    await until(lambda: begun[0] == 3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    said = [(record.levelname, record.getMessage()) for record in caplog.records if record.name.endswith("store_retry")]
    words = "another coordinator has taken over, as withdrawals has found: this one changes nothing any more"
    assert said == [("INFO", words)]


@pytest.mark.parametrize(
    "error",
    [RuntimeError("a mistake"), ExceptionGroup("lanes", [AWAY, RuntimeError("a mistake")]), ConflictError("stale")],
)
async def test_any_other_fault_ends_a_loop(error: Exception) -> None:
    loop, begun = failing(error)
    with pytest.raises(type(error)):
        await Patience(SystemClock(), Metrics()).forever("loop", loop)
    assert begun == [1]


async def test_what_nobody_waits_for_any_more_is_given_up() -> None:
    loop, begun = failing(AWAY, AWAY, AWAY)
    with pytest.raises(StoreAwayError):
        await Patience(SystemClock(), Metrics()).once("report", loop, lambda: begun[0] < 2)
    assert begun == [2]


async def test_every_loop_of_a_coordinator_waits_for_its_store(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_retry, "MAX_PAUSE", 0.1)
    made: list[Flaky] = []

    def over(store: Store) -> Store:
        made.append(Flaky(store, 1))
        return made[0]

    async with opened(config, FakeChain(), over=over) as house, nodes(house, 4):
        job = await start(house)
        await reached(house, job, 1)
        made[0].share = 1.0
        await until(lambda: made[0].failures > 50)
        assert [task.get_name() for task in house.loops if task.done()] == []
        made[0].share = 0.0
        assert (await ended(house, job)).state == "settled"


# --- at the start -------------------------------------------------------------------------------------------------------


def fresh(folder: Path) -> Path:
    """A database with a job in it."""

    async def made() -> None:
        store = await SqlStore.open(f"sqlite+aiosqlite:///{folder / 'coordinator.db'}")
        async with store.transaction() as tx:
            await tx.insert(JOB)
        await store.close()

    asyncio.run(made())
    return folder / "coordinator.db"


@contextmanager
def truncated(folder: Path) -> Iterator[str]:
    file = fresh(folder)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 3])
    yield str(file)


@contextmanager
def no_database(folder: Path) -> Iterator[str]:
    (folder / "coordinator.db").write_bytes(b"once upon a time " * 1000)
    yield str(folder / "coordinator.db")


@contextmanager
def locked(folder: Path) -> Iterator[str]:
    file = fresh(folder)
    holder = sqlite3.connect(file)
    holder.execute("BEGIN EXCLUSIVE")
    yield str(file)
    holder.close()


@contextmanager
def newer(folder: Path) -> Iterator[str]:
    file = fresh(folder)
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'r9999'")
    yield str(file)


@contextmanager
def read_only(folder: Path) -> Iterator[str]:
    file = folder / "coordinator.db"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE something (x)")
    yield f"file:{file}?mode=ro&uri=true"


@contextmanager
def a_folder(folder: Path) -> Iterator[str]:
    (folder / "coordinator.db").mkdir()
    yield str(folder / "coordinator.db")


@contextmanager
def full_disk(folder: Path) -> Iterator[str]:
    small = folder / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield str(small / "coordinator.db")
    finally:
        subprocess.run(["umount", small], check=True)


BROKEN = {
    truncated: "is damaged: restore it from a backup",
    no_database: "is no SQLite database: restore it from a backup",
    locked: "is held by another process: end that one",
    newer: "was written by a newer version of Cottage",
    read_only: "cannot be written: let the user",
    a_folder: "cannot be opened: its folder must exist",
    full_disk: "is on a disk that is full: make room",
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_file_that_cannot_be_used_is_told_in_one_sentence(
    broken: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "BUSY_MS", 200)
    with broken(tmp_path) as name:
        with pytest.raises(StoreError) as caught:
            asyncio.run(SqlStore.open(f"sqlite+aiosqlite:///{name}"))
    assert BROKEN[broken] in caught.value.detail
    assert "coordinator.db" in caught.value.detail
    assert "\n" not in caught.value.detail


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql+asyncpg://me:hunter2@127.0.0.1:9/cottage", "Start it, or correct --database-url"),
        ("postgresql+psycopg3://me:hunter2@127.0.0.1/cottage", "names no database"),
        ("postgresql+psycopg2://me:hunter2@127.0.0.1/cottage", "write postgresql+asyncpg://"),
        ("sqlite:///file.db", "no driver that does not block"),
        ("the attic", "names no database"),
    ],
)
def test_an_address_of_no_database_is_told_in_one_sentence(url: str, said: str) -> None:
    with pytest.raises(StoreError) as caught:
        asyncio.run(SqlStore.open(url))
    assert said in caught.value.detail
    assert "hunter2" not in caught.value.detail
    assert "\n" not in caught.value.detail


@needs_postgres
def test_a_database_that_postgresql_does_not_have_is_told_in_one_sentence(postgres: Postgres) -> None:
    with pytest.raises(StoreError, match='database "nowhere" does not exist'):
        asyncio.run(SqlStore.open(f"postgresql+asyncpg://cottage@/nowhere?host={postgres.folder}"))


async def test_serve_says_it_and_ends(tmp_path: Path, ledger_url: str) -> None:
    (tmp_path / "coordinator.db").write_bytes(b"once upon a time " * 1000)
    process = await start_process("--data", str(tmp_path), "--open", "--port", "0", "--ledger-url", ledger_url)
    _, complaint = await asyncio.wait_for(process.communicate(), BUSY_S)
    lines = [line for line in complaint.decode().splitlines() if " INFO " not in line]
    assert process.returncode == 5
    assert lines == [
        f"cottage serve: the database {tmp_path / 'coordinator.db'} is no SQLite database: "
        "restore it from a backup, or name another folder with --data"
    ]
