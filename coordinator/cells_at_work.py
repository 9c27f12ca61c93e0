"""A coordinator of a network in several cells: a front at its port, and a whole coordinator for each cell that falls to it.

::

    port          a front (web.fronts): leads people, programs and nodes to the cell that they are about
    other ports   one for each cell that this process carries, for fronts of other ones
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from common.clock import Clock, SystemClock
from common.own_folders import make_folder
from common.urls import url_of
from coordinator import standby
from coordinator.config import Config
from coordinator.domain.cells import Cell, CellState
from coordinator.errors import ReplacedError, StoreAwayError, StoreError
from coordinator.front import front_of
from coordinator.own_door import check_door
from coordinator.own_ledger import ledger_of
from coordinator.store.faults import passes
from coordinator.store.owner_rows import OwnerRows
from coordinator.store.ownership import Ownership
from coordinator.store.processes import Processes
from coordinator.web.connections import IDLE_S, Connections, listen
from coordinator.web.signal import NodeSocket
from ledger.errors import LedgerError
from protocol.identity import NodeKey

LOOK_S = 0.5

LOG = logging.getLogger(__name__)


class CellsAtWork:
    """Who carries each cell, as the database says it."""

    def __init__(self, owners: Sequence[Ownership]) -> None:
        """``owners``: of the cells, in their order."""
        self.owners = owners
        self.here: dict[int, NodeSocket] = {}

    @contextmanager
    def taking(self, cell: int, nodes: NodeSocket) -> Iterator[None]:
        """Let the front of this process bring nodes of a cell straight to ``nodes`` meanwhile."""
        self.here[cell] = nodes
        try:
            yield
        finally:
            del self.here[cell]

    def doors(self) -> Mapping[int, str]:
        """Where each cell is served that is."""
        return {owner.cell.number: owner.at_work for owner in self.owners if owner.at_work}

    def states(self) -> Mapping[int, CellState]:
        """What each cell tells, of those that are served."""
        told = {owner.cell.number: owner.state for owner in self.owners if owner.at_work and owner.state}
        return {number: msgspec.json.decode(state, type=CellState) for number, state in told.items()}


@dataclass(frozen=True)
class CellWork:
    """What a coordinator for one cell is given beside its settings.

    Attributes:
        ownership: of its jobs. ``others``: who carries the other cells.
        ends: events of which each says that it is to end.
        own: address of the auditor that runs beside it; None: none does.
    """

    ownership: Ownership
    others: CellsAtWork
    ends: tuple[asyncio.Event, ...]
    own: str | None = None

    @property
    def cell(self) -> Cell:
        """Whose jobs it carries."""
        return self.ownership.cell

    def tell(self, state: CellState) -> None:
        """Let the other cells know."""
        self.ownership.tell(msgspec.json.encode(state).decode())


Work = Callable[[CellWork], Coroutine[Any, Any, None]]


async def serve_cells(
    config: Config,
    ready: Callable[[str], None],
    stopping: asyncio.Event,
    work: Work,
    look: Callable[[Config], Awaitable[str]] = ledger_of,
) -> None:
    """Serve until ``stopping`` is set.

    Args:
        ready: called with the base address once it serves.
        work: be the coordinator of a cell.
        look: at the ledger: it can be used, and this is its identity.
    Raises:
        SettingError: others would not reach this one.
        StoreError: the database cannot be used, or others carry it in other cells, with another key, files or ledger.
        LedgerError: the ledger cannot be used.
        KeyFileError: the coordinator's key cannot be read.
    """
    make_folder(config.data)
    await check_door(config, stopping)
    ledger = await look(config)
    clock, key = SystemClock(), NodeKey.load_or_generate(config.data / "coordinator.key")
    async with AsyncExitStack() as stack:
        cells = [Cell(number, config.cells) for number in range(config.cells)]
        rows = OwnerRows(config.database, clock, cells, LOOK_S / 2)
        at_work = CellsAtWork([await stack.enter_async_context(_owner(config, clock, one, rows)) for one in cells])
        for owner in at_work.owners:
            owner.ledger = ledger
        await _compared(at_work.owners, stopping)
        processes = await Processes.open(config.database, clock, config.cells)
        stack.push_async_callback(processes.close)
        await stack.enter_async_context(_front(config, clock, at_work, key, ready))
        try:
            async with asyncio.TaskGroup() as group:
                beating = group.create_task(processes.run(), name="processes")
                carry = partial(_carry, at_work=at_work, processes=processes, stopping=stopping, work=work)
                carrying = [group.create_task(carry(one), name=f"cell {one.cell.number}") for one in at_work.owners]
                await asyncio.wait(carrying, return_when=asyncio.FIRST_EXCEPTION)
                beating.cancel()
        except ExceptionGroup as faults:  # What one cell refuses, all of them do: it is said once, in its own words.
            raise faults.exceptions[0] from faults


@asynccontextmanager
async def _owner(config: Config, clock: Clock, cell: Cell, rows: OwnerRows) -> AsyncIterator[Ownership]:
    async with standby.ownership_of(config, clock, cell, rows) as ownership:
        assert ownership is not None
        yield ownership


async def _compared(owners: Sequence[Ownership], stopping: asyncio.Event) -> None:
    """Before it serves or takes anything: wait until it is known of all that live whether this one may work beside them.

    Raises:
        StoreError: it may not.
    """
    with suppress(StoreAwayError):  # What follows waits for the database, and says so.
        while not stopping.is_set():
            for owner in owners:
                await owner.take(may=False)
            if not any(owner.is_unknown for owner in owners):
                return
            await asyncio.sleep(LOOK_S / 2)


@asynccontextmanager
async def _front(
    config: Config, clock: Clock, at_work: CellsAtWork, key: NodeKey, ready: Callable[[str], None]
) -> AsyncIterator[None]:
    doors = [lambda owner=owner: owner.at_work for owner in at_work.owners]
    async with front_of(config, clock, doors, key, at_work.states, at_work.here) as app:
        runner = web.AppRunner(app, shutdown_timeout=0.1, keepalive_timeout=IDLE_S)
        await runner.setup()
        assert runner.server is not None
        Connections(config.behind_proxy).guard(runner.server)
        try:
            await listen(runner, config.host, config.port)
            ready(url_of(config.host, int(runner.addresses[0][1])))
            yield
        finally:
            await runner.cleanup()


async def _carry(
    owner: Ownership, at_work: CellsAtWork, processes: Processes, stopping: asyncio.Event, work: Work
) -> None:
    """For ever: carry a cell whenever it falls to this process, and as long as it does."""
    number = owner.cell.number
    while not stopping.is_set():
        if await _taken(owner, at_work.owners[0], processes):
            spare = asyncio.Event()
            try:
                async with owner.kept() as lost, _watched(processes, number, spare):
                    LOG.info("this coordinator carries cell %d of %d", number + 1, owner.cell.of)
                    await work(CellWork(owner, at_work, (stopping, lost, spare)))
            except (StoreAwayError, StoreError, LedgerError) as error:
                if not any(one.has_served for one in at_work.owners) and not _may_be_over(error):
                    raise
                # What it has worked with is away for a while. Were it to end, so would its other cells, and whoever comes next.
                said = error.cause if isinstance(error, StoreAwayError) else error
                level = logging.INFO if isinstance(error, ReplacedError) else logging.ERROR
                LOG.log(level, "cell %d of %d cannot be carried now: %s", number + 1, owner.cell.of, said)
                processes.failed()
            finally:
                processes.gave(number)
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await stopping.wait()


def _may_be_over(error: StoreAwayError | StoreError | LedgerError) -> bool:
    """Whether a cell could not be carried because the database, which was there a moment ago, is away."""
    return isinstance(error, StoreAwayError) or (isinstance(error, StoreError) and passes(error))


async def _taken(owner: Ownership, first: Ownership, processes: Processes) -> bool:
    """Take a cell if it falls to this process. Those behind the first wait for that one, which brings the schema up to date."""
    async with processes.one_at_a_time:
        may = processes.may_take() and (owner is first or bool(first.is_compared and first.at_work))
        try:
            taken = await owner.take(may)
        except StoreAwayError:
            return False
        if taken:
            processes.took(owner.cell.number)
        return taken


@asynccontextmanager
async def _watched(processes: Processes, number: int, spare: asyncio.Event) -> AsyncIterator[None]:
    """Say when another process should carry a cell."""

    async def watch() -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if processes.gives_up() == number:
                LOG.info("another coordinator has come: it carries cell %d from now on", number + 1)
                spare.set()
                return

    watching = asyncio.create_task(watch(), name="shares-of-cells")
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
