"""Reading beside whoever writes: PostgreSQL's snapshots, as many at a time as there are connections, and nothing is ever changed.

For coordinators that stand by. Each transaction sees one moment and waits for nobody; what would change something belongs to the
coordinator at work (``ElsewhereError``), and the database refuses it, too.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, NoReturn

import msgspec
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from coordinator.errors import ElsewhereError, StoreAwayError, StoreBusyError
from coordinator.store.faults import ANSWER_S, answering
from coordinator.store.ports import Condition, R, Transaction
from coordinator.store.sql import MIGRATIONS, SqlTransaction
from coordinator.store.together import shared

# Connections. PostgreSQL grants 100 in all as it is installed, and each reading one takes a processor there.
AT_ONCE = 8


class ReadingStore:
    """Implements ``ports.Store``, of which it only reads. It changes no schema: see ``fits``."""

    def __init__(self, url: str) -> None:
        """Connects when it is first asked."""
        self._places = asyncio.Semaphore(AT_ONCE)
        self._engine: AsyncEngine = create_async_engine(
            url,
            pool_size=AT_ONCE,
            max_overflow=0,
            pool_pre_ping=True,
            isolation_level="REPEATABLE READ",
            execution_options={"postgresql_readonly": True},
        )

    async def fits(self) -> bool:
        """Whether the database's schema is this version's: what another one means by its columns nobody knows here.

        Raises:
            StoreAwayError: the database does not answer.
        """
        try:
            async with answering(), self._engine.connect() as connection:
                found = await connection.scalar(text("SELECT version_num FROM alembic_version"))
        except DBAPIError:  # A new database: there is no such table yet.
            return False
        return bool(found == await asyncio.to_thread(_newest))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """One moment of the database; what would change it raises ElsewhereError.

        Raises:
            StoreAwayError: the database does not answer.
        """
        if (tx := shared(self)) is not None:
            yield tx
            return
        async with self._place():
            connection = self._engine.connect()
            async with answering():
                await connection.start()
            try:
                async with answering():
                    await connection.begin()
                yield _Reads(connection, _as_it_is)
            finally:
                await asyncio.shield(_let_go(connection))

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        """One of those that read at a time."""
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._places.acquire()
        except TimeoutError as error:
            raise StoreBusyError(f"no place within {ANSWER_S:g} s") from error
        try:
            yield
        finally:
            self._places.release()

    async def close(self) -> None:
        """Close every connection."""
        await self._engine.dispose()


class _Reads(SqlTransaction):
    async def insert(self, record: R) -> R:
        _elsewhere()

    async def forget(self, kind: type[msgspec.Struct], *where: Condition) -> int:
        _elsewhere()

    async def insert_all(self, records: Sequence[R]) -> None:
        _elsewhere()

    async def update(self, record: R, before: R | None = None) -> R:
        _elsewhere()

    async def update_all(self, records: Sequence[R], before: Sequence[R] | None = None) -> list[R]:
        _elsewhere()

    async def delete(self, record: msgspec.Struct) -> None:
        _elsewhere()


async def _let_go(connection: AsyncConnection) -> None:
    try:
        async with answering():
            await connection.close()
    except StoreAwayError:
        await connection.invalidate()


def _elsewhere() -> NoReturn:
    raise ElsewhereError("the coordinator at work stores that")


async def _as_it_is(doing: Awaitable[Any]) -> Any:
    return await doing


@cache
def _newest() -> str | None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return ScriptDirectory.from_config(config).get_current_head()
