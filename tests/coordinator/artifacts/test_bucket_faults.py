"""A bucket whose server dies, is away, is full or refuses: somebody says why, nothing is lost, and nothing is left half done."""

import asyncio
import datetime
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import botocore.auth
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from common.clock import SystemClock
from coordinator.errors import FilesAwayError, NotFoundError, StoreError, UnavailableError
from coordinator.services.artifacts.bucket.address import BucketAddress, parse_bucket
from coordinator.services.artifacts.bucket.cache import FileCache
from coordinator.services.artifacts.bucket.client import PART_BYTES, BucketClient, PartsUpload, opened
from coordinator.services.artifacts.bucket.store import SMALL_BYTES, BucketArtifacts
from coordinator.web.http import protect
from coordinator.web.sending import send_artifact
from tests.coordinator.artifacts.test_stores import BIG, made_up, pieces, sha
from tests.support.buckets import KEY, OWNER, SECRET, BucketServer, in_buckets, restarted


@pytest.fixture
def server() -> Iterator[BucketServer]:
    made = BucketServer("nanio")
    made.start()
    yield made
    made.remove()


# --- a server that is killed ----------------------------------------------------------------------------------------------


async def test_a_server_killed_in_the_middle_of_an_upload_is_waited_for(server: BucketServer, tmp_path: Path) -> None:
    data, killed = made_up(4 * PART_BYTES), False

    async def while_it_dies() -> AsyncIterator[bytes]:
        nonlocal killed
        async for piece in pieces(data):
            yield piece
            if not killed and len(await store._bucket.unfinished()):
                killed = True
                asyncio.get_running_loop().call_later(0.05, server.kill)
                back.append(asyncio.create_task(come_back()))

    async def come_back() -> None:
        await asyncio.sleep(0.5)
        await asyncio.to_thread(server.start)

    back: list[asyncio.Task[None]] = []
    async with server.store(await server.make("uploads"), tmp_path, tries=6) as store:
        assert await store.put(while_it_dies(), sha(data), len(data)) == sha(data)
        await asyncio.gather(*back)
        assert killed
        assert b"".join([piece async for piece in store.read(sha(data), 0, len(data))]) == data
        assert await in_buckets(store._bucket) == ({sha(data)}, 0)


async def test_a_server_killed_in_the_middle_of_a_download_is_gone_on_with(
    server: BucketServer, tmp_path: Path
) -> None:
    data, got = made_up(4 * PART_BYTES), bytearray()
    async with server.store(await server.make("downloads"), tmp_path, tries=6) as store:
        await store.put(pieces(data), sha(data), len(data))
        async for piece in store.read(sha(data), 0, len(data)):
            if not got:
                await restarted(server)
            got += piece
    assert bytes(got) == data


