"""Sums that are folded are those of all records, whatever ends, changes afterwards, or is confirmed out of turn."""

import random
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from coordinator.domain.job import Job, JobState
from coordinator.services.core.stored_sums import DAY_S, ConfirmedSums, JobSums
from coordinator.store.memory import MemoryStore
from coordinator.store.ports import Store, col
from coordinator.store.records import OutboxRecord
from coordinator.store.sql import SqlStore
from tests.coordinator.bench import Bench
from tests.coordinator.fakes import WALLET, spec
from tests.coordinator.many_jobs import QUOTE, fill

FIELDS = (col(Job.escrow), col(Job.paid), col(Job.refunded))


def job(number: int, state: JobState, ended: float | None, **fields: int) -> Job:
    made = Job(f"{number:032x}", "", state, spec(), WALLET, True, float(number), 0.0, QUOTE, {}, {}, ended=ended)
    return msgspec.structs.replace(made, **fields)


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "memory":
        return MemoryStore()
    return await SqlStore.open(f"sqlite+aiosqlite:///{tmp_path / 'coordinator.db'}")


@pytest.mark.one_in(5)
@pytest.mark.parametrize("seed", range(5))
async def test_jobs_that_end_and_change_late_are_counted_as_they_are(store: Store, seed: int) -> None:
    chance, sums, now = random.Random(seed), JobSums(), 100 * DAY_S
    known: dict[str, Job] = {}
    for turn in range(60):
        now += chance.choice((10.0, DAY_S / 2, DAY_S))
        async with store.transaction() as tx:
            if known and chance.random() < 0.6:
                before = chance.choice(list(known.values()))
                over = before.ended is not None or chance.random() < 0.5
                state = before.state if before.ended is not None else chance.choice((JobState.SETTLED, JobState.FAILED))
                changed: dict[str, int] = {"paid": before.paid + chance.randrange(9), "refunded": chance.randrange(9)}
                after = msgspec.structs.replace(before, **changed)
                if over:
                    after = msgspec.structs.replace(after, state=state, ended=before.ended or now)
                sums.changed(before)
                known[before.id] = await tx.update(after)
            else:
                ended = chance.choice((None, now, now - 3 * DAY_S))
                made = job(
                    turn, JobState.RUNNING if ended is None else JobState.SETTLED, ended, escrow=chance.randrange(99)
                )
                if ended is not None:
                    sums.forget()  # None appears so but by a restored backup.
                known[made.id] = await tx.insert(made)
        async with store.transaction() as tx:
            for field in FIELDS:
                expected: dict[str, tuple[int, int]] = {}
                for one in known.values():
                    number, amount = expected.get(one.state, (0, 0))
                    expected[one.state] = number + 1, amount + getattr(one, field.field)
                assert await sums.by_state(tx, now, field) == expected
    await store.close()


@pytest.mark.one_in(5)
@pytest.mark.parametrize("seed", range(5))
async def test_rows_that_are_confirmed_out_of_turn_count_once(store: Store, seed: int) -> None:
    chance, sums = random.Random(seed), ConfirmedSums()
    rows: list[OutboxRecord] = []
    for turn in range(80):
        async with store.transaction() as tx:
            waiting = [place for place, row in enumerate(rows) if row.state in ("queued", "sent")]
            if waiting and chance.random() < 0.55:
                place = chance.choice(waiting)
                state = chance.choice(("sent", "confirmed", "confirmed", "failed"))
                rows[place] = await tx.update(msgspec.structs.replace(rows[place], state=state))  # type: ignore[arg-type]
            else:
                kind, amount = chance.choice(("fund", "settle", "refund", "event")), chance.randrange(100)
                rows.append(await tx.insert(OutboxRecord(str(turn), "", kind, {}, 0.0, amount)))  # type: ignore[arg-type]
        if chance.random() < 0.7:
            async with store.transaction() as tx:
                found = await sums.by_kind(tx)
            expected: Counter[str] = Counter()
            for row in rows:
                expected[row.kind] += row.amount * (row.state == "confirmed")
            assert {kind: amount for kind, amount in found.items() if amount} == {
                kind: amount for kind, amount in expected.items() if amount
            }
    await store.close()


async def test_what_is_paid_long_after_a_job_ended_shows_in_the_totals() -> None:
    """A refund, or a claim: the ledger may have been away for days."""
    store = MemoryStore()
    bench = Bench(store=store)
    (name,) = await fill(store, 1, (JobState.SETTLED,))
    bench.clock.t += 10 * DAY_S
    async with bench.parts.desk.open(name) as work:
        work.change(escrow=100, paid=70, refunded=0, ended=bench.clock.time() - 5 * DAY_S)
    before = await bench.parts.books.totals()
    async with bench.parts.desk.open(name) as work:
        work.change(refunded=30)
    after = await bench.parts.books.totals()
    assert (before.held, after.held) == (30, 0)
