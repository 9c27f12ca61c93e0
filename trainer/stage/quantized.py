"""Frozen matrices in 4 or 8 bits: layers compute from them, and adapters learn beside.

Values lie in blocks of 64, each relative to the block's largest magnitude. 4 bits name one of sixteen quantiles of a normal
distribution (NF4), 8 bits one of 127 equal steps to either side. Scales have 8 bits themselves, relative to the largest of 256
blocks. A matrix takes 0.516 or 1.016 bytes a value.

Every node makes the same codes of the same weights, by operations that round alike everywhere. A product makes the matrix wide
for a moment, forward and backward, and keeps only codes in between.

A scale below a block's largest magnitude leaves less squared error, and makes a model lose more than half as much again: large
values matter most.

Source: QLoRA, arXiv 2305.14314: NF4 and double quantisation; here scales are rounded up to one of 255 equal steps.
"""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from protocol.models.model import LEAN_PART, QUANTIZED_BLOCK
from trainer.stage.model import is_of_a_layer
from trainer.transfer import to_device

BLOCK, GROUP = QUANTIZED_BLOCK, 256
"""Values with one scale, and scales with one."""
Bits = Literal[4, 8]
BITS: Mapping[str, Bits] = {"int8": 8, "nf4": 4}
TOKENS = ("embed_tokens.weight", "wte.weight", "embed_in.weight")
_TAIL = 1 - (1 / 32 + 1 / 30) / 2  # Of the distribution; the outermost quantiles would be infinite.
_STEPS, _SCALES = 127.0, 255.0
_PLACES = 1024  # To either side of nought.


