"""Another version in this program's place while it runs: what a package manager does.

The package notes beside the program that all of its files lie there, last of all (``installer/desktop/debian/postinst``). A
program that finds another note than at its start is an old one.
"""

import sys
from pathlib import Path

from desktop.layout import NOTE

LOOK_S = 5.0
MAX_NOTE = 200


class ProgramPlace:
    """Where this program lies, as it was when this was made."""

    def __init__(self, program: Path | None = None) -> None:
        """``program``: the executable; by default this one, or none where Python runs a source tree, which nobody replaces."""
        if program is None and getattr(sys, "frozen", False):
            program = Path(sys.executable)
        self._note = program.with_name(NOTE) if program is not None else None
        self._before = self._read()

    def newer(self) -> str:
        """The version that lies there now; "" while it is the one that runs, or is just being written."""
        now = self._read()
        return now.split()[0] if now and now != self._before else ""

    def _read(self) -> str:
        if self._note is None:
            return ""
        try:
            with self._note.open(errors="replace") as file:
                return file.read(MAX_NOTE).strip()
        except OSError:
            return ""
