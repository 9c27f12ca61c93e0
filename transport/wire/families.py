"""The architectures that are trained here: what a Hugging Face config of each means in numbers. Without torch.

Thirteen families of decoders. Each is cut into stages by giving transformers' own class fewer layers, so a family belongs in
this table when every layer has the same tensors and attention looks at nothing but the layer's input.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MAX_LAYERS = 1024  # The deepest public model has 126.
MAX_WIDTH = 1 << 20  # Hidden, intermediate and head widths; the widest public model has 53,248.
MAX_VOCABULARY = 1 << 20
MAX_POSITIONS = 1 << 22
MAX_EXPERTS = 4096  # The largest public count in a layer is 512.


class ModelConfigError(ValueError):
    """A model config that cannot be trained here. The message names the value and the way out."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model. ``*_parameters`` count scalars.

    Attributes:
        layer_parameters: of each decoder layer.
        embedding_parameters: token (and position) embeddings, on stage 0.
        head_parameters: final norm and output head, on the last stage.
        active_layer_parameters: those of a layer that a token meets: with experts fewer than there are.
        kept_values: numbers that a layer keeps for its backward pass, a token, in float32; ``score_values`` further ones for
            each token of the sequence, where attention keeps its scores.
    """

    family: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    max_positions: int
    embedding_parameters: int
    layer_parameters: int
    head_parameters: int
    active_layer_parameters: int
    kept_values: int
    score_values: int = 0


@dataclass(frozen=True)
class Family:
    """One architecture.

    Attributes:
        architecture: the class of transformers.
        keys: what is taken over from a config; anything else (dropout, dtype, remote code) does not reach the trainer.
        prefix: of the names of the base model's parameters.
        embedding: name of the token embedding.
        tied: whether a config that does not say it ties the head to the embedding.
        lists: keys with one entry a layer, and the entries that are allowed.
        kv_heads, head_dim: what transformers takes where the config is silent; ``None``: as many heads as for queries, and
            the width divided by the heads.
        bias: biases of (query, key and value; output) where no flag decides.
        norms: widths of norm vectors in a layer, as multiples of the model's width.
        head_norms: whether queries and keys are normalised: a vector of the head's width each, or of all heads.
        zero_centred: norms compute ``1 + weight`` and start from zero.
        experts: key of their number; ``expert_width`` the key of an expert's inner width.
    """

    architecture: str
    keys: frozenset[str]
    prefix: str = "model."
    embedding: str = "model.embed_tokens.weight"
    activation: str = "hidden_act"
    tied: bool = False
    lists: Mapping[str, frozenset[Any]] | None = None
    positions: int = 32_768
    kv_heads: int | None = None
    head_dim: int | None = None
    bias: tuple[bool, bool] = (False, False)
    norms: int = 2
    head_norms: str = ""
    zero_centred: bool = False
    experts: str = ""
    expert_width: str = "intermediate_size"


_SHARED = frozenset({"vocab_size", "initializer_range", "bos_token_id", "eos_token_id", "tie_word_embeddings"})
_ROTARY = _SHARED | {
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "hidden_act",
    "max_position_embeddings", "rope_theta", "rope_scaling", "rope_parameters",
}  # fmt: skip
_LLAMA = _ROTARY | {"num_key_value_heads", "rms_norm_eps"}
_GEMMA = (_LLAMA - {"hidden_act"}) | {
    "head_dim", "attention_bias", "hidden_activation", "query_pre_attn_scalar", "sliding_window", "layer_types",
    "final_logit_softcapping", "attn_logit_softcapping",
}  # fmt: skip
_WINDOW = frozenset({"use_sliding_window", "sliding_window", "max_window_layers", "layer_types"})
_KINDS = {"layer_types": frozenset({"full_attention", "sliding_attention"})}

FAMILY: Mapping[str, Family] = {
    "llama": Family("LlamaForCausalLM", _LLAMA | {"head_dim", "attention_bias", "mlp_bias"}, positions=2048),
    "mistral": Family("MistralForCausalLM", _LLAMA | {"head_dim", "sliding_window"}, kv_heads=8, positions=131_072),
    "qwen2": Family("Qwen2ForCausalLM", _LLAMA | _WINDOW, lists=_KINDS, kv_heads=32, bias=(True, False)),
    "qwen3": Family(
        "Qwen3ForCausalLM", _LLAMA | _WINDOW | {"head_dim", "attention_bias"}, lists=_KINDS, kv_heads=32, head_dim=128,
        head_norms="head",
    ),
    "mixtral": Family(
        "MixtralForCausalLM",
        _LLAMA | {"head_dim", "sliding_window", "num_local_experts", "num_experts_per_tok", "router_aux_loss_coef"},
        kv_heads=8, positions=131_072, experts="num_local_experts",
    ),
    "qwen3_moe": Family(
        "Qwen3MoeForCausalLM",
        _LLAMA | {"head_dim", "attention_bias", "use_sliding_window", "sliding_window", "num_experts",
                  "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", "router_aux_loss_coef"},
        kv_heads=4, head_norms="head", experts="num_experts", expert_width="moe_intermediate_size",
    ),
    "olmo2": Family("Olmo2ForCausalLM", _LLAMA | {"attention_bias"}, positions=2048, head_norms="all"),
    "phi3": Family(
        "Phi3ForCausalLM",
        _LLAMA | {"sliding_window", "partial_rotary_factor", "original_max_position_embeddings"}, positions=4096,
    ),
    "smollm3": Family(
        "SmolLM3ForCausalLM",
        _LLAMA | _WINDOW | {"attention_bias", "mlp_bias", "no_rope_layers", "no_rope_layer_interval"},
        lists=_KINDS | {"no_rope_layers": frozenset({0, 1})}, kv_heads=4, tied=True,
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM", _GEMMA, lists=_KINDS, activation="hidden_activation", kv_heads=4, head_dim=256,
        positions=8192, norms=4, tied=True, zero_centred=True,
    ),
    "gemma3_text": Family(
        "Gemma3ForCausalLM", _GEMMA | {"rope_local_base_freq"}, lists=_KINDS, activation="hidden_activation", kv_heads=4,
        head_dim=256, positions=131_072, norms=4, head_norms="head", tied=True, zero_centred=True,
    ),
    "gpt_neox": Family(
        "GPTNeoXForCausalLM",
        _ROTARY | {"layer_norm_eps", "rotary_pct", "partial_rotary_factor", "rotary_emb_base", "use_parallel_residual",
                   "attention_bias"},
        "gpt_neox.", "gpt_neox.embed_in.weight", positions=2048,
    ),
    "gpt2": Family(
        "GPT2LMHeadModel",
        _SHARED | {"n_embd", "n_layer", "n_head", "n_inner", "n_positions", "activation_function",
                   "layer_norm_epsilon", "scale_attn_weights"},
        "transformer.", "transformer.wte.weight", "activation_function", tied=True, positions=1024,
    ),
}  # fmt: skip

_ACTIVATIONS = frozenset({"silu", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu"})
_ROPE_TYPES: Mapping[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
}
"""What each kind of rotary scaling needs; only kinds whose frequencies do not depend on the length of the input."""
_ROPE_EXTRAS = frozenset({"rope_theta", "partial_rotary_factor"})
_NUMBERS: Mapping[str, tuple[float, float]] = {
    "rms_norm_eps": (0, 1), "layer_norm_eps": (0, 1), "layer_norm_epsilon": (0, 1), "initializer_range": (0, 1),
    "rope_theta": (1, 1e12), "rope_local_base_freq": (1, 1e12), "rotary_emb_base": (1, 1e12), "rotary_pct": (0, 1),
    "partial_rotary_factor": (0, 1), "final_logit_softcapping": (0, 1e6), "attn_logit_softcapping": (0, 1e6),
    "router_aux_loss_coef": (0, 1e6),
}  # fmt: skip
FLOATS = frozenset(_NUMBERS)
_MAY_BE_ZERO = frozenset({"router_aux_loss_coef"})  # Then routers are left alone.
_INTEGERS: Mapping[str, int] = {
    "sliding_window": MAX_POSITIONS, "query_pre_attn_scalar": MAX_WIDTH, "no_rope_layer_interval": MAX_LAYERS,
    "original_max_position_embeddings": MAX_POSITIONS, "num_experts_per_tok": MAX_EXPERTS,
}  # fmt: skip
_FLAGS = (
    "tie_word_embeddings", "attention_bias", "mlp_bias", "use_sliding_window", "norm_topk_prob", "scale_attn_weights",
    "use_parallel_residual",
)  # fmt: skip


def measure(name: str, config: Mapping[str, Any]) -> Sizes:
    """Sizes of a model of family ``name``.

    Raises:
        ModelConfigError: missing or wrong values, shapes that cannot be.
    """
    family = FAMILY[name]
    _common(config, family)
    return _MEASURES.get(name, _rotary)(name, config, family)


def _rotary(name: str, config: Mapping[str, Any], family: Family) -> Sizes:
    hidden, layers, heads = _core(config)
    inner = integer(config, "intermediate_size", 1, MAX_WIDTH)
    kv_heads = integer(config, "num_key_value_heads", 1, MAX_WIDTH, family.kv_heads or heads)
    head_dim = _head_dim(config, family, hidden, heads)
    _divides(kv_heads, "num_key_value_heads", heads, "num_attention_heads")
    q, kv = heads * head_dim, kv_heads * head_dim
    biased = flag(config, "attention_bias") if "attention_bias" in family.keys else None
    into, out = family.bias if biased is None else (biased, biased)
    norm_width = {"": 0, "head": 2 * head_dim, "all": q + kv}[family.head_norms]
    attention = hidden * (2 * q + 2 * kv) + (q + 2 * kv) * into + hidden * out + norm_width
    total, active, kept = _feed_forward(config, family, hidden, inner)
    layer = attention + family.norms * hidden
    # A norm keeps its input and what it made of that; inputs of matrices; query, key, value and what attention gives.
    kept += (2 * family.norms + 2) * hidden + 2 * q + 2 * kv + (2 * (q + kv) if family.head_norms else 0)
    eager = name == "gemma2"
    if eager or ("layer_types" not in family.keys and config.get("sliding_window") is not None):
        kept += 2 * q  # With a mask of its own, attention wants keys and values once for each head.
    vocabulary, positions = _vocabulary(config), _positions(config, family, "max_position_embeddings")
    return Sizes(
        name, layers, hidden, inner, heads, kv_heads, head_dim, vocabulary, positions,
        embedding_parameters=vocabulary * hidden,
        layer_parameters=layer + total,
        head_parameters=vocabulary * hidden + hidden,
        active_layer_parameters=layer + active,
        kept_values=kept,
        score_values=2 * heads * eager,
    )  # fmt: skip


def _feed_forward(config: Mapping[str, Any], family: Family, hidden: int, inner: int) -> tuple[int, int, int]:
    """Scalars of a layer's feed-forward part, how many of them a token meets, and values that it keeps."""
    if not family.experts:
        biases = (2 * inner + hidden) * (flag(config, "mlp_bias") if "mlp_bias" in family.keys else False)
        return 3 * hidden * inner + biases, 3 * hidden * inner + biases, 4 * inner
    experts = integer(config, family.experts, 1, MAX_EXPERTS, 8 if family.experts == "num_local_experts" else 128)
    used = integer(config, "num_experts_per_tok", 1, MAX_EXPERTS, 2 if family.experts == "num_local_experts" else 8)
    if used > experts:
        raise ModelConfigError(f"num_experts_per_tok is {used:,} of {experts:,} experts: choose at most {experts:,}")
    width = integer(config, family.expert_width, 1, MAX_WIDTH, 768 if "moe" in family.expert_width else None)
    expert = 3 * hidden * width
    return experts * (expert + hidden), used * expert + experts * hidden, used * (4 * width + 3 * hidden)


