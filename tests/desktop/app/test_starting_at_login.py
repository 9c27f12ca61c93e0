"""What starts at login: the unit under a real systemd of a user, the window's entry, and what the owner did by hand."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from desktop.agent.app import status
from desktop.agent.app.autostart import ENTRY, UNIT, Autostart
from desktop.agent.app.settings import SettingsChange, SettingsView
from desktop.agent.base.config import Home, Settings
from desktop.agent.errors import AgentError, SettingsError
from desktop.agent.lending.keeper import LendingChange
from tests.desktop.user_systemd import LACKING, UserSystemd, user_systemd

ROOT = Path(__file__).parents[3]
SHIPPED = ROOT / "installer" / "desktop" / "debian" / "cottage-agent.service"
PATIENCE_S = 60.0

needs_systemd = pytest.mark.skipif(bool(LACKING), reason=f"a user's systemd is started with {', '.join(LACKING)}")


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[UserSystemd]:
    """A user's systemd that knows the shipped unit, whose program is the agent of this tree."""
    home = tmp_path / "owner"
    units = home / ".config/systemd/user"
    units.mkdir(parents=True)
    program = home / "cottage-agent"
    agent = Path(__file__).parents[1].joinpath("agent_program.py")
    program.write_text(
        f"#!/bin/sh\nexport PYTHONPATH={ROOT} COTTAGE_PROGRAM={program} COTTAGE_VERSION=0.1.0\n"
        f'exec {sys.executable} {agent} "$@"\n'
    )
    program.chmod(0o755)
    text = SHIPPED.read_text().replace("/opt/cottage/cottage-agent", str(program))
    (units / UNIT).write_text(text.replace("RestartSec=10", "RestartSec=1"))
    with user_systemd(home) as manager:
        if manager is None:
            pytest.skip(f"no systemd of a user starts here: {(home / 'systemd.log').read_text()[-300:]}")
        yield manager


@pytest.fixture
def home(manager: UserSystemd) -> Home:
    home = Home.at(manager.home / ".local/share/cottage/node")
    home.remember(Settings(coordinator="http://127.0.0.1:9", sandbox="process", threads=1, memory_mb=1024, always=True))
    return home


async def answered(home: Home) -> status.AgentStatus:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await status.ask(home.socket)
            except AgentError:
                await asyncio.sleep(0.1)


