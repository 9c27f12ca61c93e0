"""The trainer's tools as processes: real preparation, and clear words when data cannot be used."""

import json
import zipfile
from pathlib import Path

import msgspec
import pytest

from coordinator.errors import InvalidError, UnavailableError
from coordinator.services.artifacts import ArtifactStore
from coordinator.services.models import TrainerTools, _pack
from tests.coordinator.fakes import spec
from transport.wire.job import DatasetSpec, JobSpec


def tools(tmp_path: Path, seconds: float = 60.0) -> tuple[ArtifactStore, TrainerTools]:
    artifacts = ArtifactStore(tmp_path / "artifacts")
    return artifacts, TrainerTools(artifacts, tmp_path / "scratch", seconds, 4096)


async def document(artifacts: ArtifactStore, tmp_path: Path, content: bytes) -> JobSpec:
    path = tmp_path / "data.txt"
    path.write_bytes(content)
    return msgspec.structs.replace(spec(), dataset=DatasetSpec(await artifacts.put_file(path)))


async def test_a_dataset_becomes_the_files_of_every_worker(tmp_path: Path) -> None:
    artifacts, workshop = tools(tmp_path)
    prepared = await workshop.prepare(await document(artifacts, tmp_path, b"all work and no play\n" * 500))
    assert set(prepared.files) == {"train.bin", "heldout.bin", "tokenizer.json", "config.json"}
    assert all(artifacts.has(digest) for digest in prepared.files.values())
    written = json.loads(artifacts.path(prepared.files["config.json"]).read_bytes())
    assert written == prepared.config
    assert written["vocab_size"] == 259
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"\x00\x01\x02" * 100, b"short", b"\xff\xfe bad" * 50])
async def test_data_that_cannot_be_used_is_refused_in_the_tools_words(tmp_path: Path, content: bytes) -> None:
    artifacts, workshop = tools(tmp_path)
    with pytest.raises(InvalidError) as refused:
        await workshop.prepare(await document(artifacts, tmp_path, content))
    assert len(refused.value.detail) > 10
    assert list((tmp_path / "scratch").iterdir()) == []


async def test_a_tool_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    artifacts, workshop = tools(tmp_path, seconds=0.01)
    with pytest.raises(UnavailableError, match=r"longer than 0\.01 s"):
        await workshop.prepare(await document(artifacts, tmp_path, b"all work and no play\n" * 500))


def test_the_same_folder_makes_the_same_archive(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(3000))
    _pack(folder, tmp_path / "one.zip")
    _pack(folder, tmp_path / "two.zip")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    assert zipfile.ZipFile(tmp_path / "one.zip").namelist() == ["config.json", "model.safetensors"]
