"""An opened step as one safetensors file: the leaf, its proof, the state before it and the payloads it received."""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np
import torch
from msgspec import Meta
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from trainer.errors import OpeningError
from trainer.outer.method import Local, local_digest
from trainer.stage import StageState
from trainer.steps import PayloadKey, Position
from trainer.trace import RoundTrace, StepLeaf
from transport.merkle import MerkleProof, verify_proof
from transport.wire.codec import MessageError
from transport.wire.codec import decode as decode_message
from transport.wire.codec import encode as encode_message

MAX_HEAD = 1 << 20  # Three leaves of 1280 + 512 digests and three proofs of 32 hashes.

_Path = Annotated[tuple[Annotated[bytes, Meta(min_length=32, max_length=32)], ...], Meta(max_length=32)]


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    leaf: StepLeaf
    path: _Path
    previous: StepLeaf | None
    previous_path: _Path
    last: StepLeaf
    last_path: _Path
    adam_steps: Annotated[int, Meta(ge=0, lt=2**31)]


@dataclass(frozen=True)
class Opening:
    """A step that was shown to belong to a commitment.

    Attributes:
        last: the round's last leaf, which binds the pseudo-gradient; of the last step it is ``leaf`` itself.
        anchor: anchor that the round began with, flat; only on the step that made the contribution, and where ``local`` counts on
            the round's first and last.
        local: what the replica carried into the round; where ``anchor`` is given.
    """

    leaf: StepLeaf
    previous: StepLeaf | None
    last: StepLeaf
    state: StageState
    payloads: dict[PayloadKey, bytes]
    anchor: Tensor | None
    local: Local


def write_opening(
    trace: RoundTrace, step: int, state: StageState, position: Position, micros: int, made: int | None = None
) -> bytes:
    """The opening of ``step`` (within the round), whose state before it is ``state``.

    Args:
        made: the step after which the pseudo-gradient was made; None: the last.
    """
    tree = trace.tree()
    last = len(trace.leaves) - 1
    head = _Head(
        leaf=trace.leaves[step],
        path=tree.proof(step).path,
        previous=trace.leaves[step - 1] if step else None,
        previous_path=tree.proof(step - 1).path if step else (),
        last=trace.leaves[last],
        last_path=tree.proof(last).path,
        adam_steps=state.adam_steps,
    )
    tensors = {
        "head": _tensor(encode_message(head)),
        "parameters": state.parameters,
        "first_moment": state.first_moment,
        "second_moment": state.second_moment,
    }
    if step in _anchored(last, trace.local, made):
        tensors["anchor"] = trace.anchor
        tensors |= {f"local.{name}": vector for name, vector in trace.local.items()}
    for index, key in enumerate(position.expected(micros)):
        tensors[f"received.{index}"] = _tensor(trace.payloads[step][key])
    return save(tensors)


def read_opening(
    data: bytes,
    root: str,
    leaves: int,
    step: int,
    position: Position,
    micros: int,
    size: int,
    carries: Sequence[str] = (),
    made: int | None = None,
) -> Opening:
    """Parse an opening and hold it against its commitment.

    Args:
        root: Merkle root of the round, in hexadecimal; ``leaves`` under it.
        step: within the round.
        micros: micro-batches of a step; ``size``: length of the stage's flat vectors.
        carries: names of the vectors that the method carries from round to round.
        made: as in ``write_opening``.
    Raises:
        OpeningError: the bytes are no opening, or do not belong to this step of this commitment.
    """
    tensors, head = _parse(data)
    _prove(head, root, leaves, step)
    vectors = [_vector(tensors, name, size) for name in ("parameters", "first_moment", "second_moment")]
    state = StageState(vectors[0], vectors[1], vectors[2], head.adam_steps)
    if state.digest() != head.leaf.before:
        raise OpeningError("the state is not the one that the leaf begins with")
    payloads = {}
    keys = position.expected(micros)
    if len(head.leaf.received) != len(keys) or len(head.leaf.sent) != len(position.produced(micros)):
        raise OpeningError(
            f"the leaf names {len(head.leaf.received)} received payloads, a step of this stage has {len(keys)}"
        )
    for index, key in enumerate(keys):
        payload = _blob(tensors, f"received.{index}")
        if hashlib.sha256(payload).hexdigest() != head.leaf.received[index]:
            raise OpeningError(f"the {key[0]} of micro-batch {key[1]} is not the one that the leaf names")
        payloads[key] = payload
    if step not in _anchored(leaves - 1, carries, made):
        return Opening(head.leaf, head.previous, head.last, state, payloads, None, {})
    local = {name: _vector(tensors, f"local.{name}", size) for name in carries}
    if local_digest(local) != head.leaf.local:
        raise OpeningError("what the replica carried into the round is not what the leaf names")
    return Opening(head.leaf, head.previous, head.last, state, payloads, _vector(tensors, "anchor", size), local)


def _anchored(last: int, carries: Collection[str], made: int | None) -> set[int]:
    """Steps whose opening shows the anchor: the one that made the contribution; with what is carried, the first and last too."""
    return {last if made is None else made, *({last, 0} if carries else ())}


def _parse(data: bytes) -> tuple[dict[str, Tensor], _Head]:
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise OpeningError(f"no safetensors file: {error}") from error
    try:
        return tensors, decode_message(_blob(tensors, "head"), _Head, MAX_HEAD)
    except MessageError as error:
        raise OpeningError(f"its head is malformed: {error}") from error


def _prove(head: _Head, root: str, leaves: int, step: int) -> None:
    top = bytes.fromhex(root)
    if not verify_proof(top, encode_message(head.leaf), MerkleProof(step, leaves, head.path)):
        raise OpeningError(f"the leaf does not stand at place {step} of {leaves} under root {root[:16]}")
    if not verify_proof(top, encode_message(head.last), MerkleProof(leaves - 1, leaves, head.last_path)):
        raise OpeningError(f"the last leaf does not stand at place {leaves - 1} of {leaves} under root {root[:16]}")
    if step == 0:
        return
    if head.previous is None or not verify_proof(
        top, encode_message(head.previous), MerkleProof(step - 1, leaves, head.previous_path)
    ):
        raise OpeningError(f"the leaf before does not stand at place {step - 1} of {leaves} under root {root[:16]}")


def _vector(tensors: dict[str, Tensor], name: str, size: int) -> Tensor:
    value = tensors.get(name)
    if value is None or value.dtype != torch.float32 or tuple(value.shape) != (size,):
        raise OpeningError(f"{name} is missing, or not {size:,} float32 values")
    return value.clone()


def _blob(tensors: dict[str, Tensor], name: str) -> bytes:
    value = tensors.get(name)
    if value is None or value.dtype != torch.uint8 or value.dim() != 1:
        raise OpeningError(f"{name} is missing, or not bytes")
    return value.numpy().tobytes()


def _tensor(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(data), dtype=np.uint8))
