"""One suite over every store, and the migrations of the SQL one."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import msgspec
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from mypy import api as mypy_api
from sqlalchemy import Connection, create_engine, inspect
from sqlalchemy.exc import DBAPIError

from common.untrusted_text import untrusted
from coordinator.domain.job import Job, JobState
from coordinator.domain.lease import Lease
from coordinator.domain.rounds.round import Round
from coordinator.domain.rounds.run import Holder, Run, begin
from coordinator.errors import ConflictError, NotFoundError
from coordinator.store.kept_sums import metadata
from coordinator.store.kinds import KINDS
from coordinator.store.memory import MemoryStore
from coordinator.store.ports import Store, col
from coordinator.store.records import EventRecord, MetricRecord, NodeRecord, OutboxRecord, RunRecord
from coordinator.store.sql import MIGRATIONS, SqlStore, migrate
from protocol.task import Layers, Traffic
from tests.coordinator.fakes import WALLET, profile, spec
from tests.coordinator.jobs.test_lifecycle import JOB
from tests.ledger.world import World
from tests.support.databases import migrate_a_copy, needs_postgres
from tests.support.wait import HANGS_S


@pytest.fixture(params=["memory", "sqlite in memory", "sqlite file", pytest.param("postgresql", marks=needs_postgres)])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """Every kind of store, empty."""
    made: Store
    match request.param:
        case "memory":
            made = MemoryStore()
        case "sqlite in memory":
            made = await SqlStore.open("sqlite+aiosqlite:///:memory:")
        case "postgresql":
            made = await SqlStore.open(request.getfixturevalue("postgres").migrated_url())
        case _:
            made = await SqlStore.open(f"sqlite+aiosqlite:///{tmp_path / 'test.db'}")
    yield made
    await made.close()


def outbox(key: str) -> OutboxRecord:
    return OutboxRecord(key, "j", "settle", {"payee": 2**62}, 1.0, amount=2**62, wire=b"\x00\xff")


def lease(number: int, **fields: object) -> Lease:
    made = Lease(f"{number:032x}", "j", WALLET, WALLET, number, 0, None, float(number), traffic=Traffic(1, 2, 3, 4, 5))
    return msgspec.structs.replace(made, **fields)


async def test_what_was_inserted_is_read_back_whole(store: Store) -> None:
    run = begin(Run((Layers(0, 1),), 1, 10, 2, (0,)), [Holder("lease", WALLET, 0, 0)], 5.0)
    records = (JOB, RunRecord("j", run), lease(1), NodeRecord(WALLET, WALLET, profile("n"), 1.0, 2.0, banned=True))
    async with store.transaction() as tx:
        for record in records:
            await tx.insert(record)
    async with store.transaction() as tx:
        assert await tx.get(Job, JOB.id) == JOB
        assert await tx.get(RunRecord, "j") == records[1]
        assert await tx.get(Lease, lease(1).id) == lease(1)
        assert (await tx.get(NodeRecord, WALLET)).banned is True
        assert isinstance((await tx.get(RunRecord, "j")).run.round, Round)
        assert (await tx.get(Job, JOB.id)).state is JobState.CREATED
        assert (await tx.get(Job, JOB.id)).spec == spec()


async def test_a_body_that_raises_keeps_nothing(store: Store) -> None:
    async def half_done() -> None:
        async with store.transaction() as tx:
            await tx.insert(JOB)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await half_done()
    async with store.transaction() as tx:
        assert await tx.find(Job) == []


async def test_a_transaction_sees_its_own_writes(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.insert(JOB)
        changed = await tx.update(msgspec.structs.replace(JOB, paid=7))
        assert await tx.get(Job, JOB.id) == changed
        assert await tx.find(Job, col(Job.paid).equals(7)) == [changed]


@pytest.mark.one_in(2)
async def test_who_is_cancelled_within_a_statement_leaves_the_store_to_others(store: Store) -> None:
    """Of a statement of SQLite's that is broken off the file stays locked: everybody waited for ever."""

    async def work(number: int) -> None:
        async with store.transaction() as tx:
            await tx.insert(event(number))
            for _ in range(5):
                await tx.find(EventRecord, col(EventRecord.job).equals(JOB.id))

    chance = Random(1)
    async with store.transaction() as tx:
        for number in range(300):
            await tx.insert(event(number))
    cancelled = 0
    for number in range(80):
        task = asyncio.create_task(work(number))
        await asyncio.sleep(chance.random() * 0.02)
        cancelled += task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        async with asyncio.timeout(HANGS_S):
            await work(1_000 + number)
    assert cancelled > 20 or isinstance(store, MemoryStore), "in memory nothing takes time"
    async with store.transaction() as tx:
        assert len(await tx.find(EventRecord, col(EventRecord.job).equals(JOB.id))) >= 380


