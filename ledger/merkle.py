"""What the market program knows of a list of payees and of earnings, beside the trees of ``protocol.merkle``.

A list of payees grows. The program keeps its *peaks*: the roots of its complete subtrees, one for each bit of its length, from
which longer lists follow while every earlier leaf stays where it is.
"""

import struct
from collections.abc import Sequence

from protocol.merkle import MerkleTree, node_hash, root_hash


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


def root_of_peaks(count: int, tops: Sequence[bytes]) -> bytes:
    """The root of a list of which only the peaks are known, largest first."""
    top = tops[-1] if tops else b""
    for peak in reversed(tops[:-1]):
        top = node_hash(peak, top)
    return root_hash(count, top)
