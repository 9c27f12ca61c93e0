"""The embedded ledger as a process of its own, to be ended in every way."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

EXIT_TIMEOUT_S = 20


class Served:
    """One ``python -m ledger.local`` at a time over the same file."""

    def __init__(self, folder: Path) -> None:
        self.db, self._ready = folder / "ledger.db", folder / "url"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> str:
        """Start; returns the URL once requests are answered."""
        command = [sys.executable, "-m", "ledger.local", "--port", "0", "--db", str(self.db)]
        self._process = subprocess.Popen(
            [*command, "--ready-file", str(self._ready)], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        printed = self._process.stdout.readline().strip()  # Waits until it serves, or for ever-closed output.
        assert printed, "the ledger ended before it served"
        return printed

    @property
    def ready_text(self) -> str:
        return self._ready.read_text()

    def end(self, how: signal.Signals) -> int:
        """Send a signal and wait; returns the exit code."""
        assert self._process is not None
        self._process.send_signal(how)
        code = self._process.wait(EXIT_TIMEOUT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        return code

    @property
    def is_running(self) -> bool:
        return self._process is not None


@contextlib.contextmanager
def served(folder: Path) -> Iterator[Served]:
    """A server that is gone afterwards, whatever happened."""
    server = Served(folder)
    try:
        yield server
    finally:
        if server.is_running:
            server.end(signal.SIGKILL)
