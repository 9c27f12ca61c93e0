"""Over all orders of what submitter, time and coordinator can do, a model is handed out only once its work is paid for sure."""

from __future__ import annotations

import dataclasses
import itertools
import random
from typing import Any

import msgspec
import pytest
from solders.keypair import Keypair

from coordinator.domain.job import JobState
from coordinator.domain.rounds.run import Run
from coordinator.errors import ConflictError, FundsError
from coordinator.services.payments.chain import LedgerChain
from coordinator.services.payments.escrows import asked_of, escrow_deadline
from coordinator.store.ports import col
from coordinator.store.records import CommitRecord, OutboxRecord, RoundRecord
from ledger.client import Ledger, job_bytes
from ledger.errors import LedgerError
from ledger.local.chain import SLOT_S
from ledger.money import Amount
from ledger.states import EscrowState
from protocol.identity import NodeKey
from protocol.task import Layers, Plan
from tests.coordinator.bench import CONFIG, Bench
from tests.coordinator.fakes import BUDGET, COORDINATOR, WALLET, digest
from tests.money.faulty import FINAL_SLOTS
from tests.money.storm import SEED, sea
from tests.support.seeds import seeds

DEAR = 10**10  # Of a SOL: a fee is 50,000 units, so two shares of SHARE are worth a promise, and no payout.
SHARE = 400_000
SUBMITTER = b"w" * 32
PAYEES = tuple(NodeKey((500 + number).to_bytes(32, "big")) for number in (1, 2))
STEPS = ("verify", "verify", "promise", "deadline", "refund", "turn", "cancel")
PARTS = 20


