"""Processes that carry the cells of one PostgreSQL, and are measured while all of them work.

Each opens its cell as a coordinator does: under a row with a fence that beats, with a store that finds its jobs alone, and with
the line on which cells ask each other for their nodes. What it carries is its own: whoever measures brings it.
"""

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

import aiohttp
import psutil
from aiohttp import web
from aiohttp.test_utils import TestServer

from benchmarks.upkeep._coordinators import allow_files
from common.clock import SystemClock
from coordinator.app import among_of
from coordinator.assembly import AmongCells, CoordinatorParts
from coordinator.cells_at_work import LOOK_S, CellsAtWork, CellWork
from coordinator.domain.cells import MAX_CELLS, Cell
from coordinator.services.accounts.budgets import Bodies
from coordinator.store.owner_rows import OwnerRows
from coordinator.store.ownership import Ownership
from coordinator.store.sql import SqlStore
from coordinator.web.fronts.between import BetweenAnswers, BetweenCells
from coordinator.web.http import BODIES
from tests.coordinator.conftest import BETWEEN
from tests.support.databases import Postgres

TRIES = 20
ENDS_S = 30.0  # A process has so long to close what it has open.

T = TypeVar("T")


class OpenedCell:
    """A cell in the process that carries it.

    Attributes:
        store: of its jobs.
        among: what its coordinator has to do with the others; None: it is the only one.
    """

    def __init__(self, cell: Cell, owner: Ownership, store: SqlStore, between: BetweenCells, among: AmongCells) -> None:
        self.cell, self.store, self._owner, self._between = cell, store, owner, between
        self.among = among if cell.of > 1 else None

    @asynccontextmanager
    async def answers(self, parts: CoordinatorParts) -> AsyncIterator[None]:
        """Ask the other cells for their nodes meanwhile, and answer them; where there are none, nothing is done."""
        if self.among is None:
            yield
            return
        app = web.Application()
        app[BODIES] = Bodies()
        asked = (parts.nodes, parts.leases, parts.relays, parts.federations, parts.settlement)
        BetweenAnswers(BETWEEN, self.cell, *asked).setup(app)
        server = TestServer(app)
        await server.start_server()
        self._owner.open_door(str(server.make_url("/")).rstrip("/"), anywhere=False)
        asking = asyncio.create_task(self._between.run(), name="between")
        try:
            yield
        finally:
            await _ended(asking)
            await server.close()


@asynccontextmanager
async def opened_cell(url: str, cell: Cell) -> AsyncIterator[OpenedCell]:
    """Carry a cell of a database: nobody else does."""
    async with AsyncExitStack() as stack:
        clock, cells = SystemClock(), [Cell(number, cell.of) for number in range(cell.of)]
        rows, owners = OwnerRows(url, clock, cells, LOOK_S / 2), []
        for one in cells:
            owners.append(await Ownership.open(url, clock, "key", "files", one, rows))
            stack.push_async_callback(owners[-1].close)
        owner = owners[cell.number]
        await _taken(owner)
        await stack.enter_async_context(owner.kept())
        looking = asyncio.create_task(_looks([one for one in owners if one is not owner]), name="owners")
        stack.push_async_callback(_ended, looking)
        store = await SqlStore.open(url, owner, cell)
        stack.push_async_callback(store.close)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        work = CellWork(owner, CellsAtWork(owners), ())
        between = BetweenCells(cell, work.others.doors, BETWEEN, http, clock)
        yield OpenedCell(cell, owner, store, between, among_of(work, between))


async def _taken(owner: Ownership) -> None:
    """Take a cell: whoever takes the first one says how many there are, and refuses who came a moment before."""
    for _ in range(TRIES):
        if await owner.take():
            return
        await asyncio.sleep(LOOK_S)
    raise AssertionError(f"cell {owner.cell.number} of {owner.cell.of} is another one's: each has a process of its own")


async def _looks(others: Sequence[Ownership]) -> None:
    """See who carries the other cells, and what they tell."""
    while others:
        for one in others:
            await one.take(may=False)
        await asyncio.sleep(LOOK_S)


async def _ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


