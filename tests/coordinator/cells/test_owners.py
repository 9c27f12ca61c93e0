"""Who carries which cell: one process each, by rows of the database; and how cells are shared among processes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from hashlib import sha256

import pytest

from coordinator.cells_at_work import CellsAtWork
from coordinator.domain.cells import MAX_CELLS, WHOLE, Cell, CellState, cell_of, cell_of_token
from coordinator.errors import StoreAwayError, StoreError
from coordinator.store.ownership import GONE_S, STALE_S, Ownership
from coordinator.store.processes import AWAY_S, BEAT_S, LONGEST_AWAY_S, SETTLE_S, SOUND_S, Processes
from coordinator.store.records import EventRecord
from coordinator.store.sql import SqlStore
from tests.support.clock import VirtualClock
from tests.support.databases import Postgres, needs_postgres

FILES = "the data folder of all"


class Town:
    """Ownerships and processes of one database; their time is the test's."""

    def __init__(self, url: str) -> None:
        self.url, self.clock = url, VirtualClock()
        self.made: list[Ownership | Processes] = []

    async def owner(self, cell: Cell = WHOLE, address: str = "key") -> Ownership:
        """One more who would carry a cell."""
        self.made.append(made := await Ownership.open(self.url, self.clock, address, FILES, cell))
        return made

    async def process(self, cells: int) -> Processes:
        """One more process."""
        self.made.append(made := await Processes.open(self.url, self.clock, cells))
        return made


@pytest.fixture
async def town(postgres: Postgres) -> AsyncIterator[Town]:
    made = Town(postgres.url())
    yield made
    for one in made.made:
        await one.close()


async def dies(town: Town, *waiting: Ownership) -> None:
    """Owners say nothing for as long as those that wait need to see it."""
    for one in waiting:
        assert not await one.take()
    await town.clock.advance(STALE_S)


def test_a_name_belongs_to_one_cell_and_names_are_spread_evenly() -> None:
    names = [sha256(number.to_bytes(4)).hexdigest()[:32] for number in range(3_000)]
    for cells in range(1, MAX_CELLS + 1):
        of = [sum(Cell(number, cells).has(name) for name in names) for number in range(cells)]
        assert sum(of) == len(names), cells
        assert max(of) - min(of) < 0.35 * len(names) / cells + 5, (cells, of)
    assert {cell_of(name, 3) for name in ("", "job", "zz", 40 * "g")} == {0}, "no name of a job: the first one's"


@pytest.mark.parametrize("cells", [2, 10, MAX_CELLS])
def test_a_token_shows_whose_it_is(cells: int) -> None:
    for number in range(cells):
        assert cell_of_token(Cell(number, cells).token("ab12"), cells) == number
    for strange in ("", "ab12", ".ab", "x.ab", f"{cells}.ab", "-1.ab", "1e0.ab", "٣.ab", "001.ab", "1" * 5_000 + ".ab"):
        assert cell_of_token(strange, cells) is None, strange
    assert WHOLE.token("ab12") == "ab12"


@needs_postgres
async def test_each_cell_has_an_owner_of_its_own(town: Town) -> None:
    first, second, rival = await town.owner(Cell(0, 2)), await town.owner(Cell(1, 2)), await town.owner(Cell(1, 2))
    assert await first.take()
    assert await second.take()
    assert not await rival.take()
    stores = [await SqlStore.open(town.url, owner, owner.cell) for owner in (first, second)]
    for store in stores:
        async with store.transaction() as tx:
            await tx.insert(EventRecord(32 * "0", 1.0, "note", "said"))  # type: ignore[arg-type]
    await dies(town, rival)
    assert await rival.take()
    with pytest.raises(StoreAwayError):
        async with stores[1].transaction():
            pass
    async with stores[0].transaction():
        pass  # The other cell goes on.
    for store in stores:
        await store.close()


@needs_postgres
async def test_who_would_part_jobs_otherwise_is_told_so_and_takes_nothing(town: Town) -> None:
    first = await town.owner(Cell(0, 3))
    assert await first.take()
    for other in (WHOLE, Cell(0, 2)):
        late = await town.owner(other)
        assert not await late.take()
        await first._execute("UPDATE {table} SET beats = beats + 1")
        with pytest.raises(StoreError, match=r"carries jobs in 3 cells.*say --cells 3; or end all"):
            await late.take()
    late = await town.owner(Cell(0, 3), "another key")
    assert not await late.take()
    await first._execute("UPDATE {table} SET beats = beats + 1")
    with pytest.raises(StoreError, match=r"copy coordinator\.key"):
        await late.take()


@needs_postgres
async def test_another_number_of_cells_puts_an_end_to_owners_of_before(town: Town) -> None:
    """A process that still carries a cell of three would share its jobs with one that carries all."""
    old = [await town.owner(Cell(number, 3)) for number in range(3)]
    for owner in old:
        assert await owner.take()
    stores = [await SqlStore.open(town.url, owner, owner.cell) for owner in old]
    alone = await town.owner()
    await dies(town, alone)
    assert await alone.take()
    for store in stores:
        with pytest.raises(StoreAwayError):
            async with store.transaction():
                pass
        await store.close()
    again = await town.owner(Cell(1, 3))
    assert await again.take(), "that row is free"


@needs_postgres
async def test_what_a_cell_tells_is_read_by_those_that_wait_for_it(town: Town) -> None:
    owner, waiting = await town.owner(Cell(1, 2)), await town.owner(Cell(1, 2))
    at_work = CellsAtWork([await town.owner(Cell(0, 2)), waiting])
    assert await owner.take()
    async with owner.kept():
        owner.open_door("http://10.0.0.7:4000", anywhere=False)
        owner.tell('{"wanted":3,"idle":1,"nodes":9}')
        await _until(waiting, lambda: waiting.state)
        assert at_work.doors() == {1: "http://10.0.0.7:4000"}
        assert at_work.states() == {1: CellState(3, 1, 9)}
        assert owner.at_work == "http://10.0.0.7:4000", "its own front leads there, too"
    assert owner.at_work == ""
    assert not await waiting.take(may=False)
    assert at_work.doors() == at_work.states() == {}


