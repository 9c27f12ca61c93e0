"""The store of a cell finds its jobs and what follows from them; whoever needs all of them has all."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest
from alembic import command
from alembic.config import Config as AlembicConfig
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import create_async_engine

from common.clock import SystemClock
from common.untrusted_text import untrusted
from coordinator.domain.cells import MAX_CELLS, Cell, cell_of
from coordinator.domain.job import Job, JobState
from coordinator.errors import NotFoundError, OtherCellError
from coordinator.store.ownership import Ownership
from coordinator.store.ports import Store, Transaction, col
from coordinator.store.records import EventRecord, LogRecord, NodeRecord, NoticeRecord, OutboxRecord
from coordinator.store.sql import MIGRATIONS, SqlStore, migrate
from coordinator.store.together import at_one_moment
from tests.coordinator.cells.conftest import CELLS, NODE, CellAtWork, job, name, node
from tests.support.databases import needs_postgres

pytestmark = needs_postgres
EACH = 6
HANGS_S = 20.0


@pytest.fixture(params=["said directly", "said through SQLAlchemy"])
async def stores(request: pytest.FixtureRequest, url: str) -> AsyncIterator[list[SqlStore]]:
    """Of both cells, with six jobs each. Without an owner what is said first in a transaction goes through SQLAlchemy."""
    owners: list[Ownership | None] = []
    for number in range(CELLS):
        owner = None
        if request.param == "said directly":
            owner = await Ownership.open(url, SystemClock(), "key", "files", Cell(number, CELLS))
            assert await owner.take()
        owners.append(owner)
    made = [await SqlStore.open(url, owner, Cell(number, CELLS)) for number, owner in enumerate(owners)]
    for number, store in enumerate(made):
        async with store.transaction() as tx:
            for place in range(EACH):
                await tx.insert(job(number, place))
                await tx.insert(EventRecord(name(number, place), float(place), "note", untrusted(f"{number} {place}")))
    yield made
    for store in made:
        await store.close()
    for owner in filter(None, owners):
        await owner.close()


def ids(found: Sequence[Job]) -> list[str]:
    return [one.id for one in found]


async def test_all_cells_are_opened_at_once_by_one_process(url: str) -> None:
    """Two that fall to it at the same moment: what brings a schema up to date is there once in a process."""
    for _ in range(3):
        made = await asyncio.gather(*(SqlStore.open(url, None, Cell(number, 4)) for number in range(4)))
        for store in made:
            async with store.transaction() as tx:
                assert await tx.find(Job) == []
            await store.close()


@pytest.mark.parametrize("newest", [False, True])
async def test_a_cell_finds_its_jobs_alone_in_pages_too(stores: list[SqlStore], newest: bool) -> None:
    for number, store in enumerate(stores):
        own = [name(number, place) for place in range(EACH)][:: -1 if newest else 1]
        async with store.transaction() as tx:
            assert ids(await tx.find(Job, newest=newest)) == own
            assert ids(await tx.find(Job, newest=newest, limit=2)) == own[:2]
            assert ids(await tx.find(Job, newest=newest, limit=3, offset=2)) == own[2:5]
            place = await tx.get(Job, own[1])
            assert ids(await tx.find(Job, newest=newest, limit=2, after=(place.created, place.id))) == own[2:4]
            some = col(Job.id).in_((*own[:2], *(name(1 - number, one) for one in range(20))))
            assert ids(await tx.find(Job, some, newest=newest)) == own[:2]
            assert ids(await tx.find(Job, col(Job.state).equals(JobState.FUNDED))) == []
            assert {event.job for event in await tx.find(EventRecord)} == set(own)


async def test_another_cells_job_is_not_there_and_who_asks_for_it_hears_where_it_is(stores: list[SqlStore]) -> None:
    async with stores[0].transaction() as tx:
        assert await tx.find(Job, col(Job.id).equals(name(1))) == []
        with pytest.raises(OtherCellError) as other:
            await tx.get(Job, name(1))
        assert other.value.cell == 1
        with pytest.raises(OtherCellError):
            await tx.get(Job, name(1, 99))  # Whether there is one its own cell knows.
        with pytest.raises(NotFoundError):
            await tx.get(Job, name(0, 99))


async def test_whoever_needs_all_has_all(stores: list[SqlStore]) -> None:
    every = [name(place % CELLS, place // CELLS) for place in range(CELLS * EACH)]

    async def has_all(tx: Transaction) -> None:
        assert ids(await tx.find(Job)) == every
        assert ids(await tx.find(Job, newest=True, limit=3, offset=1)) == every[-2:-5:-1]
        assert (await tx.get(Job, name(1))).id == name(1)
        assert {event.job for event in await tx.find(EventRecord)} == set(every)

    for store in stores:
        async with store.transaction() as tx:
            await has_all(tx.everywhere)
            assert len(await tx.find(Job)) == EACH, "the transaction itself finds what it found"
            await tx.insert(job(stores.index(store), EACH))
            assert len(await tx.everywhere.find(Job)) == len(every) + 1, "its own writes are seen"
            await tx.everywhere.delete(job(stores.index(store), EACH))


async def test_what_belongs_to_no_job_is_the_first_cells(stores: list[SqlStore]) -> None:
    async with stores[1].transaction() as tx:
        await tx.insert(NoticeRecord("account", "", "confirm", "mail", "a@b", "{}", 1.0, 1.0))
        await tx.insert(LogRecord(name(1), 1.0, "info", untrusted("of a job")))
        assert await tx.find(NoticeRecord) == []
        assert len(await tx.find(LogRecord)) == len(await tx.everywhere.find(NoticeRecord)) == 1
    async with stores[0].transaction() as tx:
        assert len(await tx.find(NoticeRecord)) == 1
        assert await tx.find(LogRecord) == []


async def test_what_is_common_every_cell_finds(stores: list[SqlStore]) -> None:
    async with stores[0].transaction() as tx:
        await tx.insert(node())
    async with stores[1].transaction() as tx:
        assert await tx.get(NodeRecord, NODE) == node()


@pytest.mark.parametrize("count", [3, MAX_CELLS])
async def test_the_database_parts_names_as_the_program_does(url: str, count: int) -> None:
    names = [f"{number * 2_654_435_761 % (1 << 32):08x}".ljust(32, "f") for number in range(200)]
    stores = [await SqlStore.open(url, None, Cell(number, count)) for number in range(count)]
    async with stores[0].transaction() as tx:
        for one in names:
            await tx.insert(msgspec.structs.replace(job(0), id=one))
    for number, store in enumerate(stores):
        async with store.transaction() as tx:
            found = set(ids(await tx.find(Job)))
        assert found == {one for one in names if cell_of(one, count) == number}
        await store.close()


async def test_a_page_that_is_read_at_one_moment_may_read_of_all(cells: tuple[CellAtWork, CellAtWork]) -> None:
    """A second transaction would wait for the first one, which waits for the page."""
    first, second = cells
    async with second.sql.transaction() as tx:
        await tx.insert(job(1))
    async with asyncio.timeout(HANGS_S), at_one_moment(first.context.store):
        async with first.context.everywhere.transaction() as tx:
            assert ids(await tx.find(Job)) == [name(1)]
        async with first.context.store.transaction() as tx:
            assert await tx.find(Job) == []
    assert first.counted.counts["transactions"] == 1


# --- sums -----------------------------------------------------------------------------------------------------------------


async def sums_of(store: Store) -> tuple[dict[str, tuple[int, int]], dict[tuple[str, str], tuple[int, int]]]:
    """Jobs by state, with what was paid; rows of the outbox by kind and state, with their amounts."""
    async with store.transaction() as tx:
        jobs = await tx.sums(Job, col(Job.paid), (col(Job.state),))
        rows = await tx.sums(OutboxRecord, col(OutboxRecord.amount), (col(OutboxRecord.kind), col(OutboxRecord.state)))
    return {str(state): found for (state,), found in jobs.items()}, {(str(k), str(s)): n for (k, s), n in rows.items()}


async def counted(store: SqlStore) -> tuple[dict[str, tuple[int, int]], dict[tuple[str, str], tuple[int, int]]]:
    """The same, record by record."""
    jobs, rows = Counter[str](), Counter[tuple[str, str]]()
    paid, amounts = Counter[str](), Counter[tuple[str, str]]()
    async with store.transaction() as tx:
        for one in await tx.everywhere.find(Job):
            jobs[one.state.value] += 1
            paid[one.state.value] += one.paid
        for row in await tx.everywhere.find(OutboxRecord):
            rows[row.kind, row.state] += 1
            amounts[row.kind, row.state] += row.amount
    return (
        {state: (number, paid[state]) for state, number in jobs.items()},
        {key: (number, amounts[key]) for key, number in rows.items()},
    )


async def works(store: SqlStore, cell: int, rounds: int, first: int = 100) -> None:
    """Jobs of a cell come, are paid, end, and go; with rows of theirs."""
    for place in range(rounds):
        async with store.transaction() as tx:
            made = await tx.insert(job(cell, first + place, paid=1 << 40))
            row = OutboxRecord(f"settle:{made.id}", made.id, "settle", {}, 1.0, amount=3 << 60 if place % 7 == 0 else 5)
            row = await tx.insert(row)
        async with store.transaction() as tx:
            ended = JobState.SETTLED if place % 2 else JobState.FAILED
            made = await tx.update(msgspec.structs.replace(made, state=ended, paid=made.paid + place))
            await tx.update(msgspec.structs.replace(row, state="confirmed"))
            if place % 3 == 0:
                await tx.delete(made)
                await tx.forget(OutboxRecord, col(OutboxRecord.job).equals(made.id))


async def test_sums_are_of_all_also_where_both_add_at_a_time(stores: list[SqlStore]) -> None:
    await asyncio.gather(*(works(store, number, 60) for number, store in enumerate(stores)))
    expected = await counted(stores[0])
    assert sum(number for number, _ in expected[0].values()) == CELLS * (EACH + 40)
    for store in stores:
        assert await sums_of(store) == expected
    async with stores[0].transaction() as tx:
        of_one = await tx.sums(Job, col(Job.paid), (), col(Job.id).equals(name(1, 101)))
    assert of_one[()][0] == 1, "what is summed of one job is that, whoever asks"


async def test_each_cell_adds_to_rows_of_its_own(stores: list[SqlStore], url: str) -> None:
    """Else one would wait in the middle of its work until another's is stored."""
    async with asyncio.timeout(HANGS_S), stores[0].transaction() as one:
        await one.insert(job(0, 50))
        async with stores[1].transaction() as other:
            await other.insert(job(1, 50))


