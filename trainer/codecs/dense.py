"""Codecs that send every value: float32, float16, and blocks of 8, 4 or 2 bits under a common scale.

Decoding is one multiplication a value, the same bits on every machine.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.codecs.bits import pack, packed_size, unpack
from trainer.codecs.framing import raw, read, read_scales, refuse_non_finite

BLOCK = 64
"""Values under one scale; parameters begin at multiples of it, so a block never spans two tensors."""
GRADIENT_BLOCK = 256
LARGEST_OF_4_BITS = torch.tensor(7.0)  # -8 stays unused: both signs have the same levels.


@dataclass(frozen=True)
class Floats:
    """The values themselves, in ``dtype``."""

    name: str
    code: int
    dtype: torch.dtype
    exact: bool = True

    def body_size(self, shape: tuple[int, ...]) -> int:
        """As ``Codec.body_size``."""
        return self.dtype.itemsize * math.prod(shape)

    def encode_body(self, values: Tensor) -> bytes:
        """As ``Codec.encode_body``; a value beyond the range of ``dtype`` is refused too."""
        narrow = values.to(self.dtype)
        refuse_non_finite(narrow)
        return raw(narrow)

    def decode_body(self, body: memoryview, shape: tuple[int, ...]) -> Tensor:
        """As ``Codec.decode_body``."""
        return read(body, self.dtype, 0, math.prod(shape)).to(torch.float32).view(shape)


@dataclass(frozen=True)
class Int8:
    """Signed bytes under one float32 scale for each row: ``block`` values of the flattened tensor, or its last axis."""

    name: str
    code: int
    block: int | None
    exact: bool = True

    def body_size(self, shape: tuple[int, ...]) -> int:
        """As ``Codec.body_size``."""
        count = math.prod(shape)
        return 4 * self._row_count(shape) + count

    def encode_body(self, values: Tensor) -> bytes:
        """As ``Codec.encode_body``."""
        if not values.numel():
            return b""
        rows = _rows(values, self._width(tuple(values.shape)))
        largest = rows.abs().amax(dim=1, keepdim=True)
        refuse_non_finite(largest)
        scales = largest / 127.0
        quantised = (rows / torch.where(scales > 0, scales, 1.0)).round_().to(torch.int8)
        return raw(scales) + raw(quantised)[: values.numel()]

    def decode_body(self, body: memoryview, shape: tuple[int, ...]) -> Tensor:
        """As ``Codec.decode_body``."""
        count, rows = math.prod(shape), self._row_count(shape)
        scales = read_scales(body, torch.float32, 0, rows)
        quantised = read(body, torch.int8, 4 * rows, count).to(torch.float32)
        return _scaled(_rows(quantised, self._width(shape)), scales, shape)

    def _width(self, shape: tuple[int, ...]) -> int:
        return self.block if self.block is not None else (shape[-1] if shape else 1)

    def _row_count(self, shape: tuple[int, ...]) -> int:
        return -(-math.prod(shape) // self._width(shape))


@dataclass(frozen=True)
class Int4:
    """Four bits a value, -7 to 7, under one bfloat16 scale for each ``block`` values of the flattened tensor.

    The scale is bfloat16 since gradients of 1e-7 and less lie where float16 has no digits left. Blocks of 64 take 4.25 bits
    a value (7.5 times fewer than float32), blocks of 256 take 4.06.
    """

    name: str
    code: int
    block: int
    exact: bool = True

    def body_size(self, shape: tuple[int, ...]) -> int:
        """As ``Codec.body_size``."""
        return _packed_size(shape, self.block, 4)

    def encode_body(self, values: Tensor) -> bytes:
        """As ``Codec.encode_body``."""
        if not values.numel():
            return b""
        rows, largest = _blocks(values, self.block)
        scales = (largest / self.multiples(LARGEST_OF_4_BITS)).to(torch.bfloat16)
        return raw(scales) + _packed(self.levels(_ratios(rows, scales)).add_(8), values.numel(), 4)

    def decode_body(self, body: memoryview, shape: tuple[int, ...]) -> Tensor:
        """As ``Codec.decode_body``."""
        levels, scales = _unpacked(body, shape, self.block, 4, 8.0)
        return _scaled(_rows(self.multiples(levels), self.block), scales, shape)

    def levels(self, multiples: Tensor) -> Tensor:
        """The level, -7 to 7, nearest to each multiple of the scale; may work in place."""
        return multiples.round_().clamp_(-7, 7)

    def multiples(self, levels: Tensor) -> Tensor:
        """What each level stands for."""
        return levels


@dataclass(frozen=True)
class Squares4(Int4):
    """Four bits a value whose levels are squares: 0, 1, 4, 9, 16, 25, 36 or 49 times the scale, either sign.

    A block of gradients holds few large values and many small ones, which equal steps round to zero (a quarter of them), and
    AdamW divides by the size that each value usually has. Measured by that on four replicas of 0.9 million parameters, the mean
    of equal steps is off by 24 % of its length and that of squares by 16 %, at the same bytes; equal steps in blocks of 64 reach
    16 % too and take 4.25 bits.
    """

    def levels(self, multiples: Tensor) -> Tensor:
        """As ``Int4.levels``: halfway between two squares lies ``k * k + k + 1/2``, so the root of 1/4 less is ``k + 1/2``."""
        return multiples.abs().sub_(0.25).clamp_(min=0).sqrt_().round_().clamp_(max=7).copysign_(multiples)

    def multiples(self, levels: Tensor) -> Tensor:
        """As ``Int4.multiples``."""
        return levels * levels.abs()


@dataclass(frozen=True)
class Int2:
    """Two bits a value: half or one and a half times a bfloat16 scale, either sign, in blocks of the flattened tensor.

    The scale is the block's root mean square, which for normally distributed values is within 1 % of the four-level
    quantiser of least error (Max, 1960). There is no zero: use it where what is lost is kept and sent later (error feedback).
    """

    name: str
    code: int
    block: int
    exact: bool = True

    def body_size(self, shape: tuple[int, ...]) -> int:
        """As ``Codec.body_size``."""
        return _packed_size(shape, self.block, 2)

    def encode_body(self, values: Tensor) -> bytes:
        """As ``Codec.encode_body``."""
        if not values.numel():
            return b""
        rows, largest = _blocks(values, self.block)
        # Squares of tiny or huge values would leave the range of float32: take the mean of the ratios to the largest.
        ratios = rows / torch.where(largest > 0, largest, 1.0)
        scales = ratios.square_().mean(dim=1, keepdim=True).sqrt_().mul_(largest).to(torch.bfloat16)
        return raw(scales) + _packed(_ratios(rows, scales).floor_().clamp_(-2, 1).add_(2), values.numel(), 2)

    def decode_body(self, body: memoryview, shape: tuple[int, ...]) -> Tensor:
        """As ``Codec.decode_body``."""
        levels, scales = _unpacked(body, shape, self.block, 2, 1.5)
        return _scaled(_rows(levels, self.block), scales, shape)


def _blocks(values: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Rows of ``block`` values and the largest magnitude of each; raises ``NonFiniteError``."""
    rows = _rows(values, block)
    largest = rows.abs().amax(dim=1, keepdim=True)
    refuse_non_finite(largest)
    return rows, largest


