"""One PostgreSQL database has one coordinator at work: who it is, and how another one takes over from it.

A row says who works, and its ``beats`` grow while it does. Whoever has watched a row for ``STALE_S`` that stood still, with a
database that answered all the while, takes it over; ``GONE_S`` are enough once the database has lost all connections of its
owner, which a process that dies loses at once. So no clock of two machines is compared, and a database that was away for a while
costs nobody its place. ``fence`` grows with each owner. Every transaction of an owner reads it first, and so holds the
table's lightest lock until its end. Taking over asks for the heaviest one: it waits for what is under way, and whatever begins
later sees another fence and changes nothing. An owner that stands still with a transaction open has its connections ended.
Source: fencing tokens, M. Kleppmann, "Designing Data-Intensive Applications" (2017), chapter 8; explicit locking, PostgreSQL's
manual, 13.3.

The owner writes its *door* there once it serves: where those that wait reach it, who take requests and nodes in its place
(fronts, ``coordinator.web.fronts``). A door counts with the fence that it was written under, so that nobody looks for a new owner
at the old one's. So does the ledger that its money is on, which those that wait compare with their own.

Each cell of a network (``domain.cells``) has a table of its own, of one row: what follows is true of each by itself. The owner of
the first one says how many there are. Whoever takes it and says another number puts an end to all owners of before.

Tables are made here and not by a migration: a newer version that waits must not change what an older one works with.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from common.clock import Clock
from common.urls import parse_url
from coordinator.domain.cells import WHOLE, Cell
from coordinator.errors import ReplacedError, StoreAwayError, StoreError
from coordinator.store.faults import UNUSABLE, answering, unusable
from coordinator.store.owner_rows import CALLED, OwnerRow, OwnerRows, table_of
from coordinator.store.statement_line import StatementLine

STALE_S = 3.0  # A process that computes for a second or two on end keeps its place.
GONE_S = 1.0  # Within it one comes back whose connections the database ended.
BEAT_S = 0.5
FREE_S = 2.0  # Who ends waits no longer for a database that is away: the next one finds that it stands still.

LOG = logging.getLogger(__name__)

_MAKE = """
CREATE TABLE IF NOT EXISTS {table} (
    one boolean PRIMARY KEY DEFAULT true CHECK (one), holder text NOT NULL DEFAULT '', fence bigint NOT NULL DEFAULT 0,
    beats bigint NOT NULL DEFAULT 0, address text NOT NULL DEFAULT '', files text NOT NULL DEFAULT '')
"""
# With the version that brought them.
_ADDED = {
    "door": "text NOT NULL DEFAULT ''",
    "cells": "integer NOT NULL DEFAULT 1",
    "state": "text NOT NULL DEFAULT ''",
    "ledger": "text NOT NULL DEFAULT ''",
}
_ADD = "ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {column} {kind}"
_COLUMNS = """
SELECT column_name FROM information_schema.columns WHERE table_schema = current_schema() AND table_name = '{table}'
"""
_TABLES = """
SELECT table_name FROM information_schema.tables
WHERE table_schema = current_schema() AND table_name ~ '^cottage_owner(_[0-9]+)?$'
"""
_FIRST = "INSERT INTO {table} DEFAULT VALUES ON CONFLICT DO NOTHING"
# An address of IPv6 stands in brackets before its port; over a Unix socket the database sees none.
_BEAT = """
UPDATE {table} SET beats = beats + 1, state = :state, ledger = :ledger, door = replace(CAST(:door AS text), '*', coalesce(
    CASE family(inet_client_addr()) WHEN 6 THEN '[' || host(inet_client_addr()) || ']' ELSE host(inet_client_addr()) END,
    '127.0.0.1'))
WHERE fence = :fence
"""
_CHECK = "SELECT fence FROM {table}"
_LOCK = "LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"
_FREE = "UPDATE {table} SET holder = '' WHERE fence = :fence"
_END = "UPDATE {table} SET holder = '', fence = fence + 1 WHERE cells <> :cells"
_END_CONNECTIONS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = :name AND pid <> pg_backend_pid()
"""
_TAKE = """
UPDATE {table} SET holder = :holder, fence = fence + 1, beats = beats + 1, address = :address, files = :files, cells = :cells
WHERE fence = :fence AND beats = :beats
"""


