"""Leaves of a round that say otherwise than what their member committed to beside them: a lie that needs no running to be seen.

A leaf stands under the committed root, so nobody but the member can have written it. What the member committed to beside the
root, and what was agreed on in the round before, the coordinator knows. Where the two differ the leaf itself is the proof,
whoever shows it; so one auditor's finding is enough, be it the operator's own or a stranger's.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from protocol.audit import ProvenLeaf
from protocol.codec import encode
from protocol.ids import Digest
from protocol.merkle import MerkleProof, verify_proof


class CommittedRound(Protocol):
    """What of a member's round the coordinator knows: see ``ReplayStep``, which names it for auditors."""

    @property
    def root(self) -> Digest:
        """Merkle root of its leaves."""

    @property
    def leaves(self) -> int:
        """How many there are."""

    @property
    def pseudo_gradient(self) -> Digest:
        """What it committed to contribute."""

    @property
    def carried(self) -> Digest | None:
        """What it committed to carry into the next round."""

    @property
    def local(self) -> Digest | None:
        """What it had committed to carry into this one; None: nobody knows."""

    @property
    def anchor(self) -> Digest | None:
        """The parameters that its round was to begin with; None: nobody knows."""


def stands(leaf: ProvenLeaf, committed: CommittedRound) -> bool:
    """Whether a leaf stands at its place under the root."""
    proof = MerkleProof(leaf.place, committed.leaves, leaf.path)
    return verify_proof(bytes.fromhex(committed.root), encode(leaf.leaf), proof)


def contradiction(leaves: Sequence[ProvenLeaf], committed: CommittedRound) -> str:
    """How leaves of the round contradict what was committed to or agreed on, in words; empty where they do not.

    Args:
        leaves: whose ``stands`` was looked at. Only the round's last one binds the contribution.
    """
    for shown in leaves:
        leaf = shown.leaf
        if shown.place == committed.leaves - 1:
            found = _of_the_last(shown, committed)
            if found:
                return found
        if committed.local is not None and leaf.local != committed.local:
            return "what the leaf names as carried into the round is not what the round before committed to"
        if committed.anchor is not None and leaf.anchor != committed.anchor:
            return f"the leaf names the anchor {leaf.anchor[:16]}, agreed on was {committed.anchor[:16]}"
    return _among_each_other(leaves)


def _of_the_last(shown: ProvenLeaf, committed: CommittedRound) -> str:
    bound = shown.leaf.pseudo_gradient
    if bound != committed.pseudo_gradient:
        name = "none" if bound is None else bound[:16]
        return (
            f"the member committed to the pseudo-gradient {committed.pseudo_gradient[:16]}, its last leaf binds {name}"
        )
    if shown.leaf.carried != committed.carried:
        return "what the member committed to carry into the next round is not what its last leaf binds"
    return ""


def _among_each_other(leaves: Sequence[ProvenLeaf]) -> str:
    for one, other in pairwise(leaves):
        if one.leaf.local != other.leaf.local:
            return "two leaves of the round name different things that were carried into it"
        if one.leaf.anchor != other.leaf.anchor:
            return f"one leaf names the anchor {one.leaf.anchor[:16]}, another {other.leaf.anchor[:16]}"
    return ""
