"""A connection to PostgreSQL for statements that stand alone: each is a transaction of its own, and the connection is kept.

Whoever asks twice a second, for ever, would have the server start a process for each question, and prepare it anew.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from sqlalchemy import CursorResult, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from coordinator.errors import StoreAwayError
from coordinator.store.faults import answering


class StatementLine:
    """Connects when it is first asked. What is said by it may be said twice: where the connection had died, it is."""

    def __init__(self, url: str) -> None:
        self._engine: AsyncEngine = create_async_engine(
            url, pool_size=1, max_overflow=0, pool_reset_on_return=None, isolation_level="AUTOCOMMIT"
        )
        self._turn = asyncio.Lock()

    async def rows(self, statement: str, **values: int | str) -> Sequence[Any]:
        """What the database answers.

        Raises:
            StoreAwayError: nothing.
        """
        return (await self._said(statement, values)).all()

    async def changed(self, statement: str, **values: int | str) -> int:
        """How many rows were changed; raises as ``rows`` does."""
        return int((await self._said(statement, values)).rowcount)

    async def close(self) -> None:
        """Close the connection; whoever asks afterwards gets another one."""
        await self._engine.dispose()

    async def _said(self, statement: str, values: dict[str, int | str]) -> CursorResult[Any]:
        async with answering(), self._turn:
            try:
                return await self._once(statement, values)
            except StoreAwayError:  # The connection may have died while it rested.
                return await self._once(statement, values)

    async def _once(self, statement: str, values: dict[str, int | str]) -> CursorResult[Any]:
        async with answering(), self._engine.connect() as connection:
            return await connection.execute(text(statement), values)
