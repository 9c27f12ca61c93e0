"""Files named by what is in them: datasets, weights, checkpoints, model archives.

A file that stands under its digest is whole and never changes. It lies on the coordinator's disk (``disk_artifacts``) or in a
bucket (``bucket``); whoever keeps, reads or sends one does not see which.
"""

import errno
import hashlib
import re
from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from heapq import nlargest
from pathlib import Path
from typing import Final, Protocol

from coordinator.errors import NotFoundError, UnavailableError

CHUNK_BYTES: Final = 1 << 20  # Read and hashed in one go: large enough that the thread switch costs nothing.
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


MAX_NAMED = 20  # Of what a sweep would remove, told by name.


@dataclass(frozen=True)
class ArtifactStock:
    """How many artifacts lie somewhere, and how many of them a sweep would remove. ``size``, ``removable_size``: in bytes.

    ``largest``: of those that it would remove, bytes and digests.
    """

    files: int = 0
    size: int = 0
    removable: int = 0
    removable_size: int = 0
    largest: tuple[tuple[int, str], ...] = ()

    def with_one(self, digest: str, size: int, removable: bool) -> "ArtifactStock":
        """One more is found."""
        files, total = self.files + 1, self.size + size
        if not removable:
            return replace(self, files=files, size=total)
        largest = tuple(nlargest(MAX_NAMED, (*self.largest, (size, digest))))
        return ArtifactStock(files, total, self.removable + 1, self.removable_size + size, largest)


class ArtifactStore(Protocol):
    """Where artifacts lie. Whatever does not answer for a while is an UnavailableError: nothing is lost by it."""

    async def put(self, chunks: AsyncIterator[bytes], expect: str | None, limit: int) -> str:
        """Keep a stream of bytes and return its SHA-256; one that breaks off leaves nothing.

        Args:
            chunks: the bytes, in pieces of any size.
            expect: the digest they must have; ``None`` takes whatever they are.
            limit: bytes that may come, at most.
        Raises:
            InvalidError: the bytes have another digest than ``expect``.
            TooLargeError: more than ``limit`` bytes came.
            UnavailableError: there is no room, or the store does not answer.
        """

    async def put_file(self, path: Path, link: bool = False, expect: str | None = None) -> str:
        """Keep a file and return its SHA-256; the file itself stays as it is.

        Args:
            path: the file.
            link: share its bytes instead of copying them, where the disk can: for a file that nobody will write to again.
            expect: the digest it must have; ``None`` takes whatever it is.
        Raises:
            InvalidError: it has another digest than ``expect``.
            UnavailableError: as ``put``.
        """

    async def has(self, digest: str) -> bool:
        """Whether the artifact is here, whole."""

    async def size(self, digest: str) -> int:
        """Its bytes; NotFoundError where there is none of this digest, or it is not a digest."""

    def files(self, *digests: str) -> AbstractAsyncContextManager[tuple[Path, ...]]:
        """Artifacts as files of this machine, for as long as the body runs; NotFoundError as ``size``."""

    async def near(self, digest: str) -> Path | None:
        """The file to send, where it is on this machine; None: send what ``read`` brings. NotFoundError as ``size``."""

    def read(self, digest: str, start: int, stop: int) -> AsyncIterator[bytes]:
        """The bytes from ``start`` to before ``stop``; NotFoundError as ``size``."""

    async def sweep(self, referred: Collection[bytes], before: float) -> tuple[int, int]:
        """Remove what is not among ``referred`` (digests, 32 bytes each) and was placed before a moment, in Unix seconds.

        Returns:
            how many artifacts, and how many bytes.
        """

    async def survey(self, referred: Collection[bytes], before: float) -> ArtifactStock:
        """What is here, and what ``sweep`` would remove now; nothing is removed."""

    def total(self) -> int:
        """Bytes that there is room for in all; shares of accounts are parts of it."""

    def free(self) -> int:
        """Bytes that there is room for now."""


def is_digest(text: str) -> bool:
    """Whether it can be the name of an artifact."""
    return _DIGEST.fullmatch(text) is not None


def missing(digest: str) -> NotFoundError:
    """There is no such artifact."""
    return NotFoundError(f"no artifact {digest[:80]!r} is here: upload it first", "digest")


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def no_room(error: OSError) -> Exception:
    """A full disk as the answer that says so; any other error as it is."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UnavailableError("the coordinator's disk is full: try again later, or ask its operator to make room")
    return error