async def _until(waiting: Ownership, there: Callable[[], str]) -> None:
    async with asyncio.timeout(20):
        while not there():
            assert not await waiting.take(may=False)
            await asyncio.sleep(0.05)


@needs_postgres
async def test_cells_are_shared_by_those_that_live(town: Town) -> None:
    one = await town.process(3)
    await one.look()
    for cell in range(3):
        assert one.may_take(), "nobody else is there"
        one.took(cell)
    assert one.gives_up() is None
    two = await town.process(3)
    for _ in range(3):
        await one.look()
        await two.look()
        await town.clock.advance(SETTLE_S / 2)
    assert one.gives_up() == 2
    one.gave(2)
    assert one.gives_up() is None, "not two at a time"
    await one.look()
    await two.look()
    assert two.may_take()
    two.took(2)
    await town.clock.advance(2 * SETTLE_S)
    for process in (one, two, one):
        await process.look()
    assert not two.may_take() or len(two.held) < 2
    assert (one.gives_up(), two.gives_up()) == (None, None)
    await town.clock.advance(STALE_S + 1)  # The first one says nothing any more.
    await two.look()
    assert two.may_take(), "all of them fall to it"


@needs_postgres
async def test_who_has_ended_counts_no_more(town: Town) -> None:
    one, two = await town.process(2), await town.process(2)
    await two.look()
    await one.look()
    one.took(0)
    assert not one.may_take()
    await two.close()
    town.made.remove(two)
    await one.look()
    assert one.may_take()
    assert await one._line.rows("SELECT count(*) FROM cottage_process") == [(1,)]


async def beat(town: Town, seconds: float, *processes: Processes) -> None:
    """These look as often as they do, for so long."""
    for _ in range(int(seconds / BEAT_S)):
        await town.clock.advance(BEAT_S)
        for process in processes:
            await process.look()


@needs_postgres
async def test_the_share_of_one_that_has_died_is_taken_before_that_of_one_that_is_silent(town: Town) -> None:
    one, silent, dying = [await town.process(3) for _ in range(3)]
    for cell, process in enumerate((one, silent, dying)):
        process.took(cell)
    await beat(town, SETTLE_S, one, silent, dying)
    await one.look()
    assert not one.may_take()
    await dying._line.close()  # Nobody says that it has ended.
    await asyncio.sleep(0.2)  # The database sees it a moment later.
    await beat(town, GONE_S, one)
    assert one.may_take()
    one.took(2)
    assert not one.may_take(), "the other one may be busy"
    await beat(town, STALE_S - GONE_S, one)
    assert one.may_take()


@needs_postgres
async def test_while_the_database_is_away_nobody_gives_up_what_nobody_can_take(town: Town, postgres: Postgres) -> None:
    one, two = await town.process(3), await town.process(3)
    await one.look()
    for cell in range(3):
        one.took(cell)
    await beat(town, SETTLE_S, one, two)
    assert one.gives_up() == 2
    postgres.kill()
    try:
        for process in (one, two):
            with pytest.raises(StoreAwayError):
                await process.look()
        one.gave(2)  # It was about to.
        await town.clock.advance(SETTLE_S)
        assert one.gives_up() is None
        await town.clock.advance(STALE_S)
        assert not two.may_take(), "it does not know who else lives"
    finally:
        postgres.start()
    await beat(town, SETTLE_S, one, two)
    assert two.may_take()
    assert one.gives_up() == 1


@needs_postgres
async def test_who_cannot_carry_a_cell_leaves_it_to_others_and_tries_again_less_and_less_often(town: Town) -> None:
    able, unable = await town.process(2), await town.process(2)
    able.took(0)
    await beat(town, SETTLE_S, unable, able)
    assert unable.may_take()
    assert not able.may_take(), "one falls to each"
    waited = []
    for _ in range(5):
        unable.failed()
        began = town.clock.now()
        while not unable.may_take():
            assert able.may_take() or town.clock.now() - began <= STALE_S + BEAT_S, "it waits for nobody"
            await beat(town, BEAT_S, unable, able)
        await beat(town, BEAT_S, unable, able)
        assert not able.may_take()
        waited.append(town.clock.now() - began - BEAT_S)
    assert waited == [AWAY_S, 2 * AWAY_S, 4 * AWAY_S, LONGEST_AWAY_S, LONGEST_AWAY_S]
    await beat(town, SOUND_S, unable, able)
    unable.failed()
    await beat(town, AWAY_S, unable, able)
    assert unable.may_take()


@needs_postgres
async def test_a_database_that_is_away_for_long_is_told_once(
    town: Town, postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    one = await town.process(3)
    running = asyncio.create_task(one.run())
    try:
        await town.clock.advance(BEAT_S)
        postgres.kill()
        for _ in range(20):
            await town.clock.advance(BEAT_S)
            await asyncio.sleep(0.05)  # For the database, whose time is real.
        assert not running.done()
    finally:
        postgres.start()
    async with asyncio.timeout(20):
        while "answers again" not in caplog.text:
            await town.clock.advance(BEAT_S)
            await asyncio.sleep(0.05)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    said = [record.getMessage() for record in caplog.records if record.name.endswith("processes")]
    assert [text.partition(":")[0].partition(",")[0] for text in said] == [
        "the database does not answer",
        "the database answers again",
    ]
