"""The architectures that are trained here: what a Hugging Face config of each means in tensors and numbers. Without torch.

Fourteen families of decoders. Each is cut into stages by giving transformers' own class fewer layers, so a family belongs in
this table when every layer has the same tensors and attention looks at nothing but the layer's input. What can be read off
transformers' config classes, defaults above all, stands in ``protocol.models.hf_classes``, and what becomes of each key of a
config in ``protocol.models.config_keys``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from protocol.models.config_values import (
    MAX_EXPERTS,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_VOCABULARY,
    MAX_WIDTH,
    divides,
    integer,
)
from protocol.models.config_values import ModelConfigError as ModelConfigError
from protocol.models.hf_classes import CLASSES

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ModelTensors:
    """Every tensor of a model with its shape, by name, as transformers' class has it in memory.

    Attributes:
        embedding: on the first stage. ``head``: on the last: norm and output.
        layer: of each decoder layer, by its name there; ``layers`` of them, each behind ``prefix`` and its number.
    """

    embedding: Mapping[str, Shape]
    layer: Mapping[str, Shape]
    head: Mapping[str, Shape]
    layers: int
    prefix: str

    def all(self) -> dict[str, Shape]:
        """The whole model's, by full name."""
        numbered = {
            f"{self.prefix}{number}.{name}": shape
            for number in range(self.layers)
            for name, shape in self.layer.items()
        }
        return dict(self.embedding) | numbered | dict(self.head)


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
        linears: a decoder layer's linear layers by the last part of their names, with inputs plus outputs of each: what
            adapters are put beside.
        matrix_parameters: scalars of those; ``largest_matrix``: of the largest.
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
    linears: tuple[tuple[str, int], ...] = ()
    matrix_parameters: int = 0
    largest_matrix: int = 0


@dataclass(frozen=True)
class Family:
    """What its config class does not say about an architecture.

    Attributes:
        more: keys that are taken though the class does not have them, since the model's code asks for them.
        prefix: of the names of the base model's parameters; ``layers``: of its decoder layers, behind that.
        embedding: name of the token embedding.
        activation: key of the activation function.
        bias: biases of (query, key and value; output) where no flag decides.
        norms: norm vectors in a layer, by name.
        head_norms: whether queries and keys are normalised: a vector of the head's width each, or of all heads.
        zero_centred: norms compute ``1 + weight`` and start from zero.
        experts: key of their number; ``expert_width`` the key of an expert's inner width.
        partial: the share of each head that is rotary where the config is silent; ``None``: all of it, whatever a config says.
    """

    more: frozenset[str] = frozenset()
    prefix: str = "model."
    layers: str = "layers."
    embedding: str = "model.embed_tokens.weight"
    activation: str = "hidden_act"
    bias: tuple[bool, bool] = (False, False)
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    head_norms: str = ""
    zero_centred: bool = False
    experts: str = ""
    expert_width: str = "intermediate_size"
    partial: float | None = None


_ROUTER = "mlp.gate.weight"
_ROPE = frozenset({"rope_theta", "rope_scaling"})  # Where configs had it before transformers 5.
_AROUND = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")

FAMILY: Mapping[str, Family] = {
    "llama": Family(_ROPE),
    "mistral": Family(_ROPE),
    "qwen2": Family(_ROPE, bias=(True, False)),
    "qwen3": Family(_ROPE, head_norms="head"),
    "mixtral": Family(_ROPE, experts="num_local_experts"),
    "qwen3_moe": Family(
        _ROPE | {"head_dim"}, head_norms="head", experts="num_experts", expert_width="moe_intermediate_size"
    ),
    "olmo2": Family(_ROPE, norms=("post_attention_layernorm", "post_feedforward_layernorm"), head_norms="all"),
    "phi3": Family(_ROPE | {"partial_rotary_factor"}, partial=1.0),
    "smollm3": Family(_ROPE),
    "granite": Family(_ROPE),
    "gemma2": Family(_ROPE, activation="hidden_activation", norms=_AROUND, zero_centred=True),
    "gemma3_text": Family(
        _ROPE | {"rope_local_base_freq", "sliding_window_pattern"},
        activation="hidden_activation",
        norms=_AROUND,
        head_norms="head",
        zero_centred=True,
    ),
    "gpt_neox": Family(
        frozenset({"rope_scaling", "rotary_pct", "rotary_emb_base"}),
        "gpt_neox.",
        embedding="gpt_neox.embed_in.weight",
        partial=0.25,
    ),
    "gpt2": Family(frozenset(), "transformer.", "h.", "transformer.wte.weight", activation="activation_function"),
}


