"""More budget for a job that is under way, on the real ledger: from the test wallet, and from a wallet of the submitter's own."""

import msgspec
import pytest

from coordinator.domain.job import JobState
from coordinator.errors import ConflictError, FundsError
from coordinator.services.payments.chain import LedgerChain
from ledger.client import Ledger, job_bytes
from ledger.money import Amount
from protocol.identity import NodeKey
from protocol.rest.api import NewJob
from tests.coordinator.bench import Bench
from tests.coordinator.fakes import COORDINATOR, WALLET, spec
from tests.coordinator.payments.test_settlement import SEED, WALLET_SEED, drain, ledger

assert ledger  # A fixture: the embedded ledger behind HTTP.

FIRST, MORE, PRICE = 400_000, 600_000, 1_000_000
SHORT = msgspec.structs.replace(spec(), budget=FIRST, over_budget="pause")


async def bench_on(real: Ledger) -> Bench:
    await real.faucet(COORDINATOR, Amount(0), 10**12)
    bench = Bench(chain=LedgerChain(real, "http://ledger.test", SEED, WALLET_SEED, COORDINATOR))
    bench.clock.t = 4e9  # Deadlines lie ahead of the ledger's own clock.
    for number in range(1, 5):
        await bench.enter(number)
    return bench


async def pause_for_budget(bench: Bench, job: str) -> None:
    async with bench.parts.desk.open(job) as work:
        work.change(halt="budget")
        work.advance(JobState.PAUSED, "the budget is used up")


async def test_the_test_wallet_adds_once_and_the_paused_job_goes_on(ledger: Ledger) -> None:
    await ledger.faucet(WALLET, Amount(2 * PRICE), 10**12)
    bench = await bench_on(ledger)
    job = (await bench.parts.jobs.create(NewJob(SHORT))).id
    async with bench.parts.desk.open(job) as work:
        await bench.parts.funding.queue_funding(work)
    await drain(bench)
    assert (await bench.stored(job)).escrow == FIRST
    await pause_for_budget(bench, job)
    with pytest.raises(ConflictError, match="600000 millionths at most"):
        await bench.parts.jobs.add_budget(job, MORE + 1)
    await bench.parts.jobs.add_budget(job, MORE)
    await drain(bench)
    state = await ledger.escrow(WALLET, job_bytes(job))
    assert state is not None
    assert (state.deposited, state.cap) == (PRICE, PRICE), "what is deposited may also be paid"
    assert await ledger.balance(WALLET) == PRICE
    assert (await bench.stored(job)).escrow == PRICE
    await drain(bench)
    assert await ledger.balance(WALLET) == PRICE, "it is added once"
    await bench.parts.upkeep.look_at_paused()
    assert (await bench.stored(job)).state is not JobState.PAUSED
    added = [r.amount for r in await bench.parts.jobs.receipts(job) if r.kind == "fund"]
    assert added == [FIRST, MORE]


async def test_a_deposit_of_the_submitters_own_wallet_is_seen_and_receipted(ledger: Ledger) -> None:
    outside = NodeKey(b"o" * 32)
    await ledger.faucet(outside.address, Amount(2 * PRICE), 10**12)
    bench = await bench_on(ledger)
    job = (await bench.parts.jobs.create(NewJob(SHORT, outside.address))).id
    await ledger.open_escrow(outside.seed, job_bytes(job), COORDINATOR, Amount(FIRST), 2**40)
    await bench.fund(job)
    await pause_for_budget(bench, job)
    await bench.parts.jobs.add_budget(job, MORE)
    assert (await bench.parts.jobs.funding(job)).missing == MORE
    with pytest.raises(FundsError, match=r"no more than before: deposit ¤ 0\.60"):
        await bench.fund(job)
    prepared = await ledger.prepare_deposit(outside.seed, job_bytes(job), Amount(PRICE))
    assert prepared is not None
    await ledger.confirm(prepared)
    assert await ledger.prepare_deposit(outside.seed, job_bytes(job), Amount(PRICE)) is None
    for _ in range(3):
        await bench.parts.upkeep.look_for_escrows()
    receipts = [(r.amount, r.signature) for r in await bench.parts.jobs.receipts(job) if r.kind == "fund"]
    assert [amount for amount, _ in receipts] == [FIRST, MORE]
    assert receipts[1][1] == prepared.signature
    assert (await bench.parts.jobs.funding(job)).missing == 0
    await bench.parts.upkeep.look_at_paused()
    assert (await bench.stored(job)).state is not JobState.PAUSED
