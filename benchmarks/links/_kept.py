"""What a long benchmark has measured so far, on disk, so that a run that was broken off goes on where it stopped."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

Figures = dict[str, Any]


class Kept:
    """Measurements by part and name.

    One that failed is not taken over: the next run tries it again.
    """

    def __init__(self, path: Path, settings: Figures, *, resume: bool) -> None:
        """Begin, or go on.

        Args:
            path: where they are kept.
            settings: what the figures depend on; those of a run with others are of no use here.
            resume: take over what is there.
        """
        self._path = path
        self._settings = json.loads(json.dumps(settings))
        self._rows: dict[str, Figures] = {}
        self.taken = 0
        if resume and path.exists():
            known = json.loads(path.read_text())
            if known["settings"] == self._settings:
                self._rows = known["rows"]

    async def get(self, part: str, name: str, measure: Callable[[], Awaitable[Figures]]) -> tuple[Figures, bool]:
        """The figures of a measurement, made now unless they are there; and whether they were."""
        rows = self._rows.setdefault(part, {})
        known = rows.get(name)
        if known is not None and "failed" not in known:
            self.taken += 1
            return dict(known), True
        rows[name] = figures = await measure()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_suffix(".new")
        beside.write_text(json.dumps({"settings": self._settings, "rows": self._rows}))
        beside.replace(self._path)
        return figures, False

    def forget(self) -> None:
        """All is measured and published."""
        self._path.unlink(missing_ok=True)
