"""A thousand requests at the same moment to one coordinator on SQLite: how many are answered, and when.

    python -m benchmarks.upkeep.crowd [--requests 1000] [--jobs 1000] [--reads 4]

`cottage serve` on a database with so many ended jobs, its own process, real HTTP. Of each five requests four read (a page of
jobs, a job, the network, a page for people) and one writes (it makes a job). All are sent at once, each by a connection of its
own; one that is refused counts as refused, and does not come again. Writes build/bench/crowd.json.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import aiohttp
import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.common import publish
from benchmarks.upkeep.many_jobs import HOMES, served
from protocol.rest.api import NewJob
from tests.coordinator.ended_jobs import filled
from tests.coordinator.fakes import spec

READS = ("/api/v1/jobs", f"/api/v1/jobs/{1:032x}", "/api/v1/network", "/jobs")


async def crowd(url: str, requests: int) -> dict[str, float | dict[str, int]]:
    """Send them all, and wait for all."""
    document = msgspec.json.encode(NewJob(spec()))
    statuses: Counter[str] = Counter()
    times: list[float] = []

    async def one(http: aiohttp.ClientSession, number: int) -> None:
        began = time.perf_counter()
        try:
            if number % 5 == 4:
                asked = http.post(f"{url}/api/v1/jobs", data=document, headers={"Content-Type": "application/json"})
            else:
                asked = http.get(url + READS[number % 5])
            async with asked as answer:
                await answer.read()
                statuses[f"{'write' if number % 5 == 4 else 'read'} {answer.status}"] += 1
        except aiohttp.ClientError as error:
            statuses[type(error).__name__] += 1
        times.append(time.perf_counter() - began)

    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=300)) as http:
        began = time.perf_counter()
        await asyncio.gather(*(one(http, number) for number in range(requests)))
        whole = time.perf_counter() - began
    times.sort()
    return {
        "statuses": dict(statuses),
        "seconds": round(whole, 1),
        "median_s": round(statistics.median(times), 2),
        "p99_s": round(times[(len(times) * 99 - 1) // 100], 2),
    }


async def measured(requests: int, jobs: int) -> dict[str, float | dict[str, int]]:
    """On a fresh database."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.mkdir()
        await filled(data / "coordinator.db", jobs, HOMES)
        async with served(data) as url:
            async with aiohttp.ClientSession() as http:
                for path in READS:
                    await (await http.get(url + path)).read()
            return await crowd(url, requests)


def main(arguments: list[str]) -> None:
    """Measure, print, publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1000)
    options = parser.parse_args(arguments)
    found = asyncio.run(measured(options.requests, options.jobs))
    table = Table("", "", title=f"{options.requests} requests at once")
    for name, value in found.items():
        table.add_row(name, str(value))
    Console().print(table)
    publish("crowd", "a thousand requests at once are all answered", {"requests": options.requests, **found})


if __name__ == "__main__":
    main(sys.argv[1:])
