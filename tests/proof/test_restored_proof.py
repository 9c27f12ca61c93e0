"""``cottage ledger check`` of a coordinator that a backup alone brought back: what it cannot know is said, nothing hidden."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from coordinator.proof.case import Case, ProofFinding
from coordinator.proof.checks import failed, findings
from coordinator.proof.cli import main
from coordinator.proof.gather import gather
from coordinator.proof.restores import GRACE_S, RESTORE, unchecked
from ledger.client import job_bytes
from ledger.money import Amount
from protocol.rest.ledger import RestoredPayout, RestoreView
from tests.coordinator.fakes import WALLET, spec
from tests.ledger.by_hand import pay
from tests.proof.town import COORDINATOR_SEED, Town, town
from tests.sim.test_restored import backup_of

pytestmark = pytest.mark.asyncio(loop_scope="module")
A_ROUND, ROUNDS, BACKUP, DISASTER = 1024, 12, 2, 8


async def restored(place: Town, folder: Path, name: str) -> str:
    """A job whose coordinator lost what came after its second round; it goes on."""
    job = await place.submit(name, spec(2, 2, tokens=ROUNDS * A_ROUND))
    await until(place, job, BACKUP)
    backup = backup_of(place.store)
    await until(place, job, DISASTER)
    while (await place.parts.books.job(job)).totals.paid == 0:
        await place.turn()
    await place.restore(backup)
    await place.serve(folder)
    return job


async def until(place: Town, job: str, rounds: int) -> None:
    while (await place.parts.jobs.get(job)).rounds_done < rounds:
        await place.turn()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Town]:
    async with town(tmp_path_factory.mktemp("town")) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def job(place: Town, tmp_path_factory: pytest.TempPathFactory) -> str:
    made = await restored(place, tmp_path_factory.mktemp("restored"), "restored")
    await place.end(made)
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def case(place: Town, job: str) -> Case:
    return await gather(job, place.rpc, None, None, place.url)


def payout(case: Case, change: int) -> Case:
    """The first amount of the restore is another."""
    assert case.published is not None
    (restore,) = case.published.restores
    first, *rest = restore.payouts
    changed = RestoreView(restore.time, (RestoredPayout(first.payee, first.amount + change), *rest))
    return replace(case, published=replace(case.published, restores=(changed,)))


def without(case: Case) -> Case:
    """The coordinator says nothing of a restore."""
    assert case.published is not None
    return replace(case, published=replace(case.published, restores=()))


def earlier(case: Case) -> Case:
    """It says that it was restored before anything of this was paid or written."""
    assert case.published is not None
    (restore,) = case.published.restores
    before = min(event.time for event in case.ledger.events) - GRACE_S - 1
    moved = msgspec.structs.replace(restore, time=before)
    return replace(case, published=replace(case.published, restores=(moved,)))


def false(case: Case) -> list[ProofFinding]:
    return failed(list(findings(case)))


async def test_what_a_restore_cannot_know_is_said_with_payee_and_amount_and_nothing_is_untrue(case: Case) -> None:
    found = list(findings(case))
    assert failed(found) == []
    assert case.published is not None
    (restore,) = case.published.restores
    assert restore.payouts
    notes = unchecked(found)
    told = {one.subject: one.detail for one in notes}
    for one in restore.payouts:
        assert told[one.payee].startswith(f"¤ {one.amount / 1e6:g}")
        assert told[one.payee].endswith("was paid before a restore from a backup: what for cannot be checked any more")
    assert "lost before a restore" in told["job"]
    verified = sum(share.amount for one in case.published.rounds for share in one.shares if share.state == "verified")
    assert verified + sum(one.amount for one in restore.payouts) == int(case.ledger.escrow.paid)


async def test_the_command_does_not_say_that_all_was_checked(
    place: Town, job: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "220")
    words = [job, "--coordinator", place.url, "--rpc", place.rpc]
    assert await asyncio.to_thread(main, words) == 4
    shown = capsys.readouterr().out
    assert "Not everything could be checked" in shown
    assert "FAIL" not in shown
    assert await asyncio.to_thread(main, [*words, "--json"]) == 4
    assert {one["verdict"] for one in json.loads(capsys.readouterr().out)} == {"note", "pass"}


async def test_whatever_is_beyond_shares_and_restores_is_untrue(case: Case) -> None:
    assert [one.check for one in false(payout(case, -1))] == ["payouts"], "more was paid than both account for"
    assert "before a restore" in false(payout(case, -1))[0].detail
    assert "payouts" in [one.check for one in false(payout(case, 1))], "less was paid than both account for"
    assert {"every round", "payouts"} <= {one.check for one in false(without(case))}


async def test_a_restore_excuses_nothing_that_the_ledger_has_seen_later(case: Case) -> None:
    assert {"every round", RESTORE} <= {one.check for one in false(earlier(case))}


async def test_an_overpayment_after_a_restore_is_found(place: Town, job: str, tmp_path: Path) -> None:
    other = await restored(place, tmp_path, "overpaid")
    before = await gather(other, place.rpc, None, None, place.url)
    assert false(before) == []
    assert before.published is not None
    payee = before.published.restores[0].payouts[0].payee
    had = before.ledger.escrow.paid_to[before.published.wallets[payee]]
    await pay(place.ledger, COORDINATOR_SEED, WALLET, job_bytes(other), {payee: Amount(int(had) + 100_000)})
    found = false(await gather(other, place.rpc, None, None, place.url))
    assert [(one.check, one.subject) for one in found] == [("payouts", payee)]
