"""A model's archive: read where it lies, and refused where it reaches out of its folder or is not what it says."""

import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from common.encrypted_files import SealedFile, fresh_key, seal
from coordinator.services.artifacts.model_archives import pack
from protocol.job.job import TokenizerSpec
from tests.trainer.export.test_text_part import KINDS, whole
from tests.trainer.small import FAMILY_CONFIGS
from trainer.data.prepare import make_tokenizer
from trainer.errors import DataError, WeightsError
from trainer.files.archives import MAX_SMALL, ModelArchive
from trainer.serve.loading import load

SMALL = {"config.json": b"{}", "tokenizer_config.json": b"{}"}
WEIGHTS = {"model.safetensors": save({"a": torch.ones(3), "b": torch.zeros(2, 2)})}


def archive(path: Path, files: dict[str, bytes], change: Callable[[zipfile.ZipInfo], None] = lambda _: None) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as packed:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)
            change(entry)
            packed.writestr(entry, data)
    return path


def read(path: Path) -> dict[str, torch.Tensor]:
    return {name: lazy[...] for name, lazy in ModelArchive(path).tensors().items()}


def test_small_files_go_to_the_folder_and_tensors_to_memory(tmp_path: Path) -> None:
    more = {"additional_chat_templates/tools.jinja": b"{{ 1 }}", "README.md": b"# Moo", "run.py": b"1 / 0"}
    path = archive(tmp_path / "model.zip", SMALL | WEIGHTS | more | {"vision/odd.safetensors": b"not looked at"})
    key = fresh_key()
    seal(tmp_path / "sealed", key, path.read_bytes())
    for number, file in enumerate((path, SealedFile(tmp_path / "sealed", key))):
        opened, folder = ModelArchive(file), tmp_path / str(number)
        opened.unpack_small(folder)
        there = sorted(str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file())
        assert there == ["additional_chat_templates/tools.jinja", "config.json", "tokenizer_config.json"]
        found = {name: lazy[...] for name, lazy in opened.tensors().items()}
        assert found["a"].tolist() == [1, 1, 1]
        assert found["b"].shape == (2, 2)


@pytest.mark.parametrize(
    "name",
    [
        "../config.json",
        "/etc/passwd",
        "a/../../b.json",
        "C:\\b.json",
        "a\\b.json",
        ".hidden",
        "a//b.json",
        "x" * 300,
        "é.json",
    ],
)
def test_a_name_outside_of_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be the name of a model's file"):
        ModelArchive(archive(tmp_path / "model.zip", {**SMALL, **WEIGHTS, name: b"{}"}))


def packed(entry: zipfile.ZipInfo) -> None:
    entry.compress_type = zipfile.ZIP_DEFLATED


def twice(path: Path) -> Path:
    archive(path, SMALL)
    with zipfile.ZipFile(path, "a") as out, pytest.warns(UserWarning, match="Duplicate"):
        out.writestr("config.json", b"{}")
    return path


def test_what_is_no_folder_of_a_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    hostile: list[tuple[Callable[[], Any], str]] = [
        (lambda: archive(path, SMALL, packed), "stored as they are"),
        (lambda: twice(path), "has config.json twice"),
        (lambda: archive(path, SMALL | {"CONFIG.json": b"{}"}), "has CONFIG.json twice"),
        (lambda: archive(path, {"config.json": b"{}"}), "has no tokenizer_config.json"),
        (lambda: archive(path, SMALL | {f"{number}.txt": b"" for number in range(1000)}), "1,002 files"),
        (lambda: path.write_bytes(b"not an archive"), "is no archive"),
        (lambda: path.unlink(), "cannot be read"),
    ]
    for make, part in hostile:
        make()
        with pytest.raises(DataError, match=part):
            ModelArchive(path)


def test_sizes_that_are_not_there_are_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "model.zip", SMALL | WEIGHTS)
    data = bytearray(path.read_bytes())
    for at in (data.index(b"PK\x01\x02"), data.rindex(b"PK\x01\x02")):
        data[at + 20 : at + 28] = struct.pack("<II", 1 << 30, 1 << 30)
    path.write_bytes(data)
    opened = ModelArchive(path)
    with pytest.raises(DataError, match="small files have"):
        opened.unpack_small(tmp_path / "out")
    with pytest.raises(DataError, match="does not lie within the archive"):
        opened.tensors()
    assert MAX_SMALL < 1 << 30


