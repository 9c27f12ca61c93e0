"""What every encoded tensor has in common: the header, and what a codec has to provide.

::

    magic b"CT" | version u8 | codec u8 | dimensions u8 | 3 zero bytes | dimensions x u64 | body of the codec

The receiver states codec and shape; the header only confirms them. So a peer's bytes never decide how much memory is used.
"""

import math
import struct
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from trainer.errors import CodecError, NonFiniteError
from trainer.transfer import HostCopy

MAX_DIMENSIONS = 4
AT_ONCE = 1 << 20  # Values of which codecs make others for a moment.
Parts = Callable[[slice], Tensor]
"""A flat float32 vector of which parts are made when they are asked for."""
_MAGIC, _VERSION = b"CT", 1
_HEAD = struct.Struct("<2sBBB3x")


class Codec(Protocol):
    """A pair of pure functions between float32 tensors and the bodies of encoded tensors.

    Attributes:
        name: in error messages.
        code: one byte of the header; no two codecs share one.
        exact: every body for a shape is ``body_size`` bytes long; otherwise that is the longest that is accepted.
    """

    @property
    def name(self) -> str:
        """As above."""

    @property
    def code(self) -> int:
        """As above."""

    @property
    def exact(self) -> bool:
        """As above."""

    def body_size(self, shape: tuple[int, ...]) -> int:
        """Bytes of the body for a tensor of this shape."""

    def encode_body(self, values: Tensor) -> bytes:
        """The body of a contiguous float32 tensor on the CPU; raises ``NonFiniteError``."""

    def decode_body(self, body: memoryview, shape: tuple[int, ...]) -> Tensor:
        """The tensor of a body of fitting length; raises ``CodecError``, or ``NonFiniteError`` for NaN and infinite values."""


def frame(tensor: Tensor, codec: Codec) -> bytes:
    """Header and body of a tensor; raises ``NonFiniteError`` where it holds NaN or Inf."""
    values = HostCopy(tensor, torch.float32).arrived().contiguous()
    return head_of(tuple(values.shape), codec) + codec.encode_body(values)


def head_of(shape: tuple[int, ...], codec: Codec) -> bytes:
    """What stands in front of the body of a tensor of this shape."""
    return _HEAD.pack(_MAGIC, _VERSION, codec.code, len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)


def framed_size(shape: tuple[int, ...], codec: Codec) -> int:
    """Length of ``frame``'s answer for a tensor of this shape; the longest one where the codec is not exact."""
    return _HEAD.size + 8 * len(shape) + (codec.body_size(shape) if math.prod(shape) else 0)


def unframe(data: bytes | bytearray | memoryview, shape: tuple[int, ...], codec: Codec) -> Tensor:
    """The tensor of this shape and codec; raises ``CodecError`` or ``NonFiniteError`` for anything else."""
    body = body_of(data, shape, codec)
    if math.prod(shape) == 0:
        return torch.zeros(shape)
    values = codec.decode_body(body, tuple(shape))
    refuse_non_finite(values)
    return values


def body_of(data: bytes | bytearray | memoryview, shape: tuple[int, ...], codec: Codec) -> memoryview:
    """What follows behind the head of a tensor of this shape and codec; raises ``CodecError`` where it is none."""
    expected, least = framed_size(shape, codec), _HEAD.size + 8 * len(shape)
    if len(data) != expected if codec.exact else not least <= len(data) <= expected:
        most = "" if codec.exact else "at most "
        raise CodecError(f"{len(data):,} bytes where a {codec.name} tensor of shape {shape} takes {most}{expected:,}")
    magic, version, code, dimensions = _HEAD.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        raise CodecError(f"no encoded tensor: it begins with {bytes(data[:3])!r}, not {_MAGIC + bytes([_VERSION])!r}")
    if code != codec.code or dimensions != len(shape):
        raise CodecError(f"codec {code} with {dimensions} dimensions where {codec.name} of shape {shape} is expected")
    stated = struct.unpack_from(f"<{dimensions}Q", data, _HEAD.size)
    if stated != tuple(shape):
        raise CodecError(f"a tensor of shape {stated} where {tuple(shape)} is expected")
    # torch wants memory that it may write to; codecs copy the values out of it.
    return memoryview(bytearray(data))[least:]


def refuse_non_finite(values: Tensor) -> None:
    """Raise ``NonFiniteError`` where there is NaN or Inf."""
    if not all(bool(torch.isfinite(part).all()) for part in torch.split(values.reshape(-1), AT_ONCE)):
        raise NonFiniteError(
            f"{int((~torch.isfinite(values)).sum()):,} of {values.numel():,} values are NaN or infinite"
        )


def raw(values: Tensor) -> bytes:
    """The little-endian bytes of a tensor; bfloat16 as its upper halves of float32."""
    if values.dtype == torch.bfloat16:
        values = values.contiguous().view(torch.int16)
    return values.contiguous().numpy().tobytes()


def read(body: memoryview, dtype: torch.dtype, start: int, count: int) -> Tensor:
    """``count`` values of ``dtype`` at byte ``start`` of a body, copied."""
    return torch.frombuffer(body, dtype=dtype, offset=start, count=count).clone()


def read_scales(body: memoryview, dtype: torch.dtype, start: int, count: int) -> Tensor:
    """Scales as float32; raises ``NonFiniteError``, or ``CodecError`` for a negative one, which no codec here writes."""
    scales = read(body, dtype, start, count).to(torch.float32)
    refuse_non_finite(scales)
    if bool((scales < 0).any()):
        raise CodecError("a negative scale: these bytes were not made by this codec")
    return scales
