"""A true opening made into one that is false in a single digest, which only re-running it can show: it tests auditors."""

import hashlib

import msgspec

from protocol.codec import encode
from protocol.merkle import MerkleProof, replaced
from trainer.audit.opening_file import _parse
from trainer.errors import OpeningError
from trainer.files.tensors import file_in_pieces, parts_of


def forge(opening: bytes, leaves: int, step: int) -> tuple[bytes, str]:
    """Replace the state that an opened segment is said to end with, and give the root under which that is committed to.

    Args:
        opening: as ``write_opening`` made it, and an auditor found right.
        leaves: of its round; ``step``: one of the segment's.
    Returns:
        The forged opening, and its root in hexadecimal.
    Raises:
        OpeningError: the bytes are no opening of that step.
    """
    tensors, head = _parse(opening)
    first, last = head.first, head.first + len(head.leaves) - 1
    true = head.leaves[-1]
    if true.after is None or not first <= step <= last < leaves:
        raise OpeningError(
            f"an opening of steps {first} to {last}, of which no forged step {step} of {leaves} can be made"
        )
    false = hashlib.sha256(b"cottage-canary" + true.after.encode()).hexdigest()
    leaf = msgspec.structs.replace(true, after=false)
    others = [MerkleProof(leaves - 1, leaves, head.last_path)]
    others += [MerkleProof(first + offset, leaves, path) for offset, path in enumerate(head.paths[:-1])]
    if head.previous is not None:
        others.append(MerkleProof(first - 1, leaves, head.previous_path))
    root, proofs = replaced(encode(leaf), MerkleProof(last, leaves, head.paths[-1]), others)
    forged = msgspec.structs.replace(
        head,
        leaves=(*head.leaves[:-1], leaf),
        paths=(*(proof.path for proof in proofs[1 : len(head.leaves)]), head.paths[-1]),
        last=leaf if last == leaves - 1 else head.last,
        last_path=proofs[0].path,
        previous_path=proofs[-1].path if head.previous is not None else (),
    )
    return b"".join(parts_of(file_in_pieces({**tensors, "head": encode(forged)}))), root.hex()
