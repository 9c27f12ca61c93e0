"""Several questions at one moment of the database: a page asks a dozen services, each of which would open a transaction.

What costs a page its time is the way to the database, not what is found there. Only whoever opened it shares it: a task of its
own that was begun meanwhile has transactions of its own.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import NamedTuple

from coordinator.store.ports import Store, Transaction


class _Open(NamedTuple):
    """A transaction that is shared: of which store, with whom."""

    store: Store
    tx: Transaction
    task: "asyncio.Task[object] | None"


_OPEN: ContextVar[_Open | None] = ContextVar("a transaction that reads are shared in", default=None)


@asynccontextmanager
async def at_one_moment(store: Store) -> AsyncIterator[None]:
    """Whatever the body reads of ``store``, it reads in one transaction; it is for reading alone."""
    async with store.transaction() as tx:
        token = _OPEN.set(_Open(store, tx, asyncio.current_task()))
        try:
            yield
        finally:
            _OPEN.reset(token)


def shared(store: Store) -> Transaction | None:
    """The transaction that whoever asks has opened for all it reads of ``store``; None: it opens another one."""
    found = _OPEN.get()
    if found is None or found.store is not store or found.task is not asyncio.current_task():
        return None
    return found.tx
