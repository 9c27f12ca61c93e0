"""The pages against an agent that says what a test wants: what they show, what they ask for, and what they take back."""

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QEvent, QPoint, QSettings, Qt, QTranslator
from PySide6.QtGui import QAccessible, QGuiApplication
from PySide6.QtTest import QTest
from PySide6.QtWidgets import (
    QAbstractButton,
    QApplication,
    QComboBox,
    QLabel,
    QLineEdit,
    QPushButton,
    QSpinBox,
    QWidget,
)

from desktop.answers import ActivityEvent, EarningsSummary
from desktop.gui.app import Desktop
from desktop.gui.charts import Bar, Bars, Gauge, HoursGrid, Reading
from desktop.gui.client import Calls
from desktop.gui.model import AgentPhase, read
from desktop.gui.notices import notice_key, notice_of
from desktop.gui.pages.money import table_of
from desktop.gui.pages.welcome import DONE
from desktop.gui.sentences import moment
from desktop.gui.window import ACTIVITY, EARNINGS, HOME, SETTINGS, WELCOME
from installer.desktop import translations
from tests.desktop.gui.support import agent, documents, listener, save_picture, status, task, wait_for

OpenDesktop = Callable[..., Desktop]
Orders = list[tuple[str, Any]]
TARGET = "4Nd1mBQtrMJVYVfKf2PJy9NZUZdTAsp7D4xWLs4gDB4T"


class Opened:
    """A window on an agent of documents, and what it has asked for."""

    def __init__(self, desktop: Desktop, docs: dict[str, bytes], orders: Orders) -> None:
        self.desktop, self.window, self.docs, self.orders = desktop, desktop.window, docs, orders

    def ordered(self, name: str) -> list[Any]:
        return [order for target, order in self.orders if target == name]


@pytest.fixture
def opened(open_desktop: OpenDesktop, home: Path) -> Iterator[Opened]:
    docs, orders = documents(), Orders()
    with listener(home / "agent.sock", lambda caller: agent(docs, orders)(caller)):
        desktop = open_desktop()
        wait_for(lambda: desktop.lending.snapshot.phase is AgentPhase.RUNNING, "an answer")
        yield Opened(desktop, docs, orders)
        desktop.lending._timer.stop()
        wait_for(lambda: not desktop.notices._calls._now, "the last answer")


# --- earnings ---------------------------------------------------------------------------------------------------------


def test_the_first_page_shows_sums_and_a_bar_a_day(opened: Opened) -> None:
    card = opened.window.home.earnings
    assert [card.number(key).text() for key in ("today", "week", "verified", "open")] == [
        "1.24",
        "9.87",
        "153.24",
        "10.04",
    ]
    wait_for(lambda: card.bars.accessibleDescription(), "the bars")
    assert card.bars.accessibleDescription().count(",") == 6


def test_each_job_is_a_row_with_its_stand_its_reason_and_its_proof(opened: Opened) -> None:
    page = opened.window.earnings
    opened.window.go(EARNINGS)
    wait_for(lambda: page.table.rowCount() == 6, "the jobs and the reasons of two")
    jobs, reasons = (0, 1, 3, 4), (2, 5)
    stands = [page.table.item(row, 5).text() for row in jobs]
    assert stands == ["▶ Working", "… Pending", "✓ Paid", "✕ Not paid"]
    told = [page.table.item(row, 0).text() for row in reasons]
    assert told[0] == "4 shares, 1.24: Verified. It is paid once it is worth the ledger's fee."
    assert told[1] == "It failed on this computer: out of memory"
    assert [page.table.columnSpan(row, 0) for row in reasons] == [6, 6], "without a choice, across the table"
    heard = page.table.item(4, 5).data(Qt.ItemDataRole.AccessibleTextRole)
    assert heard == "✕ Not paid. It failed on this computer: out of memory"
    for row, said in zip((1, 4), told, strict=True):
        page.table.selectRow(row)
        assert page.why.text().replace("\u200b", "") == said
    QTest.mouseClick(page.copy, Qt.MouseButton.LeftButton)
    assert QGuiApplication.clipboard().text() == "cottage ledger check " + "03" * 16
    assert len(page.bars._bars) == 7
    QTest.mouseClick(page.span.findChildren(QAbstractButton)[1], Qt.MouseButton.LeftButton)
    assert len(page.bars._bars) == 30


