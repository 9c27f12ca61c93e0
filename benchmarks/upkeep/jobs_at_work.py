"""Many jobs at work at a time in one coordinator, on virtual time: what each costs it beside so many others.

    python -m benchmarks.upkeep.jobs_at_work [--jobs 10 100 1000] [--seconds 60] [--cells 3]

A simulated world without faults (`tests/sim`): real services over SQLite, two nodes for each job, which train a round of some
14 s, as quick as rounds ever are. All jobs are made and funded; once they train, so many seconds of the world are played. What
the coordinator takes is told apart from what the simulated nodes do. Processor time, so what else runs on the machine does not
count. Writes build/bench/jobs_at_work.json.

With ``--cells`` over PostgreSQL: one process with all jobs, then as many processes as cells, each with a world of its own for the
jobs of its cell. They begin to measure once all jobs of all of them train, and go on until the last one has measured. There what
nodes say at a step comes at once, as over their connections, so that reports share transactions. Figures, of each process and in
sum, into build/bench/jobs_at_work_in_cells.json; beside those of before:

* ``wall_s``: that the measured seconds of the world took, and ``reports_a_second`` of it. A sum has the longest of the processes.
* ``cores``: that the coordinator took of that, and ``node_cores``: simulated nodes. ``database_cores``: PostgreSQL.
* ``database_ms_a_report``: processor time of PostgreSQL.
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.common import publish
from benchmarks.upkeep._cell_worlds import (
    Meeting,
    OpenedCell,
    Together,
    add_cells,
    check_cells,
    opened_cell,
    played_together,
)
from coordinator.assembly import CoordinatorParts
from coordinator.domain.cells import Cell
from coordinator.domain.job import Job, JobState
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.services.drivers.node_protocol import together
from coordinator.services.network.cell_nodes import LOOK_TURNS, TURN_S
from coordinator.store.ports import col
from coordinator.store.sql import SqlStore
from protocol.codec import decode
from protocol.node import NodeMessage, Report
from protocol.rest.api import NewJob
from tests.coordinator.fakes import BUDGET, WALLET, spec
from tests.sim.world import SimNode, World

STEP_S = 0.3
WARM_S = 10.0  # Until jobs that began together do not go on together.
PATIENCE_S = 600.0
TOKENS = 1 << 20  # A thousand rounds: no job ends while it is looked at.
REPORTS, ROUNDS = "reports_total", "rounds_complete_total"
SETTINGS = {"validations": 0, "min_stake": 0, "spares": 0}
APART = 1_000_000  # Between the numbers of nodes of two cells.


class CrowdedWorld(World):
    """Every node has its turn at each step, so that thousands of them beat in time. ``spent``: by the coordinator, in seconds."""

    spent = 0.0

    async def step(self) -> None:
        """A moment passes."""
        assert self.parts is not None
        self.clock.t += STEP_S
        with self._counted():
            await self._upkeep(self.parts)
        for node in self.nodes:
            await self._node_turn(node)

    async def at_work(self) -> int:
        """How many jobs train."""
        async with self.records.transaction() as tx:
            found = await tx.sums(Job, col(Job.version), (), col(Job.state).equals(JobState.RUNNING))
        return found.get((), (0, 0))[0]

    async def _deliver(self, node: SimNode) -> None:
        with self._counted():
            await super()._deliver(node)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        began = time.process_time()
        yield
        self.spent += time.process_time() - began


async def begun(world: CrowdedWorld, jobs: int) -> None:
    """So many jobs, which train."""
    parts = await world.start()
    world.chain.wallets[WALLET] = jobs * BUDGET
    while len(parts.nodes.sessions()) < 2 * jobs:
        await world.step()
    for _ in range(jobs):
        job = (await parts.jobs.create(NewJob(spec(stages=1, replicas=2, tokens=TOKENS)))).id
        funding = asyncio.ensure_future(parts.jobs.fund(job))
        while not funding.done():
            await parts.lanes.drain()
            await asyncio.sleep(0)
        await funding
    patience = world.clock.t + PATIENCE_S
    while (training := await world.at_work()) < jobs:
        assert world.clock.t < patience, f"only {training} of {jobs} jobs train"
        await world.step()


async def figures(jobs: int, seconds: float) -> dict[str, float]:
    """Of so many jobs at a time."""
    with tempfile.TemporaryDirectory() as folder:
        store = await SqlStore.open(f"sqlite+aiosqlite:///{Path(folder) / 'c.db'}")
        try:
            return await _played(store, jobs, seconds)
        finally:
            await store.close()


async def _played(store: SqlStore, jobs: int, seconds: float) -> dict[str, float]:
    world = CrowdedWorld(1, 2 * jobs, faults=0.0, settings=SETTINGS)
    world.records = store  # type: ignore[assignment]
    opened = await _opened(world, jobs)
    return row([await _measured(world, jobs, seconds, opened)], seconds)


async def _opened(world: CrowdedWorld, jobs: int) -> float:
    """Processor time until so many jobs train; then they have gone apart, and look for spares."""
    began = time.process_time()
    await begun(world, jobs)
    opened = time.process_time() - began
    assert world.parts is not None
    # From now on each job looks for spares, of which there is none: before, jobs that came first would have them.
    world.parts.context.__dict__["config"] = replace(world.config, spares=2)
    await _on(world, WARM_S)
    return opened


@dataclass(frozen=True)
class Counts:
    """What was counted while so many seconds of a world were played.

    Attributes:
        coordinator_s: processor time. ``nodes_s``: of the simulated nodes; ``opened_s``: of both until all jobs had begun.
        wall_s: that it took.
    """

    jobs: int
    at_work: int
    rounds: int
    reports: int
    coordinator_s: float
    nodes_s: float
    opened_s: float
    wall_s: float


def row(found: Sequence[Counts], seconds: float) -> dict[str, float]:
    """As it is shown, of so many seconds of one world, or of several at a time."""
    jobs = sum(one.jobs for one in found)
    each = jobs * seconds / 60
    reports, spent = sum(one.reports for one in found), sum(one.coordinator_s for one in found)
    return {
        "at_work": sum(one.at_work for one in found),
        "rounds_a_job_and_minute": round(sum(one.rounds for one in found) / each, 2),
        "reports_a_job_and_minute": round(reports / each, 1),
        "coordinator_ms_a_job_and_minute": round(1000 * spent / each, 1),
        "coordinator_ms_a_report": round(1000 * spent / max(1, reports), 2),
        "simulated_nodes_ms_a_job_and_minute": round(1000 * sum(one.nodes_s for one in found) / each, 1),
        "ms_a_job_to_begin": round(1000 * sum(one.opened_s for one in found) / jobs, 1),
    }


async def _measured(world: CrowdedWorld, jobs: int, seconds: float, opened: float) -> Counts:
    """Of so many seconds from now on; ``opened``: what it took to come there."""
    assert world.parts is not None
    metrics = world.parts.context.metrics
    before = {name: metrics.value(name) for name in (REPORTS, ROUNDS)}
    world.spent, began, since = 0.0, time.process_time(), time.perf_counter()
    await _on(world, seconds)
    every, passed = time.process_time() - began, time.perf_counter() - since
    done = {name: metrics.value(name) - was for name, was in before.items()}
    at_work, nodes = await world.at_work(), every - world.spent
    return Counts(jobs, at_work, done[ROUNDS], done[REPORTS], world.spent, nodes, opened, passed)


async def _on(world: CrowdedWorld, seconds: float) -> None:
    until = world.clock.t + seconds
    while world.clock.t < until:
        await world.step()


# --- cells ------------------------------------------------------------------------------------------------------------------


class CellWorld(CrowdedWorld):
    """The nodes and jobs of one cell. What nodes say at a step is delivered at a time, in each one's order."""

    def __init__(self, cell: OpenedCell, jobs: int) -> None:
        """Two nodes for each job, whose keys are in no other cell."""
        super().__init__(1 + cell.cell.number, 0, faults=0.0, settings=SETTINGS)
        self.records, self.among = cell.store, cell.among  # type: ignore[assignment]
        first = 1 + APART * cell.cell.number
        self.nodes = [SimNode(self, number) for number in range(first, first + 2 * jobs)]
        self.chain.stakes = {node.key.address: 1_000_000 for node in self.nodes}
        self._training: set[str] = set()
        self._said: dict[SimNode, list[bytes]] = {}
        self._told, self._turns = 0.0, 0
        self._cell, self._open = cell, contextlib.AsyncExitStack()

    async def start(self) -> CoordinatorParts:
        """Its coordinator begins."""
        parts = await super().start()
        self._open.push_async_callback(parts.desk.close)
        parts.desk.on_stored(self._stored)
        await self._open.enter_async_context(self._cell.answers(parts))
        return parts

    async def close(self) -> None:
        """It ends."""
        await self._open.aclose()

    async def step(self) -> None:
        """A moment passes, also for what cells tell each other."""
        await super().step()
        with self._counted():
            await self._tells()
            said, self._said = self._said, {}
            await asyncio.gather(*(self._receive(node, data) for node, data in said.items()))

    async def at_work(self) -> int:
        """How many jobs of this cell train: what the database sums is of all."""
        return len(self._training)

    async def _deliver(self, node: SimNode) -> None:
        self._said.setdefault(node, []).append(node.out.popleft())

    async def _receive(self, node: SimNode, data: list[bytes]) -> None:
        """What a node has said, with what goes together in one transaction, as its connection has it."""
        waiting: list[NodeMessage] = [decode(one, NodeMessage) for one in data]
        while waiting and node.session is not None:
            message, more = waiting.pop(0), list[Report]()
            while waiting and isinstance(following := waiting[0], Report) and together(message, following):
                more.append(following)
                waiting.pop(0)
            assert self.parts is not None
            await self.parts.conversation.receive(node.session, message, *more)

    async def _tells(self) -> None:
        """As ``NodeExchange.run``, on this world's clock."""
        assert self.parts is not None
        if (exchange := self.parts.exchange) is None or self.clock.t - self._told < TURN_S:
            return
        self._told, self._turns = self.clock.t, self._turns + 1
        exchange.turn()
        if self._turns % LOOK_TURNS == 0:
            await exchange.follow()

    def _stored(self, work: UnitOfWork) -> None:
        if work.job.state is JobState.RUNNING:
            self._training.add(work.job.id)
        else:
            self._training.discard(work.job.id)


