"""One stage's share of a model in memory: its layers, with the embedding or the head where it has an end."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from protocol.job.job import ServedWeights
from protocol.models.model import STARTS_TIED, ModelConfigError, ModelShape, resolve_finished
from protocol.models.tensor_names import way_in
from protocol.serving import CACHE_BYTES, longest_of
from trainer.errors import WeightsError
from trainer.malloc_trim import trim
from trainer.serve.adapters import AdapterFiles, put_beside
from trainer.serve.few_rows import quicken
from trainer.serve.loading import load_tokens, parameters_of
from trainer.serve.quantizing import codes_of
from trainer.serve.stages.attention import paged_attention
from trainer.serve.stages.pages import PAGE, PassPlaces
from trainer.stage.model import Cut, build_module, check_finite, full_name, head
from trainer.stage.quantized import hold, takes
from trainer.transfer import to_device

ATTENTION = "cottage_pages"
SEATS = 64  # Answers under way.
_FLOAT32 = 4

AttentionInterface.register(ATTENTION, paged_attention)


@dataclass(frozen=True)
class CacheSize:
    """How much of keys and values there is room for; all stages come to the same, each by itself.

    Attributes:
        longest: tokens of a prompt with its answer.
        pages: of ``PAGE`` tokens.
    """

    longest: int
    pages: int


def cache_size(shape: ModelShape, context: int | None) -> CacheSize:
    """Room for a whole model's ``CACHE_BYTES``, of which each stage has what belongs to its layers."""
    each = 2 * shape.layers * shape.kv_heads * shape.head_dim * _FLOAT32
    longest = longest_of(each, shape.max_positions, context)
    one = -(-longest // PAGE) + 1
    return CacheSize(longest, min(max(one, CACHE_BYTES // (each * PAGE)), SEATS * one))


class ModelShare:
    """Layers of a model, ready to be passed.

    Attributes:
        cut: which they are.
        shape: of the whole model.
        tokens: its tokenizer, vocabulary and ends.
        parameters: of this share.
        adapters: how many requests may ask for.
    """

    def __init__(
        self,
        folder: Path,
        cut: Cut,
        weights: Mapping[str, Any],
        device: str,
        held: ServedWeights = "float32",
        adapters: Sequence[AdapterFiles] = (),
    ) -> None:
        """Read what belongs to ``cut``, one tensor after the other.

        Args:
            folder: of the small files.
            weights: by name what ``[...]`` makes a tensor of.
            held: how matrices are held.
            adapters: of the whole model, numbered from 1.
        Raises:
            WeightsError: the model cannot be cut, or is not whole, or an adapter is of another one.
        """
        config = finished_config(folder)
        try:
            module, self.shape = build_module(config, cut)
        except (ModelConfigError, ValueError, KeyError) as error:
            raise WeightsError("bad-model", f"this model cannot be cut into stages: {error}") from error
        self.cut, self.tokens = cut, load_tokens(folder)
        for local, value in _values(module, cut, config, weights):
            _put(module, local, full_name(local, cut), value, device, held)
        module.to(device, non_blocking=True)
        if held != "float32":
            trim()
        self.parameters = parameters_of(module)
        self.adapters = len(adapters)
        layers = {full_name(name, cut): one for name, one in module.named_modules() if name}
        put_beside(adapters, layers, torch.device(device), whole=False)
        cast(Any, module).config._attn_implementation = ATTENTION
        self._module = module.eval().requires_grad_(False)
        quicken(self._module)
        self.device = torch.device(device)

    @torch.inference_mode()
    def run(self, inputs: Tensor, places: PassPlaces) -> Tensor:
        """One pass: token ids ``[t]`` or hidden states ``[t, d]`` in, hidden states ``[t, d]`` out."""
        name = "input_ids" if self.cut.is_first else "inputs_embeds"
        base = cast(Any, self._module).base_model
        out = base(
            **{name: inputs[None]},
            position_ids=places.positions[None],
            use_cache=False,
            pass_places=places,
        )
        return cast(Tensor, out.last_hidden_state[0])

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """On the last stage: ``[t, vocabulary]`` of what ``run`` gave at ``[t, d]``."""
        return head(self._module, hidden[None])[0].float()


def finished_config(folder: Path) -> dict[str, Any]:
    """A model's config as training has it, of the part that writes; WeightsError: it has none that is known."""
    try:
        given = json.loads((folder / "config.json").read_text())
        return resolve_finished(given)
    except (OSError, ValueError) as error:
        raise WeightsError("bad-model", f"this model cannot be cut into stages: {error}") from error


def _values(
    module: nn.Module, cut: Cut, config: Mapping[str, Any], weights: Mapping[str, Any]
) -> Iterator[tuple[str, Tensor]]:
    """Every parameter's name in the module, with its value in float32."""
    tied = bool(config.get(STARTS_TIED, False))
    for local, parameter in list(module.named_parameters()):
        name, size = full_name(local, cut), tuple(parameter.shape)
        parts = way_in(weights.keys(), name, size, config, tied)
        if parts is None:
            raise WeightsError("missing-tensor", f"the model lacks one of its tensors: {name}")
        value = torch.empty(size)
        for part in parts:
            found = weights[part.key][...]
            if tuple(found.shape) != tuple(value[part.index].shape):
                raise WeightsError("wrong-shape", f"tensor {part.key} is {tuple(found.shape)}, which is wrong")
            value[part.index].copy_(found)
        check_finite(value, f"tensor {name}")
        yield local, value


def _put(module: nn.Module, local: str, name: str, value: Tensor, device: str, held: ServedWeights) -> None:
    """Give a parameter its value on the device, as codes where the matrix is held so."""
    path, _, last = local.rpartition(".")
    owner = module.get_submodule(path)
    if (bits := takes(owner, name, held)) is not None:
        hold(owner, codes_of(value, bits, device))
        return
    setattr(owner, last, nn.Parameter(to_device(value, torch.device(device)), requires_grad=False))
