"""Arithmetic on Hugging Face configs, without torch: what a job's model weighs, and whether it can exist at all.

The embedding and the head of every model trained here are separate tensors: tied, they would have to cross a link at
every step as soon as there are two stages. A config that ties them starts with a head that is a copy of the embedding,
and the finished folder says ``tie_word_embeddings: false``. The number of stages therefore never changes the model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from transport.wire.job import ModelSpec

FAMILIES: Mapping[str, str] = {
    "llama": "LlamaForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

MAX_LAYERS = 1024  # The deepest public model has 126.
MAX_WIDTH = 1 << 20  # Hidden, intermediate and head widths; the widest public model has 53,248.
MAX_VOCABULARY = 1 << 20
MAX_POSITIONS = 1 << 22
MAX_PARAMETERS = 10**12  # No network of home machines holds more, and products stay far from 2**63.

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "tiny-llama": {
        "model_type": "llama", "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 4,
        "num_attention_heads": 6, "num_key_value_heads": 6, "max_position_embeddings": 1024, "vocab_size": 2048,
    },
    "small-llama": {
        "model_type": "llama", "hidden_size": 448, "intermediate_size": 1216, "num_hidden_layers": 8,
        "num_attention_heads": 7, "num_key_value_heads": 7, "max_position_embeddings": 2048, "vocab_size": 8192,
    },
    "gpt2": {
        "model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257,
    },
    "qwen2.5-0.5b": {
        "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 32768, "vocab_size": 151936,
        "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
    },
}  # fmt: skip

_SHARED_KEYS = frozenset({"vocab_size", "initializer_range", "bos_token_id", "eos_token_id", "tie_word_embeddings"})
_LLAMA_KEYS = _SHARED_KEYS | {
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "hidden_act", "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters",
}  # fmt: skip
_GPT2_KEYS = _SHARED_KEYS | {
    "n_embd", "n_layer", "n_head", "n_inner", "n_positions", "activation_function", "layer_norm_epsilon",
    "scale_attn_weights",
}  # fmt: skip
_KEYS: Mapping[str, frozenset[str]] = {
    "llama": _LLAMA_KEYS | {"head_dim", "attention_bias", "mlp_bias"},
    "qwen2": _LLAMA_KEYS,
    "qwen3": _LLAMA_KEYS | {"head_dim", "attention_bias"},
    "gpt2": _GPT2_KEYS,
}
"""What is taken over from a config; anything else (dropout, dtype, remote code) does not reach the trainer."""

_ACTIVATIONS = frozenset({"silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu"})
_ROPE_TYPES: Mapping[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
}
"""What each kind of rotary scaling needs; only kinds whose frequencies do not depend on the length of the input."""
_REFUSED = ("auto_map", "quantization_config", "num_local_experts", "num_experts")
_FLOATS = ("initializer_range", "rms_norm_eps", "layer_norm_epsilon", "rope_theta")
_FLOAT32 = 4


class ModelConfigError(ValueError):
    """A model config that cannot be trained here. The message names the value and the way out."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model. ``*_parameters`` count scalars.

    Attributes:
        layer_parameters: of each decoder layer.
        embedding_parameters: token (and position) embeddings, on stage 0.
        head_parameters: final norm and output head, on the last stage.
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

    @property
    def parameters(self) -> int:
        """All scalars of the model."""
        return self.stage_parameters(0, self.layers, True, True)

    def stage_parameters(self, first: int, last: int, is_first: bool, is_last: bool) -> int:
        """Scalars of a stage with layers ``first <= i < last``, plus embedding or head where it has them.

        Raises:
            ModelConfigError: there are no such layers.
        """
        if not 0 <= first <= last <= self.layers:
            raise ModelConfigError(
                f"layers {first} to {last} of a model with {self.layers}: choose within 0..{self.layers}"
            )
        edges = self.embedding_parameters * is_first + self.head_parameters * is_last
        return (last - first) * self.layer_parameters + edges

    def stage_operations(self, first: int, last: int, is_last: bool, sequence: int) -> int:
        """Floating-point operations a token of forward and backward: matrix products only, attention included.

        Looking up an embedding costs nothing, the head costs as much as it weighs: cut stages by this.
        """
        attention = 12 * self.heads * self.head_dim * sequence  # Two products of [T, T] with each head, three times.
        return (last - first) * (6 * self.layer_parameters + attention // 2) + 6 * self.head_parameters * is_last

    def activation_bytes(self, tokens: int, codec: Literal["int8", "fp32"]) -> int:
        """Bytes that cross a stage boundary one way for ``tokens`` tokens."""
        return tokens * (self.hidden + _FLOAT32 if codec == "int8" else self.hidden * _FLOAT32)

    def stage_memory_bytes(self, parameters: int, is_last: bool, layers: int, batch_tokens: int) -> int:
        """Estimated memory of a stage in training, with ``batch_tokens`` tokens in flight.

        Parameters, gradients, two moments, anchor, outer momentum; one encoded and two kept states for audits;
        activations kept for backward (16 widths a layer, the usual count without recomputation) and the logits.
        """
        per_token = layers * (12 * self.hidden + 4 * self.intermediate) + (3 * self.vocabulary if is_last else 0)
        return _FLOAT32 * (parameters * 13 + per_token * batch_tokens)

    def check_sequence(self, sequence: int) -> None:
        """Refuse sequences longer than the positions that the model knows.

        Raises:
            ModelConfigError: naming both lengths.
        """
        if sequence > self.max_positions:
            raise ModelConfigError(
                f"training.sequence {sequence:,} is longer than the model's {self.max_positions:,} positions: "
                f"choose at most {self.max_positions:,}, or raise max_position_embeddings"
            )


def resolve(spec: ModelSpec, vocabulary: int) -> dict[str, Any]:
    """The config that is trained: checked, cut to known keys, vocabulary set to the tokenizer's, head untied.

    Args:
        spec: preset or config; one of them.
        vocabulary: token ids that the job's tokenizer can produce.
    Returns:
        The content of ``config.json``. ``cottage_head_starts_tied`` in it says that the head starts as a copy of the embedding.
    Raises:
        ModelConfigError: unknown preset, neither or both given, impossible shapes, or weights with too small a vocabulary.
    """
    if (spec.preset is None) == (spec.config is None):
        raise ModelConfigError("model needs either a preset or a config: give exactly one of them")
    if spec.preset is not None and spec.preset not in PRESETS:
        raise ModelConfigError(f"model.preset {spec.preset!r} is unknown: choose one of {', '.join(sorted(PRESETS))}")
    given = dict(PRESETS[spec.preset]) if spec.preset is not None else dict(spec.config or {})
    family = _family(given)
    own = given.get("vocab_size")
    if own is not None:
        _integer(given, "vocab_size", 1, MAX_VOCABULARY)
    if spec.weights is not None:
        if own is None or own < vocabulary:
            raise ModelConfigError(
                f"the uploaded weights belong to a vocabulary of {own}, the tokenizer has {vocabulary:,}: "
                "upload the model's own tokenizer"
            )
    else:
        given["vocab_size"] = vocabulary
    config = {key: value for key, value in given.items() if key in _KEYS[family] and value is not None}
    inspect_config(config | {"model_type": family})
    config |= {
        key: float(config[key]) for key in _FLOATS if key in config
    }  # JSON writes 1.0 as 1; transformers is strict.
    config |= {
        "model_type": family,
        "architectures": [FAMILIES[family]],
        "dtype": "float32",
        "use_cache": True,
    }
    config["cottage_head_starts_tied"] = _flag(given, "tie_word_embeddings", default=family == "gpt2")
    config["tie_word_embeddings"] = False
    if family == "gpt2":
        config |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    for key in ("bos_token_id", "eos_token_id"):
        value = config.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < config["vocab_size"]:
            config[key] = None
    inspect_config(config)
    return config


def inspect_config(config: Mapping[str, Any]) -> ModelShape:
    """Sizes of the model that a Hugging Face config describes (``llama``, ``gpt2``, ``qwen2`` or ``qwen3``).

    Raises:
        ModelConfigError: another ``model_type`` or architecture, missing or wrong values, shapes that cannot be.
    """
    family = _family(config)
    shape = _gpt2(config) if family == "gpt2" else _llama_like(config, family)
    if shape.parameters > MAX_PARAMETERS:
        raise ModelConfigError(f"a model of {shape.parameters:,} parameters: at most {MAX_PARAMETERS:,} are taken")
    return shape


def _family(config: Mapping[str, Any]) -> str:
    for key in _REFUSED:
        if config.get(key) is not None:
            raise ModelConfigError(
                f"{key} is not supported: only plain dense models of {', '.join(FAMILIES)} are; remove it"
            )
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise ModelConfigError(f"model_type {family!r} is not supported: use one of {', '.join(FAMILIES)}")
    architectures = config.get("architectures")
    if architectures is not None and architectures != [FAMILIES[family]]:
        raise ModelConfigError(
            f"architectures {architectures!r} is not supported for {family}: use ['{FAMILIES[family]}']"
        )
    return family


def _llama_like(config: Mapping[str, Any], family: str) -> ModelShape:
    hidden = _integer(config, "hidden_size", 1, MAX_WIDTH)
    inner = _integer(config, "intermediate_size", 1, MAX_WIDTH)
    layers = _integer(config, "num_hidden_layers", 1, MAX_LAYERS)
    heads = _integer(config, "num_attention_heads", 1, MAX_WIDTH)
    kv_heads = _integer(config, "num_key_value_heads", 1, MAX_WIDTH, heads if family == "llama" else 32)
    positions = _integer(config, "max_position_embeddings", 1, MAX_POSITIONS, 2048 if family == "llama" else 32768)
    vocabulary = _integer(config, "vocab_size", 2, MAX_VOCABULARY)
    _number(config, "rms_norm_eps", 0, 1)
    _common(config, "hidden_act")
    _rope(config)
    default_head = 128 if family == "qwen3" else None
    if family == "llama" or (config.get("head_dim") is None and default_head is None):
        _divides(heads, "num_attention_heads", hidden, "hidden_size")
    head_dim = _integer(config, "head_dim", 1, MAX_WIDTH, default_head or max(1, hidden // heads))
    if head_dim % 2:
        raise ModelConfigError(
            f"heads of width {head_dim}: rotary positions need an even width; change num_attention_heads"
        )
    _divides(kv_heads, "num_key_value_heads", heads, "num_attention_heads")
    attention_bias = {"qwen2": (True, False)}.get(family, (_flag(config, "attention_bias"),) * 2)
    q, kv = heads * head_dim, kv_heads * head_dim
    attention = hidden * (2 * q + 2 * kv) + (q + 2 * kv) * attention_bias[0] + hidden * attention_bias[1]
    mlp = 3 * hidden * inner + (2 * inner + hidden) * _flag(config, "mlp_bias")
    norms = 2 * hidden + (2 * head_dim if family == "qwen3" else 0)
    return ModelShape(
        family, layers, hidden, inner, heads, kv_heads, head_dim, vocabulary, positions,
        embedding_parameters=vocabulary * hidden,
        layer_parameters=attention + mlp + norms,
        head_parameters=vocabulary * hidden + hidden,
    )  # fmt: skip


def _gpt2(config: Mapping[str, Any]) -> ModelShape:
    hidden = _integer(config, "n_embd", 1, MAX_WIDTH)
    layers = _integer(config, "n_layer", 1, MAX_LAYERS)
    heads = _integer(config, "n_head", 1, MAX_WIDTH)
    inner = _integer(config, "n_inner", 1, MAX_WIDTH, 4 * hidden)
    positions = _integer(config, "n_positions", 1, MAX_POSITIONS, 1024)
    vocabulary = _integer(config, "vocab_size", 2, MAX_VOCABULARY)
    _number(config, "layer_norm_epsilon", 0, 1)
    _flag(config, "scale_attn_weights")
    _common(config, "activation_function")
    _divides(heads, "n_head", hidden, "n_embd")
    layer = 4 * hidden * hidden + 4 * hidden + 2 * hidden * inner + inner + hidden + 4 * hidden
    return ModelShape(
        "gpt2", layers, hidden, inner, heads, heads, hidden // heads, vocabulary, positions,
        embedding_parameters=(vocabulary + positions) * hidden,
        layer_parameters=layer,
        head_parameters=vocabulary * hidden + 2 * hidden,
    )  # fmt: skip


def _common(config: Mapping[str, Any], activation_key: str) -> None:
    activation = config.get(activation_key, "silu")
    if activation not in _ACTIVATIONS:
        raise ModelConfigError(
            f"{activation_key} {activation!r} is not supported: use one of {', '.join(sorted(_ACTIVATIONS))}"
        )
    _number(config, "initializer_range", 0, 1)


def _rope(config: Mapping[str, Any]) -> None:
    _number(config, "rope_theta", 1, 1e12)
    for key in ("rope_scaling", "rope_parameters"):
        rope = config.get(key)
        if rope is None:
            continue
        kind = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, Mapping) else rope
        if not isinstance(kind, str) or kind not in _ROPE_TYPES:
            raise ModelConfigError(f"{key} of type {kind!r} is not supported: use one of {', '.join(_ROPE_TYPES)}")
        numbers = {str(name) for name in rope} - {"rope_type", "type"}
        if missing := _ROPE_TYPES[kind] - numbers:
            raise ModelConfigError(f"{key} of type {kind!r} needs {', '.join(sorted(missing))}")
        if unknown := numbers - _ROPE_TYPES[kind] - {"rope_theta"}:
            raise ModelConfigError(f"{key} of type {kind!r} has no {', '.join(sorted(unknown))}: remove it")
        for name in numbers:
            _number(rope, name, 0, 1e12)


def _integer(config: Mapping[str, Any], key: str, low: int, high: int, default: int | None = None) -> int:
    value = config.get(key)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelConfigError(f"{key} is {value!r}: give a whole number from {low:,} to {high:,}")
    if not low <= value <= high:
        raise ModelConfigError(f"{key} is {value:,}: choose from {low:,} to {high:,}")
    return value


def _number(config: Mapping[str, Any], key: str, low: float, high: float) -> None:
    value = config.get(key)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not low < value <= high:
        yaml = ", with a point in it: YAML reads 1e-6 as text, 1.0e-6 as a number" if isinstance(value, str) else ""
        raise ModelConfigError(f"{key} is {value!r}: give a number above {low:g}, at most {high:g}{yaml}")


def _flag(config: Mapping[str, Any], key: str, default: bool = False) -> bool:
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ModelConfigError(f"{key} is {value!r}: give true or false")
    return value


def _divides(part: int, part_name: str, whole: int, whole_name: str) -> None:
    if whole % part:
        raise ModelConfigError(f"{whole_name} {whole:,} is not a multiple of {part_name} {part:,}: change one of them")