async def carry(url: str, cell: Cell, meeting: Meeting, jobs: int, seconds: float) -> None:
    """Play the world of a cell, which has its share of so many jobs, until all are measured."""
    own = len(range(cell.number, jobs, cell.of))
    async with opened_cell(url, cell) as here:
        world = CellWorld(here, own)
        try:
            opened = await _opened(world, own)
            await meeting.begun()
            assert world.parts is not None
            metrics = world.parts.context.metrics
            before = metrics.value(REPORTS)
            meeting.measured(await _measured(world, own, seconds, opened))
            while not meeting.over:
                await world.step()
            meeting.ends(metrics.value(REPORTS) - before)
        finally:
            await world.close()


def cell_figures(jobs: int, seconds: float, cells: int) -> dict[str, dict[str, float]]:
    """Of so many jobs over one PostgreSQL: of each process that carries some, and in sum."""
    found: Together[Counts] = played_together(cells, carry, jobs, seconds)
    rows = {f"cell {number + 1} of {cells}": _timed([one], seconds) for number, one in enumerate(found.each)}
    database = {
        "database_ms_a_report": round(found.database_ms, 2),
        "database_cores": round(found.database_s / found.seconds, 2),
    }
    whole = {"1 process" if cells == 1 else f"{cells} processes": _timed(found.each, seconds) | database}
    return whole if cells == 1 else rows | whole


