"""Records in SQL through SQLAlchemy Core: SQLite in WAL mode on one PC, PostgreSQL by its URL."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import msgspec
from alembic import command
from alembic.config import Config
from sqlalchemy import (
    ColumnElement,
    Connection,
    CursorResult,
    Executable,
    RowMapping,
    and_,
    delete,
    event,
    func,
    insert,
    select,
    tuple_,
    update,
)
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import StaticPool

from coordinator.errors import ConflictError, NotFoundError, StoreAwayError
from coordinator.store import tables
from coordinator.store.faults import UNUSABLE, answering, unusable
from coordinator.store.kinds import KINDS, RecordKind
from coordinator.store.ownership import Ownership
from coordinator.store.ports import Column, Condition, Place, R, Scalar, Transaction, fields_of

MIGRATIONS = Path(__file__).parent / "migrations"
BUSY_MS = 10_000  # Another process (a backup, say) may hold the file for as long before a write gives up.
SYNCHRONOUS = "FULL"  # What was committed survives a power cut, for 7 ms of a commit.


class SqlStore:
    """Made by ``open``, which brings the schema up to date."""

    def __init__(self, engine: AsyncEngine, ownership: Ownership | None = None) -> None:
        self._engine = engine
        self._ownership = ownership
        self._turn = asyncio.Lock()  # SQLite has one writer: waiting here is fairer than its busy loop.

    @classmethod
    async def open(cls, url: str, ownership: Ownership | None = None) -> "SqlStore":
        """Connect to ``sqlite+aiosqlite:///file`` (or another async URL) and run the migrations that are missing.

        Args:
            ownership: by which each transaction sees that this process may still change anything.
        Raises:
            StoreError: that is not possible; the text says why, and what to do.
        """
        try:
            engine = _engine(url, ownership)
            if engine.dialect.name == "sqlite":
                _touch(engine)
            try:
                async with engine.connect() as connection:
                    await connection.run_sync(migrate)
            except BaseException:
                await engine.dispose()
                raise
        except UNUSABLE as error:
            raise unusable(url, error) from error
        return cls(engine, ownership)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Commit at the end, roll back if the body raises.

        Raises:
            StoreAwayError: the database does not answer. Where that was at the end, nobody knows whether it had committed.
        """
        async with answering():
            await self._turn.acquire()
        try:
            async with answering():
                connection = await self._engine.connect()
            try:
                async with answering():
                    await connection.begin()
                    if self._ownership is not None:
                        await self._ownership.check(connection)
                yield _Sql(connection)
                async with answering():
                    await connection.commit()
            finally:
                await asyncio.shield(asyncio.ensure_future(_let_go(connection)))
        finally:
            self._turn.release()

    async def close(self) -> None:
        """Close every connection."""
        await self._engine.dispose()


class _Sql:
    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def _execute(self, statement: Executable) -> CursorResult[*tuple[Any, ...]]:
        async with answering():
            return await self._connection.execute(statement)

    async def get(self, kind: type[R], *key: Scalar) -> R:
        how = KINDS[kind]
        where = [Condition(kind, field, "=", value) for field, value in zip(how.key, key, strict=True)]
        found = await self.find(kind, *where)
        if not found:
            raise NotFoundError(f"no {how.name} record {key}")
        return found[0]

    async def find(
        self,
        kind: type[R],
        *where: Condition,
        newest: bool = False,
        limit: int | None = None,
        offset: int = 0,
        after: Place | None = None,
    ) -> list[R]:
        how, table = KINDS[kind], tables.metadata.tables[KINDS[kind].name]
        order = [table.c[field].desc() if newest else table.c[field].asc() for field in how.order]
        query = select(table).where(*_conditions(kind, where)).order_by(*order)
        if after is not None:
            here, there = tuple_(*(table.c[field] for field in how.order)), tuple_(*after)
            query = query.where(here < there if newest else here > there)
        rows = await self._execute(query.limit(limit).offset(offset or None))
        return [_decode(kind, how, row) for row in rows.mappings()]

    async def sums(
        self, kind: type[msgspec.Struct], field: Column[int], by: Sequence[Column[Any]], *where: Condition
    ) -> dict[tuple[Scalar, ...], tuple[int, int]]:
        table = tables.metadata.tables[KINDS[kind].name]
        summed, *names = (table.c[name] for name in fields_of(kind, (field, *by)))
        query = select(*names, func.count(), func.sum(summed)).where(*_conditions(kind, where)).group_by(*names)
        rows = await self._execute(query)
        return {tuple(row[:-2]): (int(row[-2]), int(row[-1])) for row in rows if row[-2]}

    async def insert(self, record: R) -> R:
        how, table = KINDS[type(record)], tables.metadata.tables[KINDS[type(record)].name]
        values = _encode(how, record)
        if how.numbered:
            del values["id"]
        try:
            result = await self._execute(insert(table).values(values))
        except IntegrityError as error:
            raise ConflictError(f"the {how.name} record {how.key_of(record)} exists already") from error
        if how.numbered and result.inserted_primary_key is not None:
            return msgspec.structs.replace(record, id=result.inserted_primary_key[0])
        return record

    async def forget(self, kind: type[msgspec.Struct], *where: Condition) -> int:
        table = tables.metadata.tables[KINDS[kind].name]
        assert where, "everything of a kind is never forgotten at once"
        result = await self._execute(delete(table).where(*_conditions(kind, where)))
        return int(result.rowcount)

    async def update(self, record: R) -> R:
        how, table = KINDS[type(record)], tables.metadata.tables[KINDS[type(record)].name]
        version = getattr(record, "version", 0)
        after = msgspec.structs.replace(record, version=version + 1)
        same = [table.c[field] == value for field, value in zip(how.key, how.key_of(record), strict=True)]
        result = await self._execute(
            update(table).where(and_(*same, table.c.version == version)).values(_encode(how, after))
        )
        if result.rowcount != 1:
            raise ConflictError(f"the {how.name} record {how.key_of(record)} has changed since version {version}")
        return after

    async def delete(self, record: msgspec.Struct) -> None:
        how, table = KINDS[type(record)], tables.metadata.tables[KINDS[type(record)].name]
        same = [table.c[field] == value for field, value in zip(how.key, how.key_of(record), strict=True)]
        result = await self._execute(delete(table).where(and_(*same)))
        if result.rowcount != 1:
            raise NotFoundError(f"no {how.name} record {how.key_of(record)}")


