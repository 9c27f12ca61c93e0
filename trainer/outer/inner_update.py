"""The end of an inner step: the gradients' norm over all stages, clipping, and the optimizer.

The norm of a model that is cut into stages is known to nobody. Where a job clips, or computes in half floats, each stage
sends the sum of squares of itself and all stages after it up the pipeline when its backward pass is done, and the first
stage sends the total down again: eight bytes a boundary each way, which travel while the pipeline drains and fills anyway.
They are payloads like any other, with the micro-batch index after the last: part of the commitment, and of a re-run.
"""

import math
import struct

import torch

from protocol.boundary import Position, shares_norm
from protocol.job.job import TrainingSpec
from protocol.job.learning_rate import learning_rate
from trainer.data.data import micro_batches
from trainer.errors import CodecError, NonFiniteError
from trainer.outer.choice import step_method
from trainer.outer.every_step import Moment, exchange
from trainer.stage.stage import Stage
from trainer.stage.steps import Boundary
from trainer.transfer import numbers

_SQUARE = struct.Struct("<d")
_TINY = 1e-6  # As in torch.nn.utils.clip_grad_norm_.


def update(stage: Stage, position: Position, boundary: Boundary, step: int, total_steps: int) -> bool:
    """Use up the gradients of a step, with the other replicas where the method says so; ``step`` is the global index.

    Returns:
        False for a step in half floats whose gradients overflowed in any stage: it changes nothing in all of them.

    Raises:
        NonFiniteError: gradients of another precision are not finite.
        CodecError: a neighbour's payload is no sum of squares.
    """
    training, method = stage.training, step_method(stage.training)
    at = Moment(learning_rate(training, step, total_steps), step, total_steps)
    if method is not None and not method.optimizes and position.peers:
        exchange(method, stage, position, boundary, at)
    if training.precision == "fp16":
        stage.gradients.mul_(1 / training.loss_scale)
    if shares_norm(training):
        norm = math.sqrt(_total_square(stage, position, boundary))
        if not math.isfinite(norm):
            if training.precision != "fp16":
                raise NonFiniteError(
                    f"the norm of the gradients became {norm}: lower training.learning_rate or training.clip_norm"
                )
            stage.gradients.zero_()
            return False
        clip = _clip(training, position)
        if clip is not None and norm > clip:
            stage.gradients.mul_(clip / (norm + _TINY))
    if method is not None and method.optimizes:
        exchange(method, stage, position, boundary, at)
    else:
        stage.adam_step(at.rate)
    return True


def _clip(training: TrainingSpec, position: Position) -> float | None:
    """What the norm may be: of one replica's part where the others' is added to it only later."""
    if training.clip_norm is None or training.outer != "dgc":
        return training.clip_norm
    return training.clip_norm / math.sqrt(1 + len(position.peers))


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
    parts = (stage.gradients[part] for part in stage.parts(slice(0, stage.gradients.numel())))
    norms = [torch.linalg.vector_norm(part, dtype=torch.float64) for part in parts]
    square = math.fsum(norm**2 for norm in numbers(norms))
    return square if math.isfinite(square) else math.inf


def _read(payload: bytes) -> float:
    if len(payload) != _SQUARE.size:
        raise CodecError(f"{len(payload)} bytes where the gradients' sum of squares has {_SQUARE.size}")
    (value,) = _SQUARE.unpack(payload)
    if not value >= 0:
        raise CodecError(f"the sum of squares of a stage's gradients is {value}: it cannot be less than zero")
    return float(value)
