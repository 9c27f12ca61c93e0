"""Uploads through a real server: cut, resumed, restarted, refused; and what must never be left behind."""

import asyncio
import base64
import hashlib
import json
import random
import struct
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

import aiohttp
import pytest
from tusclient import client as tusclient

from coordinator.client import Client, ProblemError
from coordinator.errors import ConflictError, FullError, InvalidError, NotFoundError, TooLargeError
from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
from coordinator.services.artifacts.uploads import IDLE_S, UploadService
from protocol.rest.api import NewUpload
from tests.coordinator.web.conftest import House
from tests.support.clock import VirtualClock
from tests.support.wait import HANGS_S

PROSE = "".join(f"line {number}: the quick brown fox, größer als ein Hund\n" for number in range(40_000)).encode()


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def left_over(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def begin(http: aiohttp.ClientSession, house: House, length: int, **more: object) -> dict[str, object]:
    async with http.post(f"{house.api}/uploads", json={"length": length, **more}) as response:
        assert response.status == 201, await response.text()
        made: dict[str, object] = await response.json()
        assert response.headers["Location"] == f"/api/v1/uploads/{made['id']}"
        return made


TUS = {"Tus-Resumable": "1.0.0", "Content-Type": "application/offset+octet-stream"}


async def patch(
    http: aiohttp.ClientSession, house: House, upload: object, offset: object, data: bytes, **more: str
) -> tuple[int, dict[str, object]]:
    """Status, and the upload or the problem."""
    url = f"{house.api}/uploads/{upload}"
    headers = {**TUS, "Upload-Offset": str(offset), **{name.replace("_", "-"): value for name, value in more.items()}}
    async with http.patch(url, data=data, headers=headers) as response:
        assert response.status == 204 or response.status >= 400
        if response.status >= 400:
            return response.status, await response.json()
        assert await response.read() == b""
        assert response.headers["Tus-Resumable"] == "1.0.0"
        status, offset = response.status, response.headers["Upload-Offset"]
    async with http.get(url) as response:
        held = await response.json()
        assert str(held["offset"]) == offset
        return status, held


async def test_an_upload_arrives_byte_for_byte_and_is_counted(house: House, tmp_path: Path) -> None:
    path = tmp_path / "prose.txt"
    path.write_bytes(PROSE)
    seen: list[tuple[int, int]] = []
    async with Client(house.url) as client:
        upload = await client.upload(path, progress=lambda done, whole: seen.append((done, whole)))
    assert upload.artifact == hashlib.sha256(PROSE).hexdigest()
    assert house.artifacts.path(upload.artifact).read_bytes() == PROSE
    assert seen[-1] == (len(PROSE), len(PROSE))


async def test_an_upload_cut_in_the_middle_goes_on_after_a_restart_of_the_coordinator(
    house: House, http: aiohttp.ClientSession
) -> None:
    made = await begin(http, house, len(PROSE))
    _reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
    head = f"PATCH /api/v1/uploads/{made['id']} HTTP/1.1\r\nHost: 127.0.0.1:{house.port}\r\n"
    head += "Tus-Resumable: 1.0.0\r\nContent-Type: application/offset+octet-stream\r\n"
    writer.write(f"{head}Upload-Offset: 0\r\nContent-Length: {len(PROSE)}\r\n\r\n".encode() + PROSE[:700_001])
    await writer.drain()
    async with asyncio.timeout(HANGS_S):
        while (await house.uploads.get(str(made["id"]))).offset < 700_001:
            await asyncio.sleep(0)
    writer.transport.abort()
    await house.stop()
    await house.start()
    async with http.get(f"{house.api}/uploads/{made['id']}") as response:
        held = await response.json()
        assert response.headers["Upload-Offset"] == "700001"
    assert held["offset"] == 700_001
    status, done = await patch(http, house, made["id"], 700_001, PROSE[700_001:])
    assert (status, done["artifact"]) == (204, hashlib.sha256(PROSE).hexdigest())
    assert house.artifacts.path(str(done["artifact"])).read_bytes() == PROSE


async def test_the_client_goes_on_by_itself_when_the_coordinator_restarts(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.client.files.PIECE_BYTES", 300_000)
    path = tmp_path / "prose.txt"
    path.write_bytes(PROSE)
    stopped = asyncio.Event()

    def watch(done: int, _whole: int) -> None:
        if done >= 600_000:
            stopped.set()

    async def bounce() -> None:
        await stopped.wait()
        await house.stop()
        await house.start()

    async with Client(house.url, sleep=lambda _s: asyncio.sleep(0.01)) as client:
        upload, _ = await asyncio.gather(client.upload(path, progress=watch), bounce())
    assert upload.artifact == hashlib.sha256(PROSE).hexdigest()


async def test_a_wrong_offset_is_refused_and_says_the_right_one(house: House, http: aiohttp.ClientSession) -> None:
    made = await begin(http, house, 10)
    assert (await patch(http, house, made["id"], 0, b"abcd"))[0] == 204
    for wrong in (0, 3, 5, 10**15):
        status, problem = await patch(http, house, made["id"], wrong, b"abcd")
        assert (status, problem["code"], problem["field"]) == (409, "conflict", "offset")
        assert "go on from 4" in str(problem["detail"])
    for nonsense in ("", "-1", "x", "1e3", "9" * 30):
        assert (await patch(http, house, made["id"], nonsense, b"abcd"))[0] == 422


async def test_more_bytes_than_announced_are_refused_and_not_kept(house: House, http: aiohttp.ClientSession) -> None:
    made = await begin(http, house, 10)
    status, problem = await patch(http, house, made["id"], 0, b"x" * 11)
    assert (status, problem["code"]) == (413, "too_large")
    assert (await house.uploads.get(str(made["id"]))).offset <= 10


@pytest.mark.parametrize(
    ("form", "data", "says"),
    [
        ("text", b"\n \n\t\n", "no text"),
        ("auto", b"\n \n\t\n", "no text"),
        ("text", b"\0\1\2\3\4\5\6\7" * 9, "binary data, not plain text"),
        ("text", b"\x1f\x8b\x08\x00rest", "its gzip data are damaged"),
        ("auto", b"PK\x03\x04rest", "this is a zip archive"),
        ("jsonl", b"PAR1....", "Parquet"),
        ("parquet", b"PAR1 cut", "it is cut"),
        ("npy", b"not one", "not a NumPy array"),
        ("uint16", b"odd", "no whole number"),
    ],
)
async def test_a_file_that_cannot_be_what_it_is_said_to_be_is_refused(
    house: House, http: aiohttp.ClientSession, form: str, data: bytes, says: str
) -> None:
    made = await begin(http, house, len(data), format=form)
    status, problem = await patch(http, house, made["id"], 0, data)
    assert (status, problem["code"]) == (422, "invalid")
    assert says in str(problem["detail"])
    async with http.get(f"{house.api}/uploads/{made['id']}") as response:
        assert response.status == 422, "whoever missed the answer can ask again"
        assert await response.json() == problem
    assert left_over(house.folder / "artifacts") == []
    assert list((house.folder / "uploads").glob("*.part")) == []


def sum_of(data: bytes, algorithm: str = "sha256") -> str:
    return f"{algorithm} {base64.b64encode(hashlib.new(algorithm, data).digest()).decode()}"


async def test_damaged_bytes_are_not_kept_and_right_ones_are(house: House, http: aiohttp.ClientSession) -> None:
    made = await begin(http, house, 8)
    assert (await patch(http, house, made["id"], 0, b"good", Upload_Checksum=sum_of(b"good")))[0] == 204
    status, problem = await patch(http, house, made["id"], 4, b"evil", Upload_Checksum=sum_of(b"fine", "sha1"))
    assert (status, problem["code"]) == (460, "checksum")
    assert (await house.uploads.get(str(made["id"]))).offset == 4
    for wrong in ("crc99 AAAA", "sha256 !", "sha256 AAAA", "sha256"):
        assert (await patch(http, house, made["id"], 4, b"fine", Upload_Checksum=wrong))[0] == 422
    status, done = await patch(http, house, made["id"], 4, b"fine", Upload_Checksum=sum_of(b"fine", "sha1"))
    assert done["artifact"] == hashlib.sha256(b"goodfine").hexdigest()


async def test_bytes_with_a_checksum_that_are_cut_short_are_asked_for_again(
    house: House, http: aiohttp.ClientSession
) -> None:
    made = await begin(http, house, len(PROSE))
    _reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
    head = f"PATCH /api/v1/uploads/{made['id']} HTTP/1.1\r\nHost: 127.0.0.1:{house.port}\r\n"
    head += f"Tus-Resumable: 1.0.0\r\nContent-Type: {TUS['Content-Type']}\r\nUpload-Checksum: {sum_of(PROSE)}\r\n"
    writer.write(f"{head}Upload-Offset: 0\r\nContent-Length: {len(PROSE)}\r\n\r\n".encode() + PROSE[:500_000])
    await writer.drain()
    async with asyncio.timeout(HANGS_S):
        while (await house.uploads.get(str(made["id"]))).offset < 500_000:
            await asyncio.sleep(0)
    writer.transport.abort()
    async with asyncio.timeout(HANGS_S):
        while (await house.uploads.get(str(made["id"]))).offset > 0:
            await asyncio.sleep(0)
    _, done = await patch(http, house, made["id"], 0, PROSE, Upload_Checksum=sum_of(PROSE))
    assert done["artifact"] == hashlib.sha256(PROSE).hexdigest()


async def test_a_whole_file_with_another_digest_than_its_sender_named_is_refused(
    house: House, http: aiohttp.ClientSession
) -> None:
    made = await begin(http, house, 4, sha256=hashlib.sha256(b"good").hexdigest())
    status, problem = await patch(http, house, made["id"], 0, b"evil")
    assert (status, problem["field"]) == (422, "sha256")
    assert left_over(house.folder / "artifacts") == []


async def test_the_protocol_is_spoken_as_its_text_says(house: House, http: aiohttp.ClientSession) -> None:
    async with http.options(f"{house.api}/uploads") as response:
        told = response.headers
        assert (response.status, told["Tus-Version"], told["Tus-Resumable"]) == (204, "1.0.0", "1.0.0")
        assert set(told["Tus-Extension"].split(",")) == {"creation", "checksum", "termination", "expiration"}
        assert "sha1" in told["Tus-Checksum-Algorithm"].split(",")
        assert int(told["Tus-Max-Size"]) > 10**11
    data = b"some text to train on"
    name, purpose = base64.b64encode(b"a b.txt").decode(), base64.b64encode(b"dataset").decode()
    metadata = f"filename {name},filetype dGV4dA==,purpose {purpose}"
    headers = {"Tus-Resumable": "1.0.0", "Upload-Length": str(len(data)), "Upload-Metadata": metadata}
    async with http.post(f"{house.api}/uploads", headers=headers) as response:
        assert response.status == 201
        assert parsedate_to_datetime(response.headers["Upload-Expires"]) > datetime.now(UTC)
        where = house.url + response.headers["Location"]
    async with http.patch(where, data=data[:5], headers={**TUS, "Upload-Offset": "0"}) as response:
        assert (response.status, response.headers["Upload-Offset"]) == (204, "5")
        assert "Upload-Expires" in response.headers
    async with http.head(where, headers={"Tus-Resumable": "1.0.0"}) as response:
        assert (response.status, response.headers["Upload-Offset"]) == (200, "5")
        assert response.headers["Upload-Length"] == str(len(data))
        assert response.headers["Cache-Control"] == "no-store"
    for wrong, status in (
        ({"Tus-Resumable": "0.2.2"}, 412),
        ({"Content-Type": "text/plain"}, 415),
        ({"Upload-Offset": "4"}, 409),
    ):
        async with http.patch(where, data=b"x", headers={**TUS, "Upload-Offset": "5", **wrong}) as response:
            assert response.status == status
    async with http.delete(where, headers={"Tus-Resumable": "1.0.0"}) as response:
        assert response.status == 204
    async with http.head(where, headers={"Tus-Resumable": "1.0.0"}) as response:
        assert response.status == 404
    assert left_over(house.folder) == []
    for bad in (
        {"Upload-Length": "-1"},
        {"Upload-Length": "1", "Upload-Metadata": "purpose !"},
        {"Upload-Defer-Length": "1"},
    ):
        async with http.post(f"{house.api}/uploads", headers={"Tus-Resumable": "1.0.0", **bad}) as response:
            assert response.status == 422


@pytest.mark.parametrize("checked", [False, True])
async def test_another_tus_client_uploads_and_resumes(house: House, tmp_path: Path, checked: bool) -> None:
    (tmp_path / "prose.txt").write_bytes(PROSE)

    def send() -> str:
        client = tusclient.TusClient(f"{house.api}/uploads")
        path = str(tmp_path / "prose.txt")
        given = {"metadata": {"filename": "prose.txt", "purpose": "dataset"}, "upload_checksum": checked}
        uploader = client.uploader(path, chunk_size=300_000, **given)
        uploader.upload(stop_at=900_000)
        again = client.uploader(path, chunk_size=500_000, url=uploader.url, **given)
        assert again.get_offset() == 900_000
        again.upload()
        assert again.offset == len(PROSE)
        return str(again.url)

    where = await asyncio.to_thread(send)
    done = await house.uploads.get(where.rpartition("/")[2])
    assert done.artifact == hashlib.sha256(PROSE).hexdigest()


def tensors(header: object, body: bytes) -> bytes:
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return struct.pack("<Q", len(text)) + text + body


GOOD = {"__metadata__": {"format": "pt"}, "w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"short", "no safetensors file"),
        (struct.pack("<Q", 2**63) + b"{}", "no safetensors file"),
        (tensors(b"not json", b""), "damaged safetensors header"),
        (tensors(b"[" * 100_000, b""), "damaged safetensors header"),
        (tensors({}, b""), "no tensor in it"),
        (tensors(GOOD, b"x" * 15), "cut or padded"),
        (tensors(GOOD, b"x" * 17), "cut or padded"),
        (tensors({"w": {"dtype": "F99", "shape": [4], "data_offsets": [0, 16]}}, b"x" * 16), "type 'F99'"),
        (tensors({"w": {"dtype": "F32", "shape": [5], "data_offsets": [0, 16]}}, b"x" * 16), "its shape needs 20"),
        (tensors({"w": {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]}}, b"x" * 16), "'w'"),
        (tensors({"w": {"dtype": "U8", "shape": [1] * 9, "data_offsets": [0, 1]}}, b"x"), "more axes"),
        (tensors({"w": {"dtype": "U8", "shape": [2**62], "data_offsets": [0, 1]}}, b"x"), "longer ones"),
        (
            tensors(
                {n: {"dtype": "U8", "shape": [8], "data_offsets": o} for n, o in (("a", [0, 8]), ("b", [4, 12]))},
                b"x" * 12,
            ),
            "'b'",
        ),
        (
            tensors(
                {n: {"dtype": "U8", "shape": [4], "data_offsets": o} for n, o in (("a", [0, 4]), ("b", [8, 12]))},
                b"x" * 12,
            ),
            "'b'",
        ),
    ],
)
async def test_hostile_safetensors_are_refused(
    house: House, http: aiohttp.ClientSession, data: bytes, says: str
) -> None:
    made = await begin(http, house, len(data), purpose="weights")
    status, problem = await patch(http, house, made["id"], 0, data)
    assert status == 422
    assert says in str(problem["detail"])


