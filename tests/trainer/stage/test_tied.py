"""A tied model that has learnt already: its embedding is its head for ever, in whatever cut, and it leaves as it came."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional
from transformers import AutoModelForCausalLM

from protocol.job.job import ModelSpec, TokenizerSpec
from protocol.models.model import inspect_config, keeps_embedding, resolve, starts_tied
from tests.trainer.files.test_families import IDS, exported, published, theirs
from tests.trainer.small import FAMILY_CONFIGS, Pipeline, cuts, training
from trainer.data.data import TokenFile
from trainer.data.prepare import prepare
from trainer.errors import WeightsError
from trainer.formats.source import Dataset
from trainer.stage.stage import Stage

TIED = ("llama", "gpt2", "gemma2")
LEAN = {"memory": "lean", "precision": "bf16"}


def config_of(hub: Path) -> dict[str, Any]:
    return resolve(ModelSpec(config=json.loads((hub / "config.json").read_text()), weights="0" * 64), 300)


def tied(family: str, hub: Path, dtype: torch.dtype = torch.float32) -> tuple[Any, dict[str, Any]]:
    model = theirs(family, tie=True).to(dtype)
    published(model, hub)
    return model, config_of(hub)


def line(config: dict[str, Any], hub: Path, stages: int, tokens: TokenFile, **changes: Any) -> Pipeline:
    spec = training(**changes)
    return Pipeline([Stage(config, cut, spec, hub / "model.safetensors") for cut in cuts(3, stages)], tokens)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "text").write_text("a quick brown fox\n" * 400)
    prepare(Dataset.of(folder / "text", "text"), TokenizerSpec(kind="bytes"), None, 0.1, 16, folder)
    return folder / "tokenizer.json"


@pytest.mark.parametrize("family", TIED)
def test_all_but_the_embedding_has_the_gradients_of_transformers(family: str, tmp_path: Path) -> None:
    model, config = tied(family, tmp_path)
    (stage,) = (Stage(config, cut, training(), tmp_path / "model.safetensors") for cut in cuts(3, 1))
    stage.loss(stage.forward(IDS[:, :-1]), IDS[:, 1:]).backward()
    model.get_input_embeddings().weight.requires_grad_(False)
    logits = model(input_ids=IDS[:, :-1], use_cache=False).logits
    functional.cross_entropy(logits.flatten(0, 1), IDS[:, 1:].flatten(), reduction="sum").backward()
    expected = {name: value.grad for name, value in model.named_parameters() if value.requires_grad}
    assert {slot.name for slot in stage.slots} == expected.keys()
    for slot in stage.slots:
        own = stage.gradients[slot.start : slot.start + slot.count].view(slot.shape)
        assert expected[slot.name] is not None
        assert torch.equal(own, expected[slot.name]), slot.name


@pytest.mark.parametrize("family", TIED)
def test_the_cut_does_not_change_what_is_learnt(family: str, tmp_path: Path, tokens: TokenFile) -> None:
    _, config = tied(family, tmp_path)
    plain = {"activations": "fp32", "boundary_gradients": "fp32"}
    lines = [line(config, tmp_path, stages, tokens, **plain) for stages in (1, 3)]
    for step in range(3):
        for pipeline in lines:
            pipeline.step(step, 10)
    whole, parts = (
        {s.name: stage.values()[s.start : s.start + s.count] for stage in one.stages for s in stage.slots}
        for one in lines
    )
    assert whole.keys() == parts.keys()
    assert all(torch.allclose(whole[name], parts[name], atol=1e-6) for name in whole)


@pytest.mark.parametrize("memory", [{}, LEAN], ids=["float32", "lean"])
@pytest.mark.parametrize("stages", [1, 2])
def test_it_leaves_tied_in_its_own_type_and_size(
    stages: int, memory: dict[str, Any], tmp_path: Path, tokens: TokenFile, tokenizer: Path
) -> None:
    _, config = tied("llama", tmp_path / "hub", torch.bfloat16)
    pipeline = line(config, tmp_path / "hub", stages, tokens, learning_rate=1e-2, **memory)
    for step in range(3):
        pipeline.step(step, 10)
    weights = tmp_path / "hub/model.safetensors"
    exact = {
        slot.name: stage.values()[slot.start : slot.start + slot.count].view(slot.shape)
        for stage in pipeline.stages
        for slot in stage.slots
    }
    for stage in pipeline.stages:  # Checkpoints are of what learns, in float32, however a stage keeps it.
        stage.parameters = stage.values()
    out = exported(pipeline.stages, config, tokenizer, tmp_path, weights)
    before, after = load_file(weights), load_file(out / "model.safetensors")
    assert after.keys() == before.keys()
    assert (out / "model.safetensors").stat().st_size == weights.stat().st_size
    assert {value.dtype for value in after.values()} == {torch.bfloat16}
    embedding = "model.embed_tokens.weight"
    assert torch.equal(after[embedding], before[embedding])
    assert exact.keys() == after.keys() - {embedding}
    for name, value in exact.items():
        assert torch.equal(after[name], value.to(torch.bfloat16)), "rounded to the nearest"
        assert not torch.equal(after[name], before[name])
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"
    opened = AutoModelForCausalLM.from_pretrained(out)
    assert opened.lm_head.weight.data_ptr() == opened.model.embed_tokens.weight.data_ptr()


@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_what_learns_is_counted_without_torch(family: str, tmp_path: Path) -> None:
    _, config = tied(family, tmp_path)
    shape = inspect_config(config)
    for cut in cuts(3, 2):
        stage = Stage(config, cut, training(), tmp_path / "model.safetensors")
        learnt, frozen = shape.stage_learns(cut.first, cut.last, cut.is_first, cut.is_last, None)
        assert stage.parameter_count == learnt
        assert sum(value.numel() for value in stage.frozen().values()) == frozen == shape.vocabulary * shape.hidden


def test_only_weights_that_are_tied_keep_their_embedding(tmp_path: Path) -> None:
    _, config = tied("llama", tmp_path)
    given = json.loads((tmp_path / "config.json").read_text())
    apart = given | {"tie_word_embeddings": False}
    weights = "0" * 64
    assert keeps_embedding(config)
    assert [starts_tied(ModelSpec(config=one, weights=weights)) for one in (given, apart)] == [True, False]
    assert not starts_tied(ModelSpec(config=given))
    assert not keeps_embedding(resolve(ModelSpec(config=given), 300)), "random weights learn apart"
    assert not keeps_embedding(resolve(ModelSpec(config=apart, weights=weights), 300))


@pytest.mark.parametrize("family", TIED)
def test_people_read_as_many_parameters_as_transformers_counts(family: str, tmp_path: Path) -> None:
    model, config = tied(family, tmp_path)
    shape = inspect_config(config)
    assert shape.distinct_parameters == model.num_parameters()
    assert shape.parameters == model.num_parameters() + shape.vocabulary * shape.hidden, "what stages hold"
    apart = theirs(family, tie=False)
    published(apart, tmp_path / "apart")
    assert inspect_config(config_of(tmp_path / "apart")).distinct_parameters == apart.num_parameters()


def test_weights_without_the_embedding_are_refused_at_the_end(tmp_path: Path, tokenizer: Path) -> None:
    _, config = tied("llama", tmp_path / "hub")
    stages = [Stage(config, cut, training(), tmp_path / "hub/model.safetensors") for cut in cuts(3, 1)]
    with pytest.raises(WeightsError, match=r"have no tensor model\.embed_tokens\.weight"):
        exported(stages, config, tokenizer, tmp_path)
    (tmp_path / "broken").write_bytes(b"no")
    with pytest.raises(WeightsError, match="broken cannot be read as safetensors"):
        exported(stages, config, tokenizer, tmp_path, tmp_path / "broken")


def test_a_large_number_in_half_precision_leaves_in_float32(tmp_path: Path, tokenizer: Path) -> None:
    _, config = tied("llama", tmp_path / "hub", torch.float16)
    stages = [Stage(config, cut, training(), tmp_path / "hub/model.safetensors") for cut in cuts(3, 1)]
    stages[0].parameters[0] = 1e5
    out = exported(stages, config, tokenizer, tmp_path, tmp_path / "hub/model.safetensors")
    assert json.loads((out / "config.json").read_text())["dtype"] == "float32"
    assert 1e5 in load_file(out / "model.safetensors")[stages[0].slots[0].name]
