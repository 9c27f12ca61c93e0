"""``cottage serve --store s3://...`` as a process: uploads outlive its death and the bucket's."""

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.coordinator.conftest import until
from tests.coordinator.test_serve import ledger_url as ledger_url
from tests.coordinator.test_serve import serve_words, start
from tests.coordinator.web.test_uploads import PROSE
from tests.support.buckets import KEY, SECRET, BucketServer, in_buckets

TEXT = PROSE * (200_000 // len(PROSE) + 1)
TUS = {"Tus-Resumable": "1.0.0", "Content-Type": "application/offset+octet-stream"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    made = BucketServer("nanio")
    made.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", made.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    yield made
    made.remove()


async def served(folder: Path, ledger_url: str, *words: str) -> tuple[asyncio.subprocess.Process, str]:
    (folder / "ready").unlink(missing_ok=True)
    process = await start(*serve_words(folder, ledger_url, "--no-own-auditor", *words))
    await until((folder / "ready").exists, 60.0)
    return process, (folder / "ready").read_text() + "/api/v1"


async def patched(http: aiohttp.ClientSession, url: str, at: int, data: bytes) -> int:
    async with http.patch(url, data=data, headers=TUS | {"Upload-Offset": str(at)}) as answer:
        return answer.status


@pytest.mark.long
@pytest.mark.slow
async def test_an_upload_outlives_the_coordinator_and_the_bucket(
    tmp_path: Path, ledger_url: str, server: BucketServer
) -> None:
    address = await server.make("cottage-files")
    process, url = await served(tmp_path, ledger_url, "--store", str(address))
    try:
        async with aiohttp.ClientSession() as http:
            async with http.post(f"{url}/uploads", json={"length": len(TEXT)}) as answer:
                upload = (await answer.json())["id"]
            assert await patched(http, f"{url}/uploads/{upload}", 0, TEXT[:50_000]) == 204
            process.kill()
            await process.wait()
            process, url = await served(tmp_path, ledger_url, "--store", str(address))
            async with http.head(f"{url}/uploads/{upload}", headers=TUS) as answer:
                assert answer.headers["Upload-Offset"] == "50000"
            server.kill()
            assert await patched(http, f"{url}/uploads/{upload}", 50_000, TEXT[50_000:]) == 503
            await asyncio.to_thread(server.start)
            assert await patched(http, f"{url}/uploads/{upload}", len(TEXT), b"") == 204
            async with http.get(f"{url}/uploads/{upload}") as answer:
                artifact = (await answer.json())["artifact"]
            assert artifact == hashlib.sha256(TEXT).hexdigest()
        async with server.open(address) as bucket:
            assert await in_buckets(bucket) == ({artifact}, 0)
        assert not (tmp_path / "data" / "artifacts").exists()
    finally:
        process.kill()
        await process.wait()


async def test_a_bucket_that_cannot_be_used_is_told_in_one_sentence(
    tmp_path: Path, ledger_url: str, server: BucketServer
) -> None:
    process = await start(*serve_words(tmp_path, ledger_url, "--store", "s3://nowhere"))
    _, complaint = await asyncio.wait_for(process.communicate(), 60)
    lines = [line for line in complaint.decode().splitlines() if " INFO " not in line and "own auditor" not in line]
    assert process.returncode == 5
    assert lines == ["cottage serve: s3://nowhere: the server has no bucket of this name: make it, or correct the name"]


@pytest.mark.long
async def test_a_setting_that_names_no_bucket_is_refused(tmp_path: Path, ledger_url: str) -> None:
    process = await start(*serve_words(tmp_path, ledger_url, "--store", "files"))
    _, complaint = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 2
    assert "write it as s3://BUCKET or s3://BUCKET/PREFIX" in complaint.decode()