async def until_unit(manager: UserSystemd, state: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await asyncio.to_thread(manager.ctl, "is-enabled", UNIT) != state:
            await asyncio.sleep(0.1)


async def change(home: Home, **settings: bool) -> None:
    await status.ask_for(home.socket, "settings", SettingsView, SettingsChange(**settings))


@pytest.mark.long
@needs_systemd
async def test_the_unit_is_enabled_with_the_switch_and_disabled_with_it(manager: UserSystemd, home: Home) -> None:
    told = await asyncio.to_thread(manager.run, str(manager.home / "cottage-agent"), "on")
    assert "was started" in told.stdout, told.stderr
    assert (await answered(home)).on
    assert manager.ctl("is-enabled", UNIT) == "enabled"
    assert manager.ctl("is-active", UNIT) == "active"
    await status.ask_lending(home.socket, LendingChange(on=False))
    await until_unit(manager, "disabled")
    assert manager.ctl("is-active", UNIT) == "active"  # It answers the window as before.
    await status.ask_lending(home.socket, LendingChange(on=True))
    await until_unit(manager, "enabled")
    await change(home, at_login=False)
    await until_unit(manager, "disabled")
    await status.ask_lending(home.socket, LendingChange(on=False))
    await status.ask_lending(home.socket, LendingChange(on=True))
    await change(home, at_login=True)
    await until_unit(manager, "enabled")


@needs_systemd
async def test_an_agent_that_is_killed_comes_back_lending_and_one_that_is_stopped_stays_away(
    manager: UserSystemd, home: Home
) -> None:
    home.switch.write_text("on\n")
    manager.ctl("start", UNIT)
    first = (await answered(home)).pid
    assert manager.ctl("show", "--property=MainPID", "--value", UNIT) == str(first)
    manager.ctl("kill", "--signal=SIGKILL", UNIT)
    async with asyncio.timeout(PATIENCE_S):
        while (second := await answered(home)).pid == first:
            await asyncio.sleep(0.1)
    assert second.on
    await asyncio.to_thread(manager.ctl, "stop", UNIT)
    assert manager.ctl("show", "--property=Result", "--value", UNIT) == "success"
    assert not home.socket.exists()
    busy = Home.at(home.path)
    with busy.locked():
        manager.ctl("start", UNIT)
        async with asyncio.timeout(PATIENCE_S):
            while manager.ctl("is-active", UNIT) != "failed":
                await asyncio.sleep(0.1)
    # Beside another agent it does not try again.
    assert manager.ctl("show", "--property=NRestarts", "--value", UNIT) == "0"


@pytest.mark.long
@needs_systemd
async def test_an_agent_that_its_window_has_started_goes_on_as_the_unit(manager: UserSystemd, home: Home) -> None:
    window = await asyncio.to_thread(manager.begin, str(manager.home / "cottage-agent"), "run", "--stay")
    try:
        first = await answered(home)
        assert not first.on
        assert manager.ctl("is-active", UNIT) == "inactive"
        await status.ask_lending(home.socket, LendingChange(on=True))
        async with asyncio.timeout(PATIENCE_S):
            while manager.ctl("is-active", UNIT) != "active":
                await asyncio.sleep(0.1)
            while (second := await answered(home)).pid == first.pid:
                await asyncio.sleep(0.1)
        assert second.on
        assert manager.ctl("show", "--property=MainPID", "--value", UNIT) == str(second.pid)
        assert await asyncio.to_thread(window.wait, PATIENCE_S) == 0
    finally:
        window.kill()
        window.wait()


@pytest.mark.long
@needs_systemd
async def test_an_agent_in_whose_place_the_unit_does_not_start_goes_on_itself(manager: UserSystemd, home: Home) -> None:
    override = manager.home / f".config/systemd/user/{UNIT}.d/broken.conf"
    override.parent.mkdir()
    override.write_text("[Service]\nExecStartPre=/bin/false\n")
    manager.ctl("daemon-reload")
    window = await asyncio.to_thread(manager.begin, str(manager.home / "cottage-agent"), "run", "--stay")
    try:
        first = await answered(home)
        await status.ask_lending(home.socket, LendingChange(on=True))
        log = home.path / "node.log"
        async with asyncio.timeout(PATIENCE_S):
            while not log.exists() or "does not start, so this process goes on" not in log.read_text():
                await asyncio.sleep(0.1)
        second = await answered(home)
        assert (second.pid, second.on) == (first.pid, True)
    finally:
        window.terminate()
        window.wait(PATIENCE_S)


@pytest.mark.long
@needs_systemd
async def test_what_was_disabled_by_hand_is_never_enabled_again(manager: UserSystemd, home: Home) -> None:
    manager.ctl("start", UNIT)
    await answered(home)
    await status.ask_lending(home.socket, LendingChange(on=True))
    await until_unit(manager, "enabled")
    manager.ctl("disable", UNIT)
    await asyncio.to_thread(manager.ctl, "restart", UNIT)
    await answered(home)
    async with asyncio.timeout(PATIENCE_S):
        while home.settings().at_login:
            await asyncio.sleep(0.1)
    manager.ctl("daemon-reload")  # As a new version of the package does.
    for on in (False, True):
        await status.ask_lending(home.socket, LendingChange(on=on))
    await change(home, updates=False)
    await asyncio.sleep(1)
    assert manager.ctl("is-enabled", UNIT) == "disabled"


def test_the_shipped_unit_is_one() -> None:
    text = SHIPPED.read_text()
    assert "ExecStart=/opt/cottage/cottage-agent run --stay\n" in text
    assert "WantedBy=default.target\n" in text


# --- the window's entry -----------------------------------------------------------------------------------------------


@pytest.fixture
def entries(tmp_path: Path) -> Autostart:
    return Autostart(Home.at(tmp_path / "home"), tmp_path / "config", tmp_path / "system")


def test_the_systems_entry_is_hidden_by_one_of_the_owners_and_shown_again(entries: Autostart) -> None:
    (entries.system / ENTRY).parent.mkdir(parents=True)
    (entries.system / ENTRY).write_text("[Desktop Entry]\nExec=/opt/cottage/cottage --hidden\n")
    for _ in range(2):
        entries.show_entry(False)
        assert "Hidden=true" in (entries.config / ENTRY).read_text()
    for _ in range(2):
        entries.show_entry(True)
        assert not (entries.config / ENTRY).exists()
    (entries.config / ENTRY).write_text("[Desktop Entry]\nExec=mine\n")
    entries.show_entry(True)
    assert "Exec=mine" in (entries.config / ENTRY).read_text()  # What the owner wrote is the owner's.


def test_ones_own_entry_is_removed_and_written_where_there_is_a_window(
    entries: Autostart, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    entries.show_entry(True)
    assert not (entries.config / ENTRY).exists()  # Nothing to start, in a source tree.
    monkeypatch.setattr("desktop.agent.app.autostart._window", lambda: tmp_path / "cottage")
    entries.show_entry(True)
    assert f"Exec={tmp_path}/cottage --hidden\n" in (entries.config / ENTRY).read_text()
    entries.show_entry(False)
    assert not (entries.config / ENTRY).exists()


def test_an_agent_of_another_folder_touches_no_unit(entries: Autostart) -> None:
    assert not entries.has_unit()
    entries.follow(wish=True, on=True)
    assert not entries.was_disabled_by_hand()
    with pytest.raises(SettingsError, match="cottage node run --stay"):
        entries.start(wish=True)
