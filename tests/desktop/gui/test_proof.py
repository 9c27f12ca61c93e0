"""The window checks a coordinator's word against the ledger, with the real command, and says in words what came out."""

import asyncio
import json
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from desktop.gui import proof
from desktop.gui.app import Desktop
from desktop.gui.proof import ProofCheck, proof_program
from desktop.gui.window import EARNINGS
from tests.desktop.gui.support import agent, documents, listener, save_picture, wait_for
from tests.proof.town import town

ROOT = Path(__file__).parents[3]
JOB = "ab" * 16
HELD = [
    {"check": "shares", "subject": "round 1", "verdict": "pass", "detail": "", "used": "ledger"},
    {"check": "draw", "subject": "round 1", "verdict": "pass", "detail": "", "used": "ledger"},
]
NOTE = {
    "check": "endpoint",
    "subject": "ledger",
    "verdict": "note",
    "detail": "the coordinator's word",
    "used": "nothing",
}
FALSE = {"check": "shares", "subject": "round 2", "verdict": "fail", "detail": "7 instead of 5", "used": "ledger"}


class Asked:
    """A check by a program of the test, and what was said of it."""

    def __init__(self, *program: str) -> None:
        self.told: list[tuple[str, str]] = []
        self.check = ProofCheck(program or None)
        self.check.said.connect(lambda job, text: self.told.append((job, text)))

    def run(self, command: str = f"cottage ledger check {JOB} --coordinator http://127.0.0.1:9") -> str:
        self.check.begin(JOB, command)
        wait_for(lambda: self.told, "a word", 120)
        wait_for(lambda: not self.check.is_running, "the end")
        ((job, text),) = self.told
        assert job == JOB
        return text


def program(output: str, code: int = 0, errors: str = "") -> tuple[str, ...]:
    said = f"import sys; sys.stdout.write({output!r}); sys.stderr.write({errors!r}); sys.exit({code})"
    return (sys.executable, "-c", said)


def test_what_holds_is_said_with_what_the_ledger_alone_does_not_show(app: QApplication) -> None:
    assert Asked(*program(json.dumps(HELD))).run() == (
        "✓ 2 checks hold: the ledger shows what the coordinator says of this job."
    )
    assert (
        Asked(*program(json.dumps([NOTE, *HELD])))
        .run()
        .endswith("1 more cannot be seen on the ledger alone; the command names them.")
    )


def test_what_was_lost_before_a_restore_is_named_and_not_called_checked(app: QApplication) -> None:
    lost = {**NOTE, "check": "restore", "subject": "somebody", "detail": "¤ 1 was paid before a restore"}
    for code in (0, 4):
        assert Asked(*program(json.dumps([*HELD, lost]), code)).run() == (
            "2 checks hold. Not everything could be checked, since the coordinator was restored. "
            "somebody: ¤ 1 was paid before a restore"
        )


def test_an_untruth_is_named(app: QApplication) -> None:
    said = Asked(*program(json.dumps([*HELD, FALSE]), 1)).run()
    assert said.startswith("✕ Not true: shares, round 2: 7 instead of 5.")


@pytest.mark.parametrize(
    ("output", "code", "errors", "said"),
    [
        (
            "",
            3,
            "usage\ncottage: the ledger does not answer",
            "It cannot be checked now: cottage: the ledger does not answer",
        ),
        ("", 2, "", "It cannot be checked now: "),
        ("no JSON", 0, "", "What the check says cannot be understood: is it of another version?"),
        ("[]", 0, "", "What the check says cannot be understood: is it of another version?"),
        (json.dumps(HELD), 1, "", "What the check says cannot be understood: is it of another version?"),
    ],
)
def test_what_is_no_proof_is_never_called_one(
    app: QApplication, output: str, code: int, errors: str, said: str
) -> None:
    assert Asked(*program(output, code, errors)).run() == said


