"""The quote against what the run then cost: varied jobs in a simulated network with the real services.

Writes ``build/bench/quotes.json``; the exit code is 1 where fewer than nine of ten jobs cost what their quote's range said. Nodes
crash, lose their connection and come back by one seed (``tests.sim.world``); they leave several times as often as the estimator
assumes at first, so that it has to learn from the jobs before. Each job is quoted, funded, trained, audited and settled by the
coordinator's own services; only the computing is scripted, so hours say nothing here and are left out.
"""

import argparse
import asyncio
import random
from dataclasses import replace
from typing import Any

import msgspec

from benchmarks.common import publish
from coordinator.domain.job import LIVE, Job
from protocol.job.job import JobSpec
from protocol.rest.api import NewJob
from tests.coordinator.fakes import spec
from tests.sim.test_faults import gather_nodes
from tests.sim.world import World

GOAL = 0.9
NODES = 8
SHAPES = ((1, 1), (1, 2), (2, 1), (2, 2), (1, 3), (1, 4), (4, 1), (2, 3), (3, 2), (None, None))
MAX_TURNS = 120_000


def document(number: int, chance: random.Random) -> JobSpec:
    """Jobs that differ in shape, length, period and rounds."""
    stages, replicas = SHAPES[number % len(SHAPES)]
    inner, rounds = chance.choice((1, 2, 4)), chance.choice((6, 12, 20))
    made = spec(stages, replicas, tokens=rounds * inner * 256 * (replicas or 2), inner_steps=inner)
    period = chance.choice(("fixed", "fixed", "growing"))
    training = msgspec.structs.replace(made.training, period=period, outer=chance.choice(("diloco", "averaging")))
    return msgspec.structs.replace(made, name=f"quoted {number}", training=training, budget=10**9)


async def one(world: World, asked: JobSpec) -> dict[str, Any]:
    """One job from its quote to its end."""
    await gather_nodes(world)
    assert world.parts is not None
    price = (await world.parts.jobs.quote(asked)).price_high
    view = await world.parts.jobs.create(NewJob(msgspec.structs.replace(asked, budget=price)))
    async with world.parts.desk.open(view.id) as work:
        await world.parts.funding.queue_funding(work)
    turns, began, before = 0, world.clock.t, world.happened.copy()
    while (stored := await read(world, view.id)).state in LIVE and turns < MAX_TURNS:
        for _ in range(200):
            await world.turn()
        turns += 200
    quote = view.quote
    return {
        "name": asked.name,
        "state": str(stored.state),
        "shape": f"{quote.stages} x {quote.replicas}",
        "rounds": quote.rounds,
        "faults": sum((world.happened - before).values()),
        "seconds": round(world.clock.t - began),
        "price_low": quote.price_low,
        "price_likely": quote.price_likely,
        "price_high": quote.price_high,
        "paid": stored.paid,
        "in_range": quote.price_low <= stored.paid <= quote.price_high,
    }


async def read(world: World, job: str) -> Job:
    """The job as it is in the store."""
    async with world.records.transaction() as tx:
        return await tx.get(Job, job)


async def run(count: int, seed: int, faults: float) -> list[dict[str, Any]]:
    """All jobs, one after the other, in one world."""
    world = World(seed, NODES, faults, {"minimum_price": 0, "price_per_petaflop": 10**9})
    world.crashes = False
    world.config = replace(world.config, settle_every=4)
    await world.start()
    chance, found = random.Random(seed), []
    for number in range(count):
        found.append(await one(world, document(number, chance)))
        print(found[-1], flush=True)
    return found


def main() -> int:
    """Run and count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=float, nargs="+", default=[0.05], help="times the simulated worlds' own rate")
    options = parser.parse_args()
    figures = {str(rate): judged(asyncio.run(run(options.jobs, options.seed, rate))) for rate in options.faults}
    told = {"goal": GOAL, "seed": options.seed, "by_faults": figures}
    publish("quotes", "a job costs what its quote's range said, in nine cases of ten", told)
    return 0 if all(one["in_range"] >= GOAL * one["jobs"] for one in figures.values()) else 1


def judged(found: list[dict[str, Any]]) -> dict[str, Any]:
    """What became of the jobs of one world."""
    inside = sum(one["in_range"] for one in found)
    paid = sum(one["paid"] for one in found) / sum(one["price_high"] for one in found)
    width = sum(1 - one["price_low"] / one["price_high"] for one in found) / len(found)
    return {
        "jobs": len(found),
        "in_range": inside,
        "less_than_price": sum(one["paid"] < one["price_high"] for one in found),
        "paid_of_prices": round(paid, 4),
        "mean_width": round(width, 4),
        "each": found,
    }


if __name__ == "__main__":
    raise SystemExit(main())
