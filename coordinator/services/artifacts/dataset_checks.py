"""Checks of datasets before anybody pays: asked for, queued, run one by one in a process with limits, and kept for a day.

A check is named by what it reads and how, so asking twice is one check. Its request and its end are a file each; a check that was
under way when the coordinator stopped begins again as soon as somebody asks for it.
"""

import asyncio
import hashlib
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from coordinator.domain.account import LOCAL_ACCOUNT
from coordinator.errors import CottageError, TooManyError, UnavailableError
from coordinator.services.accounts.budgets import CHECKS, MAX_CHECKS_EACH, Budgets
from coordinator.services.artifacts.artifacts import ArtifactStore
from protocol.codec import encode_json
from protocol.ids import Digest
from protocol.rest.dataset import Check, CheckRequest, DatasetReport

MAX_QUEUED = 64  # Checks take seconds; a longer queue is somebody playing.
MAX_KEPT_BYTES = 1 << 20  # A report has 30 KB.
KEEP_S = 86_400.0  # Whoever asks later has it checked again.
MAX_KEPT = 4_000  # Reports; beyond it the oldest go.
SWEEP_EACH = 32  # Checks.
RETRY_S = 30.0

Progress = Callable[[int], None]


class Inspector(Protocol):
    """What checks want of the trainer's tools."""

    async def inspect(self, request: CheckRequest, progress: Progress, name: str = "") -> DatasetReport:
        """Read a dataset, which its owner calls ``name``; InvalidError where it is none."""


class _Ended(msgspec.Struct):
    """A check's end, as it is kept."""

    report: DatasetReport | None
    problem: str


class _Asked(NamedTuple):
    """A check that waits: what is asked, what the asker calls the dataset, and who asks."""

    request: CheckRequest
    name: str
    account_id: str


class DatasetChecks:
    """Asks, waits, and remembers."""

    def __init__(
        self, folder: Path, artifacts: ArtifactStore, inspector: Inspector, budgets: Budgets | None = None
    ) -> None:
        """Keep what ended in ``folder``. ``budgets`` None: accounts have none, but for how many of each wait."""
        self._budgets = budgets
        self._done = 0
        self._folder = folder
        self._artifacts = artifacts
        self._inspector = inspector
        self._waiting: OrderedDict[str, _Asked] = OrderedDict()
        self._read: dict[str, int] = {}
        self._more = asyncio.Event()
        self._changed = asyncio.Condition()

    async def ask(self, request: CheckRequest, name: str = "", account_id: str = LOCAL_ACCOUNT) -> Check:
        """Begin a check, or find the one that was begun.

        Args:
            name: what the asker calls the dataset; what is found speaks of it so.
            account_id: who asks.
        Raises:
            NotFoundError: the dataset or the tokenizer is not here.
            UnavailableError: too many are queued. TooManyError: too many of the account are, or were.
        """
        size = await self._artifacts.size(request.dataset.artifact)
        if request.tokenizer.file is not None:
            await self._artifacts.size(request.tokenizer.file)
        check = name_of(request, name)
        if (ended := self._ended(check)) is None and check not in self._waiting:
            if len(self._waiting) >= MAX_QUEUED:
                raise UnavailableError(f"{MAX_QUEUED} datasets wait for their check: try again in a minute")
            own = sum(asked.account_id == account_id for asked in self._waiting.values())
            if account_id != LOCAL_ACCOUNT and own >= MAX_CHECKS_EACH:
                raise TooManyError(f"{own} datasets of yours wait for their check: wait for one to end", RETRY_S)
            if self._budgets is not None:
                await self._budgets.take(CHECKS, account_id)
            self._waiting[check] = _Asked(request, name, account_id)
            self._more.set()
        return self._view(check, size, ended)

    async def get(
        self, request: CheckRequest, seconds: float = 0.0, name: str = "", account_id: str = LOCAL_ACCOUNT
    ) -> Check:
        """As ``ask``; waits so long for its end, at most."""
        found = await self.ask(request, name, account_id)
        try:
            async with asyncio.timeout(seconds), self._changed:
                while found.state in ("queued", "running"):
                    await self._changed.wait()
                    found = await self.ask(request, name, account_id)
        except TimeoutError:
            return await self.ask(request, name, account_id)
        return found

    async def run(self) -> None:
        """Do what is queued, for ever: accounts take turns, and each has its own in order."""
        served: OrderedDict[str, None] = OrderedDict()
        while True:
            await self._more.wait()
            self._more.clear()
            while self._waiting:
                check, asked = self._next(served)
                self._read[check] = 0
                try:
                    self._save(check, await self._look(asked.request, partial(self._tell, check), asked.name))
                finally:
                    self._waiting.pop(check, None)
                    self._read.pop(check, None)
                async with self._changed:
                    self._changed.notify_all()

    def _next(self, served: OrderedDict[str, None]) -> tuple[str, _Asked]:
        """The oldest check of the account whose turn was longest ago."""
        turns = {account_id: turn for turn, account_id in enumerate(served, 1)}
        check, asked = min(self._waiting.items(), key=lambda item: turns.get(item[1].account_id, 0))
        served[asked.account_id] = None
        served.move_to_end(asked.account_id)
        if len(served) > MAX_QUEUED:
            served.popitem(last=False)
        return check, asked

    def sweep(self) -> None:
        """Remove reports that are old, and the oldest of too many."""
        if not self._folder.is_dir():
            return
        with os.scandir(self._folder) as entries:
            found = sorted(((entry.stat().st_mtime, entry.path) for entry in entries), reverse=True)
        oldest = time.time() - KEEP_S
        for place, (at, path) in enumerate(found):
            if at < oldest or place >= MAX_KEPT:
                os.unlink(path)

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
        self._done += 1
        if self._done % SWEEP_EACH == 1:
            self.sweep()


def name_of(request: CheckRequest, name: str = "") -> Digest:
    """The digest of what is asked, by somebody who calls the dataset so."""
    return hashlib.sha256(encode_json(request) + name.encode()).hexdigest()
