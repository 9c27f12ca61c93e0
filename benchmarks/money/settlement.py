"""Settlement of 10,000 providers by the coordinator's service on the embedded ledger: transactions, seconds, processor time.

The ledger is a process of its own (``python -m ledger.local``), the service runs here over SQLite, both as in ordinary operation.
Every provider is new: its token account is created, it is admitted to its job's escrow, and it is paid once; then each is paid a
second time, when all of that is there. Rents and fees are what the coordinator's wallet is poorer by.

    python -m benchmarks.money.settlement                  # 10,000 providers in jobs of 50
    python -m benchmarks.money.settlement --providers 500
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import publish
from coordinator.services.payments.chain import LedgerChain
from coordinator.services.payments.outbox_lanes import POLL_S
from coordinator.store.ports import col
from coordinator.store.records import NodeRecord, OutboxRecord
from coordinator.store.sql import SqlStore
from ledger.client import Ledger, LedgerConfig, job_bytes
from ledger.money import Amount
from tests.coordinator import bench as benches
from tests.coordinator.bench import Bench
from tests.coordinator.fakes import COORDINATOR, WALLET, profile
from tests.ledger.served import served
from tests.money.storm import SEED, WALLET_SEED, payee

BUDGET, JOB_PROVIDERS = 10_000_000, 50


class Course:
    """Jobs whose providers are paid together, and what that takes."""

    def __init__(self, store: SqlStore, bench: Bench, ledger: Ledger) -> None:
        self._store, self._bench, self._ledger = store, bench, ledger
        self._jobs: list[str] = []

    async def begin(self, providers: int) -> None:
        """Open a job with its escrow for each JOB_PROVIDERS."""
        for start in range(0, providers, JOB_PROVIDERS):
            job = await self._bench.verified([], escrow=BUDGET)
            self._jobs.append(job)
            async with self._store.transaction() as tx:
                for number in range(start, min(providers, start + JOB_PROVIDERS)):
                    await tx.insert(NodeRecord(payee(number), payee(number), profile(f"payee-{number}"), 0.0, 0.0))
            await self._ledger.open_escrow(WALLET_SEED, job_bytes(job), COORDINATOR, Amount(BUDGET), 2**40)

    async def earn(self, number: int, providers: int) -> None:
        """Everybody has earned something more."""
        for place, job in enumerate(self._jobs):
            async with self._bench.parts.desk.open(job) as work:
                await work.tx.insert(benches._round(job, number))
                first = place * JOB_PROVIDERS
                for replica, who in enumerate(range(first, min(providers, first + JOB_PROVIDERS))):
                    await work.tx.insert(benches._commit(job, number, replica, payee(who), 1_000 + who))
                await self._bench.parts.settlement._settle(work, await self._bench.parts.settlement._unsettled(work))

    async def carry(self, pid: int) -> dict[str, Any]:
        """Pay all of it; what that took. ``pid``: the ledger's process."""
        poor, before = await self._ledger.lamports(COORDINATOR), await self._transactions()
        began, worked, ledgers = time.monotonic(), time.process_time(), processor_seconds(pid)
        while await self._open():
            if not await self._bench.parts.lanes.drain():
                await self._bench.clock.sleep(POLL_S)
        return {
            "transactions": await self._transactions() - before,
            "seconds": round(time.monotonic() - began, 1),
            "service, processor seconds": round(time.process_time() - worked, 1),
            "ledger, processor seconds": round(processor_seconds(pid) - ledgers, 1),
            "lamports": poor - await self._ledger.lamports(COORDINATOR),
        }

    async def _transactions(self) -> int:
        return int((await self._ledger._connection.call("getEpochInfo"))["transactionCount"])

    async def _open(self) -> bool:
        async with self._store.transaction() as tx:
            found = await tx.find(
                OutboxRecord,
                col(OutboxRecord.state).in_(("queued", "sent")),
                col(OutboxRecord.kind).equals("settle"),
                limit=1,
            )
            return bool(found)

    async def check(self, providers: int, rounds: int) -> None:
        """Everybody has what was earned, to the last unit."""
        for number in range(providers):
            held = await self._ledger.balance(payee(number))
            assert held == rounds * (1_000 + number), f"{payee(number)} has {held}"


def processor_seconds(pid: int) -> float:
    """What a process has computed so far, as Linux says: user and system time are fields 14 and 15 of its ``stat``."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def sleeping(bench: Bench) -> Callable[[float], Coroutine[Any, Any, None]]:
    """A bench's own clock, which stands still else, goes on with real time while somebody sleeps."""

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds)
        bench.clock.t += seconds

    return sleep


async def measure(providers: int, folder: Path) -> dict[str, Any]:
    """Pay everybody twice."""
    with served(folder) as server:
        url = server.start()
        assert server._process is not None
        pid = server._process.pid
        store = await SqlStore.open(f"sqlite+aiosqlite:///{folder / 'coordinator.db'}")
        async with await Ledger.connect(LedgerConfig(url)) as ledger:
            await ledger.faucet(COORDINATOR, Amount(0), 10**15)
            await ledger.faucet(WALLET, Amount(BUDGET * (1 + providers // JOB_PROVIDERS)), 10**13)
            chain = LedgerChain(ledger, url, SEED, WALLET_SEED, COORDINATOR)
            await chain.nonces()
            bench = Bench(store=store, chain=chain)
            bench.clock.sleep = sleeping(bench)  # type: ignore[assignment, method-assign]
            course = Course(store, bench, ledger)
            await course.begin(providers)
            found: dict[str, Any] = {"providers": providers, "jobs": -(-providers // JOB_PROVIDERS)}
            for number, name in enumerate(("first payout", "second payout")):
                await course.earn(number, providers)
                found[name] = await course.carry(pid)
            await course.check(providers, 2)
        await store.close()
        return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and publish."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.money.settlement", description=__doc__)
    parser.add_argument("--providers", type=int, default=10_000)
    options = parser.parse_args(argv)
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(options.providers, Path(folder)))
    publish("settlement", __doc__.splitlines()[0], found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
