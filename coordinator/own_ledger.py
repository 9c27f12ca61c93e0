"""Which ledger a coordinator's money is on: it is the same for all of one database, who compare it (``store.ownership``)."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from coordinator.config import Config
from coordinator.store.ownership import Ownership
from ledger.client import Ledger, LedgerConfig
from ledger.errors import LedgerError

AGAIN_S = 5.0

LOG = logging.getLogger(__name__)


def place_of(config: Config) -> LedgerConfig:
    """Where the settings say that the ledger is."""
    return LedgerConfig(config.ledger_url, config.ledger_program, config.ledger_mint)


async def ledger_of(config: Config) -> str:
    """The identity of the ledger that the settings name; it answers, and program and token are there.

    Raises:
        LedgerError: it cannot be used.
    """
    async with await Ledger.connect(place_of(config)) as ledger:
        return await ledger.identity()


@asynccontextmanager
async def looked_at(config: Config, ownership: Ownership) -> AsyncIterator[None]:
    """Have who stands by know its ledger, as soon as that answers: until then it stands by all the same, uncompared."""
    looking = asyncio.create_task(_look(config, ownership), name="own-ledger")
    try:
        yield
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


async def _look(config: Config, ownership: Ownership) -> None:
    was_told = False
    while not ownership.ledger:
        try:
            ownership.ledger = await ledger_of(config)
        except LedgerError as error:
            if not was_told:
                LOG.warning("the ledger, which this coordinator needs once it works, cannot be used now: %s", error)
            was_told = True
            await asyncio.sleep(AGAIN_S)
