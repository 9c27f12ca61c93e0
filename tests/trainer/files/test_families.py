"""Fourteen architectures, in from Hugging Face files and out to them: what stages compute is what transformers computes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from protocol.boundary import Position
from protocol.job.job import ModelSpec, TokenizerSpec
from protocol.models.boundary_bytes import SUBSPACE_FAMILIES
from protocol.models.model import FAMILIES, inspect_config, resolve
from protocol.models.weights import weights_name
from protocol.task import Layers
from tests.trainer.small import FAMILY_CONFIGS, SEQUENCE, VOCABULARY, config_of, cuts, training
from trainer.data.prepare import prepare
from trainer.errors import WeightsError
from trainer.export.assemble import assemble
from trainer.formats.source import Dataset
from trainer.stage.model import Cut
from trainer.stage.stage import Stage
from trainer.stage.steps import Recorded, accumulate
from trainer.worker.checkpoint import ANCHOR, ROUND

WHOLE = Cut(0, 3, True, True)
IDS = torch.randint(0, VOCABULARY, (2, SEQUENCE + 1), generator=torch.Generator().manual_seed(1))


def theirs(family: str, tie: bool) -> PreTrainedModel:
    """A model as its publishers make it: transformers' own class, weights and saving."""
    own = {key: value for key, value in config_of(family).items() if not key.startswith("cottage_")}
    torch.manual_seed(3)
    config = CONFIG_MAPPING[family].from_dict(own | {"tie_word_embeddings": tie})
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, experts_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)  # Norms and biases are no longer all alike.
    return model


