"""The Merkle tree binds leaves, places and count."""

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import MerkleError
from protocol.merkle import MerkleProof, MerkleTree, merkle_root, replaced, verify_proof

LEAVES = st.lists(st.binary(max_size=12), min_size=1, max_size=40)


@given(LEAVES)
def test_every_leaf_can_be_proven_in_its_place(leaves: list[bytes]) -> None:
    tree = MerkleTree(leaves)
    for index, leaf in enumerate(leaves):
        assert verify_proof(tree.root, leaf, tree.proof(index))


@given(st.lists(st.binary(max_size=12), min_size=1, max_size=40, unique=True), st.data())
def test_no_leaf_can_be_proven_elsewhere_or_changed(leaves: list[bytes], data: st.DataObject) -> None:
    tree = MerkleTree(leaves)
    index = data.draw(st.integers(0, len(leaves) - 1))
    other = data.draw(st.integers(0, len(leaves) - 1))
    proof = tree.proof(index)
    assert verify_proof(tree.root, leaves[other], replace(proof, index=other)) == (other == index)
    assert not verify_proof(tree.root, leaves[index] + b"!", proof)


@given(LEAVES, st.integers(-2, 3))
def test_a_proof_with_another_count_is_refused(leaves: list[bytes], difference: int) -> None:
    tree = MerkleTree(leaves)
    proof = tree.proof(0)
    assert verify_proof(tree.root, leaves[0], replace(proof, count=len(leaves) + difference)) == (difference == 0)


@given(LEAVES, LEAVES)
def test_different_lists_have_different_roots(left: list[bytes], right: list[bytes]) -> None:
    assert (merkle_root(left) == merkle_root(right)) == (left == right)


def test_an_inner_node_cannot_pass_for_a_leaf() -> None:
    """The second preimage of trees that hash leaves and nodes alike."""
    leaves = [b"a", b"b", b"c", b"d"]
    tree = MerkleTree(leaves)
    left, right = (
        b"".join(hashlib.sha256(b"\x00" + leaf).digest() for leaf in pair) for pair in (leaves[:2], leaves[2:])
    )
    assert merkle_root([left, right]) != tree.root
    forged = MerkleProof(0, 2, (tree.proof(0).path[1],))
    assert not verify_proof(tree.root, left, forged)
    assert not verify_proof(tree.root, left, replace(forged, count=4))


def test_duplicating_the_last_leaf_changes_the_root() -> None:
    """The weakness of trees that pair an odd node with itself."""
    assert merkle_root([b"a", b"b", b"c"]) != merkle_root([b"a", b"b", b"c", b"c"])


def test_the_empty_tree_has_a_root_and_no_proofs() -> None:
    assert merkle_root([]) not in (merkle_root([b""]), bytes(32))
    with pytest.raises(MerkleError, match="no leaf 0"):
        MerkleTree([]).proof(0)


def test_the_root_stays_what_it_was() -> None:
    """Roots are kept on the ledger: a change here would make old commitments worthless."""
    assert merkle_root([b"a", b"b", b"c"]).hex() == _by_hand()


def _by_hand() -> str:
    def sha(data: bytes) -> bytes:
        return hashlib.sha256(data).digest()

    a, b, c = (sha(b"\x00" + leaf) for leaf in (b"a", b"b", b"c"))
    return sha(b"\x02" + (3).to_bytes(8, "big") + sha(b"\x01" + sha(b"\x01" + a + b) + c)).hex()


@pytest.mark.parametrize(
    "proof",
    [
        MerkleProof(-1, 3, ()),
        MerkleProof(3, 3, ()),
        MerkleProof(0, 0, ()),
        MerkleProof(0, 2**33, (bytes(32),) * 33),
        MerkleProof(0, 3, (b"short", bytes(32))),
        MerkleProof(0, 3, (bytes(32),) * 1000),
        MerkleProof(0, 3, ()),
    ],
)
def test_a_hostile_proof_is_not_proven(proof: MerkleProof) -> None:
    assert not verify_proof(merkle_root([b"a", b"b", b"c"]), b"a", proof)


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))))
def test_another_leaf_at_a_place_gives_the_root_and_the_proofs_of_the_tree_that_has_it(place: tuple[int, int]) -> None:
    count, index = place
    leaves = [bytes([number]) for number in range(count)]
    tree = MerkleTree(leaves)
    changed = MerkleTree([*leaves[:index], b"another", *leaves[index + 1 :]])
    root, proofs = replaced(b"another", tree.proof(index), [tree.proof(other) for other in range(count)])
    assert root == changed.root
    assert list(proofs) == [changed.proof(other) for other in range(count)]
