"""What a lender is told that a day brings, beside what simulated weeks then bring.

    python -m benchmarks.planning.earnings_weeks [--weeks 20] [--machines 16] [--seeds 11 12 13]

Homes with habits of their own lend in the evening, at night or always; jobs of all sizes come, few in one week and many in the
next. Prices, shares of rounds, the count of machines' days, the market's page and the forecast are the product's own; the course
of a job is simulated: who leaves loses the round at hand. The peer is the forecast from price and demand of the moment alone,
which is what a lender is told until twelve weeks of machines are known. A forecast holds where the week lies within its range.
Writes build/bench/earnings_weeks.json.
"""

import argparse
import asyncio
import math
import random
import statistics
from collections import defaultdict
from dataclasses import dataclass, field, replace

from benchmarks.common import publish
from coordinator.domain import pricing
from coordinator.services.network.machine_days import add
from desktop.agent.base.config import Settings
from desktop.agent.earnings.earnings_estimate import MarketPrices, NetworkPrices, Prediction, predict
from protocol.rest.market import Market
from tests.coordinator.bench import CONFIG, Bench

STEP_S = 1800.0
DAY, WEEK = 86_400.0, 7 * 86_400.0
BEFORE = 4  # Weeks of history before the first forecast that is judged.
ROUNDS, USEFUL = 24, 0.6  # Of a job; of a machine's speed, while it waits for peers and lines.
MINIMUM = 1_000_000  # The least price of a job: a token.
KWH = Settings(electricity=100_000)  # A tenth of a token.


@dataclass
class Home:
    """A machine: ``flops`` a second at ``watts``; here from ``start`` for ``hours`` of most days; its least ``floor``."""

    number: int
    flops: float
    watts: float
    start: float
    hours: float
    floor: int
    node: str = ""
    job: "Work | None" = None
    earned: int = 0
    here_s: float = 0.0
    busy_s: float = 0.0


@dataclass
class Work:
    """A job: ``operations`` in all, of which ``done``; its price and the operations of each member in the round at hand."""

    operations: float
    seats: int
    price: int = 0
    done: float = 0.0
    members: list[Home] = field(default_factory=list)
    round: dict[int, float] = field(default_factory=dict)


