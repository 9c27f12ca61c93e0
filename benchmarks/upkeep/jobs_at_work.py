"""Many jobs at work at a time in one coordinator, on virtual time: what each costs it beside so many others.

    python -m benchmarks.upkeep.jobs_at_work [--jobs 10 100 1000] [--seconds 60]

A simulated world without faults (`tests/sim`): real services over SQLite, two nodes for each job, which train a round of some
14 s, as quick as rounds ever are. All jobs are made and funded; once they train, so many seconds of the world are played. What
the coordinator takes is told apart from what the simulated nodes do. Processor time, so what else runs on the machine does not
count. Writes build/bench/jobs_at_work.json.
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.common import publish
from coordinator.domain.job import Job, JobState
from coordinator.store.ports import col
from coordinator.store.sql import SqlStore
from protocol.rest.api import NewJob
from tests.coordinator.fakes import BUDGET, WALLET, spec
from tests.sim.world import SimNode, World

STEP_S = 0.3
WARM_S = 10.0  # Until jobs that began together do not go on together.
PATIENCE_S = 600.0
TOKENS = 1 << 20  # A thousand rounds: no job ends while it is looked at.


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
    while (training := await at_work(world)) < jobs:
        assert world.clock.t < patience, f"only {training} of {jobs} jobs train"
        await world.step()


async def at_work(world: CrowdedWorld) -> int:
    """How many jobs train."""
    async with world.records.transaction() as tx:
        found = await tx.sums(Job, col(Job.version), (), col(Job.state).equals(JobState.RUNNING))
    return found.get((), (0, 0))[0]


async def figures(jobs: int, seconds: float) -> dict[str, float]:
    """Of so many jobs at a time."""
    with tempfile.TemporaryDirectory() as folder:
        store = await SqlStore.open(f"sqlite+aiosqlite:///{Path(folder) / 'c.db'}")
        try:
            return await _played(store, jobs, seconds)
        finally:
            await store.close()


async def _played(store: SqlStore, jobs: int, seconds: float) -> dict[str, float]:
    world = CrowdedWorld(1, 2 * jobs, faults=0.0, settings={"validations": 0, "min_stake": 0, "spares": 0})
    world.records = store  # type: ignore[assignment]
    began = time.process_time()
    await begun(world, jobs)
    opened = time.process_time() - began
    assert world.parts is not None
    # From now on each job looks for spares, of which there is none: before, jobs that came first would have them.
    world.parts.context.__dict__["config"] = replace(world.config, spares=2)
    await _on(world, WARM_S)
    metrics = world.parts.context.metrics
    before = {name: metrics.value(name) for name in ("reports_total", "rounds_complete_total")}
    world.spent, began = 0.0, time.process_time()
    await _on(world, seconds)
    every, minutes = time.process_time() - began, seconds / 60
    done = {name: metrics.value(name) - was for name, was in before.items()}
    each = jobs * minutes
    return {
        "at_work": await at_work(world),
        "rounds_a_job_and_minute": round(done["rounds_complete_total"] / each, 2),
        "reports_a_job_and_minute": round(done["reports_total"] / each, 1),
        "coordinator_ms_a_job_and_minute": round(1000 * world.spent / each, 1),
        "coordinator_ms_a_report": round(1000 * world.spent / max(1, done["reports_total"]), 2),
        "simulated_nodes_ms_a_job_and_minute": round(1000 * (every - world.spent) / each, 1),
        "ms_a_job_to_begin": round(1000 * opened / jobs, 1),
    }


async def _on(world: CrowdedWorld, seconds: float) -> None:
    until = world.clock.t + seconds
    while world.clock.t < until:
        await world.step()


def main(arguments: list[str]) -> None:
    """Measure, print, publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="+", default=[10, 100, 1_000])
    parser.add_argument("--seconds", type=float, default=60.0, help="of the world's time that are measured")
    options = parser.parse_args(arguments)
    found = {jobs: asyncio.run(figures(jobs, options.seconds)) for jobs in options.jobs}
    table = Table("jobs", *next(iter(found.values())), title="many jobs at work")
    for jobs, row in found.items():
        table.add_row(str(jobs), *(str(value) for value in row.values()))
    Console(stderr=True).print(table)
    rows = {str(jobs): row for jobs, row in found.items()}
    publish("jobs_at_work", "a job costs the coordinator as much beside a thousand others", {"rows": rows})


if __name__ == "__main__":
    main(sys.argv[1:])