class Office(Bench):
    """The services on the real program, with one clock for both."""

    def __init__(self, world: Any, ledger: Ledger, price: int = DEAR) -> None:
        chain = LedgerChain(ledger, "http://ledger.test", SEED, SUBMITTER, COORDINATOR)
        super().__init__(dataclasses.replace(CONFIG, settle_every=1, sol_price=price), chain=chain)
        self.ledger, self.world = ledger, world
        self.clock.t = world.clock.now

    def pass_time(self, seconds: float) -> None:
        self.clock.t += seconds
        self.world.clock.advance(seconds)

    async def carry(self, times: int = 6) -> None:
        for _ in range(times):
            await self.parts.lanes.drain()
            self.pass_time(2 * FINAL_SLOTS * SLOT_S)

    async def paid_for(self) -> str:
        """A job that is funded and trained, with two rounds of both payees that wait for their audits."""
        job = await self.job()
        await self.open(job, escrow_deadline(await self.stored(job)))
        await self.parts.funding.see_escrow(await self.stored(job))
        await self.carry(3)
        assert (await self.stored(job)).state is JobState.FUNDED
        plan = Plan(1, (Layers(0, 4),), ())
        async with self.parts.desk.open(job) as work:
            work.job = msgspec.structs.replace(work.job, state=JobState.VERIFYING, model=digest("model"))
            run = Run((Layers(0, 4),), 1, total_steps=2, inner_steps=2, evaluate=())
            work.run = msgspec.structs.replace(run, finished=True, undrawn=((1, 0), (1, 1)))
            for number in (0, 1):
                await work.tx.insert(RoundRecord(job, 1, number, "complete", plan, number, 1, 2, 0.0, ended=1.0))
                for replica, payee in enumerate(PAYEES):
                    node, root = NodeKey((replica + 1).to_bytes(32, "big")).address, digest(number, replica)
                    made = CommitRecord(
                        job,
                        1,
                        number,
                        0,
                        replica,
                        f"lease-{replica}",
                        node,
                        payee.address,
                        root,
                        2,
                        root,
                        512,
                        1,
                        True,
                        "pending",
                        SHARE,
                    )
                    await work.tx.insert(made)
        return job

    async def open(self, job: str, deadline: int) -> None:
        await self.ledger.faucet(WALLET, Amount(BUDGET))
        opening = await self.ledger.prepare_escrow(SUBMITTER, job_bytes(job), COORDINATOR, Amount(BUDGET), deadline)
        await self.ledger.confirm(opening)
        self.pass_time(2 * FINAL_SLOTS * SLOT_S)

    async def open_rows(self, job: str) -> list[str]:
        return [row.kind for row in await self.rows(job) if row.state in ("queued", "sent")]

    async def escrow(self, job: str) -> EscrowState:
        state = await self.ledger.escrow(WALLET, job_bytes(job))
        assert state is not None
        return state

    async def take(self, step: str, job: str) -> None:
        """One step of one of them, as far as it is possible now."""
        match step:
            case "verify":
                async with self.parts.desk.open(job) as work:
                    if work.job.state is JobState.VERIFYING and work.run is not None:
                        work.change_run(undrawn=work.run.undrawn[1:])
                        await self.parts.runs.advance(work)
            case "promise":
                async with self.parts.desk.open(job) as work:
                    if work.job.state is JobState.VERIFYING:
                        await self.parts.settlement.settle_if_due(work)
                await self.carry()
            case "deadline":
                self.pass_time(max(0.0, escrow_deadline(await self.stored(job)) + 1 - self.clock.t))
            case "refund":
                try:
                    await self.ledger.confirm(await self.ledger.prepare_refund(SUBMITTER, WALLET, job_bytes(job)))
                except LedgerError:
                    assert self.clock.t < escrow_deadline(await self.stored(job)) or (await self.escrow(job)).ended
            case "turn":
                async with self.parts.desk.open(job) as work:
                    await self.parts.runs.advance(work)
                await self.carry()
            case _:
                try:
                    await self.parts.jobs.cancel(job)
                except ConflictError:
                    assert (await self.stored(job)).ended is not None

    async def check(self, job: str) -> bool:
        """What must hold at any time; whether the model is handed out."""
        state, view, stored = await self.escrow(job), await self.parts.jobs.get(job), await self.stored(job)
        assert state.deposited == state.paid + state.refunded + state.balance == BUDGET
        async with self.store.transaction() as tx:
            verified = await tx.find(
                CommitRecord, col(CommitRecord.job).equals(job), col(CommitRecord.state).equals("verified")
            )
        assert stored.verified == sum(commit.amount for commit in verified)
        assert state.paid <= stored.verified
        if view.model is not None:
            assert state.paid + min(state.balance, max(0, state.committed - state.paid)) >= stored.verified
        return view.model is not None


async def go(office: Office, order: tuple[str, ...]) -> tuple[bool, EscrowState, str]:
    """Everything in this order, then the deadline and a refund; whether the model was handed out before and after."""
    job = await office.paid_for()
    for step in order:
        await office.take(step, job)
        await office.check(job)
    for step in ("deadline", "refund"):
        await office.take(step, job)
        await office.check(job)
    for _ in range(7):
        if (await office.stored(job)).ended is not None and not await office.open_rows(job):
            break
        await office.take("turn", job)
        office.pass_time(130.0)  # What the ledger says of accounts is believed after two minutes.
    given, stored = await office.check(job), await office.stored(job)
    assert stored.ended is not None
    return given, await office.escrow(job), stored.state


def orders(count: int, seed: int) -> list[tuple[str, ...]]:
    """Different orders, each of some of the steps."""
    chance = random.Random(seed)
    return [tuple(chance.sample(STEPS, chance.randint(3, len(STEPS)))) for _ in range(count)]


@pytest.mark.parametrize("seed", seeds(1, of=3))
async def test_in_any_order_the_model_is_handed_out_only_once_its_work_is_paid_for_sure(seed: int) -> None:
    async with sea(seed) as (world, _, ledger):
        office = Office(world, ledger)
        for order in orders(5, seed):
            await go(office, order)


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
async def test_in_all_orders_the_model_is_handed_out_only_once_its_work_is_paid_for_sure(part: int) -> None:
    """In parts: a coordinator's work grows with the jobs that it had."""
    async with sea(part) as (world, _, ledger):
        office = Office(world, ledger)
        for order in sorted(set(itertools.permutations(STEPS)))[part::PARTS]:
            await go(office, order)


