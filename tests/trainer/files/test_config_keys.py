"""Every key of every family's config, as transformers' own classes have them: taken, harmless, or refused by name."""

import copy
import json
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from protocol.job.job import ModelSpec
from protocol.models import config_keys, hf_classes
from protocol.models.families import FAMILY
from protocol.models.model import PUBLISHED, ModelConfigError, resolve, tensors_of
from tests.support import config_classes, config_table
from tests.support.seeds import every
from tests.trainer.files.test_families import exported, tokenizer
from tests.trainer.small import FAMILY_CONFIGS, SEQUENCE, VOCABULARY, cuts, training
from trainer.stage.model import Cut, build_module
from trainer.stage.stage import Stage

__all__ = ["tokenizer"]

IDS = torch.randint(0, VOCABULARY, (2, SEQUENCE), generator=torch.Generator().manual_seed(1))
WEIGHTS = "0" * 64

LINEAR = {"rope_type": "linear", "factor": 2.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}
VALUES: dict[str, tuple[Any, ...]] = {
    "vocab_size": (310,),
    "hidden_size": (48,),
    "intermediate_size": (40,),
    "num_hidden_layers": (6,),
    "num_attention_heads": (2,),
    "num_key_value_heads": (1, 4, None),
    "head_dim": (24, None),
    "max_position_embeddings": (33,),
    "n_embd": (48,),
    "n_layer": (6,),
    "n_head": (2,),
    "n_inner": (40, None),
    "n_positions": (33,),
    "num_local_experts": (5,),
    "num_experts": (5,),
    "num_experts_per_tok": (1,),
    "moe_intermediate_size": (16,),
    "rms_norm_eps": (0.5,),
    "layer_norm_eps": (0.5,),
    "layer_norm_epsilon": (0.5,),
    "initializer_range": (0.1,),
    "rope_theta": (50.0, 500),
    "rope_local_base_freq": (50.0,),
    "rotary_emb_base": (50,),
    "rotary_pct": (1.0, 0.5),
    "partial_rotary_factor": (0.5,),
    "final_logit_softcapping": (2.0, None),
    "attn_logit_softcapping": (2.0, None),
    "router_aux_loss_coef": (0.0, 0.5),
    "embedding_multiplier": (2.0, 1),
    "attention_multiplier": (0.5,),
    "residual_multiplier": (0.22,),
    "logits_scaling": (8.0,),
    "sliding_window": (3, None),
    "query_pre_attn_scalar": (4,),
    "no_rope_layer_interval": (2,),
    "original_max_position_embeddings": (16,),
    "max_window_layers": (1,),
    "sliding_window_pattern": (2,),
    "tie_word_embeddings": (True, False),
    "attention_bias": (True, False),
    "mlp_bias": (True, False),
    "use_sliding_window": (True, False),
    "norm_topk_prob": (True, False),
    "scale_attn_weights": (False,),
    "use_parallel_residual": (False,),
    "layer_types": (["full_attention", "sliding_attention", "full_attention"], None),
    "no_rope_layers": ([0, 1, 1], None),
    "hidden_act": ("gelu", "relu"),
    "hidden_activation": ("silu", "gelu"),
    "activation_function": ("gelu_new", "silu"),
    "rope_scaling": (
        LINEAR,
        LLAMA3,
        {"type": "linear", "factor": 2.0},
        None,
        {},
        LINEAR | {"original_max_position_embeddings": 16, "mscale": None, "beta_fast": None},
    ),
    "rope_parameters": (LINEAR | {"rope_theta": 50.0}, LLAMA3 | {"rope_theta": 500.0}, {"rope_type": "default"}, None),
}
"""Values of each key that is taken anywhere, others than the small models have."""
BESIDE: dict[str, dict[str, Any]] = {
    "sliding_window": {"use_sliding_window": True},
    "max_window_layers": {"use_sliding_window": True, "sliding_window": 3},
    "layer_types": {"use_sliding_window": True, "sliding_window": 3},
    "use_sliding_window": {"sliding_window": 3, "max_window_layers": 1},
    "num_hidden_layers": {},
    "n_layer": {},
}
"""What a key needs beside it to have any effect, where the family has that."""
ROPES_OF_GEMMA3 = (
    {"full_attention": LINEAR, "sliding_attention": {"rope_theta": 50.0}},
    {"full_attention": None},
    None,
)
HARMLESS: dict[str, Any] = (
    dict.fromkeys(hf_classes.GENERATION, 1)
    | dict.fromkeys(
        (
            "attention_dropout",
            "hidden_dropout",
            "resid_pdrop",
            "embd_pdrop",
            "attn_pdrop",
            "classifier_dropout",
            "hidden_dropout_prob",
            "attention_probs_dropout_prob",
            "summary_first_dropout",
        ),
        0.3,
    )
    | {
        "bos_token_id": 5,
        "eos_token_id": [6, 7],
        "pad_token_id": 8,
        "unk_token_id": 1,
        "sep_token_id": 1,
        "cls_token_id": 1,
        "mask_token_id": None,
        "decoder_start_token_id": 3,
        "torch_dtype": "float32",
        "dtype": "float32",
        "use_cache": False,
        "output_attentions": False,
        "output_router_logits": True,
        "output_hidden_states": True,
        "return_dict": True,
        "pretraining_tp": 2,
        "num_labels": 3,
        "is_decoder": True,
        "tie_last_hidden_states": None,
        "gradient_checkpointing": True,
        "cache_implementation": "hybrid",
        "attn_implementation": None,
        "_attn_implementation": None,
        "experts_implementation": "eager",
        "use_bfloat16": True,
        "torchscript": False,
        "name_or_path": "x",
        "_name_or_path": "x",
        "tokenizer_class": "T",
        "prefix": "x",
        "model_max_length": 9,
        "task_specific_params": {"x": {"max_length": 3}},
        "finetuning_task": "x",
        "problem_type": None,
        "id2label": {"0": "a"},
        "label2id": {"a": 0},
        "summary_type": "cls_index",
        "summary_use_proj": False,
        "summary_activation": "tanh",
        "summary_proj_to_labels": False,
        "n_ctx": 7,
        "is_llama_config": True,
        "unsloth_fixed": True,
        "unsloth_version": "2026.1",
        "transformers.js_config": {"dtype": "q4"},
        "max_window_layers": 1,
        "hidden_act": "relu",
        "_commit_hash": "0",
        "_num_labels": 1,
        "_sliding_window_pattern": 2,
        "_attn_implementation_autoset": True,
        "_flash_attn_2_enabled": True,
        "architectures": None,
        "transformers_version": "4.40.0",
        "chunk_size_feed_forward": 4,
        "is_encoder_decoder": False,
    }
)
"""A telling value of every key that is called harmless."""
LISTED = ("layer_types", "no_rope_layers")


