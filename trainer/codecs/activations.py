"""What crosses from stage to stage in four bits: groups of 32 values, rotated before they are rounded.

A few channels of a language model's activations are far larger than the others, and a scale that fits them leaves no
levels for the rest of their group. A Walsh-Hadamard rotation spreads each value over its whole group first. It is made of
additions and exact powers of two, in one order, so every machine rounds it alike.

zstd makes these bytes another 1.26-1.39 times shorter on a trained model (1.36-1.52 without the rotation, at a larger error;
``benchmarks/activations.py`` shows both), so they cross links in envelopes.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.codecs.bits import pack, packed_size, unpack
from trainer.codecs.framing import raw, read, read_scales, refuse_non_finite

GROUP = 32
"""Values under one scale: 4.5 bits a value with it; halving the group costs half a bit more."""
_LEVELS = 15.0  # Sixteen levels, evenly from -scale to scale; there is no zero, which a rotated group does not need.


@dataclass(frozen=True)
class Rotated4:
    """Four bits a value under one bfloat16 scale for each ``GROUP`` values of the flattened tensor, rotated.

    bfloat16, since gradients of 1e-7 and less lie where float16 has no digits left. The scale is the group's largest
    magnitude; a group of zeros has scale zero and stays zero.
    Source: QuaRot, arXiv 2404.00456 (rotation); TAH-Quant, arXiv 2506.01352 (groups of 32 with Hadamard for activations).
    """

    name: str
    code: int
    exact: bool = True

    def body_size(self, shape: tuple[int, ...]) -> int:
        """As ``Codec.body_size``."""
        count = math.prod(shape)
        return 2 * -(-count // GROUP) + packed_size(_padded(count), 4)

    def encode_body(self, values: Tensor) -> bytes:
        """As ``Codec.encode_body``."""
        refuse_non_finite(values)
        flat = values.reshape(-1)
        missing = _padded(flat.numel()) - flat.numel()
        groups = (torch.nn.functional.pad(flat, (0, missing)) if missing else flat).view(-1, GROUP)
        rotated = hadamard(groups.mul(0.25))  # A quarter here and an eighth there: together one over GROUP, exactly.
        scales = rotated.abs().amax(dim=1, keepdim=True).to(torch.bfloat16)
        refuse_non_finite(scales)
        steps = scales.to(torch.float32)
        unit = rotated / torch.where(steps > 0, steps, 1.0)
        levels = unit.add_(1.0).mul_(_LEVELS / 2).round_().clamp_(0.0, _LEVELS).to(torch.uint8)
        return raw(scales) + pack(levels.view(-1), 4)

    def decode_body(self, body: memoryview, shape: tuple[int, ...]) -> Tensor:
        """As ``Codec.decode_body``."""
        count = math.prod(shape)
        rows = -(-count // GROUP)
        scales = read_scales(body, torch.bfloat16, 0, rows)
        levels = unpack(read(body, torch.uint8, 2 * rows, packed_size(rows * GROUP, 4)), 4, rows * GROUP)
        unit = levels.to(torch.float32).view(-1, GROUP).mul_(2.0).sub_(_LEVELS)
        rotated = unit.mul_((scales / _LEVELS).unsqueeze(1))
        return hadamard(rotated).mul_(0.125).view(-1)[:count].view(shape)


def hadamard(groups: Tensor) -> Tensor:
    """The Walsh-Hadamard transform of each row, not normalised: applied twice it gives ``width`` times its input.

    Args:
        groups: ``[n, width]`` float32, the width a power of two.
    Source: fast Walsh-Hadamard transform; Fino and Algazi, IEEE Trans. Computers C-25(11), 1976.
    """
    rows, width = groups.shape
    half = 1
    while half < width:
        pairs = groups.view(rows, width // (2 * half), 2, half)
        low, high = pairs[:, :, 0], pairs[:, :, 1]
        groups = torch.stack((low + high, low - high), dim=2).view(rows, width)
        half *= 2
    return groups


def _padded(count: int) -> int:
    return -(-count // GROUP) * GROUP
