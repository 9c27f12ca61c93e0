"""How the window looks: nothing is missing, nothing is out of line, and its words are an owner's."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtGui import QImage
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QComboBox, QLabel, QLineEdit, QSpinBox, QWidget

from desktop.gui.app import Desktop, wear
from desktop.gui.fields import FIELD_WIDTH, SettingRow
from desktop.gui.looks import first_payment, motion
from desktop.gui.pages.settings import LANGUAGE, THEME
from desktop.gui.pages.welcome import DONE
from desktop.gui.theme import DARK, LIGHT
from desktop.gui.widgets import CheckMark
from desktop.gui.window import ACTIVITY, EARNINGS, HOME, SETTINGS, WELCOME
from tests.desktop.gui.support import METERS, agent, documents, listener, save_picture, status, task, wait_for

OpenDesktop = Callable[..., Desktop]
PROCESSOR = {
    "meters": METERS | {"gpus": []},
    "gpu": "",
    "profile": json.loads(status())["profile"] | {"device": "AMD Ryzen 7 7800X3D", "kind": "cpu"},
}
NONE = {"verified": 0, "paid": 0, "today": 0, "week": 0, "last_event": 0}


class Shown:
    """A window over an agent of documents, which the test may change."""

    def __init__(self, open_desktop: OpenDesktop, docs: dict[str, bytes], orders: list[tuple[str, Any]]) -> None:
        self.docs, self.orders, self._open = docs, orders, open_desktop
        self.desktop = open_desktop()
        self.await_status()

    def await_status(self) -> None:
        wait_for(lambda: self.desktop.lending.snapshot.status is not None, "an answer")

    def says(self, **changes: Any) -> None:
        """The agent's status from now on, and the window shows it."""
        self.docs["status"] = status(**changes)
        before = self.desktop.lending.snapshot
        wait_for(lambda: self.desktop.lending.snapshot is not before, "a new status")

    def open_anew(self) -> None:
        self.quiet()
        self.desktop.window.hide()
        self.desktop = self._open()
        self.await_status()

    def quiet(self) -> None:
        self.desktop.lending._timer.stop()
        wait_for(lambda: not self.desktop.notices._calls._now, "the last answer")


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(motion, "is_wanted", lambda: False)


@pytest.fixture
def show(open_desktop: OpenDesktop, home: Path) -> Iterator[Callable[..., Shown]]:
    made: list[Shown] = []
    docs, orders = documents(), list[tuple[str, Any]]()

    def make(**changes: Any) -> Shown:
        docs["status"] = status(**changes)
        made.append(Shown(open_desktop, docs, orders))
        return made[0]

    with listener(home / "agent.sock", lambda caller: agent(docs, orders)(caller)):
        yield make
        for shown in made:
            shown.quiet()


# --- the first page ---------------------------------------------------------------------------------------------------


def test_without_a_gpu_the_gauges_leave_no_hole(show: Callable[..., Shown]) -> None:
    page = show(**PROCESSOR).desktop.window.home
    gauges = [gauge for gauge in page.gauges.values() if gauge.isVisible()]
    assert len(gauges) == 3
    row = gauges[0].parentWidget().width()
    middles = [gauge.geometry().center().x() for gauge in gauges]
    assert [round(6 * middle / row) for middle in middles] == [1, 3, 5], "each in the middle of its third"


def test_what_is_lent_has_a_picture_in_both_colours(show: Callable[..., Shown], app: QApplication) -> None:
    shown = show(tasks=[task()])
    picture = shown.desktop.window.home.picture
    assert picture.isVisible()
    assert picture.shown == (True, True)
    assert picture.accessibleName() == "Picture of a graphics card"
    seen = {}
    for theme in (LIGHT, DARK):
        wear(theme)
        seen[theme] = picture.grab().toImage()
        colours = _colours(seen[theme])
        assert {theme.brand, theme.line, theme.lending} <= colours, "drawn in the window's own"
    assert seen[LIGHT] != seen[DARK]
    shown.says(**PROCESSOR)
    assert picture.shown == (False, False)
    assert picture.accessibleName() == "Picture of a processor"
    assert DARK.lending not in _colours(picture.grab().toImage()), "green means earning"


