"""The connection on which transactions follow each other, one at a time: kept between two, and replaced once it has failed.

To take it out of a pool, ask whether it lives, and put it back took four visits to the database in place of none. What begins a
transaction shows whether a connection that has rested still lives: nothing was said in it yet, so it is begun on another one.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from coordinator.errors import StoreAwayError
from coordinator.store.faults import answering
from coordinator.store.ownership import Ownership

T = TypeVar("T")


class KeptConnection:
    """One for whoever has the turn.

    Attributes:
        begins: whether a transaction has begun at the database when ``begun`` returns. With SQLite it has; with PostgreSQL it
            does with its first statement, which is the look at who the owner is.
    """

    def __init__(
        self, engine: AsyncEngine, ownership: Ownership | None, do: Callable[[Awaitable[Any]], Awaitable[Any]]
    ) -> None:
        """``do``: how something is said, when whoever waits for it may be cancelled."""
        self._engine, self._ownership, self._do = engine, ownership, do
        self._rests: AsyncConnection | None = None
        self._closed = False
        # A file that is held by another process stays so on any connection.
        self._may_die = engine.dialect.name != "sqlite"
        self.begins = ownership is not None or not self._may_die

    async def begun(self) -> AsyncConnection:
        """A connection on which a transaction begins; to be given back to ``over``.

        Raises:
            StoreAwayError: the database does not answer, or is another process's by now.
        """
        rested, self._rests = self._rests, None
        if rested is not None:
            try:
                return await self._begin(rested)
            except (StoreAwayError, SQLAlchemyError) as error:
                if isinstance(error.__cause__, TimeoutError) or not self._may_die:
                    raise  # Another one would wait as long.
        connection = self._engine.connect()
        try:
            async with answering():
                await self._do(connection.start())
        except BaseException:
            await whole(_let_go(connection))
            raise
        return await self._begin(connection)

    async def over(self, connection: AsyncConnection, ended: bool) -> None:
        """Take a connection back: it rests where its transaction has ``ended``, else what was not committed is undone."""
        if ended and self.begins and not self._closed:
            self._rests = connection
        else:
            await _let_go(connection)

    async def close(self) -> None:
        """Close the one that rests; who has one under way still gives it back."""
        self._closed = True
        rested, self._rests = self._rests, None
        if rested is not None:
            await whole(_let_go(rested))

    async def _begin(self, connection: AsyncConnection) -> AsyncConnection:
        try:
            async with answering():
                await self._do(connection.begin().start())
                if self._ownership is not None:
                    await self._do(self._ownership.check(connection))
        except BaseException:
            await whole(_let_go(connection))
            raise
        return connection


async def whole(doing: Awaitable[T]) -> T:
    """Do something to its end, also where whoever waits for it is cancelled meanwhile, as often as they are."""
    task = asyncio.ensure_future(doing)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # Nobody is there to hear of it.
        raise


async def cut_short(doing: Awaitable[T]) -> T:
    """Do something; whoever is cancelled breaks it off."""
    return await doing


async def _let_go(connection: AsyncConnection) -> None:
    """Give a connection back, which undoes what was not committed. One that cannot even do that is not used again."""
    try:
        async with answering():
            await connection.close()
    except (StoreAwayError, SQLAlchemyError):
        with suppress(SQLAlchemyError, OSError):
            await connection.invalidate()
            await connection.close()
