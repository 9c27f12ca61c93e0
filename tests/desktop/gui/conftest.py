"""A real window on no screen, a coordinator in a thread of its own, and agents as processes."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

try:
    from PySide6.QtCore import QSettings, qInstallMessageHandler
    from PySide6.QtWidgets import QApplication
    from shiboken6 import isValid

    from desktop.gui import lending
    from desktop.gui.app import Desktop, application, wear
    from desktop.gui.model import AgentPhase
    from desktop.gui.pages.welcome import DONE
    from desktop.gui.theme import LIGHT
    from tests.desktop.gui.support import Orders, agent, documents, listener, wait_for

    MISSING = ""
except ImportError as error:
    MISSING = f"the window needs PySide6 and Qt's system libraries: {error}"

from tests.desktop.coordinator_double import Double

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[3]
PROGRAM = ROOT / "tests" / "desktop" / "agent_program.py"
# Qt's offscreen platform has neither a tray nor a stack of windows, and says so; the tray's own test has a real screen.
HARMLESS = (
    "QPlatformNativeInterface::systemTrayWindowChanged",
    "This plugin does not support raise()",
    "propagateSizeHints()",
)


class _Skipped(pytest.Module):
    def collect(self) -> "Sequence[pytest.Item]":
        pytest.skip(MISSING, allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return _Skipped.from_parent(parent, path=module_path) if MISSING else None


@pytest.fixture(scope="session")
def app() -> "QApplication":
    return application(["cottage"], "en")


@pytest.fixture(autouse=True)
def no_warnings_of_qt(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A warning of Qt fails the test, and so does an exception in a slot, which PySide only prints."""
    said: list[str] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: said.append(repr(error)))
    before = qInstallMessageHandler(lambda kind, context, text: said.append(text))
    yield
    qInstallMessageHandler(before)
    assert [text for text in said if not any(harmless in text for harmless in HARMLESS)] == []


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An agent's folder; an agent that a test leaves running there is ended."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(lending, "SEEN_INTERVAL_MS", 100)
    folder = tmp_path / "h"
    folder.mkdir(mode=0o700)
    yield folder
    if (pid := agent_of(folder)) is not None:
        os.kill(pid, signal.SIGKILL)


def agent_of(home: Path) -> int | None:
    """The agent that runs with ``home``: the process in its lock that was started for it."""
    try:
        pid = int((home / "agent.lock").read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if str(home).encode() in words else None


OpenDesktop = Callable[..., "Desktop"]


@pytest.fixture
def open_desktop(app: "QApplication", home: Path, tmp_path: Path) -> Iterator[OpenDesktop]:
    """A window for ``home``; ``arguments`` are for the agent that its switch starts."""
    opened: list[Desktop] = []

    def make(*arguments: str, hidden: bool = False) -> Desktop:
        command = (
            sys.executable,
            str(PROGRAM),
            "run",
            "--stay",
            "--always",
            "--home",
            str(home),
            "--threads",
            "1",
            *arguments,
        )
        settings = QSettings(str(tmp_path / "window.ini"), QSettings.Format.IniFormat)
        settings.setValue(DONE, True)
        desktop = Desktop(home, command, settings, hidden)
        opened.append(desktop)
        return desktop

    yield make
    wear(LIGHT)
    for desktop in opened:
        close(desktop)


@pytest.fixture
def docs() -> dict[str, bytes]:
    """What the agent behind ``desktop`` answers; a module that needs other answers has a fixture of this name."""
    return documents()


@pytest.fixture
def orders() -> "Orders":
    """What the agent behind ``desktop`` was told."""
    return []


@pytest.fixture
def desktop(open_desktop: OpenDesktop, home: Path, docs: dict[str, bytes], orders: "Orders") -> Iterator["Desktop"]:
    """A window over an agent that answers with ``docs`` and notes ``orders``."""
    with listener(home / "agent.sock", lambda caller: agent(docs, orders)(caller)):
        made = open_desktop()
        wait_for(lambda: made.lending.snapshot.phase is AgentPhase.RUNNING, "an answer")
        yield made
        made.lending._timer.stop()
        wait_for(lambda: not made.notices._calls._now, "the last answer")


def close(desktop: "Desktop") -> None:
    """What the end of the program does; once more, it does nothing."""
    if not isValid(desktop):
        return
    desktop.window.hide()
    desktop.window.deleteLater()
    desktop.deleteLater()
    gone: list[bool] = []
    desktop.destroyed.connect(lambda: gone.append(True))
    wait_for(lambda: gone, "the window's end")


class CoordinatorThread:
    """The coordinator double beside Qt's event loop."""

    def __init__(self) -> None:
        self.double = Double()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.run(self.double.start())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)

    def close(self) -> None:
        self.run(self.double.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def coordinator_thread() -> Iterator[CoordinatorThread]:
    thread = CoordinatorThread()
    yield thread
    thread.close()


@pytest.fixture
def first_run(app: "QApplication", home: Path, tmp_path: Path) -> Iterator[OpenDesktop]:
    """A window that nobody has used before, over an agent that ``command`` starts."""
    opened: list[Desktop] = []

    def make(*command: str) -> Desktop:
        settings = QSettings(str(tmp_path / "first.ini"), QSettings.Format.IniFormat)
        opened.append(Desktop(home, command or ("false",), settings))
        return opened[-1]

    yield make
    for desktop in opened:
        desktop.lending._timer.stop()
        close(desktop)