def test_the_table_is_saved_exactly_and_runs_nothing_in_a_spreadsheet() -> None:
    docs = json.loads(documents()["earnings"])
    docs["jobs"][0]["name"] = '=HYPERLINK("http://x")'
    text = table_of(read(json.dumps(docs).encode(), EarningsSummary))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert rows[0]["name"] == '\'=HYPERLINK("http://x")'
    assert (rows[1]["verified"], rows[1]["paid"], rows[3]["standing"]) == ("1.24", "0", "not paid")


# --- activity ---------------------------------------------------------------------------------------------------------


def test_what_happened_is_told_in_plain_words_and_filtered(opened: Opened) -> None:
    page = opened.window.activity
    opened.window.go(ACTIVITY)
    wait_for(lambda: page.list.count() == 7, "the events")
    texts = [page.list.item(row).text() for row in range(7)]
    assert texts[2].endswith("·  Paused: bg3 was started.")
    assert texts[4].endswith("!  Work on “qwen3 (LoRA)” failed: out of memory")
    buttons = page.filter.findChildren(QAbstractButton)
    counts = []
    for one in buttons:
        QTest.mouseClick(one, Qt.MouseButton.LeftButton)
        counts.append(page.list.count())
    assert counts == [7, 1, 2, 2]


def test_a_report_for_support_is_copied_and_can_be_read_before(opened: Opened) -> None:
    page = opened.window.activity
    opened.window.go(ACTIVITY)
    QTest.mouseClick(page.look, Qt.MouseButton.LeftButton)
    wait_for(lambda: page.report.toPlainText().startswith("Cottage 0.1.0"), "the report")
    QTest.mouseClick(page.copy, Qt.MouseButton.LeftButton)
    wait_for(lambda: QGuiApplication.clipboard().text().startswith("Cottage 0.1.0"), "the copy")


# --- settings ---------------------------------------------------------------------------------------------------------


def settings_of(opened: Opened) -> Any:
    page = opened.window.settings
    opened.window.go(SETTINGS)
    wait_for(lambda: page.row("limits", "up").shown == 5, "the agent's limits")
    return page


def test_a_change_is_asked_for_at_once_and_undone_by_a_click(opened: Opened) -> None:
    page = settings_of(opened)
    box = page.row("rules", "idle_minutes").control
    assert isinstance(box, QSpinBox)
    assert box.value() == 5
    box.setFocus()
    QTest.keyClick(box, Qt.Key.Key_Up)
    wait_for(lambda: opened.ordered("lending"), "the order")
    assert opened.ordered("lending") == [{"rules": {"idle_minutes": 6}}]
    wait_for(page.undo.isEnabled, "a way back")
    assert page.said.text() == "Saved. It is in force."
    QTest.mouseClick(page.undo, Qt.MouseButton.LeftButton)
    wait_for(lambda: len(opened.ordered("lending")) == 2, "the order back")
    assert opened.ordered("lending")[1] == {"rules": {"idle_minutes": 5}}
    wait_for(lambda: page.said.text() == "Undone.", "the end")


@pytest.mark.parametrize(
    ("source", "key", "act", "order"),
    [
        ("rules", "for_games", lambda part: QTest.keyClick(part, Qt.Key.Key_Space), {"rules": {"for_games": False}}),
        ("rules", "programs", lambda part: write(part, "obs, krita"), {"rules": {"programs": ["obs", "krita"]}}),
        ("limits", "down", lambda part: part.setValue(20), {"down": "20M"}),
        ("limits", "up", lambda part: part.setValue(0), {"up": "off"}),
        ("limits", "month", lambda part: part.setValue(250), {"month": "250G"}),
        ("limits", "polite", lambda part: QTest.keyClick(part, Qt.Key.Key_Space), {"polite": False}),
        ("settings", "floor", lambda part: write(part, "0.002"), {"floor": "0.002"}),
        ("settings", "electricity", lambda part: write(part, "0,25"), {"electricity": "0.25"}),
        ("settings", "currency", lambda part: write(part, "USD"), {"currency": "USD"}),
        ("settings", "worth", lambda part: write(part, "0,92"), {"worth": "0.92"}),
        ("settings", "bond", lambda part: write(part, "2,5"), {"bond": "2.5"}),
        ("settings", "payout", lambda part: write(part, TARGET), {"payout": TARGET}),
        ("settings", "name", lambda part: write(part, "cellar"), {"name": "cellar"}),
        ("settings", "gpu", lambda part: pick(part, 1), {"gpu": -1}),
        ("settings", "watts", lambda part: part.setValue(250), {"watts": 250}),
    ],
)
def test_every_kind_of_control_asks_in_the_agents_words(
    opened: Opened, source: str, key: str, act: Callable[[Any], object], order: dict[str, Any]
) -> None:
    page = settings_of(opened)
    act(page.row(source, key).control)
    target = {"rules": "lending"}.get(source, source)
    wait_for(lambda: opened.ordered(target), "the order")
    assert opened.ordered(target) == [order]


