"""The end of an inner step: the gradients' norm over all stages, clipping, and the optimizer.

The norm of a model that is cut into stages is known to nobody. Where a job clips, or computes in half floats, each stage
sends the sum of squares of itself and all stages after it up the pipeline when its backward pass is done, and the first
stage sends the total down again: eight bytes a boundary each way, which travel while the pipeline drains and fills anyway.
They are payloads like any other, with the micro-batch index after the last: part of the commitment, and of a re-run.
"""

import math
import struct

import torch

from trainer.data import micro_batches
from trainer.errors import CodecError, NonFiniteError
from trainer.rates import learning_rate
from trainer.stage import Stage
from trainer.steps import Boundary, Position
from transport.wire.job import TrainingSpec

_SQUARE = struct.Struct("<d")
_TINY = 1e-6  # As in torch.nn.utils.clip_grad_norm_.


def crossings(training: TrainingSpec) -> int:
    """Payloads that cross a boundary each way in a step: one a micro-batch, and one more where the norm is shared."""
    return len(micro_batches(training)) + _shares_norm(training)


def update(stage: Stage, position: Position, boundary: Boundary, step: int, total_steps: int) -> None:
    """Use up the gradients of a step; ``step`` is the global index.

    A step in half floats whose gradients overflowed in any stage changes nothing in all of them.

    Raises:
        NonFiniteError: gradients of another precision are not finite.
        CodecError: a neighbour's payload is no sum of squares.
    """
    training = stage.training
    if training.precision == "fp16":
        stage.gradients.mul_(1 / training.loss_scale)
    if _shares_norm(training):
        norm = math.sqrt(_total_square(stage, position, boundary))
        if not math.isfinite(norm):
            if training.precision != "fp16":
                raise NonFiniteError(
                    f"the norm of the gradients became {norm}: lower training.learning_rate or training.clip_norm"
                )
            stage.gradients.zero_()
            return
        if training.clip_norm is not None and norm > training.clip_norm:
            stage.gradients.mul_(training.clip_norm / (norm + _TINY))
    stage.adam_step(learning_rate(training, step, total_steps))


def _shares_norm(training: TrainingSpec) -> bool:
    return training.clip_norm is not None or training.precision == "fp16"


def _total_square(stage: Stage, position: Position, boundary: Boundary) -> float:
    """The sum of squares over all stages, the same bits in all of them."""
    index, total = len(micro_batches(stage.training)), _own_square(stage)
    after, before = position.stage < position.stages - 1, position.stage > 0
    if after:
        total += _read(boundary.receive("gradient", index))
    if before:
        boundary.send("gradient", index, _SQUARE.pack(total), _SQUARE.size)
        total = _read(boundary.receive("activation", index))
    if after:
        boundary.send("activation", index, _SQUARE.pack(total), _SQUARE.size)
    return total


def _own_square(stage: Stage) -> float:
    """In double precision; infinite where the gradients hold anything that is not finite."""
    square = float(torch.linalg.vector_norm(stage.gradients, dtype=torch.float64)) ** 2
    return square if math.isfinite(square) else math.inf


def _read(payload: bytes) -> float:
    if len(payload) != _SQUARE.size:
        raise CodecError(f"{len(payload)} bytes where the gradients' sum of squares has {_SQUARE.size}")
    (value,) = _SQUARE.unpack(payload)
    if not value >= 0:
        raise CodecError(f"the sum of squares of a stage's gradients is {value}: it cannot be less than zero")
    return float(value)
