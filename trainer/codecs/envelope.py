"""zstd around encoded tensors, where it makes them smaller: 4-bit values shrink by another 8 to 50 %.

An envelope is no part of a commitment: digests are those of what is inside, so releases of zstd need not agree on how they
compress. The receiver knows how long the inside may be, and unpacks no more.

Source: RFC 8878.
"""

from collections.abc import Callable, Iterable

import zstandard

from trainer.errors import CodecError

LEVEL = 3  # Beyond it 4-bit values shrink by less than 1 % more, for many times the work.
# Shorter ones turn up by chance among quantised values and cost a tenth more than their symbols do.
_SHORTEST_MATCH = 6
_PARAMETERS = zstandard.ZstdCompressionParameters.from_level(LEVEL, min_match=_SHORTEST_MATCH, write_content_size=True)
_MAGIC = b"\x28\xb5\x2f\xfd"
_SHORTEST = 9  # Magic, frame header and block header: a number of eight bytes may begin like a frame and is none.


def wrap(data: bytes | memoryview) -> bytes:
    """``data``, or its zstd frame where that is shorter."""
    packed = zstandard.ZstdCompressor(compression_params=_PARAMETERS).compress(data)
    return packed if len(packed) < len(data) else bytes(data)


def wrap_parts(parts: Callable[[], Iterable[memoryview]], size: int) -> bytearray:
    """The same of data of ``size`` that comes in parts, twice where no frame is shorter; it may be another frame of the same."""
    packer = zstandard.ZstdCompressor(compression_params=_PARAMETERS).compressobj(size=size)
    packed = bytearray()
    for part in parts():
        packed += packer.compress(part)
    packed += packer.flush()
    if len(packed) < size:
        return packed
    packed.clear()
    for part in parts():
        packed += part
    return packed


def unwrap(data: bytes, limit: int) -> bytes:
    """What was wrapped; anything that is no zstd frame is returned as it is.

    Raises:
        CodecError: more than ``limit`` bytes, or a broken frame.
    """
    if len(data) < _SHORTEST or not data.startswith(_MAGIC):
        return data
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= limit:
            raise CodecError(f"a zstd frame of {size:,} bytes where at most {limit:,} are due")
        # All of it in one frame: what follows a frame would make a second wrapping of the same inside.
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=limit, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CodecError(f"a broken zstd frame: {error}") from error
