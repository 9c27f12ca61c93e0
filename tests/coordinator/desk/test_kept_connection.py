"""One connection for what follows each other, and statements that go to the driver: counted, not timed."""

import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiosqlite
import msgspec
import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import create_async_engine

from common.clock import SystemClock
from common.untrusted_text import untrusted
from coordinator.errors import ConflictError, StoreAwayError
from coordinator.store import sql
from coordinator.store.ownership import Ownership
from coordinator.store.ports import col
from coordinator.store.records import EventRecord, MachineDay, OutboxRecord
from coordinator.store.sql import SqlStore, SqlTransaction
from protocol.identity import NodeKey
from tests.support.databases import Postgres, needs_postgres

JOB = "job"
NODE = NodeKey(b"n" * 32).address


def line(number: int) -> EventRecord:
    return EventRecord(JOB, float(number), "note", untrusted(f"line {number}"))


async def owned(url: str) -> tuple[SqlStore, Ownership]:
    """As the coordinator at work has it."""
    ownership = await Ownership.open(url, SystemClock(), "key", "files")
    assert await ownership.take()
    return await SqlStore.open(url, ownership), ownership


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=needs_postgres)])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlStore]:
    """Each kind, empty."""
    if request.param == "sqlite":
        made = await SqlStore.open(f"sqlite+aiosqlite:///{tmp_path / 'test.db'}")
        yield made
        await made.close()
        return
    made, ownership = await owned(request.getfixturevalue("postgres").migrated_url())
    yield made
    await made.close()
    await ownership.close()


@pytest.fixture
def taken(store: SqlStore) -> Counter[str]:
    """How often a connection was taken out of the pool, and given back."""
    found: Counter[str] = Counter()
    for what in ("checkout", "checkin"):
        event.listen(store._engine.sync_engine.pool, what, lambda *_given, what=what: found.update((what,)))
    return found


async def test_transactions_that_follow_each_other_have_one_connection(store: SqlStore, taken: Counter[str]) -> None:
    for number in range(20):
        async with store.transaction() as tx:
            await tx.insert(line(number))
    assert taken == {"checkout": 1}
    async with store.transaction() as tx:
        assert len(await tx.find(EventRecord, col(EventRecord.job).equals(JOB))) == 20


async def test_a_body_that_raises_has_its_connection_given_back_which_undoes_it(
    store: SqlStore, taken: Counter[str]
) -> None:
    async def fail() -> None:
        async with store.transaction() as tx:
            await tx.insert(line(1))
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        await fail()
    assert taken == {"checkout": 1, "checkin": 1}
    async with store.transaction() as tx:
        assert await tx.find(EventRecord, col(EventRecord.job).equals(JOB)) == []


async def test_nothing_that_a_report_makes_is_said_through_sqlalchemy(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_given: object) -> None:
        raise AssertionError("a statement took the long way")

    monkeypatch.setattr(SqlTransaction, "_execute", refused)
    async with store.transaction() as tx:
        row = await tx.insert(OutboxRecord("key", JOB, "settle", {"payee": 1}, 1.0))
        assert row == await tx.get(OutboxRecord, row.id)
        await tx.insert_all([line(number) for number in range(3)])
        await tx.insert_all([line(3)])
        day = await tx.insert(MachineDay(NODE, 1))
        await tx.update(msgspec.structs.replace(day, earned=7), day)
        summed = await tx.sums(
            MachineDay, col(MachineDay.earned), (col(MachineDay.node),), col(MachineDay.day).equals(1)
        )
        assert summed == {(NODE,): (1, 7)}
        assert [found.time for found in await tx.find(EventRecord, col(EventRecord.job).equals(JOB))] == [0, 1, 2, 3]
        numbers = [found.id for found in await tx.find(EventRecord, col(EventRecord.job).equals(JOB))]
    assert len(set(numbers)) == 4