def test_a_check_that_hangs_floods_or_cannot_start_ends_with_a_sentence(
    app: QApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Asked("/nowhere/cottage").run().startswith("The check cannot be started: ")
    assert Asked(sys.executable, "-c", "while True: print('x' * 65536)").run() == "The check ended without a word."
    monkeypatch.setattr(proof, "PATIENCE_S", 1)
    said = Asked(sys.executable, "-c", "import time; time.sleep(600)").run()
    assert said == "The check took longer than 0 minutes and was ended."


@pytest.mark.parametrize("command", ["", "rm -rf /", "cottage ledger check 'x", "cottage ledger claim x"])
def test_only_the_check_is_ever_run(app: QApplication, command: str) -> None:
    asked = Asked(*program(json.dumps(HELD)))
    asked.check.begin(JOB, command)
    assert not asked.check.is_running


def test_one_that_is_stopped_says_nothing(app: QApplication) -> None:
    asked = Asked(sys.executable, "-c", "import time; time.sleep(600)")
    asked.check.begin(JOB, f"cottage ledger check {JOB}")
    asked.check.stop()
    assert not asked.check.is_running
    assert asked.told == []


def test_a_coordinator_that_is_away_is_said_by_the_real_command(app: QApplication) -> None:
    assert Asked().run().startswith("It cannot be checked now: ")


def test_the_bundle_s_agent_has_the_command(tmp_path: Path) -> None:
    start = ROOT / "installer" / "desktop" / "start_agent.py"
    for words, said in ((("ledger", "check", "--help"), "cottage ledger check"), (("--help",), "selftest")):
        done = subprocess.run(
            (sys.executable, str(start), *words), capture_output=True, text=True, check=True, cwd=ROOT,
            env={"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(tmp_path)}, timeout=60,
        )  # fmt: skip
        assert said in done.stdout
    assert proof_program()[1:] == ("-m", "cottage", "ledger", "check")


class TownThread:
    """A real coordinator on the real ledger with a job that is over, in a thread of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._ready, self._over = folder, threading.Event(), threading.Event()
        self.words: dict[str, str] = {}
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()))

    async def _live(self) -> None:
        async with town(self._folder) as made:
            self.words = {"job": await made.train(), "coordinator": made.url, "rpc": made.rpc}
            self._ready.set()
            while not self._over.is_set():
                await asyncio.sleep(0.05)

    def __enter__(self) -> dict[str, str]:
        self._thread.start()
        assert self._ready.wait(120), "the job is not over"
        return self.words

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(30)


@pytest.fixture
def truth(tmp_path: Path) -> Iterator[dict[str, str]]:
    with TownThread(tmp_path) as words:
        yield words


def test_a_real_job_is_checked_by_one_click(
    open_desktop: Callable[..., Desktop], home: Path, truth: dict[str, str]
) -> None:
    docs, orders = documents(), list[tuple[str, Any]]()
    earnings = json.loads(docs["earnings"])
    command = f"cottage ledger check {truth['job']} --coordinator {truth['coordinator']} --rpc {truth['rpc']}"
    earnings["jobs"][2] |= {"job": truth["job"], "proof": command}
    docs["earnings"] = json.dumps(earnings).encode()
    assert shlex.split(command)[3] == truth["job"]
    with listener(home / "agent.sock", lambda caller: agent(docs, orders)(caller)):
        desktop = open_desktop()
        page = desktop.window.earnings
        desktop.window.go(EARNINGS)
        wait_for(lambda: page.table.rowCount() == 6, "the jobs")
        assert not page.check.isEnabled(), "no job is chosen"
        page.table.selectRow(3)
        QTest.mouseClick(page.check, Qt.MouseButton.LeftButton)
        assert not page.check.isEnabled(), "one at a time"
        assert "Comparing" in page.proven.accessibleName()
        page.table.selectRow(0)
        assert not page.proven.isVisible(), "another job has not been checked"
        wait_for(lambda: not page._proof.is_running, "the proof", 120)
        page.table.selectRow(3)
        said = page.proven.accessibleName()
        assert said.startswith("✓ "), said
        assert int(said.split()[1]) > 20, said
        assert page.check.isEnabled()
        save_picture(desktop.window, "earnings_proven")
        desktop.lending._timer.stop()
        wait_for(lambda: not desktop.notices._calls._now, "the last answer")
