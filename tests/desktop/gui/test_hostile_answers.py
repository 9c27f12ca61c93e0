"""Whatever answers in the agent's place: the window says what is wrong, and never stands still."""

import csv
import io
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QAbstractButton, QLabel, QListWidget, QPlainTextEdit, QTableWidget, QWidget

from desktop.answers import EarningsSummary
from desktop.gui import client
from desktop.gui.app import Desktop
from desktop.gui.model import AgentPhase, read
from desktop.gui.pages.money import table_of
from desktop.gui.single import OnlyOne
from desktop.gui.window import ACTIVITY, EARNINGS, HOME, MIN_WIDTH
from tests.desktop.gui.support import (
    Behaviour,
    Pulse,
    agent,
    documents,
    endless,
    http,
    listener,
    raw,
    silent,
    status,
    task,
    wait_for,
)
from tests.support.hostile import TEXTS, acts

LONGEST_PAUSE_MS = 700  # Less than any of the waits below; a quiet machine shows 20.

BAD: dict[str, tuple[Behaviour, str]] = {
    "huge": (http(b"x" * (2 << 20)), "larger than 1,048,576 bytes"),
    "endless": (endless(b"x" * 65536), "larger than 1,048,576 bytes"),
    "silent": (silent, "has not answered for"),
    "dripping": (endless(b"x", 0.02), "has not answered for"),
    "empty": (raw(b""), "does not speak HTTP"),
    "noise": (raw(bytes(range(256)) * 4), "does not speak HTTP"),
    "long head": (raw(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 9000 + b"\r\n"), "does not speak HTTP"),
    "error": (http(b"", "HTTP/1.1 500 Internal Server Error"), "500 Internal Server Error"),
    "elsewhere": (http(b"", "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/"), "302 Found"),
    "odd first line": (raw(b"HTTP/1.1 \r\n\r\n"), "It answers"),
    "cut": (http(b'{"node": ', length=5000), "cut after 9 bytes"),
    "length in words": (raw(b"HTTP/1.1 200 OK\r\nContent-Length: all\r\n\r\n{}"), "cut after 2 bytes"),
    "no json": (http(b"<html>"), "cannot be understood"),
    "no text": (http(b'{"node": "\xff"}'), "cannot be understood"),
    "missing": (http(b"{}"), "missing required field"),
    "deep": (http(b"[" * 500_000), "cannot be understood"),
    "deep inside": (http(b'{"later": ' + b"[" * 500_000), "cannot be understood"),
    "odd state": (http(status(state="dancing")), "Invalid enum value 'dancing'"),
    "negative": (http(status(paid=-1)), "$.paid"),
    "beyond": (http(status(verified=2**64)), "$.verified"),
    "long name": (http(status(name="x" * 301)), "$.name"),
    "many tasks": (http(status(tasks=[task()] * 65)), "$.tasks"),
    "stage of text": (http(status(tasks=[task(stage="1")])), "$.tasks[0].stage"),
    "loss of text": (http(status(tasks=[task(loss="low")])), "$.tasks[0].loss"),
}


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER_TIMEOUT_MS", 1000)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", BAD)
def test_an_answer_that_cannot_be_used_is_told_and_nothing_freezes(
    open_desktop: Callable[..., Desktop], home: Path, kind: str
) -> None:
    behave, words = BAD[kind]
    with listener(home / "agent.sock", behave):
        desktop = open_desktop()
        pulse = Pulse()
        wait_for(lambda: desktop.lending.snapshot.phase is AgentPhase.TROUBLE, "trouble")
        window = desktop.window
        assert window.home.headline.text() == "The agent needs your attention."
        assert words in window.home.reason.accessibleName()
        assert window.home.switch.isChecked()
        assert pulse.longest < LONGEST_PAUSE_MS
    wait_for(lambda: desktop.lending.snapshot.phase is AgentPhase.OFF, "the end of the trouble")


def test_a_window_recovers_when_answers_become_usable_again(open_desktop: Callable[..., Desktop], home: Path) -> None:
    answer: list[Behaviour] = [http(b"nonsense")]

    def behave(caller: socket.socket) -> None:
        is_status = b"/v1/status" in caller.recv(4096, socket.MSG_PEEK)
        (answer[0] if is_status else http(b"{}"))(caller)

    with listener(home / "agent.sock", behave):
        desktop = open_desktop()
        phases: list[tuple[AgentPhase, Behaviour]] = [
            (AgentPhase.TROUBLE, http(status())),
            (AgentPhase.RUNNING, silent),
            (AgentPhase.TROUBLE, http(status(name="cellar"))),
        ]
        for phase, following in phases:
            wait_for(lambda phase=phase: desktop.lending.snapshot.phase is phase, phase.value)
            answer[0] = following
        wait_for(lambda: desktop.lending.snapshot.phase is AgentPhase.RUNNING, "the second recovery")
        assert desktop.window.home.computer.value("name").text() == "cellar"


def test_a_field_that_the_window_does_not_know_is_no_trouble(open_desktop: Callable[..., Desktop], home: Path) -> None:
    with listener(home / "agent.sock", http(status(invented_later={"a": [1, 2]}))):
        desktop = open_desktop()
        wait_for(lambda: desktop.lending.snapshot.phase is AgentPhase.RUNNING, "running")
        assert desktop.window.home.headline.text() == "Waiting for a job."