def _gpt_neox(name: str, config: Mapping[str, Any], family: Family) -> Sizes:
    hidden, layers, heads = _core(config)
    inner = integer(config, "intermediate_size", 1, MAX_WIDTH)
    head_dim = _head_dim(config, family, hidden, heads)
    biases = 4 * hidden * flag(config, "attention_bias", default=True)
    layer = 4 * hidden * hidden + biases + 2 * hidden * inner + inner + hidden + 4 * hidden
    vocabulary, positions = _vocabulary(config), _positions(config, family, "max_position_embeddings")
    return Sizes(
        name, layers, hidden, inner, heads, heads, head_dim, vocabulary, positions,
        embedding_parameters=vocabulary * hidden,
        layer_parameters=layer,
        head_parameters=vocabulary * hidden + 2 * hidden,
        active_layer_parameters=layer,
        kept_values=10 * hidden + 2 * inner,
    )  # fmt: skip


def _gpt2(name: str, config: Mapping[str, Any], family: Family) -> Sizes:
    hidden = integer(config, "n_embd", 1, MAX_WIDTH)
    layers = integer(config, "n_layer", 1, MAX_LAYERS)
    heads = integer(config, "n_head", 1, MAX_WIDTH)
    inner = integer(config, "n_inner", 1, MAX_WIDTH, 4 * hidden)
    _divides(heads, "n_head", hidden, "n_embd")
    layer = 4 * hidden * hidden + 4 * hidden + 2 * hidden * inner + inner + hidden + 4 * hidden
    vocabulary, positions = _vocabulary(config), _positions(config, family, "n_positions")
    return Sizes(
        name, layers, hidden, inner, heads, heads, hidden // heads, vocabulary, positions,
        embedding_parameters=(vocabulary + positions) * hidden,
        layer_parameters=layer,
        head_parameters=vocabulary * hidden + 2 * hidden,
        active_layer_parameters=layer,
        kept_values=8 * hidden + 5 * inner,
    )  # fmt: skip


