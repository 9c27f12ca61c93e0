"""Which store of artifacts the settings name."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from common.clock import Clock
from coordinator.config import Config
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.bucket.address import parse_bucket
from coordinator.services.artifacts.bucket.cache import FileCache
from coordinator.services.artifacts.bucket.client import opened
from coordinator.services.artifacts.bucket.store import BucketArtifacts
from coordinator.services.artifacts.disk_artifacts import DiskArtifacts

GIGABYTE = 10**9


@asynccontextmanager
async def store_of(config: Config, clock: Clock, owner: str) -> AsyncIterator[ArtifactStore]:
    """The data folder's, or a bucket that was looked at; it is ``owner``'s alone, who is a coordinator's address.

    Raises:
        StoreError: the bucket cannot be used.
    """
    if config.store is None:
        yield DiskArtifacts(config.data / "artifacts")
        return
    async with opened(parse_bucket(config.store), clock) as bucket:
        cache = FileCache(config.data / "store-cache", config.store_cache_gigabytes * GIGABYTE)
        made = BucketArtifacts(bucket, cache, config.data / "store-sending", config.store_gigabytes * GIGABYTE)
        await made.begin(owner)
        yield made
