"""Records in SQL through SQLAlchemy Core: SQLite in WAL mode on one PC, PostgreSQL by its URL."""

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import msgspec
from alembic import command
from alembic.config import Config
from sqlalchemy import (
    ColumnElement,
    Connection,
    CursorResult,
    Executable,
    Insert,
    Integer,
    RowMapping,
    Select,
    String,
    Update,
    and_,
    bindparam,
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

from common import tracing
from coordinator.errors import ConflictError, NotFoundError, StoreAwayError
from coordinator.store.faults import UNUSABLE, answering, unusable
from coordinator.store.kinds import KINDS, RecordKind
from coordinator.store.ownership import Ownership
from coordinator.store.period_tables import metadata
from coordinator.store.ports import Column, Condition, Operator, Place, R, Scalar, Transaction, fields_of
from coordinator.store.turns import Turns

T = TypeVar("T")

MIGRATIONS = Path(__file__).parent / "migrations"
BUSY_MS = 10_000  # Another process (a backup, say) may hold the file for as long before a write gives up.
FEW = 16  # Values of one condition that have a place each; a statement for each number of more would fill the memory.
KEPT_ROWS = 1_024  # Some 5 kB each; a job has a hundred audits that wait, seldom more.
SYNCHRONOUS = "FULL"  # What was committed survives a power cut, for 7 ms of a commit.


class SqlStore:
    """Made by ``open``, which brings the schema up to date."""

    def __init__(self, engine: AsyncEngine, ownership: Ownership | None = None) -> None:
        self._engine = engine
        self._ownership = ownership
        self._turns = Turns()  # SQLite has one writer: waiting here is fairer than its busy loop.
        # A statement of SQLite's that is broken off takes its connection along, which keeps the lock of the file for ever.
        self._do = _whole if engine.dialect.name == "sqlite" else _cut_short

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
        with tracing.span("transaction", db_system_name=self._engine.dialect.name):
            async with self._transaction() as transaction:
                yield transaction

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Transaction]:
        with tracing.span("wait for the database"):
            await self._turns.take()
        away: StoreAwayError | None = None
        try:
            connection = self._engine.connect()
            try:
                async with answering():
                    await self._do(connection.start())
                    await self._do(connection.begin().start())
                    if self._ownership is not None:
                        await self._do(self._ownership.check(connection))
                yield SqlTransaction(connection, self._do)
                async with answering():
                    await self._do(connection.commit())
            finally:
                await _whole(_let_go(connection))
        except StoreAwayError as error:
            away = error
            raise
        finally:
            self._turns.give(away)

    async def close(self) -> None:
        """Close every connection."""
        await self._engine.dispose()


async def _whole(doing: Awaitable[T]) -> T:
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


async def _cut_short(doing: Awaitable[T]) -> T:
    """Do something; whoever is cancelled breaks it off."""
    return await doing


