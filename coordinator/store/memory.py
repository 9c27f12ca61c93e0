"""Records in memory, for tests and the simulator: no thread, no file, the same behaviour as ``sql``."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import Any, cast

import msgspec

from coordinator.errors import ConflictError, NotFoundError
from coordinator.store.kinds import KINDS
from coordinator.store.ports import Column, Condition, Place, R, Scalar, Transaction, fields_of

Key = tuple[object, ...]
Rows = dict[Key, msgspec.Struct]


class MemoryStore:
    """Lives as long as the object; a simulated restart of the coordinator keeps it."""

    def __init__(self) -> None:
        self._rows: dict[type[msgspec.Struct], Rows] = {kind: {} for kind in KINDS}
        self._numbers: dict[type[msgspec.Struct], int] = dict.fromkeys(KINDS, 0)
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """One at a time, as SQLite has it."""
        async with self._turn:
            changes = _Memory(self._rows, self._numbers)
            yield changes
            for kind, rows in changes.written.items():
                self._rows[kind].update(rows)
            for kind, keys in changes.deleted.items():
                for key in keys:
                    self._rows[kind].pop(key, None)

    async def close(self) -> None:
        """Nothing to let go of."""


class _Memory:
    def __init__(self, rows: dict[type[msgspec.Struct], Rows], numbers: dict[type[msgspec.Struct], int]) -> None:
        self._rows = rows
        self._numbers = numbers
        self.written: dict[type[msgspec.Struct], Rows] = {}
        self.deleted: dict[type[msgspec.Struct], set[Key]] = {}

    async def get(self, kind: type[R], *key: Scalar) -> R:
        found = self._one(kind, key)
        if found is None:
            raise NotFoundError(f"no {KINDS[kind].name} record {key}")
        return cast(R, found)

    async def find(
        self,
        kind: type[R],
        *where: Condition,
        newest: bool = False,
        limit: int | None = None,
        offset: int = 0,
        after: Place | None = None,
    ) -> list[R]:
        place = KINDS[kind].place_of
        found = self._where(kind, where)
        found.sort(key=place, reverse=newest)
        if after is not None:
            found = [record for record in found if (place(record) < after if newest else place(record) > after)]
        return cast(list[R], found[offset : None if limit is None else offset + limit])

    async def sums(
        self, kind: type[msgspec.Struct], field: Column[int], by: Sequence[Column[Any]], *where: Condition
    ) -> dict[tuple[Scalar, ...], tuple[int, int]]:
        groups: dict[tuple[Scalar, ...], tuple[int, int]] = {}
        summed, *names = fields_of(kind, (field, *by))
        for record in self._where(kind, where):
            key = tuple(getattr(record, name) for name in names)
            count, total = groups.get(key, (0, 0))
            groups[key] = (count + 1, total + int(getattr(record, summed)))
        return groups

    async def insert(self, record: R) -> R:
        kind = KINDS[type(record)]
        if kind.numbered:
            self._numbers[type(record)] += 1
            record = msgspec.structs.replace(record, id=self._numbers[type(record)])
        taken = self._one(type(record), kind.key_of(record)) is not None
        if kind.unique is not None:
            value = getattr(record, kind.unique)
            taken = taken or any(getattr(other, kind.unique) == value for other in self._all(type(record)))
        if taken:
            raise ConflictError(f"the {kind.name} record {kind.key_of(record)} exists already")
        self._write(record)
        return record

    async def update(self, record: R, before: R | None = None) -> R:
        kind = KINDS[type(record)]
        stored = self._one(type(record), kind.key_of(record))
        version = getattr(record, "version", 0)
        if stored is None or getattr(stored, "version", 0) != version:
            raise ConflictError(f"the {kind.name} record {kind.key_of(record)} has changed since version {version}")
        record = msgspec.structs.replace(record, version=version + 1)
        self._write(record)
        return record

    async def insert_all(self, records: Sequence[R]) -> None:
        for record in records:
            await self.insert(record)

    async def update_all(self, records: Sequence[R], before: Sequence[R] | None = None) -> list[R]:
        return [await self.update(record) for record in records]

    async def forget(self, kind: type[msgspec.Struct], *where: Condition) -> int:
        assert where, "everything of a kind is never forgotten at once"
        found = self._where(kind, where)
        for record in found:
            await self.delete(record)
        return len(found)

    async def delete(self, record: msgspec.Struct) -> None:
        kind = KINDS[type(record)]
        key = kind.key_of(record)
        if self._one(type(record), key) is None:
            raise NotFoundError(f"no {kind.name} record {key}")
        self.written.get(type(record), {}).pop(key, None)
        self.deleted.setdefault(type(record), set()).add(key)

    @property
    def everywhere(self) -> Transaction:
        """Nothing is parted."""
        return self

    async def hold_shared(self) -> None:
        """Nobody else is at work."""

    def _write(self, record: msgspec.Struct) -> None:
        key = KINDS[type(record)].key_of(record)
        self.deleted.get(type(record), set()).discard(key)
        self.written.setdefault(type(record), {})[key] = record

    def _one(self, kind: type[msgspec.Struct], key: Key) -> msgspec.Struct | None:
        if key in self.deleted.get(kind, set()):
            return None
        return self.written.get(kind, {}).get(key) or self._rows[kind].get(key)

    def _where(self, kind: type[msgspec.Struct], where: Sequence[Condition]) -> list[msgspec.Struct]:
        found: Iterable[msgspec.Struct] = self._all(kind)
        assert all(fields_of(kind, where)), where
        if same := [condition for condition in where if condition.operator == "="]:
            # Nearly every search begins with these, so they are compared without a call for each.
            of, wanted = (
                attrgetter(*(condition.field for condition in same)),
                tuple(condition.value for condition in same),
            )
            value = wanted if len(wanted) > 1 else wanted[0]
            found = [record for record in found if of(record) == value]
        others = [condition for condition in where if condition.operator != "="]
        if not others:
            return found if isinstance(found, list) else list(found)
        return [record for record in found if all(_meets(record, condition) for condition in others)]

    def _all(self, kind: type[msgspec.Struct]) -> Iterable[msgspec.Struct]:
        written, deleted = self.written.get(kind, {}), self.deleted.get(kind, set())
        if not written and not deleted:
            return self._rows[kind].values()
        return self._changed(kind, written, deleted)

    def _changed(self, kind: type[msgspec.Struct], written: Rows, deleted: set[Key]) -> Iterator[msgspec.Struct]:
        yield from written.values()
        yield from (record for key, record in self._rows[kind].items() if key not in written and key not in deleted)


def _meets(record: msgspec.Struct, condition: Condition) -> bool:
    _, field, operator, value = condition
    actual = getattr(record, field)
    match operator:
        case "=":
            return bool(actual == value)
        case "<":
            return actual is not None and bool(actual < value)
        case ">":
            return actual is not None and bool(actual > value)
        case "has":
            return str(value).lower() in str(actual).lower()
        case "in":
            return actual in cast(tuple[Scalar, ...], value)
