"""What every method of learning between replicas provides, and what replicas share and keep.

A round begins with shared state (``OuterState``, equal on all replicas of a stage) and with what a replica carries over for
itself (``Local``). After the inner steps the replica makes its contribution, bytes for the others. Everybody applies the
contributions of the same replicas, decoded from the same bytes in the order of the replicas, with operations that every
processor rounds alike; so the shared state stays equal to the last bit.

What a replica carries over is committed to with the round, so that an auditor can make the contribution again; it becomes valid
when the contribution counted, and else the replica goes on with what it carried before.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from protocol.job.job import TrainingSpec
from trainer.codecs import Parts
from trainer.files.tensors import bytes_of
from trainer.outer.checks import ALIKE, Combining, Decoded
from trainer.outer.shards import Shards, contribution_digest, read_result
from trainer.stage.eight_bits import chance
from trainer.stage.short import ShortValues, narrow, spans
from trainer.stage.stage import values_digest, vector_digest
from trainer.stage.storage import ALIGNMENT, Slot

_KEY = 1 << 30  # Of the chance by which a round's momentum is rounded: no step of an optimizer has it.
_ANCHOR_KEY = 3 << 29  # And its anchor.
_LOW = 0xFFFF  # The half of a float32 that bf16 lacks.
Local = Mapping[str, Tensor]
"""Flat vectors by name that a replica carries from round to round; most methods have none."""


@dataclass
class OuterState:
    """What all replicas of a stage share at the beginning of a round: flat ``[n]`` on the CPU.

    Attributes:
        anchor: float32; of a lean stage bf16 where that says all of it, as after every outer step. momentum: of
            ``momentum_type``.
        left_out: replicas whose contribution to the round before was not applied (``trainer.outer.checks``).
    """

    anchor: Tensor
    momentum: Tensor
    left_out: tuple[int, ...] = ()

    @classmethod
    def first(cls, anchor: Tensor, training: TrainingSpec) -> "OuterState":
        """What a job begins with: ``anchor`` is float32."""
        kept = momentum_type(training)
        return cls(narrow(anchor) if kept == torch.bfloat16 else anchor, torch.zeros(anchor.numel(), dtype=kept))

    @cached_property
    def anchor_digest(self) -> str:
        """SHA-256 of the anchor's float32; it is hashed once, so from then on nobody may change it."""
        return values_digest(self.anchor)

    @cached_property
    def _digest(self) -> str:
        return hashlib.sha256((self.anchor_digest + vector_digest(self.momentum)).encode()).hexdigest()

    def digest(self) -> str:
        """SHA-256 over the digests of anchor and momentum, in hexadecimal."""
        return self._digest


@dataclass(frozen=True)
class Contribution:
    """The encoded pseudo-gradient of a round, in one piece or in shards, and what the replica carries over if it counts."""

    pieces: tuple[bytes, ...]
    local: Local = field(default_factory=dict)

    @property
    def data(self) -> bytes:
        """The only piece."""
        (data,) = self.pieces
        return data

    @property
    def digest(self) -> str:
        """What it is committed to by."""
        return contribution_digest(self.pieces)


