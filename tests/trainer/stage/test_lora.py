"""Adapters: what learns, what stays, what peft makes of it, and that it runs again."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from protocol.boundary import Position
from protocol.codec import MessageError, convert
from protocol.job.job import JobSpec, LoraSpec, TokenizerSpec
from protocol.models.config_values import ModelConfigError
from tests.trainer.files.test_families import IDS, WHOLE, published, theirs
from tests.trainer.small import Pipeline, commit_round, config_of, cuts, job, training
from trainer.data.data import TokenFile
from trainer.data.prepare import prepare
from trainer.errors import WeightsError
from trainer.export.assemble import assemble
from trainer.formats.source import Dataset
from trainer.outer.inner_update import update
from trainer.stage.stage import Stage
from trainer.stage.steps import Recorded, Recorder, accumulate
from trainer.worker.checkpoint import ANCHOR, ROUND

LORA = LoraSpec(rank=4, alpha=8.0, base_model="hub")
FAMILIES = ["llama", "gpt2", "phi3", "gemma2", "qwen3_moe", "gpt_neox"]


def adapted(family: str, hub: Path, stages: int, tokens: TokenFile, **changes: Any) -> Pipeline:
    config = config_of(family) | {"cottage_head_starts_tied": False}
    spec = training(**({"lora": LORA} | changes))
    return Pipeline([Stage(config, cut, spec, hub) for cut in cuts(3, stages)], tokens)


def export(line: Pipeline, family: str, folder: Path, spec: LoraSpec = LORA) -> Path:
    paths = []
    for index, stage in enumerate(line.stages):
        tensors = {
            ANCHOR + s.name: stage.parameters[s.start : s.start + s.count].view(s.shape).clone() for s in stage.slots
        }
        paths.append(folder / f"{index}.safetensors")
        save_file(tensors | {ROUND: torch.tensor([4])}, paths[-1])
    (folder / "text").write_text("a quick brown fox\n" * 400)
    prepare(Dataset.of(folder / "text", "text"), TokenizerSpec(kind="bytes"), None, 0.1, 16, folder)
    card = {"spec": {"training": {"lora": msgspec.to_builtins(spec)}}}
    assemble(paths, config_of(family), folder / "tokenizer.json", folder / "adapter", card)
    return folder / "adapter"


@pytest.mark.parametrize("family", FAMILIES)
def test_peft_opens_what_was_learnt_and_computes_the_same(family: str, tmp_path: Path, tokens: TokenFile) -> None:
    published(theirs(family, tie=False), tmp_path / "hub")
    line = adapted(family, tmp_path / "hub", 2, tokens, learning_rate=1e-2)
    for step in range(5):
        line.step(step, 10)
    folder = export(line, family, tmp_path)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "hub", experts_implementation="eager")
    plain = base(input_ids=IDS[:, :-1], use_cache=False).logits.detach()
    model = PeftModel.from_pretrained(base, str(folder)).eval()
    flow = IDS[:, :-1]
    for stage in line.stages:
        flow = stage.forward(flow)
    logits = model(input_ids=IDS[:, :-1], use_cache=False).logits
    assert torch.allclose(logits, flow, atol=1e-6)
    assert (logits - plain).abs().max() > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_training_begins_with_the_model_as_it_is_and_touches_adapters_only(
    family: str, tmp_path: Path, tokens: TokenFile
) -> None:
    model = theirs(family, tie=False)
    published(model, tmp_path / "hub")
    line = adapted(family, tmp_path / "hub", 1, tokens)
    (stage,) = line.stages
    assert torch.equal(stage.forward(IDS[:, :-1]), model(input_ids=IDS[:, :-1], use_cache=False).logits)
    assert all(".lora_" in slot.name for slot in stage.slots)
    assert stage.parameter_count < stage.shape.parameters / 2
    frozen = {name: value.clone() for name, value in stage.module.named_parameters() if not value.requires_grad}
    before = stage.parameters.clone()
    for step in range(3):
        line.step(step, 10)
    assert not torch.equal(stage.parameters, before)
    assert all(torch.equal(value, frozen[n]) for n, value in stage.module.named_parameters() if n in frozen)


def test_gradients_are_those_of_peft(tmp_path: Path, tokens: TokenFile) -> None:
    published(theirs("llama", tie=False), tmp_path / "hub")
    line = adapted("llama", tmp_path / "hub", 1, tokens, lora=LoraSpec(4, 8.0, ("q_proj", "v_proj")))
    (stage,) = line.stages
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "hub")
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]))
    theirs_by_name = {
        name.removeprefix("base_model.model.").replace(".default", ""): value
        for name, value in model.named_parameters()
        if value.requires_grad
    }
    assert theirs_by_name.keys() == {slot.name for slot in stage.slots}
    generator = torch.Generator().manual_seed(2)
    for slot in stage.slots:
        value = torch.randn(slot.shape, generator=generator) * 0.1
        stage.parameters[slot.start : slot.start + slot.count] = value.flatten()
        theirs_by_name[slot.name].data.copy_(value)
    stage.loss(stage.forward(IDS[:, :-1]), IDS[:, 1:]).backward()
    logits = model(input_ids=IDS[:, :-1], use_cache=False).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), IDS[:, 1:].flatten(), reduction="sum").backward()
    for slot in stage.slots:
        own = stage.gradients[slot.start : slot.start + slot.count].view(slot.shape)
        expected = theirs_by_name[slot.name].grad
        assert expected is not None
        assert torch.allclose(own, expected, rtol=1e-4, atol=1e-6), slot.name


@pytest.mark.parametrize("stage", [0, 1])
def test_a_step_of_adapters_runs_again_bit_for_bit(stage: int, tmp_path: Path, tokens: TokenFile) -> None:
    published(theirs("llama", tie=False), tmp_path / "hub")
    line = adapted("llama", tmp_path / "hub", 2, tokens, clip_norm=0.5, precision="bf16")
    done = commit_round(line, stage, 2, 10)
    spec = line.stages[0].training
    again = Stage(config_of(), line.stages[stage].cut, spec, tmp_path / "hub", initialise=False)
    again.restore(done.trace.states[1])
    recorder = Recorder(Recorded(done.trace.payloads[1]))
    accumulate(again, Position(stage, 2), tokens.sample(spec.seed, 1, 0, spec.batch)[0], recorder)
    update(again, Position(stage, 2), recorder, 1, 10)
    assert again.state_digest() == done.trace.leaves[1].after


def test_the_seed_decides_where_adapters_begin_and_the_cut_does_not(tmp_path: Path, tokens: TokenFile) -> None:
    published(theirs("llama", tie=False), tmp_path / "hub")
    whole = adapted("llama", tmp_path / "hub", 1, tokens).stages[0]
    parts = adapted("llama", tmp_path / "hub", 3, tokens).stages
    assert torch.equal(torch.cat([part.parameters for part in parts]), whole.parameters)
    other = adapted("llama", tmp_path / "hub", 1, tokens, seed=8).stages[0]
    assert not torch.equal(other.parameters, whole.parameters)


@pytest.mark.parametrize("targets", [("nonsense",), ("lm_head",), ("embed_tokens",), ("q_proj", "c_attn")])
def test_a_target_that_is_no_layers_matrix_is_refused(targets: tuple[str, ...]) -> None:
    with pytest.raises(ModelConfigError, match=r"targets has '\w+': this model has down_proj, gate_proj"):
        Stage(config_of(), WHOLE, training(lora=LoraSpec(targets=targets)))


def test_adapters_without_weights_to_adapt_are_refused() -> None:
    document = json.loads(json.dumps({"name": "x", "model": {"preset": "tiny-llama"}, "budget": 1}))
    document |= {"dataset": {"artifact": "0" * 64}, "training": {"lora": {}}}
    with pytest.raises(MessageError, match=r"give its weights in model\.weights"):
        convert(document, JobSpec)
    document["model"]["weights"] = ["1" * 64, "2" * 64]
    assert convert(document, JobSpec).model.weight_files == ("1" * 64, "2" * 64)
    assert job().model.weight_files == ()


def test_an_adapter_with_a_stage_missing_is_refused(tmp_path: Path, tokens: TokenFile) -> None:
    published(theirs("llama", tie=False), tmp_path / "hub")
    line = adapted("llama", tmp_path / "hub", 3, tokens)
    line.stages.pop(1)
    with pytest.raises(WeightsError, match=r"missing for layers \[1\]"):
        export(line, "llama", tmp_path)


def test_an_adapter_of_another_rank_than_the_document_says_is_refused(tmp_path: Path, tokens: TokenFile) -> None:
    published(theirs("llama", tie=False), tmp_path / "hub")
    line = adapted("llama", tmp_path / "hub", 1, tokens)
    with pytest.raises(WeightsError, match="no adapter of rank 8"):
        export(line, "llama", tmp_path, LoraSpec(rank=8))


def test_adapters_are_a_small_part_of_what_a_model_would_send(tmp_path: Path, tokens: TokenFile) -> None:
    published(theirs("llama", tie=False), tmp_path / "hub")
    (stage,) = adapted("llama", tmp_path / "hub", 1, tokens, lora=LoraSpec(1, 2.0, ("q_proj",))).stages
    assert stage.parameters.numel() == 3 * (64 + 64)
    assert stage.operations_per_token == 6 * 3 * 64 + 4 * stage.shape.parameters
    assert load_file(tmp_path / "hub/model.safetensors").keys().isdisjoint({slot.name for slot in stage.slots})
