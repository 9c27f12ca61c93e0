"""What a federated job sees of its owner's in a real container: one folder, to read and nothing else; and its check there."""

import json
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from desktop.agent.errors import SandboxError
from protocol.job.job import DatasetSpec
from tests.desktop.sandbox.test_docker_sandbox import sandbox_for

HOW = msgspec.json.encode(DatasetSpec("0" * 64, "text")).decode()

pytestmark = pytest.mark.docker


@pytest.fixture
def data(tmp_path: Path) -> Path:
    own = tmp_path / "closed" / "own"
    own.mkdir(parents=True)
    (own / "notes.txt").write_text("the quagga sleeps in bed 4711\n" * 50)
    own.chmod(0o755)
    (own / "notes.txt").chmod(0o644)
    own.parent.chmod(0o700)  # The way there is closed to everybody else of this computer.
    return own


async def test_the_folder_is_there_to_read_and_cannot_be_written(
    docker_engine: str, tmp_path: Path, data: Path
) -> None:
    sandbox = sandbox_for(tmp_path, "python3")
    try:
        await sandbox.check()
        read = "print(open('/data/notes.txt').readline().strip())"
        assert await sandbox.measure(("-c", read), 60, data) == b"the quagga sleeps in bed 4711\n"
        with pytest.raises(SandboxError, match="Read-only file system"):
            await sandbox.measure(("-c", "open('/data/more.txt', 'w')"), 60, data)
        with pytest.raises(SandboxError, match="No such file"):
            await sandbox.measure(("-c", read), 60)  # Other jobs see none of it.
    finally:
        await sandbox.aclose()


async def test_the_check_of_the_data_runs_in_the_image(docker_engine: str, tmp_path: Path, data: Path) -> None:
    sandbox = sandbox_for(tmp_path)
    try:
        await sandbox.check()
        words = ("own", "--data", sandbox.data_inside(data), "--how", HOW, "--sequence", "16")
        report = json.loads(await sandbox.measure(words, 120, data))
    finally:
        await sandbox.aclose()
    assert (report["files"], report["usable"], report["problem"]) == (1, 50, "")


async def test_tables_of_parquet_are_read_in_the_image_too(docker_engine: str, tmp_path: Path, data: Path) -> None:
    """With its memory and its few processes: the library that reads them is large."""
    (data / "notes.txt").unlink()
    pq.write_table(pa.table({"notes": ["the quagga sleeps in bed 4711"] * 50}), data / "ward.parquet")
    (data / "ward.parquet").chmod(0o644)
    how = msgspec.json.encode(DatasetSpec("0" * 64, text_field="notes")).decode()
    sandbox = sandbox_for(tmp_path)
    try:
        await sandbox.check()
        words = ("own", "--data", sandbox.data_inside(data), "--how", how, "--sequence", "16")
        report = json.loads(await sandbox.measure(words, 120, data))
    finally:
        await sandbox.aclose()
    assert (report["files"], report["usable"], report["problem"]) == (1, 50, "")
