"""Statements that stand alone share a connection, which is replaced once it has died; looks at owners share one statement."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy.exc import InternalError
from sqlalchemy.ext.asyncio import AsyncConnection

from coordinator.domain.cells import Cell
from coordinator.errors import StoreAwayError
from coordinator.store.owner_rows import OwnerRows
from coordinator.store.ownership import Ownership
from coordinator.store.statement_line import StatementLine
from tests.support.clock import VirtualClock
from tests.support.databases import Postgres, needs_postgres

pytestmark = needs_postgres

WHO = "SELECT pg_backend_pid()"
SHARED_S = 0.25


@pytest.fixture
async def line(postgres: Postgres) -> AsyncIterator[StatementLine]:
    made = StatementLine(postgres.url())
    yield made
    await made.close()


async def process(line: StatementLine) -> int:
    """The server's, at the other end."""
    ((found,),) = await line.rows(WHO)
    return int(found)


async def test_all_is_said_on_one_connection_and_committed_at_once(line: StatementLine, postgres: Postgres) -> None:
    first = await process(line)
    assert await line.rows("CREATE TABLE said (one text PRIMARY KEY, beats integer)") == []
    await line.rows("INSERT INTO said VALUES (:one, :beats)", one="a", beats=1)
    assert await line.changed("UPDATE said SET beats = beats + 1 WHERE one = :one", one="a") == 1
    assert await line.changed("UPDATE said SET beats = beats + 1 WHERE one = :one", one="b") == 0
    assert {await process(line) for _ in range(3)} == {first}
    other = StatementLine(str(line._engine.url))
    assert await other.rows("SELECT one, beats FROM said") == [("a", 2)]
    assert await process(other) != first
    await other.close()


async def test_one_that_has_died_while_it_rested_is_replaced(line: StatementLine) -> None:
    first = await process(line)
    other = StatementLine(str(line._engine.url))
    await other.rows("SELECT pg_terminate_backend(:one)", one=first)
    await other.close()
    assert await process(line) != first


async def test_a_driver_that_loses_its_way_as_the_server_dies_says_that_it_is_away(
    line: StatementLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it connects, which no statement is told of: it is a fault that passes, and no fault of the program."""
    await line.close()

    async def lost(_connection: AsyncConnection) -> None:
        raise InternalError("SELECT 1", None, Exception("cannot switch to state 12; another operation is in progress"))

    with monkeypatch.context() as while_it_dies:
        while_it_dies.setattr(AsyncConnection, "start", lost)
        with pytest.raises(StoreAwayError):
            await process(line)
    assert await process(line) > 0


async def test_who_is_cancelled_leaves_the_way_free_for_the_next(line: StatementLine) -> None:
    await process(line)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await line.rows("SELECT pg_sleep(600)")
    assert await process(line) > 0


async def test_a_database_that_is_away_is_asked_again(line: StatementLine, postgres: Postgres) -> None:
    await process(line)
    postgres.kill()
    with pytest.raises(StoreAwayError):
        await process(line)
    postgres.start()
    assert await process(line) > 0
    await line.close()
    assert await process(line) > 0, "closed is not ended"


async def test_looks_of_a_process_share_what_was_read_a_moment_ago(postgres: Postgres) -> None:
    url, clock = postgres.url(), VirtualClock()
    cells = [Cell(number, 3) for number in range(3)]
    rows = OwnerRows(url, clock, cells, SHARED_S)
    owners = [await Ownership.open(url, clock, "key", "files", cell, rows) for cell in cells]
    for owner in owners:
        assert await owner.take()
    await clock.advance(SHARED_S)
    before = [await rows.of(cell) for cell in cells]
    assert [row.fence for row in before] == [owner.fence for owner in owners]
    await owners[1]._execute("UPDATE {table} SET beats = beats + 1")
    assert [await rows.of(cell) for cell in cells] == before
    await clock.advance(SHARED_S)
    after = [await rows.of(cell) for cell in cells]
    assert [row.beats - was.beats for row, was in zip(after, before, strict=True)] == [0, 1, 0]
    for owner in owners:
        await owner.close()
