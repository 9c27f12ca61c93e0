"""Records in SQL through SQLAlchemy Core: SQLite in WAL mode on one PC, PostgreSQL by its URL."""

import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from copy import copy
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast, get_type_hints

import msgspec
from alembic import command
from alembic.config import Config
from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    CursorResult,
    Executable,
    Insert,
    Integer,
    Select,
    String,
    Table,
    TextClause,
    Update,
    and_,
    bindparam,
    column,
    delete,
    event,
    func,
    insert,
    literal_column,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.engine.interfaces import AdaptedConnection
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import StaticPool

from common import tracing
from coordinator.domain.cells import DIGITS, WHOLE, Cell, cell_of
from coordinator.domain.job import Job
from coordinator.errors import ConflictError, NotFoundError, OtherCellError, StoreAwayError
from coordinator.store.direct import Direct
from coordinator.store.faults import UNUSABLE, answering, unusable
from coordinator.store.kept_connection import KeptConnection, cut_short, whole
from coordinator.store.kept_sums import HALF_BITS, KEPT_SUMS, metadata
from coordinator.store.kinds import KINDS, RecordKind, job_of
from coordinator.store.ownership import Ownership
from coordinator.store.ports import Column, Condition, Operator, Place, R, Scalar, Transaction, fields_of
from coordinator.store.turns import Turns

T = TypeVar("T")

MIGRATIONS = Path(__file__).parent / "migrations"
BUSY_MS = 10_000  # Another process (a backup, say) may hold the file for as long before a write gives up.
FEW = 16  # Values of one condition that have a place each; a statement for each number of more would fill the memory.
MANY = (
    16  # Changes that are worth a statement that is said once with all values: with SQLite it goes through SQLAlchemy.
)
_MIGRATES, _MIGRATED = text("SELECT pg_advisory_lock(7073699)"), text("SELECT pg_advisory_unlock(7073699)")
_HOLD = text("SELECT pg_advisory_xact_lock(7073698)")
MAX_STEADY = 16 << 10  # Characters of a value that is kept decoded: a document may have a megabyte.
SYNCHRONOUS = "FULL"  # What was committed survives a power cut, for 7 ms of a commit.


class SqlStore:
    """Made by ``open``, which brings the schema up to date."""

    def __init__(self, engine: AsyncEngine, ownership: Ownership | None = None, cell: Cell = WHOLE) -> None:
        self._engine, self._cell = engine, cell
        self._turns = Turns()  # SQLite has one writer: waiting here is fairer than its busy loop.
        # A statement of SQLite's that is broken off takes its connection along, which keeps the lock of the file for ever.
        self._do = whole if engine.dialect.name == "sqlite" else cut_short
        self._kept = KeptConnection(engine, ownership, self._do)

    @classmethod
    async def open(cls, url: str, ownership: Ownership | None = None, cell: Cell = WHOLE) -> "SqlStore":
        """Connect to ``sqlite+aiosqlite:///file`` (or another async URL) and run the migrations that are missing.

        Args:
            ownership: by which each transaction sees that this process may still change anything.
            cell: whose jobs are found, and what follows from them; another cell's are not there.
        Raises:
            StoreError: that is not possible; the text says why, and what to do.
        """
        try:
            engine = _engine(url, ownership, cell)
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
        return cls(engine, ownership, cell)

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
            connection, ended = await self._kept.begun(), False
            try:
                yield SqlTransaction(connection, self._do, self._kept.begins, self._cell, self._cell.of > 1)
                async with answering():
                    await self._do(connection.commit())
                ended = True
            finally:
                await whole(self._kept.over(connection, ended))
        except StoreAwayError as error:
            away = error
            raise
        finally:
            self._turns.give(away)

    async def close(self) -> None:
        """Close every connection."""
        await self._kept.close()
        await self._engine.dispose()


