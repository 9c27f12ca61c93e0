"""A finished model folder as one GGUF file, which llama.cpp and what is built on it open. Free of torch.

Names of tensors, special tokens, chat template and facts about the model are the library's own (``gguf``). Here is what differs
between families, as llama.cpp computes them, and a refusal of what it would compute otherwise: a file that opens and answers
wrongly is worse than none.

Source: llama.cpp, ``conversion/`` (``convert_hf_to_gguf.py``), and ``src/models`` for what is fixed there.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
from gguf.utility import LocalTensor, SafetensorsLocal
from numpy.typing import NDArray
from transformers import AutoConfig

from protocol.models.families import in_force, tensors
from protocol.models.hf_classes import CLASSES
from protocol.models.tensor_names import way_in
from trainer.errors import WeightsError
from trainer.export.gguf_tokens import add_tokens

F16_MAX: Final = 65504.0
TYPES: Final[Mapping[str, tuple[gguf.GGMLQuantizationType, gguf.LlamaFileType]]] = {
    "f32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "bf16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
}
"""What matrices are stored as, by the word that is asked for. Vectors stay float32."""
_Q8_BLOCK = 32
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(.*)")

Values = NDArray[np.float32]


@dataclass(frozen=True)
class GgufFamily:
    """How llama.cpp has a family.

    Attributes:
        arch: its name there.
        activations: what transformers may call the one that is fixed there.
        permuted: rows of queries and keys stand in pairs, not in halves, for its rotation.
        shifted: its norms are stored with the 1 that transformers adds to them.
        tied: its head is always the embedding.
        transposed: its matrices are ``[in, out]`` in transformers, and ``[out, in]`` there.
        mixed: query, key and value of a head stand together in one matrix, and there all queries come first.
        experts: its experts, of which each token asks some, stand in one tensor; what transformers calls their number.
        slides: it knows layers that see a part of the text only.
        layers: whether a layer of a config, by its number, is what it must be, where that is fixed.
    """

    arch: gguf.MODEL_ARCH
    activations: tuple[str, ...] = ("silu",)
    permuted: bool = False
    shifted: bool = False
    tied: bool = False
    transposed: bool = False
    mixed: bool = False
    slides: bool = False
    experts: str | None = None
    layers: Callable[[Any, int], bool] = lambda _config, _layer: True


def _slides(every: int) -> Callable[[Any, int], bool]:
    """All layers slide but each ``every``-th."""
    kinds = ("full_attention", "sliding_attention")
    return lambda config, layer: bool(config.layer_types[layer] == kinds[(layer + 1) % every != 0])


_GELU = ("gelu_pytorch_tanh", "gelu_new")
_ANY_GELU = (*_GELU, "gelu")  # Of Pythia: llama.cpp takes the tanh for it, which is at most 0.0005 off.
FAMILIES: Final[Mapping[str, GgufFamily]] = {
    "llama": GgufFamily(gguf.MODEL_ARCH.LLAMA, permuted=True),
    "mistral": GgufFamily(gguf.MODEL_ARCH.LLAMA, permuted=True),
    "mixtral": GgufFamily(gguf.MODEL_ARCH.LLAMA, permuted=True, experts="num_local_experts"),
    "qwen2": GgufFamily(gguf.MODEL_ARCH.QWEN2),
    "qwen3": GgufFamily(gguf.MODEL_ARCH.QWEN3),
    "qwen3_moe": GgufFamily(
        gguf.MODEL_ARCH.QWEN3MOE,
        experts="num_experts",
        layers=lambda config, layer: config.decoder_sparse_step == 1 and layer not in config.mlp_only_layers,
    ),
    "olmo2": GgufFamily(gguf.MODEL_ARCH.OLMO2),
    "phi3": GgufFamily(gguf.MODEL_ARCH.PHI3),
    "smollm3": GgufFamily(
        gguf.MODEL_ARCH.SMOLLM3,
        permuted=True,
        layers=lambda config, layer: bool(config.no_rope_layers[layer]) == ((layer + 1) % 4 != 0),
    ),
    "granite": GgufFamily(gguf.MODEL_ARCH.GRANITE, permuted=True),
    "gemma2": GgufFamily(gguf.MODEL_ARCH.GEMMA2, _GELU, shifted=True, tied=True, slides=True, layers=_slides(2)),
    "gemma3_text": GgufFamily(gguf.MODEL_ARCH.GEMMA3, _GELU, shifted=True, slides=True, layers=_slides(6)),
    "gpt_neox": GgufFamily(gguf.MODEL_ARCH.GPTNEOX, _ANY_GELU, mixed=True),
    "gpt2": GgufFamily(gguf.MODEL_ARCH.GPT2, _GELU, transposed=True),
}
_SCALES: Final[Mapping[str, Callable[[gguf.GGUFWriter, float], None]]] = {
    "attn_logit_softcapping": gguf.GGUFWriter.add_attn_logit_softcapping,
    "final_logit_softcapping": gguf.GGUFWriter.add_final_logit_softcapping,
    "embedding_multiplier": gguf.GGUFWriter.add_embedding_scale,
    "attention_multiplier": gguf.GGUFWriter.add_attention_scale,
    "residual_multiplier": gguf.GGUFWriter.add_residual_scale,
    "logits_scaling": gguf.GGUFWriter.add_logit_scale,
}
"""By what a family multiplies or caps, where its config says so."""
_COMPUTED: Final = re.compile(r".*(\.(attn|attention)\.(masked_)?bias|\.rotary_emb\.inv_freq)")
"""Tables that older versions of transformers saved among the weights."""


def write_gguf(folder: Path, out: Path, kind: str) -> int:
    """Write a folder's model, tokenizer and chat template to ``out``; one tensor is in memory at a time.

    Args:
        kind: a word of ``TYPES``.
    Returns:
        How many tensors the file has.
    Raises:
        WeightsError: the family or something of it is not known to llama.cpp, or the folder is not whole.
    """
    _check_places(folder, out)
    config = AutoConfig.from_pretrained(folder)
    family = _family(config)
    _check_file(folder, "tokenizer.json")
    found = dict(_tensors(folder))
    _check_whole(json.loads((folder / "config.json").read_bytes()), found)
    parts = _together(found)
    quantized, file_type = TYPES[kind]
    writer = gguf.GGUFWriter(None, gguf.MODEL_ARCH_NAMES[family.arch])
    count = sum(math.prod(one.shape) for several in parts.values() for one in several)
    metadata = gguf.Metadata.load(None, folder, None, count)
    metadata.set_gguf_meta_model(writer)
    writer.add_file_type(file_type)
    _add_shape(writer, config, family)
    add_tokens(writer, folder, int(config.vocab_size))
    names = gguf.get_tensor_name_map(family.arch, config.num_hidden_layers)
    planned: list[tuple[str, gguf.GGMLQuantizationType]] = []
    for name, several in sorted(parts.items()):
        if name == "lm_head.weight" and (family.tied or config.tie_word_embeddings):
            continue
        if _COMPUTED.fullmatch(name):
            continue
        known = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if known is None:
            raise _refusal(config, f"its tensor {name}")
        shape = tuple(several[0].shape[:: -1 if _is_transposed(name, family) else 1])
        shape = shape if len(several) == 1 else (len(several), *shape)
        stored = _stored_as(shape, quantized)
        _announce(writer, known, shape, stored)
        planned.append((name, stored))
    factors = _rope_factors(config)
    for name, values in factors.items():
        _announce(writer, f"{name}.weight", values.shape, gguf.GGMLQuantizationType.F32)
    part = out.with_name(f".{out.name}.part")
    try:
        writer.write_header_to_file(part)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name, stored in planned:
            made = [_changed(name, _values(one), config, family) for one in parts[name]]
            if not all(np.isfinite(one).all() for one in made):
                raise WeightsError(
                    "not-finite", f"tensor {name} holds values that are NaN or infinite: repair the file"
                )
            writer.write_tensor_data(_as(made[0] if len(made) == 1 else np.stack(made), stored))
        for values in factors.values():
            writer.write_tensor_data(values)
        writer.close()
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
    return len(planned)


def _family(config: Any) -> GgufFamily:
    """Refuse what llama.cpp would compute otherwise than transformers does."""
    family = FAMILIES.get(config.model_type)
    if family is None:
        known = ", ".join(FAMILIES)
        raise WeightsError(
            "no-gguf",
            f"GGUF is written of {known}, and this is {config.model_type}: llama.cpp's own convert_hf_to_gguf.py may know it",
        )
    named = ("hidden_activation", "hidden_act", "activation_function")
    act = next(found for key in named if (found := getattr(config, key, None)) is not None)
    if act not in family.activations:
        raise _refusal(config, f"its activation {act}")
    if not all(family.layers(config, layer) for layer in range(config.num_hidden_layers)):
        raise _refusal(config, "the order of its layers")
    if not getattr(config, "norm_topk_prob", True):
        raise _refusal(config, "experts whose shares do not add up to one")
    if family.tied and not config.tie_word_embeddings:
        raise _refusal(config, "a head that is not its embedding")
    if not getattr(config, "scale_attn_weights", True):
        raise _refusal(config, "scores of attention as they are")
    if family.mixed and not config.attention_bias:
        raise _refusal(config, "attention without biases")
    scale, head = getattr(config, "query_pre_attn_scalar", None), _head(config)
    if scale not in (None, head) and not (
        config.num_hidden_layers in (46, 62) and scale * config.num_attention_heads == config.hidden_size
    ):
        raise _refusal(config, f"its scale of attention {scale}")
    return family


def _check_places(folder: Path, out: Path) -> None:
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise WeightsError(
            "adapter", "this is an adapter: download it with what it adapts (--merged), and that becomes GGUF"
        )
    _check_file(folder, "config.json")
    if not out.parent.is_dir():
        raise WeightsError("no-folder", f"there is no folder {out.parent} for the file: make it first")


def _check_file(folder: Path, name: str) -> None:
    if not (folder / name).is_file():
        raise WeightsError("missing-file", f"there is no {folder / name}: name the folder of a model")


def _check_whole(config: Mapping[str, Any], found: Mapping[str, LocalTensor]) -> None:
    """See that every tensor of the model is there: llama.cpp may open a file without one, and answer anything."""
    name = str(config["model_type"])
    config = {CLASSES[name].aliases.get(key, key): value for key, value in config.items()}
    tied = bool(in_force(name, config, "tie_word_embeddings"))
    for tensor, shape in tensors(name, config).all().items():
        if way_in(found, tensor, shape, config, tied) is None:
            raise WeightsError("missing-tensor", f"the model's files have no tensor {tensor}: download the model anew")


def _refusal(config: Any, what: str) -> WeightsError:
    return WeightsError(
        "no-gguf", f"llama.cpp has {config.model_type} without {what}: no GGUF file of this model would be right"
    )


def _head(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _add_shape(writer: gguf.GGUFWriter, config: Any, family: GgufFamily) -> None:
    head, window = _head(config), getattr(config, "sliding_window", None)
    context = config.max_position_embeddings
    if window and not family.slides:
        context = min(context, window)  # Up to there a window changes nothing.
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(context)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    inner = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None)
    writer.add_feed_forward_length(inner or 4 * config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    if hasattr(config, "rms_norm_eps"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    else:
        writer.add_layer_norm_eps(getattr(config, "layer_norm_eps", None) or config.layer_norm_epsilon)
    writer.add_key_length(head)
    writer.add_value_length(head)
    if hasattr(config, "rope_parameters"):
        _add_rotation(writer, config, head)
    if hasattr(config, "use_parallel_residual"):
        writer.add_parallel_residual(config.use_parallel_residual)
    if family.experts is not None:
        writer.add_expert_count(getattr(config, family.experts))
        writer.add_expert_used_count(config.num_experts_per_tok)
        if hasattr(config, "moe_intermediate_size"):
            writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if family.slides:
        writer.add_sliding_window(int(config.sliding_window))
    for key, add in _SCALES.items():
        if (value := getattr(config, key, None)) is not None:
            add(writer, value)


def _add_rotation(writer: gguf.GGUFWriter, config: Any, head: int) -> None:
    rope = _rope(config)
    writer.add_rope_dimension_count(int(head * rope.get("partial_rotary_factor", 1.0)))
    writer.add_rope_freq_base(rope["rope_theta"])
    match rope.get("rope_type", "default"):
        case "default" | "llama3":  # The second as a tensor of factors.
            pass
        case "longrope":
            original = rope["original_max_position_embeddings"]
            writer.add_rope_scaling_orig_ctx_len(original)
            writer.add_rope_scaling_attn_factors(_attention_factor(rope, config.max_position_embeddings / original))
        case "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(rope["factor"])
        case other:
            raise _refusal(config, f"its rotary scaling {other}")
    if (sliding := config.rope_parameters.get("sliding_attention")) is not None:
        writer.add_rope_freq_base_swa(sliding["rope_theta"])


def _rope(config: Any) -> Mapping[str, Any]:
    """Of the layers that see everything."""
    rope: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
    found: Mapping[str, Any] = rope.get("full_attention", rope)
    return found


def _attention_factor(rope: Mapping[str, Any], stretch: float) -> float:
    """What a long rotation's sines are multiplied by (transformers: ``_compute_longrope_parameters``)."""
    if (given := rope.get("attention_factor")) is not None:
        return float(given)
    stretch = rope.get("factor") or stretch
    return (
        1.0 if stretch <= 1 else math.sqrt(1 + math.log(stretch) / math.log(rope["original_max_position_embeddings"]))
    )


