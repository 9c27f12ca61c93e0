"""What a coordinator of cells sees before it serves or takes anything: it ends in words, and those at work are not disturbed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from common.clock import SystemClock
from coordinator import standby
from coordinator.cells_at_work import CellWork, serve_cells
from coordinator.config import Config
from coordinator.domain.cells import Cell
from coordinator.errors import StoreError
from coordinator.own_ledger import ledger_of
from coordinator.store.ownership import STALE_S, Ownership
from ledger.errors import LedgerAnswerError, LedgerUnavailableError
from protocol.identity import NodeKey
from tests.coordinator.conftest import one_ledger, until
from tests.coordinator.test_serve import ledger_url as ledger_url
from tests.support.databases import Postgres, needs_postgres
from tests.support.wait import HANGS_S

pytestmark = needs_postgres

Look = Callable[[Config], Awaitable[str]]


async def another_ledger(_config: Config) -> str:
    return "another chain/the market/the token"


@pytest.fixture
def parted(config: Config, postgres: Postgres) -> Config:
    return replace(config, database_url=postgres.url(), cells=3, port=0, open=True)


@asynccontextmanager
async def carried(config: Config, number: int = 1) -> AsyncIterator[Ownership]:
    """Somebody carries a cell, and no other one."""
    async with standby.ownership_of(config, SystemClock(), Cell(number, config.cells)) as ownership:
        assert ownership is not None
        ownership.ledger = await one_ledger(config)
        assert await ownership.take()
        async with ownership.kept() as lost:
            ownership.open_door("http://127.0.0.1:9", anywhere=False)
            await asyncio.sleep(0.1)
            yield ownership
            assert not lost.is_set()


async def comes(config: Config, look: Look) -> None:
    """One more, that is to end by itself before it has served or taken anything."""
    served: list[str] = []
    stopping = asyncio.Event()

    def serves(what: str) -> None:
        served.append(what)
        stopping.set()

    async def work(work: CellWork) -> None:
        serves(f"cell {work.cell.number}")

    try:
        await asyncio.wait_for(serve_cells(config, serves, stopping, work, look), HANGS_S)
    finally:
        assert served == []


@pytest.mark.parametrize("cell", [0, 1])
async def test_who_has_another_ledger_is_told_so(parted: Config, cell: int) -> None:
    """Where the first cell is free, too, which whoever comes might take."""
    async with carried(parted, cell):
        with pytest.raises(
            StoreError, match=r"(?s)on the ledger the chain.*and this one on another chain.*to work beside it"
        ):
            await comes(parted, another_ledger)


async def test_who_has_another_key_or_number_of_cells_is_told_so_in_plain_words(parted: Config) -> None:
    async with carried(parted) as first:
        with pytest.raises(StoreError, match="say --cells 3"):
            await comes(replace(parted, cells=2), one_ledger)
        files = (parted.data / "folder-id").read_text()
        other = parted.data / "other"
        other.mkdir()
        (other / "folder-id").write_text(files)
        with pytest.raises(StoreError) as refused:
            await comes(replace(parted, data=other), one_ledger)
        key = NodeKey.load_or_generate(other / "coordinator.key").address
        assert str(refused.value) == (
            f"the coordinator {NodeKey.load_or_generate(parted.data / 'coordinator.key').address} works with this database, "
            f"and this one has the key of {key}: to work beside it copy coordinator.key from its data folder; "
            "or name another database"
        )
        (other / "coordinator.key").write_bytes((parted.data / "coordinator.key").read_bytes())
        (other / "folder-id").write_text("another")
        with pytest.raises(StoreError, match="to work beside it share its data folder"):
            await comes(replace(parted, data=other), one_ledger)
        assert first.at_work


async def test_who_died_is_not_waited_for(parted: Config) -> None:
    """Its row is there, and no connection of its: whoever comes serves at once, as what it can answer needs nobody."""
    async with standby.ownership_of(parted, SystemClock(), Cell(1, parted.cells)) as dead:
        assert dead is not None
        assert await dead.take()
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    ready: asyncio.Future[str] = loop.create_future()

    async def work(work: CellWork) -> None:
        await stopping.wait()

    began = loop.time()
    serving = asyncio.create_task(serve_cells(parted, ready.set_result, stopping, work, another_ledger))
    await until(lambda: ready.done() or serving.done())
    took = loop.time() - began
    stopping.set()
    await serving
    assert took < STALE_S


@pytest.mark.parametrize(("program", "fault"), [(None, LedgerUnavailableError), ("the key", LedgerAnswerError)])
async def test_who_cannot_use_its_ledger_ends_before_anybody_gives_a_cell_up(
    parted: Config, ledger_url: str, program: str | None, fault: type[Exception]
) -> None:
    if program is None:
        there = replace(parted, ledger_url="http://127.0.0.1:9")
    else:
        parted.data.mkdir(exist_ok=True)
        key = NodeKey.load_or_generate(parted.data / "coordinator.key").address
        there = replace(parted, ledger_url=ledger_url, ledger_program=key)
    with pytest.raises(fault):
        await comes(there, ledger_of)


async def test_a_ledger_that_answers_is_known_by_what_is_on_it(parted: Config, ledger_url: str) -> None:
    asked = replace(parted, ledger_url=ledger_url)
    known = await ledger_of(asked)
    genesis, program, mint = known.split("/")
    assert len({genesis, program, mint}) == 3
    assert await ledger_of(replace(asked, ledger_program=program, ledger_mint=mint)) == known
