"""A whole job whose files lie in a bucket: real nodes, real training, a real S3 server that a package brings."""

import asyncio
from pathlib import Path

import pytest

from tests.e2e.test_demo import SHORTEST, assert_money_adds_up, demo
from tests.support.buckets import KEY, SECRET, BucketServer, in_buckets

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
ON_A_BUCKET = ("-m", "tests.e2e.on_a_bucket")


def test_a_job_is_trained_verified_and_paid_with_every_file_in_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = BucketServer("nanio")
    try:
        server.start()
        address = asyncio.run(server.make("cottage"))
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        monkeypatch.setenv("COTTAGE_TEST_STORE", str(address))
        document = demo(tmp_path, "--nodes", "3", "--stages", "1", *SHORTEST, program=ON_A_BUCKET)
        assert_money_adds_up(document)

        async def look() -> tuple[set[str], int]:
            async with server.open(address) as bucket:
                return await in_buckets(bucket)

        names, unfinished = asyncio.run(look())
        assert len(names) >= 8, "a dataset, four files of the job, states, openings, the model"
        assert unfinished == 0
        assert not (tmp_path / "demo" / "coordinator" / "artifacts").exists(), "nothing lies beside the bucket"
    finally:
        server.remove()
