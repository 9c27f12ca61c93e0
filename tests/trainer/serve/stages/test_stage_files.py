"""A model that is cut: each stage has its tensors out of the archive, and nothing else of the weights is fetched."""

import hashlib
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file as load_numbers
from safetensors.torch import load, save_file

from coordinator.errors import InvalidError
from coordinator.services.artifacts.artifacts import file_digest
from protocol.models.model import ModelConfigError
from protocol.plan import Layers
from tests.trainer.export.test_text_part import KINDS
from tests.trainer.files.test_archives import folder_of
from tests.trainer.serve.stages.ring import tensors_of
from tests.trainer.serve.stages.stage_files import CutModel
from tests.trainer.small import FAMILY_CONFIGS
from trainer.errors import DataError
from trainer.files.archives import ModelArchive, stage_tensors
from trainer.serve.stages.share import ModelShare
from trainer.stage.model import Cut


def layers_of(folder: Path) -> int:
    config = json.loads((folder / "config.json").read_text())
    config = config.get("text_config", config)
    return int(config.get("num_hidden_layers") or config["n_layer"])


def both(folder: Path) -> list[Layers]:
    last = layers_of(folder)
    return [Layers(0, 1), Layers(1, last)]


@pytest.mark.parametrize("family", [*FAMILY_CONFIGS, *KINDS])
def test_each_stage_has_of_its_own_tensors_what_it_has_of_the_whole_model(family: str, tmp_path: Path) -> None:
    folder = folder_of(family, tmp_path / "model")
    made, last, whole = CutModel.of(folder, tmp_path / "made"), layers_of(folder), tensors_of(folder)
    small = tmp_path / "small"
    ModelArchive(made.small).unpack_small(small)
    for layers in both(folder):
        (tmp_path / "stage").write_bytes(made.weights(layers, last))
        own = stage_tensors(tmp_path / "stage")
        cut = Cut(layers.first, layers.last, layers.first == 0, layers.last == last)
        found, expected = (ModelShare(small, cut, weights, "cpu")._module for weights in (own, whole))
        assert found.state_dict().keys() == expected.state_dict().keys()
        assert all(torch.equal(one, expected.state_dict()[name]) for name, one in found.state_dict().items())
        assert not any("vision" in name or "visual" in name for name in own), "what sees is not fetched"
    shared = set.intersection(*(set(made.names(layers, last)) for layers in both(folder)))
    assert len(shared) <= 1, "the embedding alone, where it is the head, too"


def test_the_index_names_places_of_the_archive_and_the_small_files_are_all_but_weights(tmp_path: Path) -> None:
    folder = folder_of("qwen2", tmp_path / "model")
    (folder / "README.md").write_text("# Moo")
    (folder / "chat_template.jinja").write_text("{{ 1 }}")
    assert len(list(folder.glob("*.safetensors"))) > 1
    made = CutModel.of(folder, tmp_path / "made")
    data = made.archive.read_bytes()
    assert made.index.files == (file_digest(made.archive),)
    values = {name: value for file in folder.glob("*.safetensors") for name, value in load_numbers(file).items()}
    assert values.keys() == made.index.tensors.keys()
    for name, tensor in made.index.tensors.items():
        assert np.array_equal(np.frombuffer(data[tensor.begin : tensor.end], "<f4").reshape(tensor.shape), values[name])
        assert hashlib.sha256(data[tensor.begin : tensor.end]).hexdigest() == tensor.sha256
    with zipfile.ZipFile(made.small) as packed:
        names = set(packed.namelist())
        assert all(packed.read(name) == (folder / name).read_bytes() for name in names)
    assert names == {path.name for path in folder.iterdir() if path.suffix in (".json", ".jinja")}
    again = CutModel.of(folder, tmp_path / "again")
    assert again.small.read_bytes() == made.small.read_bytes()
    assert again.index == made.index


def test_a_model_that_cannot_be_trained_or_holds_no_numbers_is_not_cut(tmp_path: Path) -> None:
    folder = folder_of("qwen2", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "mamba"}))
    with pytest.raises(ModelConfigError):
        CutModel.of(folder, tmp_path / "odd")
    (folder / "config.json").write_text(json.dumps(config))
    file = next(iter(sorted(folder.glob("*.safetensors"))))
    save_file({name: torch.full_like(value, torch.nan) for name, value in load(file.read_bytes()).items()}, file)
    with pytest.raises(InvalidError, match="NaN"):
        CutModel.of(folder, tmp_path / "broken")


def test_weights_of_a_stage_that_are_no_safetensors_are_refused(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"\xff" * 20)
    with pytest.raises(DataError, match="weights cannot be read"):
        stage_tensors(tmp_path / "weights")
    with pytest.raises(DataError, match="cannot be read"):
        stage_tensors(tmp_path / "nowhere")
