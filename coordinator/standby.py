"""A second coordinator on the same PostgreSQL database waits, and takes over when the first one ends or falls silent.

Meanwhile it is a front: it answers what it can read, and leads the rest to the one at work (``web.fronts``).
"""

import asyncio
import logging
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from aiohttp import web

from common.clock import Clock, SystemClock
from common.own_folders import make_folder
from coordinator.config import Config
from coordinator.domain.cells import WHOLE, Cell
from coordinator.errors import StoreAwayError
from coordinator.front import front_of
from coordinator.own_ledger import looked_at
from coordinator.store.owner_rows import OwnerRows
from coordinator.store.ownership import Ownership
from coordinator.web.connections import IDLE_S, Connections, listen
from protocol.identity import NodeKey

LOOK_S = 0.25
PATIENCE_S = 1.0  # A coordinator that was started anew after a clean end has its place at once.

LOG = logging.getLogger(__name__)


@asynccontextmanager
async def ownership_of(
    config: Config, clock: Clock, cell: Cell = WHOLE, rows: OwnerRows | None = None
) -> AsyncIterator[Ownership | None]:
    """A coordinator's place on its database, or its place for a cell; None on SQLite, which no other machine reaches.

    ``rows``: as ``Ownership.open`` has them.

    Raises:
        StoreError: the database cannot be used.
        KeyFileError: the coordinator's key cannot be read.
    """
    if not config.database.startswith("postgresql"):
        yield None
        return
    make_folder(config.data)
    address = NodeKey.load_or_generate(config.data / "coordinator.key").address
    ownership = await Ownership.open(config.database, clock, address, _files(config), cell, rows)
    try:
        yield ownership
    finally:
        await ownership.close()


async def wait(config: Config, ownership: Ownership, stopping: asyncio.Event) -> bool:
    """Return True once this coordinator owns its database. Meanwhile its port answers that it stands by.

    Returns:
        False where it was asked to stop before.

    Raises:
        StoreError: it cannot take over from the one that is at work.
    """
    async with looked_at(config, ownership):
        return await _taken(ownership, stopping, PATIENCE_S) or await _stood_by(config, ownership, stopping)


async def _stood_by(config: Config, ownership: Ownership, stopping: asyncio.Event) -> bool:
    LOG.warning("another coordinator works with this database, or did a moment ago: this one stands by")
    key = NodeKey.load_or_generate(config.data / "coordinator.key")
    async with front_of(config, SystemClock(), [lambda: ownership.at_work], key) as app:
        runner = web.AppRunner(app, shutdown_timeout=0.1, keepalive_timeout=IDLE_S)
        await runner.setup()
        assert runner.server is not None
        Connections(config.behind_proxy).guard(runner.server)
        try:
            await listen(runner, config.host, config.port)
            return await _taken(ownership, stopping)
        finally:
            await runner.cleanup()


async def _taken(ownership: Ownership, stopping: asyncio.Event, seconds: float = float("inf")) -> bool:
    began = asyncio.get_running_loop().time()
    while not stopping.is_set() and asyncio.get_running_loop().time() - began < seconds:
        try:
            if await ownership.take():
                return True
        except StoreAwayError as error:
            LOG.warning("the database does not answer: %s", error.cause)
        await asyncio.sleep(LOOK_S)
    return False


def _files(config: Config) -> str:
    """Where artifacts lie, so that two coordinators know whether they have the same ones."""
    if config.store is not None:
        return config.store
    path, name = config.data / "folder-id", secrets.token_hex(8)
    draft = config.data / f".folder-id-{name}"
    draft.write_text(name)
    with suppress(FileExistsError):
        os.link(draft, path)  # Whole, or not at all: another coordinator may look just now.
    draft.unlink()
    return f"the data folder {path.read_text().strip()}"