async def test_a_key_that_is_taken_is_a_conflict_alone_and_among_several(store: SqlStore) -> None:
    async with store.transaction() as tx:
        await tx.insert(MachineDay(NODE, 1))

    async def keep(*several: MachineDay) -> None:
        async with store.transaction() as tx:
            await tx.insert_all(several)

    for several in ((MachineDay(NODE, 1),), (MachineDay(NODE, 2), MachineDay(NODE, 1))):
        with pytest.raises(ConflictError, match="exists already"):
            await keep(*several)
    async with store.transaction() as tx:
        assert [day.day for day in await tx.find(MachineDay, col(MachineDay.node).equals(NODE))] == [1]


async def test_a_store_that_is_closed_meanwhile_keeps_no_connection(store: SqlStore, taken: Counter[str]) -> None:
    async with store.transaction() as tx:
        await tx.insert(line(1))
        await store.close()
    assert taken == {"checkout": 1, "checkin": 1}


async def test_a_file_that_another_process_holds_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "BUSY_MS", 20)
    begun: list[str] = []
    as_it_is = aiosqlite.Connection.execute_fetchall

    async def counted(self: aiosqlite.Connection, statement: str, *given: Any) -> Any:
        begun.append(statement)
        return await as_it_is(self, statement, *given)

    store = await SqlStore.open(f"sqlite+aiosqlite:///{tmp_path / 'test.db'}")
    async with store.transaction() as tx:
        await tx.insert(line(1))
    holder = sqlite3.connect(tmp_path / "test.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr(aiosqlite.Connection, "execute_fetchall", counted)
    with pytest.raises(StoreAwayError) as caught:
        async with store.transaction():
            pass
    assert "locked" in str(caught.value.cause)
    assert begun == ["BEGIN IMMEDIATE"], "it would be held on another connection, too"
    holder.close()
    async with store.transaction() as tx:
        assert len(await tx.find(EventRecord, col(EventRecord.job).equals(JOB))) == 1
    await store.close()


@needs_postgres
async def test_a_connection_that_died_while_it_rested_is_replaced_unseen(postgres: Postgres) -> None:
    url = postgres.migrated_url()
    store, ownership = await owned(url)
    killer = create_async_engine(url)
    try:
        for number in range(3):
            async with store.transaction() as tx:
                await tx.insert(line(number))
            async with killer.begin() as connection:
                end = text(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = :name"
                )
                assert (await connection.execute(end, {"name": ownership.name})).rowcount == 1
        async with store.transaction() as tx:
            assert len(await tx.find(EventRecord, col(EventRecord.job).equals(JOB))) == 3
    finally:
        await killer.dispose()
        await store.close()
        await ownership.close()


async def test_single_rows_of_sqlite_are_read_and_kept_without_a_visit_to_its_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    visits: list[str] = []
    as_it_is = aiosqlite.Connection._execute

    async def counted(self: aiosqlite.Connection, what: Any, *given: Any, **named: Any) -> Any:
        visits.append(what.__name__)
        return await as_it_is(self, what, *given, **named)

    monkeypatch.setattr(aiosqlite.Connection, "_execute", counted)
    store = await SqlStore.open(f"sqlite+aiosqlite:///{tmp_path / 'test.db'}")
    async with store.transaction() as tx:
        day = await tx.insert(MachineDay(NODE, 1))
    visits.clear()
    async with store.transaction() as tx:
        await tx.update(msgspec.structs.replace(day, earned=7), day)
        assert (await tx.get(MachineDay, NODE, 1)).earned == 7
        await tx.insert_all([line(number) for number in range(3)])
        row = await tx.insert(OutboxRecord("key", JOB, "settle", {"payee": 1}, 1.0))
        assert row.id == 1
    assert visits == ["_execute_fetchall", "commit"], "it began and ended there"
    async with store.transaction() as tx:
        assert len(await tx.find(EventRecord, col(EventRecord.job).equals(JOB))) == 3
    assert len(visits) == 5, "a search may be long"
    await store.close()
