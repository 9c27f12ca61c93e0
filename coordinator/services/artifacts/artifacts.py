"""Files named by what is in them: datasets, weights, checkpoints, model archives.

A file that stands under its digest is whole and never changes. Bytes arrive in ``incoming`` beside it and are renamed in one
step once their hash is known, so a cut connection, a full disk or a killed process leaves nothing under any digest.
"""

import asyncio
import errno
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from coordinator.errors import InvalidError, NotFoundError, TooLargeError, UnavailableError

CHUNK_BYTES = 1 << 20  # Read and hashed in one go: large enough that the thread switch costs nothing.
_DIGEST = re.compile(r"[0-9a-f]{64}")


class ArtifactStore:
    """Content-addressed files under one folder, ``root/ab/abcdef...``."""

    def __init__(self, root: Path) -> None:
        """Make the folders and remove what an earlier process left half received."""
        self._root = root
        self._incoming = root / "incoming"
        shutil.rmtree(self._incoming, ignore_errors=True)
        self._incoming.mkdir(parents=True)

    async def put(self, chunks: AsyncIterator[bytes], expect: str | None, limit: int) -> str:
        """Keep a stream of bytes and return its SHA-256.

        Args:
            chunks: the bytes, in pieces of any size.
            expect: the digest they must have; ``None`` takes whatever they are.
            limit: bytes that may come, at most.
        Raises:
            InvalidError: the bytes have another digest than ``expect``.
            TooLargeError: more than ``limit`` bytes came.
            UnavailableError: the disk is full.
        """
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
            self._place(path, digest)
        return digest

    async def put_file(self, path: Path, link: bool = False, expect: str | None = None) -> str:
        """Keep a file and return its SHA-256; the file itself stays as it is.

        Args:
            path: the file.
            link: share its bytes instead of copying them, where the disk can: for a file that nobody will write to again.
            expect: the digest it must have; ``None`` takes whatever it is.
        Raises:
            InvalidError: it has another digest than ``expect``.
        """
        with self._temporary() as copy:
            await asyncio.to_thread(_link if link else _copy, path, copy)
            digest = await asyncio.to_thread(file_digest, copy)
            if expect is not None and digest != expect:
                raise InvalidError(f"the file arrived with SHA-256 {digest}, not {expect}: send it again", "sha256")
            self._place(copy, digest)
        return digest

    def path(self, digest: str) -> Path:
        """Where the artifact lies.

        Raises:
            NotFoundError: there is none of this digest, or it is not a digest.
        """
        if not self.has(digest):
            raise NotFoundError(f"no artifact {digest[:80]!r} is here: upload it first", "digest")
        return self._place_of(digest)

    def has(self, digest: str) -> bool:
        """Whether the artifact is here, whole."""
        return _DIGEST.fullmatch(digest) is not None and self._place_of(digest).is_file()

    def sweep(self, referred: Collection[bytes], before: float) -> tuple[int, int]:
        """Remove what is not among ``referred`` (digests, 32 bytes each) and was placed before a moment, in Unix seconds.

        Returns:
            how many files, and how many bytes. Takes as long as the disk needs to list everything: call it in a thread.
        """
        files = freed = 0
        for folder in self._root.iterdir():
            if len(folder.name) != 2:
                continue
            with os.scandir(folder) as entries:
                for entry in entries:
                    if _DIGEST.fullmatch(entry.name) is None or bytes.fromhex(entry.name) in referred:
                        continue
                    with suppress(FileNotFoundError):
                        found = entry.stat()
                        if found.st_mtime < before:
                            os.unlink(entry.path)
                            files, freed = files + 1, freed + found.st_size
        return files, freed

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


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def no_room(error: OSError) -> Exception:
    """A full disk as the answer that says so; any other error as it is."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UnavailableError("the coordinator's disk is full: try again later, or ask its operator to make room")
    return error


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
