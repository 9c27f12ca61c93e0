"""What a kept round can be opened from by another worker: written once it is committed to, read after a crash.

::

    record = u32 length of the head | head | vectors | payloads

It holds the least: leaves, what was received, what the replica carried into the round. The state that the round began with lies
with the agent, which keeps it for peers anyway; all later states come from running the steps again. Nothing of it is believed:
what was restored has to have the digests that the leaves name, or there is no record.
"""

import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec
import torch
from msgspec import Meta
from torch import Tensor

from protocol.audit import MAX_KEPT_RECORD, StepLeaf
from protocol.boundary import PayloadKey, Position
from protocol.codec import MessageError
from protocol.codec import decode as decode_message
from protocol.codec import encode as encode_message
from protocol.ids import Count, Digest, StepIndex
from trainer.audit.step_leaves import RoundTrace
from trainer.errors import RoundRecordError, WeightsError
from trainer.files.tensors import bytes_of
from trainer.outer.method import Local, OuterMethod, OuterState, local_digest, momentum_type
from trainer.stage.stage import Stage, StageState
from trainer.transfer import fetched
from trainer.worker.checkpoint import read_checkpoint, read_moments

_LENGTH = struct.Struct("<I")
_Head = TypeVar("_Head")


class _StepsHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``received``: each step's payloads, by kind, micro-batch and length; ``local``: names of what is carried.

    ``size``: values of the stage.
    """

    first_step: StepIndex
    rate_step: StepIndex | None
    every: Annotated[int, Meta(ge=1)]
    segment: Annotated[int, Meta(ge=1)]
    total_steps: StepIndex
    position: Position
    leaves: Annotated[tuple[StepLeaf, ...], Meta(min_length=1, max_length=5000)]
    received: tuple[tuple[tuple[PayloadKey, Count], ...], ...]
    local: tuple[str, ...]
    size: Count


class _OuterHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``before``: digest of the state before the step; ``shown``: lengths of what came in, by name."""

    before: Digest
    shown: dict[Annotated[str, Meta(max_length=40)], Count]


@dataclass(frozen=True)
class RoundBeginning:
    """What a round began with on the stage of one seat: the shared state, and the optimizer's moments, which states become."""

    outer: OuterState
    moments: bytes | bytearray
    stage: Stage

    @classmethod
    def read(
        cls,
        stage: Stage,
        state: bytes | bytearray,
        moments: bytes | bytearray,
        round_index: int,
        *,
        momentum: bool = True,
    ) -> "RoundBeginning":
        """From what the agent kept. ``state`` empty: the job's initial one, which ``stage`` is in.

        Args:
            momentum: False leaves that of the outer steps out, which no step needs.
        Raises:
            RoundRecordError: it is no state of this stage and round.
        """
        if not state:
            return cls(OuterState.first(fetched(stage.values()), stage.training), moments, stage)
        try:
            kept = momentum_type(stage.training) if momentum else None
            outer, number = read_checkpoint(state, stage.slots, stage.size, kept, lean=stage.lean)
        except WeightsError as error:
            raise RoundRecordError(f"the state that round {round_index} began with cannot be read: {error}") from error
        if number != round_index:
            raise RoundRecordError(f"the state is that of round {number}, the record is of round {round_index}")
        return cls(outer, moments, stage)

    def states(self, method: OuterMethod, local: Local, round_index: int) -> Iterator[StageState]:
        """What may be the state before the round's first step: with the moments, and as of a worker that had no use for them."""
        parameters = method.start(self.outer, local, round_index)
        if self.moments:
            with suppress(WeightsError):
                yield read_moments(self.moments, self.stage, parameters, round_index, signed=True, within=True)
        yield self.stage.state_of(parameters)


