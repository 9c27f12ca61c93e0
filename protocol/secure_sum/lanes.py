"""Vectors of uint32, little-endian, added modulo 2^32 as whole numbers of many lanes: who masks one needs no NumPy for it.

Every other value of a part lies in a lane of 64 bits of one long integer, so that thousands are added before a lane is full.
"""

from collections.abc import Iterable
from functools import lru_cache

PART = 1 << 16  # Bytes at a time: what is made of them stays in a processor's cache.


def summed(part: bytes | memoryview, added: Iterable[bytes] = (), taken: Iterable[bytes] = ()) -> bytes:
    """A part with others added to it, and others taken off; all have as many bytes, of whole values, ``PART`` at most."""
    length = len(part)
    low, carry = _lanes(length)
    ours = int.from_bytes(part, "little")
    even, odd = ours & low, ours >> 32 & low
    for one in added:
        other = int.from_bytes(one, "little")
        even += other & low
        odd += other >> 32 & low
    for one in taken:
        other = int.from_bytes(one, "little")
        even += carry - (other & low)
        odd += carry - (other >> 32 & low)
    return (even & low | (odd & low) << 32).to_bytes(length + 4, "little")[:length]


@lru_cache(maxsize=8)
def _lanes(length: int) -> tuple[int, int]:
    """The lower half of each lane, and the bit above it."""
    count = (length + 7) // 8
    low = int.from_bytes(b"\xff\xff\xff\xff\0\0\0\0" * count, "little")
    return low, int.from_bytes(b"\0\0\0\0\x01\0\0\0" * count, "little")
