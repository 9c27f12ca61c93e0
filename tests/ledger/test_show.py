"""``cottage ledger show``: a job's money, read from the ledger alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger import events
from ledger.cli import main
from ledger.client import Ledger, LedgerConfig, address_of, job_bytes
from ledger.money import Amount, parse
from tests.ledger.by_hand import pay
from tests.ledger.served import served
from tests.protocol.test_wallets import SECRETS

SUBMITTER, COORDINATOR, NODE, RIVAL = b"\1" * 32, b"\2" * 32, b"\3" * 32, b"\4" * 32
JOB_ID = "0123456789abcdef" * 2
FAR = 4_000_000_000


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A ledger on which one job was paid, and a rival opened an escrow for the same job id."""
    folder: Path = tmp_path_factory.mktemp("show")
    with served(folder) as server:
        address = server.start()
        asyncio.run(_one_job(address))
        yield address


async def _one_job(url: str) -> None:
    submitter, job = address_of(SUBMITTER), job_bytes(JOB_ID)
    async with await Ledger.connect(LedgerConfig(url)) as ledger:
        for seed in (SUBMITTER, COORDINATOR, RIVAL):
            await ledger.faucet(address_of(seed), parse("1000"))
        await ledger.open_escrow(SUBMITTER, job, address_of(COORDINATOR), parse("12.5"), FAR)
        await ledger.open_escrow(RIVAL, job, address_of(RIVAL), Amount(1), FAR)
        for event in (
            events.Funded(job=JOB_ID, amount=parse("12.5")),
            events.Verified(
                job=JOB_ID, epoch=1, round=3, step=4, node=address_of(NODE), auditor=address_of(RIVAL), verdict="match"
            ),
        ):
            await ledger.confirm(await ledger.prepare_memo(COORDINATOR, events.encode(event), submitter, job))
        await pay(ledger, COORDINATOR, submitter, job, {address_of(NODE): parse("2.25")})
        await ledger.confirm(await ledger.prepare_refund(COORDINATOR, submitter, job))
        await ledger.faucet(address_of(NODE), parse("5"))
        await ledger.open_stake(NODE, parse("4"), address_of(COORDINATOR))
        await ledger.confirm(await ledger.prepare_slash(COORDINATOR, address_of(NODE), parse("0.5"), b"\7" * 32))


def test_the_table_tells_events_and_that_the_sums_agree(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["show", JOB_ID, "--url", url, "--submitter", address_of(SUBMITTER)]) == 0
    shown = capsys.readouterr().out
    assert "funded 12.5 = paid 2.25 + refunded 10.25 + left 0   (refunded)" in shown
    for word in ("opened", "deposited", "verified", "round 3", "verdict match", "paid", address_of(NODE), "refunded"):
        assert word in shown


def test_json_holds_whole_signatures_and_exact_units(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", JOB_ID, "--url", url, "--json"]) == 0
    documents = {one["submitter"]: one for one in json.loads(capsys.readouterr().out)}
    assert set(documents) == {address_of(SUBMITTER), address_of(RIVAL)}
    mine = documents[address_of(SUBMITTER)]
    assert mine["funded"] == mine["paid"] + mine["refunded"] + mine["left"] == 12_500_000
    assert [event["kind"] for event in mine["events"]] == [
        "opened",
        "deposited",
        "funded",
        "verified",
        "admitted",
        "paid",
        "refunded",
    ]
    paid = sum(event["fields"]["amount"] for event in mine["events"] if event["kind"] == "paid")
    assert paid == mine["paid"] == 2_250_000
    assert all(len(event["signature"]) >= 86 for event in mine["events"])


def test_a_nodes_stake_slashes_and_payouts_are_read_from_the_ledger_alone(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["show", address_of(NODE), "--url", url]) == 0
    shown = capsys.readouterr().out
    assert "deposited 4 = slashed 0.5 + withdrawn 0 + there 3.5" in shown
    assert "paid 2.25 by 1 jobs" in shown
    assert main(["show", address_of(NODE), "--url", url, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [event["kind"] for event in document["stake_events"]] == ["stake_opened", "stake_deposited", "stake_slashed"]
    assert [event["fields"]["amount"] for event in document["payouts"]] == [2_250_000]
    assert all(len(event["signature"]) >= 86 for event in document["payouts"])


def test_a_stranger_has_neither_stake_nor_payouts(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", address_of(b"\x09" * 32), "--url", url, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["stake"], document["stake_events"], document["payouts"]) == (None, [], [])


def test_what_the_program_did_is_told_from_what_somebody_wrote(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", JOB_ID, "--url", url, "--submitter", address_of(SUBMITTER), "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)
    sources = {event["kind"]: event["source"] for event in document["events"]}
    assert sources["paid"] == sources["deposited"] == "program"
    assert sources["verified"] == sources["funded"] == "record"


def test_a_job_id_may_be_written_as_a_uuid(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    dashed = f"{JOB_ID[:8]}-{JOB_ID[8:12]}-{JOB_ID[12:16]}-{JOB_ID[16:20]}-{JOB_ID[20:]}".upper()
    assert main(["show", dashed, "--url", url, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2


@pytest.mark.parametrize(
    ("job", "url_end", "message"),
    [("f" * 32, "", "has no escrow"), ("7Kq", "", "hexadecimal"), (JOB_ID, "/nowhere", "no Solana ledger: HTTP 404")],
)
def test_what_cannot_be_shown_is_explained(
    url: str, capsys: pytest.CaptureFixture[str], job: str, url_end: str, message: str
) -> None:
    assert main(["show", job, "--url", url + url_end]) == 1
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_serve_hands_its_options_to_the_embedded_ledger(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["serve", "--db", str(tmp_path / "no" / "folder.db")]) == 1
    assert "cannot be opened" in capsys.readouterr().err


@pytest.mark.parametrize("kind", SECRETS)
def test_a_secret_in_the_place_of_an_address_is_not_repeated(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", SECRETS[kind], "--url", "http://127.0.0.1:9"]) == 1
    said = capsys.readouterr().err
    assert "whoever has it has the money" in said
    assert not any(part in said for part in SECRETS[kind].split() if len(part) > 8)


def test_what_is_neither_job_nor_address_is_told_of_both(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "my job", "--url", "http://127.0.0.1:9"]) == 1
    assert "no address of Solana" in (said := capsys.readouterr().err)
    assert "a job's id is 32 hexadecimal digits" in said
    assert main(["show", JOB_ID[:-1], "--url", "http://127.0.0.1:9"]) == 1
    assert "is no job id" in capsys.readouterr().err