class Ownership:
    """This process and the database that it works with, or waits for; with several cells, its jobs of one.

    Attributes:
        cell: that it is about.
        fence: by which its transactions are known; 0 before it has ever been the owner.
        at_work: the base address of the coordinator that is at work, as last seen while waiting; empty: none serves.
        state: what the owner tells of itself (``tell``), as last seen.
        ledger: identity of the one that this one's money is on; empty: it is not known yet, and is not compared.
        is_compared: one at work has been seen that this one may take over from.
        is_unknown: one seems to be at work of which that is not known yet.
        has_served: this one has been at work, and has served.
    """

    def __init__(
        self, engine: AsyncEngine, rows: OwnerRows, clock: Clock, address: str, files: str, cell: Cell = WHOLE
    ) -> None:
        """``address``: of the coordinator's key; ``files``: where its artifacts lie. Both are the same for all of them."""
        self._engine, self._rows, self._clock, self._files = engine, rows, clock, files
        # A version that knows no cells finds another key at work, and takes over nothing.
        self._parted = "" if cell.of == 1 else f", in {cell.of} cells"
        self._address = address + self._parted
        self._holder = secrets.token_hex(8)
        self._line = StatementLine(engine.url.render_as_string(hide_password=False), self.name)
        self._table = table_of(cell)
        self._seen: OwnerRow | None = None
        self._since = 0.0
        self._met = ""  # A holder of whom a connection has been seen.
        self._door = ""
        self.cell = cell
        self.fence = 0
        self.at_work = ""
        self.state = ""
        self.ledger = ""
        self.is_compared = self.is_unknown = self.has_served = False

    @classmethod
    async def open(
        cls, url: str, clock: Clock, address: str, files: str, cell: Cell = WHOLE, rows: OwnerRows | None = None
    ) -> "Ownership":
        """Connect to PostgreSQL.

        Args:
            rows: where it is looked up who carries what, by all of this process; None: this one looks for itself.
        Raises:
            StoreError: that is not possible; the text says why, and what to do.
        """
        try:
            engine = create_async_engine(url, poolclass=NullPool)
            try:
                async with engine.begin() as connection:
                    # Two that make it at the same time would fail, one of them.
                    await connection.execute(text("SELECT pg_advisory_xact_lock(7073697)"))
                    await _make(connection, table_of(cell))
            except BaseException:
                await engine.dispose()
                raise
        except UNUSABLE as error:
            raise unusable(url, error) from error
        return cls(engine, rows or OwnerRows(url, clock, [cell]), clock, address, files, cell)

    @property
    def name(self) -> str:
        """What its connections are called (``application_name``)."""
        return _name(self._holder)

    async def take(self, may: bool = True) -> bool:
        """Become the owner, if nobody is, or who was has stood still for long enough; to be tried again and again.

        Args:
            may: else it only looks who is.
        Raises:
            StoreAwayError: the database does not answer.
            StoreError: another coordinator is at work that this one cannot take over from: it has another key, other files or
                another ledger.
        """
        try:
            seen = await self._rows.of(self.cell)
        except StoreAwayError:
            # Who is the owner may not have reached it either, and comes back to it as this one does.
            self._seen, self._met = None, ""
            raise
        self.at_work, self.state = seen.url, seen.state if seen.holder else ""
        now = self._clock.now()
        if seen.is_connected:
            self._met = seen.holder
        as_said = seen._replace(is_connected=False)
        if seen.holder and as_said != self._seen:
            if self._seen is not None:  # It lives.
                self._compare(seen)
            self._seen, self._since = as_said, now
        lives = bool(seen.holder) and now - self._since < self._patience(seen)
        self.is_unknown = lives and seen.is_connected and not self.is_compared
        return may and not lives and await self._take(seen)

    async def check(self, connection: AsyncConnection) -> None:
        """See at the beginning of a transaction that this is the owner, and stay it until its end.

        Raises:
            ReplacedError: it is not, any more.
        """
        if await connection.scalar(self._said(_CHECK)) != self.fence:
            raise ReplacedError("another coordinator has taken over")

    def open_door(self, url: str, anywhere: bool) -> None:
        """Let those that wait know with the next beat where this one serves, now that it does.

        Args:
            url: its base address. ``anywhere``: it listens on all addresses; it is told by that one which the database sees.
        """
        port, self.has_served = parse_url(url).port, True
        self._door = f"{self.fence} {f'http://*:{port}' if anywhere else url}"
        self.at_work = f"http://127.0.0.1:{port}" if anywhere else url

    def tell(self, state: str) -> None:
        """Let everybody who reads the row know something of this one, with the next beat."""
        self.state = state

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[asyncio.Event]:
        """Stay the owner meanwhile; the event says that another one has taken over. At the end the next one need not wait."""
        lost = asyncio.Event()
        beating = asyncio.create_task(self._beat(lost), name="ownership")
        try:
            yield lost
        finally:
            beating.cancel()
            with suppress(asyncio.CancelledError):
                await beating
            with suppress(StoreAwayError, TimeoutError):
                async with asyncio.timeout(FREE_S):
                    await self._execute(_FREE, fence=self.fence)
            self.at_work = self.state = ""
            await self._line.close()

    async def close(self) -> None:
        """Close its connections."""
        await self._line.close()
        await self._rows.close()
        await self._engine.dispose()

    async def _beat(self, lost: asyncio.Event) -> None:
        while True:
            with suppress(StoreAwayError):
                ledger = f"{self.fence} {self.ledger}"
                if not await self._execute(_BEAT, fence=self.fence, door=self._door, state=self.state, ledger=ledger):
                    what = f"cell {self.cell.number + 1}" if self._parted else "the database"
                    LOG.warning("another coordinator has taken %s over: this one stands by", what)
                    lost.set()
                    return
            await self._clock.sleep(BEAT_S)

    async def _take(self, seen: OwnerRow) -> bool:
        self._seen = None
        async with answering(), self._engine.begin() as connection:
            if seen.holder:
                await connection.execute(text(_END_CONNECTIONS), {"name": _name(seen.holder)})
            await connection.execute(self._said(_LOCK))
            values = {"holder": self._holder, "address": self._address, "files": self._files, "cells": self.cell.of}
            taken = await connection.execute(self._said(_TAKE), values | {"fence": seen.fence, "beats": seen.beats})
            if taken.rowcount and self.cell.number == 0 and seen.cells != self.cell.of:
                await self._end_all(connection)
        self._rows.forget()
        if not taken.rowcount:
            return False
        self.fence, self.is_compared = seen.fence + 1, True
        self.at_work = self.state = ""
        if seen.holder:
            LOG.warning(
                "the coordinator that was at work has said nothing for %g s: this one takes over", self._patience(seen)
            )
        return True

    def _patience(self, seen: OwnerRow) -> float:
        """Seconds for which one may stand still. Who never had a connection of that name has another version's."""
        return GONE_S if seen.holder == self._met and not seen.is_connected else STALE_S

    async def _end_all(self, connection: AsyncConnection) -> None:
        """Put an end to the owners of cells of another number: each would carry jobs that are somebody else's by now."""
        for table in sorted((await connection.execute(text(_TABLES))).scalars()):
            if table != self._table:
                await connection.execute(text(_LOCK.format(table=table)))
                await connection.execute(text(_END.format(table=table)), {"cells": self.cell.of})

    async def _execute(self, statement: str, **values: int | str) -> bool:
        """Whether it changed the row."""
        return bool(await self._line.changed(statement.format(table=self._table), **values))

    def _said(self, statement: str) -> TextClause:
        """About the table of this cell."""
        return text(statement.format(table=self._table))

    def _compare(self, seen: OwnerRow) -> None:
        if seen.cells != self.cell.of:
            raise StoreError(
                f"the coordinator that works with this database carries jobs in {seen.cells} cells, and this one in "
                f"{self.cell.of}: say --cells {seen.cells}; or end all coordinators, and start them with another number"
            )
        wish = "to work beside it" if self._parted else "to stand by for it"
        if seen.address != self._address:
            other, mine = seen.address.removesuffix(self._parted), self._address.removesuffix(self._parted)
            raise StoreError(
                f"the coordinator {other} works with this database, and this one has the key of {mine}: "
                f"{wish} copy coordinator.key from its data folder; or name another database"
            )
        if seen.files != self._files:
            raise StoreError(
                f"the coordinator that works with this database has its files in {seen.files}, and this one in "
                f"{self._files}: {wish} share its data folder, or name the same bucket with --store"
            )
        if self.ledger and seen.has_its_ledger not in ("", self.ledger):
            raise StoreError(
                "the coordinator that works with this database has its money on the ledger "
                f"{seen.has_its_ledger}, and this one on {self.ledger} (genesis hash, program and token): {wish} name an "
                "endpoint of the same chain with --ledger-url, and the same --ledger-program and --ledger-mint; or name "
                "another database"
            )
        self.is_compared = True


async def _make(connection: AsyncConnection, table: str) -> None:
    await connection.execute(text(_MAKE.format(table=table)))
    there = set((await connection.execute(text(_COLUMNS.format(table=table)))).scalars())
    for column, kind in _ADDED.items():
        if column not in there:  # Asked first: to alter waits for transactions.
            await connection.execute(text(_ADD.format(table=table, column=column, kind=kind)))
    await connection.execute(text(_FIRST.format(table=table)))


def _name(holder: str) -> str:
    return CALLED + holder
