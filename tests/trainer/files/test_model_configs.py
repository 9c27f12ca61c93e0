"""Configs at the door: arithmetic that agrees with transformers, and every impossible shape named."""

from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from protocol.job.job import ModelSpec
from protocol.models.config_keys import OWN
from protocol.models.model import (
    FAMILIES,
    MAX_PARAMETERS,
    PRESETS,
    PUBLISHED,
    ModelConfigError,
    inspect_config,
    resolve,
)
from tests.trainer.small import FAMILY_CONFIGS, LLAMA
from trainer.stage.model import Cut, build_module

VARIANTS: dict[str, dict[str, Any]] = {
    **FAMILY_CONFIGS,
    "llama with biases": LLAMA | {"attention_bias": True, "mlp_bias": True},
    "llama with wide heads": LLAMA | {"head_dim": 24},
    "llama without grouping": {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"},
    "llama with stretched rope": LLAMA
    | {
        "rope_theta": 5e5,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "qwen3 with biases": LLAMA | {"model_type": "qwen3", "attention_bias": True},
    "gpt2 with a wide middle": FAMILY_CONFIGS["gpt2"] | {"n_inner": 100},
}


def of_transformers(config: dict[str, Any]) -> int:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[config["model_type"]].from_dict(config))
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", VARIANTS)
def test_the_parameters_are_those_of_transformers(name: str) -> None:
    config = resolve(ModelSpec(config=VARIANTS[name]), 300)
    assert inspect_config(config).parameters == of_transformers(config)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_what_it_says(preset: str) -> None:
    config = resolve(ModelSpec(preset=preset), PRESETS[preset]["vocab_size"])
    assert inspect_config(config).parameters == of_transformers(config)


def test_the_presets_have_the_sizes_that_their_names_promise() -> None:
    sizes = {p: inspect_config(resolve(ModelSpec(preset=p), PRESETS[p]["vocab_size"])).parameters for p in PRESETS}
    assert 2e6 < sizes["tiny-llama"] < 3e6
    assert 20e6 < sizes["small-llama"] < 30e6


def test_the_vocabulary_is_the_tokenizers() -> None:
    assert resolve(ModelSpec(preset="tiny-llama"), 777)["vocab_size"] == 777
    config = resolve(ModelSpec(config=LLAMA | {"vocab_size": 32_000, "eos_token_id": 2, "bos_token_id": 31_000}), 777)
    assert config["vocab_size"] == 777
    assert (config[PUBLISHED]["eos_token_id"], config[PUBLISHED]["bos_token_id"]) == (2, None)


def test_with_weights_the_vocabulary_is_the_weights() -> None:
    spec = ModelSpec(config=LLAMA | {"vocab_size": 512}, weights="0" * 64)
    assert resolve(spec, 500)["vocab_size"] == 512
    with pytest.raises(ModelConfigError, match="vocabulary of 512, the tokenizer has 513"):
        resolve(spec, 513)


def test_what_would_not_replay_or_run_foreign_code_is_left_out() -> None:
    config = resolve(
        ModelSpec(config=FAMILY_CONFIGS["gpt2"] | {"attn_pdrop": 0.5, "dtype": "float16", "_name_or_path": "x"}), 300
    )
    assert config["attn_pdrop"] == 0.0
    assert config["dtype"] == "float32"
    assert config[PUBLISHED] == {"attn_pdrop": 0.5, "dtype": "float16"}


def test_the_head_is_always_untied_and_remembers_how_it_starts() -> None:
    assert resolve(ModelSpec(config=LLAMA), 300)["tie_word_embeddings"] is False
    assert resolve(ModelSpec(config=LLAMA), 300)["cottage_head_starts_tied"] is False
    assert resolve(ModelSpec(config=FAMILY_CONFIGS["gpt2"]), 300)["cottage_head_starts_tied"] is True


def test_resolving_twice_changes_nothing() -> None:
    once = resolve(ModelSpec(preset="tiny-llama"), 2048)
    twice = resolve(ModelSpec(config=once), 2048)
    assert {key: value for key, value in twice.items() if not key.startswith(OWN)} == {
        key: value for key, value in once.items() if not key.startswith(OWN)
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": 33}, "hidden_size 33 is not a multiple of num_attention_heads 4"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"hidden_size": -32}, "hidden_size is -32"),
        ({"hidden_size": 10**9}, "hidden_size is 1,000,000,000"),
        ({"hidden_size": "32"}, "hidden_size is '32'"),
        ({"hidden_size": 32.0}, "hidden_size is 32.0"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"hidden_size": None}, "hidden_size is None"),
        ({"hidden_size": [32]}, r"hidden_size is \[32\]"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": 5000}, "num_hidden_layers is 5,000"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
        ({"num_key_value_heads": 8}, "is not a multiple of num_key_value_heads 8"),
        ({"num_attention_heads": 32, "num_key_value_heads": 32}, "even width"),
        ({"intermediate_size": 0}, "intermediate_size is 0"),
        ({"max_position_embeddings": 0}, "max_position_embeddings is 0"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1"),
        ({"rms_norm_eps": "1e-06"}, r"YAML reads 1e-6 as text, 1\.0e-6 as a number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"initializer_range": "big"}, "initializer_range is 'big'"),
        ({"hidden_act": "evil"}, "hidden_act 'evil' is not supported"),
        ({"attention_bias": "yes"}, "attention_bias is 'yes'"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2}}, "'dynamic' is not supported"),
        ({"rope_scaling": "linear but text"}, "is not supported"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "x"}}, "factor is 'x'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling of type 'linear' needs factor"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "needs high_freq_factor, low_freq_factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "evil": 1}}, "evil"),
        ({"model_type": "bert"}, "model_type 'bert' is not supported: use one of llama"),
        ({"model_type": None}, "model_type None"),
        ({"model_type": ["llama"]}, "model_type"),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            r"\['LlamaForSequenceClassification'\] is not supported for llama, only models that continue a text .*: "
            r"use \['LlamaForCausalLM'\]",
        ),
        ({"architectures": ["LlamaModel"]}, "without its head, .*: use "),
        ({"architectures": [7]}, "only models that continue a text"),
        ({"architectures": "LlamaForCausalLM"}, "only models that continue a text"),
        ({"auto_map": {"AutoModel": "x.py"}}, "auto_map is not supported"),
        ({"quantization_config": {"bits": 4}}, "the weights are quantised; take the model that they were made of"),
        ({"num_experts": 8}, "num_experts is not supported"),
        ({"vocab_size": 10**12}, "vocab_size is"),
    ],
)
def test_an_impossible_config_names_the_value_and_the_way_out(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelConfigError, match=words):
        resolve(ModelSpec(config=LLAMA | change), 300)