def _rope_factors(config: Any) -> dict[str, Values]:
    """By what llama.cpp divides the frequencies of a model that is stretched, by the tensor's name there.

    Source: transformers, ``_compute_llama3_parameters`` and ``_compute_longrope_parameters``.
    """
    rope, head = _rope(config), _head(config)
    if rope.get("rope_type") == "longrope":
        return {f"rope_factors_{which}": np.asarray(rope[f"{which}_factor"], np.float32) for which in ("long", "short")}
    if rope.get("rope_type") != "llama3":
        return {}
    frequencies = 1.0 / (rope["rope_theta"] ** (np.arange(0, head, 2, dtype=np.float64) / head))
    length, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = np.clip((length * frequencies / (2 * math.pi) - low) / (high - low), 0.0, 1.0)
    return {"rope_freqs": (1.0 / ((1.0 - smooth) / rope["factor"] + smooth)).astype(np.float32)}


def _tensors(folder: Path) -> Iterator[tuple[str, LocalTensor]]:
    index = folder / "model.safetensors.index.json"
    named = json.loads(index.read_bytes())["weight_map"].values() if index.is_file() else ["model.safetensors"]
    for name in sorted(set(named)):
        if not (folder / name).is_file():
            raise WeightsError("missing-weights", f"{name} is not in the folder: download the model anew")
        with SafetensorsLocal(folder / name) as tensors:
            yield from tensors.items()


