"""A whole job whose files lie in a bucket: real nodes, real training, a real S3 server that dies on the way and comes back."""

import asyncio
import threading
import time
from pathlib import Path

import pytest

from tests.e2e.test_demo import SHORTEST, assert_money_adds_up, demo
from tests.support.buckets import KEY, SECRET, BucketServer, in_buckets

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.long]
ON_A_BUCKET = ("-m", "tests.e2e.on_a_bucket")
AWAY_S = 5.0
OF_THE_JOB = 6  # Objects: the dataset, what was made of it, and the first that a node has stored.


def test_a_job_is_trained_verified_and_paid_with_every_file_in_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = BucketServer("nanio")
    deaths: list[int] = []
    over = threading.Event()

    def dies_once() -> None:
        while not over.is_set() and len(list((server.folder / "data" / "cottage" / "cottage").glob("*"))) < OF_THE_JOB:
            time.sleep(0.1)
        if not over.is_set():
            server.kill()
            time.sleep(AWAY_S)
            server.start()
            deaths.append(1)

    try:
        server.start()
        address = asyncio.run(server.make("cottage"))
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        monkeypatch.setenv("COTTAGE_TEST_STORE", str(address))
        reaper = threading.Thread(target=dies_once)
        reaper.start()
        try:
            document = demo(tmp_path, "--nodes", "3", "--stages", "1", *SHORTEST, program=ON_A_BUCKET)
        finally:
            over.set()
            reaper.join()
        assert_money_adds_up(document)
        assert deaths == [1]

        async def look() -> tuple[set[str], int]:
            async with server.open(address) as bucket:
                return await in_buckets(bucket)

        names, unfinished = asyncio.run(look())
        assert len(names) >= 8, "a dataset, four files of the job, states, openings, the model"
        assert unfinished == 0
        assert not (tmp_path / "demo" / "coordinator" / "artifacts").exists(), "nothing lies beside the bucket"
    finally:
        server.remove()