_MEASURES: Mapping[str, Callable[[str, Mapping[str, Any], Family], Sizes]] = {"gpt_neox": _gpt_neox, "gpt2": _gpt2}


def _core(config: Mapping[str, Any]) -> tuple[int, int, int]:
    return (
        integer(config, "hidden_size", 1, MAX_WIDTH),
        integer(config, "num_hidden_layers", 1, MAX_LAYERS),
        integer(config, "num_attention_heads", 1, MAX_WIDTH),
    )


def _vocabulary(config: Mapping[str, Any]) -> int:
    return integer(config, "vocab_size", 2, MAX_VOCABULARY)


def _positions(config: Mapping[str, Any], family: Family, key: str) -> int:
    return integer(config, key, 1, MAX_POSITIONS, family.positions)


def _head_dim(config: Mapping[str, Any], family: Family, hidden: int, heads: int) -> int:
    """Width of a head. Llama, Gemma and GPT-NeoX refuse a width that the heads do not divide even where a head's is given."""
    own = config.get("head_dim") is not None or family.head_dim is not None
    if not own or family.architecture.startswith(("Llama", "Gemma", "GPTNeoX")):
        _divides(heads, "num_attention_heads", hidden, "hidden_size")
    head_dim = integer(config, "head_dim", 1, MAX_WIDTH, family.head_dim or max(1, hidden // heads))
    rope = config.get("rope_parameters")
    shares = [config.get("partial_rotary_factor"), config.get("rotary_pct")]
    shares.append(rope.get("partial_rotary_factor") if isinstance(rope, Mapping) else None)
    share = next((value for value in shares if value is not None), 0.25 if "GPTNeoX" in family.architecture else 1.0)
    turned = int(head_dim * share)
    if turned % 2 or turned < 2:
        raise ModelConfigError(
            f"heads of width {head_dim}, {turned} of it rotary: rotary positions need an even width; "
            "change num_attention_heads"
        )
    return head_dim


def _common(config: Mapping[str, Any], family: Family) -> None:
    activation = config.get(family.activation, "silu")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise ModelConfigError(
            f"{family.activation} {activation!r} is not supported: use one of {', '.join(sorted(_ACTIVATIONS))}"
        )
    for key in family.keys & _NUMBERS.keys():
        if not (key in _MAY_BE_ZERO and config.get(key) == 0 and not isinstance(config[key], bool)):
            number(config, key, *_NUMBERS[key])
    for key in family.keys & _INTEGERS.keys():
        if config.get(key) is not None:
            integer(config, key, 1, _INTEGERS[key])
    if "max_window_layers" in family.keys and config.get("max_window_layers") is not None:
        integer(config, "max_window_layers", 0, MAX_LAYERS)
    for key in family.keys.intersection(_FLAGS):
        flag(config, key)
    for key, allowed in (family.lists or {}).items():
        _list(config, key, allowed)
    if "rope_theta" in family.keys:
        _rope(config, nested=family.architecture == "Gemma3ForCausalLM")


def _list(config: Mapping[str, Any], key: str, allowed: frozenset[Any]) -> None:
    value = config.get(key)
    if value is None:
        return
    layers = integer(config, "num_hidden_layers", 1, MAX_LAYERS)
    kinds = {type(entry) for entry in allowed}
    if not isinstance(value, list) or len(value) != layers or any(type(entry) not in kinds for entry in value):
        raise ModelConfigError(f"{key} is {str(value)[:80]}: give a list with one entry for each of {layers:,} layers")
    if strange := [entry for entry in value if entry not in allowed]:
        raise ModelConfigError(f"{key} has {strange[0]!r}: use {', '.join(sorted(map(str, allowed)))}")


def _rope(config: Mapping[str, Any], nested: bool) -> None:
    for key in ("rope_scaling", "rope_parameters"):
        rope = config.get(key)
        if rope is None:
            continue
        kinds = _KINDS["layer_types"]
        if nested and key == "rope_parameters" and isinstance(rope, Mapping) and rope and set(rope) <= kinds:
            for kind, own in rope.items():
                if own is not None:
                    _rope_kind(f"{key}.{kind}", own)
        else:
            _rope_kind(key, rope)


def _rope_kind(key: str, rope: Any) -> None:
    kind = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, Mapping) else rope
    if not isinstance(rope, Mapping) or not isinstance(kind, str) or kind not in _ROPE_TYPES:
        raise ModelConfigError(f"{key} of type {kind!r} is not supported: use one of {', '.join(_ROPE_TYPES)}")
    numbers = {str(name) for name in rope} - {"rope_type", "type"}
    if missing := _ROPE_TYPES[kind] - numbers:
        raise ModelConfigError(f"{key} of type {kind!r} needs {', '.join(sorted(missing))}")
    if unknown := numbers - _ROPE_TYPES[kind] - _ROPE_EXTRAS:
        raise ModelConfigError(f"{key} of type {kind!r} has no {', '.join(sorted(unknown))}: remove it")
    for name in numbers:
        number(rope, name, 0, 1e12)


def integer(config: Mapping[str, Any], key: str, low: int, high: int, default: int | None = None) -> int:
    """A whole number of the config within bounds."""
    value = config.get(key)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelConfigError(f"{key} is {value!r}: give a whole number from {low:,} to {high:,}")
    if not low <= value <= high:
        raise ModelConfigError(f"{key} is {value:,}: choose from {low:,} to {high:,}")
    return value


def number(config: Mapping[str, Any], key: str, low: float, high: float) -> None:
    """Refuse what is there and no number above ``low`` and up to ``high``."""
    value = config.get(key)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not low < value <= high:
        yaml = ", with a point in it: YAML reads 1e-6 as text, 1.0e-6 as a number" if isinstance(value, str) else ""
        raise ModelConfigError(f"{key} is {value!r}: give a number above {low:g}, at most {high:g}{yaml}")


def flag(config: Mapping[str, Any], key: str, default: bool = False) -> bool:
    """A truth value of the config."""
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ModelConfigError(f"{key} is {value!r}: give true or false")
    return value


def _divides(part: int, part_name: str, whole: int, whole_name: str) -> None:
    if whole % part:
        raise ModelConfigError(f"{whole_name} {whole:,} is not a multiple of {part_name} {part:,}: change one of them")
