"""Nobody is paid twice and nothing is lost: an endpoint that fails, a ledger that forks, a service that dies at any wait."""

from __future__ import annotations

from pathlib import Path

import pytest
from solders.pubkey import Pubkey

from ledger.client import job_bytes
from ledger.errors import LedgerAnswerError, LedgerUnavailableError
from tests.coordinator.fakes import WALLET
from tests.money.faulty import CALM, Weather
from tests.money.killed import kill_at_waits
from tests.money.storm import SEED, Size, Storm, sea, storm
from tests.support.seeds import seeds

ROUGH = Weather(
    lost_question=0.06, lost_answer=0.1, too_many=0.05, garbage=0.03, held=0.3, wrong_height=0.3, behind=0.1, fork=0.04
)
SMALL = Size(jobs=2, payees=12, rounds=3)


@pytest.mark.parametrize("seed", seeds(2, of=4))
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


@pytest.mark.slow
@pytest.mark.parametrize("every", [75, pytest.param(25, marks=pytest.mark.long)])
def test_killed_by_the_system_at_any_of_its_waits_the_service_pays_everybody_once(every: int, tmp_path: Path) -> None:
    # Each of the waits is visited by `python -m benchmarks.money.payouts --every-wait`.
    found = kill_at_waits(tmp_path, every=every)
    assert found["waits"] > 150, "the course has that many waits"
    assert found["kills"] >= found["waits"] // every