def write(line: QLineEdit, text: str) -> None:
    line.setFocus()
    line.selectAll()
    QTest.keyClicks(line, text)
    QTest.keyClick(line, Qt.Key.Key_Return)


def pick(box: QComboBox, number: int) -> None:
    box.setCurrentIndex(number)
    box.activated.emit(number)


def test_what_the_agent_cannot_do_is_said_and_taken_back(opened: Opened) -> None:
    page = settings_of(opened)
    line = page.row("settings", "payout").control
    real, opened.docs["POST settings"] = opened.docs["settings"], None  # type: ignore[assignment]
    opened.docs["settings"] = None  # type: ignore[assignment]
    write(line, "nonsense")
    wait_for(lambda: page.said.text() == "the agent of this test cannot do that", "the reason")
    assert line.text() == ""
    assert not page.undo.isEnabled()
    opened.docs["settings"] = real


def test_hours_are_painted_by_dragging_and_by_keys(app: QApplication) -> None:
    grid, told = HoursGrid("Hours", ("Mo", "Tu", "We", "Th", "Fr", "Sa", "Su"), ("lends", "does not lend")), []
    grid.changed.connect(told.append)
    grid.resize(34 + 24 * 10, 7 * 18 + 18)
    grid.show()

    def cell(day: int, hour: int) -> QPoint:
        return QPoint(34 + hour * 10 + 5, 18 + day * 18 + 8)

    QTest.mousePress(grid, Qt.MouseButton.LeftButton, pos=cell(0, 0))
    for hour in range(1, 8):
        QTest.mouseMove(grid, cell(0, hour))
    QTest.mouseRelease(grid, Qt.MouseButton.LeftButton, pos=cell(0, 7))
    assert told == ["0" * 8 + "1" * 160]
    QTest.keyClick(grid, Qt.Key.Key_Down)
    assert grid.accessibleDescription() == "Tu 7:00 lends"
    QTest.keyClick(grid, Qt.Key.Key_Space)
    assert told[-1] == "0" * 8 + "1" * 23 + "0" + "1" * 136
    assert grid.accessibleDescription() == "Tu 7:00 does not lend"
    grid.close()


def test_a_gauge_past_its_limit_says_so_in_more_than_colour(app: QApplication) -> None:
    gauge = Gauge("Temperature")
    gauge.resize(128, 124)
    gauge.show_reading(Reading(0.7, "67 °C", "limit 78 °C", 0.8))
    assert not gauge.is_over
    below = gauge.grab().toImage()
    gauge.show_reading(Reading(0.9, "81 °C", "limit 78 °C", 0.8))
    assert gauge.is_over
    grey = [picture.convertToFormat(picture.Format.Format_Grayscale8) for picture in (below, gauge.grab().toImage())]
    assert grey[0] != grey[1]
    assert QAccessible.queryAccessibleInterface(gauge).text(QAccessible.Text.Description) == "81 °C limit 78 °C"


def test_bars_are_read_and_asked_for_by_keyboard(app: QApplication) -> None:
    bars, asked = Bars("Earned"), []
    bars.picked.connect(asked.append)
    bars.show_bars([Bar("Mo", 1, "0.10"), Bar("Tu", 2, "0.20")])
    bars.show()
    for key in (Qt.Key.Key_Left, Qt.Key.Key_Return, Qt.Key.Key_Right, Qt.Key.Key_Return):
        QTest.keyClick(bars, key)
    assert asked == [0, 1]
    bars.close()