class Meeting:
    """Where a process waits until all have begun, and goes on until all are measured."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._last: asyncio.Task[Any] | None = None

    async def begun(self) -> None:
        """Return once everybody has."""
        self._pipe.send(None)
        await asyncio.to_thread(self._pipe.recv)

    def measured(self, figures: object) -> None:
        """Tell what was found. Others may need longer, and are not to be alone: go on while this is not ``over``."""
        self._pipe.send(figures)
        self._last = asyncio.create_task(asyncio.to_thread(self._pipe.recv))

    @property
    def over(self) -> bool:
        """Whether everybody is measured."""
        assert self._last is not None, "nothing was measured yet"
        return self._last.done()

    def ends(self, reports: int) -> None:
        """Tell how many reports were stored since all had begun."""
        assert self._last is not None
        self._last.result()
        self._pipe.send(reports)


Carry = Callable[..., Awaitable[None]]
"""Takes the database's address, the cell, a meeting, and whatever else it is given."""


@dataclass(frozen=True)
class Together(Generic[T]):
    """What processes found.

    Attributes:
        each: by cell.
        seconds: from when all had begun until the last one was measured.
        reports: that all of them stored in these seconds. ``database_s``: processor time that PostgreSQL took in them.
    """

    each: list[T]
    seconds: float
    reports: int
    database_s: float

    @property
    def database_ms(self) -> float:
        """Of PostgreSQL, for each report."""
        return 1000 * self.database_s / max(1, self.reports)


class _Process:
    """One that carries a cell, as its parent sees it."""

    def __init__(self, carry: Carry, url: str, cell: Cell, given: tuple[Any, ...]) -> None:
        spawning = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawning.Pipe()
        self._cell, self._process = cell, spawning.Process(target=_carried, args=(carry, url, cell, theirs, given))
        self._process.start()
        theirs.close()

    def hears(self) -> Any:
        """What it says next."""
        try:
            return self._pipe.recv()
        except EOFError as error:
            said = f"cell {self._cell.number} of {self._cell.of}: its process has ended, and said why on standard error"
            raise RuntimeError(said) from error

    def go_on(self) -> None:
        """Let it go on, until the next thing that it waits for."""
        self._pipe.send(None)

    def end(self, seconds: float = ENDS_S) -> None:
        """It has done all that it was to do, or is not to do it any more."""
        self._process.join(seconds)
        self._process.kill()


def _carried(carry: Carry, url: str, cell: Cell, pipe: Connection, given: tuple[Any, ...]) -> None:
    allow_files()
    asyncio.run(carry(url, cell, Meeting(pipe), *given))  # type: ignore[arg-type]


def played_together(cells: int, carry: Carry, *given: Any) -> Together[Any]:
    """So many processes carry the cells of a PostgreSQL of their own, a cell each, and are measured at a time."""
    postgres, processes, left = Postgres(), list[_Process](), 0.0
    try:
        postgres.start()
        url, server = postgres.url(), psutil.Process(postgres.process)
        for number in range(cells):
            processes.append(_Process(carry, url, Cell(number, cells), given))
        for one in processes:
            one.hears()
        began, spent = time.perf_counter(), database_seconds(server)
        for one in processes:
            one.go_on()
        each = [one.hears() for one in processes]
        passed, spent = time.perf_counter() - began, database_seconds(server) - spent
        for one in processes:
            one.go_on()
        reports, left = sum(one.hears() for one in processes), ENDS_S
        return Together(each, passed, reports, spent)
    finally:
        for one in processes:
            one.end(left)
        postgres.remove()


def add_cells(parser: argparse.ArgumentParser) -> None:
    """The option."""
    parser.add_argument("--cells", type=int, help="over PostgreSQL, by as many processes, and by one")


def check_cells(parser: argparse.ArgumentParser, cells: int | None, jobs: int) -> None:
    """Say what is wrong with a number of cells, for so many jobs."""
    if cells is not None and not 1 <= cells <= MAX_CELLS:
        parser.error(f"--cells {cells}: there are 1 to {MAX_CELLS}")
    if cells is not None and jobs < cells:
        parser.error(f"--jobs {jobs} leaves a cell without any: say at least {cells}")


def database_seconds(server: psutil.Process) -> float:
    """Of processor time that PostgreSQL has taken; ``server``: its first process."""
    spent = sum(server.cpu_times()[:4])  # With those that have ended.
    for child in server.children():
        with suppress(psutil.NoSuchProcess):
            spent += sum(child.cpu_times()[:2])
    return float(spent)
