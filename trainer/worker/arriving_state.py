"""A stage's state that comes back in pieces: each goes where it belongs as it comes, so the file is never there beside it."""

import struct
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.errors import WeightsError
from trainer.files.tensors import MAX_HEADER, StoredAt, bytes_of, places_in
from trainer.outer.method import OuterState, momentum_type
from trainer.stage.short import spans
from trainer.stage.stage import Stage
from trainer.stage.storage import Slot
from trainer.worker.checkpoint import ANCHOR, MOMENTUM, ROUND

_LENGTH = struct.Struct("<Q")
_WORDS = "the state that came back"


@dataclass(frozen=True)
class _Target:
    """Bytes ``begin`` to ``end`` behind the header, and the memory that they go to."""

    begin: int
    end: int
    memory: memoryview


class ArrivingState:
    """What ``trainer.worker.checkpoint`` wrote, of one stage."""

    def __init__(self, stage: Stage, *, momentum: bool) -> None:
        """Wait for the state of ``stage``; without ``momentum`` that of the outer steps is left out."""
        self._stage, self._with_momentum = stage, momentum
        self._head = bytearray()
        self._targets: list[_Target] | None = None
        self._at = self._due = 0
        self._number = torch.zeros(1, dtype=torch.int64)
        self._narrow: list[tuple[slice, Tensor]] = []
        self._state = OuterState(torch.empty(0), torch.empty(0))

    def take(self, data: bytes) -> None:
        """The next bytes of the file; raises ``WeightsError`` where it is of another stage."""
        rest = memoryview(data)
        if self._targets is None:
            self._head += rest
            length = _LENGTH.unpack_from(self._head)[0] if len(self._head) >= _LENGTH.size else 0
            if length > MAX_HEADER:
                raise WeightsError("bad-safetensors", f"{_WORDS} has a header of {length:,} bytes")
            if not length or len(self._head) < _LENGTH.size + length:
                return
            head, rest = bytes(self._head[: _LENGTH.size + length]), memoryview(self._head)[_LENGTH.size + length :]
            self._targets = self._lay_out(places_in(head[_LENGTH.size :]))
            self._head = bytearray()
        for target in self._targets:
            first, last = max(target.begin, self._at), min(target.end, self._at + len(rest))
            if first < last:
                target.memory[first - target.begin : last - target.begin] = rest[first - self._at : last - self._at]
        self._at += len(rest)

    def whole(self) -> tuple[OuterState, int]:
        """The state, and the round that begins with it; raises ``WeightsError`` where it is not all here, or not finite."""
        if self._targets is None or self._at < self._due:
            raise WeightsError("bad-safetensors", f"{_WORDS} ends too early")
        for span, upper in self._narrow:
            self._state.anchor[span] = upper
        self._targets, self._narrow = [], []
        for vector in (self._state.anchor, self._state.momentum):
            if not all(bool(torch.isfinite(vector[span]).all()) for span in spans(vector.numel())):
                raise WeightsError("not-finite", f"{_WORDS} holds NaN or infinite values")
        return self._state, int(self._number)

    def _lay_out(self, places: dict[str, StoredAt]) -> list[_Target]:
        """Where all of it goes."""
        stage = self._stage
        narrow = all(
            places[name].dtype == torch.int16 for slot in stage.slots if (name := ANCHOR + slot.name) in places
        )
        kept = momentum_type(stage.training)
        self._state = OuterState(
            torch.zeros(stage.size, dtype=torch.bfloat16 if narrow and stage.lean else torch.float32),
            torch.zeros(stage.size if self._with_momentum else 0, dtype=kept),
        )
        targets = [self._target(places, ROUND, self._number, (1,))]
        for slot in stage.slots:
            span = slice(slot.start, slot.start + slot.count)
            targets.append(self._target(places, ANCHOR + slot.name, self._anchor(places, slot, span), slot.shape))
            if self._with_momentum:
                targets.append(self._target(places, MOMENTUM + slot.name, self._state.momentum[span], slot.shape))
        self._due = max(target.end for target in targets)
        return targets

    def _anchor(self, places: dict[str, StoredAt], slot: Slot, span: slice) -> Tensor:
        """The memory of a parameter's anchor; one of 16 bits between others of 32 is widened in the end."""
        found, into = places.get(ANCHOR + slot.name), self._state.anchor[span]
        if found is None or found.dtype != torch.int16 or into.dtype == torch.bfloat16:
            return into.view(torch.int16) if into.dtype == torch.bfloat16 else into
        upper = torch.zeros(slot.count, dtype=torch.bfloat16)
        self._narrow.append((span, upper))
        return upper.view(torch.int16)

    def _target(self, places: dict[str, StoredAt], name: str, memory: Tensor, shape: tuple[int, ...]) -> _Target:
        place, size = places.get(name), memory.numel() * memory.element_size()
        fits = place is not None and place.dtype == memory.dtype and place.shape == shape
        if place is None or not fits or place.end - place.begin != size or place.begin < 0:
            raise WeightsError("wrong-shape", f"{_WORDS} has no {name} that fits this stage")
        return _Target(place.begin, place.end, bytes_of(memory))
