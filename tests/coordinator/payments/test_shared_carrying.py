"""Rows of the outbox that move at the same time share transactions: counted, not timed."""

from coordinator.store.memory import MemoryStore
from ledger import events as ledger_events
from tests.coordinator.bench import Bench
from tests.coordinator.desk.conftest import CountedStore

JOBS = 6


async def test_what_is_signed_and_what_is_confirmed_at_a_time_is_stored_together() -> None:
    counted = CountedStore(MemoryStore())
    bench = Bench(store=counted)
    jobs = [await bench.job() for _ in range(JOBS)]
    for job in jobs:
        async with bench.parts.desk.open(job) as work:
            work.memo("note", ledger_events.Funded(job=job, amount=1))
    counted.counts.clear()
    assert await bench.parts.lanes.drain()
    taken = counted.counts["transactions"]
    rows = [row for job in jobs for row in await bench.rows(job)]
    assert [row.state for row in rows] == ["confirmed"] * JOBS
    assert all(row.signature for row in rows)
    # To find what is open, to learn what was forgotten, to keep what is signed, to keep what came of it.
    assert taken <= 5, f"{taken} transactions for {JOBS} rows: each had three of its own"
