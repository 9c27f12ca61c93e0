"""Artifacts on the coordinator's own disk.

Bytes arrive in ``incoming`` beside the artifacts and are renamed in one step once their hash is known, so a cut connection, a
full disk or a killed process leaves nothing under any digest.
"""

import asyncio
import hashlib
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from coordinator.errors import InvalidError, TooLargeError
from coordinator.services.artifacts.artifacts import (
    CHUNK_BYTES,
    ArtifactStock,
    file_digest,
    is_digest,
    missing,
    no_room,
)


class DiskArtifacts:
    """Content-addressed files under one folder, ``root/ab/abcdef...``."""

    def __init__(self, root: Path, cell: int = 0) -> None:
        """Make the folders and remove what an earlier process of the same cell left half received."""
        self._root = root
        self._incoming = root / (f"incoming-{cell}" if cell else "incoming")
        shutil.rmtree(self._incoming, ignore_errors=True)
        self._incoming.mkdir(parents=True)

    async def put(self, chunks: AsyncIterator[bytes], expect: str | None, limit: int) -> str:
        """As ``ArtifactStore.put``; the bytes are on the disk before their name is."""
        hasher, size = hashlib.sha256(), 0
        with self._temporary() as path:
            with path.open("wb") as file:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > limit:
                        raise TooLargeError(f"more than {limit:,} bytes came: this artifact may have {limit:,} at most")
                    await asyncio.to_thread(_write, file, hasher, chunk)
                await asyncio.to_thread(_flush, file)
            digest = hasher.hexdigest()
            if expect is not None and digest != expect:
                raise InvalidError(f"the {size:,} bytes received have SHA-256 {digest}, not {expect}: send them again")
            await asyncio.to_thread(self._place, path, digest)
        return digest

    async def put_file(self, path: Path, link: bool = False, expect: str | None = None) -> str:
        """As ``ArtifactStore.put_file``."""
        with self._temporary() as copy:
            await asyncio.to_thread(_link if link else _copy, path, copy)
            digest = await asyncio.to_thread(file_digest, copy)
            if expect is not None and digest != expect:
                raise InvalidError(f"the file arrived with SHA-256 {digest}, not {expect}: send it again", "sha256")
            await asyncio.to_thread(self._place, copy, digest)
        return digest

    def path(self, digest: str) -> Path:
        """Where the artifact lies.

        Raises:
            NotFoundError: there is none of this digest, or it is not a digest.
        """
        if not is_digest(digest) or not self._place_of(digest).is_file():
            raise missing(digest)
        return self._place_of(digest)

    async def has(self, digest: str) -> bool:
        """As ``ArtifactStore.has``."""
        return is_digest(digest) and self._place_of(digest).is_file()

    async def size(self, digest: str) -> int:
        """As ``ArtifactStore.size``."""
        with _present(digest):
            return self.path(digest).stat().st_size

    @asynccontextmanager
    async def files(self, *digests: str) -> AsyncIterator[tuple[Path, ...]]:
        """As ``ArtifactStore.files``: the artifacts themselves."""
        yield tuple(self.path(digest) for digest in digests)

    async def near(self, digest: str) -> Path | None:
        """As ``ArtifactStore.near``: always a file."""
        return self.path(digest)

    async def read(self, digest: str, start: int, stop: int) -> AsyncIterator[bytes]:
        """As ``ArtifactStore.read``."""
        with _present(digest), self.path(digest).open("rb") as file:
            file.seek(start)
            while start < stop and (chunk := await asyncio.to_thread(file.read, min(CHUNK_BYTES, stop - start))):
                start += len(chunk)
                yield chunk

    async def sweep(self, referred: Collection[bytes], before: float) -> tuple[int, int]:
        """As ``ArtifactStore.sweep``; it takes as long as the disk needs to list everything."""
        return await asyncio.to_thread(self._sweep, referred, before)

    async def survey(self, referred: Collection[bytes], before: float) -> ArtifactStock:
        """As ``ArtifactStore.survey``; it takes as long as a sweep."""
        return await asyncio.to_thread(self._survey, referred, before)

    def total(self) -> int:
        """As ``ArtifactStore.total``: the disk's."""
        return shutil.disk_usage(self._root).total

    def free(self) -> int:
        """As ``ArtifactStore.free``: the disk's."""
        return shutil.disk_usage(self._root).free

    def _sweep(self, referred: Collection[bytes], before: float) -> tuple[int, int]:
        files = freed = 0
        for folder in self._root.iterdir():
            if len(folder.name) != 2:
                continue
            with os.scandir(folder) as entries:
                for entry in entries:
                    if not is_digest(entry.name) or bytes.fromhex(entry.name) in referred:
                        continue
                    with suppress(FileNotFoundError):
                        found = entry.stat()
                        if found.st_mtime < before:
                            os.unlink(entry.path)
                            files, freed = files + 1, freed + found.st_size
        return files, freed

    def _survey(self, referred: Collection[bytes], before: float) -> ArtifactStock:
        stock = ArtifactStock()
        for folder in self._root.iterdir():
            if len(folder.name) != 2:
                continue
            with os.scandir(folder) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        if is_digest(entry.name):
                            found, kept = entry.stat(), bytes.fromhex(entry.name) in referred
                            stock = stock.with_one(entry.name, found.st_size, not kept and found.st_mtime < before)
        return stock

    def _place_of(self, digest: str) -> Path:
        return self._root / digest[:2] / digest

    def _place(self, path: Path, digest: str) -> None:
        target = self._place_of(digest)
        target.parent.mkdir(exist_ok=True)
        os.replace(path, target)
        os.utime(target)  # It counts as new, also where it was here before: a sweep lets what is new alone.
        _sync_folder(target.parent)

    @contextmanager
    def _temporary(self) -> Iterator[Path]:
        path = self._incoming / secrets.token_hex(16)
        try:
            yield path
        except OSError as error:
            raise no_room(error) from error
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def _present(digest: str) -> Iterator[None]:
    """A file that a sweep took away in between is one that is not here."""
    try:
        yield
    except FileNotFoundError as error:
        raise missing(digest) from error


def _write(file: BinaryIO, hasher: "hashlib._Hash", chunk: bytes) -> None:
    file.write(chunk)
    hasher.update(chunk)


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as read, target.open("wb") as write:
        shutil.copyfileobj(read, write, CHUNK_BYTES)
        _flush(write)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # Another disk, or one without links: the copy says what is really wrong, if something is.
        _copy(source, target)


def _sync_folder(folder: Path) -> None:
    """Make a rename outlive a power cut; Windows keeps its directories without being asked."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
