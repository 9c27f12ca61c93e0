"""About one bit a value: few levels, most values zero, written close to their entropy.

::

    magnitudes float32 x LEVELS | frequencies u16 x SYMBOLS | rANS

One step for the whole vector gives the least squared error for its bits, since a tensor that hardly moved then sends zeros.
A value's level stands for the mean of the values in it. What is lost must be kept and
sent later: use it with error feedback.

Source: quantisation with a dead zone and entropy coding, G. Sullivan, "Efficient scalar quantization of exponential and
Laplacian random variables", IEEE Trans. IT 42 (1996); error feedback, arXiv 1901.09847.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trainer.codecs.framing import AT_ONCE, Parts, raw, read_scales, refuse_non_finite
from trainer.codecs.rans import compress, decompress, frequencies, longest
from trainer.errors import CodecError

LEVELS = 7  # Of either sign; at the default step the last one begins at ten times the root mean square.
SYMBOLS = 2 * LEVELS + 1
_HEAD = 4 * LEVELS + 2 * SYMBOLS


@dataclass(frozen=True)
class Coarse:
    """Levels ``step`` root mean squares apart; a value counts as the next level from ``threshold`` of the way on.

    A step of 1.8 takes about 1.2 bits a value and loses half of the length of normally distributed values; 2.7 takes 0.6 to 0.7
    and loses three quarters.
    """

    name: str
    code: int
    step: float
    threshold: float = 0.6
    exact: bool = False

    def body_size(self, shape: tuple[int, ...]) -> int:
        """As ``Codec.body_size``: the longest; usual ones take a tenth of it."""
        return _HEAD + longest(math.prod(shape))

    def encode_body(self, values: Tensor) -> bytes:
        """As ``Codec.encode_body``."""
        return self.encode_parts(values.reshape(-1).__getitem__, values.numel())

    def encode_parts(self, values: Parts, size: int) -> bytes:
        """The same of a flat vector of ``size``, each part of which is asked for twice; raises ``NonFiniteError``."""
        if not size:
            return b""
        spans = [slice(start, min(start + AT_ONCE, size)) for start in range(0, size, AT_ONCE)]
        square = 0.0
        for span in spans:
            refuse_non_finite(part := values(span))
            square += float(part.double().square_().sum())
        step = math.sqrt(square / size) * self.step
        count, total = torch.zeros(LEVELS + 1, dtype=torch.int64), torch.zeros(LEVELS + 1, dtype=torch.float64)
        coded = torch.empty(size, dtype=torch.uint8)
        for span in spans:
            part = values(span)
            sizes = part.abs().double()
            levels = torch.zeros(part.numel(), dtype=torch.int64)
            if step > 0:
                levels = (sizes / step + (1 - self.threshold)).floor_().clamp_(0, LEVELS).long()
            count += torch.bincount(levels, minlength=LEVELS + 1)
            total += torch.bincount(levels, weights=sizes, minlength=LEVELS + 1)
            coded[span] = torch.where(part < 0, LEVELS - levels, LEVELS + levels)
        magnitudes = (total / count.clamp_min(1)).to(torch.float32)[1:]
        symbols = coded.numpy()
        table = frequencies(symbols, SYMBOLS)
        return raw(magnitudes) + table.astype("<u2").tobytes() + compress(symbols, table)

    def decode_body(self, body: memoryview, shape: tuple[int, ...]) -> Tensor:
        """As ``Codec.decode_body``."""
        levels = self.levels(body, math.prod(shape))
        values = torch.empty(len(levels.symbols))
        for start in range(0, len(values), AT_ONCE):
            span = slice(start, start + AT_ONCE)
            values[span] = levels(span)
        return values.view(shape)

    def levels(self, body: memoryview, size: int) -> "Levels":
        """The same of a flat vector of ``size``, whose values are made when they are asked for."""
        if len(body) < _HEAD:
            raise CodecError(f"{len(body):,} bytes hold no levels and frequencies, which take {_HEAD}")
        magnitudes = read_scales(body, torch.float32, 0, LEVELS)
        table = np.frombuffer(body, "<u2", SYMBOLS, offset=4 * LEVELS).astype(np.uint32)
        symbols = torch.from_numpy(decompress(body[_HEAD:], size, table))
        return Levels(symbols, torch.cat((magnitudes.flip(0).neg(), torch.zeros(1), magnitudes)))


@dataclass(frozen=True)
class Levels:
    """A vector ``[n]`` in a byte a value: ``symbols`` uint8, and what each stands for."""

    symbols: Tensor
    meaning: Tensor

    def __call__(self, span: slice) -> Tensor:
        """Some of its values, float32."""
        return self.meaning[self.symbols[span].long()]


NAMED = (Coarse("coarse", 7, 1.8), Coarse("coarser", 8, 2.7))
