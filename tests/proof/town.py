"""A real coordinator with its pages on the real embedded ledger; nodes are scripted, and time is moved by hand.

Nothing waits for a clock, so a job of four rounds, from its escrow to its refund, takes a second or two of computing.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
from aiohttp import web

from coordinator.app import add_interface
from coordinator.assembly import CoordinatorParts, assemble
from coordinator.config import Config
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.dataset_checks import DatasetChecks, Inspector
from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
from coordinator.services.artifacts.models import ModelWorkshop
from coordinator.services.artifacts.uploads import UploadService
from coordinator.services.core.context import Context
from coordinator.services.payments.chain import LedgerChain
from coordinator.services.recovery.catching_up import CatchingUp
from coordinator.store.memory import MemoryStore
from coordinator.web.auth import Auth
from ledger.client import Ledger, LedgerConfig
from ledger.local.genesis import open_chain
from ledger.local.rpc import Rpc
from ledger.local.server import build_app
from ledger.local.store import LocalStore
from ledger.money import Amount
from protocol.codec import decode
from protocol.job.job import JobSpec
from protocol.node import NodeMessage
from protocol.rest.api import NewJob
from tests.coordinator.fakes import COORDINATOR, WALLET, AllDelivered, FakeArtifacts, FakeModels, Peers, spec
from tests.coordinator.rerun import ScriptedJudge
from tests.sim.federated.summing import SimSums
from tests.sim.world import SimClock, SimNode, World

COORDINATOR_SEED, WALLET_SEED = b"c" * 32, b"w" * 32
STAKE = 2_000_000
MAX_TURNS = 5000
OVER = ("settled", "failed", "cancelled")


class Town:
    """Everything that runs.

    Attributes:
        rpc, url: addresses of the ledger and of the coordinator.
        ledger: a client of its own.
    """

    def __init__(
        self, ledger: Ledger, rpc: str, clock: SimClock, folder: Path, special: Mapping[int, Any], audits: int
    ) -> None:
        self.ledger, self.rpc, self.clock, self.url = ledger, rpc, clock, ""
        self.pages: list[web.AppRunner] = []
        self.peers = Peers()
        self._config = Config(
            data=folder,
            ledger_url=rpc,
            start_grace_seconds=1.0,
            audit_seconds=30.0,
            audit_patience_seconds=5.0,
            settle_every=2,
            validations=0,
            min_stake=1,
            audits_per_round=audits,
        )
        self.store = MemoryStore()
        self.parts = self._assemble(self.store)
        self.sums = SimSums()
        self.nodes = [SimNode(cast(World, self), number, **special.get(number, {})) for number in range(1, 6)]

    def _assemble(self, store: MemoryStore) -> CoordinatorParts:
        return assemble(
            self._config,
            self.clock,
            store,
            self._chain(),
            cast(ModelWorkshop, FakeModels()),
            cast(ArtifactStore, FakeArtifacts()),
            COORDINATOR,
            WALLET,
            judge=ScriptedJudge(),
            deliveries=AllDelivered(store, self.clock),
        )

    def _chain(self) -> LedgerChain:
        return LedgerChain(self.ledger, self.rpc, COORDINATOR_SEED, WALLET_SEED, COORDINATOR)

    async def restore(self, backup: MemoryStore) -> None:
        """Another coordinator begins from a backup and the ledger alone; what nodes keep nobody asks for. ``serve`` it anew."""
        for node in self.nodes:
            node.cut()
        self.clock.t += 60.0
        context = Context(self._config, self.clock, backup, os.urandom)
        work = CatchingUp(context, self._chain(), cast(ArtifactStore, FakeArtifacts()))
        await work.run({}, await work.at_work())
        self.store, self.parts = backup, self._assemble(backup)
        await self.parts.recover()

    async def serve(self, folder: Path) -> None:
        """Answer on a port of its own, until ``pages`` are cleaned up."""
        app = web.Application()
        artifacts = DiskArtifacts(folder / "artifacts")
        uploads = UploadService(folder / "uploads", artifacts)
        parts = self.parts
        auth = Auth(parts.context.store, self.clock, replace(parts.context.config, open=True))
        checks = DatasetChecks(folder / "checks", artifacts, cast(Inspector, FakeModels()))
        add_interface(app, parts, uploads, checks, artifacts, auth)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = "http://{}:{}".format(*runner.addresses[0][:2])
        self.pages.append(runner)

    async def submit(self, name: str = "a small job", document: JobSpec | None = None, **training: int) -> str:
        """Submit a job, a small one or that of a ``document``, and fund it from the test wallet; returns its id."""
        await self.turn()
        asked = msgspec.structs.replace(document or spec(**training), name=name)
        job = (await self.parts.jobs.create(NewJob(asked))).id
        funding = asyncio.create_task(self.parts.jobs.fund(job))
        while not funding.done():
            await self.parts.lanes.drain()
            await asyncio.sleep(0)
        await funding
        return job

    async def train(self, name: str = "a small job", **training: int) -> str:
        """Submit a job and let everything happen until it is over and the ledger knows all of it; returns its id."""
        job = await self.submit(name, **training)
        await self.end(job)
        return job

    async def end(self, job: str) -> None:
        """Let everything happen until a job is over and the ledger knows all of it."""
        for _ in range(MAX_TURNS):
            await self.turn()
            view, receipts = await self.parts.jobs.get(job), await self.parts.jobs.receipts(job)
            if view.state in OVER and all(receipt.state not in ("queued", "sent") for receipt in receipts):
                return
        raise AssertionError(f"job {job} is {view.state} after {MAX_TURNS} turns")

    async def turn(self) -> None:
        """Everybody does one thing."""
        self.clock.t += 0.1
        for node in self.nodes:
            if node.session is None:
                await node.connect()
            if node.session is None:
                continue  # Refused: it is banned.
            if self.clock.t >= node.beat_at:
                node.beat_at = self.clock.t + 2.0
                node.beat()
            node.work()
            while node.out and node.session is not None:
                await self.parts.conversation.receive(node.session, decode(node.out.popleft(), NodeMessage))
            while node.inbox:
                node.obey()
        await self.parts.upkeep.tick()
        while self.parts.upkeep.waiting():
            await self.parts.upkeep.assemble_next()
        await self.parts.referee.poll()
        await self.parts.lanes.drain()
        await self.parts.draw_blocks.poll()
        await self.parts.stakes.look()

    async def stake(self, node: SimNode) -> None:
        """Put the node's stake on the ledger."""
        await self.ledger.faucet(node.key.address, Amount(STAKE))
        await self.ledger.open_stake(node.key.seed, Amount(STAKE), COORDINATOR)


@asynccontextmanager
async def town(folder: Path, special: Mapping[int, Any] | None = None, audits: int = 1) -> AsyncIterator[Town]:
    """A ledger, a coordinator and five nodes. ``special``: number of a node -> what is odd about it, as ``SimNode`` has it."""
    clock = SimClock()
    clock.t = float(int(time.time()))
    chain, genesis = open_chain(LocalStore(":memory:"), clock.time)
    runner = web.AppRunner(build_app(Rpc(chain, genesis), lambda: None), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    rpc = "http://{}:{}".format(*runner.addresses[0][:2])
    try:
        async with await Ledger.connect(LedgerConfig(rpc)) as ledger:
            await ledger.faucet(COORDINATOR, Amount(0))
            await ledger.faucet(WALLET, Amount(1_000_000_000_000))
            made = Town(ledger, rpc, clock, folder, special or {}, audits)
            for node in made.nodes:
                await made.stake(node)
            await made.serve(folder)
            try:
                yield made
            finally:
                for pages in made.pages:
                    await pages.cleanup()
    finally:
        await runner.cleanup()
