"""``cottage accounts`` over a real database, and what its keys open."""

import asyncio
import io
import json
from pathlib import Path

import pytest

from common.clock import SystemClock
from coordinator.admin.cli import main
from coordinator.domain.account import Role, Scope
from coordinator.errors import UnauthorisedError
from coordinator.services.accounts.accounts import AccountService
from coordinator.store.sql import SqlStore


async def accounts_of(folder: Path) -> tuple[SqlStore, AccountService]:
    store = await SqlStore.open(f"sqlite+aiosqlite:///{folder / 'coordinator.db'}")
    return store, AccountService(store, SystemClock())


def say(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text + "\n"))


def test_a_folder_without_a_coordinator_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path), "list"]) == 1
    assert str(tmp_path) in capsys.readouterr().err
    assert not (tmp_path / "coordinator.db").exists()


def test_an_operator_makes_accounts_and_keys_and_ends_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store, _ = asyncio.run(accounts_of(tmp_path))
    asyncio.run(store.close())
    here = ["--data", str(tmp_path)]
    for name in ("Root", "Ada"):
        say(monkeypatch, "a password for the test")
        assert main([*here, "add", name, "--password-stdin"]) == 0
    say(monkeypatch, "short")
    assert main([*here, "add", "Bob", "--password-stdin"]) == 1
    assert "10 to 200" in capsys.readouterr().err
    assert main([*here, "list", "--json"]) == 0
    listed = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert {name: one["role"] for name, one in listed.items()} == {"Root": "operator", "Ada": "submitter"}
    assert main([*here, "key", "ada", "--scope", "jobs:read"]) == 0
    text = capsys.readouterr().out.strip()
    assert main([*here, "key", "ada", "--scope", "operate"]) == 1, "nobody gets more than the account has"
    assert main([*here, "key", "nobody"]) == 1

    async def who() -> frozenset[Scope]:
        opened, accounts = await accounts_of(tmp_path)
        try:
            return (await accounts.by_key(text)).scopes
        finally:
            await opened.close()

    assert asyncio.run(who()) == {Scope.JOBS_READ}
    assert main([*here, "disable", "Ada"]) == 0
    with pytest.raises(UnauthorisedError):
        asyncio.run(who())
    assert main([*here, "enable", "Ada"]) == 0
    assert main([*here, "role", "Ada", Role.OPERATOR]) == 0
    say(monkeypatch, "another password, longer")
    assert main([*here, "password", "Ada", "--password-stdin"]) == 0
    assert asyncio.run(who()) == {Scope.JOBS_READ}


def test_a_password_that_nobody_types_is_asked_for_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store, _ = asyncio.run(accounts_of(tmp_path))
    asyncio.run(store.close())

    def ended(_: str) -> str:
        raise EOFError

    monkeypatch.setattr("getpass.getpass", ended)
    assert main(["--data", str(tmp_path), "add", "Ada"]) == 2
    assert capsys.readouterr().err == "cottage accounts: nobody has answered: the input is at its end\n"