def published(model: PreTrainedModel, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder / "model.safetensors"


def through(stages: list[Stage]) -> torch.Tensor:
    flow = IDS[:, :-1]
    for stage in stages:
        flow = stage.forward(flow)
    return flow


def stages_from(weights: Path, family: str, tie: bool, stages: int = 3) -> list[Stage]:
    config = config_of(family) | {"cottage_head_starts_tied": tie}
    return [Stage(config, cut, training(), weights) for cut in cuts(3, stages)]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("tie", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_three_stages_from_a_published_file_give_the_logits_of_transformers(
    family: str, tie: bool, tmp_path: Path
) -> None:
    model = theirs(family, tie)
    stages = stages_from(published(model, tmp_path / "hub"), family, tie)
    assert torch.equal(through(stages), model(input_ids=IDS[:, :-1], use_cache=False).logits)


@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_gradients_of_a_stage_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    model = theirs(family, tie=False)
    (stage,) = stages_from(published(model, tmp_path / "hub"), family, tie=False, stages=1)
    stage.loss(through([stage]), IDS[:, 1:]).backward()
    logits = model(input_ids=IDS[:, :-1], use_cache=False).logits
    functional.cross_entropy(logits.flatten(0, 1), IDS[:, 1:].flatten(), reduction="sum").backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    for slot in stage.slots:
        gradient = expected[slot.name]
        assert gradient is not None
        own = stage.gradients[slot.start : slot.start + slot.count].view(slot.shape)
        assert torch.equal(own, gradient), slot.name


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "text").write_text("a quick brown fox\n" * 400)
    prepare(Dataset.of(folder / "text", "text"), TokenizerSpec(kind="bytes"), None, 0.1, SEQUENCE, folder)
    return folder / "tokenizer.json"


def stored(stages: list[Stage], folder: Path) -> list[Path]:
    """The stages' checkpoints."""
    paths = []
    for index, stage in enumerate(stages):
        tensors = {
            ANCHOR + slot.name: stage.parameters[slot.start : slot.start + slot.count].view(slot.shape).clone()
            for slot in stage.slots
        }
        paths.append(folder / f"{index}.safetensors")
        save_file(tensors | {ROUND: torch.tensor([4])}, paths[-1])
    return paths


def exported(stages: list[Stage], config: dict[str, Any], tokenizer: Path, folder: Path, *weights: Path) -> Path:
    assemble(stored(stages, folder), config, tokenizer, folder / "model", {}, weights=weights)
    return folder / "model"


@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_what_is_exported_opens_in_transformers_and_computes_the_same(
    family: str, tmp_path: Path, tokenizer: Path
) -> None:
    config = config_of(family)
    stages = [Stage(config, cut, training()) for cut in cuts(3, 3)]
    folder = exported(stages, config, tokenizer, tmp_path)
    model, loading = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert type(model).__name__ == FAMILIES[family]
    assert not any(loading.values()), loading
    assert torch.equal(model(input_ids=IDS[:, :-1], use_cache=False).logits, through(stages))


@pytest.mark.parametrize("family", sorted(SUBSPACE_FAMILIES))
def test_what_was_learnt_in_a_subspace_is_an_ordinary_model(family: str, tmp_path: Path, tokenizer: Path) -> None:
    config, spec = config_of(family), training(subspace=8, batch=2, micro_batches=1)
    whole, parts = Stage(config, WHOLE, spec), [Stage(config, cut, spec) for cut in cuts(3, 3)]
    for _ in range(2):
        accumulate(whole, Position(0, 1), IDS.numpy(), Recorded({}))
        whole.adam_step(0.01)
    named = {slot.name: whole.parameters[slot.start : slot.start + slot.count] for slot in whole.slots}
    for part in parts:
        part.load_named({slot.name: named[slot.name] for slot in part.slots})
    model = AutoModelForCausalLM.from_pretrained(exported([whole], config, tokenizer, tmp_path))
    flow = ids = IDS[:, :-1]
    for part in parts[:2]:
        flow = part.forward(flow)
        flow = part.crossing.activations(part.crossing.encode(flow, "exact"), ids, "exact")
    assert torch.equal(model(input_ids=ids, use_cache=False).logits, parts[2].forward(flow))
    assert whole.crossing.channels == 8


@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_names_in_the_exported_file_are_those_of_the_familys_repositories(
    family: str, tmp_path: Path, tokenizer: Path
) -> None:
    config = config_of(family)
    published(theirs(family, tie=config["cottage_head_starts_tied"]), tmp_path / "hub")
    folder = exported([Stage(config, WHOLE, training())], config, tokenizer, tmp_path)
    assert load_file(folder / "model.safetensors").keys() == load_file(tmp_path / "hub/model.safetensors").keys()


def test_a_stage_takes_what_was_fetched_for_its_cut_before_the_whole_model(tmp_path: Path) -> None:
    whole = published(theirs("llama", tie=False), tmp_path / "hub")
    mine = {name: value for name, value in load_file(whole).items() if ".layers.1." in name}
    save_file({name: value + 1 for name, value in mine.items()}, tmp_path / "hub" / weights_name(Layers(1, 2)))
    first, middle, _ = stages_from(tmp_path / "hub", "llama", tie=False)
    plain = stages_from(whole, "llama", tie=False)
    assert torch.equal(first.parameters, plain[0].parameters)
    assert torch.allclose(middle.parameters[:1024], plain[1].parameters[:1024] + 1)


def test_experts_stored_as_one_tensor_are_read_too(tmp_path: Path) -> None:
    stage = Stage(config_of("qwen3_moe"), WHOLE, training())
    values = {s.name: stage.parameters[s.start : s.start + s.count].view(s.shape).clone() for s in stage.slots}
    save_file(values, tmp_path / "fused.safetensors")
    again = Stage(config_of("qwen3_moe"), WHOLE, training(seed=99), tmp_path / "fused.safetensors")
    assert torch.equal(again.parameters, stage.parameters)


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    weights = published(theirs("mixtral", tie=False), tmp_path / "hub")
    tensors = load_file(weights)
    del tensors["model.layers.2.block_sparse_moe.experts.1.w3.weight"]
    save_file(tensors, weights)
    with pytest.raises(WeightsError, match=r"no tensor model\.layers\.2\.mlp\.experts\.gate_up_proj"):
        Stage(config_of("mixtral"), Cut(2, 3, False, True), training(), weights)


def test_a_base_models_file_without_its_prefix_and_neox_with_its_old_head_are_read(tmp_path: Path) -> None:
    model = theirs("gpt_neox", tie=False)
    tensors = {name.removeprefix("gpt_neox."): value for name, value in model.state_dict().items()}
    tensors["embed_out.weight"] = tensors.pop("lm_head.weight")
    save_file({name: value.contiguous() for name, value in tensors.items()}, tmp_path / "old.safetensors")
    stages = stages_from(tmp_path / "old.safetensors", "gpt_neox", tie=False)
    assert torch.equal(through(stages), model(input_ids=IDS[:, :-1], use_cache=False).logits)


def test_a_token_meets_only_some_experts_and_the_arithmetic_knows() -> None:
    shape = inspect_config(config_of("qwen3_moe"))
    expert = 3 * 32 * 24
    assert shape.layer_parameters - shape.active_layer_parameters == 2 * expert
    dense = inspect_config(config_of("qwen3"))
    assert dense.layer_parameters == dense.active_layer_parameters


@pytest.mark.parametrize(
    ("family", "change", "words"),
    [
        ("mixtral", {"num_local_experts": 0}, "num_local_experts is 0"),
        ("mixtral", {"num_experts_per_tok": 9}, "num_experts_per_tok is 9 of 3 experts"),
        ("gemma2", {"layer_types": ["full_attention"]}, "one entry for each of 3 layers"),
        ("gemma2", {"layer_types": ["full_attention", "x", "full_attention"]}, "layer_types has 'x'"),
        ("smollm3", {"no_rope_layers": [1, True, 0]}, "no_rope_layers is"),
        ("gemma3_text", {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "'yarn' is not supported"),
        ("gpt_neox", {"rotary_pct": 0.1}, "0 of it rotary"),
        ("mistral", {"sliding_window": -1}, "sliding_window is -1"),
        ("qwen3", {"num_experts": 4}, "num_experts is not supported for qwen3"),
    ],
)
def test_what_a_family_cannot_be_is_said(family: str, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        resolve(ModelSpec(config=FAMILY_CONFIGS[family] | change), VOCABULARY)