class SqlTransaction:
    """Implements ``ports.Transaction``."""

    def __init__(self, connection: AsyncConnection, do: Callable[[Awaitable[Any]], Awaitable[Any]]) -> None:
        self._connection, self._do = connection, do

    async def _execute(
        self, statement: Executable, values: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    ) -> CursorResult[*tuple[Any, ...]]:
        async with answering():
            found: CursorResult[*tuple[Any, ...]] = await self._do(self._connection.execute(statement, values))
            return found

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
        names = fields_of(kind, where)
        shape = tuple(_shape(name, one) for name, one in zip(names, where, strict=True))
        values = _values(where)
        if after is not None:
            values |= {f"after_{number}": value for number, value in enumerate(after)}
        if limit is not None:
            values["limit"] = limit
        if offset:
            values["offset"] = offset
        query = _query(kind, shape, newest, after is not None, limit is not None, bool(offset))
        rows = await self._execute(query, values)
        return [_decode(kind, KINDS[kind], row) for row in rows.mappings()]

    async def sums(
        self, kind: type[msgspec.Struct], field: Column[int], by: Sequence[Column[Any]], *where: Condition
    ) -> dict[tuple[Scalar, ...], tuple[int, int]]:
        table = metadata.tables[KINDS[kind].name]
        summed, *names = (table.c[name] for name in fields_of(kind, (field, *by)))
        query = select(*names, func.count(), func.sum(summed)).where(*_met(kind, where)).group_by(*names)
        rows = await self._execute(query, _values(where))
        return {tuple(row[:-2]): (int(row[-2]), int(row[-1])) for row in rows if row[-2]}

    async def insert(self, record: R) -> R:
        how, table = KINDS[type(record)], metadata.tables[KINDS[type(record)].name]
        values = _encode(how, record)
        if how.numbered:
            del values["id"]
        try:
            result = await self._execute(_insertion(table.name), values)
        except IntegrityError as error:
            raise ConflictError(f"the {how.name} record {how.key_of(record)} exists already") from error
        if how.numbered and result.inserted_primary_key is not None:
            return msgspec.structs.replace(record, id=result.inserted_primary_key[0])
        return record

    async def forget(self, kind: type[msgspec.Struct], *where: Condition) -> int:
        table = metadata.tables[KINDS[kind].name]
        assert where, "everything of a kind is never forgotten at once"
        result = await self._execute(delete(table).where(*_met(kind, where)), _values(where))
        return int(result.rowcount)

    async def insert_all(self, records: Sequence[R]) -> None:
        if not records:
            return
        how = KINDS[type(records[0])]
        assert not how.numbered, "numbers are told one by one"
        try:
            await self._execute(_insertion(how.name), [_encode(how, record) for record in records])
        except IntegrityError as error:
            raise ConflictError(f"one of {len(records)} {how.name} records exists already") from error

    async def update(self, record: R) -> R:
        how = KINDS[type(record)]
        after, values = _replaced(how, record)
        result = await self._execute(_change(how.name, how.key, tuple(after.__struct_fields__)), values)
        if result.rowcount != 1:
            version = getattr(record, "version", 0)
            raise ConflictError(f"the {how.name} record {how.key_of(record)} has changed since version {version}")
        return after

    async def update_all(self, records: Sequence[R]) -> list[R]:
        if not self._connection.dialect.supports_sane_multi_rowcount:
            return [
                await self.update(record) for record in records
            ]  # It does not count what it changes many times over.
        if not records:
            return []
        how = KINDS[type(records[0])]
        replaced = [_replaced(how, record) for record in records]
        change = _change(how.name, how.key, tuple(records[0].__struct_fields__))
        result = await self._execute(change, [values for _, values in replaced])
        if result.rowcount != len(records):
            raise ConflictError(f"one of {len(records)} {how.name} records has changed meanwhile")
        return [after for after, _ in replaced]

    async def delete(self, record: msgspec.Struct) -> None:
        how, table = KINDS[type(record)], metadata.tables[KINDS[type(record)].name]
        same = [table.c[field] == value for field, value in zip(how.key, how.key_of(record), strict=True)]
        result = await self._execute(delete(table).where(and_(*same)))
        if result.rowcount != 1:
            raise NotFoundError(f"no {how.name} record {how.key_of(record)}")


def _replaced(how: RecordKind, record: R) -> tuple[R, dict[str, Any]]:
    """A record with its next version, and the parameters of the statement that stores it."""
    version = getattr(record, "version", 0)
    after = msgspec.structs.replace(record, version=version + 1)
    values = {f"new_{field}": value for field, value in _encode(how, after).items()} | {"old_version": version}
    values |= {f"old_{field}": value for field, value in zip(how.key, how.key_of(record), strict=True)}
    return after, values


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


class _Shape(NamedTuple):
    """A condition without its value.

    Attributes:
        values: how many it has; None: it asks for null, or for one of more than ``FEW``.
    """

    field: str
    operator: Operator
    values: int | None


def _shape(field: str, condition: Condition) -> _Shape:
    if condition.operator == "in":
        count = len(cast(Sequence[Scalar], condition.value))
        return _Shape(field, "in", count if count <= FEW else None)
    return _Shape(field, condition.operator, None if condition.value is None else 1)


