"""A backup is made while a coordinator writes, is whole or not there, and comes back as it was."""

import asyncio
import os
import re
import sqlite3
import time
from pathlib import Path

import pytest

from common.untrusted_text import untrusted
from coordinator import restoring
from coordinator.admin import backup
from coordinator.services.core.backup_age import backup_age
from coordinator.store.ports import col
from coordinator.store.records import EventRecord
from coordinator.store.sql import SqlStore
from protocol.identity import NodeKey
from tests.support.databases import Postgres, needs_postgres


def data_of(folder: Path) -> Path:
    """A coordinator's keys and files, as it leaves them."""
    data = folder / "data"
    (data / "artifacts" / "ab").mkdir(parents=True)
    NodeKey.load_or_generate(data / "coordinator.key")
    NodeKey.load_or_generate(data / "test-wallet.key")
    (data / "artifacts" / "ab" / ("ab" * 32)).write_bytes(b"a file")
    return data


async def write(store: SqlStore, first: int, count: int) -> None:
    for number in range(first, first + count):
        async with store.transaction() as tx:
            await tx.insert(EventRecord("job", float(number), "note", untrusted(f"line {number}")))


async def lines(url: str) -> list[str]:
    store = await SqlStore.open(url)
    try:
        async with store.transaction() as tx:
            return [str(event.text) for event in await tx.find(EventRecord, col(EventRecord.job).equals("job"))]
    finally:
        await store.close()


def sqlite(data: Path) -> str:
    return f"sqlite+aiosqlite:///{data / 'coordinator.db'}"


async def test_it_is_made_while_the_coordinator_writes_and_has_all_that_was_stored_before(tmp_path: Path) -> None:
    data, folder = data_of(tmp_path), tmp_path / "backup"
    store = await SqlStore.open(sqlite(data))
    await write(store, 0, 20)
    writing = asyncio.create_task(write(store, 20, 60))
    status = await asyncio.to_thread(backup.main, ["backup", str(folder), "--data", str(data)])
    await writing
    await store.close()
    assert status == 0
    age = backup_age(data, time.time())
    assert age is not None
    assert 0 <= age < 600
    there = tmp_path / "there"
    assert await asyncio.to_thread(backup.main, ["restore", str(folder), "--data", str(there)]) == 0
    assert backup_age(there, time.time()) is None, "of what was restored there is none yet"
    found = await lines(sqlite(there))
    assert found[:20] == [f"line {number}" for number in range(20)]
    assert found == [f"line {number}" for number in range(len(found))], "as it was at one moment"
    assert (there / "artifacts" / "ab" / ("ab" * 32)).read_bytes() == b"a file"
    for key in ("coordinator.key", "test-wallet.key"):
        assert (there / key).read_bytes() == (data / key).read_bytes()
        assert (there / key).stat().st_mode & 0o077 == 0
        assert (folder / key).stat().st_mode & 0o077 == 0
    assert restoring.is_restored(there)
    assert not restoring.is_restored(data)


async def test_a_second_one_copies_only_new_files_and_takes_the_database_as_it_is_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, folder = data_of(tmp_path), tmp_path / "backup"
    store = await SqlStore.open(sqlite(data))
    await write(store, 0, 3)
    words = ["backup", str(folder), "--data", str(data)]
    assert await asyncio.to_thread(backup.main, words) == 0
    (data / "artifacts" / "ab" / ("cd" * 32)).write_bytes(b"another")
    await write(store, 3, 3)
    assert await asyncio.to_thread(backup.main, words) == 0
    await store.close()
    assert "1 new files" in capsys.readouterr().out.splitlines()[-1]
    assert await asyncio.to_thread(backup.main, ["restore", str(folder), "--data", str(tmp_path / "there")]) == 0
    assert len(await lines(sqlite(tmp_path / "there"))) == 6


async def test_what_cannot_be_done_is_said_and_nothing_is_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, folder, there = data_of(tmp_path), tmp_path / "backup", tmp_path / "there"

    def refused(*words: str) -> str:
        assert backup.main(words) == 1
        return capsys.readouterr().err

    assert "no coordinator has its data" in refused("backup", str(folder), "--data", str(there))
    assert "name it with --database-url" in refused("backup", str(folder), "--data", str(data))
    assert "holds no whole backup" in refused("restore", str(folder), "--data", str(there))
    store = await SqlStore.open(sqlite(data))
    await write(store, 0, 3)
    await store.close()
    assert backup.main(["backup", str(folder), "--data", str(data)]) == 0
    assert "has a coordinator's data: move it away" in refused("restore", str(folder), "--data", str(data))
    url = "postgresql+asyncpg://me@127.0.0.1:9/none"
    assert "is one of SQLite" in refused("restore", str(folder), "--data", str(there), "--database-url", url)
    with (folder / "coordinator.db").open("r+b") as file:
        file.seek(5_000)
        file.write(b"x")
    assert "is not what was backed up" in refused("restore", str(folder), "--data", str(there))
    assert not there.exists()
    assert "no coordinator has its data" in refused("restore", "--data", str(there))
    assert backup.main(["restore", "--data", str(data)]) == 0
    assert restoring.is_restored(data), "its database was brought back by other means"


def test_a_damaged_database_is_told_and_the_backup_before_it_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, folder = data_of(tmp_path), tmp_path / "backup"
    with sqlite3.connect(data / "coordinator.db") as made:
        made.execute("CREATE TABLE t (x)")
        made.executemany("INSERT INTO t VALUES (?)", [(os.urandom(500),) for _ in range(200)])
    made.close()
    assert backup.main(["backup", str(folder), "--data", str(data)]) == 0
    before = (folder / "coordinator.db").read_bytes()
    with (data / "coordinator.db").open("r+b") as file:
        file.seek(4096 * 3)
        file.write(os.urandom(4096 * 4))
    assert backup.main(["backup", str(folder), "--data", str(data)]) == 1
    assert "damaged" in capsys.readouterr().err or "malformed" in capsys.readouterr().err
    assert (folder / "coordinator.db").read_bytes() == before


@needs_postgres
async def test_postgresql_comes_back_through_its_own_programs(
    tmp_path: Path, postgres: Postgres, capsys: pytest.CaptureFixture[str]
) -> None:
    data, folder, there = data_of(tmp_path), tmp_path / "backup", tmp_path / "there"
    first, second = postgres.url(), postgres.url()
    store = await SqlStore.open(first)
    await write(store, 0, 5)
    words = ["backup", str(folder), "--data", str(data), "--database-url", first]
    assert await asyncio.to_thread(backup.main, words) == 0
    await write(store, 5, 5)
    await store.close()
    assert backup.main(["restore", str(folder), "--data", str(there)]) == 1, "it is not said where"
    capsys.readouterr()
    words = ["restore", str(folder), "--data", str(there), "--database-url"]
    assert await asyncio.to_thread(backup.main, [*words, first]) == 1
    assert re.fullmatch(
        r"cottage restore: the database \w+ has tables already: make an empty one, and name that\n",
        capsys.readouterr().err,
    )
    assert await asyncio.to_thread(backup.main, [*words, second.replace("?host=", "?port=1&host=")]) == 1
    assert "cottage restore: pg_restore failed: connection to server" in capsys.readouterr().err
    assert await asyncio.to_thread(backup.main, [*words, second]) == 0
    assert len(await lines(second)) == 5
