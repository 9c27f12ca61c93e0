"""Optimizer moments in 8 bits: blocks of 64 values with a scale each, rounded up or down by chance.

Two spellings, both relative to the largest magnitude of the block::

    signed, unsigned   a small float, 4 bits of exponent and 3 or 4 of mantissa: AdamW divides moments value by value
    linear             127 equal steps: Muon makes matrices orthogonal as a whole

Rounding by chance keeps a moving average moving. At 0.95 a step, a second moment falls by less than half a step of its
spelling, and rounding to the nearest would hold it up for ever. The chance is a hash of where a value lies and of which step it
is. It is made of whole numbers, so every processor draws the same, and a step can be run again bit for bit.

Source: block-wise 8-bit optimizers, arXiv 2110.02861; Muon's momentum in 8 bits, arXiv 2509.23106. The hash is lowbias32 of
nullprogram.com/blog/2018/07/31.
"""

from typing import Literal, get_args

import torch
from torch import Tensor

from trainer.transfer import to_device

BLOCK = 64
"""Values with one scale; no block spans two parameters (``trainer.stage.storage.ALIGNMENT``)."""
Spelling = Literal["signed", "unsigned", "linear"]
Table = Tensor

_MANTISSA = {"signed": 3, "unsigned": 4}
_LESS = {"signed": 1, "unsigned": 2, "linear": 0}  # Bits of mantissa that a short state lacks.
_EXPONENTS = 15  # Powers of two below the largest; the lowest code of all is zero.
_WIDTH = 23  # Bits of a float32's mantissa.
_ONE = 127 << _WIDTH  # The bits of 1.0.
_STEPS = 127.0
_LEAST = 2.0 ** -(_EXPONENTS + 1)  # What is divided by is never nothing where its block has something.


def packed_size(count: int) -> int:
    """Bytes of ``count`` values, a multiple of ``BLOCK``: a code each, and a float32 scale for each block."""
    return count + 4 * (count // BLOCK)


def chance(start: int, count: int, key: int, device: torch.device) -> Tensor:
    """A hash ``[count]`` int32 of each place from ``start`` on, under ``key``."""
    x = torch.arange(start, start + count, dtype=torch.int32, device=device)
    x.mul_(-1640531527).add_(_wrapped(key * 0x85EBCA6B))
    _mix(x, 16, 0x7FEB352D)
    _mix(x, 15, _wrapped(0x846CA68B))
    return x.bitwise_xor_(_shifted(x, 16))


def pack(values: Tensor, spelling: Spelling, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """Codes ``[n]`` uint8 and scales ``[n / BLOCK]`` float32 of finite values ``[n]`` float32.

    Args:
        drawn: at least 20 bits of chance for each value, in the low bits of int32.
    """
    blocks = values.view(-1, BLOCK)
    scales = blocks.abs().amax(dim=1)
    safe = scales.clamp_min(torch.finfo(torch.float32).tiny)
    scaled = (blocks / safe.unsqueeze(1)).view(-1)
    if spelling == "linear":
        part = drawn.bitwise_and(0xFFFF).float().mul_(1 / 65536)
        codes = scaled.mul_(_STEPS).add_(part).floor_().clamp_(-_STEPS, _STEPS)
        return codes.to(torch.int8).view(torch.uint8), scales
    dropped = _WIDTH - _MANTISSA[spelling]
    bits = scaled.abs().view(torch.int32)
    # A hair of chance below the kept bits carries over with the probability that what is dropped has.
    bits = bits.add_(drawn.bitwise_and((1 << dropped) - 1)).bitwise_right_shift_(dropped)
    codes = bits.sub_(_lowest(spelling)).clamp_(0, _EXPONENTS << _MANTISSA[spelling])
    if spelling == "signed":
        codes = codes.bitwise_or_((scaled < 0).to(torch.int32).bitwise_left_shift_(7))
    return codes.to(torch.uint8), scales


def unpack(codes: Tensor, scales: Tensor, table: Table) -> Tensor:
    """The values ``[n]`` float32 of ``pack``; ``table``: of the spelling."""
    scaled = table.index_select(0, codes.to(torch.int32))
    return scaled.view(-1, BLOCK).mul_(scales.unsqueeze(1)).view(-1)


def coarsen(codes: Tensor, spelling: Spelling, drawn: Tensor) -> Tensor:
    """The same codes ``[n]`` with fewer bits of mantissa, rounded by chance; ``linear`` ones stay as they are.

    Args:
        drawn: as in ``pack``.
    """
    less = _LESS[spelling]
    if not less:
        return codes
    wide = codes.to(torch.int32)
    sign = wide.bitwise_and(0x80) if spelling == "signed" else torch.zeros_like(wide)
    low = (1 << less) - 1
    rounded = wide.sub_(sign).add_(drawn.bitwise_and(low)).bitwise_and_(~low)
    return rounded.clamp_(0, _EXPONENTS << _MANTISSA[spelling]).bitwise_or_(sign).to(torch.uint8)


def tables(device: torch.device) -> dict[Spelling, Table]:
    """Of every spelling, what each of the 256 codes stands for, relative to its block's scale."""
    return {spelling: to_device(_table(spelling), device) for spelling in get_args(Spelling)}


def _table(spelling: Spelling) -> Table:
    codes = torch.arange(256, dtype=torch.uint8)
    if spelling == "linear":
        return codes.view(torch.int8).float().div_(_STEPS)
    mantissa, wide = _MANTISSA[spelling], codes.to(torch.int32)
    magnitude = wide.bitwise_and(0x7F) if spelling == "signed" else wide
    values = (magnitude + _lowest(spelling)).bitwise_left_shift(_WIDTH - mantissa).view(torch.float32)
    values[magnitude == 0] = 0.0 if spelling == "signed" else _LEAST
    if spelling == "signed":
        values[wide >= 0x80] *= -1.0
    return values


def _lowest(spelling: Spelling) -> int:
    """What a code adds to, in the bits of a float32 that are kept."""
    return (_ONE >> (_WIDTH - _MANTISSA[spelling])) - (_EXPONENTS << _MANTISSA[spelling])


def _mix(x: Tensor, by: int, factor: int) -> None:
    x.bitwise_xor_(_shifted(x, by)).mul_(factor)


def _shifted(x: Tensor, by: int) -> Tensor:
    """As an unsigned number; torch's shift keeps the sign."""
    return x.bitwise_right_shift(by).bitwise_and_((1 << (32 - by)) - 1)


def _wrapped(value: int) -> int:
    """As an int32 with the same low bits."""
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)