async def test_an_honest_job_is_paid_and_handed_out_and_one_that_was_taken_back_is_not() -> None:
    async with sea(5) as (world, _, ledger):
        office = Office(world, ledger)
        given, state, _ = await go(office, ("verify", "verify", "turn", "turn", "turn"))
        assert (given, state.paid) == (True, 4 * SHARE)
        given, state, end = await go(office, ("deadline", "refund", "verify", "verify"))
        assert (given, state.paid, end) == (False, 0, JobState.FAILED)
        given, state, end = await go(office, ("verify", "verify", "deadline", "refund"))
        assert (given, state.paid, end) == (False, 0, JobState.FAILED), "its payouts were on their way"
        given, state, end = await go(office, ("verify", "promise", "deadline", "refund"))
        assert (given, end) == (False, JobState.FAILED), "of the second round nothing is paid"
        assert (state.committed, state.balance) == (2 * SHARE, 2 * SHARE), "what was promised is not the submitter's"


async def test_an_escrow_that_ends_a_second_too_early_funds_nothing_and_the_program_says_so_too() -> None:
    async with sea(6) as (world, _, ledger):
        office = Office(world, ledger)
        job = await office.job()
        stored = await office.stored(job)
        await office.open(job, escrow_deadline(stored) - 1)
        with pytest.raises(FundsError, match=f"before {escrow_deadline(stored)}, as was asked for"):
            await office.parts.funding.see_escrow(stored)
        async with office.parts.desk.open(job) as work:  # As if the service had looked at another escrow.
            asked = asked_of(stored)
            terms = {
                "deadline": asked.deadline,
                "cap": asked.cap,
                "amount": asked.amount,
                "max_payees": asked.max_payees,
            }
            work.queue(OutboxRecord("accept:it", job, "accept", {**terms, "text": "{}"}, work.now))
        await office.carry(24)
        assert [row.state for row in await office.rows(job, "accept")] == ["failed"]
        assert (await office.stored(job)).state is JobState.CREATED
        await office.parts.jobs.cancel(job)
        await office.parts.upkeep.look_for_escrows()
        await office.carry()
        assert (await office.escrow(job)).refunded == BUDGET


async def test_who_closes_its_account_after_each_payout_is_left_out_and_costs_the_coordinator_no_more_rent() -> None:
    async with sea(7) as (world, _, ledger):
        office = Office(world, ledger, price=0)
        closer, other = PAYEES
        first = await office.paid_for()
        for step in ("verify", "promise"):
            await office.take(step, first)
        assert await ledger.balance(closer.address) == SHARE
        pair = Keypair.from_seed(closer.seed)
        world.keys[pair.pubkey()] = pair
        world.send(*world.close_wallet(pair.pubkey()))
        office.pass_time(2 * FINAL_SLOTS * SLOT_S)
        before = await ledger.lamports(COORDINATOR)
        for step in ("verify", "turn", "turn", "turn"):
            await office.take(step, first)
        assert await ledger.balance(other.address) == 2 * SHARE, "nobody waits for who has closed its account"
        assert not await ledger.has_wallet(closer.address)
        assert before - await ledger.lamports(COORDINATOR) < 100_000, "fees, and no rent"
        state = await office.escrow(first)
        assert (state.paid, state.committed, state.balance) == (3 * SHARE, 4 * SHARE, SHARE), "its part can be claimed"
        second, made = await office.paid_for(), await ledger.lamports(COORDINATOR)
        for step in ("verify", "verify", "turn", "turn", "turn"):
            await office.take(step, second)
        assert not await ledger.has_wallet(closer.address), "nor of another job"
        assert made - await ledger.lamports(COORDINATOR) < 100_000
        assert (await office.escrow(second)).paid == 2 * SHARE
        assert await office.check(second)
        assert await office.check(first), "the model is the submitter's: everybody's money is safe"