def taken_cases() -> Iterator[tuple[str, str, Any]]:
    for family in FAMILY:
        for key in sorted(config_keys.taken(family)):
            values = ROPES_OF_GEMMA3 if (family, key) == ("gemma3_text", "rope_parameters") else VALUES[key]
            for value in values:
                yield family, key, value


def given(family: str, key: str, value: Any) -> dict[str, Any]:
    """A small config with one key changed, and with what that needs to have an effect."""
    own = config_keys.taken(family)
    base = {
        name: one
        for name, one in FAMILY_CONFIGS[family].items()
        if key not in ("num_hidden_layers", "n_layer") or name not in LISTED
    }
    if key == "sliding_window_pattern":
        base.pop("layer_types", None)
    if key == "no_rope_layer_interval":
        base.pop("no_rope_layers", None)
    beside = {name: one for name, one in BESIDE.get(key, {}).items() if name in own}
    return {"vocab_size": VOCABULARY, "pad_token_id": None} | base | beside | {key: value}


def theirs(config: dict[str, Any]) -> PreTrainedModel:
    """A model as its publishers make it, by transformers alone, with random weights."""
    torch.manual_seed(3)
    made = CONFIG_MAPPING[config["model_type"]].from_dict(copy.deepcopy(config))  # They change it.
    model: PreTrainedModel = AutoModelForCausalLM.from_config(made, experts_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)  # Norms and biases are no longer all alike.
    return model.eval()


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=IDS, use_cache=False).logits
    return found


def test_the_table_is_what_the_installed_classes_have() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert config_classes.classes() == hf_classes.CLASSES
    assert config_classes.keys_of(config_classes.PreTrainedConfig) == hf_classes.BASE
    assert set(config_classes.GenerationConfig._get_default_generation_params()) == hf_classes.GENERATION
    assert hf_classes.CLASSES.keys() == FAMILY.keys()


def test_the_page_has_the_table_as_it_is() -> None:
    text = config_table.PAGE.read_text("utf-8")
    assert config_table.page(text) == text


@pytest.mark.parametrize("family", FAMILY)
def test_somebody_has_decided_about_every_key_that_a_class_has_or_its_code_asks_for(family: str) -> None:
    known = hf_classes.CLASSES[family]
    # Gemma 3 with eyes is in the same file.
    others = {
        "image_token_id",
        "mm_tokens_per_image",
        "text_config",
        "vision_config",
    }
    others |= {"summary_last_dropout"}  # A misspelling that only a head of another kind asks for.
    for key in {*known.keys, *known.asked, *hf_classes.BASE} - others:
        assert key in config_keys.taken(family) or key in config_keys.HARMLESS or key in config_keys.FIXED, key


