"""The rows of the database that say who carries each cell (``store.ownership``), as they are looked at."""

import asyncio
from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

from common.clock import Clock
from coordinator.domain.cells import Cell
from coordinator.store.statement_line import StatementLine

_LOOK = "SELECT {number}, holder, fence, beats, address, files, door, cells, state, ledger, {connected} FROM {table}"
CALLED = "cottage "  # Connections of an owner: so and with its name.
_CONNECTED = """
EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = '{called}' || {name})
"""


class OwnerRow(NamedTuple):
    """What is said of a cell's owner.

    Attributes:
        holder: empty where nobody carries it. ``is_connected``: the database has connections of its.
    """

    holder: str
    fence: int
    beats: int
    address: str
    files: str
    door: str
    cells: int
    state: str
    ledger: str
    is_connected: bool

    @property
    def url(self) -> str:
        """Where the owner serves; empty: nobody does, or nobody has said so under this fence."""
        return self._said(self.door)

    @property
    def has_its_ledger(self) -> str:
        """Which ledger the owner's money is on; empty: it has not said so, or its version does not."""
        return self._said(self.ledger)

    def _said(self, told: str) -> str:
        """What the owner of now has said, and not one of before."""
        fence, _, said = told.partition(" ")
        return said if self.holder and fence == str(self.fence) else ""


class OwnerRows:
    """Those of some cells, read at once for everybody who looks within ``shared`` seconds."""

    def __init__(self, url: str, clock: Clock, cells: Sequence[Cell], shared: float = 0.0) -> None:
        self._line, self._clock, self._shared = StatementLine(url), clock, shared
        has = connected("holder")
        self._statement = " UNION ALL ".join(
            _LOOK.format(number=one.number, table=table_of(one), connected=has) for one in cells
        )
        self._turn = asyncio.Lock()
        self._rows: Mapping[int, OwnerRow] = {}
        self._read = -inf

    async def of(self, cell: Cell) -> OwnerRow:
        """As it is now, or was a moment ago.

        Raises:
            StoreAwayError: the database does not answer.
        """
        async with self._turn:
            now = self._clock.now()
            if now - self._read >= self._shared:
                found = await self._line.rows(self._statement)
                self._rows, self._read = {number: OwnerRow(*row) for number, *row in found}, now
            return self._rows[cell.number]

    def forget(self) -> None:
        """Something was changed: whoever looks next reads anew."""
        self._read = -inf

    async def close(self) -> None:
        """Close the connection."""
        await self._line.close()


def connected(column: str) -> str:
    """SQL: whether the database has a connection of the one whose name a column has."""
    return _CONNECTED.format(called=CALLED, name=column)


def table_of(cell: Cell) -> str:
    """The first one's is that of networks which are not parted."""
    return f"cottage_owner_{cell.number}" if cell.number else "cottage_owner"
