"""One suite over every store of artifacts: the disk, and buckets of two S3 servers that packages bring."""

import asyncio
import hashlib
import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from coordinator.errors import InvalidError, NotFoundError, TooLargeError
from coordinator.services.artifacts.artifacts import ArtifactStock, ArtifactStore
from coordinator.services.artifacts.bucket.client import PART_BYTES
from coordinator.services.artifacts.bucket.store import BucketArtifacts
from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
from tests.support.buckets import BucketServer, in_buckets

BIG = 2 * PART_BYTES + 12_345


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def made_up(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


async def pieces(data: bytes, size: int = 1 << 18) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, BucketServer]]:
    made: dict[str, BucketServer] = {}
    yield made
    for server in made.values():
        server.remove()


@pytest.fixture(params=["disk", "nanio", pytest.param("moto", marks=pytest.mark.long)])
async def store(
    request: pytest.FixtureRequest, servers: dict[str, BucketServer], tmp_path: Path
) -> AsyncIterator[ArtifactStore]:
    async with AsyncExitStack() as stack:
        if request.param == "disk":
            yield DiskArtifacts(tmp_path / "artifacts")
            return
        if request.param not in servers:
            servers[request.param] = BucketServer(request.param)
            servers[request.param].start()
        server = servers[request.param]
        address = await server.make(f"bucket-{os.urandom(4).hex()}")
        yield await stack.enter_async_context(server.store(address, tmp_path))


async def left(store: ArtifactStore) -> set[str]:
    """Names of what is there, whole or not."""
    if isinstance(store, DiskArtifacts):
        return {path.name for path in store._root.rglob("*") if path.is_file()}
    assert isinstance(store, BucketArtifacts)
    names, unfinished = await in_buckets(store._bucket)
    parts = {path.name for path in store._notes.iterdir()} | ({"unfinished"} if unfinished else set())
    return names | parts


async def whole(store: ArtifactStore, digest: str) -> bytes:
    return b"".join([chunk async for chunk in store.read(digest, 0, await store.size(digest))])


@pytest.mark.parametrize("size", [0, 1, 1_000_000, PART_BYTES, PART_BYTES + 1, BIG])
async def test_what_is_put_is_read_again_to_the_last_byte(store: ArtifactStore, size: int) -> None:
    data = made_up(size)
    assert await store.put(pieces(data), sha(data), size) == sha(data)
    assert await store.has(sha(data))
    assert await store.size(sha(data)) == size
    assert await whole(store, sha(data)) == data
    async with store.files(sha(data), sha(data)) as (path, again):
        assert path.read_bytes() == data
        assert again == path
    assert await store.put(pieces(data), sha(data), size) == sha(data), "the same bytes again are the same artifact"
    assert await left(store) == {sha(data)}


async def test_any_range_is_read(store: ArtifactStore) -> None:
    data = made_up(BIG)
    await store.put(pieces(data), sha(data), BIG)
    for start, stop in ((0, 1), (BIG - 1, BIG), (PART_BYTES - 3, PART_BYTES + 3), (5, 5), (1_000, BIG)):
        assert b"".join([chunk async for chunk in store.read(sha(data), start, stop)]) == data[start:stop]


async def test_bytes_without_a_digest_get_theirs(store: ArtifactStore) -> None:
    data = made_up(BIG, 2)
    assert await store.put(pieces(data), None, BIG) == sha(data)
    assert await whole(store, sha(data)) == data
    assert await left(store) == {sha(data)}


@pytest.mark.parametrize("link", [True, False])
@pytest.mark.parametrize("size", [0, 100, BIG])
async def test_a_file_is_kept_and_stays_as_it_is(store: ArtifactStore, tmp_path: Path, size: int, link: bool) -> None:
    data = made_up(size, 3)
    file = tmp_path / "file"
    file.write_bytes(data)
    with pytest.raises(InvalidError, match="send it again"):
        await store.put_file(file, link, "0" * 64)
    assert await left(store) == set()
    assert await store.put_file(file, link, sha(data)) == sha(data)
    assert file.read_bytes() == data
    file.unlink()
    assert await whole(store, sha(data)) == data
    assert await left(store) == {sha(data)}


@pytest.mark.parametrize("size", [3_000_000, BIG])
async def test_what_is_damaged_too_long_or_broken_off_leaves_nothing(store: ArtifactStore, size: int) -> None:
    data = made_up(size, 4)
    with pytest.raises(InvalidError, match="SHA-256"):
        await store.put(pieces(data), "0" * 64, size)
    with pytest.raises(TooLargeError):
        await store.put(pieces(data), sha(data), size - 1)

    async def cut() -> AsyncIterator[bytes]:
        yield data[:-1]
        raise InvalidError("the line was cut")

    with pytest.raises(InvalidError, match="cut"):
        await store.put(cut(), sha(data), size)
    stalled = asyncio.Event()

    async def stall() -> AsyncIterator[bytes]:
        yield data[:-1]
        stalled.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(store.put(stall(), sha(data), size))
    await stalled.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await left(store) == set()
    assert not await store.has(sha(data))


@pytest.mark.parametrize("name", ["0" * 64, "../../etc/passwd", "", "A" * 64, f"{'a' * 64}\n", "owner"])
async def test_no_other_name_leads_anywhere(store: ArtifactStore, name: str) -> None:
    assert not await store.has(name)
    for ask in (store.size(name), store.near(name)):
        with pytest.raises(NotFoundError, match="upload it first"):
            await ask
    with pytest.raises(NotFoundError):
        async with store.files(name):
            pass
    with pytest.raises(NotFoundError):
        await anext(store.read(name, 0, 1))


async def test_a_sweep_takes_what_is_old_and_not_referred_to(store: ArtifactStore) -> None:
    kept, gone = made_up(1_000, 5), made_up(2_000, 6)
    for data in (kept, gone):
        await store.put(pieces(data), sha(data), len(data))
    referred: Any = {bytes.fromhex(sha(kept))}
    assert await store.sweep(referred, 1.0) == (0, 0), "both are new"
    assert await store.survey(referred, 1.0) == ArtifactStock(2, 3_000, 0, 0)
    assert await store.survey(referred, 4e9) == ArtifactStock(2, 3_000, 1, 2_000, ((2_000, sha(gone)),)), (
        "a look takes nothing"
    )
    assert await store.sweep(referred, 4e9) == (1, 2_000)
    assert await left(store) == {sha(kept)}
    assert not await store.has(sha(gone))
    with pytest.raises(NotFoundError):
        await store.size(sha(gone))
    assert await whole(store, sha(kept)) == kept
    await store.put(pieces(gone), sha(gone), len(gone))
    assert await store.has(sha(gone)), "and it may come again"


async def test_many_at_a_time_do_not_get_into_each_others_way(store: ArtifactStore) -> None:
    one, other = made_up(BIG, 7), made_up(BIG, 8)
    puts = [store.put(pieces(data), sha(data), BIG) for data in (one, other, one, one)]
    assert await asyncio.gather(*puts) == [sha(one), sha(other), sha(one), sha(one)]

    async def length(digest: str) -> int:
        async with store.files(digest) as (path,):
            return path.stat().st_size

    assert await asyncio.gather(*(length(sha(data)) for data in (one, other) * 4)) == [BIG] * 8
    assert await left(store) == {sha(one), sha(other)}
    assert 0 < store.free() <= store.total()
