"""What has happened here, for the owner: kept on disk over restarts, the oldest dropped."""

import sqlite3
from pathlib import Path
from typing import Literal

import msgspec

from desktop.agent.base.log import printable
from desktop.answers import ActivityEvent, ActivityEvents

Severity = Literal["info", "warning", "error"]
Kind = Literal[
    "started",
    "ended",
    "lending",
    "job began",
    "job ended",
    "job failed",
    "jobs failed",
    "earned",
    "paid",
    "settings",
    "stopped",
    "test",
    "update",
    "bond",
    "unanswered",
    "returned",
]
MAX_KEPT = 5000  # Months of an ordinary node.
MAX_ASKED = 500
_SCHEMA = """
CREATE TABLE IF NOT EXISTS event (
    number INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, severity TEXT NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL,
    detail TEXT NOT NULL);
"""


class Activity:
    """The file of events."""

    def __init__(self, path: Path) -> None:
        """Open the file, or make it."""
        self._database = sqlite3.connect(path, isolation_level=None, timeout=5.0)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.executescript(_SCHEMA)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def add(self, at: float, kind: Kind, text: str, severity: Severity = "info", **detail: str) -> None:
        """Remember that it happened."""
        row = (at, severity, kind, printable(text), msgspec.json.encode(detail).decode())
        cursor = self._database.execute(
            "INSERT INTO event (at, severity, kind, text, detail) VALUES (?, ?, ?, ?, ?)", row
        )
        self._database.execute("DELETE FROM event WHERE number <= ?", ((cursor.lastrowid or 0) - MAX_KEPT,))

    def holds(self, kind: Kind, detail: dict[str, str]) -> bool:
        """Whether exactly this has happened, as far back as is kept."""
        row = (kind, msgspec.json.encode(detail).decode())
        return self._database.execute("SELECT 1 FROM event WHERE kind = ? AND detail = ?", row).fetchone() is not None

    def newest(self, count: int = MAX_ASKED) -> ActivityEvents:
        """The newest ``count``."""
        rows = self._database.execute("SELECT * FROM event ORDER BY number DESC LIMIT ?", (min(count, MAX_ASKED),))
        return ActivityEvents(
            tuple(
                ActivityEvent(number, at, severity, kind, text, msgspec.json.decode(detail))
                for number, at, severity, kind, text, detail in rows
            )
        )

    @property
    def last(self) -> int:
        """Number of the newest event, 0 before the first."""
        row = self._database.execute("SELECT max(number) FROM event").fetchone()
        return int(row[0] or 0)
