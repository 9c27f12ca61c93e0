"""What machines offered and were paid, day by day, and what that lets another machine expect."""

import math

import pytest

from benchmarks.planning.earnings_weeks import judge
from coordinator.domain import forecast
from coordinator.services.network.machine_days import (
    DAY_S,
    LEAST_HERE_S,
    STORE_S,
    WEEK_DAYS,
    WEEKS,
    Added,
    MachineDays,
    add,
)
from coordinator.store.ports import col
from coordinator.store.records import MachineDay
from tests.coordinator.bench import Bench

HOUR = 3600.0


async def days_of(bench: Bench) -> dict[tuple[str, int], MachineDay]:
    async with bench.store.transaction() as tx:
        return {(one.node, one.day): one for one in await tx.find(MachineDay)}


async def pass_by(bench: Bench, seconds: float) -> None:
    """Time goes by, looked at every minute."""
    for _ in range(int(seconds / 60)):
        bench.clock.t += 60.0
        await bench.parts.days.poll()


async def test_who_is_here_counts_as_long_as_it_is_and_at_its_speed() -> None:
    bench = Bench()
    first = await bench.enter(1, flops=2e12)
    second = await bench.enter(2, flops=1e12)
    await pass_by(bench, HOUR)
    bench.parts.nodes.leave(second)
    await pass_by(bench, HOUR)
    await bench.parts.days.store()
    found = [one for (node, _), one in sorted((await days_of(bench)).items()) if node == first.node]
    assert sum(one.seconds for one in found) == pytest.approx(2 * HOUR, abs=60)
    assert sum(one.gigaflop for one in found) == pytest.approx(2 * HOUR * 2e3, rel=0.01)
    gone = [one for (node, _), one in (await days_of(bench)).items() if node == second.node]
    assert sum(one.seconds for one in gone) == pytest.approx(HOUR, abs=60)


async def test_nothing_is_lost_between_two_stores_and_nothing_counts_twice() -> None:
    bench = Bench()
    await bench.enter(1, flops=1e12)
    await pass_by(bench, STORE_S / 2)
    assert await days_of(bench) == {}, "it is stored every ten minutes"
    before = (await bench.parts.market.now()).capacity_week
    assert before == pytest.approx(1e12 * STORE_S / 2)
    await pass_by(bench, STORE_S)
    assert (await bench.parts.market.now()).capacity_week == pytest.approx(1e12 * STORE_S * 1.5)
    again = MachineDays(bench.parts.context, bench.parts.nodes)
    assert again.waiting() == 0.0, "a new process counts from when it began"


async def test_a_day_begins_at_midnight_and_old_ones_are_forgotten() -> None:
    bench = Bench()
    bench.clock.t = 1000 * DAY_S - HOUR
    node = (await bench.enter(1)).node
    await pass_by(bench, 2 * HOUR)
    await bench.parts.days.store()
    found = await days_of(bench)
    assert [found[node, day].seconds for day in (999, 1000)] == [
        pytest.approx(HOUR, abs=STORE_S),
        pytest.approx(HOUR, abs=STORE_S),
    ]
    bench.clock.t += (WEEKS + 2) * WEEK_DAYS * DAY_S
    await bench.parts.days.store()
    async with bench.store.transaction() as tx:
        assert await tx.find(MachineDay, col(MachineDay.day) < 1002) == []


async def weeks(bench: Bench, earned: list[int]) -> None:
    """Each machine was here for a day, for 10^15 operations, and earned so much."""
    async with bench.store.transaction() as tx:
        for number, units in enumerate(earned):
            await add(tx, bench.clock.t, {f"machine-{number}": Added(seconds=DAY_S, gigaflop=10**6, earned=units)})
    await bench.parts.days.store()


async def test_a_forecast_is_what_nine_of_ten_weeks_brought() -> None:
    bench = Bench()
    await weeks(bench, list(range(1, 41)))
    market = await bench.parts.market.now()
    assert (market.pay_low, market.pay_high) == (2, 39), "the second from each end, of forty"


async def test_who_was_never_paid_or_hardly_here_says_nothing_of_what_a_week_brings() -> None:
    bench = Bench()
    await weeks(bench, [10] * 11 + [0] * 30)
    assert (await bench.parts.market.now()).pay_low is None, "eleven are too few"
    async with bench.store.transaction() as tx:
        await add(tx, bench.clock.t, {"brief": Added(seconds=LEAST_HERE_S - 1, gigaflop=10**6, earned=1000)})
    await bench.parts.days.store()
    assert (await bench.parts.market.now()).pay_low is None
    async with bench.store.transaction() as tx:
        await add(tx, bench.clock.t, {"twelfth": Added(seconds=DAY_S, gigaflop=10**6, earned=10)})
    await bench.parts.days.store()
    market = await bench.parts.market.now()
    assert (market.pay_low, market.pay_high) == (10, 10)


def test_too_few_weeks_say_nothing() -> None:
    assert forecast.pay([1.0] * (forecast.LEAST_WEEKS - 1)) is None
    assert forecast.pay([0.0] * forecast.LEAST_WEEKS) == forecast.Range(0.0, 0.0, 0.0)
    found = forecast.pay([float(number) for number in range(100)])
    assert found is not None
    assert (found.low, found.high) == (4.0, 95.0)
    assert math.isclose(found.middle, 49.5)


@pytest.mark.long
async def test_weeks_that_are_simulated_bring_what_was_told_at_their_beginning() -> None:
    found = await judge(seed=5, machines=12, weeks=4, busy=0.5)
    assert found["ours_machine_weeks"] >= 0.75
    assert found["ours_weeks_of_the_middle"] >= 3
    assert found["ours_machine_weeks"] > found["peer_machine_weeks"]
