"""Unsigned integers of 1, 2, 4 or 12 bits as bytes, lowest bits first."""

import torch
from torch import Tensor


def packed_size(count: int, bits: int) -> int:
    """Bytes that ``count`` values of ``bits`` bits take."""
    return -(-count * bits // 8)


def pack(values: Tensor, bits: int) -> bytes:
    """Flat uint8 values below ``2**bits`` as bytes; ``bits`` is 1, 2, 4 or 8."""
    per_byte = 8 // bits
    missing = -values.numel() % per_byte
    groups = (torch.nn.functional.pad(values, (0, missing)) if missing else values).view(-1, per_byte)
    packed = groups[:, 0].clone()
    for place in range(1, per_byte):
        packed |= groups[:, place] << (bits * place)
    return packed.numpy().tobytes()


def unpack(data: Tensor, bits: int, count: int) -> Tensor:
    """The first ``count`` values of packed bytes (a flat uint8 tensor), as uint8."""
    per_byte, mask = 8 // bits, (1 << bits) - 1
    values = torch.empty(data.numel(), per_byte, dtype=torch.uint8)
    for place in range(per_byte):
        torch.bitwise_and(data >> (bits * place), mask, out=values[:, place])
    return values.view(-1)[:count]


def pack_twelve(values: Tensor) -> bytes:
    """Flat int64 values below 4096 as bytes: two in three bytes."""
    missing = values.numel() % 2
    pairs = (torch.nn.functional.pad(values, (0, missing)) if missing else values).view(-1, 2)
    low, high = pairs[:, 0], pairs[:, 1]
    triples = torch.stack((low & 0xFF, (low >> 8) | ((high & 0xF) << 4), high >> 4), dim=1).to(torch.uint8)
    return triples.view(-1).numpy().tobytes()[: packed_size(values.numel(), 12)]


def unpack_twelve(data: Tensor, count: int) -> Tensor:
    """The ``count`` values of packed bytes (a flat uint8 tensor of ``packed_size(count, 12)``), as int64."""
    missing = -data.numel() % 3
    triples = (torch.nn.functional.pad(data, (0, missing)) if missing else data).view(-1, 3).to(torch.int64)
    low = triples[:, 0] | ((triples[:, 1] & 0xF) << 8)
    high = (triples[:, 1] >> 4) | (triples[:, 2] << 4)
    return torch.stack((low, high), dim=1).view(-1)[:count]