class World:
    """One network from its first day on."""

    def __init__(self, seed: int, machines: int, busy: float) -> None:
        """``busy``: of all that is offered, how much jobs ask for in the mean."""
        self.chance, self.busy = random.Random(seed), busy
        self.bench = Bench(config=replace(CONFIG, minimum_price=MINIMUM))
        self.homes = [self._home(number) for number in range(1, machines + 1)]
        self.waiting: list[Work] = []
        self.running: list[Work] = []
        self.rate = CONFIG.price_per_petaflop

    def _home(self, number: int) -> Home:
        draw = self.chance
        always = draw.random() < 0.25
        hours = 24.0 if always else draw.uniform(3, 12)
        flops = 1.2e13 * math.exp(draw.gauss(0, 0.6))
        floor = int(CONFIG.price_per_petaflop * draw.uniform(0, 1.2))
        return Home(number, flops, 100 + flops / 1e11, draw.uniform(16, 22), hours, floor)

    async def week(self) -> None:
        """A week of steps; how much is asked for differs from week to week."""
        for home in self.homes:
            home.earned, home.here_s, home.busy_s = 0, 0.0, 0.0
        offered = sum(home.flops * home.hours / 24 for home in self.homes) * USEFUL
        demand = self.busy * math.exp(self.chance.gauss(0, 0.4))
        for _ in range(int(WEEK / STEP_S)):
            await self._step(offered * demand * STEP_S)

    async def _step(self, asked: float) -> None:
        self.bench.clock.t += STEP_S
        await self._come_and_go()
        size = math.exp(self.chance.gauss(0, 1.2))
        if self.chance.random() < 0.25:
            self.waiting.append(Work(4 * asked * size / math.exp(0.72), self.chance.choice((1, 2, 2, 4, 6))))
        self._price()
        self._seat()
        for work in list(self.running):
            await self._train(work)
        await self.bench.parts.days.poll()

    async def _come_and_go(self) -> None:
        hour = self.bench.clock.t / 3600 % 24
        nodes = self.bench.parts.nodes
        for home in self.homes:
            lends = (hour - home.start) % 24 < home.hours and self.chance.random() > 0.01
            session = nodes.session(home.node) if home.node else None
            if lends and session is None:
                home.node = (await self.bench.enter(home.number, flops=home.flops, floor=home.floor)).node
            elif not lends and session is not None:
                nodes.leave(session)
                self._leave(home)
            home.here_s += STEP_S if lends else 0.0

    def _leave(self, home: Home) -> None:
        if home.job is not None:
            home.job.members.remove(home)
            home.job.round.pop(home.number, None)  # Its part of the round at hand is lost.
            home.job = None

    def _here(self) -> list[Home]:
        return [home for home in self.homes if home.node and self.bench.parts.nodes.session(home.node) is not None]

    def _price(self) -> None:
        offers = [pricing.Offer(int(home.flops), home.floor) for home in self._here()]
        queued = int(sum(work.operations - work.done for work in (*self.waiting, *self.running)))
        target = pricing.rate(offers, queued, CONFIG.price_per_petaflop)
        self.rate = pricing.stepped(self.rate, target, int(STEP_S / pricing.STEP_S))

    def _seat(self) -> None:
        free = sorted((home for home in self._here() if home.job is None), key=lambda home: -home.flops)
        for work in (*self.running, *self.waiting):
            while len(work.members) < work.seats and free:
                chosen = free.pop(0)
                chosen.job = work
                work.members.append(chosen)
            if work.members and not work.price:
                work.price = pricing.price(int(work.operations), self.rate, MINIMUM)
                self.running.append(work)
        self.waiting = [work for work in self.waiting if not work.price]

    async def _train(self, work: Work) -> None:
        for home in work.members:
            work.round[home.number] = work.round.get(home.number, 0.0) + home.flops * USEFUL * STEP_S
            home.busy_s += STEP_S
        made = sum(work.round.values())
        if made >= min(work.operations / ROUNDS, work.operations - work.done) > 0:
            await self._pay(work, min(made, work.operations - work.done))
        if work.done >= work.operations * (1 - 1e-9):
            self.running.remove(work)
            for home in work.members:
                home.job = None

    async def _pay(self, work: Work, made: float) -> None:
        before, after, whole = int(work.done), int(work.done + made), int(work.operations)
        pot = pricing.pot(work.price, before, after, whole)
        weights = {str(number): int(part) for number, part in work.round.items()}
        work.done, work.round = work.done + made, {}
        by_number = {str(home.number): home for home in self.homes}
        async with self.bench.store.transaction() as tx:
            for number, part in pricing.shares(pot, weights).items():
                by_number[number].earned += part
                await add(tx, by_number[number].node, self.bench.clock.t, earned=part)

    async def forecasts(self, *, learned: bool) -> dict[int, Prediction]:
        """What each machine is told now, from other machines' weeks or from price and demand alone."""
        market: Market = await self.bench.parts.market.now()
        here = self._here()
        online, busy = len(here), sum(home.job is not None for home in here)
        network = NetworkPrices(online, busy, self.rate)
        told = MarketPrices(self.rate, market.pay_low, market.pay_high) if learned else MarketPrices(self.rate)
        return {home.number: predict(home.flops, network, told, home.watts, KWH) for home in self.homes}

    def days(self) -> dict[int, float]:
        """What a day of 24 hours here brought each machine this week, after electricity."""
        power = {home.number: home.busy_s / 3600 * home.watts / 1000 * KWH.electricity for home in self.homes}
        return {
            home.number: (home.earned - power[home.number]) / home.here_s * DAY for home in self.homes if home.here_s
        }


async def judge(seed: int, machines: int, weeks: int, busy: float) -> dict[str, float]:
    """How many machines' weeks, and weeks of the middle machine, lie within what was told at their beginning."""
    world = World(seed, machines, busy)
    for _ in range(BEFORE):
        await world.week()
    held: dict[str, list[bool]] = defaultdict(list)
    middle: dict[str, list[bool]] = defaultdict(list)
    width: dict[str, list[float]] = defaultdict(list)
    for _ in range(weeks):
        told = {name: await world.forecasts(learned=name == "ours") for name in ("ours", "peer")}
        await world.week()
        days = world.days()
        for name, forecasts in told.items():
            for number, day in days.items():
                held[name].append(forecasts[number].low <= day <= forecasts[number].high)
                width[name].append((forecasts[number].high - forecasts[number].low) / 1e6)
            parts = [day / world.homes[number - 1].flops for number, day in days.items()]
            typical = min(
                days, key=lambda number: abs(days[number] / world.homes[number - 1].flops - statistics.median(parts))
            )
            middle[name].append(forecasts[typical].low <= days[typical] <= forecasts[typical].high)
    found: dict[str, float] = {}
    for name in ("ours", "peer"):
        found |= {
            f"{name}_machine_weeks": round(statistics.mean(held[name]), 3),
            f"{name}_weeks_of_the_middle": sum(middle[name]),
            f"{name}_width_tokens": round(statistics.median(width[name]), 3),
        }
    return found


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--weeks", type=int, default=20)
    parser.add_argument("--machines", type=int, default=16)
    parser.add_argument("--busy", type=float, nargs="*", default=[0.3, 0.6])
    parser.add_argument("--seeds", type=int, nargs="*", default=[11, 12, 13])
    options = parser.parse_args()
    worlds = [
        {"seed": seed, "busy": busy} | await judge(seed, options.machines, options.weeks, busy)
        for busy in options.busy
        for seed in options.seeds
    ]
    publish(
        "earnings_weeks",
        "nine of ten weeks of lending bring what was told at their beginning",
        {"weeks": options.weeks, "machines": options.machines, "worlds": worlds},
    )


if __name__ == "__main__":
    asyncio.run(main())
