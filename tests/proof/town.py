"""A real coordinator on the real embedded ledger, with jobs that scripted nodes train, audit and are paid for."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from coordinator.config import Config
from coordinator.services.chain import LedgerChain
from coordinator.web.signal import PATH
from ledger.client import Ledger, LedgerConfig
from ledger.local.genesis import open_chain
from ledger.local.rpc import Rpc
from ledger.local.server import build_app
from ledger.local.store import Store
from ledger.money import Amount
from tests.coordinator.conftest import House, ScriptedNode, nodes, opened, until
from tests.coordinator.fakes import COORDINATOR, WALLET, spec
from transport.identity import NodeKey
from transport.wire.api import NewJob

COORDINATOR_SEED, WALLET_SEED = b"c" * 32, b"w" * 32
STAKE = 2_000_000
OVER = ("settled", "failed", "cancelled")


@dataclass
class Town:
    """Everything that runs. ``rpc`` and ``url``: addresses of the ledger and of the coordinator."""

    house: House
    ledger: Ledger
    rpc: str
    url: str

    async def train(self, name: str = "a small job", **training: int) -> str:
        """Submit a job, fund it from the test wallet and wait until it is over; returns its id."""
        job = (await self.house.parts.jobs.create(NewJob(spec(**training)))).id
        await self.house.parts.jobs.fund(job)
        await until(lambda: self.is_over(job), 60.0)
        return job

    async def is_over(self, job: str) -> bool:
        """Whether the job has ended and the ledger knows all of it."""
        receipts = await self.house.parts.jobs.receipts(job)
        told = all(receipt.state not in ("queued", "sent") for receipt in receipts)
        return told and (await self.house.parts.jobs.get(job)).state in OVER

    async def stake(self, node: ScriptedNode) -> None:
        """Put the node's stake on the ledger."""
        await self.ledger.faucet(node.key.address, Amount(STAKE))
        await self.ledger.open_stake(node.key.seed, Amount(STAKE), COORDINATOR)


@asynccontextmanager
async def town(folder: Path) -> AsyncIterator[Town]:
    """A ledger, a coordinator with its pages, nobody else yet."""
    chain, genesis = open_chain(Store(":memory:"), time.time)
    runner = web.AppRunner(build_app(Rpc(chain, genesis), lambda: None), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    rpc = "http://{}:{}".format(*runner.addresses[0][:2])
    config = Config(
        data=folder, ledger_url=rpc, lease_seconds=5.0, heartbeat_seconds=0.2, tick_seconds=0.05, start_grace_seconds=0.2,
        audit_seconds=10.0, audit_patience_seconds=0.3, settle_every=2, validations=0,
    )  # fmt: skip
    try:
        async with await Ledger.connect(LedgerConfig(rpc)) as ledger:
            await ledger.faucet(COORDINATOR, Amount(0))
            await ledger.faucet(WALLET, Amount(1_000_000_000_000))
            money = LedgerChain(ledger, rpc, COORDINATOR_SEED, WALLET_SEED, COORDINATOR)
            async with opened(config, money, rest=True) as house:  # type: ignore[arg-type]
                yield Town(house, ledger, rpc, house.url.removesuffix(PATH))
    finally:
        await runner.cleanup()


__all__ = ["COORDINATOR", "STAKE", "WALLET", "NodeKey", "Town", "nodes", "town", "until"]
