"""The largest values of every chunk, under two magnitudes and a sign: a few bits for each value that is kept.

::

    high bfloat16 x chunks | low bfloat16 x chunks | indices, 12 bits each | signs and magnitudes, 2 bits each

Indices within a chunk rise, so a body has one meaning and no value twice.

Source: SparseLoCo, arXiv 2508.15706, section 3 (chunks of 4096, indices of 12 bits, values of 2 bits).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.codecs.bits import pack, pack_twelve, packed_size, unpack, unpack_twelve
from trainer.codecs.framing import raw, read, read_scales, refuse_non_finite
from trainer.errors import CodecError

CHUNK = 4096  # Indices within it fit 12 bits.
_NEGATIVE, _HIGH = 2, 1


@dataclass(frozen=True)
class TopK:
    """The ``density`` largest values of each chunk of 4096 of the flattened tensor; the others become zero.

    Kept values above the chunk's mean magnitude become the mean of those, the others the mean of the rest.
    """

    density: float
    name: str = "topk-chunk"
    code: int = 16
    exact: bool = True

    def kept(self, shape: tuple[int, ...]) -> int:
        """How many values of each chunk are kept."""
        return max(1, round(min(CHUNK, math.prod(shape)) * self.density))

    def body_size(self, shape: tuple[int, ...]) -> int:
        """As ``Codec.body_size``."""
        chunks = -(-math.prod(shape) // CHUNK)
        entries = chunks * self.kept(shape)
        return 4 * chunks + packed_size(entries, 12) + packed_size(entries, 2)

    def encode_body(self, values: Tensor) -> bytes:
        """As ``Codec.encode_body``."""
        if not values.numel():
            return b""
        chunks, kept = _chunks(values.reshape(-1)), self.kept(tuple(values.shape))
        refuse_non_finite(chunks)
        indices = chunks.abs().topk(kept, dim=1, sorted=False).indices.sort(dim=1).values
        chosen = chunks.gather(1, indices)
        scales, codes = _two_magnitudes(chosen)
        return raw(scales) + pack_twelve(indices.view(-1)) + pack(codes.view(-1), 2)

    def decode_body(self, body: memoryview, shape: tuple[int, ...]) -> Tensor:
        """As ``Codec.decode_body``."""
        count = math.prod(shape)
        chunks, kept = -(-count // CHUNK), self.kept(shape)
        entries, start = chunks * kept, 4 * chunks
        high, low = read_scales(body, torch.bfloat16, 0, 2 * chunks).view(2, chunks, 1)
        middle = start + packed_size(entries, 12)
        places = unpack_twelve(read(body, torch.uint8, start, middle - start), entries).view(chunks, kept)
        codes = unpack(read(body, torch.uint8, middle, packed_size(entries, 2)), 2, entries).view(chunks, kept)
        if kept > 1 and not bool((places[:, 1:] > places[:, :-1]).all()):
            raise CodecError("indices of a chunk do not rise: these bytes were not made by this codec")
        magnitudes = torch.where((codes & _HIGH) > 0, high, low)
        signed = torch.where((codes & _NEGATIVE) > 0, magnitudes.neg(), magnitudes)
        return torch.zeros(chunks, CHUNK).scatter_(1, places, signed).view(-1)[:count].view(shape)


def _two_magnitudes(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The two magnitudes ``[2, chunks]`` bfloat16 of kept values ``[chunks, kept]``, and the code of each value."""
    sizes = chosen.abs()
    above = sizes > sizes.mean(dim=1, keepdim=True)
    high = (sizes * above).sum(dim=1) / above.sum(dim=1).clamp_min(1)
    low = (sizes * ~above).sum(dim=1) / (~above).sum(dim=1).clamp_min(1)
    codes = above.to(torch.uint8) | ((chosen < 0).to(torch.uint8) << 1)
    return torch.stack((high, low)).to(torch.bfloat16), codes


def _chunks(flat: Tensor) -> Tensor:
    missing = -flat.numel() % CHUNK
    return (torch.nn.functional.pad(flat, (0, missing)) if missing else flat).view(-1, CHUNK)
