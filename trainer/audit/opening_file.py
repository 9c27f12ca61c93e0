"""An opened segment as one safetensors file: its leaves, their proofs, the state before it and the payloads it received.

For an auditor of another environment class also its *ending*: the state after it and the payloads it sent. One of the same class
makes those itself and compares their digests.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec
import torch
from msgspec import Meta
from safetensors import SafetensorError
from torch import Tensor

from protocol.audit import StepLeaf, segment
from protocol.boundary import PayloadKey, Position
from protocol.codec import MessageError
from protocol.codec import decode as decode_message
from protocol.codec import encode as encode_message
from protocol.ids import StepIndex
from protocol.merkle import MerkleProof, verify_proof
from trainer.audit.shown_state import (
    ANCHOR,
    PackedState,
    read_anchor,
    read_blob,
    read_local,
    read_state,
    read_vector,
    show_local,
    show_state,
)
from trainer.audit.step_leaves import RoundTrace
from trainer.errors import OpeningError
from trainer.files.tensors import Piece, TakenTensors, Widened, file_in_pieces, wide
from trainer.outer.method import Local, OuterMethod, OuterState, local_digest
from trainer.stage.short import ShortValues
from trainer.stage.stage import StageState, values_digest
from trainer.stage.storage import StateLayout

MAX_HEAD = 16 << 20  # 66 leaves of 1280 + 512 digests, each with a proof of 32 hashes.

_ENDING = "ending."

_Path = Annotated[tuple[Annotated[bytes, Meta(min_length=32, max_length=32)], ...], Meta(max_length=32)]


_Steps = Annotated[int, Meta(ge=0, lt=2**31)]

_Leaves = Annotated[tuple[StepLeaf, ...], Meta(min_length=1, max_length=64)]


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    first: StepIndex
    leaves: _Leaves
    paths: Annotated[tuple[_Path, ...], Meta(min_length=1, max_length=64)]
    previous: StepLeaf | None
    previous_path: _Path
    last: StepLeaf
    last_path: _Path
    adam_steps: _Steps
    ending_steps: _Steps | None = None


@dataclass(frozen=True)
class SegmentEnd:
    """What a segment came to: the state after it, and what each of its steps sent."""

    state: StageState
    sent: tuple[dict[PayloadKey, bytes], ...]


@dataclass(frozen=True)
class PackedEnd:
    """The same with the state as an opening shows it."""

    state: PackedState
    sent: tuple[dict[PayloadKey, bytes], ...]


@dataclass
class Opening:
    """A segment that was shown to belong to a commitment.

    Attributes:
        first: its first step within the round.
        paths: of the leaves.
        payloads: that each of its steps received.
        last: the round's last leaf, which binds the pseudo-gradient; of the last segment it is one of ``leaves``.
        anchor: that the round began with, flat, as ``OuterState`` has it; of a float32 stage only in the segment that made the
            contribution, and where ``local`` counts in the round's first and last.
        local: what the replica carried into the round, where it is shown.
        ending: where it was asked for.
    """

    first: int
    leaves: tuple[StepLeaf, ...]
    paths: tuple[_Path, ...]
    previous: StepLeaf | None
    last: StepLeaf
    last_path: _Path
    state: StageState
    payloads: tuple[dict[PayloadKey, bytes], ...]
    anchor: Tensor | None
    local: Local
    ending: SegmentEnd | None = None

    def begun(self) -> None:
        """Where the state is lean, let it go: a stage has it, and goes on from there."""
        if isinstance(self.state.said, ShortValues):
            self.state = self.state.moments_alone().without_moments()


def write_opening(
    trace: RoundTrace,
    step: int,
    state: StageState | PackedState,
    position: Position,
    micros: int,
    method: OuterMethod,
    made: int | None = None,
    ending: SegmentEnd | PackedEnd | None = None,
    anchored: bool = True,
) -> list[Piece]:
    """The opening of the segment of ``step`` (within the round), in pieces; ``state``: before the segment.

    Most pieces are the memory of what is shown, so nobody may change that while they are needed.

    Args:
        made: the step after which the pseudo-gradient was made; None: the last.
        ending: of the segment, for an auditor of another class.
        anchored: False leaves the anchor of a lean stage out, for an auditor who has it.
    """
    tree = trace.tree()
    last = len(trace.leaves) - 1
    first, stop = segment(step, trace.segment, len(trace.leaves))
    head = _Head(
        first=first,
        leaves=tuple(trace.leaves[first:stop]),
        paths=tuple(tree.proof(index).path for index in range(first, stop)),
        previous=trace.leaves[first - 1] if first else None,
        previous_path=tree.proof(first - 1).path if first else (),
        last=trace.leaves[last],
        last_path=tree.proof(last).path,
        adam_steps=state.adam_steps,
        ending_steps=None if ending is None else ending.state.adam_steps,
    )
    shown: dict[str, Tensor | bytes | bytearray | Widened] = {"head": encode_message(head), **show_state(state)}
    lean = isinstance(state, PackedState) or isinstance(state.said, ShortValues)
    shows = _Shows(first, stop, last, made, method, tuple(trace.local))
    if anchored if lean else shows.anchor:
        shown[ANCHOR] = wide(trace.anchor)
    if shows.lean_local if lean else shows.anchor:
        shown |= show_local(trace.local, lean)
    keys = position.expected(micros)
    received = [trace.payloads[index][key] for index in range(first, stop) for key in keys]
    shown |= {f"received.{index}": payload for index, payload in enumerate(received)}
    if ending is not None:
        shown |= show_state(ending.state, _ENDING)
        sent = [payloads[key] for payloads in ending.sent for key in position.produced(micros)]
        shown |= {f"sent.{index}": payload for index, payload in enumerate(sent)}
    return file_in_pieces(shown)


@dataclass(frozen=True)
class Due:
    """What an opening is held against.

    Attributes:
        root: Merkle root of the round, in hexadecimal; ``leaves`` under it.
        step: within the round. ``every``: steps of a segment. ``made``: as in ``write_opening``.
        micros: micro-batches of a step; ``layout``: of the stage's states.
        ending: it must be there, and what was committed to.
        anchor: of the round, where it is here already.
    """

    root: str
    leaves: int
    round_index: int
    step: int
    position: Position
    micros: int
    layout: StateLayout
    method: OuterMethod
    made: int | None = None
    every: int = 1
    ending: bool = False
    anchor: Tensor | None = None


def read_opening(data: bytes | bytearray, due: Due) -> Opening:
    """Parse an opening and hold it against its commitment; a bytearray is used up, so that its parts are not there twice.

    Raises:
        OpeningError: the bytes are no opening, or do not belong to this step of this commitment.
    """
    tensors, head = _parse(data)
    first, stop = segment(due.step, due.every, due.leaves)
    _prove(head, due.root, due.leaves, range(first, stop))
    layout, lean = due.layout, due.layout.parameters[0] != torch.float32
    nothing = torch.zeros(1).expand(layout.size)  # Of which no memory is taken.
    fresh = due.method.fresh(OuterState(nothing, nothing))
    shows = _Shows(first, stop, due.leaves - 1, due.made, due.method, tuple(fresh))
    anchor: Tensor | None = None
    local: Local = {}
    if lean or shows.anchor:
        anchor = _anchor(tensors, head, due)
    if shows.lean_local if lean else shows.anchor:
        local = read_local(tensors, fresh, lean)
        if local_digest(local) != head.leaves[0].local:
            raise OpeningError("what the replica carried into the round is not what the leaf names")
    del fresh
    base = anchor
    if lean and anchor is not None and first == 0:
        base = due.method.start(OuterState(anchor, anchor), local, due.round_index)
    state = read_state(tensors, "", layout, head.adam_steps, base)
    if state.digest() != head.leaves[0].before:
        raise OpeningError("the state is not the one that the leaf begins with")
    payloads = _received(tensors, head, due.position, due.micros)
    ending = _ending(tensors, head, due, anchor) if due.ending else None
    return Opening(
        first,
        head.leaves,
        head.paths,
        head.previous,
        head.last,
        head.last_path,
        state,
        payloads,
        anchor,
        local,
        ending,
    )


@dataclass(frozen=True)
class _Shows:
    """What a segment shows beside its state; ``carries``: names of what the method carries from round to round."""

    first: int
    stop: int
    last: int
    made: int | None
    method: OuterMethod
    carries: tuple[str, ...]

    @property
    def contribution(self) -> bool:
        """Whether the contribution is made in it, or what is carried into the next round."""
        made = self.last if self.made is None else self.made
        return self.first <= made < self.stop or (bool(self.carries) and self.stop > self.last)

    @property
    def anchor(self) -> bool:
        """Whether a float32 stage shows the anchor and what is carried: where either counts."""
        return self.contribution or (bool(self.carries) and self.first == 0)

    @property
    def lean_local(self) -> bool:
        """Whether a lean stage shows what is carried."""
        return self.contribution or (self.method.starts_from_local and self.first == 0)


def _anchor(tensors: Mapping[str, Tensor], head: _Head, due: Due) -> Tensor:
    if due.anchor is None or ANCHOR in tensors:
        if due.layout.parameters[0] != torch.float32:
            return read_anchor(tensors, due.layout.size)
        return read_vector(tensors, ANCHOR, torch.float32, due.layout.size)
    if values_digest(due.anchor) != head.leaves[0].anchor:
        raise OpeningError("the anchor that is here is not the one that the leaf names")
    return due.anchor


def _received(
    tensors: Mapping[str, Tensor], head: _Head, position: Position, micros: int
) -> tuple[dict[PayloadKey, bytes], ...]:
    keys = position.expected(micros)
    for leaf in head.leaves:
        if len(leaf.received) != len(keys) or len(leaf.sent) != len(position.produced(micros)):
            raise OpeningError(
                f"the leaf names {len(leaf.received)} received payloads, a step of this stage has {len(keys)}"
            )
    return _payloads(tensors, "received", keys, [leaf.received for leaf in head.leaves])


def _payloads(
    tensors: Mapping[str, Tensor], name: str, keys: list[PayloadKey], named: list[tuple[str, ...]]
) -> tuple[dict[PayloadKey, bytes], ...]:
    """Payloads of each step of the segment, as its leaf names them by digest."""
    payloads = []
    for offset, digests in enumerate(named):
        of_step = {}
        for index, key in enumerate(keys):
            payload = read_blob(tensors, f"{name}.{offset * len(keys) + index}")
            if hashlib.sha256(payload).hexdigest() != digests[index]:
                raise OpeningError(f"the {key[0]} of micro-batch {key[1]} is not the one that the leaf names")
            of_step[key] = payload
        payloads.append(of_step)
    return tuple(payloads)


def _ending(tensors: Mapping[str, Tensor], head: _Head, due: Due, anchor: Tensor | None) -> SegmentEnd:
    if head.ending_steps is None:
        raise OpeningError("it does not show what the segment came to")
    state = read_state(tensors, _ENDING, due.layout, head.ending_steps, anchor)
    if state.digest() != head.leaves[-1].after:
        raise OpeningError("the state after the segment is not the one that the leaf ends with")
    keys = due.position.produced(due.micros)
    return SegmentEnd(state, _payloads(tensors, "sent", keys, [leaf.sent for leaf in head.leaves]))


def _parse(data: bytes | bytearray) -> tuple[Mapping[str, Tensor], _Head]:
    try:
        tensors = TakenTensors(data if isinstance(data, bytearray) else bytearray(data))
    except (SafetensorError, ValueError, KeyError) as error:
        raise OpeningError(f"no safetensors file: {error}") from error
    try:
        return tensors, decode_message(read_blob(tensors, "head"), _Head, MAX_HEAD)
    except MessageError as error:
        raise OpeningError(f"its head is malformed: {error}") from error


def _prove(head: _Head, root: str, leaves: int, steps: range) -> None:
    top = bytes.fromhex(root)
    if head.first != steps.start or not len(steps) == len(head.leaves) == len(head.paths):
        raise OpeningError(
            f"{len(head.leaves)} leaves from step {head.first} on were opened, the segment has {len(steps)} from "
            f"step {steps.start} on"
        )
    for step, leaf, path in zip(steps, head.leaves, head.paths, strict=True):
        if not verify_proof(top, encode_message(leaf), MerkleProof(step, leaves, path)):
            raise OpeningError(f"the leaf does not stand at place {step} of {leaves} under root {root[:16]}")
    if not verify_proof(top, encode_message(head.last), MerkleProof(leaves - 1, leaves, head.last_path)):
        raise OpeningError(f"the last leaf does not stand at place {leaves - 1} of {leaves} under root {root[:16]}")
    before = steps.start - 1
    if before < 0:
        return
    if head.previous is None or not verify_proof(
        top, encode_message(head.previous), MerkleProof(before, leaves, head.previous_path)
    ):
        raise OpeningError(f"the leaf before does not stand at place {before} of {leaves} under root {root[:16]}")