@pytest.mark.parametrize("page", [HOME, EARNINGS, ACTIVITY, SETTINGS, WELCOME])
def test_everything_on_a_page_has_a_name_for_a_screen_reader(opened: Opened, page: int) -> None:
    settings_of(opened)
    opened.window.go(page)
    parts = [QAbstractButton, QLabel, QLineEdit, QSpinBox, QComboBox, Gauge, Bars, HoursGrid]
    found = [part for kind in parts for part in opened.window.stack.currentWidget().findChildren(kind)]
    assert len(found) >= 8
    for part in found:
        if part.isVisibleTo(opened.window) and part.objectName() != "qt_spinbox_lineedit":
            name = QAccessible.queryAccessibleInterface(part).text(QAccessible.Text.Name)
            assert name.strip() or (isinstance(part, QLabel) and not part.text()), part


@pytest.mark.parametrize("page", [HOME, EARNINGS, ACTIVITY, SETTINGS, WELCOME])
def test_no_page_is_wider_than_a_small_window(opened: Opened, page: int) -> None:
    settings_of(opened)
    opened.window.go(page)
    opened.window.resize(420, 700)
    QTest.qWait(50)
    shown: QWidget = opened.window.stack.currentWidget()
    assert opened.window.width() == 420
    assert shown.width() <= 420
    for part in (*opened.window.findChildren(QPushButton), *opened.window.findChildren(Gauge)):
        if part.isVisible():
            left = part.mapTo(opened.window, QPoint(0, 0)).x()
            assert 0 <= left <= left + part.width() <= 420, f"{part.accessibleName()} is whole"
            assert part.width() >= max(part.minimumWidth(), part.minimumSizeHint().width()), part.accessibleName()


# --- notifications ----------------------------------------------------------------------------------------------------


def test_notifications_tell_what_is_new_and_only_what_is_wanted(opened: Opened) -> None:
    said: list[tuple[str, bool]] = []
    opened.desktop.notices._tell = lambda text, warns: said.append((text, warns))
    old = json.loads(opened.docs["activity"])["events"]

    def happened(number: int, kind: str, severity: str, **detail: str) -> dict[str, Any]:
        return {"number": number, "at": 1e9, "severity": severity, "kind": kind, "text": kind, "detail": detail}

    new = [
        happened(10, "job ended", "info", name="a"),
        happened(9, "paid", "info", amount="1240000"),
        happened(8, "job failed", "warning", name="b", why="out of memory"),
    ]
    opened.docs["activity"] = json.dumps({"events": [*new, *old]}).encode()
    opened.docs["status"] = status(tasks=[task()], last_event=10)
    wait_for(lambda: len(said) == 2, "two notifications")
    assert said == [("Work on “b” failed: out of memory", True), ("1.24 paid.", False)]
    settings: QSettings = opened.desktop.settings
    settings.setValue(notice_key("paid"), False)
    opened.docs["activity"] = json.dumps({"events": [happened(11, "paid", "info", amount="1"), *new]}).encode()
    opened.docs["status"] = status(tasks=[task()], last_event=11)
    wait_for(lambda: opened.desktop.notices._known == 11, "seen")
    wait_for(lambda: not opened.desktop.notices._calls._now, "read")
    assert len(said) == 2


def test_who_is_back_after_a_crash_is_told_that_its_round_is_shown(opened: Opened) -> None:
    event = ActivityEvent(1, 1e9, "info", "returned", "", {"name": "a", "round": "12"})
    assert (
        opened.desktop.window.activity.words(event)
        == "Back after a crash: shows the work of round 12 of “a”, so that it is paid."
    )
    opened.docs["status"] = status(tasks=[task(shown=11, state="starting")])
    words = "Back after a crash: shows the work of round 12, so that it is paid"
    home = opened.desktop.window.home
    wait_for(lambda: words in home.task.text(), "what the task does")
    assert "Showing its work on “tiny-llama” once more." in home.headline.text()


def test_why_it_cannot_lend_is_told_in_the_windows_own_words(opened: Opened) -> None:
    detail = {"cause": "no engine", "why": "absent", "address": "unix:///run/docker.sock"}
    event = ActivityEvent(1, 1e9, "error", "stopped", "no Docker engine answers ([Errno 2] ...)", detail)
    assert notice_of(event) == "needs you"
    assert opened.desktop.window.activity.words(event).startswith(
        "Docker is not installed. Jobs run only inside Docker"
    )
    other = ActivityEvent(1, 1e9, "error", "stopped", "the coordinator says: too old", {"cause": ""})
    assert opened.desktop.window.activity.words(other) == "The coordinator says: too old."


