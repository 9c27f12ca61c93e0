"""Tensors as bytes between peers.

``encode`` writes a header (codec and shape) and the values; ``decode`` takes only the codec and shape that the caller
expects, so a peer's bytes never decide how much memory is used. Both refuse NaN and Inf. Decoding takes only operations that
every processor rounds alike, so everybody reads the same bits.

=================  ================================================================================  ==============
codec              what it is for                                                                    bits a value
=================  ================================================================================  ==============
``fp32``           validation, tests                                                                 32
``fp16``           half the bytes, where nothing may be lost                                         16
``int8-token``     activations and their gradients: one scale for each last axis                     8 + 32/width
``int8-block``     pseudo-gradients in blocks of 64: 0.02 % of validation loss                       8.5
``int4-block``     pseudo-gradients in blocks of 64: 0.01-0.3 % of validation loss                   4.25
``int4-gradient``  gradients in blocks of 256 with equal steps                                       4.06
``int4-squares``   gradients at every step, blocks of 256, levels that are squares                   4.06
``int2-block``     pseudo-gradients in blocks of 64, with error feedback                             2.25
``coarse``         pseudo-gradients with few levels and entropy coding, with error feedback          about 1.2
``coarser``        the same with steps half as wide again                                            about 0.6
``int4-token``     activations and their gradients: equal steps about the mean, for an envelope       4.5 at most
=================  ================================================================================  ==============

Codecs with parameters (``trainer.codecs.sparse``, ``frequency``, ``varint``) are objects that are passed instead of a name. A new
named codec is a file with a class that has the members of ``framing.Codec``, listed as ``NAMED``.
"""

from torch import Tensor

from trainer.codecs.coarse import Coarse
from trainer.codecs.framing import MAX_DIMENSIONS, Codec, Parts, body_of, frame, framed_size, head_of, unframe
from trainer.codecs.registry import BLOCK, CODECS, GRADIENT_BLOCK, CodecName
from trainer.codecs.watch import WATCHER

__all__ = [
    "BLOCK",
    "CODECS",
    "GRADIENT_BLOCK",
    "MAX_DIMENSIONS",
    "Codec",
    "CodecName",
    "Parts",
    "decode",
    "decode_parts",
    "encode",
    "encode_parts",
    "encoded_size",
]


def encode(tensor: Tensor, codec: CodecName | Codec) -> bytes:
    """Bytes of a float32 tensor of at most ``MAX_DIMENSIONS`` dimensions.

    Raises:
        NonFiniteError: the tensor holds NaN or Inf.
    """
    chosen, watcher = _codec(codec), WATCHER.get()
    if watcher is None:
        return frame(tensor, chosen)
    return watcher.encoding(tensor, chosen, lambda: frame(tensor, chosen))


def encoded_size(shape: tuple[int, ...], codec: CodecName | Codec) -> int:
    """Length of ``encode``'s answer for a tensor of this shape, or the longest possible one where lengths vary."""
    return framed_size(shape, _codec(codec))


def decode(data: bytes | bytearray | memoryview, shape: tuple[int, ...], codec: CodecName | Codec) -> Tensor:
    """The float32 tensor of this shape and codec.

    Raises:
        CodecError: the bytes are something else: other length, codec, shape, or not an encoded tensor at all.
        NonFiniteError: values or scales that are NaN or infinite.
    """
    chosen, watcher = _codec(codec), WATCHER.get()
    if watcher is None:
        return unframe(data, shape, chosen)
    return watcher.decoding(bytes(data), shape, chosen, lambda: unframe(data, shape, chosen))


def encode_parts(values: Parts, size: int, codec: CodecName | Codec) -> bytes:
    """``encode`` of a flat vector of ``size`` that is there in parts; only ``coarse`` ones never make all of it.

    Raises:
        NonFiniteError: as ``encode``.
    """
    chosen = _codec(codec)
    if isinstance(chosen, Coarse) and WATCHER.get() is None:
        return head_of((size,), chosen) + chosen.encode_parts(values, size)
    return encode(values(slice(0, size)), codec)


def decode_parts(data: bytes | bytearray | memoryview, size: int, codec: CodecName | Codec) -> Parts:
    """``decode`` of a flat vector of ``size``, of which parts are made; of ``coarse`` ones never all. Raises as ``decode``."""
    chosen = _codec(codec)
    if isinstance(chosen, Coarse) and size and WATCHER.get() is None:
        return chosen.levels(body_of(data, (size,), chosen), size)
    return decode(data, (size,), codec).__getitem__


def _codec(codec: CodecName | Codec) -> Codec:
    return CODECS[codec] if isinstance(codec, str) else codec