def test_weights_that_are_none_are_refused(tmp_path: Path) -> None:
    lying = json.dumps({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 1 << 40]}}).encode()
    beyond = struct.pack("<Q", len(lying)) + lying
    for files, part in [
        ({}, "has no weights"),
        ({"model.safetensors": b"\xff" * 20}, "header is too large"),
        (
            {"a.safetensors": WEIGHTS["model.safetensors"], "b.safetensors": WEIGHTS["model.safetensors"]},
            "the tensor a",
        ),
    ]:
        with pytest.raises(DataError, match=part):
            read(archive(tmp_path / "model.zip", SMALL | files))
    with pytest.raises(Exception, match="lies outside of the file"):
        read(archive(tmp_path / "model.zip", SMALL | {"model.safetensors": beyond}))


def test_what_was_changed_on_the_disk_is_no_model(tmp_path: Path) -> None:
    key = fresh_key()
    seal(tmp_path / "sealed", key, archive(tmp_path / "model.zip", SMALL | WEIGHTS).read_bytes())
    data = bytearray((tmp_path / "sealed").read_bytes())
    file = SealedFile(tmp_path / "sealed", key)
    data[30] ^= 1
    (tmp_path / "sealed").write_bytes(data)
    with pytest.raises(DataError, match="changed on the disk"):
        ModelArchive(file)


def folder_of(family: str, out: Path) -> Path:
    out.mkdir()
    if family in KINDS:
        whole(family, out).float()
    else:
        more = {"vocab_size": 300, "pad_token_id": None, "eos_token_id": None, "bos_token_id": None}
        model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(**(FAMILY_CONFIGS[family] | more)))
        model.to(torch.bfloat16 if family == "llama" else torch.float32).save_pretrained(out, max_shard_size="20KB")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=make_tokenizer(TokenizerSpec("bytes"), None, lambda: iter(())))
    tokenizer.save_pretrained(out)
    return out


@pytest.mark.parametrize("family", ["llama", "qwen2", "mixtral", "gemma3_text", *KINDS])
def test_a_model_from_its_archive_is_the_model_from_its_folder(family: str, tmp_path: Path) -> None:
    folder, small = folder_of(family, tmp_path / "model"), tmp_path / "small"
    pack(folder, tmp_path / "model.zip")
    opened = ModelArchive(tmp_path / "model.zip")
    opened.unpack_small(small)
    expected = load(folder, "cpu").model.state_dict()
    found = load(small, "cpu", opened.tensors()).model
    assert found.state_dict().keys() == expected.keys()
    assert all(torch.equal(one, expected[name]) for name, one in found.state_dict().items())
    assert {one.dtype for one in found.parameters()} == {torch.float32}
    if family == "qwen2":
        assert found.lm_head.weight is found.model.embed_tokens.weight


def test_a_model_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    folder = folder_of("llama", tmp_path / "model")
    shard = sorted(folder.glob("*.safetensors"))[0]
    shard.unlink()
    pack(folder, tmp_path / "model.zip")
    opened = ModelArchive(tmp_path / "model.zip")
    opened.unpack_small(tmp_path / "small")
    with pytest.raises(WeightsError, match="the model lacks"):
        load(tmp_path / "small", "cpu", opened.tensors())
    (tmp_path / "small" / "config.json").write_text('{"model_type": "unheard-of"}')
    with pytest.raises(WeightsError, match="cannot be loaded"):
        load(tmp_path / "small", "cpu", opened.tensors())


def test_a_stream_reads_as_a_file_does(tmp_path: Path) -> None:
    files = SMALL | {f"part{number}.txt": bytes([number]) * 70_000 for number in range(5)}
    key = fresh_key()
    seal(tmp_path / "sealed", key, archive(tmp_path / "model.zip", files | WEIGHTS).read_bytes())
    ModelArchive(SealedFile(tmp_path / "sealed", key)).unpack_small(tmp_path / "out")
    assert (tmp_path / "out" / "part4.txt").read_bytes() == files["part4.txt"]
