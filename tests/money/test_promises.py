"""What is too small to be paid is promised: claimable by its payee alone, kept from every refund, never paid twice."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from solders.pubkey import Pubkey

from coordinator.client.claim import SavedPromise, main
from coordinator.domain.audits.trust import Audit
from coordinator.errors import NotFoundError
from coordinator.services.payments.chain import LedgerChain
from coordinator.services.payments.outbox_dispatcher import MAX_ATTEMPTS
from coordinator.store.ports import col
from coordinator.store.records import CommitRecord
from coordinator.store.sql import SqlStore
from ledger.client import Ledger, LedgerConfig, job_bytes
from ledger.local.chain import SLOT_S
from ledger.merkle import earning
from ledger.money import Amount
from protocol.codec import encode_json
from protocol.identity import NodeKey
from protocol.job.job import JobSpec
from protocol.merkle import MerkleProof, verify_proof
from protocol.node import Promised
from tests.coordinator.bench import CONFIG, Bench
from tests.coordinator.fakes import BUDGET, COORDINATOR, WALLET, Account, spec
from tests.ledger.served import served
from tests.money.faulty import Weather
from tests.money.killed import was_killed
from tests.money.storm import FINAL_SLOTS, SEED, Size, Storm, sea, storm
from tests.money.storm import payee as earner
from tests.money.test_money_under_fault import ROUGH

DEAR = 1_000_000_000_000  # Of a SOL: a fee is five tokens, so what waits must be 50 to be promised, and 100 to be paid alone.
SMALL, LARGE = 30_000_000, 400_000_000
BUDGET_NEEDED = 2_000_000_000


def payee(number: int) -> NodeKey:
    return NodeKey((500 + number).to_bytes(32, "big"))  # Whom the bench's node of the same number pays into.


class Dear(Bench):
    """The service with fees that matter."""

    def __init__(self, **options: Any) -> None:
        super().__init__(dataclasses.replace(CONFIG, settle_every=1, sol_price=DEAR), **options)

    async def job(self, document: JobSpec | None = None, nodes: int = 4) -> str:
        """With a budget for what its rounds cost on the ledger."""
        return await super().job(document or msgspec.structs.replace(spec(), budget=BUDGET_NEEDED // 4), nodes)


class Pay(Dear):
    """The same on the real ledger."""

    def __init__(self, ledger: Ledger, **options: Any) -> None:
        self.ledger = ledger
        chain = LedgerChain(ledger, "http://ledger.test", SEED, b"w" * 32, COORDINATOR)
        super().__init__(chain=chain, **options)

    async def opened(self, world: Any, shares: list[dict[str, int]]) -> str:
        job = await self.verified(shares, escrow=BUDGET_NEEDED)
        opening = await self.ledger.prepare_escrow(
            b"w" * 32, job_bytes(job), COORDINATOR, Amount(BUDGET_NEEDED), int(world.clock.now) + 3600
        )
        await self.ledger.confirm(opening)
        world.clock.advance(2 * FINAL_SLOTS * SLOT_S)
        return job

    async def settle(self, world: Any, job: str, times: int = 12) -> None:
        async with self.parts.desk.open(job) as work:
            await self.parts.settlement.settle_if_due(work)
        await self.carry(world, times)

    async def carry(self, world: Any, times: int = 12) -> None:
        for _ in range(times):
            await self.parts.lanes.drain()
            self.clock.t += 3.0
            world.clock.advance(2 * FINAL_SLOTS * SLOT_S)


@pytest.fixture
async def place() -> AsyncIterator[tuple[Any, Pay]]:
    async with sea(11) as (world, _, ledger):
        yield world, Pay(ledger)


def promises_to(bench: Bench, node: str) -> list[Promised]:
    return [message for message in bench.sent[node] if isinstance(message, Promised)]


async def claim(ledger: Ledger, job: str, told: Promised, seed: bytes = b"9" * 32) -> None:
    await ledger.faucet(str(NodeKey(seed).address), Amount(0))
    proof = MerkleProof(told.index, told.count, told.path)
    prepared = await ledger.prepare_claim(
        seed, told.submitter, job_bytes(job), told.payee, Amount(told.cumulative), proof
    )
    await ledger.confirm(prepared)


async def test_small_shares_are_promised_claimed_by_their_payees_and_paid_only_once(place: tuple[Any, Pay]) -> None:
    world, bench = place
    small, other, large = (payee(number).address for number in (1, 2, 3))
    job = await bench.opened(world, [{small: SMALL, other: SMALL, large: LARGE}])
    await bench.settle(world, job)
    kinds = [(row.kind, row.state, row.amount) for row in await bench.rows(job) if row.kind in ("settle", "promise")]
    assert kinds == [("settle", "confirmed", LARGE), ("promise", "confirmed", 2 * SMALL)]
    state = await bench.ledger.escrow(WALLET, job_bytes(job))
    assert state is not None
    assert (state.paid, state.committed, state.period) == (LARGE, LARGE + 2 * SMALL, 1)
    (told,) = promises_to(bench, NodeKey((1).to_bytes(32, "big")).address)
    wallet = bytes(Pubkey.from_string(bench.ledger.wallet(small)))
    proof = MerkleProof(told.index, told.count, told.path)
    assert verify_proof(state.earnings_root, earning(wallet, told.cumulative), proof)
    assert not verify_proof(state.earnings_root, earning(wallet, told.cumulative + 1), proof)
    await claim(bench.ledger, job, told)
    assert await bench.ledger.balance(small) == SMALL
    async with bench.parts.desk.open(job) as work:
        await bench.parts.settlement.finish(work)
    await bench.carry(world)
    assert [await bench.ledger.balance(who) for who in (small, other, large)] == [SMALL, SMALL, LARGE]
    stored = await bench.stored(job)
    assert (stored.paid, stored.refunded) == (LARGE + 2 * SMALL, BUDGET_NEEDED - LARGE - 2 * SMALL)


async def test_what_is_promised_stays_when_the_coordinator_is_gone_and_the_submitter_takes_the_rest(
    place: tuple[Any, Pay],
) -> None:
    world, bench = place
    small, other = (payee(number).address for number in (1, 2))
    job = await bench.opened(world, [{small: SMALL, other: SMALL}])
    await bench.settle(world, job)
    told = {who: promises_to(bench, node)[0] for who, node in zip((small, other), list(bench.sent)[:2], strict=True)}
    world.clock.advance(4000)  # Past the deadline; nobody of the coordinator is there any more.
    await bench.ledger.confirm(await bench.ledger.prepare_refund(b"w" * 32, WALLET, job_bytes(job)))
    state = await bench.ledger.escrow(WALLET, job_bytes(job))
    assert state is not None
    assert (state.ended, state.balance) == (True, 2 * SMALL), "promised earnings are not the submitter's"
    for who, promised in told.items():
        await claim(bench.ledger, job, promised)
        assert await bench.ledger.balance(who) == SMALL


async def test_the_command_claims_with_a_list_that_was_saved(
    place: tuple[Any, Pay], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world, bench = place
    small, other = payee(1), payee(2)
    job = await bench.opened(world, [{small.address: SMALL, other.address: SMALL}])
    await bench.settle(world, job)
    view = await bench.parts.books.promise(job)
    file, key = tmp_path / "list.json", tmp_path / "key"
    saved = SavedPromise(view, bench.ledger._connection.url, bench.ledger.program, bench.ledger.mint)
    file.write_bytes(encode_json(saved))
    key.write_text(small.seed.hex())
    await bench.ledger.faucet(small.address, Amount(0))
    words = [job, "--promise", str(file), "--key", str(key)]
    assert await asyncio.to_thread(main, words[:3]) == 0
    assert "2 payees" in capsys.readouterr().out
    assert await asyncio.to_thread(main, words) == 0
    assert await bench.ledger.balance(small.address) == SMALL
    assert await asyncio.to_thread(main, words) == 1
    assert "has been paid all" in capsys.readouterr().err
    assert await asyncio.to_thread(main, [*words, "--payee", WALLET]) == 1
    raised = msgspec.structs.replace(view.payees[0], cumulative=view.payees[0].cumulative + 1)
    forged = msgspec.structs.replace(view, payees=(raised, *view.payees[1:]))
    file.write_bytes(encode_json(msgspec.structs.replace(saved, promise=forged)))
    assert await asyncio.to_thread(main, words) == 1
    assert "not, or no longer, what was promised" in capsys.readouterr().err
    assert await asyncio.to_thread(main, ["7Kq"]) == 2


async def test_one_promise_stands_for_many_and_only_a_worthwhile_one_is_written(place: tuple[Any, Pay]) -> None:
    world, bench = place
    first, second = payee(1).address, payee(2).address
    job = await bench.opened(world, [{first: 10_000_000, second: 20_000_000}])
    await bench.settle(world, job, 3)
    assert await bench.rows(job, "promise") == [], "the fee would be a sixth of it"
    with pytest.raises(NotFoundError, match="nothing of job"):
        await bench.parts.books.promise(job)
    async with bench.parts.desk.open(job) as work:
        commits = await work.tx.find(CommitRecord, col(CommitRecord.job).equals(job))
        for commit in commits:
            await work.tx.update(msgspec.structs.replace(commit, amount=commit.amount + 15_000_000))
    await bench.settle(world, job)
    await bench.settle(world, job, 3)
    assert len(await bench.rows(job, "promise")) == 1, "nothing new was promised twice"
    view = await bench.parts.books.promise(job)
    assert {one.payee: one.cumulative for one in view.payees} == {first: 25_000_000, second: 35_000_000}
    state = await bench.ledger.escrow(WALLET, job_bytes(job))
    assert state is not None
    assert view.root == state.earnings_root.hex()


async def test_a_node_that_comes_back_hears_again_what_was_promised_to_it(place: tuple[Any, Pay]) -> None:
    world, bench = place
    job = await bench.opened(world, [{payee(1).address: SMALL, payee(2).address: SMALL}])
    await bench.settle(world, job)
    before = len(promises_to(bench, NodeKey((1).to_bytes(32, "big")).address))
    await bench.enter(1)
    told = promises_to(bench, NodeKey((1).to_bytes(32, "big")).address)
    assert len(told) == before + 1
    assert told[-1] == told[0]
    await bench.enter(4)
    assert promises_to(bench, NodeKey((4).to_bytes(32, "big")).address) == []


async def test_what_was_promised_cannot_be_void_any_more_and_the_rest_can(place: tuple[Any, Pay]) -> None:
    world, bench = place
    liar = payee(1).address
    job = await bench.opened(world, [{liar: 3 * SMALL}])
    await bench.settle(world, job)
    async with bench.parts.desk.open(job) as work:
        (commit,) = await work.tx.find(CommitRecord, col(CommitRecord.job).equals(job))
        later = msgspec.structs.replace(commit, round=7, promised=None, version=0)
        await work.tx.insert(later)
        work.change(verified=work.job.verified + later.amount)
        audit = cast(Audit, type("Found", (), {"id": "ab" * 16, "node": liar, "challenger": None})())
        await bench.parts.runs._verification._penalties.ban(work, liar, audit, "it lied", slash=False)
    async with bench.store.transaction() as tx:
        states = {c.round: (c.state, c.amount) for c in await tx.find(CommitRecord, col(CommitRecord.job).equals(job))}
    assert states == {0: ("verified", 3 * SMALL), 7: ("rejected", 0)}


async def test_a_promise_that_the_ledger_refuses_leaves_its_shares_as_they_were() -> None:
    bench = Dear()
    job = await bench.verified([{payee(1).address: 3 * SMALL}])
    bench.fake.escrows[job] = Account(WALLET, BUDGET * 10, 2**40)
    async with bench.parts.desk.open(job) as work:
        commits = await work.tx.find(CommitRecord, col(CommitRecord.job).equals(job))
        await bench.parts.settlement._promises.queue(work, commits)
    bench.fake.escrows[job].ended = True
    for _ in range(MAX_ATTEMPTS + 2):
        bench.clock.t += 200.0
        await bench.parts.lanes.drain()
    (row,) = await bench.rows(job, "promise")
    assert row.state == "failed"
    async with bench.store.transaction() as tx:
        assert [c.promised for c in await tx.find(CommitRecord, col(CommitRecord.job).equals(job))] == [None]


async def test_more_payees_than_an_escrow_was_opened_for_are_paid_twice_through_several_tables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ledger.payouts.MAX_ADDRESSES", 60)  # Of 256, so that 70 payees take two tables.
    async with sea(12) as (world, rpc, ledger):
        course = Storm(world, rpc, ledger, Size(jobs=0, payees=70, rounds=2), 12)
        await course.begin()
        job = await course.bench.verified([], escrow=course.size.budget)
        opening = await ledger.prepare_escrow(b"w" * 32, job_bytes(job), COORDINATOR, Amount(course.size.budget), 2**40)
        await ledger.confirm(opening)
        course.jobs.append(job)
        course.owed[job] = Counter()
        world.clock.advance(2 * FINAL_SLOTS * SLOT_S)
        made: list[set[str]] = []
        for number in range(2):
            await course.earn(job, number, [1, 1])
            while await course.open_rows():
                await course.blow(1, 0.0)
            made.append({row.lookup for row in await course.bench.rows(job) if row.kind == "settle"} - {""})
        state = await ledger.escrow(WALLET, job_bytes(job))
        assert state is not None
        assert state.max_payees >= len(state.paid_to) > 64
        assert made[0] == made[1], "the second time everybody is in a table already"
        assert len(made[0]) == 2
        await course.end(crashes=0.0)  # Compares what everybody got with what everybody earned.


@pytest.mark.slow
async def test_in_any_weather_what_waits_is_promised_and_in_the_end_paid_once() -> None:
    weather = Weather(**vars(ROUGH))
    tally = await storm(21, Size(jobs=2, payees=6, rounds=3, sol_price=50_000_000_000), weather, crashes=0.2)
    assert tally.payouts
    assert tally.faults["fork"]


@pytest.mark.long
@pytest.mark.slow
async def test_a_coordinator_that_is_killed_after_its_promise_is_not_needed_for_the_claim(
    tmp_path: Path,
) -> None:
    database = f"sqlite+aiosqlite:///{tmp_path / 'coordinator.db'}"
    with served(tmp_path) as server:
        url = server.start()
        async with await Ledger.connect(LedgerConfig(url)) as ledger:
            await ledger.faucet(COORDINATOR, Amount(0), 10**13)
            await ledger.faucet(WALLET, Amount(10**10), 10**13)
            store = await SqlStore.open(database)
            bench = Dear(store=store)
            owed = {earner(1): SMALL, earner(2): SMALL}
            job = await bench.verified([owed], escrow=BUDGET_NEEDED)
            await ledger.open_escrow(b"w" * 32, job_bytes(job), COORDINATOR, Amount(BUDGET_NEEDED), 2**40)
            async with bench.parts.desk.open(job) as work:
                await bench.parts.settlement.settle_if_due(work)
            assert [row.kind for row in await bench.rows(job) if row.kind != "event"] == ["promise"]
            assert [await was_killed(url, database, at) for at in (60, 40, 0)] == [True, True, False]
            await store.close()
            state = await ledger.escrow(WALLET, job_bytes(job))
            assert state is not None
            earned = ledger.earnings({who: Amount(total) for who, total in sorted(owed.items())})
            assert state.earnings_root == earned.root
            for who, amount in owed.items():
                told = earned.proofs[who]
                promised = Promised(job, WALLET, who, amount, earned.root.hex(), told.index, told.count, told.path)
                await claim(ledger, job, promised)
                assert await ledger.balance(who) == amount
