"""The largest values of a whole tensor: distances between their places as variable-length integers, values in float16.

::

    distances, 7 bits a byte, lowest first, the high bit says that more follows | values float16

The number of values is the codec's; the length varies with the distances, within a bound that the receiver knows.

Source: Deep Gradient Compression, arXiv 1712.01887, section 3.1; base-128 integers as in Protocol Buffers.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.codecs.framing import raw, read, refuse_non_finite
from trainer.errors import CodecError

_MORE = 0x80


@dataclass(frozen=True)
class GlobalTopK:
    """The ``density`` largest values of the flattened tensor; the others become zero."""

    density: float
    name: str = "topk-varint"
    code: int = 17
    exact: bool = False

    def kept(self, shape: tuple[int, ...]) -> int:
        """How many values are kept."""
        count = math.prod(shape)
        return min(count, max(1, round(count * self.density)))

    def body_size(self, shape: tuple[int, ...]) -> int:
        """As ``Codec.body_size``: the longest body. Distances sum to less than the tensor's size, so few can be long."""
        kept, count = self.kept(shape), math.prod(shape)
        total, longer = 3 * kept, 128  # A distance of one byte at least, and its float16.
        while longer < count:  # One byte more for each distance of 128, 16384, ... at least.
            total += min(kept, count // longer)
            longer <<= 7
        return total

    def encode_body(self, values: Tensor) -> bytes:
        """As ``Codec.encode_body``."""
        if not values.numel():
            return b""
        flat = values.reshape(-1)
        refuse_non_finite(flat)
        places = flat.abs().topk(self.kept(tuple(values.shape)), sorted=False).indices.sort().values
        chosen = flat[places].to(torch.float16)
        refuse_non_finite(chosen)
        distances = np.diff(places.numpy(), prepend=-1) - 1
        return _write(distances) + raw(chosen)

    def decode_body(self, body: memoryview, shape: tuple[int, ...]) -> Tensor:
        """As ``Codec.decode_body``."""
        kept, count = self.kept(shape), math.prod(shape)
        middle = len(body) - 2 * kept
        if middle < kept:
            raise CodecError(f"{len(body):,} bytes hold fewer than {kept:,} values")
        places = np.cumsum(_read(np.frombuffer(body[:middle], dtype=np.uint8), kept) + 1) - 1
        if int(places[-1]) >= count:
            raise CodecError(f"a value at place {int(places[-1]):,} of a tensor of {count:,}")
        # The values follow at any byte: copy them to where float16 may lie.
        chosen = read(memoryview(bytearray(body[middle:])), torch.float16, 0, kept).to(torch.float32)
        flat = torch.zeros(count)
        flat[torch.from_numpy(places)] = chosen
        return flat.view(shape)


def _write(numbers: NDArray[np.int64]) -> bytes:
    """Non-negative numbers as base-128 integers."""
    lengths = np.ones(len(numbers), dtype=np.int64)
    rest = numbers >> 7
    while rest.any():
        lengths += rest > 0
        rest >>= 7
    ends = np.cumsum(lengths)
    data = np.zeros(int(ends[-1]), dtype=np.uint8)
    for place in range(int(lengths.max())):
        has = lengths > place
        digits = (numbers[has] >> (7 * place)) & 0x7F
        more = np.where(lengths[has] > place + 1, _MORE, 0)
        data[(ends - lengths)[has] + place] = digits | more
    return data.tobytes()


def _read(data: NDArray[np.uint8], count: int) -> NDArray[np.int64]:
    """Exactly ``count`` base-128 integers below 2**42 that fill ``data``, each in as few bytes as it takes."""
    final = (data & _MORE) == 0
    ends = np.flatnonzero(final)
    if len(ends) != count or not bool(final[-1]):
        raise CodecError(f"{len(ends):,} distances where {count:,} are due")
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    if int(lengths.max()) > 6 or bool((data[ends[lengths > 1]] == 0).any()):
        raise CodecError("a distance takes more bytes than it needs, or more than six")
    numbers = np.zeros(count, dtype=np.int64)
    for place in range(int(lengths.max())):
        has = lengths > place
        numbers[has] |= (data[starts[has] + place].astype(np.int64) & 0x7F) << (7 * place)
    return numbers
