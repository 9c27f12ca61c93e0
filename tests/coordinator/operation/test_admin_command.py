"""``cottage admin`` against a coordinator that asks who somebody is."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from common.invitations import read
from coordinator.client.cli import main
from coordinator.client.login import CONFIG_VARIABLE, TOKEN_VARIABLE
from protocol.rest.admin import AdminStorage
from protocol.rest.api import NewJob
from tests.coordinator.web.conftest import House, town
from tests.coordinator.web.fake import address
from tests.coordinator.web.test_api import spec
from tests.coordinator.web.test_tenants import member

__all__ = ["town"]
Admin = Callable[..., "asyncio.Future[int]"]
NODE = address("attic-4090")


@pytest.fixture
async def admin(town: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Admin:
    """The command with an operator's key."""
    key = (await member(town, "root"))["Authorization"].removeprefix("Bearer ")
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "config"))
    monkeypatch.setenv("COTTAGE_SERVER", town.url)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv(TOKEN_VARIABLE, key)
    return lambda *argv: asyncio.ensure_future(asyncio.to_thread(main, ["admin", *argv]))


async def test_nodes_are_listed_searched_and_shown(admin: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    assert await admin("nodes") == 0
    told = capsys.readouterr().out
    assert NODE in told, "whole, to be copied"
    assert "at work" in told
    assert await admin("nodes", NODE[:8], "--json") == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)] == ["attic-4090"]
    assert await admin("nodes", "nothing of the kind") == 0
    assert "No such nodes." in capsys.readouterr().out
    assert await admin("node", NODE) == 0
    told = capsys.readouterr().out
    assert f"stage 0 of replica 1 in job {1:032x}" in told, "of training, as its page counts"
    assert "203.0.113.7" in told
    assert await admin("node", address("kitchen-3060")) == 0
    told = capsys.readouterr().out
    assert f"stage 1 of replica 2 in job {2:032x}" in told, "of a deployment, as its page counts"


async def test_computers_are_invited_listed_and_invitations_taken_back(
    admin: Admin, town: House, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await admin("lenders") == 0
    assert "who may lend   invited" in capsys.readouterr().out

    async def invite(*argv: str) -> str:
        assert await asyncio.to_thread(main, ["invite", *argv]) == 0
        return capsys.readouterr().out

    page, link, _ = (await invite("--note", "attic", "--days", "1")).splitlines()
    assert (read(page), read(page).url) == (read(link), town.url)
    (one,) = json.loads(await invite("--list", "--json"))
    assert (one["note"], one["state"], one["link"]) == ("attic", "open", "")
    assert await town.lenders.enter(NODE, read(link).code) == ""
    assert NODE in await invite("--list")
    assert f"{NODE} may lend no more" in await invite("--withdraw", one["id"])
    assert await asyncio.to_thread(main, ["invite", "--withdraw", "nothing"]) == 1
    assert "no invitation" in capsys.readouterr().err
    assert await asyncio.to_thread(main, ["invite", "--days", "366"]) == 1
    assert "days" in capsys.readouterr().err


async def test_a_node_is_drained_and_banned_and_both_are_taken_back(
    admin: Admin, town: House, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await admin("drain", NODE) == 0
    assert f"{NODE} drains: it gets no new seat, and the seat that it has will go to others" in capsys.readouterr().out
    assert await admin("nodes", "--state", "draining", "--json") == 0
    assert [one["node"] for one in json.loads(capsys.readouterr().out)] == [NODE]
    assert await admin("undrain", NODE) == 0
    assert "may take seats" in capsys.readouterr().out
    assert await admin("ban", NODE, "--reason", "it is resold", "--json") == 0
    assert json.loads(capsys.readouterr().out)["banned"] is True
    assert await admin("unban", NODE, "--reason", "it is not") == 0
    (account,) = await town.accounts.all()
    done = [one.action for one in await town.accounts.trail(account.id, None, 4)]
    assert done == ["node.unban", "node.ban", "node.undrain", "node.drain"]


async def test_what_is_wrong_is_named_with_the_way_out(
    admin: Admin, town: House, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit) as wrong:
        main(["admin", "ban", NODE])
    assert wrong.value.code == 2
    assert "--reason" in capsys.readouterr().err
    assert await admin("ban", NODE, "--reason", " ") == 1
    assert "needs a reason" in capsys.readouterr().err
    assert await admin("drain", address("nobody")) == 1
    assert address("nobody") in capsys.readouterr().err
    assert await admin("drain", "../jobs") == 1
    assert "no node" in capsys.readouterr().err
    assert await admin("jobs", "--cancel", "0" * 32) == 2
    assert "--reason" in capsys.readouterr().err
    key = (await member(town, "ada"))["Authorization"].removeprefix("Bearer ")
    monkeypatch.setenv(TOKEN_VARIABLE, key)
    assert await admin("nodes") == 4
    assert "scope operate" in capsys.readouterr().err


async def test_jobs_the_outbox_and_storage_are_shown(
    admin: Admin, town: House, capsys: pytest.CaptureFixture[str]
) -> None:
    job = (await town.cluster.create(msgspec.convert({"spec": spec(await town.dataset())}, NewJob))).id
    assert await admin("jobs") == 0
    told = capsys.readouterr().out
    assert job in told
    assert "Waiting for" in told
    assert await admin("jobs", "--cancel", job, "--reason", "asked by mail", "--json") == 0
    assert json.loads(capsys.readouterr().out)["state"] == "cancelled"
    assert await admin("jobs") == 0
    assert "No such jobs." in capsys.readouterr().out
    assert await admin("outbox") == 0
    told = capsys.readouterr().out
    assert "the ledger refused it each time" in told
    assert "25 h" in told
    assert await admin("outbox", "--state", "open", "--json") == 0
    assert [one["state"] for one in json.loads(capsys.readouterr().out)] == ["sent", "queued"]
    assert await admin("storage") == 0
    told = capsys.readouterr().out
    assert "17 of them" in told
    assert "30 days after a paid job's end" in told
    assert "ab" * 32 in told
    assert await admin("storage", "--job-files", "7", "--uploads", "90", "--json") == 0
    assert (found := json.loads(capsys.readouterr().out))["job_files_days"] == 7
    assert found["uploads_days"] == 90
    assert await admin("storage", "--job-files", "6") != 0
    assert "choose 7 to 3650 days" in capsys.readouterr().err


async def test_too_little_room_is_said(
    admin: Admin, town: House, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    full = msgspec.structs.replace(await town.operation.storage(), free=(5 << 30) - 1)

    async def storage(*_: object) -> AdminStorage:
        return full

    assert await admin("storage") == 0
    assert "uploads are refused" not in capsys.readouterr().out
    monkeypatch.setattr(town.operation, "storage", storage)
    assert await admin("storage") == 0
    assert "uploads are refused" in capsys.readouterr().out
