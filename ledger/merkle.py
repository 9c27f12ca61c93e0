"""The Merkle trees that the market program checks: lists of payees, and cumulative earnings.

The hashes are those of ``protocol.merkle`` (leaves, inner nodes and roots under prefixes 0, 1, 2; the shape of RFC 6962);
the ledger imports no other room, and needs beside them the *peaks* of a list that grows: the roots of its complete
subtrees, one for each bit of its length, from which longer lists follow while every earlier leaf stays where it is.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

HASH_BYTES = 32
_LEAF, _NODE, _ROOT = b"\x00", b"\x01", b"\x02"


@dataclass(frozen=True)
class Proof:
    """That a leaf stands at ``index`` of ``count``: the sibling hashes from the leaf upwards."""

    index: int
    count: int
    path: tuple[bytes, ...]


def earning(wallet: bytes, cumulative: int) -> bytes:
    """The leaf of one payee's earnings: its token account, 32 bytes, and what it shall have received in total."""
    return wallet + struct.pack("<Q", cumulative)


class Tree:
    """A tree that is hashed once and proves any of its leaves."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        self._levels, self._count = _levels(leaves), len(leaves)

    @property
    def root(self) -> bytes:
        """The 32 bytes that bind all leaves, their order and their number."""
        return root_of_peaks(self._count, self._levels[-1] if self._count else [])

    def prove(self, index: int) -> Proof:
        """The proof of one leaf. Raises IndexError where there is none at ``index``."""
        if not 0 <= index < self._count:
            raise IndexError(f"no leaf {index} in a tree of {self._count}")
        path, at = list[bytes](), index
        for level in self._levels[:-1]:
            if at ^ 1 < len(level):
                path.append(level[at ^ 1])
            at //= 2
        return Proof(index, self._count, tuple(path))


def root(leaves: Sequence[bytes]) -> bytes:
    """The root over the leaves."""
    return Tree(leaves).root


def prove(leaves: Sequence[bytes], index: int) -> Proof:
    """The proof of one leaf. Raises IndexError where there is none at ``index``."""
    return Tree(leaves).prove(index)


def leads_to(root_wanted: bytes, leaf: bytes, proof: Proof) -> bool:
    """Whether the proof shows the leaf under the root, as the program decides it."""
    if not 0 <= proof.index < proof.count:
        return False
    digest, at, width, path = hashlib.sha256(_LEAF + leaf).digest(), proof.index, proof.count, list(proof.path)
    while width > 1:
        if at ^ 1 < width:
            if not path:
                return False
            sibling = path.pop(0)
            digest = _node(sibling, digest) if at & 1 else _node(digest, sibling)
        at, width = at // 2, (width + 1) // 2
    return not path and root_of_peaks(proof.count, [digest]) == root_wanted


def peaks(leaves: Sequence[bytes]) -> list[bytes]:
    """Roots of the complete subtrees from the largest to the smallest."""
    found: list[bytes] = []
    start = 0
    for bit in reversed(range(len(leaves).bit_length())):
        if len(leaves) >> bit & 1:
            found.append(_levels(leaves[start : start + (1 << bit)])[-1][0])
            start += 1 << bit
    return found


def root_of_peaks(count: int, tops: Sequence[bytes]) -> bytes:
    """The root of a list of which only the peaks are known, largest first."""
    top = tops[-1] if tops else b""
    for peak in reversed(tops[:-1]):
        top = _node(peak, top)
    return hashlib.sha256(_ROOT + count.to_bytes(8, "big") + top).digest()


def _levels(leaves: Sequence[bytes]) -> list[list[bytes]]:
    level = [hashlib.sha256(_LEAF + leaf).digest() for leaf in leaves]
    levels = [level]
    while len(level) > 1:
        pairs = [_node(level[at], level[at + 1]) for at in range(0, len(level) - 1, 2)]
        level = pairs + level[len(pairs) * 2 :]
        levels.append(level)
    return levels


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(_NODE + left + right).digest()
