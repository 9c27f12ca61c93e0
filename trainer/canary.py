"""A true opening made into one that is false in a single digest, which only re-running the step can show: it tests auditors."""

import hashlib

import msgspec
from safetensors.torch import save

from trainer.errors import OpeningError
from trainer.opening import _parse, _tensor
from transport.merkle import MerkleProof, replaced
from transport.wire.codec import encode


def forge(opening: bytes, leaves: int, step: int) -> tuple[bytes, str]:
    """Replace the state that an opened step is said to end with, and give the root under which that is committed to.

    Args:
        opening: as ``write_opening`` made it, and an auditor found right.
        leaves: of its round; ``step``: its place among them.
    Returns:
        The forged opening, and its root in hexadecimal.
    Raises:
        OpeningError: the bytes are no opening.
    """
    tensors, head = _parse(opening)
    if head.leaf.after is None:
        raise OpeningError("the step is inside of a segment: its leaf says nothing of the state after it")
    false = hashlib.sha256(b"cottage-canary" + head.leaf.after.encode()).hexdigest()
    leaf = msgspec.structs.replace(head.leaf, after=false)
    others = [MerkleProof(leaves - 1, leaves, head.last_path)]
    if head.previous is not None:
        others.append(MerkleProof(step - 1, leaves, head.previous_path))
    root, proofs = replaced(encode(leaf), MerkleProof(step, leaves, head.path), others)
    forged = msgspec.structs.replace(
        head,
        leaf=leaf,
        last=leaf if step == leaves - 1 else head.last,
        last_path=proofs[0].path,
        previous_path=proofs[1].path if len(proofs) > 1 else (),
    )
    return save({**tensors, "head": _tensor(encode(forged))}), root.hex()
