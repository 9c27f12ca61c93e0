"""A job desk over every kind of store, whose transactions and reads are counted."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from common.clock import SystemClock
from coordinator.config import Config
from coordinator.domain.job import Job
from coordinator.errors import StoreAwayError
from coordinator.services.core.context import Context
from coordinator.services.core.leases import Leases
from coordinator.services.core.unit_of_work import JobDesk
from coordinator.store.memory import MemoryStore
from coordinator.store.noticing import NoticingStore
from coordinator.store.ports import Store, Transaction, col
from coordinator.store.records import EventRecord
from coordinator.store.sql import SqlStore
from tests.coordinator.jobs.test_lifecycle import JOB
from tests.support.databases import needs_postgres

JOBS = tuple(f"{number:032x}" for number in range(1, 9))


@dataclass
class CountedStore:
    """Over another store. ``away``: how often a commit that was stored is followed by silence, or is not stored at all."""

    inner: Store
    counts: Counter[str] = field(default_factory=Counter)
    away: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Counted."""
        self.counts["transactions"] += 1
        fault = self.away.pop(0) if self.away else ""
        async with self.inner.transaction() as tx:
            yield cast(Transaction, _Counted(tx, self.counts))
            if fault == "before":
                raise StoreAwayError("the commit was not stored")
        if fault == "after":
            raise StoreAwayError("nobody was told of the commit")

    async def close(self) -> None:
        """Close the inner store."""
        await self.inner.close()


class _Counted:
    def __init__(self, inner: Transaction, counts: Counter[str]) -> None:
        self._inner, self._counts = inner, counts

    def __getattr__(self, name: str) -> Any:
        if name in ("get", "find"):
            self._counts["reads"] += 1
        return getattr(self._inner, name)


@dataclass
class Office:
    """A desk with eight jobs that are stored."""

    store: CountedStore
    context: Context
    leases: Leases
    desk: JobDesk

    async def lines(self) -> dict[str, list[str]]:
        """Lines of each job's timeline, in their order."""
        async with self.store.inner.transaction() as tx:
            found = await tx.find(EventRecord)
        return {job: [line.text for line in found if line.job == job] for job in JOBS}

    async def paid(self) -> dict[str, int]:
        """What each job has paid."""
        async with self.store.inner.transaction() as tx:
            return {job.id: job.paid for job in await tx.find(Job, col(Job.id).in_(JOBS))}


@pytest.fixture(params=["memory", "sqlite file", pytest.param("postgresql", marks=needs_postgres)])
async def office(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Office]:
    """Over each store."""
    made: Store
    if request.param == "memory":
        made = MemoryStore()
    elif request.param == "postgresql":
        made = await SqlStore.open(request.getfixturevalue("postgres").migrated_url())
    else:
        made = await SqlStore.open(f"sqlite+aiosqlite:///{tmp_path / 'test.db'}")
    async with made.transaction() as tx:
        for number, job in enumerate(JOBS):
            await tx.insert(msgspec.structs.replace(JOB, id=job, created=float(number)))
    yield opened(made, tmp_path)
    await made.close()


def opened(store: Store, folder: Path) -> Office:
    """A desk over a store."""
    counted = CountedStore(store)
    config = Config(data=folder, ledger_url="http://ledger.test")
    context = Context(config, SystemClock(), NoticingStore(counted), lambda n: b"\x07" * n)
    leases = Leases(context)
    return Office(counted, context, leases, JobDesk(context, leases))
