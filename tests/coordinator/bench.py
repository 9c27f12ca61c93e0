"""A coordinator without sockets: memory store, a clock that stands still, nodes that only exist."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec

from common.clock import Clock
from coordinator.assembly import AmongCells, CoordinatorParts, assemble
from coordinator.config import Config
from coordinator.domain.job import Job, JobState
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.inference import Generator
from coordinator.services.artifacts.models import ModelWorkshop
from coordinator.services.network.nodes import NodeSession
from coordinator.services.payments.chain import ChainPort
from coordinator.store.memory import MemoryStore
from coordinator.store.ports import Store, col
from coordinator.store.records import CommitRecord, NodeRecord, OutboxRecord, RoundRecord
from protocol.identity import NodeKey
from protocol.job.job import JobSpec
from protocol.node import PROTOCOL, CoordinatorMessage, HeldLease, Hello
from protocol.rest.api import JobView, NewJob
from protocol.task import Layers, Plan
from tests.coordinator.fakes import (
    BUDGET,
    COORDINATOR,
    WALLET,
    AllDelivered,
    FakeArtifacts,
    FakeChain,
    FakeModels,
    digest,
    profile,
    spec,
)
from tests.sim.world import HOST, NONCE, SimClock

CONFIG = Config(data=Path("unused"), ledger_url="http://ledger.test", settle_every=2)


class Bench:
    """Services on a bench."""

    def __init__(
        self,
        config: Config = CONFIG,
        store: Store | None = None,
        chain: ChainPort | None = None,
        coordinator: str = COORDINATOR,
        wallet: str | None = WALLET,
        models: object | None = None,
        clock: Clock | None = None,
        generator: Generator | None = None,
        among: AmongCells | None = None,
    ) -> None:
        self.fake = FakeChain()
        self.clock: Any = clock or SimClock()
        self.store = store or MemoryStore()
        self.sent: dict[str, list[CoordinatorMessage]] = {}
        self.closed: dict[str, str] = {}
        self.parts: CoordinatorParts = assemble(
            config,
            self.clock,
            self.store,
            chain or self.fake,
            cast(ModelWorkshop, models or FakeModels()),
            cast(ArtifactStore, FakeArtifacts()),
            coordinator,
            wallet,
            generator=generator,
            deliveries=AllDelivered(self.store, self.clock),
            among=among,
        )
        self.store = self.parts.context.store  # What a test changes is noticed, as what the coordinator does is.

    async def enter(
        self, number: int, held: tuple[HeldLease, ...] = (), nonce: bytes = NONCE, address: str = "", **fields: Any
    ) -> NodeSession:
        """Connect a node by number."""
        key = NodeKey(number.to_bytes(32, "big"))
        payout = NodeKey((500 + number).to_bytes(32, "big")).address
        shown = msgspec.structs.replace(profile(f"node-{number}"), **fields)
        hello = Hello(PROTOCOL, key.address, payout, key.sign("cottage-hello", nonce, HOST.encode()), shown, held)
        sent = self.sent.setdefault(key.address, [])
        close: Callable[[str], None] = lambda reason: self.closed.__setitem__(key.address, reason)  # noqa: E731
        session = await self.parts.nodes.enter(hello, NONCE, HOST, sent.append, close, address)
        await self.parts.conversation.begin(session, hello)
        return session

    async def job(self, document: JobSpec | None = None, nodes: int = 4) -> str:
        """A created job, with enough nodes here."""
        for number in range(1, nodes + 1):
            if self.parts.nodes.session(NodeKey(number.to_bytes(32, "big")).address) is None:
                await self.enter(number)
        return (await self.parts.jobs.create(NewJob(document or spec()))).id

    async def fund(self, job: str) -> JobView:
        """``jobs.fund`` while the coordinator carries what it queues."""
        funding = asyncio.ensure_future(self.parts.jobs.fund(job))
        while not funding.done():
            await self.parts.lanes.drain()
            await asyncio.sleep(0)
        return await funding

    async def verified(self, shares: list[dict[str, int]], escrow: int = BUDGET) -> str:
        """A job whose rounds are trained and verified: ``shares[round]`` says who earned what."""
        job = await self.job()
        for payee in {payee for share in shares for payee in share}:
            async with self.store.transaction() as tx:
                await tx.insert(NodeRecord(payee, payee, profile(payee[:6]), 0.0, 0.0))
        async with self.parts.desk.open(job) as work:
            work.job = msgspec.structs.replace(
                work.job,
                state=JobState.VERIFYING,
                escrow=escrow,
                model=digest("model"),
                verified=sum(sum(share.values()) for share in shares),
            )
            for number, share in enumerate(shares):
                await work.tx.insert(_round(job, number))
                for replica, (payee, amount) in enumerate(sorted(share.items())):
                    await work.tx.insert(_commit(job, number, replica, payee, amount))
        return job

    async def rows(self, job: str, kind: str | None = None) -> list[OutboxRecord]:
        """The job's outbox."""
        async with self.store.transaction() as tx:
            rows = await tx.find(OutboxRecord, col(OutboxRecord.job).equals(job))
        return [row for row in rows if kind is None or row.kind == kind]

    async def stored(self, job: str) -> Job:
        """The job as it is in the store."""
        async with self.store.transaction() as tx:
            return await tx.get(Job, job)


def _round(job: str, number: int) -> RoundRecord:
    plan = Plan(1, (Layers(0, 4),), ())
    return RoundRecord(job, 1, number, "complete", plan, number, 1, 2, 0.0, ended=1.0, concluded=True)


def _commit(job: str, number: int, replica: int, payee: str, amount: int) -> CommitRecord:
    return CommitRecord(
        job,
        1,
        number,
        0,
        replica,
        f"lease-{replica}",
        payee,
        payee,
        digest(number, replica),
        2,
        digest(number, replica, "gradient"),
        512,
        1,
        True,
        "verified",
        amount,
    )
