"""Which store of artifacts the settings name."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from common.clock import Clock
from coordinator.config import Config
from coordinator.domain.cells import WHOLE, Cell
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.bucket.address import parse_bucket
from coordinator.services.artifacts.bucket.cache import FileCache
from coordinator.services.artifacts.bucket.client import opened
from coordinator.services.artifacts.bucket.store import BucketArtifacts
from coordinator.services.artifacts.disk_artifacts import DiskArtifacts

GIGABYTE = 10**9


@asynccontextmanager
async def store_of(
    config: Config, clock: Clock, owner: str, cell: Cell = WHOLE, folder: Path | None = None
) -> AsyncIterator[ArtifactStore]:
    """The data folder's, or a bucket that was looked at; it is ``owner``'s alone, who is a coordinator's address.

    Args:
        cell: that stores there beside others.
        folder: what no other cell touches; None: the data folder.
    Raises:
        StoreError: the bucket cannot be used.
    """
    if config.store is None:
        yield DiskArtifacts(config.data / "artifacts", cell.number)
        return
    own = folder or config.data
    async with opened(parse_bucket(config.store), clock) as bucket:
        cache = FileCache(own / "store-cache", config.store_cache_gigabytes * GIGABYTE)
        room, alone = config.store_gigabytes * GIGABYTE, cell.of == 1
        made = BucketArtifacts(bucket, cache, own / "store-sending", room, alone)
        await made.begin(owner)
        yield made
