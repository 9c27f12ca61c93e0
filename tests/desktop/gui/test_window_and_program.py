"""The window by keyboard and screen reader, what it remembers, and the program around it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QEvent, QSettings, Qt
from PySide6.QtGui import QAccessible, QColor, QGuiApplication
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QAbstractButton, QApplication, QLabel, QWidget

from desktop.gui import lending
from desktop.gui.app import Desktop, wear
from desktop.gui.client import Calls
from desktop.gui.model import AgentPhase, Snapshot, read_status
from desktop.gui.pages.welcome import DONE
from desktop.gui.sentences import Mood
from desktop.gui.theme import DARK, LIGHT, Theme, mood_icon
from desktop.gui.widgets import Text
from desktop.gui.window import EARNINGS, HOME, USUAL_HEIGHT, USUAL_WIDTH, MainWindow
from tests.desktop.gui.conftest import ROOT
from tests.desktop.gui.support import http, listener, save_picture, status, task, wait_for

OpenDesktop = Callable[..., Desktop]


def running(**changes: object) -> Snapshot:
    return Snapshot(AgentPhase.RUNNING, read_status(status(**changes)))


@pytest.fixture
def window(app: QApplication, tmp_path: Path) -> Iterator[MainWindow]:
    settings = QSettings(str(tmp_path / "window.ini"), QSettings.Format.IniFormat)
    settings.setValue(DONE, True)
    made = MainWindow(settings, lambda: False, Calls(tmp_path / "agent.sock"))
    made.show_snapshot(running(tasks=[task()]))
    made.show()
    QTest.qWaitForWindowActive(made)
    yield made
    made.hide()
    made.deleteLater()
    QApplication.sendPostedEvents(made, QEvent.Type.DeferredDelete)


def controls(window: MainWindow) -> set[QWidget]:
    return {control for control in window.findChildren(QAbstractButton) if control.isVisible() and control.isEnabled()}


def test_every_control_is_reached_by_the_tab_key(window: MainWindow) -> None:
    reached = set()
    assert QApplication.focusWidget() is window.home.switch
    for _ in range(20):
        reached.add(QApplication.focusWidget())
        QTest.keyClick(QApplication.focusWidget(), Qt.Key.Key_Tab)
    by_arrows = {part for part in controls(window) if part.property("role") == "page" and not part.isChecked()}
    assert len(by_arrows) == 3  # Pages that are not shown: arrow keys go there from the one that is.
    assert reached - {window.home.earnings.bars} == controls(window) - by_arrows
    assert {window.home.switch, window.home.pause, window.home.copy, window.home.earnings.withdraw} <= reached
    assert window.home.earnings.bars in reached


def test_the_space_bar_asks_for_a_change_and_the_switch_waits_for_it(window: MainWindow) -> None:
    asked: list[bool] = []
    window.toggle_asked.connect(lambda: asked.append(True))
    QTest.keyClick(window.home.switch, Qt.Key.Key_Space)
    assert asked == [True]
    assert window.home.switch.isChecked()
    window.show_snapshot(Snapshot(AgentPhase.STOPPING))
    assert not window.home.switch.isChecked()


def test_a_screen_reader_hears_every_control_and_every_text(window: MainWindow) -> None:
    switch = QAccessible.queryAccessibleInterface(window.home.switch)
    assert switch.role() is QAccessible.Role.CheckBox
    assert switch.text(QAccessible.Text.Name) == "Lend this computer"
    assert "Lending to “tiny-llama”." in switch.text(QAccessible.Text.Description)
    assert switch.state().checked
    for part in (*controls(window), *window.findChildren(QLabel)):
        if part.isVisible():
            assert QAccessible.queryAccessibleInterface(part).text(QAccessible.Text.Name).strip(), part
    assert window.home.earnings.number("today").accessibleName() == "Today: 1.24"
    assert window.home.task.accessibleName() == "Job: Part 2 of the model · Running · Round 12 · 1.2 MB/s"
    assert window.home.task.accessibleDescription() == "Stage 1, replica 0 · step 345 · loss 2.312"
    heat = QAccessible.queryAccessibleInterface(window.home.gauges["heat"])
    assert (heat.text(QAccessible.Text.Name), heat.text(QAccessible.Text.Description)) == (
        "Temperature",
        "67 °C limit 78 °C",
    )


def test_the_address_is_copied_by_keyboard(window: MainWindow) -> None:
    window.home.copy.setFocus()
    QTest.keyClick(window.home.copy, Qt.Key.Key_Space)
    assert QGuiApplication.clipboard().text() == read_status(status()).node


def test_without_a_tray_closing_the_window_ends_the_program(window: MainWindow) -> None:
    ended: list[bool] = []
    window.quit_asked.connect(lambda: ended.append(True))
    QTest.keyClick(window, Qt.Key.Key_W, Qt.KeyboardModifier.ControlModifier)
    assert ended == [True]
    assert not window.isVisible()


def test_with_a_tray_closing_hides_and_the_key_still_quits(app: QApplication, tmp_path: Path) -> None:
    settings = QSettings(str(tmp_path / "window.ini"), QSettings.Format.IniFormat)
    window, said = MainWindow(settings, lambda: True, Calls(tmp_path / "agent.sock")), []
    window.went_to_tray.connect(lambda: said.append("tray"))
    window.quit_asked.connect(lambda: said.append("quit"))
    window.seen.connect(said.append)
    window.show()
    window.close()
    assert said == [True, False, "tray"]
    window.bring_forward()
    QTest.qWaitForWindowActive(window)
    QTest.keyClick(window, Qt.Key.Key_Q, Qt.KeyboardModifier.ControlModifier)
    assert said[-1] == "quit"
    window.hide()


def test_the_window_comes_back_as_it_was_left(app: QApplication, tmp_path: Path) -> None:
    settings = QSettings(str(tmp_path / "window.ini"), QSettings.Format.IniFormat)
    calls = Calls(tmp_path / "agent.sock")
    first = MainWindow(settings, lambda: False, calls)
    first.show()
    first.setGeometry(40, 50, 500, 432)
    wait_for(lambda: settings.value("window/geometry"), "saved without being closed")
    second = MainWindow(settings, lambda: False, calls)
    assert (second.width(), second.height()) == (500, 432)
    settings.setValue("window/geometry", b"nonsense")
    assert MainWindow(settings, lambda: False, calls).width() == USUAL_WIDTH


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_every_text_stands_out_from_its_ground(theme: Theme) -> None:
    def luminance(name: str) -> float:
        parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in QColor(name).getRgbF()[:3]]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    def contrast(one: str, other: str) -> float:
        dark, light = sorted((luminance(one), luminance(other)))
        return (light + 0.05) / (dark + 0.05)

    for ground in (theme.card, theme.ground):
        assert contrast(theme.text, ground) >= 4.5
        assert contrast(theme.dim, ground) >= 4.5
        assert min(contrast(theme.mood(mood).name(), ground) for mood in Mood) >= 3
    assert contrast(theme.on_brand, theme.brand) >= 4.5


def test_the_states_differ_in_shape_not_only_in_colour(app: QApplication) -> None:
    shapes = set()
    for mood in Mood:
        picture = mood_icon(mood, LIGHT).pixmap(32, 32).toImage()
        shapes.add(tuple(picture.pixelColor(x, y).alpha() > 128 for x in range(32) for y in range(32)))
        if mood is Mood.LENDING:  # Its tick is cut out of a filled disc.
            assert picture.pixelColor(16, 10).alpha() > 128
    assert len(shapes) == len(Mood)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"trouble": "no engine answers"}, ["No engine answers."]),
        (
            {"trouble": "x", "trouble_cause": "unanswered", "trouble_detail": {"days": "30", "percent": "5"}},
            [
                "when an audit asked for it",
                "No other job is taken",
                "within 30 days costs 5 % of this computer's stake.",
            ],
        ),
        (
            {
                "trouble": "x",
                "trouble_cause": "tampered",
                "trouble_detail": {"days": "30", "percent": "2", "what": "exec"},
            },
            ["Somebody reached into a job on this computer: exec. No other job", "within 30 days costs 2 %"],
        ),
        (
            {"trouble": "x", "trouble_cause": "failures", "trouble_detail": {"jobs": "5", "what": "no memory"}},
            ["5 jobs in a row failed before their first step; the last one: no memory."],
        ),
        (
            {"trouble": "x", "trouble_cause": "no engine", "trouble_detail": {"why": "stopped"}},
            [
                "Docker is installed, and does not run. Jobs run only inside Docker",
                "goes on by itself once it answers.",
            ],
        ),
        ({"trouble": "x", "trouble_cause": "no image"}, ["is not here yet. Lending goes on by itself once it is."]),
        ({"trouble": "x\u202ey", "trouble_cause": "of a newer agent"}, ["X\N{REPLACEMENT CHARACTER}y."]),
    ],
    ids=["in the agent's words", "unanswered", "tampered", "failures", "no engine", "no image", "unknown"],
)
def test_why_lending_went_off_is_said_in_whole_sentences(window: MainWindow, changes: dict, says: list[str]) -> None:
    window.show_snapshot(running(on=False, **changes))
    told = window.home.reason.text()
    assert all(part in told for part in says), told


@pytest.mark.parametrize(
    ("changes", "headline"),
    [
        ({"state": "starting"}, "Getting ready."),
        ({"state": "off"}, "Getting ready."),
        ({"state": "off", "on": False}, "Lending is off."),
        ({"state": "online", "on": False}, "Stopping."),
        ({"trouble": "no Docker engine"}, "Jobs cannot run here yet."),
        ({"trouble": "five jobs in a row failed", "on": False}, "Lending has stopped."),
        ({"lending_state": "paused", "reasons": [{"cause": "game", "detail": "bg3"}]}, "Paused."),
        ({"state": "away", "reasons": [{"cause": "temperature", "detail": "79"}]}, "Paused."),
        ({"state": "connecting"}, "Not connected."),
        ({"state": "refused", "reason": "too old"}, "The coordinator refuses this computer."),
        ({"state": "stopping"}, "Stopping."),
        ({}, "Waiting for a job."),
        ({"tasks": [task(state="failed", reason="out of memory")]}, "Waiting for a job."),
        ({"tasks": [task(state="fetching")]}, "Preparing “tiny-llama”."),
        ({"tasks": [task(state="fetching", fetched=0.4)]}, "Preparing “tiny-llama”."),
        ({"tasks": [task(serves=True, loads=True, job_name="moo")]}, "Loading “moo”."),
        ({"tasks": [task(stage=None, replica=None)]}, "Standing by for “tiny-llama”."),
        ({"tasks": [task(serves=True, job_name="moo"), task()]}, "Answering for “moo”."),
        ({"tasks": [task(state="ended"), task(state="starting"), task(job_name="b")]}, "Lending to “b”."),
    ],
)
def test_each_state_has_its_sentence_and_a_reason(window: MainWindow, changes: dict, headline: str) -> None:
    window.show_snapshot(running(**changes))
    assert window.home.headline.text() == headline
    assert window.home.reason.text().strip()


def test_a_model_that_answers_is_no_part_and_does_not_train(window: MainWindow) -> None:
    window.show_snapshot(running(tasks=[task(serves=True, stage=0, round=None, step=None, loss=None)]))
    assert window.home.reason.text() == "Your computer holds this model and answers with it."
    assert "The whole model" in window.home.task.text()
    assert "Answering" in window.home.task.text()


def test_a_model_that_is_fetched_or_loaded_does_not_answer_yet(window: MainWindow) -> None:
    window.show_snapshot(running(tasks=[task(serves=True, state="fetching", fetched=0.42)]))
    assert window.home.reason.text() == "Fetching its files: 42 % are here."
    assert "Fetching its files, 42 %" in window.home.task.text()
    window.show_snapshot(running(tasks=[task(serves=True, loads=True)]))
    assert window.home.reason.text() == "Your computer reads this model into its memory, and answers with it then."
    assert "Loading the model" in window.home.task.text()
    assert "Answering" not in window.home.task.text()


def test_a_part_of_a_model_that_answers_is_called_one_of_so_many(window: MainWindow) -> None:
    part = task(serves=True, stage=1, stages=3, round=None, step=None, loss=None)
    window.show_snapshot(running(tasks=[part]))
    assert "holds part 2 of 3 of this model, and answers together with others" in window.home.reason.text()
    assert "Part 2 of 3 of the model" in window.home.task.text()
    assert window.home.task.accessibleDescription().startswith("Stage 2, replica 1"), "as its page counts them"
    window.show_snapshot(running(tasks=[part | {"waits": True}]))
    assert window.home.headline.text() == "Waiting for the others of “tiny-llama”."
    assert "Nothing is earned meanwhile." in window.home.reason.text()
    assert "Ready, waits for the others" in window.home.task.text()
    window.show_snapshot(running(tasks=[part, task()]))
    assert "Other tasks that it works on: 1." in window.home.reason.text()


def test_a_failed_task_is_shown_with_its_reason(window: MainWindow) -> None:
    window.show_snapshot(running(tasks=[task(state="failed", reason="out of memory")]))
    assert "Failed: out of memory" in window.home.task.text()


def test_the_tray_menu_is_short_and_follows_the_state(open_desktop: OpenDesktop, home: Path) -> None:
    with listener(home / "agent.sock", http(status(tasks=[task(), task()]))):
        desktop = open_desktop()
        tray = desktop.tray

        def rows() -> list[str]:
            return [row.text() for row in tray.menu.actions() if row.isVisible() and not row.isSeparator()]

        assert rows() == ["Lending is off.", "&Start lending", "&Open Cottage", "S&ettings…", "&Quit"]
        wait_for(lambda: len(rows()) == 7, "an answer")
        assert rows() == [
            "Lending to “tiny-llama”.",
            "Earned today 1.24, in all 153.24",
            "&Stop lending",
            "&Pause",
            "&Open Cottage",
            "S&ettings…",
            "&Quit (lending goes on)",
        ]
        assert (
            desktop.window.home.reason.text()
            == "Your computer is training a part of this model. Other tasks that it works on: 1."
        )


@pytest.mark.parametrize("scheme", [Qt.ColorScheme.Dark, Qt.ColorScheme.Light], ids=["dark", "light"])
def test_the_window_wears_the_colours_of_the_desktop(
    open_desktop: OpenDesktop, home: Path, scheme: Qt.ColorScheme
) -> None:
    with listener(home / "agent.sock", http(status(tasks=[task()]))):
        desktop = open_desktop()
        wait_for(lambda: desktop.lending.snapshot.phase is AgentPhase.RUNNING, "an answer")
        desktop.recolour(scheme)
        theme = DARK if scheme is Qt.ColorScheme.Dark else LIGHT
        window = desktop.window
        wait_for(lambda: window.grab().toImage().pixelColor(3, 3) == QColor(theme.ground), "the ground")
        save_picture(window, f"desktop_status_{scheme.name.lower()}")
        head = window.home.switch.mapTo(window, window.home.switch.rect().center())
        assert window.grab().toImage().pixelColor(head.x() - 20, head.y()) == QColor(theme.lending)


def test_a_window_of_the_usual_size_needs_no_scrolling(window: MainWindow) -> None:
    wear(LIGHT)  # As the program does: the style's buttons are taller.
    area = window.areas[HOME]
    window.resize(USUAL_WIDTH, USUAL_HEIGHT)  # The screen of these tests is too small for it.
    wait_for(lambda: area.verticalScrollBar().maximum() == 0, "everything in sight")
    window.resize(window.minimumSize())
    wait_for(lambda: area.verticalScrollBar().maximum() > 0, "a scroll bar")
    assert window.home.width() <= area.viewport().width()


def test_an_agent_that_lives_but_no_longer_answers_is_told(
    open_desktop: OpenDesktop, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lending, "STOP_PATIENCE_MS", 200)
    with listener(home / "agent.sock", http(status())):
        desktop = open_desktop()
        wait_for(lambda: desktop.lending.snapshot.phase is AgentPhase.RUNNING, "running")
    for phase in (AgentPhase.STOPPING, AgentPhase.TROUBLE):
        wait_for(lambda phase=phase: desktop.lending.snapshot.phase is phase, phase.value)
    assert "Flip the switch" in desktop.window.home.reason.text()
    (home / "agent.sock").unlink()
    with listener(home / "agent.sock", http(status())):
        wait_for(lambda: desktop.lending.snapshot.phase is AgentPhase.RUNNING, "running again")


def test_no_label_of_the_window_reads_markup(window: MainWindow) -> None:
    assert all(isinstance(label, Text) for label in window.findChildren(QLabel))


# --- the program ------------------------------------------------------------------------------------------------------


def start_program(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        (sys.executable, "-m", "desktop.gui.app", *words), cwd=ROOT, stderr=subprocess.PIPE, text=True
    )


def test_the_program_opens_once_and_ends_when_it_is_asked_to(app: QApplication, home: Path) -> None:
    with start_program("--home", str(home)) as first:
        wait_for(lambda: (home / "window.sock").exists(), "the window")
        with start_program("--home", str(home), "--hidden") as second:
            wait_for(lambda: second.poll() is not None, "the second start")
            assert second.returncode == 0
        assert first.poll() is None
        first.send_signal(signal.SIGTERM)
        wait_for(lambda: first.poll() is not None, "the end")
        assert first.returncode == 0
        assert first.stderr is not None
        assert "Traceback" not in first.stderr.read()


def test_a_folder_that_cannot_be_used_is_told_in_a_window(app: QApplication, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    asked = f"""
import sys
from PySide6.QtWidgets import QMessageBox
from desktop.gui import app
QMessageBox.exec = lambda box: print(box.text())
sys.exit(app.main(["--home", {str(tmp_path / "file" / "node")!r}]))"""
    done = subprocess.run((sys.executable, "-c", asked), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert str(tmp_path / "file" / "node") in done.stdout
    assert "Not a directory" in done.stdout
    assert "Traceback" not in done.stderr


def test_without_a_screen_the_program_says_how_to_lend(home: Path) -> None:
    bare = {name: value for name, value in os.environ.items() if name not in ("QT_QPA_PLATFORM", "DISPLAY")}
    bare.pop("WAYLAND_DISPLAY", None)
    words = (sys.executable, "-m", "desktop.gui.app", "--home", str(home))
    done = subprocess.run(words, cwd=ROOT, env=bare, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 3
    assert "cottage node run" in done.stderr


def test_the_window_loads_neither_the_agent_nor_a_network_nor_asyncio() -> None:
    banned = ("asyncio", "aiohttp", "ssl", "desktop.agent", "torch", "cryptography", "solders")
    # Texts of strangers made safe; they talk to nobody.
    words = {
        "transport",
        "common.untrusted_text",
        "common.terminal",
    }
    code = f"""import sys, desktop.gui.app
found = [name for name in {banned} if name in sys.modules]
print(found + sorted({{name for name in sys.modules if name.split(".")[0] == "transport"}} - {words}))"""
    done = subprocess.run(
        (sys.executable, "-c", code), cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_jobs_column_gives_room_back_when_the_window_narrows(window: MainWindow) -> None:
    table = window.earnings.table
    table.setRowCount(1)
    for width in (1000, 420, 1000):
        window.resize(width, 600)
        window.go(EARNINGS)
        window.show()
        QTest.qWait(50)
        others = sum(table.columnWidth(column) for column in range(1, table.columnCount()))
        room = table.viewport().width() - others
        assert table.columnWidth(0) == max(table.MIN_NAME, room)
    assert room > table.MIN_NAME
