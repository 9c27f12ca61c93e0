"""Which network is lent to: typed, pasted, chosen or opened as a link; and nothing changes before its owner says so."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QSettings, Qt
from PySide6.QtNetwork import QLocalSocket
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from common.invitations import Invitation
from desktop.gui.app import Desktop
from desktop.gui.pages.invitation import InvitationWords
from desktop.gui.peer import SocketName
from desktop.gui.single import MAX_WORD, OnlyOne
from desktop.gui.window import SETTINGS
from tests.common.test_invitations import BAD
from tests.desktop.gui.conftest import ROOT
from tests.desktop.gui.support import SETTINGS as KEPT
from tests.desktop.gui.support import Orders, agent, documents, listener, save_picture, status, wait_for

KEY = "7Kq9dT3mVxXbq5rQ2nWgYh8sLpZcJfRtAeUvBnMkDiEo"
INVITATION = Invitation("https://other.example", KEY)


@pytest.fixture
def docs() -> dict[str, bytes]:
    links = [Invitation("https://cottage.example", KEY).link, Invitation("http://10.0.0.7:8470").link]
    return documents(settings=json.dumps(KEPT | {"networks": links}).encode())


def ordered(orders: Orders) -> list[Any]:
    return [order for target, order in orders if target == "settings"]


def test_a_link_whose_agent_does_not_start_says_why(first_run: Callable[..., Desktop], home: Path) -> None:
    program = home / "agent.py"
    program.write_text("raise SystemExit('cottage node: the disk is full')\n")
    window = first_run(sys.executable, str(program)).window
    window.called(INVITATION.link)
    sheet = window.joining
    assert sheet is not None
    wait_for(lambda: "the disk is full" in sheet.said.text(), "the reason")
    assert not sheet.join.isEnabled()
    wait_for(window.welcome.again.isEnabled, "another try, behind it")


# --- a link -----------------------------------------------------------------------------------------------------------


def test_a_link_asks_and_changes_nothing_before_the_answer(desktop: Desktop, orders: Orders) -> None:
    desktop.window.called(INVITATION.link)
    sheet = desktop.window.joining
    assert sheet is not None
    assert sheet.head.text().replace("\u200b", "") == "Lend to https://other.example?"
    assert "7Kq9dT…MkDiEo" in sheet.about.text()
    assert "works for https://cottage.example" in sheet.now.text().replace("\u200b", "")
    save_picture(sheet, "invitation_question")
    QTest.keyClick(sheet, Qt.Key.Key_Return)
    wait_for(lambda: desktop.window.joining is None, "the end of the question")
    assert ordered(orders) == [], "whoever types on has agreed to nothing"
    desktop.window.called(INVITATION.link)
    assert desktop.window.joining is not None
    QTest.mouseClick(desktop.window.joining.join, Qt.MouseButton.LeftButton)
    wait_for(lambda: ordered(orders) == [{"coordinator": INVITATION.link}], "the order")
    wait_for(lambda: desktop.window.joining is None, "the end of the question")


def test_a_second_link_takes_the_place_of_the_first(desktop: Desktop) -> None:
    desktop.window.called(INVITATION.link)
    first = desktop.window.joining
    desktop.window.called("cottage://join?at=http%3A%2F%2F192.0.2.7%3A8470")
    second = desktop.window.joining
    assert second is not None
    assert second is not first
    assert first is not None
    assert not first.isVisible()
    assert "not encrypted" in second.now.text()
    assert "names no key" in second.about.text()


def test_a_link_that_is_none_is_told_and_offers_nothing(desktop: Desktop) -> None:
    desktop.window.called("cottage://join?at=https%3A%2F%2Fx.example&key=0")
    sheet = desktop.window.joining
    assert sheet is not None
    assert sheet.head.text() == "This invitation cannot be used."
    assert sheet.about.text() == "The key in the invitation is damaged. Copy the whole of it."
    assert not sheet.join.isVisible()


def test_a_refusal_of_the_agent_leaves_the_question_open(desktop: Desktop, docs: dict[str, bytes]) -> None:
    del docs["settings"]
    desktop.window.called(INVITATION.link)
    sheet = desktop.window.joining
    assert sheet is not None
    QTest.mouseClick(sheet.join, Qt.MouseButton.LeftButton)
    wait_for(lambda: "cannot do that" in sheet.said.text(), "the reason")
    assert sheet.join.isEnabled()


@pytest.mark.parametrize("fault", sorted(set(BAD.values())))
def test_each_fault_has_a_sentence_without_flags_and_words_of_libraries(app: QApplication, fault: str) -> None:
    words = InvitationWords()
    said = words.said(fault)
    assert said.endswith(".")
    for word in ("--", "Errno", "ssl:", "ValueError", "coordinator"):
        assert word not in said
    assert (said == words.said("long")) == (fault == "long")


# --- a second start ---------------------------------------------------------------------------------------------------


def test_a_second_start_hands_its_link_to_the_first_window(app: QApplication, tmp_path: Path) -> None:
    told: list[str] = []
    first = OnlyOne(tmp_path)
    first.called.connect(told.append)
    program = "import sys; from pathlib import Path; from PySide6.QtCore import QCoreApplication; app = QCoreApplication([])\n"
    program += "from desktop.gui.single import OnlyOne; sys.exit(OnlyOne(Path(sys.argv[1]), sys.argv[2]).is_first)"
    for link in ("", INVITATION.link):
        command = [sys.executable, "-c", program, str(tmp_path), link]
        child = subprocess.Popen(command, cwd=ROOT)
        wait_for(lambda: told, "a call")
        assert child.wait(10) == 0
        assert told == [link]
        told.clear()


@pytest.mark.parametrize(
    ("word", "told"), [(b"cottage://join\xff", "cottage://join\N{REPLACEMENT CHARACTER}"), (b"x" * (MAX_WORD + 1), "")]
)
def test_what_a_caller_says_is_bounded(app: QApplication, tmp_path: Path, word: bytes, told: str) -> None:
    heard: list[str] = []
    first = OnlyOne(tmp_path)
    first.called.connect(heard.append)
    caller, way = QLocalSocket(), SocketName(tmp_path / "window.sock")
    caller.connectToServer(way.name)
    caller.write(word)
    caller.flush()
    caller.disconnectFromServer()
    wait_for(lambda: heard, "a call")
    assert heard == [told]


def test_a_caller_that_never_hangs_up_is_heard_once(app: QApplication, tmp_path: Path) -> None:
    heard: list[str] = []
    first = OnlyOne(tmp_path)
    first.called.connect(heard.append)
    caller, way = QLocalSocket(), SocketName(tmp_path / "window.sock")
    caller.connectToServer(way.name)
    caller.write(b"cottage://join")
    wait_for(lambda: heard, "a call")
    caller.disconnectFromServer()
    assert heard == ["cottage://join"]


def test_the_program_takes_a_link_as_its_word_and_nothing_beside_it(home: Path, tmp_path: Path) -> None:
    """The second process ends; the first one, a window of its own, shows the question (it says so in its title)."""
    program = (
        "import sys\nfrom desktop.gui import app, window\n"
        "called = window.MainWindow.called\n"
        "def told(self, link):\n    called(self, link)\n"
        "    print('told', link, self.joining is not None and self.joining.head.text(), flush=True)\n"
        "window.MainWindow.called = told\nsys.exit(app.main(sys.argv[1:]))\n"
    )
    environment = os.environ | {"XDG_CONFIG_HOME": str(tmp_path / "config"), "QT_QPA_PLATFORM": "offscreen"}
    words = [sys.executable, "-c", program, "--home", str(home)]
    first = subprocess.Popen(
        [*words, "--", INVITATION.link, "--sandbox", "process"], cwd=ROOT, env=environment, stdout=-1, text=True
    )
    try:
        assert first.stdout is not None
        assert "Lend to https://" in first.stdout.readline()
        again = subprocess.run(
            [*words, "cottage://join?at=http%3A%2F%2F127.0.0.1%3A9"], cwd=ROOT, env=environment, timeout=60
        )
        assert again.returncode == 0
        assert "Lend to http://127.0.0.1:9?" in first.stdout.readline().replace("\u200b", "")
        until = time.monotonic() + 30
        while not (agents := _agents(home)) and time.monotonic() < until:
            time.sleep(0.1)
        assert agents
        assert all(b"--sandbox" not in words for words in agents), "a link says nothing else to the program"
    finally:
        first.terminate()
        first.wait(30)


def _agents(home: Path) -> list[bytes]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = entry.read_bytes()
            if b"desktop.agent" in words and str(home).encode() in words:
                found.append(words)
    return found


# --- typed, pasted, chosen --------------------------------------------------------------------------------------------


def test_the_settings_take_an_invitation_and_list_what_was_joined(desktop: Desktop, orders: Orders) -> None:
    settings = desktop.window.settings
    desktop.window.go(SETTINGS)
    settings.stack.setCurrentIndex(5)
    field = settings.network.field
    wait_for(lambda: field.count() == 2, "the networks")
    assert [field.itemText(number) for number in range(2)] == ["https://cottage.example", "http://10.0.0.7:8470"]
    assert field.line.text() == "https://cottage.example"
    save_picture(desktop.window, "settings_network")
    field.line.setText(INVITATION.page)
    QTest.keyClick(field.line, Qt.Key.Key_Return)
    wait_for(lambda: ordered(orders) == [{"coordinator": INVITATION.page}], "the order")
    orders.clear()
    field.activated.emit(1)
    wait_for(
        lambda: ordered(orders) == [{"coordinator": "cottage://join?at=http%3A%2F%2F10.0.0.7%3A8470"}], "the choice"
    )
    orders.clear()
    field.line.setText("ftp://no")
    QTest.keyClick(field.line, Qt.Key.Key_Return)
    assert settings.said.text() == "That is no address. One looks like https://cottage.example."
    assert ordered(orders) == []


def test_the_first_run_takes_an_invitation_and_says_what_is_wrong_with_one(
    app: QApplication, home: Path, tmp_path: Path, docs: dict[str, bytes], orders: Orders
) -> None:
    checks = {"checks": [{"name": "coordinator", "state": "bad", "code": "not set"}]}
    docs |= {"status": status(on=False, state="off", coordinator=""), "selftest": json.dumps(checks).encode()}
    with listener(home / "agent.sock", lambda caller: agent(docs, orders)(caller)):
        made = Desktop(home, ("false",), QSettings(str(tmp_path / "first.ini"), QSettings.Format.IniFormat))
        welcome = made.window.welcome
        wait_for(lambda: welcome.networks.isVisible() and welcome.networks.count() == 2, "the field and what it offers")
        QTest.keyClicks(welcome.address, "cottage://join?at=x")
        QTest.keyClick(welcome.address, Qt.Key.Key_Return)
        assert welcome.said.text() == "That is no address. One looks like https://cottage.example."
        save_picture(made.window, "first_run_bad_invitation")
        welcome.address.setText(INVITATION.link)
        QTest.keyClick(welcome.address, Qt.Key.Key_Return)
        wait_for(lambda: ordered(orders) == [{"coordinator": INVITATION.link}], "the order")
        docs["status"] = status(on=False, state="off", coordinator=INVITATION.url)
        docs["selftest"] = json.dumps(
            {"checks": [{"name": "coordinator", "state": "good", "code": "answers"}]}
        ).encode()
        wait_for(welcome.another.isVisible, "a way to another network")
        QTest.mouseClick(welcome.another, Qt.MouseButton.LeftButton)
        assert welcome.address.text() == INVITATION.url
        made.lending._timer.stop()
        made.window.hide()
        made.window.deleteLater()
        made.deleteLater()
