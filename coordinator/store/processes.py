"""The coordinators of one database that live, and how many cells each carries: so that these are shared evenly.

A row for each, whose ``beats`` grow; who has watched one stand still for ``STALE_S``, or for ``GONE_S`` without a connection,
takes it for dead, by its own clock. Nothing that must be right hangs on it: who carries a cell is said by that cell's own row
(``store.ownership``).
"""

import asyncio
import logging
import math
import secrets
from contextlib import suppress
from typing import NamedTuple

from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from common.clock import Clock
from coordinator.errors import StoreAwayError
from coordinator.store.faults import UNUSABLE, unusable
from coordinator.store.owner_rows import CALLED, connected
from coordinator.store.ownership import BEAT_S, GONE_S, STALE_S
from coordinator.store.statement_line import StatementLine

SETTLE_S = 2.0  # Who has just come, or has just taken or given up a cell, is looked at again first.
KNOWN_S = 2.0  # What was seen longer ago decides nothing: while the database is away nobody can take what another one gives up.
FORGET_S = 60.0
AWAY_S, LONGEST_AWAY_S = 2.0, 15.0  # Until one tries again that could not carry a cell, doubling.
SOUND_S = 60.0  # Who was able to for so long begins with the short one again.

LOG = logging.getLogger(__name__)

_MAKE = """
CREATE TABLE IF NOT EXISTS cottage_process (
    name text PRIMARY KEY, beats bigint NOT NULL DEFAULT 0, cells integer NOT NULL DEFAULT 0)
"""
_BEAT = """
WITH beat AS (
    INSERT INTO cottage_process VALUES (:name, 1, :cells)
    ON CONFLICT (name) DO UPDATE SET beats = cottage_process.beats + 1, cells = excluded.cells
    RETURNING name, beats, cells)
SELECT *, true FROM beat UNION ALL
"""
_OTHERS = "SELECT name, beats, cells, {connected} FROM cottage_process WHERE name <> :name"
_FORGET = "DELETE FROM cottage_process WHERE name = :name"


class _Seen(NamedTuple):
    """A row; ``since``: when it began to stand still."""

    beats: int
    cells: int
    is_connected: bool
    since: float

    def lives(self, now: float) -> bool:
        return now - self.since < (STALE_S if self.is_connected else GONE_S)


class Processes:
    """This process among those.

    Attributes:
        held: cells that it carries now. ``one_at_a_time``: held while it takes one, so that it takes no more than its share.
    """

    def __init__(self, url: str, clock: Clock, cells: int) -> None:
        self._name = secrets.token_hex(8)
        self._line, self._clock, self._cells = StatementLine(url, CALLED + self._name), clock, cells
        self._seen: dict[str, _Seen] = {}
        self._others_as_seen = _OTHERS.format(connected=connected("name"))
        self._since, self._looked = clock.now(), -math.inf
        self._unable_until, self._pause = -math.inf, AWAY_S
        self.held: set[int] = set()
        self.one_at_a_time = asyncio.Lock()

    @classmethod
    async def open(cls, url: str, clock: Clock, cells: int) -> "Processes":
        """Connect to PostgreSQL.

        Raises:
            StoreError: that is not possible; the text says why, and what to do.
        """
        try:
            engine = create_async_engine(url, poolclass=NullPool)
            try:
                async with engine.begin() as connection:
                    await connection.execute(text("SELECT pg_advisory_xact_lock(7073697)"))
                    await connection.execute(text(_MAKE))
            finally:
                await engine.dispose()
        except UNUSABLE as error:
            raise unusable(url, error) from error
        return cls(url, clock, cells)

    async def run(self) -> None:
        """For ever: say that this one lives, and see who else does. That the database is away is told once, and its end too."""
        since: float | None = None
        while True:
            try:
                await self.look()
            except StoreAwayError as error:
                if since is None:
                    since = self._clock.now()
                    LOG.warning("the database does not answer: %s", error.cause)
            else:
                if since is not None:
                    LOG.warning("the database answers again, after %.0f s", self._clock.now() - since)
                since = None
            await self._clock.sleep(BEAT_S)

    async def look(self) -> None:
        """Once."""
        beat, values = (_BEAT, {"cells": len(self.held)}) if self._is_able() else ("", {})
        try:
            rows = await self._line.rows(beat + self._others_as_seen, name=self._name, **values)
        except StoreAwayError:
            self._seen = {}  # They may not have reached it either.
            raise
        self._looked = now = self._clock.now()
        before, self._seen = self._seen, {}
        for name, beats, cells, is_connected in rows:
            since = before[name].since if name in before and before[name].beats == beats else now
            self._seen[name] = _Seen(beats, cells, is_connected, since)
            if now - since > FORGET_S:
                await self._line.changed(_FORGET, name=name)

    def may_take(self) -> bool:
        """Whether one more cell falls to this one."""
        return self._knows() and self._is_able() and len(self.held) < math.ceil(self._cells / (1 + len(self._others())))

    def gives_up(self) -> int | None:
        """A cell that another one should carry, which has two fewer; None: none."""
        if not self._knows():
            return None
        fewest = min(self._others(), default=len(self.held))
        if fewest > len(self.held) - 2 or self._clock.now() - self._since < SETTLE_S:
            return None
        return max(self.held)

    def took(self, cell: int) -> None:
        """This process carries a cell from now on."""
        self.held.add(cell)
        self._since = self._clock.now()

    def gave(self, cell: int) -> None:
        """It does no longer."""
        self.held.discard(cell)
        self._since = self._clock.now()

    def failed(self) -> None:
        """A cell could not be carried here. For a while this one takes none, and is counted by nobody, so that others do."""
        now = self._clock.now()
        again = now - self._unable_until < SOUND_S
        self._pause = min(LONGEST_AWAY_S, 2 * self._pause) if again else AWAY_S
        self._unable_until = now + self._pause

    async def close(self) -> None:
        """Say that this one has ended, and close the connections."""
        with suppress(StoreAwayError):
            await self._line.changed(_FORGET, name=self._name)
        await self._line.close()

    def _is_able(self) -> bool:
        return self._clock.now() >= self._unable_until

    def _knows(self) -> bool:
        """Whether it has seen lately who lives."""
        return self._clock.now() - self._looked < KNOWN_S

    def _others(self) -> list[int]:
        """How many cells each other one carries that lives."""
        now = self._clock.now()
        return [one.cells for name, one in self._seen.items() if name != self._name and one.lives(now)]
