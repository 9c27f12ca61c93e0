"""Hugging Face causal language models, cut into pipeline stages.

A stage is the family's own ``...ForCausalLM`` with fewer layers, built on the meta device, its missing ends replaced: the
first stage takes token ids, the later ones hidden states, the last returns logits. Three stages give the same logits and
gradients as the whole model, bit for bit.

Weights start from a counter-based generator keyed by (seed, full parameter name), so that whoever builds a tensor, in
whatever cut, on whatever processor, gets the same bits; or from ``model.safetensors``, reading only the stage's own keys.
"""

import copy
import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import masking_utils
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from protocol.job.job import TrainingSpec
from protocol.models.config_keys import OWN
from protocol.models.families import FAMILY
from protocol.models.model import STARTS_TIED, ModelShape, inspect_config
from protocol.models.tensor_names import Part, way_in
from protocol.task import Layers
from trainer.errors import NonFiniteError, WeightsError
from trainer.files.inputs import InputFile, InputFolder
from trainer.files.tensors import open_tensors

_LAYER_KEY = re.compile(r"^(?P<head>.*?\.(?:layers|h)\.)(?P<index>\d+)(?P<tail>\..*)$")
_EMBEDDINGS = ("embed_tokens", "wte", "embed_in")
_POSITIONS = "wpe"
_NORMS = ("norm", "ln_f", "final_layer_norm")


_packed: ContextVar[bool] = ContextVar("packed", default=False)


def _documents(position_ids: Tensor) -> Tensor | None:
    """Of which document each token is, where a window has several.

    The library would look for them itself, at every forward pass, for which the processor waits for the card.
    """
    if not _packed.get():
        return None
    return (torch.diff(position_ids, prepend=position_ids[:, :1] - 1) != 1).cumsum(-1)


masking_utils.find_packed_sequence_indices = _documents  # No attention and no position reaches into another document.