class SqlTransaction:
    """Implements ``ports.Transaction``."""

    def __init__(
        self,
        connection: AsyncConnection,
        do: Callable[[Awaitable[Any]], Awaitable[Any]],
        begun: bool = False,
        cell: Cell = WHOLE,
        beside: bool = False,
    ) -> None:
        """Nothing was asked yet.

        Args:
            begun: something was said on the connection since the last transaction on it ended.
            cell: whose jobs are found. ``beside``: other coordinators change the database, too.
        """
        self._connection, self._do, self._begun, self._cell, self._beside = connection, do, begun, cell, beside
        self._direct = Direct(connection)

    async def _execute(
        self, statement: Executable, values: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    ) -> CursorResult[*tuple[Any, ...]]:
        async with answering():
            found: CursorResult[*tuple[Any, ...]] = await self._do(self._connection.execute(statement, values))
            self._begun = True
            return found

    async def _rows(
        self, statement: Executable, values: Mapping[str, Any], one: bool = False
    ) -> Sequence[Sequence[Any]]:
        """What a query finds: the values of its columns, in their order. ``one``: it looks for one row, by its key."""
        if self._begun and (found := await self._direct.rows(statement, values, one)) is not None:
            return found
        return (await self._execute(statement, values)).all()

    async def _changed(self, statement: Executable, values: Mapping[str, Any]) -> int:
        """How many rows a statement changes."""
        if self._begun and (counted := await self._direct.changed(statement, values)) is not None:
            return counted
        return int((await self._execute(statement, values)).rowcount)

    @property
    def everywhere(self) -> Transaction:
        if self._cell.of == 1:
            return self
        same = copy(self)
        same._cell = WHOLE
        return same

    async def hold_shared(self) -> None:
        if self._beside:
            await self._execute(_HOLD)
            self._beside = False  # It is held until the transaction ends.

    async def get(self, kind: type[R], *key: Scalar) -> R:
        how = KINDS[kind]
        if kind is Job and not self._cell.has(job := str(key[0])):
            raise OtherCellError(job, cell_of(job, self._cell.of))
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
        shape = _shapes(kind, where)
        values = _values(where)
        if after is not None:
            values |= {f"after_{number}": value for number, value in enumerate(after)}
        if limit is not None:
            values["limit"] = limit
        if offset:
            values["offset"] = offset
        query = _query(kind, shape, newest, after is not None, limit is not None, bool(offset), self._cell)
        read, same = _reader(kind), {one.field for one in shape if one.operator == "="}
        found = await self._rows(query, values, one=same.issuperset(KINDS[kind].key))
        return [cast(R, read(tuple(row))) for row in found]

    async def sums(
        self, kind: type[msgspec.Struct], field: Column[int], by: Sequence[Column[Any]], *where: Condition
    ) -> dict[tuple[Scalar, ...], tuple[int, int]]:
        summed, *names = fields_of(kind, (field, *by))
        query = _summed(KINDS[kind].name, summed, tuple(names), _shapes(kind, where))
        rows = await self._rows(query, _values(where))
        return {tuple(key): (int(n), (int(high) << HALF_BITS) + int(low)) for *key, n, high, low in rows if n}

    async def insert(self, record: R) -> R:
        how = KINDS[type(record)]
        found = await self._inserted(_insertion(type(record), told=how.numbered), [record])
        return msgspec.structs.replace(record, id=found[0][0]) if how.numbered else record

    async def _inserted(self, statement: Insert, records: Sequence[msgspec.Struct]) -> Sequence[Sequence[Any]]:
        """What a statement tells that keeps a record, or says nothing for several."""
        how = KINDS[type(records[0])]
        values = [_encode(how, record) for record in records]
        try:
            if self._begun and (found := await self._direct.inserted(statement, values)) is not None:
                return found
            result = await self._execute(statement, values if len(values) > 1 else values[0])
            return result.all() if result.returns_rows else ()
        except IntegrityError as error:
            which = f"record {how.key_of(records[0])}" if len(records) == 1 else f"one of {len(records)} records"
            raise ConflictError(f"the {how.name} {which} exists already") from error

    async def forget(self, kind: type[msgspec.Struct], *where: Condition) -> int:
        table = metadata.tables[KINDS[kind].name]
        assert where, "everything of a kind is never forgotten at once"
        result = await self._execute(delete(table).where(*_met(kind, where)), _values(where))
        return int(result.rowcount)

    async def insert_all(self, records: Sequence[R]) -> None:
        if records:
            await self._inserted(_insertion(type(records[0]), told=False), records)

    async def update(self, record: R, before: R | None = None) -> R:
        how = KINDS[type(record)]
        after, fields, values = _replaced(how, record, before)
        if await self._changed(_change(how.name, how.key, fields), values) != 1:
            version = getattr(record, "version", 0)
            raise ConflictError(f"the {how.name} record {how.key_of(record)} has changed since version {version}")
        return after

    async def update_all(self, records: Sequence[R], before: Sequence[R] | None = None) -> list[R]:
        known: Sequence[R | None] = before if before is not None else [None] * len(records)
        at_once = self._connection.dialect.name == "postgresql"
        if len(records) < (2 if at_once else MANY):
            return [await self.update(record, was) for record, was in zip(records, known, strict=True)]
        how = KINDS[type(records[0])]
        replaced = [_replaced(how, record, was) for record, was in zip(records, known, strict=True)]
        alike: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for _, fields, values in replaced:
            alike.setdefault(fields, []).append(values)
        for fields, several in alike.items():
            if at_once:
                together = {name: [values[name] for values in several] for name in several[0]}
                changed = await self._changed(_change_together(how.name, how.key, fields), together)
            else:
                changed = int((await self._execute(_change(how.name, how.key, fields), several)).rowcount)
            if changed != len(several):
                raise ConflictError(f"one of {len(several)} {how.name} records has changed meanwhile")
        return [after for after, _, _ in replaced]

    async def delete(self, record: msgspec.Struct) -> None:
        how, table = KINDS[type(record)], metadata.tables[KINDS[type(record)].name]
        same = [table.c[field] == value for field, value in zip(how.key, how.key_of(record), strict=True)]
        result = await self._execute(delete(table).where(and_(*same)))
        if result.rowcount != 1:
            raise NotFoundError(f"no {how.name} record {how.key_of(record)}")


