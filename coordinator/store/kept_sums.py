"""Sums that the database keeps by itself: of all jobs by state, and of all ledger rows by kind and state.

Triggers add to them in the statement that changes what they are of (migration 0040), whoever says it. So they take the same
however many have ended, and hold with several writers, in a snapshot, and after an earlier version has worked meanwhile. What an
amount sums to has two halves of 32 bits: amounts that fit a column may not do so together, and SQLite would round them. Each cell
adds to rows of its own (migration 0041), so that coordinators that work beside each other do not wait for each other.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import BigInteger, Column, PrimaryKeyConstraint, SmallInteger, String, Table

from coordinator.store.period_tables import metadata

__all__ = ["HALF_BITS", "KEPT_SUMS", "KeptSums", "metadata"]

HALF_BITS = 32


@dataclass(frozen=True)
class KeptSums:
    """``table``: a row for each value of ``by``, with how many there are and what each of ``fields`` sums to."""

    table: Table
    by: frozenset[str]
    fields: frozenset[str]


def _kept(name: str, by: tuple[str, ...], fields: tuple[str, ...]) -> KeptSums:
    halves = (f"{field}_{half}" for field in fields for half in ("high", "low"))
    table = Table(
        name,
        metadata,
        Column("cell", SmallInteger, nullable=False),
        *(Column(key, String(16), nullable=False) for key in by),
        *(Column(column, BigInteger, nullable=False) for column in ("number", *halves)),
        PrimaryKeyConstraint("cell", *by),
    )
    return KeptSums(table, frozenset(by), frozenset(fields))


KEPT_SUMS: Mapping[str, KeptSums] = {
    "jobs": _kept("job_sums", ("state",), ("escrow", "paid", "refunded")),
    "outbox": _kept("outbox_sums", ("kind", "state"), ("amount",)),
}
"""By the table that they are of."""
