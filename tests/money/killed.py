"""The payment service, killed by the system at any of its waits: ``python -m tests.money.killed URL DATABASE [--every 1]``.

The parent has imported everything and has neither loop nor thread; for each wait it forks a service of its own, which sends
itself SIGKILL there: what its threads and sockets are in the middle of stays as it is. The next one carries what was left, finds
on the ledger that nobody was paid twice and nothing is lost, and begins the same work anew, to die some waits later. Store and
ledger are files, and the ledger's endpoint is a process of its own, which lives on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from coordinator.services.payments.chain import LedgerChain
from coordinator.store.ports import col
from coordinator.store.records import OutboxRecord
from coordinator.store.sql import SqlStore
from ledger.client import Ledger, LedgerConfig, job_bytes
from ledger.money import Amount
from tests.coordinator.bench import Bench
from tests.coordinator.fakes import COORDINATOR, WALLET
from tests.ledger.served import served
from tests.money.crash import Fuse, every_task_of_the_service, fused
from tests.money.storm import SEED, WALLET_SEED, payee

ROOT = Path(__file__).parents[2]
BUDGET = 10_000_000
JOBS = 2  # Of a life, one after the other.
MAX_DRAINS = 200


def due(number: int) -> dict[str, int]:
    """What the job of this number owes, and whom."""
    return {payee(2 * number): 350, payee(2 * number + 1): 200}


class Deadly(Fuse):
    """Kills this process instead of raising anything."""

    def burns(self) -> bool:
        if super().burns():
            os.kill(os.getpid(), signal.SIGKILL)
        return False


class Life:
    """One service, from its start to its end by whatever means."""

    def __init__(self, ledger: Ledger, store: SqlStore, url: str) -> None:
        self.ledger, self.store = ledger, store
        self.bench = Bench(store=store, chain=LedgerChain(ledger, url, SEED, WALLET_SEED, COORDINATOR))

    async def jobs(self) -> list[str]:
        async with self.store.transaction() as tx:
            return list(dict.fromkeys(row.job for row in await tx.find(OutboxRecord)))

    async def begin(self) -> None:
        """Work that is verified, with its escrow on the ledger and payouts and refund queued; each time for others."""
        one, other = due(len(await self.jobs()))
        job = await self.bench.verified([{one: 300, other: 200}, {one: 50}])
        await self.ledger.open_escrow(WALLET_SEED, job_bytes(job), COORDINATOR, Amount(BUDGET), 2**40)
        async with self.bench.parts.desk.open(job) as work:
            await self.bench.parts.settlement.finish(work)

    async def carry(self, fuse: Fuse) -> None:
        """Carry everything that is open, or die at it."""
        for _ in range(MAX_DRAINS):
            async with self.store.transaction() as tx:
                if not await tx.find(OutboxRecord, col(OutboxRecord.state).in_(("queued", "sent")), limit=1):
                    return
            with every_task_of_the_service(fuse):
                await fused(self.bench.parts.lanes.drain(), fuse)
            self.bench.clock.t += 1.0
        raise AssertionError("payments do not end")

    async def check(self, jobs: Sequence[str]) -> None:
        """Whom the last of the jobs owed has what was due, to the unit, and the rest has gone back, once."""
        for number, job in list(enumerate(jobs))[-JOBS:]:
            paid, owed = 0, due(number)
            for who, amount in owed.items():
                assert await self.ledger.balance(who) == amount, "paid twice, or lost on the way"
                paid += amount
            state = await self.ledger.escrow(WALLET, job_bytes(job))
            assert state is not None
            assert (state.paid, state.refunded, state.balance) == (paid, BUDGET - paid, 0)
            happened = Counter(event.kind for event in await self.ledger.history(WALLET, job_bytes(job)))
            assert (happened["paid"], happened["refunded"]) == (2, 1)
            stored = await self.bench.stored(job)
            assert (stored.paid, stored.refunded) == (paid, BUDGET - paid)
            assert {row.state for row in await self.bench.rows(job)} == {"confirmed"}


async def live(url: str, database: str, kill_at: int) -> int:
    """Carry what is left and look at it, then do the same work and die at its ``kill_at``-th wait; else how many there were."""
    store = await SqlStore.open(database)
    async with await Ledger.connect(LedgerConfig(url)) as ledger:
        life = Life(ledger, store, url)
        await life.carry(Fuse())
        await life.check(await life.jobs())
        fuse = Deadly(kill_at)
        for _ in range(JOBS):
            await life.begin()
            await life.carry(fuse)
        await life.check(await life.jobs())
    await store.close()
    return fuse.waits


async def carry_open(url: str, database: str, kill_at: int) -> None:
    """Carry what is open in a database that others filled; die at the ``kill_at``-th wait, with 0 at none."""
    store = await SqlStore.open(database)
    async with await Ledger.connect(LedgerConfig(url)) as ledger:
        await Life(ledger, store, url).carry(Deadly(kill_at))
    await store.close()


async def was_killed(url: str, database: str, at: int) -> bool:
    """Have a process carry what is open until its ``at``-th wait; whether it came so far and was killed there."""
    command = (sys.executable, "-m", "tests.money.killed", url, database, "--open", str(at))
    child = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
    code = await child.wait()
    assert code in (0, -signal.SIGKILL), f"the service ended with {code}"
    return code != 0


def forked(url: str, database: str, kill_at: int) -> int | None:
    """Run one life in a process of its own; how many waits it had, None where it was killed at one."""
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            waits = asyncio.run(live(url, database, kill_at))
            os.write(there, str(waits).encode())
            os._exit(0)
        except BaseException:  # noqa: BLE001 - a fork must never run on into its parent's code.
            sys.stderr.write(f"the life that was to end at wait {kill_at}:\n{traceback.format_exc()}")
            os._exit(1)
    os.close(there)
    with os.fdopen(here, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return None
    if os.WEXITSTATUS(status):
        raise SystemExit(1)
    return int(said)


def kill_at_waits(folder: Path, every: int) -> dict[str, int]:
    """Do it all with a new ledger and store in ``folder``; how many waits there are, and at how many it was killed.

    Raises:
        AssertionError: with what a life after a kill found wrong.
    """
    with served(folder) as server:
        url = server.start()
        asyncio.run(_fill(url))
        command = [sys.executable, "-m", "tests.money.killed", url, f"sqlite+aiosqlite:///{folder / 'coordinator.db'}"]
        done = subprocess.run([*command, "--every", str(every)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


async def _fill(url: str) -> None:
    async with await Ledger.connect(LedgerConfig(url)) as ledger:
        await ledger.faucet(COORDINATOR, Amount(0), 10**13)
        await ledger.faucet(WALLET, Amount(10**12), 10**13)


def main(argv: Sequence[str] | None = None) -> int:
    """Kill it at every chosen wait until it ends without being killed."""
    parser = argparse.ArgumentParser(prog="python -m tests.money.killed", description=__doc__)
    parser.add_argument("url", help="of the ledger")
    parser.add_argument("database")
    parser.add_argument("--every", type=int, default=1, help="kill at each so many-th wait")
    parser.add_argument(
        "--open", type=int, metavar="WAIT", help="only carry what is open, and die at this wait (0: at none)"
    )
    options = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)
    if options.open is not None:
        asyncio.run(carry_open(options.url, options.database, options.open))
        return 0
    kills, waits = 0, None
    while (waits := forked(options.url, options.database, 1 + kills * options.every)) is None:
        kills += 1
    sys.stdout.write(json.dumps({"waits": waits, "kills": kills}) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