def _through_experts(self: Any, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """As the library's own loop over experts, to the last bit; it waits for the card at every expert, and this one once a layer.

    Args:
        hidden: ``[t, d]``. chosen: experts of each token, ``[t, k]``. weights: theirs, ``[t, k]``.
    """
    taken, order = chosen.t().flatten().sort(stable=True)
    numbers = torch.arange(self.num_experts + 1, device=hidden.device)
    ends = (taken[:, None] < numbers).sum(dim=0).cpu().tolist()
    tokens = torch.arange(len(hidden), device=hidden.device).expand(chosen.shape[1], -1).flatten()[order]
    shares = weights.t().flatten()[order]
    out = torch.zeros_like(hidden)
    for expert, (begin, end) in enumerate(pairwise(ends)):
        if begin == end:
            continue
        mine = tokens[begin:end]
        made = self._apply_gate(nn.functional.linear(hidden[mine], self.gate_up_proj[expert]))
        made = nn.functional.linear(made, self.down_proj[expert]) * shares[begin:end, None]
        out.index_add_(0, mine, made.to(out.dtype))
    return out


_EXPERTS = "in-order"
ALL_EXPERTS_FUNCTIONS.register(_EXPERTS, _through_experts)


@dataclass(frozen=True)
class Cut:
    """Layers ``first <= i < last`` of a model; ``is_first`` has the embedding, ``is_last`` the norm and the head."""

    first: int
    last: int
    is_first: bool
    is_last: bool


class _NoPositions(nn.Module):
    """Stands for GPT-2's position embedding on later stages: the first stage has added it already."""

    def forward(self, position_ids: Tensor) -> Tensor:
        return torch.zeros(1, device=position_ids.device)


def build_module(config: Mapping[str, Any], cut: Cut) -> tuple[nn.Module, ModelShape]:
    """The stage's module on the meta device (rotary tables excepted), and the shape of the whole model.

    Raises:
        ModelConfigError: the config cannot be trained here, or has no such layers.
    """
    shape = inspect_config(config)
    shape.stage_parameters(cut.first, cut.last, cut.is_first, cut.is_last)
    theirs = copy.deepcopy({key: value for key, value in config.items() if not key.startswith(OWN)})  # They change it.
    hf_config = CONFIG_MAPPING[str(config["model_type"])].from_dict(theirs)
    hf_config._experts_implementation = _EXPERTS  # Others choose kernels by shape and machine.
    family = cast(Any, MODEL_FOR_CAUSAL_LM_MAPPING[type(hf_config)])
    hf_config._attn_implementation = "sdpa" if family._supports_sdpa else "eager"  # Gemma 2 caps its attention scores.
    part = copy.deepcopy(hf_config)
    for name, value in vars(hf_config).items():  # ``layer_types`` and the like: one entry a layer.
        if isinstance(value, list) and len(value) == shape.layers and name != "architectures":
            setattr(part, name, value[cut.first : cut.last])
    part.num_hidden_layers = cut.last - cut.first
    with torch.device("meta"):
        module = cast(nn.Module, family(part))
    base = _base(module)
    if not cut.is_first:
        _replace(base, _EMBEDDINGS, nn.Identity())
        _replace(base, (_POSITIONS,), _NoPositions())
        if hasattr(
            base, "embedding_multiplier"
        ):  # Granite's, of embeddings that the first stage has multiplied already.
            base.embedding_multiplier = 1.0
    if not cut.is_last:
        _replace(base, _NORMS, nn.Identity())
        cast(Any, module).lm_head = nn.Identity()
    if hasattr(base, "rotary_emb"):
        base.rotary_emb = type(base.rotary_emb)(config=hf_config)  # Its tables are computed, never stored.
    embedding = getattr(base, "embed_tokens", None)
    if hasattr(embedding, "scalar_embed_scale"):
        cast(Any, embedding).embed_scale = torch.tensor(cast(Any, embedding).scalar_embed_scale)
    return module, shape


def keep_embedding(module: nn.Module) -> None:
    """Freeze what ``protocol.models.model.keeps_embedding`` says of a stage: its token embedding and its head."""
    for name in _EMBEDDINGS:
        if isinstance(embedding := getattr(_base(module), name, None), nn.Embedding):
            embedding.weight.requires_grad_(False)
    if isinstance(last := cast(Any, module).lm_head, nn.Linear):
        last.weight.requires_grad_(False)


def forward(module: nn.Module, cut: Cut, inputs: Tensor, positions: Tensor | None = None) -> Tensor:
    """Run a stage.

    Args:
        inputs: token ids ``[b, t]`` on the first stage, hidden states ``[b, t, d]`` on the others.
        positions: ``[b, t]``, of each token within its document, where windows have several; None: each is of one text.
    Returns:
        Logits ``[b, t, v]`` on the last stage, hidden states ``[b, t, d]`` on the others.
    """
    if cut.is_last:
        with apart(positions) as places:
            return cast(Tensor, module(**_keyword(cut, inputs), **places, use_cache=False).logits)
    return hidden_states(module, cut, inputs, positions)


def hidden_states(module: nn.Module, cut: Cut, inputs: Tensor, positions: Tensor | None = None) -> Tensor:
    """As ``forward``, without the head of the last stage."""
    with apart(positions) as places:
        return cast(Tensor, _base(module)(**_keyword(cut, inputs), **places, use_cache=False).last_hidden_state)


def _keyword(cut: Cut, inputs: Tensor) -> dict[str, Tensor]:
    return {"input_ids" if cut.is_first else "inputs_embeds": inputs}


@contextmanager
def apart(positions: Tensor | None) -> Iterator[dict[str, Tensor]]:
    """Meanwhile a family's model keeps the documents of a window apart, called with what this gives; None: it has one text."""
    token = _packed.set(positions is not None)
    try:
        yield {} if positions is None else {"position_ids": positions}
    finally:
        _packed.reset(token)


def head(module: nn.Module, hidden: Tensor) -> Tensor:
    """Logits ``[b, t, v]`` of what ``hidden_states`` gave on the last stage: all that the family does behind its layers."""
    whole = cast(Any, module)
    base = getattr(whole, whole.base_model_prefix)
    setattr(whole, whole.base_model_prefix, _Given(hidden))
    try:
        return cast(Tensor, whole(inputs_embeds=hidden, use_cache=False).logits)
    finally:
        setattr(whole, whole.base_model_prefix, base)


@dataclass
class _Shown(BaseModelOutputWithPastAndCrossAttentions):
    """What any family's layers give."""

    router_logits: tuple[Tensor, ...] | None = None


class _Given(nn.Module):
    """Stands for a family's layers whose result is there already."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self._hidden = hidden

    def forward(self, *_: object, **__: object) -> _Shown:
        return _Shown(last_hidden_state=cast(Any, self._hidden))


def full_name(local: str, cut: Cut) -> str:
    """Name of a stage's parameter in the whole model."""
    match = _LAYER_KEY.match(local)
    return local if match is None else f"{match['head']}{int(match['index']) + cut.first}{match['tail']}"


def is_of_a_layer(name: str) -> bool:
    """Whether a parameter belongs to a decoder layer, and not to embedding, final norm or head."""
    return _LAYER_KEY.match(name) is not None


def initial_values(
    module: nn.Module, cut: Cut, config: Mapping[str, Any], training: TrainingSpec, weights: Path | InputFolder | None
) -> Mapping[str, Tensor]:
    """Initial float32 values of every parameter of the stage, by full name.

    Args:
        weights: a safetensors file, or a folder with one of the whole model or of this cut; ``None`` draws them by the
            family's own rules.
    Raises:
        WeightsError: the file is broken, or a tensor is missing, of another shape, or not finite.
    """
    names = [(full_name(local, cut), tuple(value.shape)) for local, value in module.named_parameters()]
    values = _initial_adapters(names, training)
    names = [(name, size) for name, size in names if name not in values]
    tied = bool(config.get(STARTS_TIED, False))
    if weights is not None:
        return _Weights(_weights_file(weights, cut), names, config, tied, values)
    rules = _initial_rules(module, cut, config)
    embedding = FAMILY[str(config["model_type"])].embedding
    for name, size in names:
        mean, std = rules[name]
        source = embedding if tied and name == "lm_head.weight" else name
        values[name] = torch.full(size, mean) if std == 0 else _normal(training.seed, source, size, std)
    return values


def _initial_adapters(names: list[tuple[str, tuple[int, ...]]], training: TrainingSpec) -> dict[str, Tensor]:
    """``lora_A`` normal with one over the rank, which peft calls gaussian; ``lora_B`` zero: no change at first."""
    if training.lora is None:
        return {}
    down = {
        n: _normal(training.seed, n, size, 1 / training.lora.rank) for n, size in names if n.endswith(".lora_A.weight")
    }
    return down | {name: torch.zeros(size) for name, size in names if name.endswith(".lora_B.weight")}


def _normal(seed: int, name: str, size: tuple[int, ...], std: float) -> Tensor:
    """Normal values from Philox keyed by (seed, name): no processor's vector instructions have a say in them."""
    digest = hashlib.sha256(f"cottage-init\0{seed}\0{name}".encode()).digest()
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
    return torch.from_numpy(generator.standard_normal(size, dtype=np.float32) * np.float32(std))


def initial_embedding(config: Mapping[str, Any], shape: ModelShape, seed: int) -> Tensor:
    """The token embedding ``[vocabulary, hidden]`` that a model from random weights begins with, as ``initial_values`` has it."""
    name = FAMILY[str(config["model_type"])].embedding
    return _normal(seed, name, (shape.vocabulary, shape.hidden), float(config.get("initializer_range", 0.02)))


def layers_of(module: nn.Module) -> nn.ModuleList:
    """The decoder layers of a stage."""
    return next(part for part in _base(module).children() if isinstance(part, nn.ModuleList))


def _initial_rules(module: nn.Module, cut: Cut, config: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation of each parameter, as the families' ``_init_weights`` has them."""
    family = FAMILY[str(config["model_type"])]
    spread = float(config.get("initializer_range", 0.02))
    residual = spread / math.sqrt(2 * int(config.get("n_layer", 1)))
    rules = {}
    for owner_name, owner in module.named_modules():
        for name, value in owner.named_parameters(recurse=False):
            if value.dim() > 1:
                rule = (0.0, residual if owner_name.endswith("c_proj") else spread)
            elif name == "bias" or family.zero_centred:
                rule = (0.0, 0.0)
            else:
                rule = (1.0, 0.0)
            rules[full_name(f"{owner_name}.{name}", cut)] = rule
    return rules


def _weights_file(weights: Path | InputFolder, cut: Cut) -> InputFile:
    if isinstance(weights, Path):
        if not weights.is_dir():
            return weights
        weights = InputFolder(weights)
    return weights.weights_of(Layers(cut.first, cut.last))


class _Weights(Mapping[str, Tensor]):
    """Tensors of a file by full name, each read when it is asked for: a frozen model need not be there whole in float32."""

    def __init__(
        self,
        path: InputFile,
        names: list[tuple[str, tuple[int, ...]]],
        config: Mapping[str, Any],
        tied: bool,
        beside: Mapping[str, Tensor],
    ) -> None:
        """What the file lacks is ``beside``; raises ``WeightsError`` where it is broken, or a tensor missing."""
        self._path, self._sizes, self._beside = path, dict(names), beside
        with self._opened() as file:
            keys = set(file.keys())
        self._parts: dict[str, tuple[Part, ...]] = {}
        for name, size in names:
            found = way_in(keys, name, size, config, tied)
            if found is None:
                raise WeightsError(
                    "missing-tensor", f"{path.name} has no tensor {name}: upload the model's own weights"
                )
            self._parts[name] = found

    def __getitem__(self, name: str) -> Tensor:
        """One tensor in float32; raises ``WeightsError``: it is of another shape, or not finite."""
        if name in self._beside:
            return self._beside[name]
        values = torch.empty(self._sizes[name])
        with self._opened() as file:
            for part in self._parts[name]:
                _fill(values[part.index], file.get_tensor(part.key), f"tensor {part.key} of {self._path.name}")
        return values

    def __iter__(self) -> Iterator[str]:
        yield from self._beside
        yield from self._sizes

    def __len__(self) -> int:
        return len(self._beside) + len(self._sizes)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        try:
            with open_tensors(self._path) as file:
                yield file
        except (SafetensorError, OSError) as error:
            raise WeightsError(
                "bad-safetensors", f"{self._path.name} cannot be read as safetensors: {error}"
            ) from error


def _fill(place: Tensor, value: Tensor, what: str) -> None:
    if value.shape != place.shape:
        raise WeightsError(
            "wrong-shape",
            f"{what} is {tuple(value.shape)}, the config makes it {tuple(place.shape)}: one of them is wrong",
        )
    try:
        check_finite(value, what)
    except NonFiniteError as error:
        raise WeightsError("not-finite", f"{error}: repair the file") from error
    place.copy_(value)


def check_finite(tensor: Tensor, what: str) -> None:
    """Refuse NaN and Inf.

    Raises:
        NonFiniteError: naming ``what`` and how many values are not finite.
    """
    if tensor.numel() and not bool(torch.isfinite(tensor).all()):
        bad = int((~torch.isfinite(tensor)).sum())
        raise NonFiniteError(f"{what} holds {bad:,} values that are NaN or infinite")


def _base(module: nn.Module) -> Any:
    return cast(Any, module).base_model


def _replace(base: Any, names: tuple[str, ...], by: nn.Module) -> None:
    for name in names:
        if hasattr(base, name):
            setattr(base, name, by)
