"""How soon a second coordinator on the same PostgreSQL answers, under a run at work: the first is killed, frozen or ended.

Beside it: one coordinator on SQLite that is killed and started again at once, as a service manager does. Writes
``build/bench/takeover.json``; the exit code is 1 where a goal is missed. Goals: after a kill another one answers within 5 s
(median); the run ends, no complete round is done again, and every node has what was verified.
"""

import argparse
import asyncio
import dataclasses
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import publish
from coordinator.client import Client
from coordinator.client.errors import ClientError
from tests.chaos.checks import check
from tests.chaos.storm import Storm, Weather
from tests.chaos.takeovers import MANNERS, Takeovers
from tests.chaos.test_takeovers import CALM

GOAL_S = 5.0


async def taken_over(folder: Path, weather: Weather, strikes: int) -> dict[str, Any]:
    """Seconds until the other one answered, by what befell the first."""
    async with Takeovers(folder, weather, strikes=strikes) as storm:
        await check(storm, await storm.to_the_end())
    times = {manner: [one.seconds for one in storm.made if one.manner == manner] for manner in MANNERS}
    return {manner: _told(found) for manner, found in times.items() if found}


async def started_again(folder: Path, weather: Weather, times: int) -> dict[str, Any]:
    """Seconds until a coordinator answers that is killed and started again."""
    found: list[float] = []
    async with Storm(folder, dataclasses.replace(weather, stages=1, replicas=1)) as storm:
        await storm.start()
        for _ in range(times):
            began = time.monotonic()
            assert storm.coordinator is not None
            await storm.household.kill(storm.coordinator)
            await storm.start_coordinator(storm.ledger_url)
            await _answers(storm.web)
            found.append(time.monotonic() - began)
    return _told(found)


async def _answers(url: str) -> None:
    async with Client(url) as client:
        while True:
            try:
                await client.network()
            except ClientError:
                await asyncio.sleep(0.05)
            else:
                return


def _told(seconds: list[float]) -> dict[str, Any]:
    return {"times": len(seconds), "median_s": round(statistics.median(seconds), 2), "most_s": round(max(seconds), 2)}


def main() -> int:
    """Run both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--strikes", type=int, default=30, help="of coordinators, over one run (%(default)s)")
    parser.add_argument("--rounds", type=int, default=120, help="of the run (%(default)s)")
    parser.add_argument("--again", type=int, default=5, help="times that one alone is started again (%(default)s)")
    options = parser.parse_args()
    weather = dataclasses.replace(CALM, rounds=options.rounds)
    with tempfile.TemporaryDirectory() as place:
        two = asyncio.run(taken_over(Path(place) / "two", weather, options.strikes))
        one = asyncio.run(started_again(Path(place) / "one", weather, options.again))
    reached = two["killed"]["median_s"] <= GOAL_S
    publish("takeover", "a second coordinator takes over", {"two": two, "one_again": one, "within_5_s": reached})
    return 0 if reached else 1


if __name__ == "__main__":
    raise SystemExit(main())