def _replaced(how: RecordKind, record: R, before: R | None) -> tuple[R, tuple[str, ...], dict[str, Any]]:
    """A record with its next version, which fields of it are written, and the parameters of the statement that does."""
    version = getattr(record, "version", 0)
    after = msgspec.structs.replace(record, version=version + 1)
    fields = after.__struct_fields__
    if before is not None:
        fields = tuple(field for field in fields if getattr(after, field) != getattr(before, field))
    values = {f"new_{field}": _encoded(how, field, getattr(after, field)) for field in fields}
    values["old_version"] = version
    values |= {f"old_{field}": value for field, value in zip(how.key, how.key_of(record), strict=True)}
    return after, fields, values


def migrate(connection: Connection, to: str = "head") -> None:
    """Bring the schema to a revision; a new database gets all of them."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    with _alone(connection):
        command.upgrade(config, to)
        connection.commit()


@contextmanager
def _alone(connection: Connection) -> Iterator[None]:
    """Nobody else migrates meanwhile: several cells may be opened at a time, and Alembic is there once in a process."""
    if connection.dialect.name != "postgresql":
        yield
        return
    connection.execute(_MIGRATES)
    connection.commit()  # The lock is the connection's, whatever its transactions come to.
    try:
        yield
    finally:
        connection.rollback()
        connection.execute(_MIGRATED)
        connection.commit()


def _engine(url: str, ownership: Ownership | None, cell: Cell) -> AsyncEngine:
    """A connection that has died while it rested is replaced before anybody is given it."""
    if ":memory:" in url:
        engine = create_async_engine(url, poolclass=StaticPool)
    else:
        settings = {} if cell.of == 1 else {"cottage.cell": str(cell.number)}  # Whose sums a change is added to.
        settings |= {} if ownership is None else {"application_name": ownership.name}
        arguments = {"server_settings": settings} if settings else {}
        engine = create_async_engine(url, pool_pre_ping=not url.startswith("sqlite"), connect_args=arguments)
    if engine.dialect.name == "sqlite":
        _prepare_sqlite(engine)
    return engine


def _touch(engine: AsyncEngine) -> None:
    """See that the file can be opened: a driver's thread that fails at that may speak after the event loop has ended."""
    (where, *_), how = engine.dialect.create_connect_args(engine.url)
    sqlite3.connect(where, uri=bool(how.get("uri"))).close()


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
        raw = cast(AdaptedConnection, connection.connection.dbapi_connection)
        raw.run_async(lambda driver: driver.execute_fetchall("BEGIN IMMEDIATE"))

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


