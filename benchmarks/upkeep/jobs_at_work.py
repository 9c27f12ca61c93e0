"""Many jobs at work at a time in one coordinator, on virtual time: what a round of one costs beside so many others.

    python -m benchmarks.upkeep.jobs_at_work [--jobs 10 40]

A simulated world without faults (`tests/sim`): real services over SQLite, two nodes for each job, which answer soon. All jobs
are made, funded and trained to their end, four rounds each. Processor time, so what else runs on the machine does not count.
Writes build/bench/jobs_at_work.json.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.common import publish
from coordinator.domain.job import Job, JobState
from coordinator.store.sql import SqlStore
from protocol.rest.api import NewJob
from tests.coordinator.fakes import BUDGET, WALLET, spec
from tests.sim.world import World

MOST_TURNS = 2_000
STEP_S = 0.3


class CrowdedWorld(World):
    """Every node has its turn at each step, so that thousands of them beat in time."""

    async def step(self) -> None:
        """A moment passes."""
        assert self.parts is not None
        self.clock.t += STEP_S
        await self._upkeep(self.parts)
        for node in self.nodes:
            await self._node_turn(node)


async def begun(world: CrowdedWorld, jobs: int) -> list[str]:
    """So many jobs, funded."""
    parts, made = await world.start(), list[str]()
    world.chain.wallets[WALLET] = jobs * BUDGET
    while len(parts.nodes.sessions()) < 2 * jobs:
        await world.step()
    for _ in range(jobs):
        job = (await parts.jobs.create(NewJob(spec(stages=1, replicas=2)))).id
        funding = asyncio.ensure_future(parts.jobs.fund(job))
        while not funding.done():
            await parts.lanes.drain()
            await asyncio.sleep(0)
        await funding
        made.append(job)
    return made


async def figures(jobs: int) -> dict[str, float]:
    """Of so many jobs at a time."""
    with tempfile.TemporaryDirectory() as folder:
        store = await SqlStore.open(f"sqlite+aiosqlite:///{Path(folder) / 'c.db'}")
        try:
            return await _played(store, jobs)
        finally:
            await store.close()


async def _played(store: SqlStore, jobs: int) -> dict[str, float]:
    world = CrowdedWorld(1, 2 * jobs, faults=0.0, settings={"validations": 0, "min_stake": 0})
    world.records = store  # type: ignore[assignment]
    began = time.process_time()
    made = await begun(world, jobs)
    opened, began = time.process_time() - began, time.process_time()
    assert world.parts is not None
    most, turns, done = 0, 0, 0
    while done < jobs and turns < MOST_TURNS:
        await world.step()
        turns += 1
        async with world.records.transaction() as tx:
            states = [job.state for job in await tx.find(Job)]
        done = states.count(JobState.SETTLED)
        most = max(most, states.count(JobState.RUNNING))
    spent = time.process_time() - began
    rounds = sum([(await world.parts.jobs.get(job)).rounds_done for job in made])
    assert done == jobs, f"{done} of {jobs} jobs are settled after {turns} steps: {states}"
    return {
        "at_work_at_a_time": most,
        "rounds": rounds,
        "steps": turns,
        "ms_a_job_to_begin": round(1000 * opened / jobs, 1),
        "ms_a_round": round(1000 * spent / rounds, 1),
    }


def main(arguments: list[str]) -> None:
    """Measure, print, publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="+", default=[10, 40])
    options = parser.parse_args(arguments)
    found = {jobs: asyncio.run(figures(jobs)) for jobs in options.jobs}
    table = Table("jobs", *next(iter(found.values())), title="many jobs at work")
    for jobs, row in found.items():
        table.add_row(str(jobs), *(str(value) for value in row.values()))
    Console(stderr=True).print(table)
    claim = "a round of one job costs as much beside many others"
    publish("jobs_at_work", claim, {"rows": {str(jobs): row for jobs, row in found.items()}})


if __name__ == "__main__":
    main(sys.argv[1:])
