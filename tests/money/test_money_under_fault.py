"""Nobody is paid twice and nothing is lost: an endpoint that fails, a ledger that forks, a service that dies at any wait."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
from solders.pubkey import Pubkey

from coordinator.store.sql import SqlStore
from ledger.client import Ledger, LedgerConfig, job_bytes
from ledger.errors import LedgerAnswerError, LedgerUnavailableError
from ledger.money import Amount
from tests.coordinator.bench import Bench
from tests.coordinator.fakes import COORDINATOR, WALLET
from tests.ledger.served import served
from tests.money.faulty import CALM, Weather
from tests.money.storm import SEED, Size, Storm, crash_at, payee, sea, storm

ROUGH = Weather(
    lost_question=0.06, lost_answer=0.1, too_many=0.05, garbage=0.03, held=0.3, wrong_height=0.3, behind=0.1, fork=0.04
)
SMALL = Size(jobs=2, payees=12, rounds=3)


@pytest.mark.parametrize("seed", range(4))
async def test_in_any_weather_everybody_is_paid_once_and_the_rest_goes_back(seed: int) -> None:
    tally = await storm(seed, SMALL, ROUGH, crashes=0.3)
    assert tally.payouts > 60
    assert all(tally.faults[fault] for fault in ("fork", "lost_answer", "held", "too_many")), "the weather was bad"


async def test_with_one_kind_of_fault_at_its_worst_payments_still_end() -> None:
    for fault in ("lost_answer", "held", "fork"):
        tally = await storm(5, Size(1, 5, 2), Weather(**{**vars(CALM), fault: 0.3 if fault != "fork" else 0.08}), 0.0)
        assert tally.faults[fault], fault


async def test_one_lookup_table_serves_all_rounds_of_a_job_and_is_given_back_at_its_end() -> None:
    async with sea(6) as (world, rpc, ledger):
        course = Storm(world, rpc, ledger, Size(1, 30, 3), 6)
        await course.begin()
        for number in range(3):
            await course.earn(course.jobs[0], number, [1, 1, 1])
            await course.blow(8, 0.0)
        await course.end(crashes=0.0)
        rows = await course.bench.rows(course.jobs[0])
        (table,) = {row.lookup for row in rows if row.kind == "settle"}
        (closing,) = [row for row in rows if row.kind == "table"]
        assert closing.payload == {"table": table}
        assert world.chain.account(Pubkey.from_string(table)) is not None
        for _turn in range(40):
            await course.blow(1, 0.0)
            world.clock.advance(20)
        assert world.chain.account(Pubkey.from_string(table)) is None
        assert not await course.open_rows()


@pytest.mark.slow
async def test_a_crash_at_every_wait_of_the_service_is_repaired_by_the_next_one() -> None:
    # Each of the waits is visited by `python benchmarks/payouts.py --every-wait`; here every 23rd, from another start each.
    for start in range(0, 400, 23):
        if not await crash_at(start + 1):
            assert start > 200, "the course has that many waits"
            return


async def test_an_endpoint_that_errs_about_heights_makes_nothing_expire() -> None:
    async with sea(3) as (world, rpc, ledger):
        course = Storm(world, rpc, ledger, Size(1, 3, 1), 3)
        await course.begin()
        prepared = await ledger.prepare_memo(SEED, "note", WALLET, job_bytes(course.jobs[0]))
        true = rpc._methods["getBlockHeight"]
        rpc._methods = {**rpc._methods, "getBlockHeight": lambda _: 10**9}
        assert await ledger.outcome_of(prepared) == "pending", "the other way of asking does not agree"
        rpc._methods = {**rpc._methods, "getBlockHeight": true}
        nonce = (await ledger.payouts(SEED).nonces(1))[0]
        world.clock.advance(60)
        with_nonce = await ledger.prepare_refund(SEED, WALLET, job_bytes(course.jobs[0]), nonce=nonce)
        rpc.weather = Weather(**{**vars(CALM), "wrong_height": 1.0})
        for _ in range(20):
            try:
                assert await ledger.outcome_of(with_nonce) == "pending", "a nonce knows no height"
            except (LedgerAnswerError, LedgerUnavailableError):
                continue


async def test_a_transaction_that_is_undone_by_a_fork_was_never_confirmed_for_the_service() -> None:
    async with sea(4) as (world, rpc, ledger):
        course = Storm(world, rpc, ledger, Size(1, 1, 1), 4)
        await course.begin()
        nonces = await ledger.payouts(SEED).nonces(2)
        world.clock.advance(60)
        prepared = await ledger.prepare_refund(SEED, WALLET, job_bytes(course.jobs[0]), nonce=nonces[0])
        await ledger.submit(prepared)
        assert await ledger.outcome_of(prepared) == "pending", "it may still be undone"
        assert world.chain.undo(1)
        assert await ledger.outcome_of(prepared) == "pending"
        await ledger.submit(prepared)
        world.clock.advance(60)
        assert await ledger.outcome_of(prepared) == "confirmed"


async def kill_at(folder: Path, url: str, database: str, line: int) -> bool:
    """Run the service until its ``line``-th word and kill it there; whether it came so far."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.money.settler", url, database,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=folder, env=dict(os.environ),
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        for _ in range(line):
            if not await child.stdout.readline():
                assert await child.wait() == 0
                return False
            child.stdin.write(b"\n")
            await child.stdin.drain()
        return True
    finally:
        if child.returncode is None:
            child.send_signal(signal.SIGKILL)
            await child.wait()


@pytest.mark.slow
async def test_killed_by_the_system_at_any_question_the_service_pays_once(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    database = f"sqlite+aiosqlite:///{tmp_path / 'coordinator.db'}"
    with served(tmp_path) as server:
        url = server.start()
        async with await Ledger.connect(LedgerConfig(url)) as ledger:
            await ledger.faucet(COORDINATOR, Amount(0), 10**13)
            await ledger.faucet(WALLET, Amount(10**9), 10**13)
            store = await SqlStore.open(database)
            bench = Bench(store=store)
            job = await bench.verified([{payee(1): 300, payee(2): 200}, {payee(1): 50}])
            await ledger.open_escrow(b"w" * 32, job_bytes(job), COORDINATOR, Amount(10_000_000), 2**40)
            async with bench.parts.desk.open(job) as work:
                await bench.parts.settlement.finish(work)
            for line in (4, 7, 9, 12):
                await kill_at(root, url, database, line)
            assert not await kill_at(root, url, database, 10_000), "the last one ends by itself"
            state = await ledger.escrow(WALLET, job_bytes(job))
            assert state is not None
            assert (state.paid, state.refunded, state.balance) == (550, 9_999_450, 0)
            assert [await ledger.balance(payee(number)) for number in (1, 2)] == [350, 200]
            happened = Counter(event.kind for event in await ledger.history(WALLET, job_bytes(job)))
            assert (happened["paid"], happened["refunded"]) == (2, 1)
            stored = await bench.stored(job)
            assert (stored.paid, stored.refunded) == (550, 9_999_450)
            await store.close()
