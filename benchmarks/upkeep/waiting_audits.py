"""What one report costs a job of which many audits wait for the operator's auditor: no sockets, SQLite on a disk.

    python -m benchmarks.upkeep.waiting_audits [--waiting 0 16 128] [--repeats 50]

A job at work with 16 seats, whose auditor is busy. Each time the job is opened, brought as far as it goes, and stored, as after
each report of a node; nothing has changed that could move it. Writes build/bench/waiting_audits.json.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.common import publish
from coordinator.domain.audits.trust import Audit
from coordinator.store.sql import SqlStore
from protocol.identity import NodeKey
from tests.coordinator.bench import CONFIG, Bench
from tests.coordinator.fakes import digest, spec

SEATS = 16
BUSY = 2  # Looks that one auditor has at a time.
AUDITOR = NodeKey((900).to_bytes(32, "big")).address


async def busy(store: SqlStore, waiting: int) -> tuple[Bench, str]:
    """A job with so many audits that wait, and a coordinator over it."""
    bench = Bench(replace(CONFIG, auditors=frozenset({AUDITOR})), store)
    auditor = await bench.enter(900, auditor=True)
    job = await bench.job(spec(stages=1, replicas=SEATS), nodes=SEATS)
    await bench.fund(job)
    async with bench.parts.desk.open(job) as work:
        await bench.parts.runs.advance(work)
        for lease in work.leases.values():
            work.leases[lease.id] = msgspec.structs.replace(lease, state="ready")
        work.grant(auditor.node, auditor.payout, None)
    async with bench.parts.desk.open(job) as work:
        assert work.run is not None
        seats = [lease for lease in work.leases.values() if lease.seat]
        looker = next(lease for lease in work.leases.values() if lease.node == auditor.node)
        work.leases[looker.id] = msgspec.structs.replace(looker, state="ready")
        for place in range(waiting + 2):
            seat, made = seats[place % len(seats)], digest(job, place)
            where = (f"{place:032x}", job, 1, 0, 0, seat.stage, seat.replica, seat.id, seat.node, seat.payout)
            audit = Audit(*where, "class", work.plan(), 0, 8, made, 2, made, work.now)
            looked = {"auditor": auditor.node, "auditor_lease": looker.id, "looking": True, "asked": work.now}
            audit = msgspec.structs.replace(audit, state="replaying", opening=made, look=True, deadline=1e12)
            work.audits[audit.id] = msgspec.structs.replace(audit, **looked) if place < BUSY else audit
    return bench, job


async def cost(waiting: int, repeats: int) -> dict[str, float]:
    """Milliseconds of processor time of one report's turn."""
    with tempfile.TemporaryDirectory() as folder:
        store = await SqlStore.open(f"sqlite+aiosqlite:///{Path(folder) / 'c.db'}")
        try:
            bench, job = await busy(store, waiting)
            times, left = [], 0
            for _ in range(repeats + 3):
                began = time.process_time()
                async with bench.parts.desk.open(job) as work:
                    await bench.parts.runs.advance(work)
                times.append(1000 * (time.process_time() - began))
                left = len(work.audits)
            assert left == waiting + BUSY, "nothing could move them"
            times = sorted(times[3:])
            return {"median_ms": round(statistics.median(times), 2), "most_ms": round(times[-1], 2)}
        finally:
            await store.close()


def main(arguments: list[str]) -> None:
    """Measure, print, publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=int, nargs="+", default=[0, 16, 126])
    parser.add_argument("--repeats", type=int, default=50)
    options = parser.parse_args(arguments)
    found = {waiting: asyncio.run(cost(waiting, options.repeats)) for waiting in options.waiting}
    table = Table("waiting", "median ms", "most ms", title="processor time of one report")
    for waiting, row in found.items():
        table.add_row(str(waiting), str(row["median_ms"]), str(row["most_ms"]))
    Console(stderr=True).print(table)
    claim = "audits that wait cost a report little"
    publish("waiting_audits", claim, {"rows": {str(waiting): row for waiting, row in found.items()}})


if __name__ == "__main__":
    main(sys.argv[1:])
