"""A database with any number of ended jobs, made by SQL: copies of one job's rows, of as many nodes as a network may have."""

import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import Job, JobState
from coordinator.domain.lease import Lease
from coordinator.store import tables
from coordinator.store.ports import col
from coordinator.store.records import CommitRecord, EventRecord, MetricRecord, NodeRecord, OutboxRecord, RoundRecord
from coordinator.store.sql import SqlStore
from protocol.identity import NodeKey
from protocol.task import Layers, Plan
from tests.coordinator.fakes import digest, profile
from tests.coordinator.many_jobs import fill

AT_ONCE = 20_000  # Copies of the job by one statement.


def home(number: int) -> str:
    """The address of a node."""
    return NodeKey((10_000 + number).to_bytes(32, "big")).address


async def one_job(store: SqlStore, homes: int) -> None:
    """The nodes, and the job that all others are copies of."""
    (job,) = await fill(store, 1, (JobState.SETTLED,))
    async with store.transaction() as tx:
        for kind in (CommitRecord, Audit, Lease):
            await tx.forget(kind, col(kind.job).equals(job))
        node = home(0)
        lease = Lease(f"{0:028x}0000", job, node, node, 1, 0, 0, 3.0)
        await tx.insert(msgspec.structs.replace(lease, state="ended", end="stopped", ended=9.0))
        for number in range(2):
            made, plan = digest(job, number), Plan(1, (Layers(0, 4),), ())
            where = (job, 1, number, 0, 0, lease.id, node, node)
            commit = CommitRecord(*where, made, 2, made, 512, 1, True, "verified", 1000)
            await tx.insert(msgspec.structs.replace(commit, settlement=1))
            round_ = RoundRecord(job, 1, number, "complete", plan, 2 * number, 2, 4, 3.0, (0,), (made,), 4.0, 512, 1000)
            await tx.insert(msgspec.structs.replace(round_, train_loss=1.5, validation_loss=1.6, concluded=True))
            for kind, loss in (("train", 1.5), ("validation", 1.6)):
                await tx.insert(MetricRecord(job, number, 2 * number, 512, kind, loss, 4.0))  # type: ignore[arg-type]
        audit = Audit(f"{0:032x}", job, 1, 0, 0, 0, 0, lease.id, node, node, "class", plan, 0, 8, made, 2, made, 9.0)
        await tx.insert(msgspec.structs.replace(audit, state="passed"))
        for number in range(homes):
            await tx.insert(NodeRecord(home(number), home(number), profile(f"home-{number}"), 0.0, 1.0, earned=1000))
        for text in ("created", "running", "settled"):
            await tx.insert(EventRecord(job, 3.0, text, text))  # type: ignore[arg-type]
        for number, told in enumerate(("fund", "settle", "refund")):
            row = OutboxRecord(f"{job}:{number}", job, told, {node: 1000}, 3.0, 1000)  # type: ignore[arg-type]
            await tx.insert(msgspec.structs.replace(row, state="confirmed", signature="1" * 88))
        stored = await tx.get(Job, job)
        await tx.update(msgspec.structs.replace(stored, ended=9.0, escrow=1000, verified=1000, paid=1000, model=made))


async def filled(
    database: Path, jobs: int, homes: int, progress: Callable[[range], Iterable[int]] = iter, *, indexed: bool = True
) -> None:
    """Make a database with so many jobs, all ended, a second apart; one in a thousand is shared.

    Args:
        indexed: in the end; else its rows can only be read one after the other.
    """
    store = await SqlStore.open(f"sqlite+aiosqlite:///{database}")
    await one_job(store, homes)
    await store.close()
    copy(database, jobs, homes, progress, indexed)


def copy(
    database: Path,
    jobs: int,
    homes: int,
    progress: Callable[[range], Iterable[int]] = iter,
    indexed: bool = True,
) -> None:
    """Copy the one job ``jobs - 1`` times; one in ten thousand has an audit that failed."""
    connection = sqlite3.connect(database)
    connection.execute("pragma synchronous = off")
    connection.execute("pragma cache_size = -500000")
    indices = connection.execute(
        "select name, sql from sqlite_master where type = 'index' and sql is not null"
    ).fetchall()
    for name, _ in indices:
        connection.execute(f"drop index {name}")  # Made at the end, they take a fraction of the time.
    connection.execute("create temp table homes (place integer primary key, address text)")
    connection.executemany("insert into homes values (?, ?)", ((n, home(n)) for n in range(homes)))
    changed = {
        "jobs": {
            "id": "printf('%032x', n)",
            "created": "n",
            "ended": "n + 9.0",
            "name": "'job ' || n",
            "shared": "n % 1000 = 0",
        },
        "leases": {"id": "printf('%028x0000', n)"},
        "audits": {"id": "printf('%032x', n)", "state": "iif(n % 10000 = 9999, 'failed', state)"},
        "outbox": {
            "key": "printf('%032x:', n) || kind",
            "kind": "iif(n % 10000 = 9999 and kind = 'refund', 'slash', kind)",
        },
    }
    of_home = f"(select address from homes where place = n % {homes})"
    own = {"job": "printf('%032x', n)", "lease": "printf('%028x0000', n)", "time": "n + 3.0", "granted": "n + 3.0"}
    own |= dict.fromkeys(("node", "payout"), of_home)
    with_jobs = [table for table in tables.metadata.sorted_tables if table.name == "jobs" or "job" in table.c]
    first = f"{0:032x}"
    for begin in progress(range(1, jobs, AT_ONCE)):
        end = min(begin + AT_ONCE, jobs)
        numbers = f"with recursive ns(n) as (select {begin} union all select n + 1 from ns where n + 1 < {end})"
        for table in with_jobs:
            numbered = table.name in {"outbox", "events", "metrics"}
            columns = [c.name for c in table.c if not (numbered and c.name == "id")]
            how = own | changed.get(table.name, {})
            given = ", ".join(how.get(column, f'"{column}"') for column in columns)
            quoted = ", ".join(f'"{column}"' for column in columns)
            where = f"{'id' if table.name == 'jobs' else 'job'} = '{first}'"
            connection.execute(
                f"insert into {table.name} ({quoted}) {numbers} select {given} from ns cross join {table.name} where {where}"
            )
        connection.commit()
    for _, sql in indices if indexed else ():
        connection.execute(sql)
    connection.commit()
    connection.close()