def test_today_is_the_large_number_of_the_first_page_and_seen_without_scrolling(show: Callable[..., Shown]) -> None:
    shown = show(tasks=[task(share=0.62)])
    window = shown.desktop.window
    window.resize(784, 552)
    today = window.home.earnings.number("today")
    assert today.text() == "1.24"
    others = [text for text in window.home.findChildren(QLabel) if text is not today]
    assert today.font().pointSizeF() >= 1.5 * max(text.font().pointSizeF() for text in others)
    area = window.areas[HOME].viewport()
    wait_for(lambda: area.rect().contains(QRect(today.mapTo(area, QPoint(0, 0)), today.size())), "in sight")


def test_an_empty_week_says_so_instead_of_bars_without_height(show: Callable[..., Shown]) -> None:
    shown = show(**NONE)
    card = shown.desktop.window.home.earnings
    wait_for(card.bars.isVisible, "the bars of a week with earnings")
    assert not card.nothing.isVisible()
    card.show_days([])
    assert not card.bars.isVisible()
    assert card.nothing.isVisible()


# --- progress ---------------------------------------------------------------------------------------------------------


def test_a_check_that_runs_turns_and_does_not_where_no_motion_is_wanted(
    app: QApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = CheckMark()
    mark.set_state("waiting")
    mark.show()
    pictures = [mark.grab().toImage()]
    monkeypatch.setattr(motion, "is_wanted", lambda: True)
    mark.set_state("running")
    pictures.append(mark.grab().toImage())
    wait_for(lambda: mark._turned >= 90, "a quarter")
    pictures.append(mark.grab().toImage())
    assert all(one != other for number, one in enumerate(pictures) for other in pictures[:number])
    mark.hide()
    assert not mark.turning.isActive(), "unseen, it costs nothing"
    monkeypatch.setattr(motion, "is_wanted", lambda: False)
    mark.show()
    assert not mark.turning.isActive()
    mark.close()


def test_whoever_told_the_desktop_to_keep_still_sees_no_motion(
    app: QApplication, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    program = tmp_path / "gsettings"
    for answer, moves in (("true", True), ("false", False)):
        program.write_text(
            f'#!/bin/sh\n[ "$2 $3" = "org.gnome.desktop.interface enable-animations" ] && echo {answer}\n'
        )
        program.chmod(0o700)
        motion._system_wants_it.cache_clear()
        assert motion.is_wanted() is moves
    program.unlink()
    motion._system_wants_it.cache_clear()
    assert motion.is_wanted(), "a desktop without such a setting"
    motion._system_wants_it.cache_clear()


def test_the_first_check_shows_how_far_it_is(show: Callable[..., Shown], still: None) -> None:
    shown = show()
    shown.desktop.settings.setValue(DONE, False)
    page = shown.desktop.window.welcome
    checks = [
        {"name": "gpu", "state": "good"},
        {"name": "disk", "state": "good"},
        {"name": "speed", "state": "running"},
    ]
    shown.docs["selftest"] = json.dumps({"checks": checks, "running": True}).encode()
    shown.desktop.window.go(WELCOME)
    page.begin_test()
    wait_for(lambda: page.progress.accessibleDescription() == "25%", "two of eight")
    assert page.progress.isVisible()
    assert page.progress.accessibleName() == "How far the check is"
    shown.docs["selftest"] = json.dumps({"checks": checks[:2], "can_lend": True}).encode()
    wait_for(page.progress.isHidden, "the end")


# --- the page of earnings ---------------------------------------------------------------------------------------------


def test_an_empty_page_of_earnings_says_what_goes_on_and_what_to_do(show: Callable[..., Shown]) -> None:
    shown = show(on=False, state="off", **NONE)
    nothing = json.loads(documents()["earnings"]) | {"verified": 0, "paid": 0, "jobs": [], "days": []}
    shown.docs["earnings"] = json.dumps(nothing).encode()
    shown.desktop.window.go(EARNINGS)
    page = shown.desktop.window.earnings
    wait_for(page.empty.isVisible, "the card")
    assert page.empty.now.text() == "Now: Lending is off. This computer is all yours."
    assert not page.table.isVisible()
    assert not page.check.isVisible()
    save_picture(shown.desktop.window, "earnings_empty")
    QTest.keyClick(page.empty.start, Qt.Key.Key_Space)
    wait_for(lambda: ("lending", {"on": True}) in shown.orders, "the switch")
    shown.says(**NONE)
    wait_for(page.empty.start.isHidden, "on")
    assert page.empty.now.text() == "Now: Waiting for a job. Connected. Nobody needs this computer right now."
    shown.docs["earnings"] = documents()["earnings"]
    page.refresh()
    wait_for(page.table.isVisible, "the jobs")
    assert page.chart.isVisible()
    assert not page.empty.isVisible()


def test_headers_stand_exactly_above_what_they_name(show: Callable[..., Shown]) -> None:
    shown = show()
    shown.desktop.window.go(EARNINGS)
    table = shown.desktop.window.earnings.table
    wait_for(lambda: table.rowCount() == 6, "the jobs")
    shown.quiet()  # Or another answer writes the names of the jobs once more.
    header = table.horizontalHeader()
    for column in range(table.columnCount()):
        name, item = table.horizontalHeaderItem(column), table.item(0, column)
        assert name is not None
        assert item is not None
        item.setText(name.text())
    table.clearSelection()
    QTest.qWait(50)
    for column in range(table.columnCount()):
        across = (table.columnViewportPosition(column), table.columnWidth(column))
        spans = [
            _ink(part.grab(QRect(across[0], top, across[1], high)).toImage())
            for part, top, high in (
                (header.viewport(), 0, header.height()),
                (table.viewport(), table.rowViewportPosition(0), table.rowHeight(0)),
            )
        ]
        assert abs(spans[0][0] - spans[1][0]) <= 1, f"the left of column {column}"
        assert abs(spans[0][1] - spans[1][1]) <= 1, f"the right of column {column}"


# --- the settings -----------------------------------------------------------------------------------------------------


def test_all_fields_of_the_settings_are_alike(show: Callable[..., Shown]) -> None:
    shown = show()
    shown.desktop.window.go(SETTINGS)
    pages = shown.desktop.window.settings
    wait_for(lambda: pages.row("limits", "up").shown == 5, "the agent's limits")
    found: list[QWidget] = []
    for number in range(pages.stack.count()):
        pages.stack.setCurrentIndex(number)
        QTest.qWait(20)
        rows = pages.stack.currentWidget().findChildren(SettingRow)
        fields = [row.control for row in rows if isinstance(row.control, (QSpinBox, QComboBox, QLineEdit))]
        for field in fields:
            colour = field.grab().toImage().pixelColor(field.width() // 2, 4).name()
            assert colour == LIGHT.ground, field.accessibleName()
            inside = field.grab(QRect(4, 8, 60, field.height() - 16)).toImage()
            if isinstance(field, QSpinBox) or inside.pixelColor(0, 0) != inside.pixelColor(30, 9):
                assert 3 <= _ink(inside)[0] <= 10, f"the text of {field.accessibleName()} stands off its edge"
        found += fields
    assert len(found) >= 18
    assert {kind for kind in (QSpinBox, QComboBox, QLineEdit) for field in found if isinstance(field, kind)} == {
        QSpinBox,
        QComboBox,
        QLineEdit,
    }
    beside = [field.width() for field in found if field.width() < 300]
    assert set(beside) == {FIELD_WIDTH}
    heights = [field.height() for field in found]
    assert max(heights) - min(heights) <= 3


def test_colours_and_language_stand_under_appearance(show: Callable[..., Shown]) -> None:
    shown = show()
    pages = shown.desktop.window.settings
    shown.desktop.window.go(SETTINGS)
    buttons = {one.text(): number for number, one in enumerate(pages.pages._group.buttons())}
    parts = ["When", "How much", "Money", "Programs", "Notifications", "Appearance", "Privacy && about"]
    assert list(buttons) == parts
    for key in (THEME, LANGUAGE):
        assert pages.stack.widget(buttons["Appearance"]).isAncestorOf(pages.row("window", key))
    assert len(pages.stack.widget(buttons["Notifications"]).findChildren(SettingRow)) == 5


# --- words ------------------------------------------------------------------------------------------------------------


def test_no_page_speaks_of_stages_replicas_lines_or_powers_of_ten(show: Callable[..., Shown]) -> None:
    shown = show(tasks=[task(share=0.62)])
    jargon = re.compile(r"10\^15|\b[Ss]tage\b|[Rr]eplica|\bLine\b|\bthe line\b|\bloss\b")
    for page in (HOME, EARNINGS, ACTIVITY, SETTINGS, WELCOME):
        shown.desktop.window.go(page)
        texts = [label.text() for label in shown.desktop.window.stack.currentWidget().findChildren(QLabel)]
        assert len(texts) >= 2
        assert [text for text in texts if jargon.search(text)] == []
    gauges = shown.desktop.window.home.gauges.values()
    assert "Internet" in [gauge.accessibleName() for gauge in gauges]
    assert [gauge.accessibleName() for gauge in gauges if jargon.search(gauge.accessibleName())] == []


def test_the_exact_figures_are_there_for_who_asks(show: Callable[..., Shown]) -> None:
    shown = show(tasks=[task(share=0.62)])
    line = shown.desktop.window.home.task
    assert line.text() == "Part 2 of the model · Running · Round 12 · 62 % of the job done · 1.2 MB/s"
    assert line.toolTip() == line.accessibleDescription() == "Stage 1, replica 0 · step 345 · loss 2.312"
    floor = shown.desktop.window.settings.row("settings", "floor").control
    assert "10^15" in floor.toolTip()
    assert "10^15" in floor.accessibleDescription()


# --- the first payment ------------------------------------------------------------------------------------------------


def test_the_first_payment_is_a_moment_once(show: Callable[..., Shown], still: None) -> None:
    shown = show(**NONE)
    card = shown.desktop.window.home.first_payment
    assert not card.isVisible()
    shown.says(**NONE | {"paid": 1_240_000, "verified": 1_240_000})
    wait_for(card.isVisible, "the card")
    assert card.headline.text() == "Your first payment has arrived"
    assert card.text.text().startswith("1.24 for work that this computer did.")
    save_picture(shown.desktop.window, "first_payment")
    shown.says(**NONE | {"paid": 9_000_000, "verified": 9_000_000})
    assert card.text.text().startswith("1.24 "), "the first one, not the sum"
    shown.open_anew()
    card = shown.desktop.window.home.first_payment
    wait_for(card.isVisible, "until it was seen")
    QTest.keyClick(card.seen, Qt.Key.Key_Space)
    assert not card.isVisible()
    shown.says(**NONE | {"paid": 9_000_001, "verified": 9_000_001})
    assert not card.isVisible()
    shown.open_anew()
    assert not shown.desktop.window.home.first_payment.isVisible()


def test_who_was_paid_before_this_window_was_there_is_past_the_moment(show: Callable[..., Shown]) -> None:
    shown = show()
    assert shown.desktop.lending.snapshot.status.paid
    shown.says(paid=150_000_000)
    assert not shown.desktop.window.home.first_payment.isVisible()


@pytest.mark.parametrize("status_first", [True, False])
def test_the_notice_of_the_first_payment_says_so_and_the_next_does_not(
    show: Callable[..., Shown], still: None, status_first: bool
) -> None:
    shown = show(**NONE)
    said: list[str] = []
    shown.desktop.notices._tell = lambda text, warns: said.append(text)

    def paid(number: int) -> dict[str, Any]:
        detail = {"amount": "1240000"}
        return {"number": number, "at": 1e9, "severity": "info", "kind": "paid", "text": "paid", "detail": detail}

    money = {"paid": 1_240_000, "verified": 1_240_000}
    if status_first:
        shown.says(**NONE | money)
    shown.docs["activity"] = json.dumps({"events": [paid(1)]}).encode()
    shown.says(**NONE | (money if status_first else {}) | {"last_event": 1})
    wait_for(lambda: said, "the notice")
    shown.docs["activity"] = json.dumps({"events": [paid(2), paid(1)]}).encode()
    shown.says(**NONE | money | {"last_event": 2})
    wait_for(lambda: len(said) == 2, "another")
    assert said == ["Your first payment has arrived. 1.24 paid.", "1.24 paid."]
    assert shown.desktop.window.home.first_payment.isVisible()


def test_the_coin_rises_once_and_lies_still_where_no_motion_is_wanted(
    app: QApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(motion, "is_wanted", lambda: False)
    resting = first_payment.Coin()
    resting.show()
    assert resting.rising.state() == resting.rising.State.Stopped
    monkeypatch.setattr(motion, "is_wanted", lambda: True)
    coin = first_payment.Coin()
    coin.show()
    assert coin.rising.state() == coin.rising.State.Running
    assert coin.grab().toImage() != resting.grab().toImage()
    coin.rising.setCurrentTime(first_payment.LASTS_MS)
    assert coin.grab().toImage() == resting.grab().toImage(), "where it ends is where it lies"
    coin.hide()
    coin.show()
    assert coin.rising.state() == coin.rising.State.Stopped, "once"
    for one in (coin, resting):
        one.close()


def _colours(image: QImage) -> set[str]:
    return {image.pixelColor(x, y).name() for x in range(image.width()) for y in range(image.height())}


def _ink(image: QImage) -> tuple[int, int]:
    """The first and the last column that is not of the ground's colour."""
    ground = image.pixelColor(0, 0)
    columns = [x for x in range(image.width()) if any(image.pixelColor(x, y) != ground for y in range(image.height()))]
    return columns[0], columns[-1]
