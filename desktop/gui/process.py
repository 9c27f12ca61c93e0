"""The agent as a process of its own: it outlives the window that started it."""

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from PySide6.QtCore import QObject, Signal

from desktop.gui.errors import StartError, StopError
from desktop.gui.held import Held, opened_log, start_apart
from desktop.gui.model import plain

MAX_LOG_BYTES = 8 << 20  # Weeks of an agent's log; then it begins anew.
TAIL_BYTES = 16384  # Holds the last lines even where they are as long as the agent lets them be.
PROGRAM_NAME = "cottage node: "  # Begins the line in which the agent says why it failed.
_T = TypeVar("_T")


class AgentProcess(QObject):
    """At most one process, which is held: no word for it reaches another one that got its number."""

    ended = Signal()
    """The process is gone."""

    def __init__(self, log: Path, leave: Callable[[], None], parent: QObject | None = None) -> None:
        """What a started agent says goes to ``log``; ``leave`` asks it to end where the system has no way to."""
        super().__init__(parent)
        self._log = log
        self._leave = leave
        self._pid = 0
        self._is_ours = self._crashed = False
        self._children: list[subprocess.Popen[bytes]] = []
        self._log_start = 0
        self._held: Held | None = None

    @property
    def pid(self) -> int:
        """The process that is followed, or 0."""
        return self._pid

    @property
    def is_ours(self) -> bool:
        """It was started here, rather than found."""
        return self._is_ours

    @property
    def crashed(self) -> bool:
        """The process that was started here and has ended did so by no wish of its own: by a signal, or with an error."""
        return self._crashed

    def start(self, command: Sequence[str]) -> None:
        """Start ``command`` apart from this program and its session.

        Raises:
            StartError: it cannot be started, or the log not be written.
        """
        try:
            with opened_log(self._log) as log:
                self._log_start = log.tell()
                child = start_apart(command, log)
        except OSError as error:
            raise StartError(
                self.tr("{0} cannot be started with its log in {1}: {2}.").format(
                    plain(command[0]), self._log, error.strerror
                )
            ) from error
        self._children.append(child)
        self._is_ours = True
        self._hold(child.pid)

    def follow(self, pid: int) -> None:
        """Hold the process ``pid``; ``ended`` comes at once where it is gone already."""
        if pid != self._pid:
            self._is_ours = False
            self._hold(pid)

    def _hold(self, pid: int) -> None:
        self.let_go()
        try:
            self._held = Held(pid, self)
        except OSError:
            self.ended.emit()
            return
        self._pid = pid
        self._held.ended.connect(self._gone)

    def ask_to_stop(self) -> None:
        """Ask the process to hand over its work and end; ``ended`` follows when it has.

        Raises:
            StopError: no process is held, or it may not be asked.
        """
        if not self._told(Held.ask_to_stop):
            self._leave()

    def kill(self) -> None:
        """End the process at once; ``ended`` follows. Raises as ``ask_to_stop``."""
        self._told(Held.kill)

    def _told(self, word: Callable[[Held], _T]) -> _T:
        if self._held is None:
            raise StopError(self.tr("It is not known which process answers; end it where it was started."))
        try:
            return word(self._held)
        except OSError as error:
            raise StopError(
                self.tr("The process {0} cannot be stopped: {1}.").format(self._pid, error.strerror)
            ) from error

    def let_go(self) -> None:
        """Follow the process no longer; it runs on."""
        if self._held is not None:
            self._held.close()
            self._held.deleteLater()
            self._held, self._pid = None, 0

    def last_words(self) -> str:
        """Why the process that was started here ended; empty where another was followed, whose log is elsewhere."""
        if not self._is_ours:
            return ""
        return self.reason() or self.tr("It ended without a word; its log is {0}.").format(self._log)

    def reason(self) -> str:
        """What the process that was started here said of its end; empty where somebody else ended it."""
        try:
            with self._log.open("rb") as file:
                size = self._log.stat().st_size
                start = self._log_start if self._log_start <= size else 0
                file.seek(max(start, size - TAIL_BYTES))
                lines = file.read(TAIL_BYTES).decode(errors="replace").splitlines()
        except OSError:
            lines = []
        for line in reversed(lines):
            if line.startswith(PROGRAM_NAME):
                return plain(line.removeprefix(PROGRAM_NAME))
        return ""

    def tend(self) -> None:
        """Now and then: leave no zombie, and begin the log anew where it has grown past its limit."""
        self._reap()
        try:
            if self._log.stat().st_size > MAX_LOG_BYTES:
                os.truncate(self._log, 0)
        except OSError:
            return  # No log, or not ours: nothing grows.

    def _gone(self) -> None:
        codes = [child.poll() for child in self._children if child.pid == self._pid]
        self._crashed = any(code not in (0, None) for code in codes)
        self._reap()
        self.let_go()
        self.ended.emit()

    def _reap(self) -> None:
        self._children = [child for child in self._children if child.poll() is None]