def _shapes(kind: type[msgspec.Struct], where: Sequence[Condition]) -> tuple[_Shape, ...]:
    return tuple(_shape(name, one) for name, one in zip(fields_of(kind, where), where, strict=True))


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
    kind: type[msgspec.Struct],
    where: tuple[_Shape, ...],
    newest: bool,
    after: bool,
    limited: bool,
    shifted: bool,
    cell: Cell,
) -> Select[Any]:
    how, table = KINDS[kind], metadata.tables[KINDS[kind].name]
    order = [table.c[field].desc() if newest else table.c[field].asc() for field in how.order]
    columns = [table.c[field] for field in kind.__struct_fields__]
    query = select(*columns).where(*_compared_all(table, where)).order_by(*order)
    if after:
        there = tuple_(*(bindparam(f"after_{at}", type_=table.c[field].type) for at, field in enumerate(how.order)))
        here = tuple_(*(table.c[field] for field in how.order))
        query = query.where(here < there if newest else here > there)
    if cell.of > 1 and (job := job_of(kind)) is not None:
        query = query.where(_in_cell(f"{how.name}.{job}", cell))
    if limited:
        query = query.limit(bindparam("limit", type_=Integer))
    return query.offset(bindparam("offset", type_=Integer)) if shifted else query


def _in_cell(column: str, cell: Cell) -> TextClause:
    """``Cell.has``, as PostgreSQL says it: hexadecimal digits as a number of as many bits, and none of them as 0."""
    number = f"('x' || substr({column}, 1, {DIGITS}))::bit({4 * DIGITS})::int"
    return text(f"{number} % {cell.of} = {cell.number}")


@lru_cache(maxsize=1_024)
def _summed(table: str, field: str, by: tuple[str, ...], where: tuple[_Shape, ...]) -> Select[Any]:
    """Of all rows of a table, or of the sums that are kept of it."""
    kept = KEPT_SUMS.get(table)
    found: tuple[ColumnElement[Any], ...]
    if kept is not None and field in kept.fields and kept.by.issuperset((*by, *(shape.field for shape in where))):
        of = kept.table
        found = tuple(func.sum(of.c[name]) for name in ("number", f"{field}_high", f"{field}_low"))
    else:
        of = metadata.tables[table]
        found = func.count(), literal_column("0"), func.sum(of.c[field])
    names = [of.c[name] for name in by]
    return select(*names, *found).where(*_compared_all(of, where)).group_by(*names)


