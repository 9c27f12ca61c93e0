"""What becomes of each key of a Hugging Face ``config.json``: taken, harmless, or refused. Without torch.

*Taken*: it changes what the model computes, and reaches the worker and the finished folder as it was given, null too. *Harmless*:
transformers computes the same whatever it says; the finished folder keeps it. *Fixed*: as harmless for the values that are
listed, and refused for others. Whatever is in no list is refused by name: a key that nobody here knows may change the
arithmetic, in some version of transformers or of another program.

Which keys a family has is read off transformers' own class (``protocol.models.hf_classes``). A key that is new there is taken
only once its values have bounds here; a test compares every key of every class with these lists.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from protocol.models.config_values import (
    MAX_EXPERTS,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_WIDTH,
    ModelConfigError,
    flag,
    integer,
    number,
    shown,
)
from protocol.models.families import FAMILY, in_force
from protocol.models.hf_classes import BASE, CLASSES, GENERATION, VERSION

DEQUANTISE = "take the model that they were made of, or dequantize() it with transformers and save that"
"""What to do about quantised weights, which cannot be trained."""
OWN = "cottage_"  # Prefix of our own entries in the config of a job; the finished folder has none.

SIZES = frozenset(
    {
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "n_embd",
        "n_layer",
        "n_head",
        "n_inner",
        "n_positions",
        "num_local_experts",
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
    }
)
"""Taken, and measured in ``protocol.models.families``."""
KINDS: Mapping[type, str] = {
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    list: "list",
    dict: "dict",
    type(None): "null",
}
NUMBERS: Mapping[str, tuple[float, float]] = {
    "rms_norm_eps": (0, 1),
    "layer_norm_eps": (0, 1),
    "layer_norm_epsilon": (0, 1),
    "initializer_range": (0, 1),
    "rope_theta": (1, 1e12),
    "rope_local_base_freq": (1, 1e12),
    "rotary_emb_base": (1, 1e12),
    "rotary_pct": (0, 1),
    "partial_rotary_factor": (0, 1),
    "final_logit_softcapping": (0, 1e6),
    "attn_logit_softcapping": (0, 1e6),
    "router_aux_loss_coef": (0, 1e6),
    "embedding_multiplier": (0, 1e6),
    "attention_multiplier": (0, 1e6),
    "residual_multiplier": (0, 1e6),
    "logits_scaling": (0, 1e6),
}
_MAY_BE_ZERO = frozenset({"router_aux_loss_coef"})  # Then routers are left alone.
INTEGERS: Mapping[str, tuple[int, int]] = {
    "sliding_window": (1, MAX_POSITIONS),
    "query_pre_attn_scalar": (1, MAX_WIDTH),
    "no_rope_layer_interval": (1, MAX_LAYERS),
    "original_max_position_embeddings": (1, MAX_POSITIONS),
    "num_experts_per_tok": (1, MAX_EXPERTS),
    "max_window_layers": (0, MAX_LAYERS),
    "sliding_window_pattern": (1, MAX_LAYERS),
}
FLAGS = frozenset(
    {
        "tie_word_embeddings",
        "attention_bias",
        "mlp_bias",
        "use_sliding_window",
        "norm_topk_prob",
        "scale_attn_weights",
        "use_parallel_residual",
    }
)
LISTS: Mapping[str, frozenset[Any]] = {
    "layer_types": frozenset({"full_attention", "sliding_attention"}),
    "no_rope_layers": frozenset({0, 1}),
}
ACTIVATIONS = frozenset({"silu", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu"})
_ACTIVATION = frozenset({"hidden_act", "hidden_activation", "activation_function"})
_ROPE = frozenset({"rope_scaling", "rope_parameters"})
_TAKEN = SIZES | NUMBERS.keys() | INTEGERS.keys() | FLAGS | LISTS.keys() | _ACTIVATION | _ROPE

DROPOUT = frozenset(
    {
        "attention_dropout",
        "hidden_dropout",
        "resid_pdrop",
        "embd_pdrop",
        "attn_pdrop",
        "classifier_dropout",
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "summary_first_dropout",
    }
)
"""Nothing is dropped while training here, since a step has to be run again to the same bits; see docs/reference/models.md."""
TOKEN_IDS = frozenset({"bos_token_id", "eos_token_id", "pad_token_id"})
HARMLESS = (
    BASE.keys()
    | GENERATION
    | DROPOUT
    | TOKEN_IDS
    | {
        "model_type",
        "unk_token_id",
        "sep_token_id",
        "cls_token_id",
        "mask_token_id",
        "decoder_start_token_id",
        "torch_dtype",
        "use_cache",
        "output_attentions",
        "output_router_logits",
        "pretraining_tp",
        "num_labels",
        "is_decoder",
        "tie_last_hidden_states",
        "gradient_checkpointing",
        "cache_implementation",
        "attn_implementation",
        "experts_implementation",
        "use_bfloat16",
        "torchscript",
        "name_or_path",
        "tokenizer_class",
        "prefix",
        "model_max_length",
        "task_specific_params",
        "finetuning_task",
        "summary_type",
        "summary_use_proj",
        "summary_activation",
        "summary_proj_to_labels",
        "n_ctx",
        "is_llama_config",
        "unsloth_fixed",
        "unsloth_version",
        "transformers.js_config",
        "max_window_layers",
        "hidden_act",
        "_name_or_path",
        "_commit_hash",
        "_num_labels",
        "_sliding_window_pattern",
        "_attn_implementation_autoset",
        "_flash_attn_2_enabled",
        "_attn_implementation",
    }
)
"""``max_window_layers`` and ``hidden_act`` where a family does not take them: Gemma's activation is ``hidden_activation``."""
FIXED: Mapping[str, tuple[Any, ...]] = {
    # Attention to what comes later, or to less than everything before.
    "is_causal": (True,),
    "use_bidirectional_attention": (False, None),
    "attention_chunk_size": (None,),
    "use_sliding_window": (False,),
    "sliding_window": (None,),
    "sliding_window_pattern": (None,),
    "layer_types": (),
    # Layers that are not all alike.
    "per_layer_config": (None, {}),
    "decoder_sparse_step": (1,),
    "mlp_only_layers": ([], None),
    "scale_attn_by_inverse_layer_idx": (False,),
    "num_experts": (None,),
    "num_local_experts": (None,),
    # Parts that this family does not have, or whose code is not transformers' own.
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "lm_head_bias": (False,),
    "head_dim": (),
    "clip_qkv": (None,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "is_encoder_decoder": (False, None),
    "tie_encoder_decoder": (False,),
    "pruned_heads": ({}, None),
    "quantization_config": (None, {}),
    "auto_map": (None, {}),
    "activation": ("swiglu",),
    "full_attn_mod": (1,),
    "interpolate_factor": (1,),
    # Rotations of another kind, noise, other rounding.
    "rope_interleaved": (False,),
    "use_mrope": (False,),
    "partial_rotary_factor": (1, None),
    "rope_theta": (),
    "rope_scaling": (None,),
    "rope_parameters": (None,),
    "router_jitter_noise": (0.0,),
    "reorder_and_upcast_attn": (False,),
}
"""Values under which a key that a family does not take leaves its arithmetic alone."""
SAME: Mapping[str, Mapping[str, tuple[str, float]]] = {
    "gpt_neox": {"rope_theta": ("rotary_emb_base", 10_000.0), "partial_rotary_factor": ("rotary_pct", 0.25)},
}
"""Keys that a class ignores, and that older versions wrote beside the ones that count, equal to them."""
_NOT_KEPT = frozenset(
    {
        "model_type",
        "architectures",
        "transformers_version",
        "dtype",
        "torch_dtype",
        "auto_map",
        "quantization_config",
        "name_or_path",
        "attn_implementation",
        "experts_implementation",
        "unsloth_fixed",
        "unsloth_version",
        "prefix",
    }
)


@lru_cache
def taken(name: str) -> frozenset[str]:
    """The keys of a family that reach its workers."""
    return frozenset(CLASSES[name].keys.keys() & _TAKEN) | FAMILY[name].more


def read(name: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sort the keys of a config: what is taken, and what is harmless and kept for the finished folder.

    Raises:
        ModelConfigError: a key that is not known to be harmless, or a value that is not.
    """
    own, other = taken(name), dict[str, Any]()
    found: dict[str, Any] = {}
    for key, value in given.items():
        true_name = CLASSES[name].aliases.get(key, key)
        if true_name in own:
            if true_name in found and found[true_name] != value:
                raise ModelConfigError(
                    f"{key} {shown(value)} and {true_name} are one size of a {name}: give one of them"
                )
            found[true_name] = value
        elif not key.startswith(OWN):
            _check_other(name, given, key)
            other[key] = value
    for key, value in found.items():
        if value is None and not _may_be_null(name, key):
            raise ModelConfigError(
                f"{key} is None: transformers' {name} takes no null there; give a value, or leave it out"
            )
    return found, {key: value for key, value in other.items() if _stays(name, key, value)}


def check(name: str, config: Mapping[str, Any]) -> None:
    """See that what is taken has values that can be computed with; sizes apart.

    Raises:
        ModelConfigError: naming the value.
    """
    own = taken(name)
    activation = in_force(name, config, FAMILY[name].activation)
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise ModelConfigError(
            f"{FAMILY[name].activation} {activation!r} is not supported: use one of {', '.join(sorted(ACTIVATIONS))}"
        )
    for key in own & NUMBERS.keys():
        number(config, key, *NUMBERS[key], zero=key in _MAY_BE_ZERO)
    for key in own & INTEGERS.keys():
        if config.get(key) is not None:
            integer(config, key, *INTEGERS[key])
    for key in own & FLAGS:
        flag(config, key)
    for key in own & LISTS.keys():
        _check_list(config, key)
    for key in own & _ROPE:
        _check_rope(name, config, key)
    if "layer_types" in own:
        _check_windows(name, config)


def _may_be_null(name: str, key: str) -> bool:
    known = CLASSES[name].keys.get(key)
    return key == "rope_scaling" or (known is not None and "null" in known.kinds)


def _stays(name: str, key: str, value: Any) -> bool:
    """Whether the finished folder keeps a harmless key: transformers opens no folder with a value of another kind."""
    known = CLASSES[name].keys.get(key) or BASE.get(key)
    return key not in _NOT_KEPT and not key.startswith("_") and (known is None or KINDS.get(type(value)) in known.kinds)


def _check_other(name: str, given: Mapping[str, Any], key: str) -> None:
    """Refuse a key that is not taken, and neither harmless nor as harmless as its value.

    What no class of transformers knows changes nothing of what the model computes there, and so nothing here.
    """
    value = given[key]
    if key in FIXED and any(type(value) is type(one) and value == one for one in _values(key, given)):
        return
    if key in SAME.get(name, {}):
        true_name, default = SAME[name][key]
        if value != (wanted := given.get(true_name, default)):
            raise ModelConfigError(
                f"{key} is {shown(value)}, {true_name} {shown(wanted)}: a {name} goes by {true_name}"
            )
        return
    if key in ("num_experts", "num_local_experts"):
        raise ModelConfigError(f"{key} is not supported for {name}: remove it, or use mixtral or qwen3_moe")
    if key == "quantization_config":
        raise ModelConfigError(f"quantization_config is {shown(value)}: the weights are quantised; {DEQUANTISE}")
    if key in FIXED:
        fixed = " or ".join(json.dumps(one) for one in FIXED[key]) or "one without it"
        raise ModelConfigError(
            f"{key} is not supported for {name} as {shown(value)}, which is another model than {name} with {fixed}: "
            "only that is trained; remove the key if it is what you have"
        )
    if key not in HARMLESS and (key in CLASSES[name].keys or key in BASE):
        raise ModelConfigError(
            f"{key} is something that transformers {VERSION} knows of {name} and that is not supported here: "
            "remove it if the model does not need it"
        )


def _values(key: str, given: Mapping[str, Any]) -> tuple[Any, ...]:
    """The values that leave the arithmetic alone; numbers with and without a point."""
    values = FIXED[key]
    if key == "head_dim" and isinstance(hidden := given.get("hidden_size"), int):
        heads = given.get("num_attention_heads")
        values = (hidden // heads,) if isinstance(heads, int) and heads > 0 else ()
    return (*values, *(float(one) for one in values if type(one) is int))


def _check_list(config: Mapping[str, Any], key: str) -> None:
    value = config.get(key)
    if value is None:
        return
    layers = integer(config, "num_hidden_layers", 1, MAX_LAYERS)
    kinds = {type(entry) for entry in LISTS[key]}
    if not isinstance(value, list) or len(value) != layers or any(type(entry) not in kinds for entry in value):
        raise ModelConfigError(f"{key} is {shown(value)}: give a list with one entry for each of {layers:,} layers")
    if strange := [entry for entry in value if entry not in LISTS[key]]:
        raise ModelConfigError(f"{key} has {strange[0]!r}: use {', '.join(sorted(map(str, LISTS[key])))}")


_KINDS: Mapping[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
}
"""What each kind of rotary scaling needs; only kinds whose frequencies do not depend on the length of the input."""
_UNUSED = frozenset(
    {
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
        "short_factor",
        "long_factor",
        "low_freq_factor",
        "high_freq_factor",
        "factor",
    }
)
"""What other kinds read: null says that there is none."""


def _check_windows(name: str, config: Mapping[str, Any]) -> None:
    """Refuse layers that look through a window of no width, which transformers finds out in the first step."""
    kinds, gemma = config.get("layer_types"), name.startswith("gemma")
    sliding = gemma and config.get("sliding_window_pattern") != 1 if kinds is None else "sliding_attention" in kinds
    off = name in ("qwen2", "qwen3") and not config.get("use_sliding_window")
    if sliding and (off or in_force(name, config, "sliding_window") is None):
        raise ModelConfigError(
            f"sliding_window is None, and layers of {name} are sliding_attention: give its width, or layer_types without any"
            + (", or say use_sliding_window: true" if off else "")
        )


def _check_rope(name: str, config: Mapping[str, Any], key: str) -> None:
    rope = config.get(key)
    if rope is None or rope == {}:
        return
    nested = name == "gemma3_text" and key == "rope_parameters"
    if not nested:
        _check_rope_kind(name, key, rope)
        return
    if not isinstance(rope, Mapping) or not rope.keys() <= LISTS["layer_types"]:
        kinds = " and ".join(sorted(LISTS["layer_types"]))
        raise ModelConfigError(f"{key} of a {name} is {shown(rope)}: give one table for each of {kinds}")
    for kind, own in rope.items():
        if own is not None:
            _check_rope_kind(name, f"{key}.{kind}", own)


def _check_rope_kind(name: str, key: str, rope: Any) -> None:
    kind = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, Mapping) else rope
    known = CLASSES[name].ropes
    if not isinstance(rope, Mapping) or not isinstance(kind, str) or kind not in known:
        raise ModelConfigError(f"{key} of type {kind!r} is not supported for {name}: use one of {', '.join(known)}")
    numbers = {str(one) for one in rope} - {"rope_type", "type"}
    if missing := {one for one in _KINDS[kind] if rope.get(one) is None}:
        raise ModelConfigError(f"{key} of type {kind!r} needs {', '.join(sorted(missing))}")
    more = {"rope_theta", "original_max_position_embeddings"} | {one for one in _UNUSED if rope.get(one, 0) is None}
    if FAMILY[name].partial is not None or rope.get("partial_rotary_factor") in (1, None):
        more.add("partial_rotary_factor")
    if unknown := numbers - _KINDS[kind] - more:
        raise ModelConfigError(f"{key} of type {kind!r} has no {', '.join(sorted(unknown))}: remove it")
    for one in numbers:
        number(rope, one, 0, 1e12)
    if "rope_theta" in rope and rope["rope_theta"] is None:
        raise ModelConfigError(f"{key}.rope_theta is None: give a number, or leave it out")
