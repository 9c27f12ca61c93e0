"""One inner step of a stage: forward and backward over its micro-batches, payloads through a ``Boundary``.

The worker, the replay of an auditor and the single process all run this same code.
"""

import hashlib
import math
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from trainer.codecs import CodecName, decode, encode
from trainer.data import Windows, micro_batches
from trainer.errors import NonFiniteError, RoundError
from trainer.schedule import one_forward_one_backward
from trainer.stage import Stage

Kind = Literal["activation", "gradient"]
PayloadKey = tuple[Kind, int]
"""What crosses a boundary in a step: its kind and the micro-batch."""

ACTIVATION_CODECS: dict[str, CodecName] = {"int8": "int8-token", "fp32": "fp32"}


class Boundary(Protocol):
    """Where a stage's payloads come from and go to."""

    def receive(self, kind: Kind, micro: int) -> bytes:
        """Wait for the neighbour's payload; raises ``AbandonedError`` when the round is given up."""

    def send(self, kind: Kind, micro: int, payload: bytes, naive: int) -> None:
        """Hand over a payload; ``naive`` is its size in float32."""


@dataclass
class Recorder:
    """A boundary that keeps what came and the digests of what went, for the commitment."""

    inner: Boundary
    received: dict[PayloadKey, bytes] = field(default_factory=dict)
    sent: dict[PayloadKey, bytes] = field(default_factory=dict)

    def receive(self, kind: Kind, micro: int) -> bytes:
        """As ``Boundary.receive``."""
        payload = self.inner.receive(kind, micro)
        self.received[kind, micro] = payload
        return payload

    def send(self, kind: Kind, micro: int, payload: bytes, naive: int) -> None:
        """As ``Boundary.send``."""
        self.sent[kind, micro] = payload
        self.inner.send(kind, micro, payload, naive)


@dataclass
class Recorded:
    """A boundary that plays back what was received once; what is sent goes nowhere."""

    payloads: dict[PayloadKey, bytes]

    def receive(self, kind: Kind, micro: int) -> bytes:
        """The payload of then."""
        try:
            return self.payloads[kind, micro]
        except KeyError as error:
            raise RoundError(f"no {kind} of micro-batch {micro} was recorded") from error

    def send(self, kind: Kind, micro: int, payload: bytes, naive: int) -> None:
        """Do nothing: nobody listens."""


@dataclass(frozen=True)
class Position:
    """Which stage of how many."""

    stage: int
    stages: int

    def expected(self, micros: int) -> list[PayloadKey]:
        """What a step receives, in the order of its commitment."""
        keys: list[PayloadKey] = []
        if self.stage > 0:
            keys += [("activation", micro) for micro in range(micros)]
        if self.stage < self.stages - 1:
            keys += [("gradient", micro) for micro in range(micros)]
        return keys

    def produced(self, micros: int) -> list[PayloadKey]:
        """What a step sends, in the order of its commitment."""
        keys: list[PayloadKey] = []
        if self.stage < self.stages - 1:
            keys += [("activation", micro) for micro in range(micros)]
        if self.stage > 0:
            keys += [("gradient", micro) for micro in range(micros)]
        return keys


def accumulate(stage: Stage, position: Position, windows: Windows, boundary: Boundary, share: int = 1) -> float | None:
    """Add one batch's gradients to the stage's.

    Args:
        windows: the whole batch ``[b, sequence + 1]``; stages between the ends use only its shape.
        share: over how many such batches the gradient is averaged.
    Returns:
        Mean cross-entropy in nats a token on the last stage, ``None`` on the others.
    Raises:
        NonFiniteError: the loss is NaN or infinite. CodecError: a neighbour's payload is not what belongs here.
    """
    parts = micro_batches(stage.training)
    tokens = int(windows.shape[0]) * (int(windows.shape[1]) - 1)
    open_passes: dict[int, tuple[Tensor, Tensor]] = {}
    total = 0.0
    for action in one_forward_one_backward(position.stage, position.stages, len(parts)):
        micro, rows = action.micro, torch.from_numpy(windows[parts[action.micro]])
        if action.kind == "forward":
            inputs = _inputs(stage, rows, boundary, micro)
            outputs = stage.forward(inputs)
            if stage.cut.is_last:
                summed = stage.loss(outputs, rows[:, 1:])
                total += float(summed.detach())
                outputs = summed / (tokens * share)
            else:
                _send(stage, "activation", micro, outputs, boundary)
            open_passes[micro] = (inputs, outputs)
        else:
            _backward(stage, micro, *open_passes.pop(micro), boundary)
    if not stage.cut.is_last:
        return None
    if not math.isfinite(total):
        raise NonFiniteError(f"the loss became {total}: lower training.learning_rate")
    return total / tokens


def heldout_loss(stage: Stage, parts: list[Windows], boundary: Boundary) -> float | None:
    """Mean cross-entropy over held-out windows, forward only and never quantised; ``None`` before the last stage."""
    total, tokens = 0.0, 0
    for micro, windows in enumerate(parts):
        rows = torch.from_numpy(windows)
        if stage.cut.is_first:
            inputs = rows[:, :-1]
        else:
            shape = (rows.shape[0], rows.shape[1] - 1, stage.shape.hidden)
            # Outside no_grad: while this waits, the thread may re-run a step for an audit, with gradients.
            inputs = decode(boundary.receive("activation", micro), shape, "fp32")
        with torch.no_grad():
            outputs = stage.forward(inputs)
            if stage.cut.is_last:
                total += float(stage.loss(outputs, rows[:, 1:]))
        if stage.cut.is_last:
            tokens += rows.shape[0] * (rows.shape[1] - 1)
        else:
            boundary.send("activation", micro, encode(outputs, "fp32"), 4 * outputs.numel())
    return total / tokens if stage.cut.is_last else None


def digests(payloads: dict[PayloadKey, bytes], keys: list[PayloadKey]) -> tuple[str, ...]:
    """SHA-256 of each payload, in the order of ``keys``."""
    return tuple(hashlib.sha256(payloads[key]).hexdigest() for key in keys)


def _inputs(stage: Stage, rows: Tensor, boundary: Boundary, micro: int) -> Tensor:
    if stage.cut.is_first:
        return rows[:, :-1]
    shape = (rows.shape[0], rows.shape[1] - 1, stage.shape.hidden)
    received = decode(boundary.receive("activation", micro), shape, ACTIVATION_CODECS[stage.training.activations])
    return received.to(stage.device).requires_grad_()


def _backward(stage: Stage, micro: int, inputs: Tensor, outputs: Tensor, boundary: Boundary) -> None:
    if stage.cut.is_last:
        torch.autograd.backward(outputs)
    else:
        codec = ACTIVATION_CODECS[stage.training.activations]
        gradient = decode(boundary.receive("gradient", micro), tuple(outputs.shape), codec)
        torch.autograd.backward(outputs, gradient.to(stage.device))
    if not stage.cut.is_first:
        assert inputs.grad is not None
        _send(stage, "gradient", micro, inputs.grad, boundary)


def _send(stage: Stage, kind: Kind, micro: int, values: Tensor, boundary: Boundary) -> None:
    payload = encode(values, ACTIVATION_CODECS[stage.training.activations])
    boundary.send(kind, micro, payload, 4 * values.numel())
