"""The strongest frequencies of every tile of 64 x 64 of each matrix, as a sign and one magnitude for a tile.

The codec's tensors are *coefficients*: the discrete cosine transform of each tile, tile after tile, in the length of the flat
vector that ``Tiled`` says how to cut. ``transform`` and ``restore`` go there and back.

::

    magnitude bfloat16 x tiles | indices, 12 bits each | signs, 1 bit each

Receivers average coefficients and then restore, so ``restore`` must give the same bits everywhere: it uses only single
multiplications and additions in a fixed order, and cosines rounded to 20 bits, which no library's cosine can change.

Source: DeMo, arXiv 2411.19870, algorithm 1; values of one bit as in DisTrO (``quantize_1bit``).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from trainer.codecs.bits import pack, pack_twelve, packed_size, unpack, unpack_twelve
from trainer.codecs.framing import raw, read, read_scales, refuse_non_finite
from trainer.errors import CodecError

SIDE = 64  # A tile's indices then fit 12 bits.
_COSINE_BITS = 20


@dataclass(frozen=True)
class Tiled:
    """One parameter in a flat vector and its tiles: ``down x across`` tiles of ``height x width``.

    ``height`` and ``width`` are the largest divisors of the parameter's sides up to 64, so that no tile is padded.
    """

    start: int
    down: int
    height: int
    across: int
    width: int

    @property
    def tiles(self) -> int:
        """How many there are."""
        return self.down * self.across

    @property
    def area(self) -> int:
        """Values of one tile."""
        return self.height * self.width

    def cut(self, flat: Tensor) -> Tensor:
        """The parameter's part of a flat vector as ``[tiles, height, width]``."""
        span = flat[self.start : self.start + self.tiles * self.area]
        tiles = span.view(self.down, self.height, self.across, self.width).permute(0, 2, 1, 3)
        return tiles.reshape(self.tiles, self.height, self.width)

    def place(self, flat: Tensor, tiles: Tensor) -> None:
        """Put ``[tiles, height, width]`` back into a flat vector."""
        rows = tiles.view(self.down, self.across, self.height, self.width).permute(0, 2, 1, 3).reshape(-1)
        flat[self.start : self.start + rows.numel()] = rows


def tiling(start: int, shape: Sequence[int]) -> Tiled:
    """How a parameter of this shape at this place is cut; all sides but the last count as one."""
    rows, columns = math.prod(shape[:-1]), shape[-1] if shape else 1
    height, width = _divisor(rows), _divisor(columns)
    return Tiled(start, rows // height, height, columns // width, width)


def transform(flat: Tensor, layout: Sequence[Tiled]) -> Tensor:
    """Coefficients of a flat vector; what lies between the parameters becomes zero. For the sender alone: bits may differ."""
    result = torch.zeros_like(flat)
    for part in layout:
        tiles = part.cut(flat)
        changed = _cosines(part.height) @ tiles @ _cosines(part.width).T
        result[part.start : part.start + changed.numel()] = changed.reshape(-1)
    return result


def restore(coefficients: Tensor, layout: Sequence[Tiled]) -> Tensor:
    """The flat vector of coefficients, the same bits on every machine."""
    result = torch.zeros_like(coefficients)
    for part in layout:
        span = coefficients[part.start : part.start + part.tiles * part.area]
        tiles = span.view(part.tiles, part.height, part.width)
        rows, columns = _cosines(part.height), _cosines(part.width)
        half = torch.zeros_like(tiles)
        for frequency in range(part.height):  # A matrix product may add in any order, and fuse.
            half += tiles[:, frequency : frequency + 1, :] * rows[frequency].view(1, -1, 1)
        whole = torch.zeros_like(tiles)
        for frequency in range(part.width):
            whole += half[:, :, frequency : frequency + 1] * columns[frequency].view(1, 1, -1)
        part.place(result, whole)
    return result


@dataclass(frozen=True)
class Frequencies:
    """The ``keep`` strongest coefficients of each tile, as signs under one magnitude; the others become zero."""

    layout: tuple[Tiled, ...]
    keep: int
    name: str = "dct-topk"
    code: int = 18
    exact: bool = True

    def body_size(self, shape: tuple[int, ...]) -> int:
        """As ``Codec.body_size``."""
        entries = self._entries()
        return 2 * self._tiles() + packed_size(entries, 12) + packed_size(entries, 1)

    def encode_body(self, values: Tensor) -> bytes:
        """As ``Codec.encode_body``."""
        if not values.numel():
            return b""
        refuse_non_finite(values)
        scales, places, signs = [], [], []
        for part, kept in self._parts():
            tiles = values[part.start : part.start + part.tiles * part.area].view(part.tiles, part.area)
            indices = tiles.abs().topk(kept, dim=1, sorted=False).indices.sort(dim=1).values
            chosen = tiles.gather(1, indices)
            scales.append(chosen.abs().mean(dim=1).to(torch.bfloat16))
            places.append(indices.view(-1))
            signs.append((chosen < 0).to(torch.uint8).view(-1))
        return raw(torch.cat(scales)) + pack_twelve(torch.cat(places)) + pack(torch.cat(signs), 1)

    def decode_body(self, body: memoryview, shape: tuple[int, ...]) -> Tensor:
        """As ``Codec.decode_body``."""
        entries, start = self._entries(), 2 * self._tiles()
        middle = start + packed_size(entries, 12)
        scales = read_scales(body, torch.bfloat16, 0, self._tiles())
        places = unpack_twelve(read(body, torch.uint8, start, middle - start), entries)
        signs = unpack(read(body, torch.uint8, middle, packed_size(entries, 1)), 1, entries)
        result, tile, entry = torch.zeros(math.prod(shape)), 0, 0
        for part, kept in self._parts():
            count = part.tiles * kept
            where = places[entry : entry + count].view(part.tiles, kept)
            if bool((where >= part.area).any()) or (kept > 1 and not bool((where[:, 1:] > where[:, :-1]).all())):
                raise CodecError("indices of a tile do not rise within it: these bytes were not made by this codec")
            magnitudes = scales[tile : tile + part.tiles].view(-1, 1)
            signed = torch.where(signs[entry : entry + count].view(part.tiles, kept) > 0, -magnitudes, magnitudes)
            span = result[part.start : part.start + part.tiles * part.area].view(part.tiles, part.area)
            span.scatter_(1, where, signed)
            tile, entry = tile + part.tiles, entry + count
        return result.view(shape)

    def _parts(self) -> Iterator[tuple[Tiled, int]]:
        return ((part, min(self.keep, part.area)) for part in self.layout)

    def _tiles(self) -> int:
        return sum(part.tiles for part in self.layout)

    def _entries(self) -> int:
        return sum(part.tiles * kept for part, kept in self._parts())


def _divisor(size: int) -> int:
    return max(divisor for divisor in range(1, SIDE + 1) if size % divisor == 0)


@cache
def _cosines(size: int) -> Tensor:
    """Orthonormal DCT-II ``[frequency, place]``, rounded to multiples of 2**-20."""
    rows = []
    for frequency in range(size):
        scale = math.sqrt((1 if frequency == 0 else 2) / size)
        angles = (math.pi * (2 * place + 1) * frequency / (2 * size) for place in range(size))
        rows.append([round(scale * math.cos(angle) * 2**_COSINE_BITS) / 2**_COSINE_BITS for angle in angles])
    return torch.tensor(rows, dtype=torch.float32)
