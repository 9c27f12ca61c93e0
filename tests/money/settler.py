"""The payment service as a process of its own, to be killed: ``python -m tests.money.settler URL DATABASE``.

It says a line before each question to the ledger, waits for one in return, and ends when nothing is open any more.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any, cast

from coordinator.services.chain import Chain, LedgerChain
from coordinator.store.records import OutboxRecord
from coordinator.store.sql import SqlStore
from ledger.client import Ledger, LedgerConfig
from tests.coordinator.bench import Bench
from tests.coordinator.fakes import COORDINATOR

SEED, WALLET_SEED = b"c" * 32, b"w" * 32
PLAIN = ("url", "program", "mint", "escrow_address", "promise")


class SpeakingChain:
    """Asks for leave before and after every question, so that a test may end the process exactly there."""

    def __init__(self, inner: LedgerChain) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if name in PLAIN:
            return attribute

        async def call(*arguments: Any) -> Any:
            await _leave(f"before {name}")
            result = await attribute(*arguments)
            await _leave(f"after {name}")
            return result

        return call


async def _leave(what: str) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)


async def settle(url: str, database: str) -> None:
    """Carry everything that is open."""
    store = await SqlStore.open(database)
    try:
        async with await Ledger.connect(LedgerConfig(url)) as ledger:
            chain = LedgerChain(ledger, url, SEED, WALLET_SEED, COORDINATOR)
            bench = Bench(store=store, chain=cast(Chain, SpeakingChain(chain)))
            while await _open(store):
                await bench.parts.settlement.drain()
                bench.clock.t += 1.0
    finally:
        await store.close()


async def _open(store: SqlStore) -> bool:
    async with store.transaction() as tx:
        return bool(await tx.find(OutboxRecord, ("state", "in", ("queued", "sent")), limit=1))


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    asyncio.run(settle(sys.argv[1], sys.argv[2]))
