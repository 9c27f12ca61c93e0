"""A process that outlives this one, held so that neither word nor end of another can be taken for its own."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from PySide6.QtCore import QObject, Signal

if sys.platform == "win32":
    import ctypes
    from ctypes import wintypes

    from PySide6.QtCore import QTimer

    LOOK_EVERY_MS = 500  # Qt's notifier for handles takes none from Python: its converter refuses every number (6.11).
    _SYNCHRONIZE, _TERMINATE, _STILL_RUNS = 0x100000, 0x1, 0x102
    _KILLED = 9  # What a process that was ended from outside says it ended with.
    _kernel = ctypes.WinDLL("kernel32", use_last_error=True)
    _kernel.OpenProcess.restype = wintypes.HANDLE

    class HeldByHandle(QObject):
        """A process by a handle, which names no other one as long as it is open."""

        ended = Signal()

        def __init__(self, pid: int, parent: QObject) -> None:
            """Hold the process ``pid``; raises OSError where it is gone."""
            super().__init__(parent)
            handle = _kernel.OpenProcess(_SYNCHRONIZE | _TERMINATE, False, pid)
            if not handle:
                raise ctypes.WinError(ctypes.get_last_error())
            self._handle = wintypes.HANDLE(handle)
            self._timer = QTimer(self, interval=LOOK_EVERY_MS)
            self._timer.timeout.connect(self._look)
            self._timer.start()

        def ask_to_stop(self) -> bool:
            """Whether the system has a way to ask it to end: Windows has none for a process without a console."""
            return False

        def kill(self) -> None:
            """End it at once, whatever it does; ``ended`` follows. Raises OSError where this user may not."""
            if not _kernel.TerminateProcess(self._handle, _KILLED):
                raise ctypes.WinError(ctypes.get_last_error())

        def close(self) -> None:
            """Hold it no longer; it runs on."""
            self._timer.stop()
            _kernel.CloseHandle(self._handle)

        def _look(self) -> None:
            if _kernel.WaitForSingleObject(self._handle, 0) != _STILL_RUNS:
                self.ended.emit()

    Held = HeldByHandle
    _FLAGS = subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP
else:
    import contextlib
    import os
    import signal

    class _HeldBySignals(QObject):
        """What Unix has in common; ``_send`` reaches this process and no other."""

        ended = Signal()

        def ask_to_stop(self) -> bool:
            """Ask it to end; ``ended`` follows. Raises OSError where this user may not."""
            self._send(signal.SIGTERM)
            return True

        def kill(self) -> None:
            """End it at once, whatever it does; ``ended`` follows. Raises OSError where this user may not."""
            self._send(signal.SIGKILL)

        def _send(self, number: signal.Signals) -> None:
            raise NotImplementedError

    _FLAGS = 0
    if sys.platform == "darwin":
        import select

        from PySide6.QtCore import QTimer

        LOOK_EVERY_MS = 500  # Qt's notifier there takes sockets only.

        class HeldByQueue(_HeldBySignals):
            """A process by a kernel queue (kqueue(2)) that tells its end; no signal is sent to its number after that."""

            def __init__(self, pid: int, parent: QObject) -> None:
                """Hold the process ``pid``; raises OSError where it is gone."""
                super().__init__(parent)
                self._pid, self._queue = pid, select.kqueue()
                exits = select.kevent(
                    pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD | select.KQ_EV_ONESHOT, select.KQ_NOTE_EXIT
                )
                try:
                    self._queue.control([exits], 0)
                except OSError:
                    self._queue.close()
                    raise
                self._timer = QTimer(self, interval=LOOK_EVERY_MS)
                self._timer.timeout.connect(self._look)
                self._timer.start()

            def _send(self, number: signal.Signals) -> None:
                self._look()
                if self._timer.isActive():
                    with contextlib.suppress(ProcessLookupError):  # It has just ended; the queue says so.
                        os.kill(self._pid, number)

            def close(self) -> None:
                """Hold it no longer; it runs on."""
                self._timer.stop()
                self._queue.close()

            def _look(self) -> None:
                if self._timer.isActive() and self._queue.control([], 1, 0):
                    self._timer.stop()
                    self.ended.emit()

        Held = HeldByQueue

    else:
        from PySide6.QtCore import QSocketNotifier

        class HeldByDescriptor(_HeldBySignals):
            """A process by a descriptor (pidfd_open(2)), so that a signal can never reach another one that got its number."""

            def __init__(self, pid: int, parent: QObject) -> None:
                """Hold the process ``pid``; raises OSError where it is gone."""
                super().__init__(parent)
                self._handle = os.pidfd_open(pid)
                self._notifier = QSocketNotifier(self._handle, QSocketNotifier.Type.Read, self)
                self._notifier.activated.connect(self.ended)

            def _send(self, number: signal.Signals) -> None:
                with contextlib.suppress(ProcessLookupError):  # It has just ended; the notifier says so.
                    signal.pidfd_send_signal(self._handle, number)

            def close(self) -> None:
                """Hold it no longer; it runs on."""
                self._notifier.setEnabled(False)
                os.close(self._handle)

        Held = HeldByDescriptor


def start_apart(command: Sequence[str], errors: IO[bytes]) -> "subprocess.Popen[bytes]":
    """Start a process that ends neither with this one nor with its console.

    ``QProcess`` would end it with the window, or not tell which one it is.

    Raises:
        OSError: it cannot be started.
    """
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        creationflags=_FLAGS,
        start_new_session=True,
    )


def opened_log(path: Path) -> IO[bytes]:
    """A log that is written at its end, whoever else writes there or trims it; raises OSError where it cannot be."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600)
    return path.open("ab")
