"""Joining a federation in the window: the link, the folder, the word. Nothing is agreed to before its owner says so."""

import json
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from common.invitations import Invitation
from desktop.gui.app import Desktop, wear
from desktop.gui.client import Calls
from desktop.gui.pages.federation import FederationSheet
from desktop.gui.theme import DARK, LIGHT
from tests.desktop.gui.support import Orders, documents, save_picture, wait_for

JOB = "3f" * 16
LINK = Invitation("https://cottage.example", "7Kq9dT3mVxXbq5rQ2nWgYh8sLpZcJfRtAeUvBnMkDiEo", job=JOB).link
ASKS = (
    "Of your data nothing leaves this computer but, once a round, how the model has changed, cut to a length and with 2.4 times "
    "that length of noise on it.",
    "All rounds together tell of your data, taken as one, at most epsilon 8 at delta 1e-05; after 20 rounds this computer itself "
    "sends no more.",
    "A model with 0.9 million parameters learns in 20 rounds of 20 steps, each owner's computer with the whole model.",
    "1 of 3 owners have joined; a round takes 2 at least.",
)
VIEW = {"told": {"job": JOB, "spec": {"name": "The wards"}}, "terms": "a" * 64, "asks": ASKS}
DONE = VIEW | {"found": ["Your data: 3 files, 812 of 812 rows can be learnt from, 91,004 characters."]}


@pytest.fixture
def docs() -> dict[str, bytes]:
    made = documents()
    made["POST federation"], made["POST federation/join"] = json.dumps(VIEW).encode(), json.dumps(DONE).encode()
    return made


def opened(desktop: Desktop, folder: str) -> FederationSheet:
    desktop.window.called(LINK)
    sheet = desktop.window.joining
    assert isinstance(sheet, FederationSheet)
    sheet._choose = lambda _parent: folder
    wait_for(sheet.pick.isEnabled, "what is asked")
    return sheet


def test_three_clicks_join_with_a_folder(desktop: Desktop, orders: Orders, tmp_path: Path) -> None:
    sheet = opened(desktop, str(tmp_path))
    assert sheet.head.text() == "Join “The wards”?"
    assert len(sheet.lines) == len(ASKS)
    assert "epsilon 8 at delta 1e-05" in sheet.lines[1]
    assert not sheet.join.isEnabled(), "no folder is chosen"
    QTest.mouseClick(sheet.pick, Qt.MouseButton.LeftButton)
    assert str(tmp_path) in sheet.chosen.text().replace("\u200b", "")
    for colours, name in ((LIGHT, "light"), (DARK, "dark")):
        wear(colours)
        save_picture(sheet, f"federation_{name}")
    wear(LIGHT)
    QTest.mouseClick(sheet.join, Qt.MouseButton.LeftButton)
    wait_for(lambda: sheet.head.text() == "You take part.", "the answer")
    assert "812 of 812 rows" in sheet.lines[0]
    said = [(name, order) for name, order in orders if name.startswith("federation")]
    assert said == [
        ("federation", {"invitation": LINK}),
        ("federation/join", {"job": JOB, "terms": "a" * 64, "data": str(tmp_path)}),
    ]


def test_whoever_types_on_has_joined_nothing(desktop: Desktop, orders: Orders) -> None:
    sheet = opened(desktop, "")
    QTest.mouseClick(sheet.pick, Qt.MouseButton.LeftButton)
    assert not sheet.join.isEnabled(), "no folder was named"
    QTest.keyClick(sheet.close_it, Qt.Key.Key_Return)
    wait_for(lambda: desktop.window.joining is None, "the end of the question")
    assert [name for name, _ in orders if name == "federation/join"] == []


def test_a_refusal_says_why_and_can_be_mended(desktop: Desktop, docs: dict[str, bytes], tmp_path: Path) -> None:
    del docs["POST federation/join"]
    sheet = opened(desktop, str(tmp_path))
    QTest.mouseClick(sheet.pick, Qt.MouseButton.LeftButton)
    QTest.mouseClick(sheet.join, Qt.MouseButton.LeftButton)
    wait_for(lambda: "cannot do that" in sheet.said.text(), "the reason")
    assert sheet.join.isEnabled()
    assert sheet.pick.isEnabled()


def test_whoever_closes_it_while_data_is_checked_has_taken_it_back(
    desktop: Desktop, orders: Orders, tmp_path: Path
) -> None:
    sheet = opened(desktop, str(tmp_path))
    QTest.mouseClick(sheet.pick, Qt.MouseButton.LeftButton)
    QTest.mouseClick(sheet.join, Qt.MouseButton.LeftButton)
    QTest.mouseClick(sheet.close_it, Qt.MouseButton.LeftButton)
    wait_for(lambda: ("federation/leave", {"job": JOB}) in orders, "the word that it is taken back")


def test_whoever_has_joined_and_closes_it_stays(desktop: Desktop, orders: Orders, tmp_path: Path) -> None:
    sheet = opened(desktop, str(tmp_path))
    QTest.mouseClick(sheet.pick, Qt.MouseButton.LeftButton)
    QTest.mouseClick(sheet.join, Qt.MouseButton.LeftButton)
    wait_for(lambda: sheet.head.text() == "You take part.", "the answer")
    QTest.mouseClick(sheet.close_it, Qt.MouseButton.LeftButton)
    wait_for(lambda: desktop.window.joining is None, "the end of the sheet")
    assert [name for name, _ in orders if name == "federation/leave"] == []


def test_a_sheet_that_is_closed_is_told_nothing_more_and_leaves_nothing(desktop: Desktop, tmp_path: Path) -> None:
    before = len(desktop.window.findChildren(Calls))
    for _ in range(3):
        sheet = opened(desktop, str(tmp_path))
        QTest.mouseClick(sheet.pick, Qt.MouseButton.LeftButton)
        QTest.mouseClick(sheet.join, Qt.MouseButton.LeftButton)
        assert sheet._calls._now is not None, "the data is being checked"
        sheet.reject()
        assert sheet._calls._now is None
    wait_for(lambda: len(desktop.window.findChildren(Calls)) == before, "the end of what the sheets asked")
