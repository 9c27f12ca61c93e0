"""Uploads through a real server: cut, resumed, restarted, refused; and what must never be left behind."""

import asyncio
import hashlib
import json
import random
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from coordinator.client import Client, ProblemError
from coordinator.errors import ConflictError, InvalidError, NotFoundError, TooLargeError, UnavailableError
from coordinator.services.artifacts import ArtifactStore
from coordinator.services.uploads import IDLE_S, UploadService
from tests.coordinator.web.conftest import House
from transport.clock import VirtualClock
from transport.wire.api import NewUpload

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


async def patch(
    http: aiohttp.ClientSession, house: House, upload: object, offset: object, data: bytes
) -> tuple[int, dict[str, object]]:
    url = f"{house.api}/uploads/{upload}"
    async with http.patch(url, data=data, headers={"Upload-Offset": str(offset)}) as response:
        return response.status, await response.json()


async def test_an_upload_arrives_byte_for_byte_and_is_counted(house: House, tmp_path: Path) -> None:
    path = tmp_path / "prose.txt"
    path.write_bytes(PROSE)
    seen: list[tuple[int, int]] = []
    async with Client(house.url) as client:
        upload = await client.upload(path, progress=lambda done, whole: seen.append((done, whole)))
    assert upload.artifact == hashlib.sha256(PROSE).hexdigest()
    assert house.artifacts.path(upload.artifact).read_bytes() == PROSE
    assert (upload.rows, upload.characters) == (40_000, len(PROSE.decode()))
    assert seen[-1] == (len(PROSE), len(PROSE))


async def test_an_upload_cut_in_the_middle_goes_on_after_a_restart_of_the_coordinator(
    house: House, http: aiohttp.ClientSession
) -> None:
    made = await begin(http, house, len(PROSE))
    _reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
    head = f"PATCH /api/v1/uploads/{made['id']} HTTP/1.1\r\nHost: 127.0.0.1:{house.port}\r\n"
    writer.write(f"{head}Upload-Offset: 0\r\nContent-Length: {len(PROSE)}\r\n\r\n".encode() + PROSE[:700_001])
    await writer.drain()
    async with asyncio.timeout(5):
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
    assert (status, done["artifact"]) == (200, hashlib.sha256(PROSE).hexdigest())
    assert house.artifacts.path(str(done["artifact"])).read_bytes() == PROSE


async def test_the_client_goes_on_by_itself_when_the_coordinator_restarts(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.client.client.PIECE_BYTES", 300_000)
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
    assert (await patch(http, house, made["id"], 0, b"abcd"))[0] == 200
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
    ("data", "says"),
    [
        (b"\n \n\t\n", "no text"),
        (b"abc\ndef\0ghi", "byte 7 (line 2) is zero"),
        (b"good\ngood\nb\xe4d\n", "byte 11 (line 3) is not UTF-8"),
        (b"cut off \xe2\x82", "byte 8 (line 1): the last character is cut off"),
        (b"\x1f\x8b\x08\x00rest", "gzip"),
        (b"PAR1....", "Parquet"),
        (b"a" * (1 << 20) + "é".encode() + b"\xff", f"byte {(1 << 20) + 2:,}"),
        ("é".encode() * (1 << 19) + b"x" + "é".encode()[:1] + b"?", f"byte {(1 << 20) + 1:,}"),
    ],
)
async def test_text_that_cannot_be_trained_on_is_refused_with_the_place(
    house: House, http: aiohttp.ClientSession, data: bytes, says: str
) -> None:
    made = await begin(http, house, len(data))
    status, problem = await patch(http, house, made["id"], 0, data)
    assert (status, problem["code"]) == (422, "invalid")
    assert says in str(problem["detail"])
    async with http.get(f"{house.api}/uploads/{made['id']}") as response:
        assert response.status == 422, "whoever missed the answer can ask again"
        assert await response.json() == problem
    assert left_over(house.folder / "artifacts") == []
    assert list((house.folder / "uploads").glob("*.part")) == []


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([b'{"text": "a"}', b'{"txt": "b"}'], "row 2 has no field 'text': its fields are 'txt'"),
        ([b'{"text": "a"}', b"", b'{"text": 3}'], "row 3: the field 'text' is not text"),
        ([b'["text"]'], "row 1 is not a JSON object"),
        ([b'{"text": "a"}', b'{"text": "b"'], "row 2 is not a JSON object"),
        ([b'{"text": "\xff"}'], "row 1"),
        ([b'{"text": "\\ud800"}'], "row 1"),
        ([b'{"text": ""}'], "no text under 'text'"),
        ([b"", b""], "0 rows"),
        ([b"[" * 100_000], "row 1"),
    ],
)
async def test_a_row_that_is_not_right_is_named(
    house: House, http: aiohttp.ClientSession, rows: list[bytes], says: str
) -> None:
    data = b"\n".join(rows) + b"\n"
    made = await begin(http, house, len(data), format="jsonl")
    status, problem = await patch(http, house, made["id"], 0, data)
    assert status == 422
    assert says in str(problem["detail"])


