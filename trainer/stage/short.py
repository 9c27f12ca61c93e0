"""Lean states in short form: what an opening says of them in about two bytes a parameter.

At the end of each segment (``TrainingSpec.commit_every`` steps, and the round's last) a lean stage is rounded, by chance, to
what can be said in few bits::

    parameters       the way from the round's anchor: whole numbers from -15 to 15, in units of which a block of 64 has one
    first moment     a bit of mantissa less (AdamW's)
    second moment    two bits of mantissa less

The rounding is a part of the segment's last step, so a re-run rounds alike. Everything is single operations on values, which
every processor rounds alike.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.stage.eight_bits import BLOCK
from trainer.transfer import arriving

LEVELS = 15.0
_LOW = 0xFFFF  # The half of a float32 that bf16 lacks.
_TINY = torch.finfo(torch.float32).tiny
_PART = 1 << 20  # Values that are made at once.


def spans(size: int) -> Iterator[slice]:
    """``[size]`` values in parts of whole blocks, so that a whole vector is never made for a moment."""
    return (slice(start, min(start + _PART, size)) for start in range(0, size, _PART))


@dataclass(frozen=True)
class ShortValues:
    """Parameters ``[n]``, said by ``base`` alone, or by the way from there.

    Attributes:
        base: flat ``[n]`` float32 or, where that says all of it, bf16, in main memory; nobody may change it.
        codes: ``[n]`` int8; None: the parameters are ``base``. units: ``[n / 64]`` bf16.
    """

    base: Tensor
    codes: Tensor | None = None
    units: Tensor | None = None

    def part(self, span: slice) -> Tensor:
        """Some of the parameters as float32, whole blocks of them."""
        base = self.base[span].float()
        if self.codes is None or self.units is None:
            return base
        units = self.units[span.start // BLOCK : span.stop // BLOCK].float()
        return base + way(self.codes[span], units)

    def parts(self) -> Iterator[Tensor]:
        """All of them, in order."""
        return (self.part(span) for span in spans(self.base.numel()))

    def spans(self) -> Iterator[tuple[slice, Tensor]]:
        """The same, with their places."""
        return ((span, self.part(span)) for span in spans(self.base.numel()))

    def values(self) -> Tensor:
        """All of them, float32: ``base`` itself where they are that."""
        if self.codes is None:
            return self.base.float()
        found = torch.empty(self.base.numel())
        for span in spans(found.numel()):
            found[span] = self.part(span)
        return found


def narrow(values: Tensor) -> Tensor:
    """``values`` ``[n]`` float32 as bf16 where their lower 16 bits are all zero, so that nothing is lost; else as they are."""
    if values.dtype != torch.float32:
        return values
    if any(bool(values[span].view(torch.int32).bitwise_and(_LOW).any()) for span in spans(values.numel())):
        return values
    # Little-endian, as what trains is.
    return values.view(torch.int16)[1::2].contiguous().view(torch.bfloat16)


def in_main_memory(parameters: Tensor | ShortValues) -> Iterator[tuple[slice, Tensor]]:
    """Parameters ``[n]`` float32 in parts, whole blocks of them, to be read only."""
    return parameters.spans() if isinstance(parameters, ShortValues) else arriving(parameters.detach())


def shortened(values: Tensor, base: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """Codes ``[n]`` int8 and units ``[n / 64]`` float32, all of them bf16, of ``values`` from ``base``, ``[n]`` float32 each.

    ``base`` may be one value for all.

    Args:
        drawn: at least 16 bits of chance for each value, in the low bits of int32.
    """
    away = values.sub(base).view(-1, BLOCK)
    units = away.abs().amax(dim=1).div_(LEVELS)
    units = units.view(torch.int32).add_(_LOW).bitwise_and_(~_LOW).view(torch.float32)  # Rounded up.
    part = drawn.bitwise_and(_LOW).float().mul_(1 / 65536)
    codes = away.div_(units.clamp_min(_TINY).unsqueeze(1)).view(-1).add_(part).floor_().clamp_(-LEVELS, LEVELS)
    return codes.to(torch.int8), units


def way(codes: Tensor, units: Tensor) -> Tensor:
    """What codes ``[n]`` stand for, with units ``[n / 64]`` float32."""
    return codes.float().view(-1, BLOCK).mul_(units.unsqueeze(1)).view(-1)