def test_who_did_not_show_its_work_is_told_what_another_time_costs_in_both_languages(
    opened: Opened, app: QApplication
) -> None:
    detail = {"when": "1000000000.000", "until": "1002592000", "percent": "5"}
    event = ActivityEvent(1, 1e9, "warning", "unanswered", "", detail)
    words = opened.desktop.window.activity.words
    day = moment(1_002_592_000)
    assert notice_of(event) == "needs you"
    assert f"Another time before {day} costs 5 % of its stake" in words(event)
    german = QTranslator()
    assert german.load(str(translations.FOLDER / "cottage_de.qm"))
    assert app.installTranslator(german)
    try:
        assert f"Noch einmal vor {day} kostet 5 % seines Einsatzes" in words(event)
    finally:
        app.removeTranslator(german)


# --- the first run ----------------------------------------------------------------------------------------------------


def test_the_first_run_takes_two_clicks(app: QApplication, home: Path, tmp_path: Path) -> None:
    checks = [
        {"name": name, "state": "good", "code": "found", "detail": {"name": "RTX 4090"}} for name in ("gpu", "sandbox")
    ]
    docs, orders = documents(selftest=json.dumps({"checks": checks, "can_lend": True}).encode()), Orders()
    docs["status"] = status(on=False, state="off")
    settings = QSettings(str(tmp_path / "window.ini"), QSettings.Format.IniFormat)
    with listener(home / "agent.sock", agent(docs, orders)):
        desktop = Desktop(home, ("false",), settings)
        welcome = desktop.window.welcome
        assert desktop.window.stack.currentIndex() == WELCOME
        wait_for(welcome.first.isEnabled, "the self-test")
        assert welcome.lines["gpu"].text.text() == "RTX 4090"
        for part in (welcome.first, welcome.switch):
            wait_for(part.isVisible, "the step")
            wait_for(lambda part=part: QApplication.focusWidget() is part, "the focus")
            QTest.mouseClick(part, Qt.MouseButton.LeftButton)
            assert part is welcome.switch or "Earnings go into a wallet on this computer" in welcome.paid_to.text()
        wait_for(lambda: ("lending", {"on": True}) in orders, "the switch")
        assert [order for order in orders if order[0] != "selftest"] == [("lending", {"on": True})]
        assert desktop.window.stack.currentIndex() == HOME
        assert settings.value(DONE, False, bool)
        desktop.lending._timer.stop()
        desktop.window.hide()
        desktop.window.deleteLater()
        QApplication.sendPostedEvents(desktop.window, QEvent.Type.DeferredDelete)
        desktop.deleteLater()


def _found(*bad: tuple[str, str], running: bool = False) -> bytes:
    checks = [{"name": name, "state": "bad", "code": code, "text": "[Errno 2]"} for name, code in bad]
    return json.dumps({"checks": [{"name": "gpu", "state": "good"}, *checks], "running": running}).encode()


def test_the_last_step_of_the_first_run_names_what_still_keeps_from_lending(
    first_run: Callable[..., Desktop], home: Path
) -> None:
    docs, orders = documents(selftest=_found(("sandbox", "no engine"), ("coordinator", "no answer"))), Orders()
    docs["status"] = status(on=False, state="off", coordinator="http://wrong.test")
    with listener(home / "agent.sock", agent(docs, orders)):
        welcome = first_run().window.welcome
        wait_for(welcome.first.isEnabled, "the self-test")
        assert welcome.address.isVisible()
        assert welcome.address.text() == "http://wrong.test", "a wrong address can be mended"
        welcome.steps.setCurrentIndex(2)
        assert welcome.ready.text() == "Almost ready."
        assert welcome.still["sandbox"].isVisible()
        assert welcome.still["coordinator"].isVisible()
        assert not welcome.still["disk"].isVisible()
        assert welcome.still["sandbox"].text.text() == "Docker does not answer."
        assert welcome.plan.isVisible(), "what the switch does about it"
        assert "[Errno" not in welcome.still["sandbox"].text.text()
        save_picture(welcome.window(), "first_run_almost_ready")
        docs["selftest"] = _found()
        welcome.begin_test()
        wait_for(lambda: welcome.ready.text() == "Ready.", "a better test")
        assert not welcome.lacking.isVisible()
        assert not welcome.plan.isVisible()
        assert not welcome.address.isVisible()


