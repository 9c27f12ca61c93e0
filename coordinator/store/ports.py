"""The store as services see it: records in, records out, everything inside a transaction.

Errors: ``NotFoundError`` (no such record) and ``ConflictError`` (it exists already, or somebody else changed it).
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from types import MemberDescriptorType
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, cast

import msgspec

R = TypeVar("R", bound=msgspec.Struct)
T = TypeVar("T")

Scalar = str | int | float | bool | None
Place = tuple[Scalar, ...]
Operator = Literal["=", "<", ">", "in", "has"]


class Condition(NamedTuple):
    """What a record must meet.

    Attributes:
        of: whose field it speaks of; ``field``: its name.
        operator: "has": the text contains this one, in any case.
    """

    of: type[msgspec.Struct]
    field: str
    operator: Operator
    value: Scalar | Sequence[Scalar]


class Column(Generic[T]):
    """A field of a kind of record, to compare with; written ``col(Job.state).equals(JobState.RUNNING)``."""

    def __init__(self, of: type[msgspec.Struct], field: str) -> None:
        self.of = of
        self.field = field

    def __lt__(self, value: T) -> Condition:
        return Condition(self.of, self.field, "<", cast(Scalar, value))

    def __gt__(self, value: T) -> Condition:
        return Condition(self.of, self.field, ">", cast(Scalar, value))

    def equals(self, value: T) -> Condition:
        """Not ``==``, whose other side a type checker lets be anything."""
        return Condition(self.of, self.field, "=", cast(Scalar, value))

    def in_(self, values: Collection[T]) -> Condition:
        """Equal to one of these."""
        return Condition(self.of, self.field, "in", cast(Sequence[Scalar], tuple(values)))

    def contains(self, text: str) -> Condition:
        """The text contains this one, in any case."""
        return Condition(self.of, self.field, "has", text)


def col(field: T) -> Column[T]:
    """The column of a record's field, named on its class: ``col(Job.state)``.

    A type checker sees the field's own type, so a column that is not there and a value that does not fit are found without
    running anything.
    """
    member = cast(MemberDescriptorType, field)
    return Column(member.__objclass__, member.__name__)


def fields_of(kind: type[msgspec.Struct], columns: Iterable[Column[Any] | Condition]) -> Iterator[str]:
    """Names of columns, each of which must be one of this kind."""
    for column in columns:
        assert issubclass(kind, column.of), f"{column.of.__name__}.{column.field} is no field of {kind.__name__}"
        yield column.field


class Transaction(Protocol):
    """All or nothing. Reads see the transaction's own writes."""

    @property
    def everywhere(self) -> "Transaction":
        """The same one, which finds the jobs of every cell and what follows from them; these are changed by their own cell."""

    async def get(self, kind: type[R], *key: Scalar) -> R:
        """The record with this key; NotFoundError where there is none."""

    async def find(
        self,
        kind: type[R],
        *where: Condition,
        newest: bool = False,
        limit: int | None = None,
        offset: int = 0,
        after: Place | None = None,
    ) -> list[R]:
        """Records that meet every condition, in the order of their kind (``newest``: reversed).

        Args:
            after: only those that come behind this place: the values of the fields that the kind is ordered by.
        """

    async def sums(
        self, kind: type[msgspec.Struct], field: Column[int], by: Sequence[Column[Any]], *where: Condition
    ) -> dict[tuple[Scalar, ...], tuple[int, int]]:
        """How many records meet every condition and what their whole-number ``field`` sums to, for each value of ``by``."""

    async def insert(self, record: R) -> R:
        """Keep a new record and return it, with its number where the kind has one; ConflictError if its key is taken."""

    async def forget(self, kind: type[msgspec.Struct], *where: Condition) -> int:
        """Forget every record that meets all conditions, of which there must be one; how many there were."""

    async def update(self, record: R, before: R | None = None) -> R:
        """Replace a record and return it with its next version; ConflictError unless the stored version is the same.

        Args:
            before: as it is stored, where that is known: what is the same in both need not be written.
        """

    async def insert_all(self, records: Sequence[R]) -> None:
        """Keep new records of one kind, many at once, whose numbers nobody asks for; ConflictError if a key is taken."""

    async def update_all(self, records: Sequence[R], before: Sequence[R] | None = None) -> list[R]:
        """As ``update``, many of one kind at once."""

    async def delete(self, record: msgspec.Struct) -> None:
        """Forget a record, whatever its version; NotFoundError where it is not kept."""

    async def hold_shared(self) -> None:
        """Before records are read that several cells change (of nodes, their credit and days), in order to change them.

        Whoever else wants to waits until this transaction has ended. With one coordinator at work nobody else does.
        """


class Store(Protocol):
    """Where records are kept."""

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Commits when the body ends, and keeps nothing of it when the body raises."""

    async def close(self) -> None:
        """Let go of everything; nothing is lost."""