async def test_a_row_without_end_is_refused_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.services.datasets.MAX_ROW_BYTES", 1000)
    uploads = UploadService(tmp_path / "u", ArtifactStore(tmp_path / "a"))
    made = await uploads.create(NewUpload(2000, format="jsonl"))
    with pytest.raises(TooLargeError, match=r"row 1 is longer than 1,000 bytes"):
        await uploads.append(made.id, 0, pieces(b'{"text": "' + b"a" * 1990))


async def test_jsonl_counts_its_rows_and_the_characters_of_the_field(house: House, http: aiohttp.ClientSession) -> None:
    data = b'{"body": "ab\\u00e9"}\n\n{"id": 1, "body": "d"}'
    made = await begin(http, house, len(data), format="jsonl", text_field="body")
    status, done = await patch(http, house, made["id"], 0, data)
    assert (status, done["rows"], done["characters"]) == (200, 2, 4)


def tensors(header: object, body: bytes) -> bytes:
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return struct.pack("<Q", len(text)) + text + body


GOOD = {"__metadata__": {"format": "pt"}, "w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"short", "not a safetensors file"),
        (struct.pack("<Q", 2**63) + b"{}", "not a safetensors file"),
        (tensors(b"not json", b""), "cannot be read"),
        (tensors(b"[" * 100_000, b""), "cannot be read"),
        (tensors({}, b""), "0 bytes"),
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
        assert (status, done["artifact"]) == (200, hashlib.sha256(data).hexdigest())


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
    uploads = UploadService(tmp_path / "u", ArtifactStore(tmp_path / "a"))
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
    artifacts = ArtifactStore(tmp_path / "a")
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
    uploads = UploadService(tmp_path / "u", ArtifactStore(tmp_path / "a"), clock, max_open=2, max_open_bytes=100)
    await uploads.create(NewUpload(60))
    with pytest.raises(TooLargeError, match="room for 40"):
        await uploads.create(NewUpload(41))
    await uploads.create(NewUpload(40))
    with pytest.raises(UnavailableError, match="2 uploads are unfinished"):
        await uploads.create(NewUpload(1))
    await clock.advance(IDLE_S + 1)
    await uploads.create(NewUpload(100))
    assert len(list((tmp_path / "u").glob("*.json"))) == 1


async def test_a_plain_form_brings_a_whole_file_at_once(tmp_path: Path) -> None:
    uploads = UploadService(tmp_path / "u", ArtifactStore(tmp_path / "a"))
    done = await uploads.take(NewUpload(1000), pieces(b"some ", b"text"))
    assert (done.length, done.artifact) == (9, hashlib.sha256(b"some text").hexdigest())
    for bad, error in ((pieces(), InvalidError), (pieces(b"\0"), InvalidError), (pieces(b"x" * 1001), TooLargeError)):
        with pytest.raises(error):
            await uploads.take(NewUpload(1000), bad)
    assert len(left_over(tmp_path / "u")) == 1, "only the good one's document"


async def test_an_artifact_with_another_hash_leaves_nothing(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
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
        assert not store.has(name)
        with pytest.raises(NotFoundError):
            store.path(name)


async def test_what_a_killed_process_left_half_received_is_removed(tmp_path: Path) -> None:
    ArtifactStore(tmp_path)
    (tmp_path / "incoming" / "half").write_bytes(b"x")
    ArtifactStore(tmp_path)
    assert left_over(tmp_path) == []
