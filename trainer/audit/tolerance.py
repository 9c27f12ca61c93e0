"""How far what a segment came to may lie from a re-run by another environment class, and how far it does.

A *distance* is relative: the length of the difference over the length of what the re-run gives. Of a state it is the length of
its change since the segment began, so that doing nothing is 1 away and doing the opposite 2, however small the steps are.

Honest machines of different classes round differently, and Adam's first steps make whole steps of the signs of gradients that
are next to nothing. ``benchmarks.trust.across`` measures honest distances and lies; docs/explanation/trust.md has them. A
lie that stays within the tolerance is not seen: so a pass is worth little, and a failure proves nothing to anybody else.
"""

import math
import struct
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from protocol.audit import loss_tolerance
from protocol.boundary import PayloadKey
from protocol.job.job import TrainingSpec
from trainer.codecs import CodecName
from trainer.data.data import Windows, micro_batches
from trainer.data.marks import ids_of
from trainer.errors import CodecError
from trainer.stage.boundary_codec import BoundaryCodec
from trainer.stage.stage import Stage, StageState

Quantity = Literal["parameters", "first moment", "second moment", "activations", "gradients", "norm", "loss"]

_FULL = 0.005  # Honest float32 machines were seen a millionth apart; one skipped step of ten is a quarter.
_HALF = 0.05  # Of half floats a hundredth, so less is seen.
_ROUNDED: Mapping[CodecName, float] = {"fp32": 0.0, "int8-token": 0.01, "int4-token": 0.05}
"""What is added where payloads are rounded: a value next to an edge falls to the other side."""
_SHORT = 0.05  # The same for states in short form: honest second moments were seen 0.057 apart.
_TINY = 1e-6  # Nats a token: a loss of less has no meaningful distance.
_SQUARE = struct.Struct("<d")


def tolerances(training: TrainingSpec) -> Mapping[Quantity, float]:
    """The greatest distance of each quantity that is still near enough."""
    computed = _FULL if training.precision == "fp32" else _HALF
    crossing, state = BoundaryCodec(training, 0), computed + (_SHORT if training.memory == "lean" else 0.0)
    return {
        "parameters": state,
        "first moment": state,
        "second moment": state,
        "activations": computed + _ROUNDED[crossing.forward_codec],
        "gradients": computed + _ROUNDED[crossing.backward_codec],
        "norm": computed,
        "loss": loss_tolerance(training.precision),
    }


@dataclass(frozen=True)
class Compared:
    """Whether a segment came near enough, in words how near, and the greatest distance of each quantity that was found.

    ``vain``: as of ``trainer.audit.trivial_work``.
    """

    near: bool
    words: str
    found: Mapping[Quantity, float]
    vain: str = ""


class Distances:
    """Gathers how far a segment lies from its re-run, step by step."""

    def __init__(self, stage: Stage) -> None:
        """``stage``: that re-runs it."""
        self._stage = stage
        self.found: dict[Quantity, float] = defaultdict(float)

    def add_step(
        self,
        windows: Windows,
        theirs: Mapping[PayloadKey, bytes],
        ours: Mapping[PayloadKey, bytes],
        their_loss: float | None,
        our_loss: float | None,
    ) -> None:
        """What a step sent, and its loss where it has one. ``windows``: its batch, ``[b, sequence + 1]``."""
        training = self._stage.training
        ids = [torch.from_numpy(ids_of(windows[part][:, :-1])) for part in micro_batches(training)]
        names: Mapping[str, Quantity] = {"activation": "activations", "gradient": "gradients"}
        for kind, name in names.items():
            keys = [key for key in ours if key[0] == kind]
            vectors = [key for key in keys if key[1] < len(ids)]
            self._add(name, vectors, theirs, ours, ids)
            self._add("norm", [key for key in keys if key not in vectors], theirs, ours, ids)
        if our_loss is not None:
            self._note("loss", math.inf if their_loss is None else abs(their_loss - our_loss) / max(our_loss, _TINY))

    def add_state(self, before: StageState, theirs: StageState, ours: StageState) -> None:
        """The state after the segment."""
        vectors = (self._stage.decoded(state) for state in (theirs, ours, before))
        quantities: tuple[Quantity, ...] = ("parameters", "first moment", "second moment")
        for name, (their, our, first) in zip(quantities, zip(*vectors, strict=True), strict=True):
            self._note(name, distance(their, our, first))
        if theirs.adam_steps != ours.adam_steps and self._stage.training.precision != "fp16":
            self._note("parameters", math.inf)  # In fp16 a step that overflows on one machine only is left out there.

    def compared(self) -> Compared:
        """Hold what was found against the tolerances."""
        allowed = tolerances(self._stage.training)
        worst = max(self.found, key=lambda name: self.found[name] / allowed[name])
        words = f"{worst} {self.found[worst]:.2g} away, {allowed[worst]:.2g} allowed"
        near = all(value <= allowed[name] for name, value in self.found.items())
        return Compared(near, words, dict(self.found))

    def _add(
        self,
        name: Quantity,
        keys: list[PayloadKey],
        theirs: Mapping[PayloadKey, bytes],
        ours: Mapping[PayloadKey, bytes],
        ids: list[Tensor],
    ) -> None:
        if not keys:
            return
        own = torch.cat([self._values(key, ours[key], ids) for key in keys])
        try:
            self._note(name, distance(torch.cat([self._values(key, theirs[key], ids) for key in keys]), own))
        except CodecError:
            self._note(name, math.inf)

    def _note(self, name: Quantity, value: float) -> None:
        self.found[name] = math.inf if math.isnan(value) else max(self.found[name], value)

    def _values(self, key: PayloadKey, payload: bytes, ids: list[Tensor]) -> Tensor:
        """The vector that a payload carries: hidden states, their gradients, or the sum of squares after them."""
        kind, micro = key
        if micro >= len(ids):
            if len(payload) != _SQUARE.size:
                raise CodecError(f"{len(payload)} bytes where a sum of squares has {_SQUARE.size}")
            return torch.tensor(_SQUARE.unpack(payload), dtype=torch.float64).sqrt()
        crossing = self._stage.crossing
        if kind == "activation":
            return crossing.activations(payload, ids[micro], "forward").flatten()
        return crossing.gradients(payload, ids[micro]).flatten()


def distance(theirs: Tensor, ours: Tensor, origin: Tensor | None = None) -> float:
    """The length of ``theirs - ours`` over that of ``ours - origin``; tensors of one shape, 0 where both lengths are.

    Args:
        origin: None: zero.
    """
    apart = float(torch.linalg.vector_norm(theirs - ours, dtype=torch.float64))
    way = float(torch.linalg.vector_norm(ours if origin is None else ours - origin, dtype=torch.float64))
    return 0.0 if apart == 0 else apart / way if way > 0 else math.inf