@pytest.mark.parametrize(
    "spec", [ModelSpec(), ModelSpec(preset="tiny-llama", config=LLAMA), ModelSpec(preset="huge"), ModelSpec(config={})]
)
def test_an_unclear_model_is_refused(spec: ModelSpec) -> None:
    with pytest.raises(ModelConfigError):
        resolve(spec, 300)


def test_a_model_of_more_parameters_than_the_world_has_is_refused() -> None:
    wide = {"hidden_size": 2**17, "intermediate_size": 2**19, "num_hidden_layers": 1024}
    with pytest.raises(ModelConfigError, match=f"at most {MAX_PARAMETERS:,}"):
        resolve(ModelSpec(config=LLAMA | wide), 300)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None, max_examples=300)
@given(
    family=st.sampled_from(sorted(FAMILIES)), key=st.sampled_from(sorted(LLAMA | FAMILY_CONFIGS["gpt2"])), value=values
)
def test_any_value_anywhere_gives_a_shape_or_a_clear_error(family: str, key: str, value: Any) -> None:
    try:
        config = resolve(ModelSpec(config=FAMILY_CONFIGS[family] | {key: value}), 300)
    except ModelConfigError:
        return
    shape = inspect_config(config)
    assert 0 < shape.parameters <= MAX_PARAMETERS
    msgspec.json.encode(config)
    if shape.layers < 10:
        build_module(config, Cut(0, 1, True, shape.layers == 1))


def test_stages_add_up_and_impossible_ones_are_refused() -> None:
    shape = inspect_config(resolve(ModelSpec(preset="tiny-llama"), 2048))
    parts = shape.stage_parameters(0, 2, True, False) + shape.stage_parameters(2, 4, False, True)
    assert parts == shape.parameters
    for first, last in ((3, 2), (0, 5), (-1, 2)):
        with pytest.raises(ModelConfigError, match="of a model with 4"):
            shape.stage_parameters(first, last, True, True)


def test_a_sequence_beyond_the_positions_is_refused() -> None:
    shape = inspect_config(resolve(ModelSpec(preset="gpt2"), 300))
    shape.check_sequence(1024)
    with pytest.raises(ModelConfigError, match=r"training\.sequence 1,025 is longer than the model's 1,024"):
        shape.check_sequence(1025)


def test_costs_grow_with_what_they_count() -> None:
    shape = inspect_config(resolve(ModelSpec(preset="tiny-llama"), 2048))
    assert shape.stage_operations(0, 4, True, 128) > 6 * (4 * shape.layer_parameters + shape.head_parameters)
    assert shape.stage_operations(0, 2, False, 128) < shape.stage_operations(2, 4, True, 128)
    assert shape.stage_memory_bytes(10**6, True, 2, 2048) > shape.stage_memory_bytes(10**6, False, 2, 2048) > 52 * 10**6
