"""The config of a job's document, which was resolved when the job was made, means the same model when it is sent again."""

from typing import Any

import pytest

from protocol.job.job import ModelSpec
from protocol.models.model import KEEPS_EMBEDDING, PRESETS, inspect_config, resolve, resolve_finished
from protocol.models.text_part import AROUND

WEIGHTS = "7" * 64
GIVEN: dict[str, Any] = {
    **PRESETS["tiny-llama"],
    "vocab_size": 300,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "torch_dtype": "bfloat16",
    "rope_scaling": None,
    "use_cache": True,
}
ROTATED = {"type": "mrope", "rope_type": "default", "mrope_section": [4, 6, 6]}
"""By time, height and width."""
TEXT: dict[str, Any] = {**PRESETS["qwen2.5-0.5b"], "model_type": "qwen2_vl_text", "rope_scaling": ROTATED}
GEMMA: dict[str, Any] = {
    "model_type": "gemma3_text",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 300,
}
SEEN: dict[str, Any] = {"vision_config": {"hidden_size": 32}, "image_token_id": 7}
AROUND_A_TEXT: dict[str, dict[str, Any]] = {
    "gemma3": {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": GEMMA,
        "eos_token_id": [1, 106],
        "pad_token_id": 999_999,
        "torch_dtype": "bfloat16",
        **SEEN,
    },
    "nested qwen2_vl": {"model_type": "qwen2_vl", "tie_word_embeddings": True, "text_config": TEXT, **SEEN},
    "flat qwen2_vl": {**TEXT, "model_type": "qwen2_vl", "tie_word_embeddings": True, "bos_token_id": 5, **SEEN},
}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("weights", [WEIGHTS, None])
@pytest.mark.parametrize("given", [GIVEN, *PRESETS.values()], ids=["given", *PRESETS])
def test_a_resolved_config_becomes_what_it_is(given: dict[str, Any], tied: bool, weights: str | None) -> None:
    once = resolve(ModelSpec(config=given | {"tie_word_embeddings": tied}, weights=weights), 300)
    assert resolve(ModelSpec(config=once, weights=weights), 300) == once


@pytest.mark.parametrize("given", AROUND_A_TEXT.values(), ids=AROUND_A_TEXT)
def test_a_resolved_config_around_a_text_part_becomes_what_it_is(given: dict[str, Any]) -> None:
    once = resolve_finished(given)
    assert (once[KEEPS_EMBEDDING], once[AROUND]["vision_config"]) == (True, SEEN["vision_config"])
    assert resolve_finished(once) == once


@pytest.mark.parametrize("around", ["all", 7, [], {"text_config": "all"}, {"text_config": 7}])
def test_what_cannot_be_around_a_text_part_is_passed_over(around: Any) -> None:
    once = resolve(ModelSpec(config=GIVEN, weights=WEIGHTS), 300)
    found = resolve(ModelSpec(config=once | {AROUND: around}, weights=WEIGHTS), 300)
    assert AROUND not in found
    assert inspect_config(found) == inspect_config(once)


@pytest.mark.parametrize("name", PRESETS)
def test_tied_parameters_of_a_config_are_counted_once_however_often_it_is_resolved(name: str) -> None:
    once = resolve_finished(PRESETS[name] | {"vocab_size": 1_000, "tie_word_embeddings": True})
    twice = resolve_finished(once)
    assert inspect_config(twice) == inspect_config(once)
    assert inspect_config(twice).tied_parameters == 1_000 * inspect_config(once).hidden