def cell(case: tuple[str, str, Any]) -> str:
    family, key, value = case
    return f"{family}-{key}-{str(value)[:40]}"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", every(3, taken_cases()), ids=cell)
def test_what_is_taken_computes_as_transformers_does_when_it_comes_in_and_when_it_goes_out(
    case: tuple[str, str, Any], tmp_path: Path, tokenizer: Path
) -> None:
    family, key, value = case
    config = given(family, key, value)
    spec = ModelSpec(config=config, weights=WEIGHTS)
    try:
        model = theirs(config)
        expected = logits(model)
    except (
        StrictDataclassError,
        TypeError,
        ValueError,
    ):  # What transformers cannot build must not reach a worker either.
        with pytest.raises(ModelConfigError, match=key):
            resolve(spec, VOCABULARY)
        return
    model.save_pretrained(tmp_path / "hub")
    resolved = resolve(spec, VOCABULARY)
    layers = int(resolved.get("num_hidden_layers") or resolved["n_layer"])
    stages = [Stage(resolved, cut, training(), tmp_path / "hub/model.safetensors") for cut in cuts(layers, 3)]
    flow = IDS
    for stage in stages:
        flow = stage.forward(flow)
    assert torch.equal(flow, expected)
    made = exported(stages, resolved, tokenizer, tmp_path, tmp_path / "hub/model.safetensors")
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(made).eval()), expected)
    module, shape = build_module(resolved, Cut(0, layers, True, True))
    shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    assert tensors_of(resolved).all() == shapes
    assert shape.parameters == sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILY)
def test_a_folder_that_save_pretrained_wrote_comes_back_as_it_was_after_no_step(
    family: str, dtype: torch.dtype, tmp_path: Path, tokenizer: Path
) -> None:
    model = theirs(of_family(family) | {"bos_token_id": 1, "eos_token_id": [2, 5]}).to(dtype)
    model.save_pretrained(tmp_path / "hub")
    config = json.loads((tmp_path / "hub/config.json").read_text())
    resolved = resolve(ModelSpec(config=config, weights=WEIGHTS), VOCABULARY)
    stages = [Stage(resolved, cut, training(), tmp_path / "hub/model.safetensors") for cut in cuts(3, 3)]
    folder = exported(stages, resolved, tokenizer, tmp_path, tmp_path / "hub/model.safetensors")
    before, after = load_file(tmp_path / "hub/model.safetensors"), load_file(folder / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) and before[name].dtype == after[name].dtype for name in before)
    told, said = (AutoConfig.from_pretrained(one).to_dict() for one in (folder, tmp_path / "hub"))
    assert told | {"_name_or_path": None} == said | {"_name_or_path": None}


def of_family(family: str) -> dict[str, Any]:
    return {"vocab_size": VOCABULARY, "pad_token_id": None} | FAMILY_CONFIGS[family]


def without_own(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if not key.startswith(config_keys.OWN)}


@pytest.mark.parametrize("family", FAMILY)
def test_what_is_called_harmless_changes_nothing_in_transformers_and_stays_in_the_finished_folder(
    family: str, tmp_path: Path, tokenizer: Path
) -> None:
    own = config_keys.taken(family)
    harmless = {key: value for key, value in HARMLESS.items() if key not in own and key != "model_type"}
    assert {*harmless, *own, "model_type"} >= config_keys.HARMLESS
    config = of_family(family) | harmless | {"architectures": [hf_classes.CLASSES[family].architecture]}
    plain, model = theirs(of_family(family)), theirs(config)
    model.load_state_dict(plain.state_dict())
    assert torch.equal(logits(model), logits(plain))
    spec = ModelSpec(config=config, weights=WEIGHTS)
    resolved = resolve(spec, VOCABULARY)
    assert without_own(resolved) == without_own(
        resolve(ModelSpec(config=of_family(family), weights=WEIGHTS), VOCABULARY)
    )
    plain.save_pretrained(tmp_path / "hub")
    stages = [Stage(resolved, cut, training()) for cut in cuts(3, 3)]
    finished = json.loads(
        (
            exported(stages, resolved, tokenizer, tmp_path, tmp_path / "hub/model.safetensors") / "config.json"
        ).read_text()
    )
    kept = {key: finished.get(key) for key in ("eos_token_id", "bos_token_id", "pad_token_id", "attention_dropout")}
    assert kept == {"eos_token_id": [6, 7], "bos_token_id": 5, "pad_token_id": 8, "attention_dropout": 0.3}
    assert not {"_name_or_path", "unsloth_version", "torch_dtype"} & finished.keys()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("family", FAMILY)
