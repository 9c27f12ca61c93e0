"""What this node keeps for its coordinator: the newest records of its jobs, sealed by the coordinator for itself.

A coordinator that was restored from a backup has forgotten what came after. It asks its nodes, and goes on from there. Nobody
here can read an entry or make one: a node can only lose it.
"""

import contextlib
import os
import re
import threading
from pathlib import Path

from desktop.agent.base.log import LOG
from protocol.node import (
    MAX_ENTRIES,
    RECORDS_EVERY,
    KeepRecords,
    ListRecords,
    RecordsEntry,
    RecordsKept,
    RecordsMessage,
    RecordsReturned,
    ReturnRecords,
)

BYTES = 256 << 20  # Of all entries together: some 4,000 rounds of large jobs; what was written first goes first.
NEWEST = 2  # Of each job; of earlier ones every RECORDS_EVERY-th stays.
_NAME = re.compile(r"([0-9a-f]{32})\.(\d+)\.(\d+)")


class CoordinatorRecords:
    """One file an entry, named by its job, epoch and rounds. Any thread may call."""

    def __init__(self, folder: Path, limit: int = BYTES) -> None:
        """Keep at most ``limit`` bytes in ``folder``."""
        self._folder, self._limit = folder, limit
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def answer(self, message: RecordsMessage) -> RecordsKept | RecordsReturned | None:
        """Keep what the coordinator gives, or say or give what is kept; what the disk does not take is lost to it alone."""
        match message:
            case ListRecords():
                return self.kept()
            case ReturnRecords(entry=entry):
                return self.returned(entry)
            case KeepRecords():
                try:
                    self.keep(message)
                except OSError as error:
                    LOG.warning("the coordinator's records of job %s are not kept: %s", message.entry.job[:8], error)
                return None

    def keep(self, message: KeepRecords) -> None:
        """Keep an entry in place of an older one of the same name, and make room.

        Raises:
            OSError: the disk has no room for it.
        """
        path = self._path(message.entry)
        draft = path.with_name(f"{path.name}.draft")
        with self._lock:
            try:
                draft.write_bytes(message.data)
                os.replace(draft, path)
            finally:
                draft.unlink(missing_ok=True)
            self._make_room(message.entry.job)

    def kept(self) -> RecordsKept:
        """Every entry that is here; no more are kept than one message names."""
        with self._lock:
            found = sorted(self._entries(), key=lambda entry: entry.stands, reverse=True)
        return RecordsKept(tuple(found[:MAX_ENTRIES]))

    def returned(self, entry: RecordsEntry) -> RecordsReturned:
        """An entry, or that it is not here."""
        try:
            return RecordsReturned(entry, self._path(entry).read_bytes())
        except OSError:
            return RecordsReturned(entry)

    def _path(self, entry: RecordsEntry) -> Path:
        return self._folder / f"{entry.job}.{entry.epoch}.{entry.rounds}"

    def _entries(self) -> list[RecordsEntry]:
        named = (_NAME.fullmatch(file.name) for file in self._folder.iterdir())
        return [RecordsEntry(match[1], int(match[2]), int(match[3])) for match in named if match]

    def _make_room(self, job: str) -> None:
        own = (entry for entry in self._entries() if entry.job == job)
        for entry in sorted(own, key=lambda entry: entry.stands, reverse=True)[NEWEST:]:
            if entry.rounds % RECORDS_EVERY:
                self._forget(self._path(entry))
        files = [(file.stat().st_mtime_ns, file.stat().st_size, file) for file in self._folder.iterdir()]
        total = 0
        for place, (_, size, file) in enumerate(sorted(files, reverse=True)):
            total += size
            if total > self._limit or place >= MAX_ENTRIES:
                self._forget(file)

    def _forget(self, file: Path) -> None:
        with contextlib.suppress(OSError):
            file.unlink()