def _compared_all(table: Table, where: Sequence[_Shape]) -> list[ColumnElement[bool]]:
    return [_compared(table.c[shape.field], shape, f"where_{number}") for number, shape in enumerate(where)]


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
def _insertion(kind: type[msgspec.Struct], told: bool) -> Insert:
    """``told``: the number that the record is given."""
    how, table = KINDS[kind], metadata.tables[KINDS[kind].name]
    fields = [field for field in kind.__struct_fields__ if not (how.numbered and field == "id")]
    made = insert(table).values({field: bindparam(f"new_{field}", type_=table.c[field].type) for field in fields})
    return made.returning(table.c.id) if told else made.inline()


@cache
def _change(table: str, key: tuple[str, ...], fields: tuple[str, ...]) -> Update:
    columns = metadata.tables[table].c
    same = [columns[field] == bindparam(f"old_{field}", type_=columns[field].type) for field in (*key, "version")]
    new = {field: bindparam(f"new_{field}", type_=columns[field].type) for field in fields}
    return update(metadata.tables[table]).where(and_(*same)).values(new)


@cache
def _change_together(table: str, key: tuple[str, ...], fields: tuple[str, ...]) -> Update:
    """The same of several records, whose values are lists: as PostgreSQL says it, in one statement for any number of them."""
    columns = metadata.tables[table].c
    names = {f"old_{field}": columns[field] for field in (*key, "version")}
    names |= {f"new_{field}": columns[field] for field in fields}
    # A list of texts with a length would be cut to it without a word, where the column itself refuses what is too long.
    kinds = {name: String() if isinstance(of.type, String) else of.type for name, of in names.items()}
    lists = [bindparam(name, type_=ARRAY(kind)) for name, kind in kinds.items()]
    rows = func.unnest(*lists).table_valued(*(column(name, kind) for name, kind in kinds.items()))
    given = rows.render_derived(name="given").c
    same = [columns[field] == given[f"old_{field}"] for field in (*key, "version")]
    return update(metadata.tables[table]).where(and_(*same)).values({field: given[f"new_{field}"] for field in fields})


def _met(kind: type[msgspec.Struct], where: Sequence[Condition]) -> list[ColumnElement[bool]]:
    """Conditions, whose values are ``_values``."""
    return _compared_all(metadata.tables[KINDS[kind].name], _shapes(kind, where))


def _encode(how: RecordKind, record: msgspec.Struct) -> dict[str, Any]:
    fields = [field for field in record.__struct_fields__ if not (how.numbered and field == "id")]
    return {f"new_{field}": _encoded(how, field, getattr(record, field)) for field in fields}


def _encoded(how: RecordKind, field: str, value: Any) -> Any:
    return msgspec.json.encode(value).decode() if field in how.nested else value


def _decoded(kind: type[msgspec.Struct], values: tuple[Any, ...]) -> msgspec.Struct:
    how, fields = KINDS[kind], kind.__struct_fields__
    plain = {
        field: _steady(kind, field, value)
        if field in how.steady and len(value) <= MAX_STEADY
        else msgspec.json.decode(value, type=_types(kind)[field])
        if field in how.steady
        else msgspec.json.decode(value)
        if field in how.nested
        else value
        for field, value in zip(fields, values, strict=True)
    }
    return msgspec.convert(plain, kind, str_keys=True)


# Mostly some 700 bytes each: of two thousand jobs, which are read by each list and look at all.
@lru_cache(maxsize=8_192)
def _steady(kind: type[msgspec.Struct], field: str, text: str) -> Any:
    return msgspec.json.decode(text, type=_types(kind)[field])


@cache
def _types(kind: type[msgspec.Struct]) -> Mapping[str, Any]:
    return get_type_hints(kind)


@cache
def _reader(kind: type[msgspec.Struct]) -> Callable[[tuple[Any, ...]], msgspec.Struct]:
    """What makes a record of the values of its fields, as they stand in a row.

    What is kept is found by all that stands in the row: what was changed, or changed and taken back, is another row. Records are
    never changed in place.
    """
    read, kept = partial(_decoded, kind), KINDS[kind].kept
    return lru_cache(kept)(read) if kept else read