def test_a_fixed_key_is_taken_with_the_values_that_change_nothing_and_refused_with_others(family: str) -> None:
    base = of_family(family)
    expected = logits(theirs(base))
    for key, values in config_keys.FIXED.items():
        if key in config_keys.taken(family) or key in hf_classes.CLASSES[family].aliases:
            continue
        for value in values:
            if (key, value) != ("auto_map", None):  # Their way to a model from a config alone trips over it.
                assert torch.equal(logits(theirs(base | {key: value})), expected), (key, value)
            assert without_own(resolve(ModelSpec(config=base | {key: value}), VOCABULARY)) == without_own(
                resolve(ModelSpec(config=base), VOCABULARY)
            )
        for strange in (True, 7, 0.5, "x", {"x": 1}, [1]):
            if (
                strange not in values
                and key not in config_keys.SAME.get(family, {})
                and (key, strange) != ("num_experts", True)
            ):
                with pytest.raises(ModelConfigError, match=key):
                    resolve(ModelSpec(config=base | {key: strange}), VOCABULARY)


@pytest.mark.parametrize("family", FAMILY)
@pytest.mark.parametrize("value", [None, 1, {}])
def test_a_key_that_nobody_knows_changes_nothing_here_or_there_and_stays(family: str, value: Any) -> None:
    more = {"trained_by": value, "_model_name_or_path": "x"}
    base = of_family(family)
    assert torch.equal(logits(theirs(base | more)), logits(theirs(base)))
    config = resolve(ModelSpec(config=base | more), VOCABULARY)
    assert without_own(config) == without_own(resolve(ModelSpec(config=base), VOCABULARY))
    assert config[PUBLISHED]["trained_by"] == value
    assert "_model_name_or_path" not in config[PUBLISHED]


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text", "llama"])
@pytest.mark.parametrize("key", ["use_bidirectional_attention", "is_causal"])
def test_a_model_that_looks_ahead_is_refused(family: str, key: str) -> None:
    config = of_family(family) | {key: key != "is_causal"}
    if key == "is_causal" or family == "gemma3_text":  # Others ask for it nowhere, or only where they make no mask.
        assert not torch.allclose(logits(theirs(config)), logits(theirs(of_family(family))), atol=0.01)
    with pytest.raises(ModelConfigError, match=f"{key} is not supported for {family}"):
        resolve(ModelSpec(config=config), VOCABULARY)


@pytest.mark.parametrize(
    ("family", "key", "true_name"),
    [(family, other, true) for family in FAMILY for other, true in hf_classes.CLASSES[family].aliases.items()],
)
def test_the_other_name_of_a_key_is_the_key(family: str, key: str, true_name: str) -> None:
    base = of_family(family)
    value = base.pop(true_name)
    assert resolve(ModelSpec(config=base | {key: value}), VOCABULARY)[true_name] == value
    with pytest.raises(ModelConfigError, match="one size"):
        resolve(ModelSpec(config=base | {key: value, true_name: value + 1}), VOCABULARY)


def test_what_older_versions_wrote_beside_is_taken_where_it_says_the_same() -> None:
    base = of_family("gpt_neox")
    for good in ({"rope_theta": 10_000.0}, {"rope_theta": 5, "rotary_emb_base": 5}, {"partial_rotary_factor": 0.5}):
        resolve(ModelSpec(config=base | good), VOCABULARY)
    for bad in ({"rope_theta": 500.0}, {"partial_rotary_factor": 0.25}):
        with pytest.raises(ModelConfigError, match="goes by rotary"):
            resolve(ModelSpec(config=base | bad), VOCABULARY)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("family", FAMILY)
def test_any_mixture_of_values_computes_as_transformers_does_or_is_refused(family: str) -> None:
    chance = random.Random(family)
    cases = [case[1:] for case in taken_cases() if case[0] == family]
    built = 0
    for _ in range(25):
        config = of_family(family)
        for key, value in chance.sample(cases, 3):
            config |= {name: one for name, one in BESIDE.get(key, {}).items() if name in config_keys.taken(family)} | {
                key: value
            }
        config = {key: value for key, value in config.items() if key not in ("num_hidden_layers", "n_layer")}
        config |= {"n_layer" if family == "gpt2" else "num_hidden_layers": 3}
        try:
            resolved = resolve(ModelSpec(config=config), VOCABULARY)
        except ModelConfigError:
            with pytest.raises((StrictDataclassError, TypeError, ValueError, RuntimeError)):
                logits(theirs(config))
            continue
        stage = Stage(resolved, Cut(0, 3, True, True), training())
        model = theirs(config | {"vocab_size": VOCABULARY})
        model.load_state_dict(dict(stage.module.state_dict()), strict=False)
        with torch.no_grad():
            assert torch.equal(stage.forward(IDS), model(input_ids=IDS, use_cache=False).logits), config
        built += 1
    assert built > 5
