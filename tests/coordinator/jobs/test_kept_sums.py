"""Sums that the database keeps are those of all its rows, whoever changes them, and nothing reads these rows for it."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine

from coordinator.domain.job import LIVE, Job, JobState
from coordinator.store.memory import MemoryStore
from coordinator.store.ports import Store, Transaction, col
from coordinator.store.records import OutboxRecord
from coordinator.store.sql import MIGRATIONS, SqlStore
from tests.coordinator.bench import Bench
from tests.coordinator.fakes import WALLET, spec
from tests.coordinator.many_jobs import QUOTE, fill
from tests.coordinator.test_store import outbox, store
from tests.support.databases import Postgres, needs_postgres

__all__ = ["store"]

FIELDS = (col(Job.escrow), col(Job.paid), col(Job.refunded))
KINDS, STATES = ("fund", "settle", "refund", "event"), ("queued", "sent", "confirmed", "failed")
Sums = dict[tuple[str, ...], tuple[int, int]]


def job(number: int, state: JobState, escrow: int = 0) -> Job:
    made = Job(f"{number:032x}", "", state, spec(), WALLET, True, float(number), 0.0, QUOTE, {}, {})
    return msgspec.structs.replace(made, escrow=escrow)


def summed(records: Sequence[msgspec.Struct], field: str, by: Sequence[str]) -> Sums:
    found: Sums = defaultdict(lambda: (0, 0))
    for record in records:
        number, amount = found[key := tuple(getattr(record, name) for name in by)]
        found[key] = number + 1, amount + getattr(record, field)
    return dict(found)


async def check(tx: Transaction) -> None:
    """All sums are those of all rows, by each of what they are kept by."""
    jobs, rows = await tx.find(Job), await tx.find(OutboxRecord)
    for field in FIELDS:
        assert await tx.sums(Job, field, (col(Job.state),)) == summed(jobs, field.field, ["state"])
        assert await tx.sums(Job, field, ()) == summed(jobs, field.field, [])
    live = [one for one in jobs if one.state in LIVE]
    assert await tx.sums(Job, FIELDS[0], (), col(Job.state).in_(tuple(LIVE))) == summed(live, "escrow", [])
    amount, kind, state = col(OutboxRecord.amount), col(OutboxRecord.kind), col(OutboxRecord.state)
    assert await tx.sums(OutboxRecord, amount, (kind, state)) == summed(rows, "amount", ["kind", "state"])
    confirmed = [row for row in rows if row.state == "confirmed"]
    assert await tx.sums(OutboxRecord, amount, (kind,), state.equals("confirmed")) == summed(
        confirmed, "amount", ["kind"]
    )
    of_job, attempts = [row for row in rows if row.job == "j"], col(OutboxRecord.attempts)
    found = await tx.sums(OutboxRecord, attempts, (kind,), col(OutboxRecord.job).equals("j"))
    assert found == summed(of_job, "attempts", ["kind"]), "what is kept does not tell of one job"


async def change(tx: Transaction, chance: random.Random, turn: int) -> None:
    """One of the ways in which rows come, change and go."""
    jobs, rows = await tx.find(Job), await tx.find(OutboxRecord)
    way = chance.randrange(7)
    if way == 0 or not jobs or not rows:
        await tx.insert(job(turn, chance.choice(tuple(JobState)), chance.randrange(99)))
        await tx.insert_all([_row(f"{turn}:{place}", chance) for place in range(3)])
    elif way == 1:
        before = chance.choice(jobs)
        more = before.paid + chance.randrange(2**40)
        after = msgspec.structs.replace(before, state=chance.choice(tuple(JobState)), paid=more, refunded=more // 2)
        await tx.update(after, chance.choice((before, None)))
    elif way == 2:
        row = chance.choice(rows)
        await tx.update(msgspec.structs.replace(row, state=chance.choice(STATES), attempts=row.attempts + 1), row)
    elif way == 3:
        await tx.update_all([msgspec.structs.replace(row, kind=chance.choice(KINDS)) for row in rows])
    elif way == 4:
        await tx.update(msgspec.structs.replace(chance.choice(jobs), name="of nothing that is summed"))
    elif way == 5:
        await tx.delete(chance.choice(jobs))
    else:
        await tx.forget(OutboxRecord, col(OutboxRecord.kind).equals(chance.choice(KINDS)))


def _row(key: str, chance: random.Random) -> OutboxRecord:
    kind, state = chance.choice(KINDS), chance.choice(STATES)
    amount = chance.choice((chance.randrange(100), 2**62))
    made = OutboxRecord(key, chance.choice("jk"), kind, {}, 0.0, amount)  # type: ignore[arg-type]
    return msgspec.structs.replace(made, state=state)  # type: ignore[arg-type]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(3))
async def test_sums_are_of_all_rows_whatever_comes_changes_and_goes(store: Store, seed: int) -> None:
    chance = random.Random(seed)
    for turn in range(60):
        try:
            async with store.transaction() as tx:
                await change(tx, chance, turn)
                await check(tx)
                if chance.random() < 0.2:
                    raise KeyError
        except KeyError:
            pass
        async with store.transaction() as tx:
            await check(tx)


async def test_what_is_paid_long_after_a_job_ended_shows_in_the_totals() -> None:
    """A refund, or a claim: the ledger may have been away for days."""
    bench = Bench(store=MemoryStore())
    (name,) = await fill(bench.store, 1, (JobState.SETTLED,))
    async with bench.parts.desk.open(name) as work:
        work.change(escrow=100, paid=70, refunded=0, ended=bench.clock.time() - 1.0)
    before = await bench.parts.books.totals()
    bench.clock.t += 1e6
    async with bench.parts.desk.open(name) as work:
        work.change(refunded=30)
    after = await bench.parts.books.totals()
    assert (before.held, after.held) == (30, 0)


@needs_postgres
async def test_two_who_write_at_once_both_count(postgres: Postgres) -> None:
    url = postgres.migrated_url()
    stores = [await SqlStore.open(url) for _ in range(2)]

    async def work(place: int) -> None:
        for number in range(20):
            async with stores[place].transaction() as tx:
                await tx.insert(job(100 * place + number, JobState.SETTLED, 3))
                await asyncio.sleep(0)
                await tx.insert(outbox(f"{place}:{number}"))

    await asyncio.gather(work(0), work(1))
    async with stores[0].transaction() as tx:
        await check(tx)
        assert await tx.sums(Job, col(Job.escrow), ()) == {(): (40, 120)}
    for one in stores:
        await one.close()


async def test_a_database_of_an_earlier_version_is_summed_when_it_is_opened(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'c.db'}"
    first = await SqlStore.open(url)
    async with first.transaction() as tx:
        for number, state in enumerate((JobState.SETTLED, JobState.SETTLED, JobState.RUNNING)):
            await tx.insert(job(number, state, 10 + number))
        await tx.insert_all([_row(f"{number}", random.Random(number)) for number in range(9)])
    await first.close()
    with create_engine(f"sqlite:///{tmp_path / 'c.db'}").connect() as connection:
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        config.attributes["connection"] = connection
        command.downgrade(config, "0039")
        connection.commit()
    second = await SqlStore.open(url)
    async with second.transaction() as tx:
        await check(tx)
        assert (await tx.sums(Job, FIELDS[0], (col(Job.state),)))[("settled",)] == (2, 21)
    await second.close()