def _ratios(rows: Tensor, scales: Tensor) -> Tensor:
    steps = scales.to(torch.float32)
    return rows / torch.where(steps > 0, steps, math.inf)


def _packed(levels: Tensor, count: int, bits: int) -> bytes:
    return pack(levels.to(torch.uint8).view(-1)[:count], bits)


def _packed_size(shape: tuple[int, ...], block: int, bits: int) -> int:
    count = math.prod(shape)
    return 2 * -(-count // block) + packed_size(count, bits)


def _unpacked(body: memoryview, shape: tuple[int, ...], block: int, bits: int, middle: float) -> tuple[Tensor, Tensor]:
    """Flat levels, which count from ``-middle``, and the scale of each block; raises as ``read_scales``."""
    count = math.prod(shape)
    rows = -(-count // block)
    scales = read_scales(body, torch.bfloat16, 0, rows)
    packed = read(body, torch.uint8, 2 * rows, packed_size(count, bits))
    return unpack(packed, bits, count).to(torch.float32).sub_(middle), scales


def _rows(values: Tensor, width: int) -> Tensor:
    flat = values.reshape(-1)
    missing = -flat.numel() % width
    return (torch.nn.functional.pad(flat, (0, missing)) if missing else flat).view(-1, width)


def _scaled(rows: Tensor, scales: Tensor, shape: tuple[int, ...]) -> Tensor:
    return rows.mul(scales.unsqueeze(1)).view(-1)[: math.prod(shape)].view(shape)


NAMED = (
    Floats("fp32", 0, torch.float32),
    Int8("int8-token", 1, None),
    Int8("int8-block", 2, BLOCK),
    Floats("fp16", 3, torch.float16),
    Int4("int4-block", 4, BLOCK),
    Int4("int4-gradient", 5, GRADIENT_BLOCK),
    Int2("int2-block", 6, BLOCK),
    Squares4("int4-squares", 9, GRADIENT_BLOCK),
)
