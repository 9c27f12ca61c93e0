"""A connection to PostgreSQL for statements that stand alone: each is a transaction of its own, and the connection is kept.

Whoever asks twice a second, for ever, would have the server start a process for each question.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeVar

from sqlalchemy import TextClause, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from coordinator.errors import StoreAwayError
from coordinator.store.direct import Direct
from coordinator.store.faults import answering

T = TypeVar("T")


class StatementLine:
    """Connects when it is first asked. What is said may be said twice: it is where the connection had died while it rested."""

    def __init__(self, url: str, name: str = "") -> None:
        """``name``: what the database calls the connection (``application_name``)."""
        settings = {"server_settings": {"application_name": name}} if name else {}
        self._engine = create_async_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args=settings)
        self._rests: AsyncConnection | None = None
        self._turn = asyncio.Lock()

    async def rows(self, statement: str, **values: int | str) -> list[tuple[Any, ...]]:
        """What the database answers.

        Raises:
            StoreAwayError: nothing.
        """
        return await self._said(lambda direct: direct.rows(_text(statement), values))

    async def changed(self, statement: str, **values: int | str) -> int:
        """How many rows are changed by a statement that says nothing of what it returns; raises as ``rows`` does."""
        return await self._said(lambda direct: direct.changed(_text(statement), values))

    async def close(self) -> None:
        """Close the connection; whoever asks afterwards gets another one."""
        if (rested := self._take()) is not None:
            await _let_go(rested)

    async def _said(self, say: Callable[[Direct], Awaitable[T | None]]) -> T:
        async with answering(), self._turn:
            if (rested := self._take()) is not None:
                with suppress(StoreAwayError):
                    return await self._once(rested, say)
            connection = self._engine.connect()
            async with answering():
                await connection.start()
            return await self._once(connection, say)

    async def _once(self, connection: AsyncConnection, say: Callable[[Direct], Awaitable[T | None]]) -> T:
        try:
            if (found := await say(Direct(connection))) is None:
                raise StoreAwayError("the connection has been closed")
        except BaseException:
            await _let_go(connection)
            raise
        self._rests = connection
        return found

    def _take(self) -> AsyncConnection | None:
        rested, self._rests = self._rests, None
        return rested


@lru_cache(maxsize=256)
def _text(statement: str) -> TextClause:
    return text(statement)


async def _let_go(connection: AsyncConnection) -> None:
    with suppress(SQLAlchemyError, OSError, StoreAwayError):
        async with answering():
            await connection.invalidate()
            await connection.close()
