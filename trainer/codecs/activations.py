"""What crosses from stage to stage in four bits: equal steps about each channel's mean, for an entropy coder.

What later layers make of a hidden state depends on its direction, since each of them normalises it first: so the step of a token
is a quarter of its mean magnitude, and all its channels share it. A few channels of a language model are far larger than the
others, most of them by much the same amount in every token; the mean over the message is sent apart and takes that away.

Levels are bytes, and an envelope (``trainer.codecs.envelope``) makes of them what they hold. Of all distributions with a given
mean magnitude the Laplacian has the most entropy; with steps of a quarter of it that is ``log2(8e)``, **4.44 bits a value**.
Hidden states take less (2.4 to 4.3 with zstd); ``benchmarks.learning.activations`` shows both. Groups of 32 under a scale
behind a Hadamard rotation (QuaRot, arXiv 2404.00456; TAH-Quant, arXiv 2506.01352) leave three times the squared error and take
about as many bytes.

Source: uniform steps with entropy coding are within a quarter of a bit of what any quantiser can reach (Gish and Pierce, IEEE
Trans. Information Theory 14(5), 1968).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.codecs.framing import raw, read, read_scales, refuse_non_finite
from trainer.errors import CodecError

_STEP = 0.25  # Of a row's mean magnitude.
_LARGEST = 127
_FAR = -128  # In place of a level beyond a byte, which follows behind all others.
_FARTHEST = 30_000  # A step is never so fine that a level would leave sixteen bits.
_FAR_BYTES = 2
ENOUGH_ROWS = 128
"""A mean costs 32 bits for this many values, and spares about a quarter of a bit each."""
_OCTAVE = (
    1.0,
    0.9170040432046712,
    0.8408964152537145,
    0.7711054127039704,
    0.7071067811865476,
    0.6484197773255048,
    0.5946035575013605,
    0.5452538663326288,
)
"""2^(-k/8) for eight k, written out since mathematical libraries may differ in the last bit: a row's step is met within 4.4 %."""
_NOTHING = 255  # A row of zeros.
_FRACTIONS = torch.tensor([_OCTAVE[k % len(_OCTAVE)] * 0.5 ** (k // len(_OCTAVE)) for k in range(_NOTHING)] + [0.0])


@dataclass(frozen=True)
class Steps4:
    """Levels of equal steps about the mean row, one step for each last axis; entropy coding is the envelope's.

    ::

        mean float32 x width | largest step bfloat16 | k u8 x rows | levels int8 x count | far levels int16 x number of -128 above

    A row's step is the largest one times 2^(-k/8), and 0 for k = 255. The mean is in full: where all tokens have 300 in a channel
    and differ by 1, a rounded one would be off by as much. Of fewer than ``ENOUGH_ROWS`` rows there is none.
    """

    name: str
    code: int
    exact: bool = False

    def body_size(self, shape: tuple[int, ...]) -> int:
        """As ``Codec.body_size``."""
        return _levels_at(shape) + (1 + _FAR_BYTES) * math.prod(shape)

    def encode_body(self, values: Tensor) -> bytes:
        """As ``Codec.encode_body``."""
        if not values.numel():
            return b""
        shape = tuple(values.shape)
        rows = values.reshape(-1, _width(shape))
        middle = rows.mean(dim=0)[: _means(shape)]
        residual = rows - middle if len(middle) else rows.clone()
        sizes = residual.abs()
        wanted = torch.maximum(sizes.mean(dim=1) * _STEP, sizes.amax(dim=1) / _FARTHEST)
        largest = wanted.amax().to(torch.bfloat16)
        refuse_non_finite(largest.view(1))  # So is all that is computed from NaN, or overflows on the way.
        octaves = torch.log2(largest / wanted).mul_(len(_OCTAVE)).round_().clamp_(0, _NOTHING - 1)
        smaller = torch.where(wanted > 0, octaves, _NOTHING).to(torch.uint8)
        steps = _steps(largest, smaller).unsqueeze(1)
        levels = residual.div_(torch.where(steps > 0, steps, math.inf)).round_()
        far = levels.abs() > _LARGEST
        outside = levels[far].to(torch.int16)
        near = levels.masked_fill_(far, _FAR).to(torch.int8)
        return raw(middle) + raw(largest) + raw(smaller) + raw(near) + raw(outside)

    def decode_body(self, body: memoryview, shape: tuple[int, ...]) -> Tensor:
        """As ``Codec.decode_body``."""
        means, at, count = _means(shape), _levels_at(shape), math.prod(shape)
        if len(body) < at + count:
            raise CodecError(f"{len(body):,} bytes of a body that takes at least {at + count:,}")
        levels = read(body, torch.int8, at, count)
        far = levels == _FAR
        beyond = int(far.sum())
        if len(body) != at + count + _FAR_BYTES * beyond:
            raise CodecError(f"{len(body):,} bytes of a body that takes {at + count + _FAR_BYTES * beyond:,}")
        values = levels.to(torch.float32)
        if beyond:
            values[far] = read(body, torch.int16, at + count, beyond).to(torch.float32)
        largest = read_scales(body, torch.bfloat16, 4 * means, 1)
        steps = _steps(largest, read(body, torch.uint8, 4 * means + 2, _rows(shape)))
        found = values.view(-1, _width(shape)).mul_(steps.unsqueeze(1))
        if means:  # Two roundings, never one: every machine has multiplied, and adds now.
            found.add_(read(body, torch.float32, 0, means))
        return found.view(shape)


def _steps(largest: Tensor, smaller: Tensor) -> Tensor:
    return _FRACTIONS[smaller.long()] * largest.to(torch.float32)


def _levels_at(shape: tuple[int, ...]) -> int:
    return 4 * _means(shape) + 2 + _rows(shape)


def _means(shape: tuple[int, ...]) -> int:
    return _width(shape) if _rows(shape) >= ENOUGH_ROWS else 0


def _width(shape: tuple[int, ...]) -> int:
    return shape[-1] if shape else 1


def _rows(shape: tuple[int, ...]) -> int:
    return math.prod(shape[:-1])


NAMED = (Steps4("int4-token", 33),)
