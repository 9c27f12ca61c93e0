"""A Merkle tree over SHA-256 whose root binds every leaf, its place and how many there are.

Leaves, inner nodes and the root are hashed under different prefixes, so that an inner node can never pass for a leaf
(second preimage) and a tree of another size has another root. The shape is that of RFC 6962: an odd node moves up unpaired.
"""

import hashlib
import hmac
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from common.errors import MerkleError

HASH_BYTES = 32
MAX_LEAVES = 2**32  # A step a second for a century; keeps every path at 32 hashes.

_LEAF, _NODE, _ROOT = b"\x00", b"\x01", b"\x02"


@dataclass(frozen=True)
class MerkleProof:
    """What shows that a leaf stands at ``index`` in a tree of ``count`` leaves.

    Attributes:
        index: place of the leaf, from 0.
        count: leaves of the whole tree.
        path: sibling hashes from the leaf upwards, 32 bytes each.
    """

    index: int
    count: int
    path: tuple[bytes, ...]


class MerkleTree:
    """All hashes of a tree, kept so that any leaf can be proven."""

    def __init__(self, leaves: Iterable[bytes]) -> None:
        """Hash the leaves, in order; none at all is a tree too.

        Raises:
            MerkleError: more than ``MAX_LEAVES``.
        """
        level = [_leaf(leaf) for leaf in leaves]
        if len(level) > MAX_LEAVES:
            raise MerkleError(f"{len(level)} leaves are too many: at most {MAX_LEAVES}")
        self._levels = [level]
        while len(level) > 1:
            pairs = [node_hash(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
            level = pairs + level[len(pairs) * 2 :]
            self._levels.append(level)

    def __len__(self) -> int:
        return len(self._levels[0])

    @property
    def root(self) -> bytes:
        """32 bytes that bind all leaves, their order and their number."""
        return root_hash(len(self), self.top)

    @property
    def top(self) -> bytes:
        """The hash over all leaves that does not bind their number; of none, it is empty."""
        return self._levels[-1][0] if self._levels[-1] else b""

    def proof(self, index: int) -> MerkleProof:
        """Return the proof of the leaf at ``index``.

        Raises:
            MerkleError: there is no such leaf.
        """
        if not 0 <= index < len(self):
            raise MerkleError(f"no leaf {index} in a tree of {len(self)}")
        path: list[bytes] = []
        at = index
        for level in self._levels[:-1]:
            if at ^ 1 < len(level):
                path.append(level[at ^ 1])
            at //= 2
        return MerkleProof(index, len(self), tuple(path))


def merkle_root(leaves: Iterable[bytes]) -> bytes:
    """Return the 32-byte root over ``leaves``; the empty tree has one too.

    Raises:
        MerkleError: more than ``MAX_LEAVES``.
    """
    return MerkleTree(leaves).root


def replaced(leaf: bytes, proof: MerkleProof, others: Sequence[MerkleProof]) -> tuple[bytes, tuple[MerkleProof, ...]]:
    """The root with another ``leaf`` at the place of ``proof``, and proofs of other leaves of the same tree under it.

    ``proof`` and ``others`` must be proofs of one tree; a proof of the same place is returned as it is.
    """
    at = [_leaf(leaf)]  # The hash at the leaf's place, level by level.
    for level, sibling in _siblings(proof):
        at += [at[-1]] * (level - len(at) + 1)
        at.append(node_hash(sibling, at[-1]) if proof.index >> level & 1 else node_hash(at[-1], sibling))
    changed = []
    for other in others:
        path = list(other.path)
        for number, (level, _) in enumerate(_siblings(other)):
            if other.index >> level ^ 1 == proof.index >> level and other.index != proof.index:
                path[number] = at[level] if level < len(at) else at[-1]
        changed.append(MerkleProof(other.index, other.count, tuple(path)))
    return root_hash(proof.count, at[-1]), tuple(changed)


def _siblings(proof: MerkleProof) -> Iterator[tuple[int, bytes]]:
    """Levels at which a proof has a sibling, and the sibling: an odd node moves up unpaired."""
    width, level, path = proof.count, 0, iter(proof.path)
    while width > 1:
        if (proof.index >> level) ^ 1 < width:
            yield level, next(path)
        width, level = (width + 1) // 2, level + 1


def verify_proof(root: bytes, leaf: bytes, proof: MerkleProof) -> bool:
    """Whether ``leaf`` stands at ``proof.index`` of the tree of ``proof.count`` leaves under ``root``.

    Never raises on hostile proofs: an impossible index, count or path is simply not proven.
    """
    index, count = proof.index, proof.count
    if not 0 <= index < count <= MAX_LEAVES or any(len(step) != HASH_BYTES for step in proof.path):
        return False
    path = iter(proof.path)
    digest = _leaf(leaf)
    width = count
    while width > 1:
        if index ^ 1 < width:
            sibling = next(path, None)
            if sibling is None:
                return False
            digest = node_hash(sibling, digest) if index & 1 else node_hash(digest, sibling)
        index, width = index // 2, (width + 1) // 2
    return next(path, None) is None and hmac.compare_digest(root_hash(count, digest), root)


def _leaf(data: bytes) -> bytes:
    return hashlib.sha256(_LEAF + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash over two neighbouring subtrees."""
    return hashlib.sha256(_NODE + left + right).digest()


def root_hash(count: int, top: bytes) -> bytes:
    """The root of ``count`` leaves under the hash ``top``."""
    return hashlib.sha256(_ROOT + count.to_bytes(8, "big") + top).digest()