def test_an_address_typed_while_the_test_runs_is_tested_after_it(first_run: Callable[..., Desktop], home: Path) -> None:
    docs, orders = documents(selftest=_found(("coordinator", "not set"), running=True)), Orders()
    docs["status"] = status(on=False, state="off", coordinator="")
    with listener(home / "agent.sock", agent(docs, orders)):
        welcome = first_run().window.welcome
        wait_for(welcome.address.isVisible, "the field")
        wait_for(lambda: ("selftest", {}) in orders, "the first test")
        welcome.address.setFocus()
        QTest.keyClicks(welcome.address, "http://right.test")
        QTest.keyClick(welcome.address, Qt.Key.Key_Return)
        wait_for(lambda: ("settings", {"coordinator": "http://right.test"}) in orders, "the address")
        docs["selftest"] = _found()
        before = orders.count(("selftest", {}))
        wait_for(lambda: orders.count(("selftest", {})) > before, "a test of the new address")
        wait_for(welcome.first.isEnabled, "its end")


def test_a_first_run_whose_agent_cannot_start_says_why_and_has_a_button(
    first_run: Callable[..., Desktop], home: Path
) -> None:
    program = home / "agent.py"
    program.write_text("raise SystemExit('cottage node: the disk is full')\n")
    desktop = first_run(sys.executable, str(program))
    welcome = desktop.window.welcome
    wait_for(lambda: "the disk is full" in welcome.said.text(), "the reason")
    assert welcome.again.isEnabled()
    assert not welcome.first.isEnabled()
    save_picture(desktop.window, "first_run_agent_cannot_start")
    program.write_text("raise SystemExit('cottage node: and still no room')\n")
    QTest.mouseClick(welcome.again, Qt.MouseButton.LeftButton)
    wait_for(lambda: "and still no room" in welcome.said.text(), "another try")


def test_calls_are_answered_in_order_and_a_flood_is_refused(app: QApplication, home: Path) -> None:
    got: list[str] = []
    with listener(home / "agent.sock", agent({str(n): str(n).encode() for n in range(40)})):
        calls = Calls(home / "agent.sock")
        for number in range(40):
            calls.get(str(number), lambda body: got.append(body.decode()), lambda text: got.append(text))
        wait_for(lambda: len(got) == 40, "all answers")
    refused = [text for text in got if text.startswith("The agent is slow")]
    assert [text for text in got if text not in refused] == [str(n) for n in range(33)]
    assert len(refused) == 7


# --- a new version ----------------------------------------------------------------------------------------------------


def test_a_version_that_is_ready_is_offered_and_a_click_takes_it(opened: Opened) -> None:
    home = opened.window.home
    assert home.update_card.isHidden()
    stages = (("fetching", False, False), ("apt", True, False), ("installed", True, True), ("ready", True, True))
    for stage, offered, clickable in stages:
        update = {"stage": stage, "running": "0.1.0", "version": "0.2.0", "text": ""}
        opened.docs["status"] = status(update=update)
        opened.desktop.lending._client.ask()
        wait_for(lambda: home._status is not None and home._status.update.stage == stage, stage)  # noqa: B023 - within the loop
        assert (not home.update_card.isHidden(), not home.restart.isHidden()) == (offered, clickable)
        assert not offered or "0.2.0" in home.update_text.text()
    opened.docs["update"] = b'{"stage": "ready"}'
    QTest.mouseClick(home.restart, Qt.MouseButton.LeftButton)
    wait_for(lambda: opened.ordered("update"), "the order")
    assert opened.ordered("update") == [{"restart": True}]


def test_a_window_becomes_the_version_that_its_agent_became(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    desktop, ended = opened.desktop, list[bool]()
    monkeypatch.setattr("desktop.gui.app.end", lambda: ended.append(True))
    for running in ("0.1.0", "0.1.0", "0.2.0"):
        assert not ended
        opened.docs["status"] = status(update={"stage": "none", "running": running}, uptime=float(len(opened.orders)))
        monkeypatch.setattr("desktop.gui.app.next_window", lambda: Path("/new/cottage"))
        desktop.lending._client.ask()
        wait_for(lambda: desktop._running == running, running)  # noqa: B023 - within the loop
    assert ended
    assert desktop.is_outdated
