"""An adapter put into its model: what transformers computes with the folder is what peft computes with both."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from protocol.job.job import LoraSpec, ModelSpec
from protocol.models.model import resolve
from tests.trainer.files.test_families import IDS, published, theirs
from tests.trainer.small import Pipeline, cuts, training
from tests.trainer.stage.test_lora import FAMILIES, LORA, export
from trainer.data.data import TokenFile
from trainer.errors import WeightsError
from trainer.export.merge import merge, start
from trainer.stage.stage import Stage


def adapter_of(
    family: str, hub: Path, tokens: TokenFile, folder: Path, lora: LoraSpec = LORA
) -> tuple[Path, dict[str, Any]]:
    """An adapter that has learnt a little, and the job's config."""
    given = json.loads((hub / "config.json").read_text())
    config = resolve(ModelSpec(config=given, weights="0" * 64), given["vocab_size"])
    spec = training(lora=lora, learning_rate=1e-2)
    line = Pipeline([Stage(config, cut, spec, hub) for cut in cuts(3, 2)], tokens)
    for step in range(5):
        line.step(step, 10)
    return export(line, family, folder, lora), config


@pytest.mark.one_in(3)
@pytest.mark.parametrize("tie", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_folder_computes_what_peft_does(family: str, tie: bool, tmp_path: Path, tokens: TokenFile) -> None:
    hub = tmp_path / "hub"
    published(theirs(family, tie), hub)
    adapter, config = adapter_of(family, hub, tokens, tmp_path)
    count = merge([hub / "model.safetensors"], adapter, config, tmp_path / "out")
    base = AutoModelForCausalLM.from_pretrained(hub, experts_implementation="eager")
    both = PeftModel.from_pretrained(base, str(adapter)).eval()
    due = both(input_ids=IDS[:, :-1], use_cache=False).logits
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out", experts_implementation="eager")
    assert torch.allclose(merged(input_ids=IDS[:, :-1], use_cache=False).logits, due, atol=1e-5)
    before, after = load_file(hub / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert before.keys() == after.keys(), "tied embeddings stay tied"
    changed = [key for key in before if not torch.equal(before[key], after[key])]
    assert len(changed) == count > 0
    assert merged.config.tie_word_embeddings == tie
    assert AutoTokenizer.from_pretrained(tmp_path / "out").vocab_size > 0
    assert not (tmp_path / "out" / "adapter_config.json").exists()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
def test_what_a_job_started_from_is_as_it_was(dtype: torch.dtype, tmp_path: Path, tokens: TokenFile) -> None:
    hub, out = tmp_path / "hub", tmp_path / "out"
    published(theirs("llama", True).to(dtype), hub)
    adapter, config = adapter_of("llama", hub, tokens, tmp_path)
    settings = {"chat_template": "{{ messages }}"}
    beside = {"tokenizer_config.json": settings, "generation_config.json": {"top_p": 0.5}}
    start([hub / "model.safetensors"], adapter / "tokenizer.json", config, out, beside)
    assert (out / "model.safetensors").read_bytes() == (hub / "model.safetensors").read_bytes()
    before, after = (AutoModelForCausalLM.from_pretrained(folder) for folder in (hub, out))
    assert torch.equal(*(one(input_ids=IDS[:, :-1], use_cache=False).logits for one in (before, after)))
    assert (after.dtype, after.config.tie_word_embeddings) == (dtype, True)
    assert AutoTokenizer.from_pretrained(out).chat_template == settings["chat_template"]
    assert json.loads((out / "generation_config.json").read_text()) == {"top_p": 0.5}


def test_weights_by_the_root_of_the_rank_are_those_of_peft(tmp_path: Path, tokens: TokenFile) -> None:
    hub, lora = tmp_path / "hub", LoraSpec(rank=9, alpha=6.0, base_model="hub", rslora=True)
    assert lora.scale == 2.0
    published(theirs("llama", False), hub)
    adapter, config = adapter_of("llama", hub, tokens, tmp_path, lora)
    assert json.loads((adapter / "adapter_config.json").read_text())["use_rslora"] is True
    merge([hub / "model.safetensors"], adapter, config, tmp_path / "out")
    both = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(hub), str(adapter)).eval()
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    due = both(input_ids=IDS[:, :-1], use_cache=False).logits
    assert torch.allclose(merged(input_ids=IDS[:, :-1], use_cache=False).logits, due, atol=1e-5)


def test_numbers_keep_their_type_and_are_rounded_to_the_nearest(tmp_path: Path, tokens: TokenFile) -> None:
    hub = tmp_path / "hub"
    published(theirs("llama", tie=False).bfloat16(), hub)
    adapter, config = adapter_of("llama", hub, tokens, tmp_path)
    merge([hub / "model.safetensors"], adapter, config, tmp_path / "out")
    before, after = load_file(hub / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    thin = load_file(adapter / "adapter_model.safetensors")
    name = "model.layers.1.mlp.up_proj"
    change = thin[f"base_model.model.{name}.lora_B.weight"] @ thin[f"base_model.model.{name}.lora_A.weight"] * 2.0
    assert torch.equal(after[f"{name}.weight"], (before[f"{name}.weight"].float() + change).bfloat16())
    assert {value.dtype for value in after.values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"


def test_a_model_in_several_files_stays_in_several(tmp_path: Path, tokens: TokenFile) -> None:
    hub = tmp_path / "hub"
    published(theirs("llama", tie=False), hub)
    adapter, config = adapter_of("llama", hub, tokens, tmp_path)
    values = load_file(hub / "model.safetensors")
    halves = [dict(list(values.items())[start::2]) for start in (0, 1)]
    for number, half in enumerate(halves):
        save_file(half, tmp_path / f"{number}.safetensors", metadata={"format": "pt"})
    merge([tmp_path / "0.safetensors", tmp_path / "1.safetensors"], adapter, config, tmp_path / "parts")
    merge([hub / "model.safetensors"], adapter, config, tmp_path / "whole")
    parts, whole = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("parts", "whole"))
    for (name, left), right in zip(parts.state_dict().items(), whole.state_dict().values(), strict=True):
        assert torch.equal(left, right), name


def test_an_adapter_of_another_model_is_refused(tmp_path: Path, tokens: TokenFile) -> None:
    published(theirs("llama", tie=False), tmp_path / "hub")
    published(theirs("gpt2", tie=False), tmp_path / "other")
    adapter, config = adapter_of("llama", tmp_path / "hub", tokens, tmp_path)
    with pytest.raises(WeightsError, match="which the adapter changes: it is of another one"):
        merge([tmp_path / "other" / "model.safetensors"], adapter, config, tmp_path / "out")
    values = load_file(tmp_path / "hub" / "model.safetensors")
    wider = {
        key: torch.cat([value, value]) if key.endswith("up_proj.weight") else value for key, value in values.items()
    }
    save_file(wider, tmp_path / "wider.safetensors")
    with pytest.raises(WeightsError, match=r"up_proj\.weight is \(96, 32\), the adapter's part \(48, 32\)"):
        merge([tmp_path / "wider.safetensors"], adapter, config, tmp_path / "out")
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "wider.safetensors").read_bytes()[:-9])
    with pytest.raises(WeightsError, match="cannot be read as safetensors"):
        merge([tmp_path / "cut.safetensors"], adapter, config, tmp_path / "out")