@dataclass(frozen=True)
class Layout:
    """Where parameters lie in the flat vectors of a stage."""

    slots: tuple[Slot, ...]
    size: int

    @property
    def padding(self) -> Tensor:
        """True ``[n]`` where no parameter lies; codecs without a zero must not fill it."""
        free = torch.ones(self.size, dtype=torch.bool)
        for slot in self.slots:
            free[slot.start : slot.start + slot.count] = False
        return free

    def clear(self, vector: Tensor, begin: int = 0) -> Tensor:
        """Set a vector, or what of it is from ``begin`` on, to zero where no parameter lies, in place."""
        end, size = 0, begin + vector.numel()
        for start, after in [*((slot.start, slot.start + slot.count) for slot in self.slots), (size, size)]:
            if end < size and start > begin:
                vector[max(0, end - begin) : start - begin] = 0.0
            end = after
        return vector

    def spans(self, slots: Sequence[Slot]) -> list[slice]:
        """Where these parameters lie, with the padding after each."""
        ends = {slot.start: slot.start + -(-slot.count // ALIGNMENT) * ALIGNMENT for slot in slots}
        return [slice(start, min(end, self.size)) for start, end in sorted(ends.items())]


class OuterMethod(Protocol):
    """How replicas learn from each other once a round.

    Attributes:
        name: as in ``TrainingSpec.outer``.
    """

    @property
    def name(self) -> str:
        """As above."""

    @property
    def starts_from_local(self) -> bool:
        """Whether ``start`` needs what is carried, and not the anchor alone."""

    def fresh(self, state: OuterState) -> Local:
        """What a replica carries that begins, or joins, with this state."""

    def start(self, state: OuterState, local: Local, round_index: int) -> Tensor:
        """The parameters that round ``round_index`` begins with, flat ``[n]``."""

    def contribution(
        self, anchor: Tensor, parameters: Tensor | ShortValues, local: Local, round_index: int, count: int = 1
    ) -> Contribution:
        """The encoded way from ``anchor`` to ``parameters``, in ``count`` shards.

        Raises:
            NonFiniteError: training has diverged.
        """

    def limit(self, round_index: int) -> int:
        """Bytes of the longest contribution of a round."""

    def encode_update(self, update: Tensor, round_index: int) -> bytes:
        """A flat update as ``contribution`` encodes it; raises ``NonFiniteError``."""

    def decode_update(self, data: bytes, round_index: int) -> Tensor:
        """The update of a contribution: a flat vector of the length that the round exchanges; raises ``CodecError``."""

    def check_update(self, data: bytes, round_index: int) -> None:
        """See that ``decode_update`` takes it; raises ``CodecError``."""

    @property
    def combining(self) -> Combining:
        """How updates become one."""

    def shards(self, round_index: int, count: int) -> Shards:
        """How what a round exchanges is cut."""

    def free(self, round_index: int) -> Tensor:
        """True where no parameter lies in what a round exchanges."""

    def step(
        self, state: OuterState, mean: Tensor | Parts, left_out: tuple[int, ...], round_index: int, alone: bool = False
    ) -> OuterState:
        """The shared state of the next round, from the mean update, which is used up; ``state`` is left as it is.

        Args:
            alone: it is one replica's update, which is taken as it is: the momentum stays.
        """

    def apply(
        self,
        state: OuterState,
        contributions: Mapping[int, bytes],
        round_index: int,
        weights: Mapping[int, int] = ALIKE,
    ) -> OuterState:
        """The shared state of the next round; ``state`` is left as it is.

        Args:
            contributions: by replica; the order of the mapping does not matter.
            weights: of each replica, its inner steps; none: all have done as many.
        Raises:
            RoundError: nobody contributes. CodecError: bytes that are no contribution to this round.
        """

    def apply_results(
        self, state: OuterState, results: Mapping[int, bytes], round_index: int, alone: bool
    ) -> OuterState:
        """The same from the results of all shards, by their names; raises ``CodecError``. ``alone``: as ``step`` has it."""


class FromContributions:
    """``OuterMethod.apply``, ``apply_results`` and ``check_update`` of a method that has the rest."""

    def check_update(self: OuterMethod, data: bytes, round_index: int) -> None:
        """As ``OuterMethod.check_update``."""
        self.decode_update(data, round_index)

    def apply(
        self: OuterMethod,
        state: OuterState,
        contributions: Mapping[int, bytes],
        round_index: int,
        weights: Mapping[int, int] = ALIKE,
    ) -> OuterState:
        """As ``OuterMethod.apply``."""
        updates = Decoded(contributions, lambda data: self.decode_update(data, round_index))
        mean, left_out = self.combining.combine(updates, weights)
        return self.step(state, mean, left_out, round_index, len(updates) == 1)

    def apply_results(
        self: OuterMethod, state: OuterState, results: Mapping[int, bytes], round_index: int, alone: bool
    ) -> OuterState:
        """As ``OuterMethod.apply_results``."""
        shards, free, odd = self.shards(round_index, len(results)), self.free(round_index), set[int]()

        def means() -> Iterator[Tensor]:
            for place, (_, data) in enumerate(sorted(results.items())):
                mean, left_out = read_result(shards, place, data, shards.take(free, place))
                odd.update(left_out)
                yield mean

        mean = shards.join(means())
        return self.step(state, mean, tuple(sorted(odd)), round_index, alone)


def local_digest(local: Local) -> str | None:
    """SHA-256 of what a replica carries; ``None`` where the method carries nothing."""
    if not local:
        return None
    hasher = hashlib.sha256()
    for name in sorted(local):
        hasher.update(name.encode() + b"\0")
        hasher.update(bytes_of(local[name].detach().cpu().contiguous()))
    return hasher.hexdigest()


def momentum_type(training: TrainingSpec) -> torch.dtype:
    """How replicas keep the momentum of outer steps: bf16 beside lean stages."""
    return torch.bfloat16 if training.memory == "lean" else torch.float32


def nesterov(
    anchor: Tensor, momentum: Tensor, mean: Tensor | Parts, rate: float, decay: float, round_index: int
) -> tuple[Tensor, Tensor]:
    """The next anchor and momentum by Nesterov's method; only single multiplications and additions.

    The anchor takes the memory of ``mean`` where it is float32; beside it and the momentum parts are made. Where the momentum
    is bf16, both are rounded to 16 bits by chance, which is a hash of place and round, and kept so: all replicas round alike.

    Source: DiLoCo, arXiv 2311.08105, algorithm 1.
    """
    lean, after = momentum.dtype == torch.bfloat16, torch.empty_like(momentum)
    given, moved = _into(mean, momentum)
    for span in spans(anchor.numel()):
        part = given(span)
        kept = momentum[span].float().mul(decay).add_(part)
        there = torch.sub(anchor[span], kept.mul(decay).add_(part).mul_(rate))
        if lean:
            _round(kept, span.start, _KEY + round_index)
            _round(there, span.start, _ANCHOR_KEY + round_index)
        after[span], moved[span] = kept, there
    return moved, after


def alone_step(anchor: Tensor, momentum: Tensor, mean: Tensor | Parts, round_index: int) -> Tensor:
    """The next anchor where one replica made the round: where its own steps have led; rounded and kept as ``nesterov`` does.

    It takes the memory of ``mean`` where it is float32.
    """
    given, moved = _into(mean, momentum)
    for span in spans(anchor.numel()):
        there = torch.sub(anchor[span], given(span))
        if moved.dtype == torch.bfloat16:
            _round(there, span.start, _ANCHOR_KEY + round_index)
        moved[span] = there
    return moved


def _into(mean: Tensor | Parts, momentum: Tensor) -> tuple[Parts, Tensor]:
    """A mean update in parts, and what the next anchor is written to: the memory of the mean, or bf16 as the momentum is."""
    size = momentum.numel()
    if momentum.dtype != torch.bfloat16:
        whole = mean if isinstance(mean, Tensor) else mean(slice(0, size))
        return whole.__getitem__, whole
    return mean.__getitem__ if isinstance(mean, Tensor) else mean, torch.empty_like(momentum)


def _round(values: Tensor, start: int, key: int) -> None:
    """To the 16 upper bits of each of these float32, ``[n]`` from place ``start`` on, up or down by chance, in place."""
    drawn = chance(start, values.numel(), key, values.device)
    values.view(torch.int32).add_(drawn.bitwise_and_(_LOW)).bitwise_and_(~_LOW)
