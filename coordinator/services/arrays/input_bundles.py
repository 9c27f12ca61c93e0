"""Many small inputs of an array job that came in one archive: an upload for each would cost a round trip and a place in line."""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from coordinator.errors import InvalidError
from coordinator.services.artifacts.artifacts import ArtifactStore
from protocol.job.results import ArchivedFile, contents

PURPOSE: Final = "inputs"
MAX_BUNDLED: Final = 500  # Files of one archive: each is written to the disk for good.
MAX_BUNDLED_BYTES: Final = 32 << 20  # Of a file, which is in memory while it is kept.


def looked_through(path: Path) -> list[ArchivedFile]:
    """The files of a bundle, each called by its SHA-256; raises InvalidError."""
    with path.open("rb") as file:

        def read(begin: int, end: int) -> bytes:
            file.seek(begin)
            return file.read(end - begin)

        try:
            found = contents(read, path.stat().st_size, MAX_BUNDLED)
        except ValueError as error:
            raise InvalidError(f"this archive of inputs is not taken: {error}", PURPOSE) from error
        for one in found:
            if not 0 < one.size <= MAX_BUNDLED_BYTES:
                said = f"{one.path[:80]!r} has {one.size:,} bytes"
                raise InvalidError(f"{said}: a file of a bundle has 1 to {MAX_BUNDLED_BYTES:,}", PURPOSE)
            if hashlib.sha256(read(one.begin, one.begin + one.size)).hexdigest() != one.path:
                raise InvalidError(f"{one.path[:80]!r} is not the SHA-256 of the file that it names", PURPOSE)
    if not found:
        raise InvalidError("this archive of inputs is empty", PURPOSE)
    return found


async def take_apart(path: Path, found: list[ArchivedFile], artifacts: ArtifactStore) -> None:
    """Keep each file of a bundle as an artifact of its own."""
    with path.open("rb") as file:
        for one in found:
            if not await artifacts.has(one.path):
                file.seek(one.begin)
                await artifacts.put(_once(file.read(one.size)), one.path, one.size)


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data
