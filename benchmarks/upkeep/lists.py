"""A list of 100 jobs, and the network at a glance, where 1,000 jobs have ended; beside each job asked for by itself.

    python -m benchmarks.upkeep.lists [--jobs 1000] [--repeats 20]

The real services over SQLite on a disk; the peer is the same service, asked for the same 100 jobs one by one.
Writes build/bench/lists.json.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.common import publish
from coordinator.domain.job import JobState
from coordinator.store.sql import SqlStore
from tests.coordinator.bench import Bench
from tests.coordinator.many_jobs import fill

PAGE = 100


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = await SqlStore.open(f"sqlite+aiosqlite:///{Path(folder) / 'coordinator.db'}")
        bench = Bench(store=store)
        jobs = (await fill(store, options.jobs, (JobState.SETTLED,)))[-PAGE:]
        services = bench.parts

        async def one_by_one() -> None:
            for job in jobs:
                await services.jobs.get(job)

        listed = await median_ms(lambda: services.jobs.list(PAGE, None), options.repeats)
        each = await median_ms(one_by_one, options.repeats)
        view = await median_ms(services.network.view, options.repeats)
        await store.close()
    publish(
        "lists",
        "a list of jobs takes as many questions as one job, and the network's view reads no job",
        {
            "jobs": options.jobs,
            "list_ms": listed,
            "one_by_one_ms": each,
            "ratio": round(each / listed, 1),
            "network_view_ms": view,
        },
    )


async def median_ms(ask: Callable[[], Awaitable[object]], repeats: int) -> float:
    """The median time of an answer, in milliseconds, after one that is not counted."""
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        await ask()
        times.append(time.perf_counter() - began)
    return round(1000 * statistics.median(times[1:]), 2)


if __name__ == "__main__":
    asyncio.run(main())