async def test_while_it_is_away_everything_is_refused_and_what_was_half_sent_goes_later(
    server: BucketServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, small = made_up(BIG), made_up(100, 2)

    async def until_it_dies() -> AsyncIterator[bytes]:
        async for piece in pieces(data):
            yield piece
            if server.process is not None and server.process.poll() is None and await store._bucket.unfinished():
                server.kill()

    async with server.store(await server.make("away"), tmp_path, tries=1) as store:
        await store.put(pieces(small), sha(small), 100)
        with pytest.raises(FilesAwayError, match="store of files does not answer now: nothing was changed"):
            await store.put(until_it_dies(), sha(data), BIG)
        for ask in (store.has(sha(data)), store.near(sha(data)), store.sweep(set(), 0.0)):
            with pytest.raises(FilesAwayError) as away:
                await ask
            assert "cannot be reached" in away.value.cause
        assert await store.size(sha(small)) == 100, "what is known needs no server"
        server.start()
        assert await in_buckets(store._bucket) == ({sha(small)}, 1)
        await store.sweep({bytes.fromhex(sha(small))}, 0.0)
        assert await in_buckets(store._bucket) == ({sha(small)}, 0)
        assert await store.put(pieces(data), sha(data), BIG) == sha(data)
    told = [record.getMessage() for record in caplog.records if "s3://away" in record.getMessage()]
    assert len(told) == 2, told
    assert "is refused until that is mended" in told[0]
    assert "can be used again" in told[1]


# --- a coordinator that is killed -----------------------------------------------------------------------------------------

SENDER = """
import asyncio, hashlib, sys
from pathlib import Path
from tests.support.buckets import BucketServer, KEY
from coordinator.services.artifacts.bucket.address import BucketAddress
server = BucketServer.__new__(BucketServer)
server.url = sys.argv[1]
async def chunks():
    for _ in range(40):
        yield bytes(1 << 18)
    print("half", flush=True)
    await asyncio.Event().wait()
async def main():
    async with server.store(BucketAddress(sys.argv[2], "cottage/"), Path(sys.argv[3])) as store:
        await store.put(chunks(), hashlib.sha256(bytes(12 << 20)).hexdigest(), 12 << 20)
asyncio.run(main())
"""


class KilledError(BaseException):
    """The process is killed: nothing may catch it."""


async def test_what_a_killed_coordinator_left_half_sent_is_given_up_at_the_next_start(
    server: BucketServer, tmp_path: Path
) -> None:
    address = await server.make("killed")
    words = (sys.executable, "-c", SENDER, server.url, address.bucket, str(tmp_path))
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"half\n"
    async with server.open(address) as bucket:
        assert await in_buckets(bucket) == (set(), 1)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        assert await in_buckets(bucket) == (set(), 1)
        async with server.store(address, tmp_path):
            assert await in_buckets(bucket) == (set(), 0)


async def test_a_file_goes_on_where_it_was_after_a_restart(
    server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, file, address = made_up(6 * PART_BYTES + 99), tmp_path / "file", await server.make("resumed")
    file.write_bytes(data)
    send, sent, come = PartsUpload.send, list[int](), list[int]()
    three = asyncio.Event()

    async def dies(self: PartsUpload, number: int, data: bytes) -> None:
        if number > 3:
            await three.wait()
            raise KilledError
        await send(self, number, data)
        come.append(number)
        if len(come) == 3:
            three.set()

    async def counts(self: PartsUpload, number: int, data: bytes) -> None:
        sent.append(number)
        await send(self, number, data)

    async with server.store(address, tmp_path) as store:
        monkeypatch.setattr(PartsUpload, "send", dies)
        with pytest.raises(KilledError):
            await store.put_file(file)
    monkeypatch.setattr(PartsUpload, "send", counts)
    async with server.store(address, tmp_path) as store:
        assert (await in_buckets(store._bucket))[1] == 1, "what somebody may go on with is not given up"
        assert await store.put_file(file) == sha(data)
        assert sorted(sent) == [4, 5, 6, 7], "what had come is not sent again"
        assert b"".join([piece async for piece in store.read(sha(data), 0, len(data))]) == data
        assert await in_buckets(store._bucket) == ({sha(data)}, 0)
        assert list(store._notes.iterdir()) == []


async def test_another_file_under_the_same_note_is_sent_whole(server: BucketServer, tmp_path: Path) -> None:
    """The parts are compared by what is in them, not by their number."""
    right, wrong, file = made_up(BIG), made_up(BIG, 2), tmp_path / "file"
    file.write_bytes(right)
    async with server.store(await server.make("compared"), tmp_path) as store:
        begun = await store._bucket.begin(sha(right))
        await begun.send(1, wrong[:PART_BYTES])
        (store._notes / sha(right)).write_text(begun.upload.upload)
        assert await store.put_file(file) == sha(right)
        assert b"".join([piece async for piece in store.read(sha(right), 0, BIG)]) == right


# --- a bucket that cannot be used -----------------------------------------------------------------------------------------


async def begun(server: BucketServer, address: BucketAddress, folder: Path, **changes: Any) -> None:
    async with opened(address, SystemClock(), 1, **server.how(**changes)) as bucket:
        await BucketArtifacts(bucket, FileCache(folder / "cache", 1), folder / "notes", 1).begin(OWNER)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"endpoint_url": "http://127.0.0.1:9"}, "cannot be reached"),
        ({"endpoint_url": "the attic"}, "Correct AWS_ENDPOINT_URL"),
        ({"aws_access_key_id": "nobody"}, "does not know the access key: correct AWS_ACCESS_KEY_ID"),
        ({"aws_secret_access_key": "guessed"}, "refuses the secret key: correct AWS_SECRET_ACCESS_KEY"),
    ],
)
async def test_what_is_wrong_is_told_in_one_sentence(
    server: BucketServer, tmp_path: Path, changes: dict[str, str], said: str
) -> None:
    address = await server.make("here")
    with pytest.raises(StoreError, match=said) as caught:
        await begun(server, address, tmp_path, **changes)
    assert "s3://here/cottage" in caught.value.detail
    assert SECRET not in caught.value.detail
    assert "guessed" not in caught.value.detail
    assert "\n" not in caught.value.detail


