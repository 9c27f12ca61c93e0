"""A model that sees, too: its text part learns, and the rest stays as it came."""

import json
import warnings
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    LlavaConfig,
    LlavaForConditionalGeneration,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from coordinator.services.artifacts.weight_index import check_fit
from protocol.job.end_tokens import ends_of
from protocol.job.job import ModelSpec, TokenizerSpec
from protocol.models.model import ModelConfigError, resolve
from protocol.models.text_part import AROUND
from tests.trainer.files.test_families import IDS, stored, through
from tests.trainer.serve.answering import answered
from tests.trainer.small import VOCABULARY, Pipeline, cuts, training
from tests.trainer.stage.test_lora import LORA
from trainer.data.data import TokenFile
from trainer.data.prepare import prepare
from trainer.export.assemble import assemble
from trainer.export.merge import merge
from trainer.formats.source import Dataset
from trainer.stage.stage import Stage

TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
}
EYES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28}
PLACES = {"rope_type": "default", "mrope_section": [2, 1, 1]}
KINDS: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "gemma3": (
        Gemma3Config,
        Gemma3ForConditionalGeneration,
        {"text_config": {**TEXT, "model_type": "gemma3_text", "pad_token_id": 0}, "mm_tokens_per_image": 4},
        "siglip_vision_model",
    ),
    "llava": (
        LlavaConfig,
        LlavaForConditionalGeneration,
        {"text_config": {**TEXT, "model_type": "llama"}},
        "clip_vision_model",
    ),
    "qwen2_5_vl": (
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        {"text_config": {**TEXT, "rope_parameters": {**PLACES, "rope_theta": 500.0}}},
        "qwen2_5_vl_vision",
    ),
    "qwen3_vl": (
        Qwen3VLConfig,
        Qwen3VLForConditionalGeneration,
        {"text_config": {**TEXT, "rope_parameters": {**PLACES, "mrope_interleaved": True}}},
        "qwen3_vl_vision",
    ),
}
QWEN_EYES = {"hidden_size": 16, "intermediate_size": 24, "depth": 1, "num_heads": 2, "out_hidden_size": 32}


def whole(kind: str, folder: Path) -> Any:
    config, model, more, eyes = KINDS[kind]
    torch.manual_seed(3)
    own = {**QWEN_EYES, "deepstack_visual_indexes": [0]} if kind.startswith("qwen") else EYES
    seen = {**own, "patch_size": 14, "model_type": eyes}
    made = model(config(**more, vision_config=seen, image_token_index=VOCABULARY - 1))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    made.save_pretrained(folder)
    return model.from_pretrained(folder).eval()


def resolved(folder: Path) -> dict[str, Any]:
    given = json.loads((folder / "config.json").read_text())
    return resolve(ModelSpec(config=given, weights="0" * 64), VOCABULARY)


def tokenizer(folder: Path) -> Path:
    (folder / "text").write_text("a quick brown fox\n" * 400)
    prepare(Dataset.of(folder / "text", "text"), TokenizerSpec(kind="bytes"), None, 0.1, 16, folder)
    return folder / "tokenizer.json"