@dataclass(frozen=True)
class QuantizedMatrix:
    """A matrix of ``shape``.

    Attributes:
        codes: uint8, two a byte for 4 bits. scales: uint8, of blocks. groups: float32, of scales.
        part: values that are made wide at a time, a multiple of those with one of ``groups``; they are the same in any parts.
    """

    codes: Tensor
    scales: Tensor
    groups: Tensor
    bits: Bits
    shape: tuple[int, ...]
    part: int = LEAN_PART

    @property
    def bytes(self) -> int:
        """In memory."""
        return sum(part.numel() * part.element_size() for part in (self.codes, self.scales, self.groups))

    def numel(self) -> int:
        """Values."""
        return int(torch.Size(self.shape).numel())

    def to(self, device: torch.device) -> "QuantizedMatrix":
        """The same on a device."""
        codes, scales, groups = (to_device(part, device) for part in (self.codes, self.scales, self.groups))
        return QuantizedMatrix(codes, scales, groups, self.bits, self.shape, self.part)

    def values(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """``shape``, made in parts of which float32 is there for a moment."""
        made = torch.empty(len(self.scales) * BLOCK, dtype=dtype, device=self.codes.device)
        for start in range(0, len(made), self.part):
            stop = min(start + self.part, len(made))
            codes = self.codes[start * self.bits // 8 : stop * self.bits // 8]
            groups = self.groups[start // (BLOCK * GROUP) : -(-stop // (BLOCK * GROUP))]
            scales = _scales(self.scales[start // BLOCK : stop // BLOCK], groups)
            made[start:stop] = _unpacked(codes, self.bits).view(-1, BLOCK).mul_(scales.unsqueeze(1)).view(-1)
        return made[: self.numel()].view(self.shape)

    def rows(self, ids: Tensor) -> Tensor:
        """Rows ``[*ids, columns]`` in float32; columns are whole blocks."""
        columns = self.shape[-1]
        flat, blocks = ids.flatten(), columns // BLOCK
        codes = self.codes.view(self.shape[0], -1).index_select(0, flat)
        places = (flat.unsqueeze(1) * blocks + torch.arange(blocks, device=flat.device)).flatten()
        scales = self.scales.index_select(0, places).float() * self.groups.index_select(0, places // GROUP)
        wide = _unpacked(codes.view(-1), self.bits).view(-1, BLOCK) * scales.unsqueeze(1)
        return wide.view(*ids.shape, columns)


def quantized(values: Tensor, bits: Bits, device: torch.device) -> QuantizedMatrix:
    """Finite float32 values of any shape in ``bits``, made on ``device`` in parts."""
    flat = values.detach().flatten()
    flat = functional.pad(flat, (0, -len(flat) % BLOCK))
    parts = [_quantized(to_device(part, device).view(-1, BLOCK), bits) for part in torch.split(flat, LEAN_PART)]
    codes, scales, groups = (torch.cat(vectors) for vectors in zip(*parts, strict=True))
    return QuantizedMatrix(codes, scales, groups, bits, tuple(values.shape))


def _quantized(blocks: Tensor, bits: Bits) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scales and groups of blocks ``[n, BLOCK]``."""
    most = blocks.abs().amax(dim=1)
    padded = functional.pad(most, (0, -len(most) % GROUP))
    groups = padded.view(-1, GROUP).amax(dim=1).div_(_SCALES)
    tiny = torch.finfo(torch.float32).tiny
    # Rounded up, so that no value is beyond its scale.
    whole = groups.clamp_min(tiny).repeat_interleave(GROUP)[: len(most)]
    scales = (most / whole).ceil_().clamp_(0, _SCALES)
    if bits == 8:
        relative = blocks / _wide(scales, groups)
        codes = relative.mul_(_STEPS).round_().clamp_(-_STEPS, _STEPS).to(torch.int8).view(torch.uint8).flatten()
    else:
        nearest = _nearest(blocks, _wide(scales, groups)).flatten()
        codes = nearest[0::2] * 16 + nearest[1::2]
    return codes, scales.to(torch.uint8), groups


def _nearest(blocks: Tensor, wide: Tensor) -> Tensor:
    """The level next to each value: of its place among 2,048 equal ones, which is quicker than to compare with all."""
    places = (blocks / wide).clamp_(-1.0, 1.0).mul_(_PLACES).add_(_PLACES + 0.5).to(torch.int32)
    return _next(blocks.device).index_select(0, places.flatten()).view(blocks.shape)


@functools.cache
def _next(device: torch.device) -> Tensor:
    levels = _levels(torch.device("cpu"))
    places = torch.arange(-_PLACES, _PLACES + 1) / _PLACES
    return torch.bucketize(places, (levels[1:] + levels[:-1]) / 2).to(torch.uint8).to(device)


def _wide(scales: Tensor, groups: Tensor) -> Tensor:
    """What each block's values are divided by, ``[blocks, 1]``."""
    return _scales(scales, groups).clamp_min(torch.finfo(torch.float32).tiny).unsqueeze(1)


def takes(owner: nn.Module, name: str, kind: str) -> Bits | None:
    """In how many bits a job keeps a layer's frozen ``weight``, by full name; None: as it came, as ``kind`` is none of ``BITS``.

    Matrices of decoder layers, but routers and experts that lie in one tensor. Of an embedding rows are looked up, always in 8
    bits, where a row is made of whole blocks.
    """
    if kind not in BITS or not name.endswith(".weight"):
        return None
    if isinstance(owner, nn.Embedding):
        return 8 if name.endswith(TOKENS) and owner.embedding_dim % BLOCK == 0 else None
    linear = isinstance(owner, nn.Linear | Conv1D) or hasattr(owner, "lora_A")
    return BITS[kind] if linear and is_of_a_layer(name) else None


def matrices(module: nn.Module) -> Iterator[tuple[str, QuantizedMatrix]]:
    """What layers hold, by the names that their parameters had."""
    for name, part in module.named_modules():
        found = getattr(part, "quantized", None)
        if isinstance(found, QuantizedMatrix):
            yield f"{name}.weight", found


def hold(owner: nn.Module, matrix: QuantizedMatrix) -> None:
    """Have a layer compute from a matrix in place of its frozen ``weight``: linear, an embedding, or with an adapter beside."""
    del owner._parameters["weight"]
    owner.register_parameter("weight", None)
    cast(Any, owner).quantized = matrix
    if isinstance(owner, nn.Embedding):
        owner.forward = _Rows(owner, matrix)  # type: ignore[method-assign, assignment]
    elif not hasattr(owner, "lora_A"):
        owner.forward = _Linear(owner, matrix)


def product(inputs: Tensor, matrix: QuantizedMatrix, bias: Tensor | None, transposed: bool) -> Tensor:
    """``inputs [..., in] -> [..., out]``, in the type that autocast says, or the inputs'; ``transposed``: it is ``[in, out]``."""
    kind = inputs.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else inputs.dtype
    made = cast(Tensor, _Product.apply(inputs.to(dtype), matrix, transposed))  # type: ignore[no-untyped-call]
    return made if bias is None else made + bias.to(dtype)


class _Product(torch.autograd.Function):
    """A product with a matrix that is wide only while it is computed."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, matrix: QuantizedMatrix, transposed: bool) -> Tensor:
        ctx.matrix, ctx.transposed = matrix, transposed
        weight = matrix.values(inputs.dtype)
        return inputs.matmul(weight if transposed else weight.t())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        weight = ctx.matrix.values(gradient.dtype)
        return gradient.matmul(weight.t() if ctx.transposed else weight), None, None


class _Linear:
    """Stands for ``forward`` of a linear layer."""

    def __init__(self, part: nn.Module, matrix: QuantizedMatrix) -> None:
        self._part, self._matrix, self._transposed = part, matrix, not isinstance(part, nn.Linear)

    def __call__(self, inputs: Tensor) -> Tensor:
        return product(inputs, self._matrix, cast("Tensor | None", self._part.bias), self._transposed)


class _Rows:
    """Stands for ``forward`` of an embedding."""

    def __init__(self, part: nn.Embedding, matrix: QuantizedMatrix) -> None:
        self._part, self._matrix = part, matrix

    def __call__(self, ids: Tensor) -> Tensor:
        rows = self._matrix.rows(ids)
        scale = getattr(self._part, "embed_scale", None)  # Gemma's embeddings are scaled as they are looked up.
        return rows if scale is None else rows * scale.to(rows.dtype)


@functools.cache
def _levels(device: torch.device) -> Tensor:
    """NF4's sixteen values in ascending order, from -1 to 1."""
    quantile = NormalDist().inv_cdf
    above = [quantile(_TAIL + (0.5 - _TAIL) * step / 8) for step in range(8)]
    below = [-quantile(_TAIL + (0.5 - _TAIL) * step / 7) for step in range(7)]
    return torch.tensor(sorted([*above, 0.0, *below]), device=device) / max(above)


def _unpacked(codes: Tensor, bits: Bits) -> Tensor:
    """Values relative to their blocks' scales, flat float32."""
    if bits == 8:
        return codes.view(torch.int8).float().mul_(1 / _STEPS)
    return _pairs(codes.device).index_select(0, codes.to(torch.int32)).view(-1)


@functools.cache
def _pairs(device: torch.device) -> Tensor:
    """The two values that each byte names, ``[256, 2]``."""
    levels = _levels(torch.device("cpu")).tolist()
    return to_device(torch.tensor([[high, low] for high in levels for low in levels]), device)


def _scales(scales: Tensor, groups: Tensor) -> Tensor:
    """Of each block, float32."""
    return scales.float() * groups.repeat_interleave(GROUP)[: len(scales)]
