"""Artifacts of a bucket that are on this machine for a while: what tools work on, and small ones that many ask for.

As many bytes as there may be stay, those that were used last; a file that somebody works on stays in any case. A file under its
digest is whole: what a killed process left half fetched has another name, and goes at the next start.
"""

import os
from asyncio import Lock
from collections import Counter, OrderedDict, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from coordinator.services.artifacts.artifacts import is_digest
from coordinator.services.artifacts.disk_space import Room

Fetch = Callable[[Path], Awaitable[None]]


class FileCache:
    """``most``: bytes that stay while nobody works on them."""

    def __init__(self, folder: Path, most: int, room: Room | None = None) -> None:
        """Continue with what lies in ``folder``. ``room``: of the disk that it is on; None: the disk is asked."""
        self._folder = folder
        self._most = most
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._held: Counter[str] = Counter()
        self._fetching: defaultdict[str, Lock] = defaultdict(Lock)
        folder.mkdir(parents=True, exist_ok=True)
        self._room = room or Room(folder)
        for path in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime):
            if is_digest(path.name):
                self._sizes[path.name] = path.stat().st_size
            elif path.is_file():
                path.unlink()

    def find(self, digest: str) -> Path | None:
        """The file, where it is here."""
        if digest not in self._sizes:
            return None
        self._sizes.move_to_end(digest)
        return self._folder / digest

    @asynccontextmanager
    async def holding(self, digest: str, size: int, fetch: Fetch) -> AsyncIterator[Path]:
        """The file, fetched if need be, which stays for as long as the body runs.

        Raises:
            UnavailableError: the disk has no room for it. Whatever ``fetch`` raises.
        """
        with self._held_here(digest):
            async with self._fetching[digest]:
                if self.find(digest) is None:
                    await self._fetch(digest, size, fetch)
            yield self._folder / digest

    def adopt(self, path: Path, digest: str) -> None:
        """Keep a file that is here anyway, and that nobody will write to again, without copying it; where that cannot be, not."""
        size = path.stat().st_size
        if size <= self._most and self.find(digest) is None:
            with suppress(OSError):
                os.link(path, self._folder / digest)
                self._sizes[digest] = size
                self._shrink()

    def forget(self, digest: str) -> None:
        """Its artifact is gone."""
        if self._sizes.pop(digest, None) is not None:
            (self._folder / digest).unlink(missing_ok=True)

    @contextmanager
    def _held_here(self, digest: str) -> Iterator[None]:
        self._held[digest] += 1
        try:
            yield
        finally:
            self._held[digest] -= 1
            if not self._held[digest]:
                del self._held[digest]
                self._fetching.pop(digest, None)
            self._shrink()

    async def _fetch(self, digest: str, size: int, fetch: Fetch) -> None:
        self._shrink(size)
        draft = self._folder / f"{digest}.part"
        try:
            with self._room.take(size):
                await fetch(draft)
            os.replace(draft, self._folder / digest)
            self._sizes[digest] = size
        finally:
            draft.unlink(missing_ok=True)

    def _shrink(self, more: int = 0) -> None:
        """Let the oldest go until there is room for ``more`` bytes."""
        total = sum(self._sizes.values()) + more
        for digest in [digest for digest in self._sizes if digest not in self._held]:
            if total <= self._most:
                return
            total -= self._sizes[digest]
            self.forget(digest)