@pytest.mark.parametrize("renamed", [False, True], ids=["as it is saved", "as others save it"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_text_part_computes_the_same_alone_and_goes_back_to_its_place(
    kind: str, renamed: bool, tmp_path: Path
) -> None:
    hub = tmp_path / "hub"
    expected = whole(kind, hub)(input_ids=IDS[:, :-1]).logits
    if renamed:  # From transformers 4.52 on.
        old = load_file(hub / "model.safetensors")
        ways = {"language_model.model.": "model.language_model.", "language_model.lm_head.": "lm_head."}
        new = {}
        for key, value in old.items():
            way = next((way for way in ways if key.startswith(way)), "")
            new[ways.get(way, "") + key.removeprefix(way)] = value
        save_file(new, hub / "model.safetensors")
    config = resolved(hub)
    assert "left out of training, and stay as they came" in check_fit(config, [("it", hub / "model.safetensors")])
    stages = [Stage(config, cut, training(), hub / "model.safetensors") for cut in cuts(3, 3)]
    assert torch.equal(through(stages), expected)
    (due,) = (stage for stage in stages if stage.cut.last == 3)
    due.parameters.add_(0.01)  # What is learnt in the last stage.
    expected = through(stages)
    weights = [hub / "model.safetensors"]
    assemble(stored(stages, tmp_path), config, tokenizer(tmp_path), tmp_path / "out", {}, weights=weights)
    again = KINDS[kind][1].from_pretrained(tmp_path / "out").eval()
    assert torch.equal(again(input_ids=IDS[:, :-1]).logits, expected)
    before, after = (load_file(one / "model.safetensors") for one in (hub, tmp_path / "out"))
    assert before.keys() == after.keys()
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    assert any(".layers.2." in key for key in changed)
    assert not [key for key in changed if "vision" in key or "projector" in key or ".layers.0." in key]
    given, finished = (json.loads((folder / "config.json").read_text()) for folder in (hub, tmp_path / "out"))
    assert not [key for key in finished if key.startswith("cottage")]
    text = given["text_config"]
    assert {key: finished["text_config"].get(key) for key in ("model_type", "rope_parameters") if key in text} == {
        key: text[key] for key in ("model_type", "rope_parameters") if key in text
    }


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_opens_in_peft_beside_the_whole_model_and_merges_into_it(
    kind: str, tmp_path: Path, tokens: TokenFile
) -> None:
    hub = tmp_path / "hub"
    model = whole(kind, hub)
    plain = model(input_ids=IDS[:, :-1]).logits.detach()
    config, spec = resolved(hub), training(lora=LORA, learning_rate=1e-2)
    line = Pipeline([Stage(config, cut, spec, hub) for cut in cuts(3, 2)], tokens)
    for step in range(5):
        line.step(step, 10)
    card = {"spec": {"training": {"lora": msgspec.to_builtins(LORA)}}}
    assemble(stored(line.stages, tmp_path), config, tokenizer(tmp_path), tmp_path / "adapter", card)
    due = through(line.stages)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Found missing adapter keys")  # Of the eyes, which have none.
        both = PeftModel.from_pretrained(model, str(tmp_path / "adapter")).eval()
    assert torch.allclose(both(input_ids=IDS[:, :-1]).logits, due, atol=1e-5)
    assert (due - plain).abs().max() > 1e-3
    merge([hub / "model.safetensors"], tmp_path / "adapter", config, tmp_path / "out")
    merged = KINDS[kind][1].from_pretrained(tmp_path / "out").eval()
    assert torch.allclose(merged(input_ids=IDS[:, :-1]).logits, due, atol=1e-5)
    before, after = (load_file(folder / "model.safetensors") for folder in (hub, tmp_path / "out"))
    assert before.keys() == after.keys()
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    assert changed
    assert all(".layers." in key and "vis" not in key for key in changed)
    assert answered(tmp_path / "out", "a quick", 3)[1].tokens == 3


def as_published(folder: Path) -> dict[str, Any]:
    """Write a config as Qwen2.5-VL's are on the Hub: the text part's keys among the others, in the spelling of before 5."""
    config = json.loads((folder / "config.json").read_text())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    del config["transformers_version"]
    text |= {"bos_token_id": 1, "eos_token_id": 2}  # Ids that the small vocabulary has.
    flat: dict[str, Any] = text | config
    flat |= {
        "rope_theta": rope["rope_theta"],
        "rope_scaling": {"type": "mrope", "mrope_section": rope["mrope_section"]},
    }
    (folder / "config.json").write_text(json.dumps(flat))
    return flat


def test_a_config_with_its_text_part_among_the_others_comes_back_so(tmp_path: Path) -> None:
    whole("qwen2_5_vl", tmp_path / "hub")
    flat = as_published(tmp_path / "hub")
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(tmp_path / "hub").eval()
    config = resolved(tmp_path / "hub")
    stage = Stage(config, cuts(3, 1)[0], training(), tmp_path / "hub" / "model.safetensors")
    assert torch.equal(through([stage]), model(input_ids=IDS[:, :-1]).logits)
    weights = [tmp_path / "hub" / "model.safetensors"]
    assemble(stored([stage], tmp_path), config, tokenizer(tmp_path), tmp_path / "out", {}, weights=weights)
    finished = json.loads((tmp_path / "out" / "config.json").read_text())
    assert {key: finished.get(key) for key in flat} == flat
    assert not finished.keys() - flat.keys()
    before, after = (load_file(one / "model.safetensors") for one in (tmp_path / "hub", tmp_path / "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_a_part_that_is_no_family_and_one_without_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match="model_type 'qwen3_vl_moe_text' is not supported"):
        resolve(ModelSpec(config={"text_config": {"model_type": "qwen3_vl_moe_text"}}, weights="0" * 64), VOCABULARY)
    given = {"model_type": "llava", "text_config": {**TEXT, "model_type": "llama"}}
    with pytest.raises(ModelConfigError, match="a llava is trained from its weights only"):
        resolve(ModelSpec(config=given), VOCABULARY)
    config = resolve(ModelSpec(config=given | {"dtype": "bfloat16"}, weights="0" * 64), VOCABULARY)
    ends = ModelSpec(config={"eos_token_id": 1, "text_config": {"model_type": "llama", "eos_token_id": [7, 9]}})
    assert ends_of(ends) == (7, 9)
    assert config[AROUND] == {"model_type": "llava", "dtype": "bfloat16"}
