"""kill -9 of the coordinator over a database on the disk, and at any wait of its store: every result once, nothing paid twice."""

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from coordinator.store.memory import MemoryStore
from coordinator.store.ports import Store, Transaction
from coordinator.store.sql import SqlStore
from tests.coordinator.arrays.arrayed import ArrayWorld, truth
from tests.coordinator.fakes import BUDGET


class DyingStore:
    """A store under which the process dies now and then: before a commit, or just after it."""

    def __init__(self, inner: MemoryStore, seed: int) -> None:
        self._inner, self._lot = inner, random.Random(seed)
        self.kills, self.on = 0, False

    def _may_die(self) -> None:
        if self.on and self._lot.random() < 0.03:
            self.kills += 1
            raise KilledError

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with self._inner.transaction() as tx:
            yield tx
            self._may_die()
        self._may_die()

    async def close(self) -> None:
        await self._inner.close()


class KilledError(BaseException):
    """The process is gone: nothing may catch it."""


async def assert_whole(world: ArrayWorld, job: str, count: int) -> None:
    over = await world.stored(job)
    assert over.state == "settled"
    assert await world.results(job) == {index: truth(index) for index in range(count)}
    for course in await world.courses(job):
        assert len({one.owner for one in course.tries if one.paid}) == sum(one.paid for one in course.tries) == 2
    shares = await world.shares(job)
    assert sum(share.leaves for share in shares) == 2 * count, "each run that holds is in one share"
    assert over.paid == sum(share.amount for share in shares if share.state == "verified")
    assert over.paid + over.refunded == BUDGET


@pytest.mark.parametrize("seed", range(4))
async def test_a_coordinator_that_dies_at_any_wait_of_its_store_loses_and_pays_nothing_twice(seed: int) -> None:
    store = DyingStore(MemoryStore(), seed)
    world = ArrayWorld(store=cast(Store, store), seed=seed)
    for number in range(1, 5):
        await world.come(number, slots=2)
    job = await world.submit(world.document(80))
    store.on = True
    for _ in range(3_000):
        try:
            await world.turn()
            if (await world.stored(job)).state == "settled":
                break
        except (KilledError, BaseExceptionGroup):  # Within what was done side by side, it comes in a group.
            store.on = False
            await world.kill()
            store.on = True
    store.on = False
    assert store.kills > 5
    await assert_whole(world, job, 80)


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_ten_thousand_elements_come_once_through_kills_of_eight_agents_and_of_the_coordinator() -> None:
    world, lot, count = ArrayWorld(seed=8), random.Random(8), 10_000
    nodes = [await world.come(number, slots=16, pace=0.5) for number in range(1, 9)]
    job = await world.submit(world.document(count))
    crashes = kills = 0
    for turn in range(4_000):
        await world.turn(0.25)
        if turn % 9 == 4:
            await world.crash(lot.choice(nodes))
            crashes += 1
        if turn % 61 == 30:
            await world.kill()
            kills += 1
        if (await world.stored(job)).state == "settled":
            break
    assert crashes > 20
    assert kills > 3
    await assert_whole(world, job, count)


CHILD = """
import asyncio, sys
from tests.coordinator.arrays.test_kills import lives
asyncio.run(lives(*sys.argv[1:]))
"""


async def lives(folder: str, job: str) -> None:
    """A coordinator's process: it goes on with what is in the database until the job is over, or until it is killed."""
    store = await SqlStore.open(f"sqlite+aiosqlite:///{folder}/cottage.db")
    world = ArrayWorld(store=store, seed=os.getpid())
    document = world.document(60)  # Its files are in memory, so each process makes them again.
    world.chain.wallets.clear()
    for number in range(1, 5):
        await world.come(number, slots=2)
    await world.parts.recover()
    assert document.array is not None
    for turn in range(2_000):
        await world.turn()
        if turn == 12:
            sys.stdout.write("at work\n")
            sys.stdout.flush()
        if (await world.stored(job)).state in ("verifying", "settled"):
            break
    await store.close()


@pytest.mark.long
async def test_kill_9_of_a_process_over_a_database_on_the_disk(tmp_path: Path) -> None:
    store = await SqlStore.open(f"sqlite+aiosqlite:///{tmp_path}/cottage.db")
    world = ArrayWorld(store=store)
    for number in range(1, 5):
        await world.come(number, slots=2)
    job = await world.submit(world.document(60))
    for _ in range(4):
        await world.turn()
    await store.close()
    for _ in range(4):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CHILD, str(tmp_path), job, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        if await process.stdout.readline():
            process.send_signal(signal.SIGKILL)
        await process.wait()
    store = await SqlStore.open(f"sqlite+aiosqlite:///{tmp_path}/cottage.db")
    last = ArrayWorld(store=store, seed=99)
    last.document(60)
    last.chain = world.chain
    last.parts = last._assemble()
    for number in range(1, 5):
        await last.come(number, slots=2)
    await last.parts.recover()
    over = await last.until_over(job)
    assert over.state == "settled"
    courses = await last.courses(job)
    assert len(courses) == 60
    for course in courses:
        assert course.state == "done"
        assert sum(one.paid for one in course.tries) == 2
    assert sum(share.leaves for share in await last.shares(job)) == 120
    await store.close()
