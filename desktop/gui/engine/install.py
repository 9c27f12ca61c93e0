"""Runs ``install-engine.sh`` as root: pkexec has the system's own window ask for leave, and no shell sees a word of anybody's."""

import os
import shutil
import sys
from pathlib import Path

from PySide6.QtCore import QObject, QProcess, QProcessEnvironment, Signal

from desktop.gui.engine.systems import EngineSource, fault_of, os_release, source_of

SCRIPT = Path(__file__).with_name("install-engine.sh")
RELEASES = (Path("/etc/os-release"), Path("/usr/lib/os-release"))
MAX_LOG = 1 << 18  # Characters; a large upgrade says 20,000.


def here() -> EngineSource | None:
    """The engine of this computer's distribution; None where it is not Linux, or not known."""
    if sys.platform != "linux":
        return None
    for file in RELEASES:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        return source_of(os_release(text), lambda name: shutil.which(name) is not None)
    return None


def authoriser() -> str:
    """pkexec, where it is installed."""
    return shutil.which("pkexec") or "" if sys.platform == "linux" else ""


class EngineInstall(QObject):
    """One installation at a time."""

    step = Signal(str)
    """packages, service, user or done."""
    said = Signal(str)
    """More of the log."""
    ended = Signal(str)
    """What went wrong, as ``fault_of`` has it; empty: nothing."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._process: QProcess | None = None
        self._log = self._rest = ""

    @property
    def is_running(self) -> bool:
        """It has begun, and not ended."""
        return self._process is not None

    def start(self, manager: str) -> None:
        """Install by ``manager``, a word of ``systems.SOURCES``; ``ended`` follows."""
        if self._process is not None:
            return
        self._log = self._rest = ""
        process = self._process = QProcess(self)
        environment = QProcessEnvironment.systemEnvironment()
        environment.insert("LC_ALL", "C.UTF-8")
        process.setProcessEnvironment(environment)
        process.setProcessChannelMode(QProcess.ProcessChannelMode.MergedChannels)
        process.readyReadStandardOutput.connect(self._read)
        process.finished.connect(lambda code, _: self._end(code))
        process.errorOccurred.connect(self._fail)
        script = [str(SCRIPT)] if os.access(SCRIPT, os.X_OK) else ["/bin/sh", str(SCRIPT)]
        process.start(authoriser(), [*script, manager])

    def _read(self) -> None:
        if self._process is None:
            return
        text = self._process.readAllStandardOutput().data()
        *lines, self._rest = (self._rest + bytes(text).decode(errors="replace")).split("\n")
        for line in lines:
            self._take(line)

    def _take(self, line: str) -> None:
        if line.startswith("@"):
            self.step.emit(line[1:])
            return
        self._log = (self._log + line + "\n")[-MAX_LOG:]
        self.said.emit(line)

    def _fail(self, error: QProcess.ProcessError) -> None:
        if error is QProcess.ProcessError.FailedToStart:
            self._end(127)

    def _end(self, code: int) -> None:
        if self._process is None:
            return
        self._read()
        if self._rest:
            self._take(self._rest)
        ended, self._process = self._process, None
        crashed = ended.exitStatus() is QProcess.ExitStatus.CrashExit
        ended.deleteLater()
        self.ended.emit("failed" if crashed else fault_of(code, self._log))