async def test_good_weights_and_tokenizers_pass(house: House, http: aiohttp.ClientSession) -> None:
    tokenizer = json.dumps({"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}).encode()
    for purpose, data in (("weights", tensors(GOOD, b"x" * 16)), ("tokenizer", tokenizer)):
        made = await begin(http, house, len(data), purpose=purpose)
        status, done = await patch(http, house, made["id"], 0, data)
        assert (status, done["artifact"]) == (204, hashlib.sha256(data).hexdigest())


@pytest.mark.parametrize(
    "data", [b"{}", b"[]", b'{"model": {"type": "Neural"}}', b'{"model": {"type": "BPE"}}', b"\xff", b"[" * 99_999]
)
async def test_a_tokenizer_of_no_known_model_is_refused(house: House, http: aiohttp.ClientSession, data: bytes) -> None:
    made = await begin(http, house, len(data), purpose="tokenizer")
    assert (await patch(http, house, made["id"], 0, data))[0] == 422


async def test_an_empty_file_is_refused_before_anything_is_sent(house: House, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    async with Client(house.url) as client:
        with pytest.raises(ProblemError, match="empty"):
            await client.upload(tmp_path / "empty.txt")


@pytest.mark.parametrize(
    "body",
    [{"length": 0}, {"length": -1}, {"length": 2**60}, {}, {"length": 1, "purpose": "fun"}, {"length": 1, "x": 2}],
)
async def test_an_upload_that_cannot_be_is_not_begun(
    house: House, http: aiohttp.ClientSession, body: dict[str, object]
) -> None:
    async with http.post(f"{house.api}/uploads", json=body) as response:
        assert response.status == 422
    assert left_over(house.folder) == []


@pytest.mark.parametrize("name", ["0" * 32, "..%2f..%2fetc%2fpasswd", "x", "A" * 32, "%00" * 16])
async def test_no_id_leads_outside_the_folder(house: House, http: aiohttp.ClientSession, name: str) -> None:
    async with http.get(f"{house.api}/uploads/{name}") as response:
        assert response.status == 404
        assert (await response.json())["code"] in ("not_found", "http")


async def test_a_writer_whose_line_died_unnoticed_is_pushed_aside(tmp_path: Path) -> None:
    uploads = UploadService(tmp_path / "u", DiskArtifacts(tmp_path / "a"))
    made = await uploads.create(NewUpload(12))
    go_on, began = asyncio.Event(), asyncio.Event()

    async def stalled() -> AsyncIterator[bytes]:
        yield b"first "
        began.set()
        await go_on.wait()
        yield b"ghost "

    first = asyncio.create_task(uploads.append(made.id, 0, stalled()))
    await began.wait()
    done = await uploads.append(made.id, 6, pieces(b"second"))
    go_on.set()
    with pytest.raises((ConflictError, NotFoundError, FileNotFoundError)):
        await first
    assert done.artifact == hashlib.sha256(b"first second").hexdigest()
    assert (tmp_path / "a" / done.artifact[:2] / done.artifact).read_bytes() == b"first second"


async def test_a_crash_between_the_check_and_its_record_costs_only_a_second_check(tmp_path: Path) -> None:
    artifacts = DiskArtifacts(tmp_path / "a")
    uploads = UploadService(tmp_path / "u", artifacts)
    made = await uploads.create(NewUpload(5))
    (tmp_path / "u" / f"{made.id}.part").write_bytes(b"hello")
    again = UploadService(tmp_path / "u", artifacts)
    assert (await again.get(made.id)).offset == 5
    done = await again.append(made.id, 5, pieces())
    assert done.artifact == hashlib.sha256(b"hello").hexdigest()
    assert await again.append(made.id, 5, pieces()) == done, "asked again, the same answer"


async def test_promises_beyond_the_room_are_refused_and_old_ones_given_up(tmp_path: Path) -> None:
    clock = VirtualClock()
    uploads = UploadService(tmp_path / "u", DiskArtifacts(tmp_path / "a"), clock, max_open=2, max_open_bytes=100)
    await uploads.create(NewUpload(60))
    with pytest.raises(FullError, match="room for 40"):
        await uploads.create(NewUpload(41))
    await uploads.create(NewUpload(40))
    with pytest.raises(FullError, match="2 uploads are unfinished"):
        await uploads.create(NewUpload(1))
    await clock.advance(IDLE_S + 1)
    await uploads.create(NewUpload(100))
    assert len(list((tmp_path / "u").glob("*.json"))) == 1


async def test_a_plain_form_brings_a_whole_file_at_once(tmp_path: Path) -> None:
    uploads = UploadService(tmp_path / "u", DiskArtifacts(tmp_path / "a"))
    done = await uploads.take(NewUpload(1000), pieces(b"some ", b"text"))
    assert (done.length, done.artifact) == (9, hashlib.sha256(b"some text").hexdigest())
    for bad, error in (
        (pieces(), InvalidError),
        (pieces(b"%PDF-1.7"), InvalidError),
        (pieces(b"x" * 1001), TooLargeError),
    ):
        with pytest.raises(error):
            await uploads.take(NewUpload(1000), bad)
    assert len(left_over(tmp_path / "u")) == 1, "only the good one's document"


@pytest.mark.parametrize(
    "cut",
    [ConnectionResetError(), ValueError("no boundary"), aiohttp.ClientPayloadError(), asyncio.CancelledError()],
)
async def test_a_plain_form_that_is_cut_leaves_no_upload_open(tmp_path: Path, cut: BaseException) -> None:
    async def some() -> AsyncIterator[bytes]:
        yield b"some "
        raise cut

    uploads = UploadService(tmp_path / "u", DiskArtifacts(tmp_path / "a"), max_open=1)
    for _ in range(3):
        with pytest.raises(type(cut)):
            await uploads.take(NewUpload(1000), some())
    assert left_over(tmp_path / "u") == []
    assert (await uploads.take(NewUpload(1000), pieces(b"some text"))).artifact


async def test_an_artifact_with_another_hash_leaves_nothing(tmp_path: Path) -> None:
    store = DiskArtifacts(tmp_path)
    data = random.Random(1).randbytes(3_000_000)
    right = hashlib.sha256(data).hexdigest()
    with pytest.raises(InvalidError, match="SHA-256"):
        await store.put(pieces(data), "0" * 64, 10**7)
    with pytest.raises(TooLargeError):
        await store.put(pieces(data), right, 1000)
    assert left_over(tmp_path) == []
    assert await store.put(pieces(data[:5], data[5:]), right, 10**7) == right
    assert await store.put(pieces(data), None, 10**7) == right, "the same bytes again are the same artifact"
    assert store.path(right).read_bytes() == data
    for name in ("0" * 64, "../../etc/passwd", "", "A" * 64, f"{right}\n"):
        assert not await store.has(name)
        with pytest.raises(NotFoundError):
            store.path(name)


async def test_what_a_killed_process_left_half_received_is_removed(tmp_path: Path) -> None:
    DiskArtifacts(tmp_path)
    (tmp_path / "incoming" / "half").write_bytes(b"x")
    DiskArtifacts(tmp_path)
    assert left_over(tmp_path) == []