def migrate(connection: Connection, to: str = "head") -> None:
    """Bring the schema to a revision; a new database gets all of them."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, to)
    connection.commit()


def _engine(url: str, ownership: Ownership | None) -> AsyncEngine:
    """A connection that has died while it rested is replaced before anybody is given it."""
    if ":memory:" in url:
        engine = create_async_engine(url, poolclass=StaticPool)
    else:
        arguments = {} if ownership is None else {"server_settings": {"application_name": ownership.name}}
        engine = create_async_engine(url, pool_pre_ping=not url.startswith("sqlite"), connect_args=arguments)
    if engine.dialect.name == "sqlite":
        _prepare_sqlite(engine)
    return engine


def _touch(engine: AsyncEngine) -> None:
    """See that the file can be opened: a driver's thread that fails at that may speak after the event loop has ended."""
    (where, *_), how = engine.dialect.create_connect_args(engine.url)
    sqlite3.connect(where, uri=bool(how.get("uri"))).close()


async def _let_go(connection: AsyncConnection) -> None:
    """Give a connection back, which undoes what was not committed. One that cannot even do that is not used again."""
    try:
        async with answering():
            await connection.close()
    except (StoreAwayError, SQLAlchemyError):
        with suppress(SQLAlchemyError, OSError):
            await connection.invalidate()
            await connection.close()


def _prepare_sqlite(engine: AsyncEngine) -> None:
    """WAL, full sync (money must survive a power cut), and transactions that begin where we say."""

    def connected(raw: Any, _record: object) -> None:
        raw.isolation_level = None
        cursor = raw.cursor()
        try:
            for pragma in (
                f"busy_timeout={BUSY_MS}",
                "journal_mode=WAL",
                f"synchronous={SYNCHRONOUS}",
                "foreign_keys=ON",
            ):
                cursor.execute(f"PRAGMA {pragma}")
            cursor.close()
        except BaseException:
            raw.close()  # Nobody has it yet, and its thread would stay.
            raise

    def begun(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    event.listen(engine.sync_engine, "connect", connected)
    event.listen(engine.sync_engine, "begin", begun)


def _conditions(kind: type[msgspec.Struct], where: Sequence[Condition]) -> list[ColumnElement[bool]]:
    table = tables.metadata.tables[KINDS[kind].name]
    return [_met(table.c[name], one) for name, one in zip(fields_of(kind, where), where, strict=True)]


def _met(column: ColumnElement[Any], condition: Condition) -> ColumnElement[bool]:
    value = condition.value
    match condition.operator:
        case "=":
            return column.is_(None) if value is None else column == value
        case "<":
            return column < value
        case ">":
            return column > value
        case "has":
            return column.icontains(str(value), autoescape=True)
        case "in":
            return column.in_(cast(Sequence[Scalar], value))


def _encode(how: RecordKind, record: msgspec.Struct) -> dict[str, Any]:
    return {
        field: msgspec.json.encode(value).decode() if field in how.nested else value
        for field, value in msgspec.structs.asdict(record).items()
    }


def _decode(kind: type[R], how: RecordKind, row: RowMapping) -> R:
    plain = {
        field: msgspec.json.decode(row[field]) if field in how.nested else row[field]
        for field in kind.__struct_fields__
    }
    return msgspec.convert(plain, kind, str_keys=True)
