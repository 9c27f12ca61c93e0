"""A store that tells at once of which job a record is changed: who keeps a job in memory lets go of what is no longer so.

One transaction changes records at a time, and nobody reads in between: what is told while it is under way is known before
anybody else looks.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import Job
from coordinator.domain.lease import Lease
from coordinator.store.ports import Column, Condition, Place, R, Scalar, Store, Transaction
from coordinator.store.records import DisputeRecord, RunRecord
from coordinator.store.together import shared

_JOB_OF: Mapping[type[msgspec.Struct], str] = {
    Job: "id",
    RunRecord: "job",
    Lease: "job",
    Audit: "job",
    DisputeRecord: "job",
}
Notice = Callable[[str | None], None]
"""Called with a job of which something changes; None: of any."""


class NoticingStore:
    """Over another store."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self._listeners: list[Notice] = []

    def on_change(self, listener: Notice) -> None:
        """Call ``listener`` for every change of a job, its run, leases, audits and disputes; it must neither wait nor raise."""
        self._listeners.append(listener)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """As the inner store has it, or the one that is shared for reading."""
        if (tx := shared(self)) is not None:
            yield tx
            return
        async with self._inner.transaction() as tx:
            yield _Noticing(tx, self._tell)

    async def close(self) -> None:
        """Close the inner store."""
        await self._inner.close()

    def _tell(self, job: str | None) -> None:
        for listener in self._listeners:
            listener(job)


def unnoticed(tx: Transaction) -> Transaction:
    """The same transaction, for whoever need not be told of its own changes."""
    return tx.inner if isinstance(tx, _Noticing) else tx


class _Noticing:
    def __init__(self, inner: Transaction, tell: Notice) -> None:
        self.inner, self._tell = inner, tell

    @property
    def everywhere(self) -> Transaction:
        every = self.inner.everywhere
        return self if every is self.inner else _Noticing(every, self._tell)

    async def get(self, kind: type[R], *key: Scalar) -> R:
        return await self.inner.get(kind, *key)

    async def find(
        self,
        kind: type[R],
        *where: Condition,
        newest: bool = False,
        limit: int | None = None,
        offset: int = 0,
        after: Place | None = None,
    ) -> list[R]:
        return await self.inner.find(kind, *where, newest=newest, limit=limit, offset=offset, after=after)

    async def sums(
        self, kind: type[msgspec.Struct], field: Column[int], by: Sequence[Column[Any]], *where: Condition
    ) -> dict[tuple[Scalar, ...], tuple[int, int]]:
        return await self.inner.sums(kind, field, by, *where)

    async def insert(self, record: R) -> R:
        self._notice(record)
        return await self.inner.insert(record)

    async def forget(self, kind: type[msgspec.Struct], *where: Condition) -> int:
        if kind in _JOB_OF:
            self._tell(None)
        return await self.inner.forget(kind, *where)

    async def update(self, record: R, before: R | None = None) -> R:
        self._notice(record)
        return await self.inner.update(record, before)

    async def insert_all(self, records: Sequence[R]) -> None:
        self._notice(*records)
        await self.inner.insert_all(records)

    async def update_all(self, records: Sequence[R], before: Sequence[R] | None = None) -> list[R]:
        self._notice(*records)
        return await self.inner.update_all(records, before)

    async def delete(self, record: msgspec.Struct) -> None:
        self._notice(record)
        await self.inner.delete(record)

    async def hold_shared(self) -> None:
        await self.inner.hold_shared()

    def _notice(self, *records: msgspec.Struct) -> None:
        for record in records:
            if (field := _JOB_OF.get(type(record))) is not None:
                self._tell(getattr(record, field))