async def test_a_bucket_that_is_not_there_and_a_clock_that_is_wrong_are_told(
    server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreError, match="has no bucket of this name: make it"):
        await begun(server, BucketAddress("nowhere"), tmp_path)
    address = await server.make("here")
    early = datetime.datetime.now(datetime.UTC).replace(tzinfo=None) - datetime.timedelta(hours=3)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: early)
    with pytest.raises(StoreError, match="another time than this machine: set the clock"):
        await begun(server, address, tmp_path)


async def test_without_a_key_or_the_client_the_way_out_is_told(
    server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    address = await server.make("here")
    with pytest.raises(StoreError, match="needs a key: set AWS_ACCESS_KEY_ID"):
        await begun(server, address, tmp_path, aws_access_key_id=None, aws_secret_access_key=None)
    monkeypatch.setitem(sys.modules, "aiobotocore.config", None)
    with pytest.raises(StoreError, match=r"install cottage\[s3\]"):
        await begun(server, address, tmp_path)


async def test_a_bucket_of_another_coordinator_is_left_alone(server: BucketServer, tmp_path: Path) -> None:
    address = await server.make("shared")
    async with server.store(address, tmp_path) as store:
        await store.put(pieces(b"mine"), sha(b"mine"), 4)
        with pytest.raises(StoreError, match="give each a prefix of its own"):
            await BucketArtifacts(store._bucket, store._cache, tmp_path / "n", 1).begin("another one")
        other = BucketClient(store._bucket._client, BucketAddress(address.bucket, "other/"), SystemClock())
        beside = BucketArtifacts(other, FileCache(tmp_path / "c", 1), tmp_path / "n", 1 << 30)
        await beside.begin("another one")
        assert await beside.sweep(set(), 4e9) == (0, 0)
        assert not await beside.has(sha(b"mine"))
        assert await store.has(sha(b"mine"))


@pytest.mark.parametrize("text", ["bucket", "s3://", "s3://UPPER", "s3://a/../b", "https://x/y", "s3://b/a b"])
def test_what_names_no_bucket_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"s3://BUCKET|a prefix has"):
        parse_bucket(text)


def test_an_address_is_written_as_it_was_read() -> None:
    assert str(parse_bucket("s3://bucket/some/prefix/")) == "s3://bucket/some/prefix"
    assert parse_bucket("s3://bucket") == BucketAddress("bucket", "")


@pytest.mark.parametrize(("status", "code"), [(507, "XMinioStorageFull"), (403, "QuotaExceeded")])
async def test_a_bucket_that_is_full_is_told_so(tmp_path: Path, status: int, code: str) -> None:
    async def full(_request: web.Request) -> web.Response:
        return web.Response(status=status, text=f"<Error><Code>{code}</Code></Error>", content_type="application/xml")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", full)
    front = TestServer(app)
    await front.start_server()
    keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
    async with opened(BucketAddress("full"), SystemClock(), 1, endpoint_url=str(front.make_url("/")), **keys) as bucket:
        store = BucketArtifacts(bucket, FileCache(tmp_path / "cache", 1), tmp_path / "notes", 1 << 30)
        with pytest.raises(UnavailableError, match="is full: try again later, or ask its operator") as caught:
            await store.put(pieces(b"more"), sha(b"more"), 4)
        assert not isinstance(caught.value, FilesAwayError), "waiting alone does not help"
    await front.close()


async def test_more_than_the_operator_lets_it_hold_is_refused(server: BucketServer, tmp_path: Path) -> None:
    async with server.store(await server.make("small"), tmp_path, room=1_000) as store:
        await store.put(pieces(b"x" * 600), sha(b"x" * 600), 600)
        with pytest.raises(UnavailableError, match="is full"):
            await store.put(pieces(b"y" * 600), sha(b"y" * 600), 600)
        await store.sweep(set(), 4e9)
        assert await store.put(pieces(b"y" * 600), sha(b"y" * 600), 600) == sha(b"y" * 600)


