"""Whose programs run here: an owner sees who is accepted and what was asked for, adds a key, and removes one."""

import json
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from desktop.gui.app import Desktop, wear
from desktop.gui.pages.publishers import AcceptSheet
from desktop.gui.theme import DARK, LIGHT
from desktop.gui.window import SETTINGS
from tests.desktop.gui.support import ADA, OTHER, PUBLISHERS, Orders, documents, save_picture, wait_for

PROGRAMS = 3
MORE = PUBLISHERS | {"publishers": [*PUBLISHERS["publishers"], {"key": OTHER, "name": "Render farm", "since": 1.0}]}
FEWER = PUBLISHERS | {"publishers": PUBLISHERS["publishers"][:1]}


@pytest.fixture
def docs() -> dict[str, bytes]:
    made = documents()
    made["POST publishers/accept"] = json.dumps(MORE).encode()
    made["POST publishers/remove"] = json.dumps(FEWER).encode()
    return made


def shown(desktop: Desktop) -> None:
    desktop.window.go(SETTINGS)
    settings = desktop.window.settings
    settings.pages.pick(str(PROGRAMS))
    settings.stack.setCurrentIndex(PROGRAMS)
    wait_for(lambda: len(settings.publishers.rows) > 0, "the publishers")


def ordered(orders: Orders) -> list[object]:
    return [(name, order) for name, order in orders if name.startswith("publishers/")]


def sheet_of(desktop: Desktop) -> AcceptSheet:
    (sheet,) = [one for one in desktop.window.findChildren(AcceptSheet) if one.isVisible()]
    return sheet


def test_an_owner_sees_who_is_accepted_and_what_jobs_wanted(desktop: Desktop) -> None:
    shown(desktop)
    settings = desktop.window.settings
    rows = settings.publishers.rows
    assert [row.name.text() for row in rows] == ["Cottage", "Ada's lab"]
    assert not rows[0].remove.isVisible(), "Cottage's own stays"
    assert rows[1].remove.accessibleName() == "Remove Ada's lab"
    sweep, render = settings.images.rows
    assert "412 MB" in sweep.asks.text()
    assert "1,024 MB of memory" in sweep.asks.text()
    assert "Ada's lab" in sweep.asks.text()
    assert not sweep.accept.isVisible()
    assert "the graphics card" in render.asks.text()
    assert "did not run" in render.asks.text()
    assert OTHER in render.asks.text().replace("\u200b", "")
    assert render.accept.accessibleName() == "Accept the publisher of render:3"
    for colours, name in ((LIGHT, "light"), (DARK, "dark")):
        wear(colours)
        for width, height, size in ((480, 640, "small"), (1300, 900, "large")):
            desktop.window.resize(width, height)
            QTest.qWait(50)
            save_picture(desktop.window, f"publishers_{name}_{size}")
    wear(LIGHT)


def test_a_key_is_pasted_by_keyboard_alone_and_accepted(desktop: Desktop, orders: Orders) -> None:
    shown(desktop)
    settings = desktop.window.settings
    settings.publishers.add.setFocus()
    QTest.keyClick(settings.publishers.add, Qt.Key.Key_Space)
    sheet = sheet_of(desktop)
    assert not sheet.accept_it.isEnabled()
    QTest.keyClicks(sheet.key, "no key")
    assert "no key" in sheet.said.text()
    sheet.key.clear()
    QApplication.clipboard().setText(f" {OTHER}\n")
    QTest.keyClick(sheet.key, Qt.Key.Key_V, Qt.KeyboardModifier.ControlModifier)
    assert not sheet.accept_it.isEnabled(), "it has no name yet"
    QTest.keyClicks(sheet.name, "Render farm")
    save_picture(sheet, "publishers_sheet")
    QTest.keyClick(sheet.name, Qt.Key.Key_Return)
    wait_for(lambda: len(settings.publishers.rows) == 3, "the third publisher")
    assert ordered(orders) == [("publishers/accept", {"key": OTHER, "name": "Render farm"})]
    assert "Render farm" in settings.said.text()


def test_a_key_is_read_from_a_file_and_a_file_without_one_is_told(desktop: Desktop, tmp_path: Path) -> None:
    shown(desktop)
    desktop.window.settings.publishers.ask("")
    sheet = sheet_of(desktop)
    for name, data, said in (
        ("none", b"nothing here", "no key in that file"),
        ("two", f"{ADA} and {OTHER}".encode(), "several keys"),
        ("binary", bytes(range(256)) * 100, "no key in that file"),
    ):
        (tmp_path / name).write_bytes(data)
        sheet._choose = lambda _parent, name=name: str(tmp_path / name)
        QTest.mouseClick(sheet.file, Qt.MouseButton.LeftButton)
        assert said in sheet.said.text()
    sheet._choose = lambda _parent: str(tmp_path / "missing")
    QTest.mouseClick(sheet.file, Qt.MouseButton.LeftButton)
    assert "cannot be read" in sheet.said.text()
    (tmp_path / "key.txt").write_text(f"publisher Render farm: {OTHER}\n")
    sheet._choose = lambda _parent: str(tmp_path / "key.txt")
    QTest.mouseClick(sheet.file, Qt.MouseButton.LeftButton)
    assert sheet.key.text() == OTHER
    sheet.reject()


def test_what_a_job_wanted_is_accepted_from_its_row(desktop: Desktop) -> None:
    shown(desktop)
    render = desktop.window.settings.images.rows[1]
    QTest.mouseClick(render.accept, Qt.MouseButton.LeftButton)
    sheet = sheet_of(desktop)
    assert sheet.key.text() == OTHER
    sheet.reject()


def test_a_publisher_is_removed_and_the_keyboard_stays_on_the_page(desktop: Desktop, orders: Orders) -> None:
    shown(desktop)
    settings = desktop.window.settings
    row = settings.publishers.rows[1]
    row.remove.setFocus()
    QTest.keyClick(row.remove, Qt.Key.Key_Space)
    wait_for(lambda: len(settings.publishers.rows) == 1, "the end of it")
    assert ordered(orders) == [("publishers/remove", {"key": ADA})]
    assert "what has begun goes on" in settings.said.text()
    assert settings.publishers.isAncestorOf(desktop.window.focusWidget())


def test_a_refusal_says_why_and_the_sheet_stays(desktop: Desktop, docs: dict[str, bytes]) -> None:
    del docs["POST publishers/accept"]
    shown(desktop)
    desktop.window.settings.publishers.ask(OTHER)
    sheet = sheet_of(desktop)
    QTest.keyClicks(sheet.name, "x")
    QTest.mouseClick(sheet.accept_it, Qt.MouseButton.LeftButton)
    wait_for(lambda: "cannot do that" in sheet.said.text(), "the reason")
    assert sheet.accept_it.isEnabled()
    sheet.reject()


def test_an_agent_that_knows_no_publishers_shows_an_empty_page(desktop: Desktop, docs: dict[str, bytes]) -> None:
    docs["publishers"] = json.dumps({"publishers": [], "images": []}).encode()
    desktop.window.go(SETTINGS)
    settings = desktop.window.settings
    settings.stack.setCurrentIndex(PROGRAMS)
    wait_for(lambda: settings.publishers.none.text() != "", "the sentence")
    assert not settings.publishers.rows
    assert settings.images.none.text() == "No job has asked for a program yet."