def write_steps(trace: RoundTrace, total_steps: int, position: Position) -> list[memoryview]:
    """The record of a round's steps in pieces, most of them the memory of what is kept, which nobody changes any more."""
    names = tuple(sorted(trace.local))
    head = _StepsHead(
        first_step=trace.first_step,
        rate_step=trace.rate_step,
        every=trace.every,
        segment=trace.segment,
        total_steps=total_steps,
        position=position,
        leaves=tuple(trace.leaves),
        received=tuple(tuple((key, len(data)) for key, data in step.items()) for step in trace.payloads),
        local=names,
        size=trace.anchor.numel(),
    )
    vectors = [bytes_of(trace.local[name].cpu().contiguous()) for name in names]
    payloads = [memoryview(data) for step in trace.payloads for data in step.values()]
    return [*_headed(head), *vectors, *payloads]


def read_steps(
    data: bytes | bytearray, beginning: RoundBeginning, method: OuterMethod, round_index: int
) -> tuple[RoundTrace, int, Position]:
    """The trace of a round, with one state, at its beginning; the total of steps, and the position of the member.

    Raises:
        RoundRecordError: it is damaged, or does not belong to what the round began with.
    """
    head, rest = _parsed(data, _StepsHead)
    anchor = beginning.outer.anchor
    if head.size != anchor.numel() or len(head.received) != len(head.leaves):
        raise RoundRecordError(f"the record is of a stage of {head.size:,} values, this one has {anchor.numel():,}")
    fresh = method.fresh(beginning.outer)
    if tuple(sorted(fresh)) != head.local:
        raise RoundRecordError(f"the record has {head.local} carried over, the method carries {tuple(sorted(fresh))}")
    local = {name: _vector(rest, fresh[name]) for name in head.local}
    payloads = [{key: bytes(rest.take(length)) for key, length in step} for step in head.received]
    rest.end()
    first = head.leaves[0]
    if (beginning.outer.anchor_digest, local_digest(local)) != (first.anchor, first.local):
        raise RoundRecordError(f"round {round_index} did not begin with the state that is here")
    states = beginning.states(method, local, round_index)
    state = next((state for state in states if state.digest() == first.before), None)
    if state is None:
        raise RoundRecordError(f"the state before the first step of round {round_index} cannot be made again")
    trace = RoundTrace(head.first_step, anchor, head.every, local, head.rate_step, head.segment)
    trace.leaves, trace.states, trace.payloads = list(head.leaves), {0: state}, payloads
    return trace, head.total_steps, head.position


def write_outer_record(before: str, shown: Mapping[str, bytes]) -> list[memoryview]:
    """The record of an outer step in pieces; ``before``: digest of the state that it changes."""
    head = _OuterHead(before, {name: len(data) for name, data in shown.items()})
    return [*_headed(head), *(memoryview(data) for data in shown.values())]


def read_outer_record(data: bytes | bytearray, beginning: RoundBeginning) -> dict[str, bytes]:
    """What came into an outer step; raises RoundRecordError as ``read_steps``."""
    head, rest = _parsed(data, _OuterHead)
    if beginning.outer.digest() != head.before:
        raise RoundRecordError("the outer step did not begin with the state that is here")
    shown = {name: bytes(rest.take(length)) for name, length in head.shown.items()}
    rest.end()
    return shown


def _headed(head: msgspec.Struct) -> list[memoryview]:
    encoded = encode_message(head)
    return [memoryview(_LENGTH.pack(len(encoded)) + encoded)]


class _Rest:
    """What of a record has not been read yet."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def take(self, length: int) -> memoryview:
        if length > len(self._data):
            raise RoundRecordError(f"the record ends {length - len(self._data):,} bytes too early")
        taken, self._data = self._data[:length], self._data[length:]
        return taken

    def end(self) -> None:
        if self._data:
            raise RoundRecordError(f"{len(self._data):,} bytes follow behind the record")


def _parsed(data: bytes | bytearray, kind: type[_Head]) -> tuple[_Head, _Rest]:
    rest = _Rest(memoryview(data))
    (length,) = _LENGTH.unpack(rest.take(_LENGTH.size))
    try:
        head: _Head = decode_message(rest.take(length), kind, MAX_KEPT_RECORD)
    except MessageError as error:
        raise RoundRecordError(f"the record's head is malformed: {error}") from error
    return head, rest


def _vector(rest: _Rest, like: Tensor) -> Tensor:
    return torch.frombuffer(bytearray(rest.take(like.numel() * like.element_size())), dtype=like.dtype)
