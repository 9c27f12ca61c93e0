"""How a stage keeps what it trains: float32 throughout, or lean.

``Float32Storage``: parameters, gradients and two moments, 16 bytes a parameter.

``LeanStorage``, 8.1 bytes a parameter with AdamW and about 7.1 with Muon::

    2   bf16 weights, in which layers compute       together the float32 that is trained,
    2   what a float32 has beyond them              and not a bit less
    2   gradients in bf16
    2.1 moments in 8 bits (``trainer.stage.eight_bits``); Muon's matrices have one

The optimizer reads a part of it as float32, steps, and writes it back (``read``, ``write``): its arithmetic is the same for both.

Source: weights as the two halves of a float32, Split-SGD-BF16, arXiv 2005.04680; here the upper half is rounded to the nearest,
and the lower one is the signed rest of the bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from trainer.errors import CodecError
from trainer.stage.eight_bits import BLOCK, Spelling, Table, chance, coarsen, pack, packed_size, tables, unpack
from trainer.stage.fused import LeanPart
from trainer.stage.short import shortened, way

ALIGNMENT = BLOCK
"""Each parameter begins at a multiple of it in the flat vectors."""
_ROUND = 1 << 15


@dataclass(frozen=True)
class Slot:
    """Place of one parameter in the flat vectors.

    Attributes:
        orthogonal: Muon trains it: it has one moment.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    count: int
    orthogonal: bool = False


@dataclass(frozen=True)
class StateLayout:
    """Types and lengths of the three vectors of a ``StageState``, for a stage of ``size`` values."""

    size: int
    parameters: tuple[torch.dtype, int]
    first_moment: tuple[torch.dtype, int]
    second_moment: tuple[torch.dtype, int]

    @property
    def bytes(self) -> int:
        """Of a state."""
        return sum(dtype.itemsize * length for dtype, length in self.vectors)

    @property
    def vectors(self) -> tuple[tuple[torch.dtype, int], ...]:
        """Of parameters, first and second moment."""
        return self.parameters, self.first_moment, self.second_moment

    @classmethod
    def float32(cls, size: int) -> "StateLayout":
        """Three float32 vectors."""
        return cls(size, *[(torch.float32, size)] * 3)


@dataclass
class StagePart:
    """A piece of a stage as float32: what an optimizer reads and changes in place. ``second`` is empty where Muon trains it."""

    values: Tensor
    gradients: Tensor
    first: Tensor
    second: Tensor


