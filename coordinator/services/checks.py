"""Checks of datasets before anybody pays: asked for, queued, run one after the other in a process with limits, and kept.

A check is named by what it reads and how, so asking twice is one check. Its request and its end are a file each; a check that was
under way when the coordinator stopped begins again as soon as somebody asks for it.
"""

import asyncio
import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from coordinator.errors import CottageError, UnavailableError
from coordinator.services.artifacts import ArtifactStore
from transport.wire.codec import encode_json
from transport.wire.dataset import Check, CheckRequest, DatasetReport
from transport.wire.ids import Digest

MAX_QUEUED = 64  # Checks take seconds; a longer queue is somebody playing.
MAX_KEPT_BYTES = 1 << 20  # A report has 30 KB.

Progress = Callable[[int], None]


class Inspector(Protocol):
    """What checks want of the trainer's tools."""

    async def inspect(self, request: CheckRequest, progress: Progress, name: str = "") -> DatasetReport:
        """Read a dataset, which its owner calls ``name``; InvalidError where it is none."""


class _Ended(msgspec.Struct):
    """A check's end, as it is kept."""

    report: DatasetReport | None
    problem: str


class DatasetChecks:
    """Asks, waits, and remembers."""

    def __init__(self, folder: Path, artifacts: ArtifactStore, inspector: Inspector) -> None:
        """Keep what ended in ``folder``."""
        self._folder = folder
        self._artifacts = artifacts
        self._inspector = inspector
        self._waiting: OrderedDict[str, tuple[CheckRequest, str]] = OrderedDict()
        self._read: dict[str, int] = {}
        self._more = asyncio.Event()
        self._changed = asyncio.Condition()

    async def ask(self, request: CheckRequest, name: str = "") -> Check:
        """Begin a check, or find the one that was begun.

        Args:
            name: what the asker calls the dataset; what is found speaks of it so.
        Raises:
            NotFoundError: the dataset or the tokenizer is not here.
            UnavailableError: too many are queued.
        """
        size = self._artifacts.path(request.dataset.artifact).stat().st_size
        if request.tokenizer.file is not None:
            self._artifacts.path(request.tokenizer.file)
        check = name_of(request, name)
        if (ended := self._ended(check)) is None and check not in self._waiting:
            if len(self._waiting) >= MAX_QUEUED:
                raise UnavailableError(f"{MAX_QUEUED} datasets wait for their check: try again in a minute")
            self._waiting[check] = request, name
            self._more.set()
        return self._view(check, size, ended)

    async def get(self, request: CheckRequest, seconds: float = 0.0, name: str = "") -> Check:
        """As ``ask``; waits so long for its end, at most."""
        found = await self.ask(request, name)
        try:
            async with asyncio.timeout(seconds), self._changed:
                while found.state in ("queued", "running"):
                    await self._changed.wait()
                    found = await self.ask(request, name)
        except TimeoutError:
            return await self.ask(request, name)
        return found

    async def run(self) -> None:
        """Do what is queued, for ever."""
        while True:
            await self._more.wait()
            self._more.clear()
            while self._waiting:
                check, (request, name) = next(iter(self._waiting.items()))
                self._read[check] = 0
                try:
                    self._save(check, await self._look(request, partial(self._tell, check), name))
                finally:
                    self._waiting.pop(check, None)
                    self._read.pop(check, None)
                async with self._changed:
                    self._changed.notify_all()

    async def _look(self, request: CheckRequest, progress: Progress, name: str) -> _Ended:
        try:
            return _Ended(await self._inspector.inspect(request, progress, name), "")
        except CottageError as error:
            return _Ended(None, error.detail)

    def _tell(self, check: str, read: int) -> None:
        self._read[check] = read

    def _view(self, check: str, size: int, ended: _Ended | None) -> Check:
        if ended is not None:
            return Check(check, "done" if ended.report else "failed", size, size, ended.report, ended.problem)
        return Check(check, "running" if check in self._read else "queued", self._read.get(check, 0), size)

    def _ended(self, name: str) -> _Ended | None:
        path = self._folder / f"{name}.json"
        return msgspec.json.decode(path.read_bytes()[:MAX_KEPT_BYTES], type=_Ended) if path.is_file() else None

    def _save(self, name: str, ended: _Ended) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        fresh = self._folder / f"{name}.new"
        fresh.write_bytes(msgspec.json.encode(ended))
        os.replace(fresh, self._folder / f"{name}.json")


def name_of(request: CheckRequest, name: str = "") -> Digest:
    """The digest of what is asked, by somebody who calls the dataset so."""
    return hashlib.sha256(encode_json(request) + name.encode()).hexdigest()
