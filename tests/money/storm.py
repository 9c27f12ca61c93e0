"""Payments in bad weather: real service, real store, real embedded ledger behind an endpoint that fails, and one seed for all."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from aiohttp import web
from solders.pubkey import Pubkey

from coordinator.domain import pricing
from coordinator.services.payments.chain import LedgerChain
from coordinator.store.memory import MemoryStore
from coordinator.store.ports import col
from coordinator.store.records import NodeRecord, OutboxRecord
from ledger.client import Ledger, LedgerConfig, job_bytes
from ledger.local.chain import SLOT_S
from ledger.money import Amount
from protocol.identity import NodeKey
from tests.coordinator import bench as benches
from tests.coordinator.bench import CONFIG, Bench
from tests.coordinator.fakes import COORDINATOR, WALLET, profile
from tests.money.crash import Fuse, run_until_crash
from tests.money.faulty import CALM, FINAL_SLOTS, FaultyRpc, ForkingWorld, Weather, build_proxy

SEED, WALLET_SEED = b"c" * 32, b"w" * 32
MAX_DRAINS = 20_000  # Of one storm; it ends long before, or hangs for ever.


@dataclass(frozen=True)
class Size:
    """How much is paid: each job pays each of its payees about once a round. ``sol_price``: makes small shares wait, promised."""

    jobs: int = 2
    payees: int = 30
    rounds: int = 3
    price: int = 7_777_777
    budget: int = 10_000_000
    sol_price: int = 0


@dataclass
class Tally:
    """What came of a storm. ``transactions`` counts those that carried payouts; ``faults`` what the endpoint did."""

    payouts: int = 0
    transactions: int = 0
    crashes: int = 0
    checks: int = 0
    questions: int = 0
    faults: Counter[str] = field(default_factory=Counter)


def payee(number: int) -> str:
    return NodeKey((90_000 + number).to_bytes(32, "big")).address


@asynccontextmanager
async def sea(seed: int) -> AsyncIterator[tuple[ForkingWorld, FaultyRpc, Ledger]]:
    """A ledger that forks and its endpoint, in calm weather until somebody changes that."""
    world = ForkingWorld()
    rpc = FaultyRpc(world, CALM, seed)
    runner = web.AppRunner(build_proxy(rpc), shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        async with await Ledger.connect(LedgerConfig(f"http://{host}:{port}")) as ledger:
            await ledger.faucet(COORDINATOR, Amount(0), 10**13)
            await ledger.faucet(WALLET, Amount(10**12), 10**13)
            yield world, rpc, ledger
    finally:
        await runner.cleanup()


class Storm:
    """Jobs that are paid round by round, while the endpoint fails and the service dies now and then."""

    def __init__(self, world: ForkingWorld, rpc: FaultyRpc, ledger: Ledger, size: Size, seed: int) -> None:
        self.world, self.rpc, self.ledger, self.size = world, rpc, ledger, size
        self.tally, self.store = Tally(), MemoryStore()
        self.random = random.Random(seed)
        self.jobs: list[str] = []
        self.owed: dict[str, Counter[str]] = {}
        self.bench = self.restarted()

    def restarted(self) -> Bench:
        """A service that knows only what is in the store."""
        chain = LedgerChain(self.ledger, "http://ledger.test", SEED, WALLET_SEED, COORDINATOR)
        made = Bench(
            config=replace(CONFIG, settle_every=1, sol_price=self.size.sol_price), store=self.store, chain=chain
        )
        if self.jobs:
            made.clock.t = self.bench.clock.t
        return made

    async def begin(self) -> None:
        """Open the jobs and their escrows."""
        for number in range(self.size.payees):
            async with self.store.transaction() as tx:
                await tx.insert(NodeRecord(payee(number), payee(number), profile(f"payee-{number}"), 0.0, 0.0))
        for _ in range(self.size.jobs):
            job = await self.bench.verified([], escrow=self.size.budget)
            opening = await self.ledger.prepare_escrow(
                WALLET_SEED, job_bytes(job), COORDINATOR, Amount(self.size.budget), 2**40, 200
            )
            await self.ledger.confirm(opening)
            self.jobs.append(job)
            self.owed[job] = Counter()
        self.world.clock.advance(2 * FINAL_SLOTS * SLOT_S)  # Jobs begin once their escrow is final.
        self.world.chain.tick()

    async def earn(self, job: str, number: int, tokens: Sequence[int]) -> None:
        """A round is verified: its pot is shared by random weights, with whatever remainder that leaves carried on."""
        before, after = sum(tokens[:number]), sum(tokens[: number + 1])
        pot = pricing.pot(self.size.price, before, after, sum(tokens))
        weights = {payee(n): self.random.randint(0, 1000) for n in range(self.size.payees)}
        shares = {who: share for who, share in pricing.shares(pot, weights).items() if share}
        async with self.bench.parts.desk.open(job) as work:
            work.change(verified=work.job.verified + sum(shares.values()))
            await work.tx.insert(benches._round(job, number))
            for replica, (who, share) in enumerate(sorted(shares.items())):
                await work.tx.insert(benches._commit(job, number, replica, who, share))
            await self.bench.parts.settlement.settle_if_due(work)
        self.owed[job].update(shares)

    async def blow(self, drains: int, crashes: float) -> None:
        """Carry payments on for a while."""
        for _ in range(drains):
            dies = self.random.random() < crashes
            fuse = Fuse(self.random.randint(1, 80) if dies else 0)
            if await run_until_crash(self.bench.parts.lanes.drain(), fuse):
                self.tally.crashes += 1
                self.bench = self.restarted()
            self.bench.clock.t += 1.0
            self.check()

    def check(self) -> None:
        """Nothing has appeared or vanished, and nobody has more than what was earned: after every step, on every fork."""
        self.tally.checks += 1
        received = Counter[str]()
        for job in self.jobs:
            escrow = self.world.market.escrow(Pubkey.from_string(WALLET), job_bytes(job))
            account = self.world.chain.account(escrow)
            assert account is not None
            state = self.world.escrow(escrow)
            paid = {str(who): total for who, total in state.payees.items()}
            ends = {"deposited": -self.size.budget, "vault": self.world.tokens(escrow), "refunded": state.refunded}
            assert sum(ends.values()) + sum(paid.values()) == 0, "appeared, or vanished"
            assert sum(paid.values()) == state.paid
            for number in range(self.size.payees):
                total = paid.get(self.ledger.wallet(payee(number)), 0)
                assert total <= self.owed[job][payee(number)], "paid more than earned"
                received[payee(number)] += total
        for who, total in received.items():
            assert self.world.tokens(Pubkey.from_string(who)) == total, "paid twice, or lost on the way"

    async def open_rows(self) -> list[OutboxRecord]:
        async with self.store.transaction() as tx:
            return await tx.find(OutboxRecord, col(OutboxRecord.state).in_(("queued", "sent")))

    async def end(self, crashes: float = 0.02) -> None:
        """Finish every job, carry everything, and look at it all once more."""
        for job in self.jobs:
            async with self.bench.parts.desk.open(job) as work:
                await self.bench.parts.settlement.finish(work)
        for _ in range(MAX_DRAINS):
            if not [row for row in await self.open_rows() if row.kind != "table"]:
                break
            await self.blow(1, crashes)
        for job in self.jobs:
            await self._check_end(job)

    async def _check_end(self, job: str) -> None:
        stored, owed = await self.bench.stored(job), self.owed[job]
        assert sum(owed.values()) == self.size.price, "the pots of all rounds make up the price, to the last unit"
        rows = [row for row in await self.bench.rows(job) if row.kind != "table"]
        assert [row.state for row in rows if row.state != "confirmed"] == []
        assert (stored.paid, stored.refunded) == (sum(owed.values()), self.size.budget - sum(owed.values()))
        state = self.world.escrow(self.world.market.escrow(Pubkey.from_string(WALLET), job_bytes(job)))
        assert {str(who): total for who, total in state.payees.items()} == {
            self.ledger.wallet(who): total for who, total in owed.items() if total
        }
        settled = [row for row in rows if row.kind == "settle"]
        self.tally.transactions += len(settled)
        self.tally.payouts += sum(len(row.payload) for row in settled)


async def storm(seed: int, size: Size, weather: Weather, crashes: float = 0.02) -> Tally:
    """Run one storm to its end; every lie that it finds is an AssertionError."""
    async with sea(seed) as (world, rpc, ledger):
        course = Storm(world, rpc, ledger, size, seed)
        await course.begin()
        rpc.weather = weather
        tokens = [course.random.randint(1, 1000) for _ in range(size.rounds)]
        for number in range(size.rounds):
            for job in course.jobs:
                await course.earn(job, number, tokens)
            await course.blow(course.random.randint(0, 6), crashes)
        await course.end(crashes)
        course.tally.faults, course.tally.questions = rpc.seen, rpc._asked
        return course.tally


def as_json(tally: Tally) -> dict[str, Any]:
    """The tally as a document."""
    return {**vars(tally), "faults": dict(tally.faults)}
