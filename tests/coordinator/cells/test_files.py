"""Cells store files beside each other: none takes away what another one receives, sends, or has in a job."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from common.clock import SystemClock
from coordinator.config import Config
from coordinator.domain.cells import Cell
from coordinator.domain.job import JobState
from coordinator.errors import FullError, NotFoundError, UnavailableError
from coordinator.services.artifacts.bucket import store as bucket_store
from coordinator.services.artifacts.bucket.client import PART_BYTES
from coordinator.services.artifacts.bucket.store import BucketArtifacts
from coordinator.services.artifacts.checkpoints import FOLDER_S
from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
from coordinator.services.artifacts.file_ownership import FileOwnership
from coordinator.services.artifacts.retention import FRESH_S, Keeping
from coordinator.services.artifacts.stores import store_of
from coordinator.store.records import DeliveryRecord, FileRecord, RunRecord
from protocol.ids import Digest
from tests.coordinator.artifacts.test_keeping import ENDED_S
from tests.coordinator.artifacts.test_stores import made_up, pieces, sha
from tests.coordinator.cells.conftest import CellAtWork, job, name
from tests.coordinator.fakes import WALLET
from tests.support.buckets import BucketServer, in_buckets
from tests.support.databases import needs_postgres

Both = tuple[CellAtWork, CellAtWork]


# --- a folder ---------------------------------------------------------------------------------------------------------------


async def test_a_cell_that_starts_leaves_what_another_one_is_receiving(tmp_path: Path) -> None:
    config, clock = Config(data=tmp_path, ledger_url="http://ledger.test"), SystemClock()
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(store_of(config, clock, "owner", Cell(0, 2)))
        begun, goes_on = asyncio.Event(), asyncio.Event()

        async def slowly() -> AsyncIterator[bytes]:
            yield b"one half, "
            begun.set()
            await goes_on.wait()
            yield b"and the other"

        receiving = asyncio.create_task(first.put(slowly(), None, 100))
        await begun.wait()
        second = await stack.enter_async_context(store_of(config, clock, "owner", Cell(1, 2)))
        goes_on.set()
        digest = await receiving
        assert await second.size(digest) == len(b"one half, and the other")
        (tmp_path / "artifacts" / "incoming-1" / "of its last process").touch()
        await stack.enter_async_context(store_of(config, clock, "owner", Cell(1, 2)))
        assert os.listdir(tmp_path / "artifacts" / "incoming-1") == []


@needs_postgres
async def test_a_sweep_of_the_first_cell_keeps_what_jobs_of_another_one_name(cells: Both, tmp_path: Path) -> None:
    first, second = cells
    files, now = DiskArtifacts(tmp_path / "artifacts"), first.context.clock.time()

    async def put(what: str, age: float) -> Digest:
        async def chunks() -> AsyncIterator[bytes]:
            yield what.encode()

        digest = Digest(await files.put(chunks(), None, 100))
        os.utime(files.path(digest), (now - age, now - age))
        return digest

    old = 2 * FOLDER_S
    kept = [await put(what, old) for what in ("train.bin", "model", "delivery", "upload")]
    junk, folder = await put("junk", old), await put("a model folder that another cell has made", FRESH_S + 60)
    async with second.sql.transaction() as tx:
        mine = job(1, files={"train.bin": kept[0]}, account_id="a" * 32)
        assert mine.spec.dataset is not None
        dataset = msgspec.structs.replace(mine.spec.dataset, artifact=kept[3])
        await tx.insert(msgspec.structs.replace(mine, spec=msgspec.structs.replace(mine.spec, dataset=dataset)))
        await tx.insert(job(1, 1, state=JobState.SETTLED, model=kept[1], ended=now - ENDED_S - 9))
        for of in (name(1), name(1, 1)):
            await tx.insert(DeliveryRecord("lease" + of, kept[2], of, WALLET, "a state", 8, now))
        await tx.insert(FileRecord("a" * 32, kept[3], "dataset", "", 6, now - 400 * 86_400.0))  # type: ignore[arg-type]
    keeping = Keeping(first.context, files, tuple)
    _, stock = await keeping.survey(first.context.config.retention)
    assert (stock.files, stock.removable) == (6, 1)
    assert await keeping.sweep() == len("junk")
    assert {digest for digest in (*kept, folder) if await files.has(digest)} == {*kept, folder}
    assert not await files.has(junk)
    async with first.sql.transaction() as tx:
        assert [one.job for one in await tx.everywhere.find(DeliveryRecord)] == [name(1)], "of a job that is long over"
        assert len(await tx.find(FileRecord)) == 1
        assert await tx.find(RunRecord) == []


@needs_postgres
async def test_an_account_is_known_by_what_it_has_paid_in_any_cell(cells: Both) -> None:
    first, second = cells
    files = FileOwnership(first.sql, SystemClock(), lambda: 1_000)
    with pytest.raises(FullError, match="that has not trained a model yet"):
        await files.check_room("a" * 32, 200, 0)
    async with second.sql.transaction() as tx:
        await tx.insert(job(1, account_id="a" * 32, paid=1))
    await files.check_room("a" * 32, 200, 0)


# --- a bucket ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[BucketServer]:
    made = BucketServer("nanio")
    made.start()
    yield made
    made.remove()


async def test_nobody_gives_up_what_another_cell_is_sending(
    server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, data = await server.make("beside"), made_up(3 * PART_BYTES)
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        async for piece in pieces(data):
            yield piece
            if not begun.is_set() and await first._bucket.unfinished():
                begun.set()
                await goes_on.wait()

    async with server.store(address, tmp_path / "0", alone=False) as first:
        sending = asyncio.create_task(first.put(slowly(), sha(data), len(data)))
        await begun.wait()
        async with server.store(address, tmp_path / "1", alone=False) as second:
            await second.sweep(set(), 0.0)
            goes_on.set()
            assert await sending == sha(data)
            assert await second.size(sha(data)) == len(data)
            left = await second._bucket.begin("a" * 64)  # Whoever sent it is gone.
            await second._give_up(set())
            assert len(await second._bucket.unfinished()) == 1
            monkeypatch.setattr(bucket_store, "UNFINISHED_S", -60.0)
            await first._give_up({left.upload.upload})
            assert len(await second._bucket.unfinished()) == 1, "somebody goes on with it"
            await first._give_up(set())
            assert await in_buckets(second._bucket) == ({sha(data)}, 0)


async def test_what_another_cell_removes_and_stores_is_seen(
    server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, one, two = await server.make("seen"), made_up(600), made_up(700, 2)
    async with (
        server.store(address, tmp_path / "0", room=1_000, alone=False) as first,
        server.store(address, tmp_path / "1", room=1_000, alone=False) as second,
    ):
        await second.put(pieces(one), sha(one), 600)
        assert await first.has(sha(one))
        await first.sweep(set(), 4e9)
        assert not await second.has(sha(one)), "it knows better than what it remembers"
        with pytest.raises(NotFoundError):
            await second.size(sha(one))
        with pytest.raises(UnavailableError, match="is full"):
            await second.put(pieces(two), sha(two), 700)  # As it was counted last.
        monkeypatch.setattr(bucket_store, "RECOUNT_S", -1.0)
        assert await second.put(pieces(two), sha(two), 700) == sha(two)
        with pytest.raises(UnavailableError, match="is full"):
            await first.put(pieces(one), sha(one), 600)


async def test_what_another_cell_stores_again_during_a_sweep_stays(server: BucketServer, tmp_path: Path) -> None:
    """It lists what is old; a job that is made meanwhile needs it after all."""
    address, data = await server.make("again"), made_up(300)
    async with (
        server.store(address, tmp_path / "0", alone=False) as first,
        server.store(address, tmp_path / "1", alone=False) as second,
    ):
        await second.put(pieces(data), sha(data), 300)
        listed, entries = asyncio.Event(), first._bucket.entries

        async def old() -> AsyncIterator[object]:
            async for entry in entries():
                yield replace(entry, modified=entry.modified - 1_000)
            listed.set()

        first._bucket.entries = old  # type: ignore[assignment, method-assign]
        [modified] = [entry.modified async for entry in entries() if entry.key == sha(data)]
        assert await first.sweep(set(), modified - 500) == (0, 0)
        assert listed.is_set()
        assert await second.has(sha(data))
        assert await first.sweep(set(), modified + 500) == (1, 300)


async def test_one_coordinator_alone_asks_the_bucket_no_more_than_before(server: BucketServer, tmp_path: Path) -> None:
    async with server.store(await server.make("alone"), tmp_path) as store:
        assert isinstance(store, BucketArtifacts)
        await store.put(pieces(b"x"), sha(b"x"), 1)
        server.kill()
        assert await store.has(sha(b"x"))
        server.start()
