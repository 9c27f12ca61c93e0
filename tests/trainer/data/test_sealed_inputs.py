"""A job whose files are encrypted trains on the same bits, and what was changed on the disk is an error that says so."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from common.encrypted_files import fresh_key, seal
from protocol.models.weights import weights_name
from protocol.task import Layers
from tests.trainer.small import SEQUENCE, VOCABULARY, config_of, job, job_folder, training
from trainer.data.data import TokenFile, sample_starts
from trainer.data.folder import load_config, open_files
from trainer.errors import DataError, WeightsError
from trainer.files.inputs import InputFolder
from trainer.stage.activation_cache import ActivationCache
from trainer.stage.model import Cut
from trainer.stage.stage import Stage

WHOLE = Cut(0, 3, True, True)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    folder = job_folder(tmp_path / "plain")
    stage = Stage(config_of(), WHOLE, training(seed=99))
    values = {s.name: stage.parameters[s.start : s.start + s.count].view(s.shape).clone() for s in stage.slots}
    values["model.norm.weight"] = values["model.norm.weight"].to(torch.bfloat16)
    save_file(values, folder / weights_name(Layers(0, 3)), {"format": "pt"})
    return folder


@pytest.fixture
def sealed(plain: Path, tmp_path: Path) -> InputFolder:
    target, weights_key = tmp_path / "sealed", fresh_key()
    target.mkdir()
    keys = {name: fresh_key() for name in ("train.bin", "heldout.bin", "config.json")}
    for name, key in (keys | {weights_name(Layers(0, 3)): weights_key}).items():
        seal(target / name, key, (plain / name).read_bytes())
    return InputFolder(target, keys, weights_key)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_samples_of_an_encrypted_file_are_those_of_the_plain_one(plain: Path, sealed: InputFolder) -> None:
    ours = open_files(sealed, job())
    theirs = open_files(InputFolder(plain), job())
    assert len(ours.train) == len(theirs.train) == 20_000
    for step in range(20):
        windows, digest = ours.train.sample(7, step, 1, 4)
        expected, same = theirs.train.sample(7, step, 1, 4)
        assert digest == same
        assert np.array_equal(windows, expected)
    assert np.array_equal(ours.heldout.heldout(), theirs.heldout.heldout())
    assert load_config(sealed, job()) == config_of()


def test_a_stage_begins_with_the_same_bits_from_encrypted_weights(plain: Path, sealed: InputFolder) -> None:
    ours = Stage(config_of(), WHOLE, training(), sealed)
    assert torch.equal(ours.parameters, Stage(config_of(), WHOLE, training(), plain).parameters)
    assert not torch.equal(ours.parameters, Stage(config_of(), WHOLE, training()).parameters)


def test_tokens_that_were_changed_on_the_disk_are_an_error_and_no_samples(sealed: InputFolder) -> None:
    flip(sealed.path / "train.bin", 100)
    tokens = TokenFile(sealed.file("train.bin"), SEQUENCE, VOCABULARY)
    first = next(step for step in range(1000) if min(sample_starts(7, step, 0, 4, len(tokens) - SEQUENCE)) < 2000)
    with pytest.raises(DataError, match=r"train\.bin was changed on the disk"):
        tokens.sample(7, first, 0, 4)


@pytest.mark.parametrize("name", ["heldout.bin", "config.json"])
def test_a_file_that_was_cut_or_is_missing_names_itself(sealed: InputFolder, name: str) -> None:
    (sealed.path / name).write_bytes((sealed.path / name).read_bytes()[:-1])
    with pytest.raises(DataError, match=name):
        open_files(sealed, job())
    if name == "heldout.bin":
        (sealed.path / name).unlink()
        with pytest.raises(DataError, match=name):
            open_files(sealed, job())


def test_weights_that_were_changed_on_the_disk_are_refused(sealed: InputFolder) -> None:
    path = sealed.path / weights_name(Layers(0, 3))
    flip(path, path.stat().st_size // 2)
    with pytest.raises(WeightsError, match="was changed on the disk"):
        Stage(config_of(), WHOLE, training(), sealed)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        (20).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (8).to_bytes(8, "little") + b'{"a": 1}',
        (46).to_bytes(8, "little") + b'{"a":{"dtype":"F32","data_offsets":[0,"zero"]}}'[:46],
    ],
)
def test_broken_weights_are_refused_by_name_when_they_are_encrypted_too(sealed: InputFolder, content: bytes) -> None:
    assert sealed.weights_key is not None
    seal(sealed.path / weights_name(Layers(0, 3)), sealed.weights_key, content)
    with pytest.raises(WeightsError, match=r"weights-0-3\.safetensors cannot be read as safetensors"):
        Stage(config_of(), WHOLE, training(), sealed)


@pytest.mark.parametrize(
    ("length", "places", "why"),
    [(6, "[4,8]", "lies outside of the file"), (8, "[0,8]", "which its shape"), (8, "[4,0]", "lies outside")],
)
def test_a_tensor_that_cannot_be_is_refused(sealed: InputFolder, length: int, places: str, why: str) -> None:
    assert sealed.weights_key is not None
    shape = '"dtype":"F32","shape":[1]'
    names = [slot.name for slot in Stage(config_of(), WHOLE, training(), initialise=False).slots]
    header = "{" + ",".join(f'"{name}":{{{shape},"data_offsets":{places}}}' for name in names) + "}"
    content = len(header).to_bytes(8, "little") + header.encode() + bytes(length)
    seal(sealed.path / weights_name(Layers(0, 3)), sealed.weights_key, content)
    with pytest.raises(WeightsError, match=why):
        Stage(config_of(), WHOLE, training(), sealed)


def test_cached_activations_are_unreadable_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, entry = ActivationCache(memory=0, file=10_000, folder=tmp_path), b"what a window became" * 10
    cache.remember(b"window", entry)
    assert cache._file is not None
    cache._file.seek(0)
    assert b"what a window became" not in cache._file.read()
    assert cache.offer([b"window"]) != bytes(16)
    assert cache.recall([b"window"], [cache.offer([b"window"])]) == [entry]