@dataclass(frozen=True)
class _Dims:
    """The sizes that a config names, each within its bounds."""

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    positions: int
    experts: int = 0
    used: int = 0

    @property
    def q(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv(self) -> int:
        return self.kv_heads * self.head_dim


def in_force(name: str, config: Mapping[str, Any], key: str) -> Any:
    """A key's value: what the config says, null too, or else the default of transformers' class."""
    known = CLASSES[name].keys.get(key)
    return config.get(key, None if known is None else known.default)


def measure(name: str, config: Mapping[str, Any]) -> Sizes:
    """Sizes of a model of family ``name``.

    Raises:
        ModelConfigError: missing or wrong sizes, shapes that cannot be.
    """
    family, dims = FAMILY[name], _dims(name, config)
    made = _tensors(name, config, dims)
    layer = _scalars(made.layer)
    linears = {
        key: shape
        for key, shape in made.layer.items()
        if key.endswith(".weight") and len(shape) == 2 and key != _ROUTER
    }
    unused = (dims.experts - dims.used) * 3 * dims.hidden * dims.inner
    eager = name == "gemma2"
    return Sizes(
        name,
        dims.layers,
        dims.hidden,
        dims.inner,
        dims.heads,
        dims.kv_heads,
        dims.head_dim,
        dims.vocabulary,
        dims.positions,
        embedding_parameters=_scalars(made.embedding),
        layer_parameters=layer,
        head_parameters=_scalars(made.head),
        active_layer_parameters=layer - unused,
        kept_values=_kept(name, config, family, dims),
        score_values=2 * dims.heads * eager,
        linears=tuple((key.split(".")[-2], sum(shape)) for key, shape in linears.items()),
        matrix_parameters=_scalars(linears),
        largest_matrix=max(map(prod, linears.values()), default=0),
    )


def tensors(name: str, config: Mapping[str, Any]) -> ModelTensors:
    """Every tensor of a model of family ``name``; raises as ``measure``."""
    return _tensors(name, config, _dims(name, config))


def _scalars(of: Mapping[str, Shape]) -> int:
    return sum(prod(shape) for shape in of.values())


def _kept(name: str, config: Mapping[str, Any], family: Family, d: _Dims) -> int:
    """Values that a layer keeps of each token for its backward pass."""
    if name == "gpt2":
        return 8 * d.hidden + 5 * d.inner
    if name == "gpt_neox":
        return 10 * d.hidden + 2 * d.inner
    fed = d.used * (4 * d.inner + 3 * d.hidden) if family.experts else 4 * d.inner
    # A norm keeps its input and what it made of that; inputs of matrices; query, key, value and what attention gives.
    kept = fed + (2 * len(family.norms) + 2) * d.hidden + 2 * d.q + 2 * d.kv
    kept += 2 * (d.q + d.kv) if family.head_norms else 0
    windowed = "layer_types" not in CLASSES[name].keys and in_force(name, config, "sliding_window") is not None
    # With a mask of its own, attention wants keys and values once for each head.
    return kept + 2 * d.q * (name == "gemma2" or windowed)


def _tensors(name: str, config: Mapping[str, Any], d: _Dims) -> ModelTensors:
    family = FAMILY[name]
    embedding = {family.embedding: (d.vocabulary, d.hidden)}
    head: dict[str, Shape] = {"model.norm.weight": (d.hidden,)}
    if name in ("gpt2", "gpt_neox"):
        norm = family.prefix + ("ln_f" if name == "gpt2" else "final_layer_norm")
        head = {f"{norm}.weight": (d.hidden,), f"{norm}.bias": (d.hidden,)}
    if name == "gpt2":
        embedding["transformer.wpe.weight"] = (d.positions, d.hidden)
    head["lm_head.weight"] = (d.vocabulary, d.hidden)
    match name:
        case "gpt2":
            layer = _gpt2_layer(d)
        case "gpt_neox":
            layer = _gpt_neox_layer(config, d)
        case _:
            layer = _rotary_layer(name, config, d)
    return ModelTensors(embedding, layer, head, d.layers, family.prefix + family.layers)


def _rotary_layer(name: str, config: Mapping[str, Any], d: _Dims) -> dict[str, Shape]:
    family = FAMILY[name]
    made: dict[str, Shape] = {f"{norm}.weight": (d.hidden,) for norm in family.norms}
    if name == "phi3":
        made |= {"self_attn.qkv_proj.weight": (d.q + 2 * d.kv, d.hidden), "self_attn.o_proj.weight": (d.hidden, d.q)}
    else:
        biased = bool(in_force(name, config, "attention_bias"))
        into, out = (biased, biased) if "attention_bias" in CLASSES[name].keys else family.bias
        for part, width in (("q", d.q), ("k", d.kv), ("v", d.kv)):
            made |= _linear(f"self_attn.{part}_proj", d.hidden, width, into)
        made |= _linear("self_attn.o_proj", d.q, d.hidden, out)
    if family.head_norms:
        widths = (d.q, d.kv) if family.head_norms == "all" else (d.head_dim, d.head_dim)
        made |= {"self_attn.q_norm.weight": (widths[0],), "self_attn.k_norm.weight": (widths[1],)}
    return made | _feed_forward(name, config, d)


def _feed_forward(name: str, config: Mapping[str, Any], d: _Dims) -> dict[str, Shape]:
    if d.experts:
        return {
            _ROUTER: (d.experts, d.hidden),
            "mlp.experts.gate_up_proj": (d.experts, 2 * d.inner, d.hidden),
            "mlp.experts.down_proj": (d.experts, d.hidden, d.inner),
        }
    biased = bool(in_force(name, config, "mlp_bias"))
    if name == "phi3":
        made = _linear("mlp.gate_up_proj", d.hidden, 2 * d.inner, biased)
    else:
        made = _linear("mlp.gate_proj", d.hidden, d.inner, biased) | _linear("mlp.up_proj", d.hidden, d.inner, biased)
    return made | _linear("mlp.down_proj", d.inner, d.hidden, biased)


def _gpt_neox_layer(config: Mapping[str, Any], d: _Dims) -> dict[str, Shape]:
    biased = bool(in_force("gpt_neox", config, "attention_bias"))
    return (
        _norm("input_layernorm", d.hidden)
        | _norm("post_attention_layernorm", d.hidden)
        | _linear("attention.query_key_value", d.hidden, 3 * d.hidden, biased)
        | _linear("attention.dense", d.hidden, d.hidden, biased)
        | _linear("mlp.dense_h_to_4h", d.hidden, d.inner, True)
        | _linear("mlp.dense_4h_to_h", d.inner, d.hidden, True)
    )


def _gpt2_layer(d: _Dims) -> dict[str, Shape]:
    """Its matrices are ``[in, out]``."""
    made = _norm("ln_1", d.hidden) | _norm("ln_2", d.hidden)
    sides = (
        ("attn.c_attn", d.hidden, 3 * d.hidden),
        ("attn.c_proj", d.hidden, d.hidden),
        ("mlp.c_fc", d.hidden, d.inner),
    )
    for part, inputs, outputs in (*sides, ("mlp.c_proj", d.inner, d.hidden)):
        made |= {f"{part}.weight": (inputs, outputs), f"{part}.bias": (outputs,)}
    return made


def _linear(name: str, inputs: int, outputs: int, biased: bool) -> dict[str, Shape]:
    return {f"{name}.weight": (outputs, inputs)} | ({f"{name}.bias": (outputs,)} if biased else {})


def _norm(name: str, width: int) -> dict[str, Shape]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _dims(name: str, config: Mapping[str, Any]) -> _Dims:
    family = FAMILY[name]
    gpt2 = name == "gpt2"
    hidden = integer(config, "n_embd" if gpt2 else "hidden_size", 1, MAX_WIDTH)
    layers = integer(config, "n_layer" if gpt2 else "num_hidden_layers", 1, MAX_LAYERS)
    heads = integer(config, "n_head" if gpt2 else "num_attention_heads", 1, MAX_WIDTH)
    vocabulary = integer(config, "vocab_size", 2, MAX_VOCABULARY)
    positions = _own(name, config, "n_positions" if gpt2 else "max_position_embeddings", MAX_POSITIONS)
    if gpt2:
        inner = _own(name, config, "n_inner", MAX_WIDTH) or 4 * hidden
        divides(heads, "n_head", hidden, "n_embd")
        return _Dims(layers, hidden, inner, heads, heads, hidden // heads, vocabulary, positions or 0)
    inner = integer(config, "intermediate_size", 1, MAX_WIDTH)
    kv_heads = heads if name == "gpt_neox" else _own(name, config, "num_key_value_heads", MAX_WIDTH) or heads
    head_dim = _head_dim(name, config, hidden, heads)
    divides(kv_heads, "num_key_value_heads", heads, "num_attention_heads")
    experts = _own(name, config, family.experts, MAX_EXPERTS) or 0 if family.experts else 0
    used = _own(name, config, "num_experts_per_tok", MAX_EXPERTS) or 0 if family.experts else 0
    if used > experts:
        raise ModelConfigError(f"num_experts_per_tok is {used:,} of {experts:,} experts: choose at most {experts:,}")
    if family.experts:
        inner = _own(name, config, family.expert_width, MAX_WIDTH) or inner
    return _Dims(layers, hidden, inner, heads, kv_heads, head_dim, vocabulary, positions or 0, experts, used)


def _own(name: str, config: Mapping[str, Any], key: str, most: int) -> int | None:
    """A size that the config may leave to transformers' class; ``None`` where that leaves it to other sizes."""
    value = in_force(name, config, key)
    return None if value is None else integer({key: value}, key, 1, most)


def _head_dim(name: str, config: Mapping[str, Any], hidden: int, heads: int) -> int:
    """Width of a head. Llama, Gemma and GPT-NeoX refuse a width that the heads do not divide even where a head's is given."""
    own = _own(name, config, "head_dim", MAX_WIDTH)
    if own is None or name in ("llama", "gemma2", "gemma3_text", "gpt_neox"):
        divides(heads, "num_attention_heads", hidden, "hidden_size")
    head_dim = own or max(1, hidden // heads)
    turned = int(head_dim * _rotary_share(name, config))
    if turned % 2 or turned < 2:
        raise ModelConfigError(
            f"heads of width {head_dim}, {turned} of it rotary: rotary positions need an even width; "
            "change num_attention_heads"
        )
    return head_dim


def _rotary_share(name: str, config: Mapping[str, Any]) -> float:
    family = FAMILY[name]
    if family.partial is None:
        return 1.0
    rope = config.get("rope_scaling") or config.get("rope_parameters")
    within = rope.get("partial_rotary_factor") if isinstance(rope, Mapping) else None
    beside = config.get("rotary_pct" if name == "gpt_neox" else "partial_rotary_factor")
    return float(next((value for value in (within, beside) if value is not None), family.partial))
