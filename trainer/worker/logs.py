"""The worker's log for whoever submitted the job: lines go to the agent in small packets, and never hold the computing up."""

import logging
import threading
from collections.abc import Callable
from typing import Literal

from common.untrusted_text import untrusted
from protocol.task import MAX_LOG_LINES, WorkerLog, WorkerLogLine

PACKET_S = 1.0  # Lines within that go together.

Level = Literal["debug", "info", "warning", "error"]
Later = Callable[[float, Callable[[], None]], object]


class ReportHandler(logging.Handler):
    """Gathers lines; beyond ``MAX_LOG_LINES`` a packet they are counted only."""

    def __init__(self, send: Callable[[WorkerLog], None], later: Later) -> None:
        """Take what sends a packet, and what calls a function after so many seconds, from any thread."""
        super().__init__(logging.INFO)
        self._send, self._later = send, later
        self._lines: list[WorkerLogLine] = []
        self._dropped = 0
        self._due = False
        self._guard = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line until the packet goes."""
        level: Level = (
            "error" if record.levelno >= logging.ERROR else "warning" if record.levelno >= logging.WARNING else "info"
        )
        text = record.getMessage() if record.exc_info is None else self.format(record)
        with self._guard:
            if len(self._lines) < MAX_LOG_LINES:
                self._lines.append(WorkerLogLine(record.created, level, untrusted(text)))
            else:
                self._dropped += 1
            first, self._due = not self._due, True
        if first:
            self._later(PACKET_S, self.flush)

    def flush(self) -> None:
        """Send what is there."""
        with self._guard:
            lines, dropped = tuple(self._lines), self._dropped
            self._lines, self._dropped, self._due = [], 0, False
        if lines:
            self._send(WorkerLog(lines, dropped))