def words_of(widget: QWidget) -> Iterator[str]:
    """Everything that a window says, to eyes and to screen readers."""
    for part in (widget, *widget.findChildren(QWidget)):
        yield from (part.toolTip(), part.accessibleName(), part.windowTitle())
        if isinstance(part, QLabel | QAbstractButton):
            yield part.text()
        if isinstance(part, QTableWidget):
            cells = [part.item(row, column) for row in range(part.rowCount()) for column in range(part.columnCount())]
            yield from (cell.text() for cell in cells if cell is not None)
        if isinstance(part, QListWidget):
            yield from (part.item(row).text() for row in range(part.count()))
        if isinstance(part, QPlainTextEdit):
            yield part.toPlainText()


@pytest.mark.parametrize("name", sorted(set(TEXTS) - {"long", "long-and-wide"}))
def test_no_part_of_the_window_shows_what_deceives(open_desktop: Callable[..., Desktop], home: Path, name: str) -> None:
    text = TEXTS[name]
    docs = documents()
    earnings = json.loads(docs["earnings"])
    for job in earnings["jobs"]:
        job |= {"name": text, "detail": text, "proof": text}
    docs["earnings"] = json.dumps(earnings).encode()
    event = {"number": 9, "at": 1.0, "severity": "error", "kind": "job failed", "text": text}
    docs["activity"] = json.dumps({"events": [event | {"detail": {"name": text, "why": text}}]}).encode()
    docs["support"] = json.dumps({"text": text}).encode()
    docs["status"] = status(name=text, note=text, reason=text, tasks=[task(job_name=text, reason=text)], trouble=text)
    with listener(home / "agent.sock", agent(docs)):
        window = open_desktop().window
        window.go(EARNINGS)
        wait_for(window.earnings.table.rowCount, "jobs")
        window.go(ACTIVITY)
        wait_for(window.activity.list.count, "events")
        window.go(HOME)
        shown = [words.replace("\u200b", "") for words in words_of(window)]  # Our own, where a long word may be broken.
        assert [words for words in shown if acts(words)] == []
    table = table_of(read(docs["earnings"], EarningsSummary))
    assert acts(table.replace("\r\n", "\n")) == []
    rows = list(csv.reader(io.StringIO(table)))
    assert len(rows) == 1 + len(earnings["jobs"]), "no row is forged"
    assert not [row for row in rows if row[1][:1] in ("=", "+", "-", "@")]


def test_text_from_elsewhere_is_shown_as_text(open_desktop: Callable[..., Desktop], home: Path) -> None:
    name = "<b>free</b> <img src=x> &quit \u202egnp\n\x1b[2J"
    with listener(home / "agent.sock", http(status(name=name, tasks=[task(job_name=name)]))):
        desktop = open_desktop()
        wait_for(lambda: desktop.lending.snapshot.phase is AgentPhase.RUNNING, "running")
        shown = "<b>free</b> <img src=x> &quit �gnp �[2J"
        label = desktop.window.home.computer.value("name")
        assert label.textFormat() is Qt.TextFormat.PlainText
        assert label.text() == shown
        assert desktop.window.home.headline.text() == f"Lending to “{shown}”."
        assert desktop.tray.state.text() == f"Lending to “{shown.replace('&', '&&')}”."
        assert desktop.tray.icon.toolTip() == "Cottage: lending, 67 °C, 1.24 today"


def test_a_name_without_spaces_does_not_widen_the_window(open_desktop: Callable[..., Desktop], home: Path) -> None:
    with listener(home / "agent.sock", http(status(name="x" * 300, reason="y" * 4000, state="connecting"))):
        desktop = open_desktop()
        wait_for(lambda: desktop.lending.snapshot.phase is AgentPhase.RUNNING, "running")
        desktop.window.resize(MIN_WIDTH, 700)
        wait_for(lambda: desktop.window.width() == MIN_WIDTH, "a narrow window")
        assert desktop.window.home.width() <= MIN_WIDTH
        assert len(desktop.window.home.reason.accessibleName()) == 300


def deep(folder: Path, name: str, length: int) -> Path:
    """A path that ends in ``name`` and has so many bytes."""
    path = folder / ("d" * (length - len(str(folder)) - len(name) - 2)) / name
    path.parent.mkdir()
    assert len(str(path)) == length
    return path


LENGTHS = (105, 106, 107, 108, 160)  # Qt takes 106 bytes as the name of a socket, the kernel 107.


@pytest.mark.parametrize("length", LENGTHS)
def test_a_socket_in_a_deep_folder_is_reached(app: object, tmp_path: Path, length: int) -> None:
    path = deep(tmp_path, "agent.sock", length)
    with listener(path, http(b"{}")):
        asker = client.AgentClient(path)
        heard: list[bytes] = []
        asker.answered.connect(lambda body, pid: heard.append(body))
        asker.ask()
        wait_for(lambda: heard, "an answer")
        assert json.loads(heard[0]) == {}


@pytest.mark.parametrize("length", LENGTHS)
def test_a_window_whose_home_is_deep_comes_forward_when_it_is_called(app: object, tmp_path: Path, length: int) -> None:
    home = deep(tmp_path, "window.sock", length).parent
    first, called = OnlyOne(home), list[int]()
    first.called.connect(lambda: called.append(1))
    assert first.is_first
    assert (home / "window.sock").exists()
    assert not OnlyOne(home).is_first
    wait_for(lambda: called, "a call")
    first.let_go()