async def test_sums_outlive_the_way_down_and_up(stores: list[SqlStore], url: str) -> None:
    await asyncio.gather(*(works(store, number, 10) for number, store in enumerate(stores)))
    expected = await counted(stores[0])

    def down(connection: Connection) -> int:
        config = AlembicConfig()
        config.set_main_option("script_location", str(MIGRATIONS))
        config.attributes["connection"] = connection
        command.downgrade(config, "0040")
        number = connection.scalar(text("SELECT sum(number) FROM job_sums"))
        connection.execute(text("UPDATE jobs SET paid = paid + 2 WHERE id = :id"), {"id": name(1, 1)})
        connection.commit()
        return int(number or 0)

    engine = create_async_engine(url)
    async with engine.connect() as connection:
        before = await connection.run_sync(down)
        await connection.run_sync(migrate)
    await engine.dispose()
    assert before == sum(number for number, _ in expected[0].values())
    await asyncio.gather(*(works(store, number, 5, 200) for number, store in enumerate(stores)))
    expected = await counted(stores[0])
    for store in stores:
        assert await sums_of(store) == expected


async def test_without_cells_a_store_is_what_it_was(url: str, tmp_path: Path) -> None:
    store = await SqlStore.open(url)
    async with store.transaction() as tx:
        assert tx.everywhere is tx
        await tx.hold_shared()
        for number in range(CELLS):
            await tx.insert(job(number))
        assert len(await tx.find(Job)) == CELLS
    engine = create_async_engine(url)
    async with engine.connect() as connection, store.transaction() as tx:
        await tx.hold_shared()
        held = await connection.scalar(text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"))
    await engine.dispose()
    await store.close()
    assert held == 0, "nobody else is there who would have to wait"