# --- what is on this machine ----------------------------------------------------------------------------------------------


async def test_as_many_bytes_stay_as_may_and_what_is_worked_on_stays(server: BucketServer, tmp_path: Path) -> None:
    files = [made_up(1_000, number) for number in range(5)]
    async with server.store(await server.make("cached"), tmp_path, cached=2_500) as store:
        for data in files:
            await store.put(pieces(data), sha(data), 1_000)

        def here() -> list[bool]:
            return [(tmp_path / "cache" / sha(data)).exists() for data in files]

        for data in files[:3]:
            assert await store.near(sha(data)) is not None
        assert here() == [False, True, True, False, False]
        async with store.files(*map(sha, files)) as paths:
            assert [path.read_bytes() for path in paths] == files
            assert here() == [True] * 5
        assert sum(here()) == 2
    async with server.store(BucketAddress("cached", "cottage/"), tmp_path, cached=1_000) as again:
        async with again.files(sha(files[0])) as (path,):
            assert path.read_bytes() == files[0]
        assert sum(here()) == 1


async def test_what_is_damaged_in_the_bucket_reaches_no_tool(
    server: BucketServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with server.store(await server.make("damaged"), tmp_path) as store:
        await store._bucket.put(sha(b"right"), b"wrong")
        with pytest.raises(UnavailableError, match="is damaged in the coordinator's store"):
            async with store.files(sha(b"right")):
                pass
        assert list((tmp_path / "cache").iterdir()) == []
        await store._bucket.remove(sha(b"right"))
        with pytest.raises(NotFoundError):
            async with store.files(sha(b"right")):
                pass
    assert [
        record
        for record in caplog.records
        if record.levelno == logging.ERROR and sha(b"right") in record.msg % record.args
    ]


# --- over HTTP ------------------------------------------------------------------------------------------------------------


async def test_ranges_are_answered_as_a_file_would_be(
    server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.services.artifacts.bucket.store.SMALL_BYTES", 0)
    assert SMALL_BYTES > 0
    data = made_up(BIG)
    async with server.store(await server.make("ranges"), tmp_path, tries=1) as store:
        await store.put(pieces(data), sha(data), BIG)

        async def send(request: web.Request) -> web.StreamResponse:
            return await send_artifact(request, store, request.match_info["digest"], {"X-Kind": "weights"})

        app = web.Application()
        protect(app, lambda *_: None)
        app.router.add_get("/{digest}", send)
        front = TestServer(app)
        await front.start_server()
        async with aiohttp.ClientSession() as http:
            url = front.make_url(f"/{sha(data)}")
            tag = f'"{sha(data)}"'
            for headers, status, found in (
                ({}, 200, data),
                ({"Range": "bytes=10-19"}, 206, data[10:20]),
                ({"Range": "bytes=-7"}, 206, data[-7:]),
                ({"Range": f"bytes={BIG - 3}-"}, 206, data[-3:]),
                ({"Range": "bytes=5-9", "If-Range": tag}, 206, data[5:10]),
                ({"Range": "bytes=5-9", "If-Range": '"older"'}, 200, data),
                ({"Range": f"bytes={BIG}-"}, 416, b""),
                ({"Range": "lines=1-2"}, 416, b""),
            ):
                async with http.get(url, headers=headers) as answer:
                    assert (answer.status, await answer.read()) == (status, found), headers
                    if status == 206:
                        assert answer.headers["Content-Range"].endswith(f"/{BIG}")
                    if status < 400:
                        assert answer.headers["X-Kind"] == "weights"
                        assert (answer.headers["ETag"], answer.headers["Accept-Ranges"]) == (tag, "bytes")
            async with http.head(url) as answer:
                assert (answer.status, answer.content_length) == (200, BIG)
            async with http.get(front.make_url(f"/{'0' * 64}")) as answer:
                assert answer.status == 404
            server.kill()
            async with http.get(front.make_url(f"/{'1' * 64}")) as answer:
                assert (answer.status, answer.headers["Retry-After"]) == (503, "2")
                assert "store of files does not answer now" in await answer.text()
        await front.close()


def test_no_key_of_this_machine_is_used_here() -> None:
    assert "AWS_ACCESS_KEY_ID" not in os.environ
