"""When a coordinator was backed up last: ``cottage backup`` leaves a file in its data folder, whose age metrics tell."""

import os
from pathlib import Path

FILE = "backed-up"


def note_backup(data: Path, made: float) -> None:
    """Say that everything until ``made``, in Unix seconds, is in a backup.

    Raises:
        OSError: it cannot be written.
    """
    (data / FILE).touch()
    os.utime(data / FILE, (made, made))


def backup_age(data: Path, now: float) -> float | None:
    """Seconds since then; None: it never was, or not by ``cottage backup``."""
    try:
        return max(0.0, now - (data / FILE).stat().st_mtime)
    except OSError:
        return None
