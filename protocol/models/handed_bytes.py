"""How long what a worker hands to its agent can be, as arithmetic: whoever announces more is no worker of this job."""

from dataclasses import dataclass

from protocol.job.job import MAX_PERIOD, TOGETHER, JobSpec
from protocol.models.boundary_bytes import recorded_bytes
from protocol.models.model import ModelShape
from protocol.plan import Plan

FLOAT32 = 4
HEAD_BYTES = 16 << 20  # Leaves and proofs, or the names of tensors.
_PADDING = 1.1  # Of what a stage has: each tensor's place is rounded up.
_STATE = 2 + 2  # Vectors: anchor and outer momentum, and the optimizer's moments.
_SHOWN = 4 + 3 + 3  # Vectors: the state before with the anchor, what the method carries, and the state after.


@dataclass(frozen=True)
class HandedBytes:
    """The most bytes of a stage's state with its moments, and of a record, an opening or anything else."""

    state: int
    other: int


def handed_bytes(shape: ModelShape, spec: JobSpec, plan: Plan, stage: int | None, replicas: int) -> HandedBytes:
    """What a worker at ``stage`` hands over at most; what it audits may be of any other, with so many ``replicas``.

    Raises:
        ModelConfigError: the plan is none of this model.
    """
    training, last = spec.training, len(plan.layers) - 1
    learns = [
        sum(shape.stage_learns(layers.first, layers.last, at == 0, at == last, training.lora))
        for at, layers in enumerate(plan.layers)
    ]
    largest = max(learns)
    payloads = recorded_bytes(shape, training, training.batch * training.sequence)
    if training.outer in TOGETHER:
        payloads += replicas * FLOAT32 * largest
    steps = training.inner_steps if training.period == "fixed" else MAX_PERIOD
    shown = FLOAT32 * _PADDING * (_SHOWN + replicas) * largest + 2 * steps * payloads
    state = FLOAT32 * _PADDING * _STATE * (largest if stage is None else learns[stage])
    return HandedBytes(HEAD_BYTES + int(state), HEAD_BYTES + int(shown))
