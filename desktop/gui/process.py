"""The agent as a process of its own: it outlives the window that started it."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QObject, QSocketNotifier, Signal

from desktop.gui.errors import StartError, StopError
from desktop.gui.model import plain

MAX_LOG_BYTES = 8 << 20  # Weeks of an agent's log; then it begins anew.
TAIL_BYTES = 16384  # Holds the last lines even where they are as long as the agent lets them be.
PROGRAM_NAME = "cottage node: "  # Begins the line in which the agent says why it failed.


class AgentProcess(QObject):
    """At most one process. It is held by a descriptor, so that a signal can never reach another one that got its number."""

    ended = Signal()
    """The process is gone."""

    def __init__(self, log: Path, parent: QObject | None = None) -> None:
        """What a started agent says goes to ``log``."""
        super().__init__(parent)
        self._log = log
        self._pid = 0
        self._is_ours = False
        self._children: set[int] = set()
        self._log_start = 0
        self._handle: int | None = None
        self._notifier: QSocketNotifier | None = None

    @property
    def pid(self) -> int:
        """The process that is followed, or 0."""
        return self._pid

    @property
    def is_ours(self) -> bool:
        """It was started here, rather than found."""
        return self._is_ours

    def start(self, command: Sequence[str]) -> None:
        """Start ``command`` in a session of its own; ``QProcess`` would end it with the window, or not tell which one it is.

        Raises:
            StartError: it cannot be started, or the log not be written.
        """
        opened = (
            os.O_WRONLY | os.O_CREAT | os.O_APPEND
        )  # Appending survives a trim, and shares with an agent that runs.
        streams = (
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, str(self._log), opened, 0o600),
        )
        try:
            self._log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._log_start = self._log.stat().st_size if self._log.exists() else 0
            pid = os.posix_spawn(command[0], list(command), os.environ, file_actions=streams, setsid=True)
        except OSError as error:
            raise StartError(
                self.tr("{0} cannot be started with its log in {1}: {2}.").format(
                    plain(command[0]), self._log, error.strerror
                )
            ) from error
        self._children.add(pid)
        self._is_ours = True
        self._hold(pid)

    def follow(self, pid: int) -> None:
        """Hold the process ``pid``; ``ended`` comes at once where it is gone already."""
        if pid != self._pid:
            self._is_ours = False
            self._hold(pid)

    def _hold(self, pid: int) -> None:
        self.let_go()
        try:
            self._handle = os.pidfd_open(pid)
        except OSError:
            self.ended.emit()
            return
        self._pid = pid
        self._notifier = QSocketNotifier(self._handle, QSocketNotifier.Type.Read, self)
        self._notifier.activated.connect(self._gone)

    def ask_to_stop(self) -> None:
        """Ask the process to hand over its work and end; ``ended`` follows when it has.

        Raises:
            StopError: no process is held, or it may not be signalled.
        """
        if self._handle is None:
            raise StopError(self.tr("It is not known which process answers; end it where it was started."))
        try:
            signal.pidfd_send_signal(self._handle, signal.SIGTERM)
        except ProcessLookupError:
            return  # It has just ended; the notifier says so.
        except OSError as error:
            raise StopError(
                self.tr("The process {0} cannot be stopped: {1}.").format(self._pid, error.strerror)
            ) from error

    def let_go(self) -> None:
        """Follow the process no longer; it runs on."""
        if self._notifier is not None:
            self._notifier.setEnabled(False)
            self._notifier.deleteLater()
            self._notifier = None
        if self._handle is not None:
            os.close(self._handle)
            self._handle, self._pid = None, 0

    def last_words(self) -> str:
        """Why the process that was started here ended; empty where another was followed, whose log is elsewhere."""
        if not self._is_ours:
            return ""
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
        return self.tr("It ended without a word; its log is {0}.").format(self._log)

    def tend(self) -> None:
        """Now and then: leave no zombie, and begin the log anew where it has grown past its limit."""
        self._reap()
        try:
            if self._log.stat().st_size > MAX_LOG_BYTES:
                os.truncate(self._log, 0)
        except OSError:
            return  # No log, or not ours: nothing grows.

    def _gone(self) -> None:
        self._reap()
        self.let_go()
        self.ended.emit()

    def _reap(self) -> None:
        for pid in tuple(self._children):
            ended, _ = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._children.discard(pid)
