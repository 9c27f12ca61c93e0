"""Money moves once, whatever breaks: signatures are stored before they are sent, and a crash at any wait repairs itself."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest
from aiohttp import web

from coordinator.domain.job import JobState
from coordinator.domain.lease import Lease
from coordinator.errors import FundsError
from coordinator.services.core.domain_events import SandboxTampered
from coordinator.services.payments.chain import ChainPort, LedgerChain
from coordinator.services.payments.escrows import escrow_deadline
from coordinator.services.payments.outbox_dispatcher import MAX_ATTEMPTS
from coordinator.services.payments.outbox_lanes import Lanes
from coordinator.services.payments.settlement import CLAIM_S, MAX_PAYEES_A_ROW
from coordinator.store.memory import MemoryStore
from coordinator.store.ports import Store, Transaction
from coordinator.store.records import NodeRecord, OutboxRecord
from ledger.client import Ledger, LedgerConfig, job_bytes
from ledger.local.chain import SLOT_S
from ledger.local.rpc import Rpc
from ledger.local.server import build_app
from ledger.money import Amount
from protocol.identity import NodeKey
from protocol.node import Claim, Unanswered
from protocol.rest.api import NewJob
from protocol.task import EVASION_BPS, TAMPER_AGAIN_S, TAMPER_BPS
from tests.coordinator import bench as benches
from tests.coordinator.audits.test_trust import AUDIT
from tests.coordinator.bench import CONFIG, Bench
from tests.coordinator.fakes import BUDGET, COORDINATOR, WALLET, Account, spec, unavailable
from tests.ledger.world import World
from tests.sim.world import CrashError


def payee(number: int) -> str:
    return NodeKey((7000 + number).to_bytes(32, "big")).address


async def owing(bench: Bench, shares: list[dict[str, int]]) -> str:
    """A job with verified work, its escrow on the ledger, payouts and refund queued."""
    job = await bench.verified(shares)
    bench.fake.escrows[job] = Account(WALLET, BUDGET, 2**40)
    async with bench.parts.desk.open(job) as work:
        await bench.parts.settlement.finish(work)
    return job


async def drain(bench: Bench, times: int = 12) -> None:
    for _ in range(times):
        await bench.parts.lanes.drain()


async def test_what_is_verified_is_paid_and_the_rest_goes_back() -> None:
    bench = Bench()
    job = await owing(bench, [{payee(1): 300, payee(2): 200}, {payee(1): 50}])
    await drain(bench)
    account = bench.fake.escrows[job]
    assert account.paid == {payee(1): 350, payee(2): 200}
    assert account.refunded == BUDGET - 550
    stored = await bench.stored(job)
    assert (stored.paid, stored.refunded) == (550, BUDGET - 550)


async def test_finishing_twice_queues_one_refund() -> None:
    bench = Bench()
    job = await owing(bench, [{payee(1): 300}])
    async with bench.parts.desk.open(job) as work:
        await bench.parts.settlement.finish(work)
    assert len(await bench.rows(job, "refund")) == len(await bench.rows(job, "settle")) == 1


async def test_the_refund_waits_for_the_payouts() -> None:
    bench = Bench()
    bench.fake.fault = lambda what: unavailable(what) if what == "prepare" else None
    job = await owing(bench, [{payee(1): 300}])
    await drain(bench)
    assert [row.state for row in await bench.rows(job)] == ["queued"] * len(await bench.rows(job))
    bench.fake.fault = lambda _what: None
    await drain(bench)
    order = [what.split()[0] for what, _ in bench.fake.signed if not what.startswith("memo")]
    assert order == ["settle", "refund"]


async def test_many_payees_are_paid_in_several_rows() -> None:
    bench = Bench()
    shares = {payee(number): number + 1 for number in range(2 * MAX_PAYEES_A_ROW + 1)}
    job = await owing(bench, [shares])
    await drain(bench)
    assert len(await bench.rows(job, "settle")) == 3
    assert bench.fake.escrows[job].paid == shares


async def test_a_lost_acknowledgement_is_not_signed_again() -> None:
    bench = Bench()
    job = await owing(bench, [{payee(1): 300}])
    bench.fake.fault = lambda what: unavailable(what) if what == "after" else None
    await drain(bench, 1)
    sent = (await bench.rows(job, "settle"))[0]
    assert (sent.state, sent.attempts) == ("sent", 1)
    bench.fake.fault = lambda _what: None
    await drain(bench)
    paid = (await bench.rows(job, "settle"))[0]
    assert (paid.state, paid.signature, paid.attempts) == ("confirmed", sent.signature, 1)
    assert bench.fake.escrows[job].paid == {payee(1): 300}


async def test_the_signature_is_in_the_store_before_anything_is_sent() -> None:
    bench = Bench()
    job = await owing(bench, [{payee(1): 300}])
    seen: list[str] = []

    async def submit(prepared: Any) -> None:
        async with bench.store.transaction():  # Nobody holds the store while the ledger is asked.
            seen.append(prepared.signature)
        rows = await bench.rows(job)
        assert any(row.signature == prepared.signature and row.state == "sent" for row in rows)
        unavailable("submit")

    bench.fake.submit = submit  # type: ignore[method-assign]
    await drain(bench, 1)
    assert seen


async def test_only_an_expired_transaction_is_signed_anew() -> None:
    bench = Bench()
    job = await owing(bench, [{payee(1): 300}])
    bench.fake.fault = lambda what: unavailable(what) if what == "before" else None
    await drain(bench, 3)
    first = (await bench.rows(job, "settle"))[0].signature
    bench.fake.fault = lambda _what: None
    bench.fake.height += 100
    await drain(bench)
    row = (await bench.rows(job, "settle"))[0]
    assert (row.state, row.attempts) == ("confirmed", 2)
    assert row.signature != first
    assert bench.fake.escrows[job].paid == {payee(1): 300}


async def test_a_transaction_that_takes_its_time_is_waited_for_and_not_signed_again() -> None:
    bench = Bench()
    job = await owing(bench, [{payee(1): 300}])
    bench.fake.slow = lambda: True
    await drain(bench, 5)
    assert (await bench.rows(job, "settle"))[0].attempts == 1
    bench.fake.height += 3
    await drain(bench)
    bench.fake.height += 3
    await drain(bench)
    assert [row.attempts for row in await bench.rows(job) if row.kind != "event"] == [1, 1]
    assert (await bench.stored(job)).refunded == BUDGET - 300


async def test_a_transaction_that_is_refused_each_time_is_given_up_with_a_note() -> None:
    bench = Bench()
    job = await owing(bench, [{payee(1): 300}])

    async def refused(_signature: str, _height: int) -> str:
        return "failed"

    bench.fake.outcome = refused  # type: ignore[method-assign, assignment]
    await drain(bench, MAX_ATTEMPTS * 4)
    row = (await bench.rows(job, "settle"))[0]
    assert (row.state, row.attempts) == ("failed", MAX_ATTEMPTS)
    assert any("paying the nodes failed" in event.text for event in await bench.parts.jobs.events(job, 0))


async def test_earnings_are_told_and_remembered() -> None:
    bench = Bench()
    job = await owing(bench, [{payee(1): 300}, {payee(1): 20}])
    await drain(bench)
    async with bench.store.transaction() as tx:
        assert (await tx.get(NodeRecord, payee(1))).earned == 320
    assert job


async def test_an_escrow_that_does_not_serve_the_job_is_refused_with_the_reason() -> None:
    bench = Bench()
    job = await bench.stored(await bench.job())
    with pytest.raises(FundsError, match="there is no escrow"):
        await bench.parts.funding.see_escrow(job)
    bench.fake.escrows[job.id] = Account(WALLET, job.quote.price - 1, 2**40)
    with pytest.raises(FundsError, match=r"the price is .*: add ¤ 0\.000001"):
        await bench.parts.funding.see_escrow(job)
    asked = escrow_deadline(job)
    for deadline in (5, int(job.deadline), asked - 1):
        bench.fake.escrows[job.id] = Account(WALLET, BUDGET, deadline)
        with pytest.raises(FundsError, match=f"ends at {deadline}, before {asked}, as was asked for"):
            await bench.parts.funding.see_escrow(job)
    bench.fake.escrows[job.id] = Account(WALLET, BUDGET, 2**40, ended=True)
    with pytest.raises(FundsError, match="has been refunded"):
        await bench.parts.funding.see_escrow(job)
    bench.fake.escrows[job.id] = Account(WALLET, BUDGET, asked)
    await bench.parts.funding.see_escrow(job)
    assert (await bench.stored(job.id)).state is JobState.CREATED, "the program has not accepted it yet"
    await drain(bench)
    assert (await bench.stored(job.id)).state is JobState.FUNDED
    assert bench.fake.escrows[job.id].accepted
    assert sum('"funded"' in memo for memo in bench.fake.memos) == 1


async def test_money_that_arrives_for_a_cancelled_job_goes_back() -> None:
    bench = Bench()
    job = await bench.job()
    async with bench.parts.desk.open(job) as work:
        await bench.parts.funding.queue_funding(work)
    bench.fake.fault = lambda what: unavailable(what) if what == "after" else None
    await drain(bench, 1)  # The escrow is open, but nobody knows yet.
    await bench.parts.jobs.cancel(job)
    bench.fake.fault = lambda _what: None
    await drain(bench)
    assert bench.fake.escrows[job].refunded == BUDGET
    assert (await bench.stored(job)).refunded == BUDGET


async def test_a_cancelled_job_is_not_funded_any_more() -> None:
    bench = Bench()
    job = await bench.job()
    async with bench.parts.desk.open(job) as work:
        await bench.parts.funding.queue_funding(work)
    await bench.parts.jobs.cancel(job)
    await drain(bench)
    assert job not in bench.fake.escrows
    assert (await bench.rows(job, "fund"))[0].state == "failed"


# --- the real ledger, and a crash at every wait ---------------------------------------------------------------------------


class Fuse:
    """Burns through at the n-th wait."""

    def __init__(self, at: int) -> None:
        self.left = at

    def tick(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise CrashError


class FusedStore:
    """A store under which the process dies when the fuse burns through."""

    def __init__(self, inner: Store, fuse: Fuse) -> None:
        self._inner = inner
        self._fuse = fuse

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        self._fuse.tick()
        async with self._inner.transaction() as tx:
            yield tx
            self._fuse.tick()
        self._fuse.tick()

    async def close(self) -> None:
        await self._inner.close()


class FusedChain:
    """A ledger that may be the last thing the process talks to, before and after each call."""

    def __init__(self, inner: LedgerChain, fuse: Fuse) -> None:
        self._inner = inner
        self._fuse = fuse

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if name in ("url", "program", "mint", "escrow_address"):
            return attribute

        async def call(*arguments: Any) -> Any:
            self._fuse.tick()
            result = await attribute(*arguments)
            self._fuse.tick()
            return result

        return call


class LiveRpc(Rpc):
    """Answers while time passes: a slot every eight questions."""

    def __init__(self, world: World) -> None:
        super().__init__(world.chain, world.genesis)
        self._world = world

    def call(self, method: str, params: list[Any]) -> Any:
        self._world.clock.advance(SLOT_S / 8)
        return super().call(method, params)


@pytest.fixture
async def ledger() -> AsyncIterator[Ledger]:
    """The embedded ledger behind HTTP, as jobs use it."""
    runner = web.AppRunner(build_app(LiveRpc(World()), lambda: None), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    async with await Ledger.connect(LedgerConfig(f"http://{host}:{port}")) as client:
        yield client
    await runner.cleanup()


SEED, WALLET_SEED = b"c" * 32, b"w" * 32


async def crash_and_repair(ledger: Ledger, at: int) -> bool:
    """Settle a job with the process dying at wait ``at``; start again and finish. Whether the fuse burned through."""
    chain = LedgerChain(ledger, "http://ledger.test", SEED, WALLET_SEED, COORDINATOR)
    store, fuse = MemoryStore(), Fuse(at)
    calm = Bench(store=store, chain=chain)
    job = await calm.verified([{payee(1): 300, payee(2): 200}, {payee(1): 50}])
    await ledger.open_escrow(WALLET_SEED, job_bytes(job), COORDINATOR, Amount(BUDGET), 2**40)
    async with calm.parts.desk.open(job) as work:
        await calm.parts.settlement.finish(work)
    dying = Bench(store=FusedStore(store, fuse), chain=cast(ChainPort, FusedChain(chain, fuse)))
    crashed = await carry(dying.parts.lanes)
    again = Bench(store=store, chain=chain)
    assert not await carry(again.parts.lanes)
    await check(again, ledger, job)
    return crashed


async def carry(lanes: Lanes) -> bool:
    """Drain until nothing is left; whether the process died over it."""
    try:
        while await lanes.drain():
            pass
    except BaseExceptionGroup as group:
        if group.subgroup(CrashError) is None:
            raise
        return True
    except CrashError:
        return True
    return False


async def check(bench: Bench, ledger: Ledger, job: str) -> None:
    state = await ledger.escrow(WALLET, job_bytes(job))
    assert state is not None
    assert state.paid_to == {ledger.wallet(payee(1)): 350, ledger.wallet(payee(2)): 200}
    assert (state.paid, state.refunded, state.balance, state.ended) == (550, BUDGET - 550, 0, True)
    stored = await bench.stored(job)
    assert (stored.paid, stored.refunded) == (550, BUDGET - 550)
    assert {row.state for row in await bench.rows(job)} == {"confirmed"}
    happened = Counter(event.kind for event in await ledger.history(WALLET, job_bytes(job)))
    assert happened["paid"] == 2
    assert happened["refunded"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.long)])
async def test_a_crash_at_any_wait_of_a_settlement_pays_everybody_once(ledger: Ledger, every: int) -> None:
    await ledger.faucet(COORDINATOR, Amount(0), 10**12)
    await ledger.faucet(WALLET, Amount(BUDGET * 1000), 10**12)
    at = 1
    while await crash_and_repair(ledger, at):
        at += every
    assert at > 40, "the course has that many waits"


async def test_an_outside_deposit_is_receipted_with_its_signature_on_the_real_ledger(ledger: Ledger) -> None:
    outside = NodeKey(b"o" * 32)
    await ledger.faucet(COORDINATOR, Amount(0), 10**12)
    await ledger.faucet(outside.address, Amount(BUDGET), 10**12)
    bench = Bench(chain=LedgerChain(ledger, "http://ledger.test", SEED, WALLET_SEED, COORDINATOR))
    for number in range(1, 5):
        await bench.enter(number)
    job = (await bench.parts.jobs.create(NewJob(spec(), outside.address))).id
    await bench.parts.jobs.cancel(job)
    signature = await ledger.open_escrow(outside.seed, job_bytes(job), COORDINATOR, Amount(BUDGET), 2**40)
    await bench.parts.upkeep.look_for_escrows()
    await drain(bench)
    (deposit,) = [receipt for receipt in await bench.parts.jobs.receipts(job) if receipt.kind == "fund"]
    assert (deposit.signature, deposit.state, deposit.amount) == (signature, "confirmed", BUDGET)
    assert await ledger.balance(outside.address) == BUDGET, "it came too late and went back"


@pytest.mark.parametrize("has_wallet", [True, False])
async def test_stake_is_slashed_once_on_the_real_ledger(ledger: Ledger, has_wallet: bool) -> None:
    await ledger.faucet(COORDINATOR, Amount(0), 10**12)
    node = NodeKey(b"n" * 32)
    await ledger.faucet(node.address, Amount(1_000), 10**12)
    await ledger.open_stake(node.seed, Amount(1_000), COORDINATOR)
    chain = LedgerChain(ledger, "http://ledger.test", SEED, WALLET_SEED, COORDINATOR)
    bench = Bench(chain=chain)
    await ledger.faucet(WALLET, Amount(BUDGET * 10), 10**12)
    job = await bench.job()
    challenger = NodeKey(b"q" * 32).address
    before = Amount(int(has_wallet))
    await ledger.faucet(challenger, before, 10**9)  # Which makes it a token account where there is an amount.
    payload: dict[str, str | int] = {"node": node.address, "reason": "ab" * 32, "challenger": challenger}
    async with bench.parts.desk.open(job) as work:
        work.queue(OutboxRecord("slash:1", job, "slash", payload, work.now))
    await drain(bench, 4)
    row = (await bench.rows(job, "slash"))[0]
    state = await ledger.stake(node.address)
    assert state is not None
    assert row.state == "confirmed"
    assert state.slashed == row.amount > 0
    part = row.amount * state.challenger_bps // 10_000 if has_wallet else 0
    assert await ledger.balance(challenger) == before + part, "nobody else pays for an account that it does not have"
    assert any('"slashed"' in str(memo.payload["text"]) for memo in await bench.rows(job, "event"))


def attend(bench: Bench, seconds: int) -> None:
    """Time passes in which the coordinator listens."""
    for _ in range(seconds):
        bench.clock.t += 1.0
        bench.parts.leases.expired()


async def staked(ledger: Ledger, seed: bytes, stake: int) -> tuple[Bench, str, str]:
    """A job, and a node with a stake on the ledger that is here."""
    await ledger.faucet(COORDINATOR, Amount(0), 10**12)
    key = NodeKey(seed)
    await ledger.faucet(key.address, Amount(stake), 10**12)
    await ledger.open_stake(key.seed, Amount(stake), COORDINATOR)
    chain = LedgerChain(ledger, "http://ledger.test", SEED, WALLET_SEED, COORDINATOR)
    bench = Bench(chain=chain)
    await ledger.faucet(WALLET, Amount(BUDGET * 10), 10**12)
    job = await bench.job()
    await bench.enter(int.from_bytes(seed, "big"))
    attend(bench, 60)  # It has not just come.
    async with bench.store.transaction() as tx:
        record = await tx.get(NodeRecord, key.address)
        await tx.update(msgspec.structs.replace(record, stake=stake))
    return bench, job, key.address


async def slashed(ledger: Ledger, node: str) -> int:
    """What a node has lost of its stake."""
    state = await ledger.stake(node)
    assert state is not None
    return int(state.slashed)


async def test_a_hand_in_a_job_costs_a_small_part_of_the_stake_the_second_time_only(ledger: Ledger) -> None:
    stake = 10_000
    bench, job, node = await staked(ledger, b"t" * 32, stake)

    async def reached_into(*leases: str) -> None:
        granted = bench.clock.t + 1
        bench.clock.t += 60
        async with bench.parts.desk.open(job) as work:
            for name in leases:
                work.record(SandboxTampered(Lease(name, job, node, node, 1, 0, 0, granted)))
            await bench.parts.runs._verification.advance(work)
        await drain(bench, 4)

    await reached_into("a" * 32, "b" * 32)  # One hand, in two jobs that ran.
    assert await slashed(ledger, node) == 0
    assert await bench.rows(job, "slash") == []
    await reached_into("c" * 32)
    assert await slashed(ledger, node) == stake * TAMPER_BPS // 10_000 == 200
    (row,) = await bench.rows(job, "slash")
    assert (row.state, row.amount) == ("confirmed", 200)
    assert "reached into a job there again" in row.detail
    assert any('"slashed"' in str(memo.payload["text"]) for memo in await bench.rows(job, "event"))
    bench.clock.t += TAMPER_AGAIN_S
    await reached_into("d" * 32)
    assert await slashed(ledger, node) == 200, "a month later it is a first time again"
    async with bench.store.transaction() as tx:
        record = await tx.get(NodeRecord, node)
    assert (record.faults, record.rounds, record.banned) == (4, 0, False)


async def test_evading_audits_costs_a_small_part_of_the_stake_the_second_time_and_its_owner_is_told_before(
    ledger: Ledger,
) -> None:
    bench, job, node = await staked(ledger, b"e" * 32, 10_000)

    async with bench.store.transaction() as tx:
        await tx.insert(benches._round(job, AUDIT.round))

    async def evades(lease: str, *steps: int) -> None:
        granted = bench.clock.t + 1
        attend(bench, 60)
        held = Lease(lease, job, node, node, 1, 0, 0, granted, "ready")
        async with bench.store.transaction() as tx:
            await tx.insert(held)
        async with bench.parts.desk.open(job) as work:
            for step in steps:
                audit = msgspec.structs.replace(AUDIT, id=f"{lease[:16]}{step:016}", job=job, lease=lease, node=node)
                work.audits[audit.id] = audit
            await bench.parts.runs._verification.advance(work)
        await drain(bench, 4)

    def told() -> list[float]:
        return [message.at for message in bench.sent[node] if isinstance(message, Unanswered)]

    await evades("a" * 32, 0, 1)  # One fault, for which two openings were missed.
    first = bench.clock.t
    assert (await slashed(ledger, node), told()) == (0, [first])
    await evades("b" * 32, 0)
    assert await slashed(ledger, node) == 10_000 * EVASION_BPS // 10_000 == 500
    assert told() == [first, bench.clock.t]
    (row,) = await bench.rows(job, "slash")
    assert (row.state, row.amount) == ("confirmed", 500)
    assert "was not shown, again" in row.detail
    async with bench.store.transaction() as tx:
        record = await tx.get(NodeRecord, node)
    assert (record.banned, record.evaded, record.faults) == (True, bench.clock.t, 3)


# --- small earnings wait, and can be asked for --------------------------------------------------------------------------------
DEAR = replace(CONFIG, settle_every=1, sol_price=150_000_000)  # A signature costs 750 millionths.


async def earning(bench: Bench, share: dict[str, int]) -> str:
    """A job whose escrow is on the ledger, with one verified round, looked at as after each round."""
    job = await bench.verified([share])
    bench.fake.escrows[job] = Account(WALLET, BUDGET, 2**40)
    async with bench.parts.desk.open(job) as work:
        await bench.parts.settlement.settle_if_due(work)
    await drain(bench)
    return job


async def test_a_payout_waits_until_it_is_worth_its_fee_and_is_paid_at_the_end_whatever_it_is() -> None:
    bench = Bench(config=DEAR)
    job = await earning(bench, {payee(1): 1_000_000, payee(2): 700})
    assert bench.fake.escrows[job].paid == {payee(1): 1_000_000}
    async with bench.parts.desk.open(job) as work:
        await bench.parts.settlement.finish(work)
    await drain(bench)
    assert bench.fake.escrows[job].paid == {payee(1): 1_000_000, payee(2): 700}
    assert (await bench.stored(job)).refunded == BUDGET - 1_000_700


async def test_who_asks_is_paid_what_is_more_than_its_fee_but_not_all_the_time() -> None:
    bench = Bench(config=DEAR)
    job = await earning(bench, {payee(1): 4_000, payee(2): 700, payee(3): 1_000})
    assert bench.fake.escrows[job].paid == {}
    for number in (1, 2, 1):
        await bench.parts.settlement.claim(payee(number))
    await drain(bench)
    assert bench.fake.escrows[job].paid == {payee(1): 4_000}, "the second one's fee would be more than that"
    await bench.parts.settlement.claim(payee(2))
    assert len(await bench.rows(job, "settle")) == 1
    bench.clock.t += CLAIM_S + 1
    await bench.parts.settlement.claim(payee(1))
    await bench.parts.settlement.claim(payee(9))
    await drain(bench)
    assert len(await bench.rows(job, "settle")) == 1, "nothing is new"


async def test_a_node_claims_over_its_connection() -> None:
    bench = Bench(config=DEAR)
    session = await bench.enter(9)
    job = await earning(bench, {session.payout: 9_000})
    await bench.parts.conversation.receive(session, Claim())
    await drain(bench)
    assert bench.fake.escrows[job].paid == {session.payout: 9_000}
