"""What the market program knows of a list of payees and of earnings, beside the trees of ``protocol.merkle``.

A list of payees grows. The program keeps its *peaks*: the roots of its complete subtrees, one for each bit of its length, from
which longer lists follow while every earlier leaf stays where it is.
"""

import struct
from collections.abc import Sequence

from protocol.merkle import MerkleTree


def earning(wallet: bytes, cumulative: int) -> bytes:
    """The leaf of one payee's earnings: its token account, 32 bytes, and what it shall have received in total."""
    return wallet + struct.pack("<Q", cumulative)


def peaks(leaves: Sequence[bytes]) -> list[bytes]:
    """Roots of the complete subtrees from the largest to the smallest."""
    found: list[bytes] = []
    start = 0
    for bit in reversed(range(len(leaves).bit_length())):
        if len(leaves) >> bit & 1:
            found.append(MerkleTree(leaves[start : start + (1 << bit)]).top)
            start += 1 << bit
    return found
