"""The switch against real agent processes, which work for a coordinator double."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QDateTime, QSettings, Qt
from PySide6.QtTest import QTest

from desktop.gui import lending
from desktop.gui.app import Desktop
from desktop.gui.model import AgentPhase
from desktop.gui.pages.welcome import DONE
from desktop.gui.pause_menu import until_tomorrow
from protocol.identity import NodeKey
from protocol.node import Refused
from tests.desktop.conftest import assignment, plan_of
from tests.desktop.gui.conftest import PROGRAM, agent_of, close
from tests.desktop.gui.support import Pulse, save_picture, wait_for

OpenDesktop = Callable[..., Desktop]


def settings(coordinator: Any) -> tuple[str, ...]:
    return ("--coordinator", coordinator.double.url, "--sandbox", "process", "--loopback", "--name", "attic")


def flip(desktop: Desktop) -> None:
    QTest.mouseClick(desktop.window.home.switch, Qt.MouseButton.LeftButton)


def until(desktop: Desktop, headline: str) -> None:
    wait_for(lambda: desktop.window.home.headline.text() == headline, headline)


def test_the_switch_starts_an_agent_and_stops_it(
    open_desktop: OpenDesktop, home: Path, coordinator_thread: Any
) -> None:
    desktop = open_desktop(*settings(coordinator_thread))
    until(desktop, "Lending is off.")
    assert desktop.window.home.reason.text() == "This computer is all yours."
    assert not desktop.window.home.switch.isChecked()
    pulse = Pulse()
    flip(desktop)
    wait_for(desktop.window.home.switch.isChecked, "the switch")
    until(desktop, "Waiting for a job.")
    node = NodeKey.load_or_generate(home / "node.key").address
    assert desktop.window.home.computer.value("address").accessibleName() == f"Address: {node}"
    assert desktop.window.home.computer.value("name").text() == "attic"
    assert agent_of(home) is not None
    pid = agent_of(home)
    flip(desktop)
    wait_for(lambda: not desktop.window.home.switch.isChecked(), "the switch")
    until(desktop, "Lending is off.")
    assert agent_of(home) == pid  # It answers the pages while lending is off.
    assert (home / "switch").read_text() == "off\n"
    assert coordinator_thread.double.goodbyes == ["the owner stopped the agent"]
    assert desktop.window.home.computer.value("name").text() == "attic"
    assert pulse.longest < 700


def test_a_task_is_shown_with_its_place_and_state(
    open_desktop: OpenDesktop, home: Path, coordinator_thread: Any
) -> None:
    desktop, double = open_desktop(*settings(coordinator_thread)), coordinator_thread.double
    window = desktop.window
    until(desktop, "Lending is off.")
    flip(desktop)
    until(desktop, "Waiting for a job.")
    node = NodeKey.load_or_generate(home / "node.key").address
    assign = assignment(double, plan_of((0, 0, node)), 0, 0, "checkpoint")
    coordinator_thread.run(double.assign(node, assign))
    until(desktop, "Lending to “checkpoint”.")
    assert window.home.task.text().startswith("Part 1 of the model · Running")
    assert window.home.meters.isVisible()
    assert desktop.window.home.earnings.number("today").text() == "0.00"
    assert desktop.tray.state.text() == "Lending to “checkpoint”."
    assert desktop.tray.earned.text() == "Earned today 0.00, in all 0.00"
    save_picture(window, "desktop_lending")


def test_a_pause_is_asked_for_in_the_tray_and_ended_in_the_window(
    open_desktop: OpenDesktop, home: Path, coordinator_thread: Any
) -> None:
    desktop, double = open_desktop(*settings(coordinator_thread)), coordinator_thread.double
    assert not desktop.window.home.pause.isVisible()
    assert not desktop.tray.pauses.menuAction().isVisible()
    until(desktop, "Lending is off.")
    flip(desktop)
    until(desktop, "Waiting for a job.")
    tray, window = desktop.tray.pauses, desktop.window.home.pauses
    assert not tray.resume.isVisible()
    assert not tray.now.isVisible(), "nobody uses this computer"
    tray.actions()[1].trigger()
    wait_for(lambda: desktop.window.home.headline.text().startswith("Paused until "), "the pause")
    assert "You asked for a pause" in desktop.window.home.reason.text()
    wait_for(lambda: len(double.goodbyes) == 1, "the goodbye")
    wait_for(lambda: window.resume.isVisible(), "a way back")
    save_picture(desktop.window, "desktop_paused")
    window.resume.trigger()
    until(desktop, "Waiting for a job.")


def test_what_is_to_be_finished_ends_lending_where_nothing_runs(
    open_desktop: OpenDesktop, home: Path, coordinator_thread: Any
) -> None:
    desktop = open_desktop(*settings(coordinator_thread))
    until(desktop, "Lending is off.")
    flip(desktop)
    until(desktop, "Waiting for a job.")
    desktop.tray.pauses.finish.trigger()
    until(desktop, "Lending is off.")
    assert not desktop.window.home.switch.isChecked()


@pytest.mark.parametrize(
    ("now", "hours"), [("2026-03-02T12:00:00", 18), ("2026-03-02T23:30:00", 6.5), ("2026-03-03T00:30:00", 29.5)]
)
def test_a_pause_until_tomorrow_ends_in_the_morning(now: str, hours: float) -> None:
    assert until_tomorrow(QDateTime.fromString(now, Qt.DateFormat.ISODate)) == hours * 3600


def test_an_agent_outlives_its_window_and_the_next_window_stops_it(
    open_desktop: OpenDesktop, home: Path, coordinator_thread: Any
) -> None:
    first = open_desktop(*settings(coordinator_thread))
    until(first, "Lending is off.")
    flip(first)
    until(first, "Waiting for a job.")
    pid = agent_of(home)
    close(first)
    second = open_desktop()
    until(second, "Waiting for a job.")
    assert agent_of(home) == pid is not None
    flip(second)
    until(second, "Lending is off.")
    assert agent_of(home) == pid


def test_an_agent_that_lends_to_nobody_ends_with_the_window_that_started_it(
    open_desktop: OpenDesktop, home: Path, coordinator_thread: Any
) -> None:
    desktop = open_desktop(*settings(coordinator_thread))
    until(desktop, "Lending is off.")
    assert agent_of(home) is not None
    desktop.lending.leave()
    wait_for(lambda: agent_of(home) is None, "the agent's end")


def test_the_agent_lends_again_after_a_restart_where_its_owner_had_switched_it_on(
    open_desktop: OpenDesktop, home: Path, coordinator_thread: Any
) -> None:
    (home / "switch").write_text("on\n")
    desktop = open_desktop(*settings(coordinator_thread))
    until(desktop, "Waiting for a job.")
    assert desktop.window.home.switch.isChecked()


def test_an_agent_from_a_terminal_is_found_and_its_end_is_no_trouble(
    open_desktop: OpenDesktop, home: Path, coordinator_thread: Any
) -> None:
    words = (
        sys.executable,
        str(PROGRAM),
        "run",
        "--always",
        "--home",
        str(home),
        "--threads",
        "1",
        *settings(coordinator_thread),
    )
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as agent:
        # Else the window finds nobody and starts another one, which waits for its turn and lends nothing once this one has ended.
        wait_for(lambda: agent_of(home) == agent.pid and (home / "agent.sock").exists(), "the socket")
        desktop = open_desktop()
        until(desktop, "Waiting for a job.")
        agent.terminate()
        wait_for(lambda: desktop.lending.snapshot.phase is AgentPhase.OFF, "the end")
        until(desktop, "Lending is off.")
        # Its end may be known before nobody answers any more, which was then taken for the first look, and had one started.
        desktop.lending._absent()
        assert desktop.lending.snapshot.phase is AgentPhase.OFF
        assert desktop.window.home.headline.text() == "Lending is off."


def another(home: Path, *before: int | None) -> bool:
    return agent_of(home) not in (None, *before)


def test_a_killed_agent_is_started_again_and_lends_but_not_for_ever(
    open_desktop: OpenDesktop, home: Path, coordinator_thread: Any
) -> None:
    desktop = open_desktop(*settings(coordinator_thread))
    until(desktop, "Lending is off.")
    flip(desktop)
    seen: list[int] = []
    for _ in range(lending.REVIVALS + 1):
        wait_for(lambda: another(home, *seen), "another agent")
        until(desktop, "Waiting for a job.")
        pid = agent_of(home)
        assert pid is not None
        seen.append(pid)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: desktop.window.home.headline.text() != "Waiting for a job.", "the end is seen")
    until(desktop, "The agent does not run.")
    assert str(home / "agent.log") in desktop.window.home.reason.accessibleName()
    assert not desktop.window.home.switch.isChecked()
    flip(desktop)
    until(desktop, "Waiting for a job.")
    assert another(home, *seen)


@pytest.mark.long
def test_an_agent_that_does_not_answer_is_ended_and_started_again_by_a_button(
    open_desktop: OpenDesktop, home: Path, coordinator_thread: Any
) -> None:
    desktop = open_desktop(*settings(coordinator_thread))
    until(desktop, "Lending is off.")
    flip(desktop)
    until(desktop, "Waiting for a job.")
    pid, button = agent_of(home), desktop.window.home.anew
    assert pid is not None
    assert not button.isVisible()
    os.kill(pid, signal.SIGSTOP)
    until(desktop, "The agent needs your attention.")
    assert button.isVisible()
    save_picture(desktop.window, "desktop_agent_hangs")
    QTest.mouseClick(button, Qt.MouseButton.LeftButton)
    until(desktop, "Waiting for a job.")
    assert another(home, pid)
    assert not button.isVisible()


def test_a_coordinator_that_goes_away_is_told_with_the_agents_reason(
    open_desktop: OpenDesktop, coordinator_thread: Any
) -> None:
    desktop = open_desktop(*settings(coordinator_thread))
    until(desktop, "Lending is off.")
    flip(desktop)
    until(desktop, "Waiting for a job.")
    coordinator_thread.run(coordinator_thread.double.stop())
    until(desktop, "Not connected.")
    assert desktop.window.home.reason.text()
    assert desktop.window.home.switch.isChecked()


def test_what_the_agent_cannot_do_is_said(open_desktop: OpenDesktop, home: Path) -> None:
    desktop = open_desktop()
    until(desktop, "Lending is off.")
    flip(desktop)
    wait_for(lambda: "no network is set" in desktop.window.home.reason.text(), "the reason")
    assert not desktop.window.home.switch.isChecked()


def test_a_coordinator_that_refuses_this_computer_switches_it_off_and_is_told(
    open_desktop: OpenDesktop, home: Path, coordinator_thread: Any
) -> None:
    coordinator_thread.double.refusal = Refused("this version is too old")
    desktop = open_desktop(*settings(coordinator_thread))
    until(desktop, "Lending is off.")
    flip(desktop)
    until(desktop, "Lending has stopped.")
    assert "this version is too old" in desktop.window.home.reason.text()
    assert not desktop.window.home.switch.isChecked()
    assert agent_of(home) is not None


def test_a_second_agent_for_the_same_folder_ends_and_the_first_is_shown(
    open_desktop: OpenDesktop, home: Path, coordinator_thread: Any
) -> None:
    desktop = open_desktop(*settings(coordinator_thread))
    other = open_desktop()
    wait_for(lambda: "already runs with" in (home / "agent.log").read_text(), "the end of the second")
    for window in (desktop, other):
        wait_for(lambda window=window: window.lending.snapshot.phase is AgentPhase.RUNNING, "both see the first")


def test_a_program_that_is_not_there_is_named(app: object, home: Path, tmp_path: Path) -> None:
    window = QSettings(str(tmp_path / "window.ini"), QSettings.Format.IniFormat)
    window.setValue(DONE, True)
    desktop = Desktop(home, (str(home / "no-such-program"),), window)
    until(desktop, "The agent does not run.")
    assert "no-such-program cannot be started with its log in" in desktop.window.home.reason.accessibleName()
    close(desktop)
