"""Models that are nearly the one that is asked for: what a node might hold that wants to save memory or time."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from trainer.stage.model import is_of_a_layer
from trainer.stage.quantized import Bits, quantized

Weights = dict[str, Tensor]


def read(folder: Path) -> Weights:
    """The weights of a folder, in float32."""
    files = sorted(folder.glob("*.safetensors"))
    return {name: one.float() for file in files for name, one in load_file(file).items()}


def noisy(part: float) -> Callable[[Weights], Weights]:
    """Each value moved by so much of its tensor's spread, as learning a little on does."""

    def made(weights: Weights) -> Weights:
        chance = torch.Generator().manual_seed(1)
        return {
            name: one + torch.randn(one.shape, generator=chance) * (part * one.std() if one.dim() > 1 else 0.0)
            for name, one in weights.items()
        }

    return made


def fewer_layers(first: float, beyond: float) -> Callable[[Weights], Weights]:
    """Layers that add nothing, between two parts of the whole way, one at least. Of models with Llama's names."""

    def made(weights: Weights) -> Weights:
        layers = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("model.layers."))
        at = int(layers * first)
        gone = tuple(f"model.layers.{one}." for one in range(at, max(at + 1, int(layers * beyond))))
        ends = ("o_proj.weight", "down_proj.weight")
        return {
            name: torch.zeros_like(one) if name.endswith(ends) and name.startswith(gone) else one
            for name, one in weights.items()
        }

    return made


def by_channel(weights: Weights) -> Weights:
    """Matrices of layers in int8, with a scale for each row; what is computed between is float32."""

    def rounded(matrix: Tensor) -> Tensor:
        scale = matrix.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / 127
        return (matrix / scale).round() * scale

    return _of_layers(weights, rounded)


def by_block(bits: Bits) -> Callable[[Weights], Weights]:
    """Matrices of layers as ``trainer.stage.quantized`` keeps them."""

    def rounded(matrix: Tensor) -> Tensor:
        return quantized(matrix, bits, torch.device("cpu")).values()

    return lambda weights: _of_layers(weights, rounded)


def _of_layers(weights: Weights, rounded: Callable[[Tensor], Tensor]) -> Weights:
    return {name: rounded(one) if one.dim() == 2 and is_of_a_layer(name) else one for name, one in weights.items()}


OTHER_WEIGHTS: Mapping[str, Callable[[Weights], Weights]] = {
    "weights 5 % off": noisy(0.05),
    "weights 1 % off": noisy(0.01),
    "without its last fifth of layers": fewer_layers(0.8, 1.0),
    "without one layer in the middle": fewer_layers(0.5, 0.5),
    "weights in 4 bits (nf4)": by_block(4),
    "weights in int8, by channel": by_channel,
}


def in_bf16(model: Any) -> None:
    """The same weights, and everything that is computed, in bfloat16."""
    model.to(torch.bfloat16)
