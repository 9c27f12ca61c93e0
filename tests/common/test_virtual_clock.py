"""A clock that tests move, and waiting between tries."""

import asyncio

import pytest

from common.clock import BACKOFF_MAX_S, Clock, SystemClock, backoff, within
from tests.support.clock import VirtualClock


async def test_sleepers_wake_in_the_order_of_their_times() -> None:
    clock = VirtualClock(start=0)
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.now()))

    async with asyncio.TaskGroup() as group:
        for name, seconds in (("late", 30.0), ("soon", 10.0), ("hour", 3600.0)):
            group.create_task(sleeper(name, seconds))
        await clock.advance(29)
        assert woken == [("soon", 10.0)]
        await clock.advance(3600)
    assert woken == [("soon", 10.0), ("late", 30.0), ("hour", 3600.0)]
    assert clock.time() == 3629


async def test_a_sleeper_that_sleeps_again_wakes_within_one_advance() -> None:
    clock = VirtualClock(start=0)
    ticks: list[float] = []

    async def ticker() -> None:
        while True:
            await clock.sleep(1)
            ticks.append(clock.now())

    task = asyncio.create_task(ticker())
    await clock.advance(5)
    task.cancel()
    assert ticks == [1, 2, 3, 4, 5]


async def test_a_time_limit_ends_what_takes_too_long() -> None:
    clock = VirtualClock()

    async def wait() -> None:
        async with clock.timeout(5):
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await clock.advance(4.9)
    assert not task.done()
    await clock.advance(0.1)
    with pytest.raises(TimeoutError):
        await task


async def test_a_time_limit_lets_go_of_what_ended_in_time() -> None:
    clock = VirtualClock()
    async with clock.timeout(5):
        pass
    async with clock.timeout(None):
        pass
    await clock.advance(10)


async def test_the_system_clock_moves_by_itself() -> None:
    clock: Clock = SystemClock()
    before, today = clock.now(), clock.time()
    await clock.sleep(0.001)
    assert clock.now() > before
    assert clock.time() >= today > 1_700_000_000
    with pytest.raises(TimeoutError):
        async with clock.timeout(0.001):
            await asyncio.Event().wait()


def test_backoff_doubles_to_a_bound_and_is_spread_by_chance() -> None:
    full = [backoff(attempt, lambda: 0.0) for attempt in range(1, 30)]
    assert full[:4] == [0.25, 0.5, 1.0, 2.0]
    assert full[-1] == BACKOFF_MAX_S == max(full)
    assert backoff(3, lambda: 0.999) < 0.6
    assert backoff(10**9, lambda: 0.0) == BACKOFF_MAX_S


@pytest.mark.parametrize("steps", range(8))
async def test_a_caller_that_is_cancelled_while_its_work_ends_is_cancelled(steps: int) -> None:
    """In whatever order the two come: the wait_for of Python 3.11 forgot it where the work was done first."""
    ready, goes_on = asyncio.Event(), []

    async def caller() -> None:
        await within(5, ready.wait())
        await asyncio.sleep(0)
        goes_on.append("the caller goes on")

    task = asyncio.create_task(caller())
    for _ in range(3):
        await asyncio.sleep(0)
    ready.set()
    for _ in range(steps):
        await asyncio.sleep(0)
    if not task.done():
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()
    assert task.cancelled() is not bool(goes_on)


async def test_work_that_takes_longer_is_ended_and_its_own_failure_is_raised() -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("work")

    async def failing() -> None:
        raise ConnectionError("no line")

    with pytest.raises(TimeoutError):
        await within(0.01, work())
    assert ended == ["work"]
    with pytest.raises(ConnectionError, match="no line"):
        await within(None, failing())


async def test_a_caller_that_is_being_cancelled_can_still_give_up_in_time() -> None:
    gave_up = []

    async def caller() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            try:
                await within(0.01, asyncio.sleep(60))
            except TimeoutError:
                gave_up.append("caller")

    task = asyncio.create_task(caller())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    assert gave_up == ["caller"]