def _values(where: Sequence[Condition]) -> dict[str, Scalar | list[Scalar]]:
    """What the parameters of ``_query`` are, by their names there."""
    found: dict[str, Scalar | list[Scalar]] = {}
    for number, condition in enumerate(where):
        match condition:
            case Condition(operator="in", value=several):
                of = cast(Sequence[Scalar], several)
                one_each = {f"where_{number}_{place}": value for place, value in enumerate(of)}
                found |= one_each if len(of) <= FEW else {f"where_{number}": list(of)}
            case Condition(operator="has", value=part):
                found[f"where_{number}"] = "%" + re.sub(r"([/%_])", r"/\1", str(part)) + "%"
            case Condition(value=None):
                pass
            case Condition(value=value):
                found[f"where_{number}"] = cast(Scalar, value)
    return found


# What is said to the database has few shapes. Made once for each, a statement takes a third of the time of one that is made anew:
# SQLAlchemy knows the object, and needs not find out whether it has compiled its like.


@lru_cache(maxsize=4_096)
def _query(
    kind: type[msgspec.Struct], where: tuple[_Shape, ...], newest: bool, after: bool, limited: bool, shifted: bool
) -> Select[Any]:
    how, table = KINDS[kind], metadata.tables[KINDS[kind].name]
    order = [table.c[field].desc() if newest else table.c[field].asc() for field in how.order]
    met = [_compared(table.c[shape.field], shape, f"where_{number}") for number, shape in enumerate(where)]
    query = select(table).where(*met).order_by(*order)
    if after:
        there = tuple_(*(bindparam(f"after_{at}", type_=table.c[field].type) for at, field in enumerate(how.order)))
        here = tuple_(*(table.c[field] for field in how.order))
        query = query.where(here < there if newest else here > there)
    if limited:
        query = query.limit(bindparam("limit", type_=Integer))
    return query.offset(bindparam("offset", type_=Integer)) if shifted else query


def _compared(column: ColumnElement[Any], shape: _Shape, name: str) -> ColumnElement[bool]:
    one = bindparam(name, type_=column.type)
    match shape.operator:
        case "=":
            return column.is_(None) if shape.values is None else column == one
        case "<":
            return column < one
        case ">":
            return column > one
        case "has":
            return func.lower(column).like(func.lower(bindparam(name, type_=String)), escape="/")
        case "in" if shape.values is None:
            return column.in_(bindparam(name, type_=column.type, expanding=True))
        case "in":
            return column.in_([bindparam(f"{name}_{at}", type_=column.type) for at in range(shape.values or 0)])


@cache
def _insertion(table: str) -> Insert:
    return insert(metadata.tables[table])


@cache
def _change(table: str, key: tuple[str, ...], fields: tuple[str, ...]) -> Update:
    columns = metadata.tables[table].c
    same = [columns[field] == bindparam(f"old_{field}", type_=columns[field].type) for field in (*key, "version")]
    new = {field: bindparam(f"new_{field}", type_=columns[field].type) for field in fields}
    return update(metadata.tables[table]).where(and_(*same)).values(new)


def _met(kind: type[msgspec.Struct], where: Sequence[Condition]) -> list[ColumnElement[bool]]:
    """Conditions, whose values are ``_values``."""
    columns = metadata.tables[KINDS[kind].name].c
    shapes = [_shape(name, one) for name, one in zip(fields_of(kind, where), where, strict=True)]
    return [_compared(columns[shape.field], shape, f"where_{number}") for number, shape in enumerate(shapes)]


def _encode(how: RecordKind, record: msgspec.Struct) -> dict[str, Any]:
    return {
        field: msgspec.json.encode(value).decode() if field in how.nested else value
        for field, value in msgspec.structs.asdict(record).items()
    }


def _decode(kind: type[R], how: RecordKind, row: RowMapping) -> R:
    values = tuple(row[field] for field in kind.__struct_fields__)
    return cast(R, _kept(kind, values) if how.recurs else _decoded(kind, values))


def _decoded(kind: type[msgspec.Struct], values: tuple[Any, ...]) -> msgspec.Struct:
    nested, fields = KINDS[kind].nested, kind.__struct_fields__
    plain = {
        field: msgspec.json.decode(value) if field in nested else value
        for field, value in zip(fields, values, strict=True)
    }
    return msgspec.convert(plain, kind, str_keys=True)


# By all that stands in the row: what was changed, or changed and taken back, is another row. Records are never changed in place.
_kept = lru_cache(KEPT_ROWS)(_decoded)
