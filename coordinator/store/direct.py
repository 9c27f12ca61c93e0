"""Statements that are said again and again go to the driver as SQLAlchemy has written them, past what it does around each.

Compiling, types and parameters are SQLAlchemy's, and so is the beginning of each transaction. Said through it, a statement took
three times as much of the processor: with SQLite four visits to the driver's thread in place of one, and many layers with both.
What the driver objects to is said again through SQLAlchemy, so that faults read as they always did. PostgreSQL says nothing more
in a transaction once it has refused a statement: its refusal is told as SQLAlchemy would.

What names single rows of SQLite by their keys is done here and not in the driver's thread: it takes some 20 us of a file that is
in memory, and the way to the thread and back several times as much. What waits stays there: whoever begins may wait for another
process, whoever commits waits for the disk, and a search may read a whole table.
"""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Boolean, Dialect, Executable
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.compiler import SQLCompiler

from coordinator.errors import StoreAwayError
from coordinator.store.faults import answering, may_pass, said

DRIVERS = frozenset({"aiosqlite", "asyncpg"})
_CONSTRAINTS = "23"  # The class of PostgreSQL's error codes (its manual, appendix A).
FEW_ROWS = 64  # That are kept here and now.
_COUNTED = " RETURNING 1"  # SQLite's driver tells how many rows were changed only in another visit to its thread.


class _Text(NamedTuple):
    """A statement in the words of one database.

    Attributes:
        names: of its parameters, in their order; ``known``: values of those that nobody gives. ``binds``: what is made of values.
        switches: places of columns that hold true or false, which SQLite has as numbers.
    """

    sql: str
    names: tuple[str, ...]
    known: Mapping[str, Any]
    binds: Mapping[str, Callable[[Any], Any]]
    switches: tuple[int, ...]

    def in_order(self, values: Mapping[str, Any]) -> list[Any]:
        """What the driver is given for each parameter."""
        given = [values[name] if name in values else self.known[name] for name in self.names]
        if not self.binds:
            return given
        return [
            self.binds[name](one) if name in self.binds else one for name, one in zip(self.names, given, strict=True)
        ]


class Direct:
    """The way to the driver within one transaction, once that has begun.

    Who is cancelled meanwhile goes on at once: SQLite's driver does the end of the transaction after what it was asked before.
    Nothing else is said in the transaction then, so nobody speaks on the connection beside the driver's thread.
    """

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self._driver: Any = None

    async def rows(
        self, statement: Executable, values: Mapping[str, Any], one: bool = False
    ) -> list[tuple[Any, ...]] | None:
        """What a query finds; None: it has to be said through SQLAlchemy.

        Args:
            one: it looks for one row, by its key.
        Raises:
            StoreAwayError: the database does not answer, or refuses for a reason that passes.
            DBAPIError: PostgreSQL refuses for another one; an IntegrityError where it is a constraint.
        """
        if (text := _text(statement, self._connection.dialect)) is None:
            return None
        found = await self._said(text, text.sql, values, short=one)
        if found is None or not text.switches:
            return found
        return [_switched(row, text.switches) for row in found]

    async def changed(self, statement: Executable, values: Mapping[str, Any]) -> int | None:
        """How many rows a statement changes, which names one by its key; None and what it raises: as ``rows``."""
        if (text := _text(statement, self._connection.dialect)) is None:
            return None
        counted = await self._said(text, text.sql + _COUNTED, values, short=True)
        return None if counted is None else len(counted)

    async def inserted(
        self, statement: Executable, several: Sequence[Mapping[str, Any]]
    ) -> list[tuple[Any, ...]] | None:
        """What a statement tells that keeps one row, or nothing where it keeps several; None and what it raises: as ``rows``."""
        if (text := _text(statement, self._connection.dialect)) is None:
            return None
        return await self._said(text, text.sql, *several, short=len(several) <= FEW_ROWS)

    async def _said(
        self, text: _Text, sql: str, *several: Mapping[str, Any], short: bool
    ) -> list[tuple[Any, ...]] | None:
        """What a statement finds; with several values it is said once for each, and tells nothing."""
        given = [text.in_order(values) for values in several]
        try:
            if self._driver is None:
                self._driver = _driver_of(self._connection)
            if short and (here := self._here()) is not None:
                return here.execute(sql, given[0]).fetchall() if len(given) == 1 else list(here.executemany(sql, given))
            async with answering():
                return await self._waited(sql, given)
        except (TimeoutError, OSError, StoreAwayError):
            raise
        except Exception as error:
            if may_pass(error):
                raise StoreAwayError(said(error)) from error
            if state := getattr(error, "sqlstate", None):
                refused = IntegrityError if state.startswith(_CONSTRAINTS) else DBAPIError
                raise refused(sql, None, error, hide_parameters=True) from error
            return None

    async def _waited(self, sql: str, given: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
        if len(given) > 1:
            await self._driver.executemany(sql, given)
            return []
        if self._connection.dialect.driver == "aiosqlite":
            return list(await self._driver.execute_fetchall(sql, given[0]))
        return [tuple(row) for row in await self._driver.fetch(sql, *given[0])]

    def _here(self) -> sqlite3.Connection | None:
        """SQLite's own connection, which any thread may speak on while its driver's has nothing to do."""
        own = getattr(self._driver, "_connection", None)
        return own if isinstance(own, sqlite3.Connection) else None


def _driver_of(connection: AsyncConnection) -> Any:
    assert connection.sync_connection is not None, "its transaction has begun"
    return connection.sync_connection.connection.driver_connection


def _switched(row: tuple[Any, ...], switches: Sequence[int]) -> tuple[Any, ...]:
    values = list(row)
    for place in switches:
        if values[place] is not None:
            values[place] = bool(values[place])
    return tuple(values)


@lru_cache(maxsize=4_096)
def _text(statement: Any, dialect: Dialect) -> _Text | None:
    """None: a statement whose text depends on its values, or a driver that is not known here."""
    if dialect.driver not in DRIVERS:
        return None
    compiled = statement.compile(dialect=dialect)
    assert isinstance(compiled, SQLCompiler)
    if compiled.post_compile_params or compiled.literal_execute_params or compiled.positiontup is None:
        return None
    binds = {
        name: process
        for name, parameter in compiled.binds.items()
        if (process := parameter.type.dialect_impl(dialect).bind_processor(dialect)) is not None
    }
    columns = getattr(statement, "selected_columns", ())
    switches = tuple(place for place, column in enumerate(columns) if isinstance(column.type, Boolean))
    return _Text(
        str(compiled),
        tuple(compiled.positiontup),
        dict(compiled.params),
        binds,
        switches if dialect.name == "sqlite" else (),
    )