def _timed(found: Sequence[Counts], seconds: float) -> dict[str, float]:
    """With what was done in a second of these processes' own time."""
    return row(found, seconds) | {
        "wall_s": round(max(one.wall_s for one in found), 1),
        "reports_a_second": round(sum(one.reports / one.wall_s for one in found), 1),
        "cores": round(sum(one.coordinator_s / one.wall_s for one in found), 2),
        "node_cores": round(sum(one.nodes_s / one.wall_s for one in found), 2),
    }


# --- the program ------------------------------------------------------------------------------------------------------------


def shown(rows: dict[str, dict[str, float]], of: str) -> Table:
    """For people."""
    names = max(rows.values(), key=len)
    table = Table(of, *names, title="many jobs at work")
    for name, row in rows.items():
        table.add_row(name, *(str(row.get(column, "")) for column in names))
    return table


def main(arguments: list[str]) -> None:
    """Measure, print, publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="+", default=[10, 100, 1_000])
    parser.add_argument("--seconds", type=float, default=60.0, help="of the world's time that are measured")
    add_cells(parser)
    options = parser.parse_args(arguments)
    check_cells(parser, options.cells, min(options.jobs))
    if options.cells is None:
        rows = {str(jobs): asyncio.run(figures(jobs, options.seconds)) for jobs in options.jobs}
        Console(stderr=True).print(shown(rows, "jobs"))
        publish("jobs_at_work", "a job costs the coordinator as much beside a thousand others", {"rows": rows})
        return
    rows = {}
    for jobs in options.jobs:
        for cells in sorted({1, options.cells}):
            found = cell_figures(jobs, options.seconds, cells)
            rows |= {f"{jobs} jobs, {name}": row for name, row in found.items()}
            Console(stderr=True).print(shown(found, f"{jobs} jobs"))
    claim = "processes that carry a cell each have as many jobs at work as their number says"
    publish("jobs_at_work_in_cells", claim, {"rows": rows})


if __name__ == "__main__":
    main(sys.argv[1:])