def _together(tensors: Mapping[str, LocalTensor]) -> dict[str, list[LocalTensor]]:
    """By the name that llama.cpp's tensor is made of: one tensor, or one of each expert in turn."""
    parts: dict[str, dict[int, LocalTensor]] = {}
    for name, tensor in tensors.items():
        expert = _EXPERT.fullmatch(name)
        whole, place = (name, 0) if expert is None else (f"{expert[1]}.{expert[3]}", int(expert[2]))
        parts.setdefault(whole, {})[place] = tensor
    return {name: [several[place] for place in sorted(several)] for name, several in parts.items()}


def _values(tensor: LocalTensor) -> Values:
    raw: NDArray[Any] = tensor.mmap_bytes()
    match tensor.dtype:
        case "BF16":
            made = (raw.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
        case "F16":
            made = raw.view("<f2").astype(np.float32)
        case "F32":
            made = raw.view("<f4")
        case other:
            raise WeightsError("wrong-type", f"a tensor of the model is {other}: GGUF is made of F32, F16 and BF16")
    return made.reshape(tensor.shape)


def _changed(name: str, values: Values, config: Any, family: GgufFamily) -> Values:
    """A tensor as llama.cpp computes with it."""
    if family.shifted and name.endswith("norm.weight"):
        return values + np.float32(1.0)
    if _is_transposed(name, family):
        return np.ascontiguousarray(values.T)
    if family.mixed and ".query_key_value." in name:
        parts = values.reshape(config.num_attention_heads, 3, -1, *values.shape[1:])
        return np.ascontiguousarray(parts.swapaxes(0, 1)).reshape(values.shape)
    heads = {"q_proj": config.num_attention_heads, "k_proj": getattr(config, "num_key_value_heads", None)}
    count = heads.get(name.split(".")[-2]) if family.permuted else None
    if count is None:
        return values
    halves = values.reshape(count, 2, values.shape[0] // count // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def _is_transposed(name: str, family: GgufFamily) -> bool:
    return family.transposed and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight"))


def _stored_as(shape: tuple[int, ...], wanted: gguf.GGMLQuantizationType) -> gguf.GGMLQuantizationType:
    if len(shape) < 2:
        return gguf.GGMLQuantizationType.F32
    if wanted is gguf.GGMLQuantizationType.Q8_0 and shape[-1] % _Q8_BLOCK:
        return gguf.GGMLQuantizationType.F16
    return wanted


def _announce(writer: gguf.GGUFWriter, name: str, shape: tuple[int, ...], stored: gguf.GGMLQuantizationType) -> None:
    """Say of a tensor what it will be: the file begins with all of them."""
    block, size = gguf.GGML_QUANT_SIZES[stored]
    in_bytes = (*shape[:-1], shape[-1] // block * size)
    plain = stored in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16)
    kind = (
        np.dtype(np.float16 if stored is gguf.GGMLQuantizationType.F16 else np.float32) if plain else np.dtype(np.uint8)
    )
    writer.add_tensor_info(name, shape if plain else in_bytes, kind, math.prod(in_bytes), None if plain else stored)


def _as(values: Values, stored: gguf.GGMLQuantizationType) -> NDArray[Any]:
    if stored is gguf.GGMLQuantizationType.F16 and float(np.abs(values).max(initial=0.0)) > F16_MAX:
        raise WeightsError("not-finite", "a weight is beyond what f16 holds (65,504): take bf16")
    made: NDArray[Any] = gguf.quants.quantize(values, stored)
    return made