def event(number: int) -> EventRecord:
    return EventRecord(JOB.id, float(number), "note", untrusted(f"line {number}"))


async def test_a_missing_record_is_an_error(store: Store) -> None:
    async with store.transaction() as tx:
        with pytest.raises(NotFoundError):
            await tx.get(Job, "nowhere")


async def test_a_record_is_inserted_once(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.insert(JOB)
    with pytest.raises(ConflictError):
        async with store.transaction() as tx:
            await tx.insert(JOB)


async def test_a_stale_version_changes_nothing(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.insert(JOB)
        await tx.update(msgspec.structs.replace(JOB, paid=1))
    with pytest.raises(ConflictError, match="has changed since version 0"):
        async with store.transaction() as tx:
            await tx.update(msgspec.structs.replace(JOB, paid=2))
    async with store.transaction() as tx:
        assert ((await tx.get(Job, JOB.id)).paid, (await tx.get(Job, JOB.id)).version) == (1, 1)


async def test_many_are_kept_and_changed_at_once_all_or_none(store: Store) -> None:
    leases = [lease(number) for number in range(1, 6)]
    async with store.transaction() as tx:
        await tx.insert_all(leases)
        await tx.insert_all([])
        assert await tx.update_all([]) == []
        changed = await tx.update_all([msgspec.structs.replace(one, seq=7) for one in leases])
        assert [(one.seq, one.version) for one in changed] == [(7, 1)] * 5
    async with store.transaction() as tx:
        assert await tx.find(Lease, col(Lease.seq).equals(7)) == changed
    for again in (
        tx_insert := [changed[0], lease(9)],
        [lease(9), msgspec.structs.replace(changed[1], seq=9, version=0)],
    ):
        with pytest.raises((ConflictError, NotFoundError)):
            async with store.transaction() as tx:
                await (tx.insert_all(again) if again is tx_insert else tx.update_all(again))
    async with store.transaction() as tx:
        assert await tx.find(Lease) == changed


async def test_records_that_are_changed_at_once_keep_each_its_own_values(store: Store) -> None:
    changes = (
        {"signature": "s" * 88},
        {"amount": 2**62 - 1},
        {"wire": b"\x00\xfe"},
        {"payload": {"odd' \"key,{": 1}},
        {"wire": b""},
    )
    async with store.transaction() as tx:
        before = [await tx.insert(outbox(str(number))) for number in range(3 * len(changes))]
        after = [msgspec.structs.replace(row, **changes[row.id % len(changes)]) for row in before]
        known = await tx.update_all(after, before)
        whole = await tx.update_all([msgspec.structs.replace(row, detail=untrusted(f"{row.key}\n")) for row in known])
    async with store.transaction() as tx:
        assert await tx.find(OutboxRecord) == whole
    assert {row.version for row in whole} == {2}


async def test_what_is_too_long_for_a_column_is_refused_and_not_cut(store: Store) -> None:
    """Also where several are changed at once. SQLite and memory know no lengths: they keep it whole."""
    async with store.transaction() as tx:
        before = [await tx.insert(outbox(key)) for key in ("a", "b")]
    long = [msgspec.structs.replace(row, signature="s" * 600) for row in before]
    with suppress(DBAPIError):
        async with store.transaction() as tx:
            await tx.update_all(long, before)
    async with store.transaction() as tx:
        assert {row.signature for row in await tx.find(OutboxRecord)} in ({""}, {"s" * 600})


async def test_a_record_that_is_not_there_cannot_be_updated(store: Store) -> None:
    with pytest.raises(ConflictError):
        async with store.transaction() as tx:
            await tx.update(JOB)


async def test_numbers_are_given_in_order_and_money_keeps_every_unit(store: Store) -> None:
    async with store.transaction() as tx:
        first, second = await tx.insert(outbox("a")), await tx.insert(outbox("b"))
    assert 0 < first.id < second.id
    async with store.transaction() as tx:
        assert await tx.get(OutboxRecord, second.id) == second
    assert (second.amount, second.payload["payee"], second.wire) == (2**62, 2**62, b"\x00\xff")


async def test_an_outbox_key_is_taken_once(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.insert(outbox("same"))
    with pytest.raises(ConflictError):
        async with store.transaction() as tx:
            await tx.insert(outbox("same"))


async def test_find_filters_orders_and_pages(store: Store) -> None:
    async with store.transaction() as tx:
        for number in (3, 1, 2, 5, 4):
            await tx.insert(
                lease(number, state="ended" if number % 2 else "ready", ended=float(number) if number % 2 else None)
            )
    async with store.transaction() as tx:
        assert [found.fence for found in await tx.find(Lease)] == [1, 2, 3, 4, 5]
        assert [found.fence for found in await tx.find(Lease, newest=True, limit=2)] == [5, 4]
        assert [found.fence for found in await tx.find(Lease, offset=3)] == [4, 5]
        assert [found.fence for found in await tx.find(Lease, offset=1, limit=2)] == [2, 3]
        assert [
            found.fence for found in await tx.find(Lease, col(Lease.state).equals("ended"), col(Lease.granted) > 1.0)
        ] == [3, 5]
        assert [found.fence for found in await tx.find(Lease, col(Lease.state).in_(("ready", "starting")))] == [2, 4]
        assert [found.fence for found in await tx.find(Lease, col(Lease.ended).equals(None))] == [2, 4]
        assert [found.fence for found in await tx.find(Lease, col(Lease.ended) > 2.0)] == [3, 5]
        assert [found.fence for found in await tx.find(Lease, col(Lease.ended) < 2.0)] == [1]
        assert await tx.find(Lease, col(Lease.state).in_(())) == []


async def test_events_and_metrics_of_one_job_do_not_mix_with_anothers(store: Store) -> None:
    async with store.transaction() as tx:
        for job in ("a", "b", "a"):
            await tx.insert(EventRecord(job, 1.0, "kind", "text"))
            await tx.insert(MetricRecord(job, 0, 1, 2, "train", 0.5, 1.0))
    async with store.transaction() as tx:
        assert len(await tx.find(EventRecord, col(EventRecord.job).equals("a"))) == 2
        assert len(await tx.find(MetricRecord, col(MetricRecord.job).equals("b"))) == 1


async def test_a_file_is_there_again_after_a_restart(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'kept.db'}"
    first = await SqlStore.open(url)
    async with first.transaction() as tx:
        await tx.insert(JOB)
    await first.close()
    second = await SqlStore.open(url)
    async with second.transaction() as tx:
        assert await tx.get(Job, JOB.id) == JOB
    await second.close()
    assert sqlite3.connect(tmp_path / "kept.db").execute("PRAGMA journal_mode").fetchone() == ("wal",)


def upgraded(path: Path, by: Callable[[Connection], None] = migrate) -> Connection:
    connection = create_engine(f"sqlite:///{path}").connect()
    by(connection)
    return connection


def schema(connection: Connection) -> set[tuple[str, ...]]:
    rows = connection.exec_driver_sql("SELECT type, name, tbl_name, sql FROM sqlite_master").all()
    return {tuple(map(str, row)) for row in rows}


def test_the_databases_of_tests_are_what_the_migrations_make(tmp_path: Path) -> None:
    with upgraded(tmp_path / "m.db") as whole, upgraded(tmp_path / "c.db", migrate_a_copy) as copy:
        assert schema(copy) == schema(whole)
        migrate(copy)
        assert schema(copy) == schema(whole), "nothing is missing"


def test_the_migrations_make_the_tables_that_the_code_expects(tmp_path: Path) -> None:
    with upgraded(tmp_path / "m.db") as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_the_migrations_can_be_undone(tmp_path: Path) -> None:
    with upgraded(tmp_path / "m.db") as connection:
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
        assert inspect(connection).get_table_names() == ["alembic_version"]


def test_migrating_twice_changes_nothing(tmp_path: Path) -> None:
    with upgraded(tmp_path / "m.db") as connection:
        migrate(connection)
        assert set(metadata.tables) <= set(inspect(connection).get_table_names())


async def test_a_list_goes_on_behind_any_place_forwards_and_backwards(store: Store) -> None:
    async with store.transaction() as tx:
        for number in range(9):
            await tx.insert(lease(number, granted=float(number // 3), fence=number % 2 + 1))
    async with store.transaction() as tx:
        for newest in (False, True):
            whole = await tx.find(Lease, newest=newest)
            for index, record in enumerate(whole):
                place = KINDS[Lease].place_of(record)
                assert await tx.find(Lease, newest=newest, after=place) == whole[index + 1 :]
                assert await tx.find(Lease, newest=newest, after=place, limit=2) == whole[index + 1 : index + 3]


async def test_one_of_any_number_of_values_is_found(store: Store) -> None:
    async with store.transaction() as tx:
        for number in range(40):
            await tx.insert(lease(number))
    names = [f"{number:032x}" for number in range(0, 80, 2)]
    for count in (0, 1, 15, 16, 17, 40):
        asked = col(Lease.id).in_(tuple(names[:count]))
        async with store.transaction() as tx:
            assert [one.id for one in await tx.find(Lease, asked)] == names[: min(count, 20)]
            found = await tx.sums(Lease, col(Lease.fence), (), asked)
            assert sum(number for number, _ in found.values()) == min(count, 20)
    async with store.transaction() as tx:
        assert await tx.forget(Lease, col(Lease.id).in_(tuple(names))) == 20
        assert len(await tx.find(Lease)) == 20


async def test_a_condition_of_another_kind_of_record_is_refused(store: Store) -> None:
    async with store.transaction() as tx:
        with pytest.raises(AssertionError, match=r"EventRecord\.job is no field of OutboxRecord"):
            await tx.find(OutboxRecord, col(EventRecord.job).equals("j"))
        with pytest.raises(AssertionError, match=r"EventRecord\.id is no field of OutboxRecord"):
            await tx.sums(OutboxRecord, col(EventRecord.id), ())


def test_a_type_checker_finds_a_wrong_column_and_a_value_that_does_not_fit(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "from coordinator.store.ports import col\n"
        "from coordinator.store.records import OutboxRecord\n"
        'right = col(OutboxRecord.state).equals("queued")\n'
        'misspelt = col(OutboxRecord.state).equals("qeued")\n'
        "another = col(OutboxRecord.amount) < 'much'\n"
        "missing = col(OutboxRecord.colour)\n"
    )
    out, _, status = mypy_api.run([str(wrong), "--strict", "--cache-dir", ".mypy_cache", "--follow-imports", "silent"])
    lines = {line.split(":")[1] for line in out.splitlines() if ": error:" in line}
    assert (status, lines) == (1, {"4", "5", "6"}), out


# --- whole numbers and times ------------------------------------------------------------------------------------------


async def test_a_whole_number_finds_the_times_on_its_side_whatever_native_code_has_run(store: Store) -> None:
    """After the ledger's virtual machine had run in this thread, SQLite's next comparison of both kinds was wrong."""
    async with store.transaction() as tx:
        for time in (10.5, 11.5):
            await tx.insert(EventRecord("0" * 32, time, "lost", "text"))
    for _ in range(3):
        World()
        async with store.transaction() as tx:
            found = await tx.sums(
                EventRecord,
                col(EventRecord.id),
                (col(EventRecord.kind),),
                col(EventRecord.time) > 9.5,
                col(EventRecord.time) < 11,
                col(EventRecord.kind).in_(("lost", "fault")),
            )
        assert found == {("lost",): (1, 1)}