class Storage(Protocol):
    """What a stage keeps, on its device.

    Attributes:
        weights: flat ``[n]``; layers compute with views of it, and their gradients are views of ``gradients``.
        parameters, first_moment, second_moment: the state, as ``layout`` has it.
    """

    layout: StateLayout
    weights: Tensor
    gradients: Tensor
    parameters: Tensor
    first_moment: Tensor
    second_moment: Tensor

    def values(self) -> Tensor:
        """The parameters, flat ``[n]`` float32: to be read only."""

    def load(self, span: slice, values: Tensor) -> None:
        """Set parameters from float32."""

    def read(self, slot: Slot | None, span: slice) -> StagePart:
        """A piece as float32; ``slot``: the parameter that it is of, None where it may be of several."""

    def write(self, slot: Slot | None, span: slice, part: StagePart, steps: int) -> None:
        """Keep what became of a piece in step ``steps``."""

    def decoded(self, parameters: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The vectors of a state as float32 ``[n]``; what has no second moment has zeros."""


class Float32Storage:
    """A ``Storage`` whose parts are views: nothing is ever converted."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.layout = StateLayout.float32(size)
        self.parameters = self.weights = torch.zeros(size, device=device)
        self.gradients = torch.zeros(size, device=device)
        self.first_moment = torch.zeros(size, device=device)
        self.second_moment = torch.zeros(size, device=device)

    def values(self) -> Tensor:
        """As ``Storage.values``."""
        return self.parameters

    def load(self, span: slice, values: Tensor) -> None:
        """As ``Storage.load``."""
        self.parameters[span].copy_(values)

    def read(self, slot: Slot | None, span: slice) -> StagePart:
        """As ``Storage.read``."""
        return StagePart(self.parameters[span], self.gradients[span], self.first_moment[span], self.second_moment[span])

    def write(self, slot: Slot | None, span: slice, part: StagePart, steps: int) -> None:
        """As ``Storage.write``: the part is the memory itself."""

    def decoded(self, parameters: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As ``Storage.decoded``."""
        return parameters, first, second


class LeanStorage:
    """A ``Storage`` of 16-bit halves and 8-bit moments.

    ``parameters`` is ``[2n]`` int16: the bits of the bf16 weights, then the rests. Moments are uint8: a code for each value, then
    the scales' bytes. The second moment leaves out what Muon trains.
    """

    def __init__(self, slots: Sequence[Slot], size: int, device: torch.device) -> None:
        self._seconds, seconds = {}, 0
        for slot in slots:
            self._seconds[slot.start] = seconds - slot.start
            seconds += 0 if slot.orthogonal else _padded(slot.count)
        self.layout = StateLayout(
            size, (torch.int16, 2 * size), (torch.uint8, packed_size(size)), (torch.uint8, packed_size(seconds))
        )
        self.parameters = torch.zeros(2 * size, dtype=torch.int16, device=device)
        self.weights = self.parameters[:size].view(torch.bfloat16)
        self.gradients = torch.zeros(size, dtype=torch.bfloat16, device=device)
        self.first_moment = torch.zeros(packed_size(size), dtype=torch.uint8, device=device)
        self.second_moment = torch.zeros(packed_size(seconds), dtype=torch.uint8, device=device)
        self._size, self._second_size, self._slots = size, seconds, tuple(slots)
        self._tables = tables(device)

    def values(self) -> Tensor:
        """As ``Storage.values``: a new vector."""
        return joined(self.parameters)

    def load(self, span: slice, values: Tensor) -> None:
        """As ``Storage.load``."""
        high, low = halves(values)
        self.parameters[: self._size][span] = high
        self.parameters[self._size :][span] = low

    def read(self, slot: Slot | None, span: slice) -> StagePart:
        """As ``Storage.read``; a piece is of one parameter."""
        assert slot is not None
        values = _joined(self.parameters[: self._size][span], self.parameters[self._size :][span])
        first = _Moment(self.first_moment, self._size, span)
        part = StagePart(
            values, self.gradients[span].float(), first.read(_first(slot), self._tables), values.new_empty(0)
        )
        if not slot.orthogonal:
            part.second = self._second(slot, span).read("unsigned", self._tables).square_()
        return part

    def write(self, slot: Slot | None, span: slice, part: StagePart, steps: int) -> None:
        """As ``Storage.write``. Of second moments the root is kept: it has half the powers of two."""
        assert slot is not None
        self.load(span, part.values)
        drawn = chance(span.start, span.stop - span.start, steps, part.values.device)
        _Moment(self.first_moment, self._size, span).write(part.first, _first(slot), drawn)
        if not slot.orthogonal:
            drawn = chance(self._size + span.start, span.stop - span.start, steps, part.values.device)
            self._second(slot, span).write(part.second.sqrt_(), "unsigned", drawn)

    def kept(self, slot: Slot, span: slice) -> LeanPart:
        """What is kept of a piece of one parameter that AdamW trains, for ``trainer.stage.fused``."""
        first, second = _Moment(self.first_moment, self._size, span), self._second(slot, span)
        return LeanPart(
            self.parameters[: self._size][span],
            self.parameters[self._size :][span],
            self.gradients[span],
            first.codes,
            first.scales,
            second.codes,
            second.scales,
            self._tables["signed"],
            self._tables["unsigned"],
            span.start,
            self._size + span.start,
        )

    def shorten(self, slot: Slot, span: slice, base: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Round a piece of one parameter to its short form (``trainer.stage.short``), after step ``steps``.

        Returns:
            codes and units of the way from ``base``, which is as long as the piece.
        """
        count, device = span.stop - span.start, base.device
        values = _joined(self.parameters[: self._size][span], self.parameters[self._size :][span])
        codes, units = shortened(values, base, chance(span.start, count, _key(steps, 0), device))
        self.load(span, base + way(codes, units))
        first = _Moment(self.first_moment, self._size, span)
        first.coarsen(_first(slot), chance(span.start, count, _key(steps, 1), device))
        if not slot.orthogonal:
            self._second(slot, span).coarsen("unsigned", chance(span.start, count, _key(steps, 2), device))
        return codes, units

    def decoded(self, parameters: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As ``Storage.decoded``."""
        firsts, seconds, known = torch.zeros(self._size), torch.zeros(self._size), tables(torch.device("cpu"))
        for slot in self._slots:
            span = slice(slot.start, slot.start + _padded(slot.count))
            firsts[span] = _Moment(first, self._size, span).read(_first(slot), known)
            if not slot.orthogonal:
                seconds[span] = _Moment(second, self._second_size, self._within(slot, span)).read("unsigned", known)
        return joined(parameters), firsts, seconds.square_()

    def _second(self, slot: Slot, span: slice) -> "_Moment":
        return _Moment(self.second_moment, self._second_size, self._within(slot, span))

    def _within(self, slot: Slot, span: slice) -> slice:
        shift = self._seconds[slot.start]
        return slice(span.start + shift, span.stop + shift)


@dataclass(frozen=True)
class _Moment:
    """A span of a moment ``[n]`` in 8 bits."""

    vector: Tensor
    size: int
    span: slice

    def read(self, spelling: Spelling, known: dict[Spelling, Table]) -> Tensor:
        return unpack(self.codes, self.scales, known[spelling])

    def write(self, values: Tensor, spelling: Spelling, drawn: Tensor) -> None:
        codes, scales = pack(values, spelling, drawn)
        self.codes.copy_(codes)
        self.scales.copy_(scales)

    def coarsen(self, spelling: Spelling, drawn: Tensor) -> None:
        self.codes.copy_(coarsen(self.codes, spelling, drawn))

    @property
    def codes(self) -> Tensor:
        return self.vector[: self.size][self.span]

    @property
    def scales(self) -> Tensor:
        scales = self.vector[self.size :].view(torch.float32)
        return scales[self.span.start // BLOCK : self.span.stop // BLOCK]


def joined(halves: Tensor) -> Tensor:
    """The float32 values ``[n]`` of lean parameters ``[2n]``; what is float32 already comes back itself."""
    if halves.dtype == torch.float32:
        return halves
    size = halves.numel() // 2
    return _joined(halves[:size], halves[size:])


def lean_parameters(values: Tensor) -> Tensor:
    """Lean parameters ``[2n]`` int16 of float32 values ``[n]``; ``joined`` gives the same bits back."""
    return torch.cat(halves(values))


def check_moments(layout: StateLayout, first: Tensor, second: Tensor) -> None:
    """Refuse lean moments with scales that no optimizer makes; raises ``CodecError``."""
    if layout.first_moment[0] == torch.float32:
        return
    for name, vector in (("first", first), ("second", second)):
        count = vector.numel() * BLOCK // (BLOCK + 4)
        scales = vector[count:].view(torch.float32)
        if not bool((torch.isfinite(scales) & (scales >= 0)).all()):
            raise CodecError(f"a scale of the {name} moment is negative or not finite")


def _key(steps: int, which: int) -> int:
    """Of the chance in a short form: no step of an optimizer has it."""
    return -1 - (3 * steps + which)


def _first(slot: Slot) -> Spelling:
    return "linear" if slot.orthogonal else "signed"


def halves(values: Tensor) -> tuple[Tensor, Tensor]:
    """Lean parameters of float32 ``[n]`` in two vectors: the bits of the bf16 weights, and the rests."""
    bits = values.view(torch.int32)
    high = bits.add(_ROUND).bitwise_right_shift_(16)
    low = bits.sub(high.bitwise_left_shift(16))
    return high.to(torch.int16), low.to(torch.int16)


def _joined(high: Tensor, low: Tensor) -> Tensor:
    return high.to(torch.int32).bitwise_left_shift_(16).add_(low.to(torch.int32)).view(torch.float32)


def _padded(count: int) -> int:
    return -(-count // BLOCK) * BLOCK
