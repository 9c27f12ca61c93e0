"""What a process does with a cell that it cannot carry: at its start it ends in words, later it tries again beside its others."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from common.errors import KeyFileError
from coordinator.cells_at_work import CellWork, serve_cells
from coordinator.config import Config
from coordinator.errors import ReplacedError, StoreAwayError, StoreError
from coordinator.store import processes
from coordinator.store.sql import SqlStore
from ledger.errors import LedgerError
from tests.coordinator.conftest import one_ledger, until
from tests.support.databases import Postgres, needs_postgres

pytestmark = needs_postgres

CELLS = 3
AWAY = (LedgerError("no answer"), StoreError("it cannot be used"), StoreAwayError("it is starting up"))


@pytest.fixture
def parted(config: Config, postgres: Postgres) -> Config:
    return replace(config, database_url=postgres.url(), cells=CELLS, port=0, open=True)


async def until_over(work: CellWork) -> None:
    """Serve until one says that it is over."""
    work.ownership.open_door("http://127.0.0.1:9", anywhere=False)
    waiting = [asyncio.create_task(end.wait()) for end in work.ends]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for one in waiting:
        one.cancel()


@pytest.mark.parametrize(
    "fault", [LedgerError("no answer"), StoreError("it cannot be used"), KeyFileError("no key"), OSError("no port")]
)
async def test_who_can_carry_nothing_says_why_and_ends(parted: Config, fault: Exception) -> None:
    """With the fault itself, which has words and a status of its own, and not with a group of it."""

    async def work(_work: CellWork) -> None:
        raise fault

    with pytest.raises(type(fault)) as raised:
        await asyncio.wait_for(serve_cells(parted, lambda _: None, asyncio.Event(), work, one_ledger), 60)
    assert raised.value is fault


@pytest.mark.parametrize("fault", AWAY, ids=lambda fault: type(fault).__name__)
async def test_what_is_away_for_a_while_costs_one_cell_some_seconds_and_the_others_nothing(
    parted: Config, fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "AWAY_S", 0.1)
    stopping, begun, ended = asyncio.Event(), Counter[int](), Counter[int]()

    async def work(work: CellWork) -> None:
        begun[number := work.cell.number] += 1
        if number == 1 and begun[1] < 3:
            raise fault
        await until_over(work)
        ended[number] += 1

    serving = asyncio.create_task(serve_cells(parted, lambda _: None, stopping, work, one_ledger))
    await until(lambda: serving.done() or (len(begun) == CELLS and begun[1] == 3))
    assert not serving.done(), serving.exception()
    assert begun == {0: 1, 1: 3, 2: 1}
    stopping.set()
    await serving
    assert ended == {0: 1, 1: 1, 2: 1}


async def replaced() -> None:
    """On a machine so busy that it said nothing for seconds."""
    raise ReplacedError("another coordinator has taken over")


async def away() -> None:
    """A database that was there a moment ago."""
    await SqlStore.open("postgresql+asyncpg://cottage@127.0.0.1:1/away")


@pytest.mark.parametrize("fails", [replaced, away])
async def test_who_could_not_carry_its_first_cell_though_nothing_is_wrong_with_it_tries_again(
    parted: Config, fails: Callable[[], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "AWAY_S", 0.1)
    stopping, begun = asyncio.Event(), Counter[int]()

    async def work(work: CellWork) -> None:
        begun[work.cell.number] += 1
        if begun.total() == 1:
            await fails()
        await until_over(work)

    serving = asyncio.create_task(serve_cells(parted, lambda _: None, stopping, work, one_ledger))
    await until(lambda: serving.done() or len(begun) == CELLS)
    assert not serving.done(), serving.exception()
    stopping.set()
    await serving


async def test_a_loop_that_fails_ends_the_process_with_all_its_cells(parted: Config) -> None:
    """It is a fault of the program: a coordinator that goes on would only seem alive."""

    async def work(work: CellWork) -> None:
        if work.cell.number == 1:
            raise ValueError("nobody has foreseen it")
        await until_over(work)

    with pytest.raises(ValueError, match="nobody has foreseen it"):
        await asyncio.wait_for(serve_cells(parted, lambda _: None, asyncio.Event(), work, one_ledger), 60)
