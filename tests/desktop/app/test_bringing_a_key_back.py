"""A backup or the 24 words come back through the agent's socket, as the window asks for it."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from desktop.agent.app import backup, status
from desktop.agent.app.status import RestoreOrder
from desktop.agent.base.config import Home, Settings
from desktop.agent.errors import AgentError, SettingsError
from desktop.agent.lending.keeper import load, store
from desktop.agent.lending.rules import Rules
from desktop.answers import BackupDone
from protocol.identity import NodeKey
from protocol.node import JobEarned
from tests.desktop.app.test_agent_as_a_process import PROGRAM, ROOT
from tests.desktop.app.test_backup_of_a_node import cheap
from tests.desktop.app.test_owner_of_an_agent import home, serving
from tests.desktop.coordinator_double import Double

__all__ = ["cheap", "home"]

PASSPHRASE = "correct horse"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A backup of a larger computer with a card that is not here."""
    old = Home.at(tmp_path / "old")
    old.remember(Settings(coordinator="https://cottage.example", gpu="GPU-5d1c0e2a-1111", threads=1000, name="attic"))
    store(old.lending, Rules(idle_minutes=11), 0.0)
    backup.write(old, tmp_path / "attic.cottage", PASSPHRASE)
    return tmp_path / "attic.cottage"


async def ask(home: Home, **order: str) -> str:
    return (await status.ask_for(home.socket, "restore", BackupDone, RestoreOrder(**order))).address


async def node_of(home: Home) -> str | None:
    """Whom an agent says to be; None: none answers, as between two lives."""
    try:
        return (await status.ask(home.socket)).node
    except AgentError:
        return None


async def test_a_new_computer_becomes_the_one_of_the_backup_in_the_same_process(file: Path, tmp_path: Path) -> None:
    home = Home.at(tmp_path / "new")
    fresh, wanted = home.key().address, Home.at(tmp_path / "old").key().address
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(PROGRAM),
        "run",
        "--stay",
        "--sandbox",
        "process",
        "--home",
        str(home.path),
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(40):
            while await node_of(home) != fresh:  # Its socket is there a moment before it answers.
                await asyncio.sleep(0.05)
            assert await ask(home, file=str(file), passphrase=PASSPHRASE) == wanted
            while await node_of(home) != wanted:
                await asyncio.sleep(0.05)
            told = await status.ask(home.socket)
        assert (told.pid, told.name, told.on) == (process.pid, "attic", False)
        assert NodeKey.load(home.path / f"node-{fresh}.key").address == fresh, "nothing is lost"
    finally:
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), 20)
    kept = home.settings()
    assert (kept.coordinator, kept.gpu, kept.threads) == ("https://cottage.example", 0, 0)
    assert load(home.lending).rules == Rules(idle_minutes=11)


async def test_the_words_do_the_same_and_keep_this_computers_settings(
    home: Home, coordinator: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = NodeKey(b"\7" * 32)
    async with serving(home, monkeypatch) as service:
        assert await ask(home, words=backup.to_words(key)) == key.address
        assert service.after.kind == "anew"
    assert home.key().address == key.address
    assert home.settings().coordinator == coordinator.url


async def test_what_cannot_be_brought_back_changes_nothing(
    home: Home, coordinator: Double, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = home.key().address
    async with serving(home, monkeypatch) as service:
        for order, why in (
            ({"file": str(file), "passphrase": "another one"}, "does not open"),
            ({"file": str(file) + "x", "passphrase": PASSPHRASE}, "cannot be read"),
            ({"words": "abandon " * 24}, "do not belong together"),
            ({}, "cannot be read"),
        ):
            with pytest.raises(SettingsError, match=why):
                await ask(home, **order)
        service.desk.books.earnings.record("https://c.example", JobEarned("ab" * 16, 5, 0, ""), time.time())
        with pytest.raises(SettingsError, match="has earned on this computer"):
            await ask(home, file=str(file), passphrase=PASSPHRASE)
        service.desk.on = True
        with pytest.raises(SettingsError, match="switch lending off first"):
            await ask(home, file=str(file), passphrase=PASSPHRASE)
        service.desk.on = False
        assert service.after.kind == "end"
    assert home.key().address == address
    assert not list(home.path.glob("node-*.key"))
