"""The store as services see it: records in, records out, everything inside a transaction.

Errors: ``NotFoundError`` (no such record) and ``ConflictError`` (it exists already, or somebody else changed it).
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol, TypeVar

import msgspec

R = TypeVar("R", bound=msgspec.Struct)

Scalar = str | int | float | bool | None
Place = tuple[Scalar, ...]
# "has": the text contains this one, in any case.
Where = tuple[str, Literal["=", "<", ">", "in", "has"], Scalar | Sequence[Scalar]]


class Transaction(Protocol):
    """All or nothing. Reads see the transaction's own writes."""

    async def get(self, kind: type[R], *key: Scalar) -> R:
        """The record with this key; NotFoundError where there is none."""

    async def find(
        self,
        kind: type[R],
        *where: Where,
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
        self, kind: type[msgspec.Struct], field: str, by: Sequence[str], *where: Where
    ) -> dict[tuple[Scalar, ...], tuple[int, int]]:
        """How many records meet every condition and what their whole-number ``field`` sums to, for each value of ``by``."""

    async def insert(self, record: R) -> R:
        """Keep a new record and return it, with its number where the kind has one; ConflictError if its key is taken."""

    async def forget(self, kind: type[msgspec.Struct], *where: Where) -> int:
        """Forget every record that meets all conditions, of which there must be one; how many there were."""

    async def update(self, record: R) -> R:
        """Replace a record and return it with its next version; ConflictError unless the stored version is the same."""

    async def delete(self, record: msgspec.Struct) -> None:
        """Forget a record, whatever its version; NotFoundError where it is not kept."""


class Store(Protocol):
    """Where records are kept."""

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Commits when the body ends, and keeps nothing of it when the body raises."""

    async def close(self) -> None:
        """Let go of everything; nothing is lost."""
