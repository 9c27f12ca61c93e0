"""How long an answer in an audit may take: from bytes, from operations, and from what was measured of the node.

::

    asked --makes it: operations--> made, so many bytes --sends it: bytes--> here
    auditor ------ fetches it: bytes, runs it again: operations -----------> verdict
    a side of a dispute -- the same, traced, and an operation's inputs ----> answer

Each of these has at least ``Config.audit_seconds`` and at most ``MOST_S``. A node can stretch none of them for ever: bytes
that it says are believed up to what its stage can come to, and a rate is no reason for more than ``MOST_S``.
"""

import msgspec

from coordinator.domain.audits.trust import Audit
from protocol.boundary import micro_count
from protocol.job.job import TOGETHER, TrainingSpec
from protocol.models.boundary_bytes import recorded_bytes, step_cost
from protocol.models.model import ModelShape
from protocol.network import ASSUMED_DOWN, ASSUMED_UP
from protocol.task import Layers

# The line carries the training too, a machine does other things beside, and an upload may begin anew once.
SAFETY = 2.0
# 200 million parameters with their outer step, at once, on 20 Mbit/s, take 36 minutes, and twice that.
MOST_S = 7200.0
# Times what a step takes: its trace about twice, the steps before it, and all of it again for an operation's inputs.
TRACED = 8.0
# Bytes a second that a home machine's processor puts through SHA-256; a trace hashes all that its step writes.
HASHED = 200e6
MAX_INPUT_BYTES = 2 << 30  # As a worker shows of an operation.
HEAD_BYTES = 16 << 20  # Leaves and proofs, as a worker takes them.
FLOAT32 = 4
_SHOWN = 4 + 3 + 3  # Vectors: the state before with the anchor, what the method carries, and the state after.
SHORT_BYTES = 2.0  # Bytes a parameter of a lean state in short form (`benchmarks/trust/audit_bytes.py`).
_OUTER = 2  # Anchor and outer momentum.
_PADDING = 1.1  # Of what a stage has: each tensor's place is rounded up.


class AnswerMeans(msgspec.Struct, frozen=True):
    """What a node answers with: operations and bytes a second; None: its line was not measured."""

    speed: float
    up: float | None = None
    down: float | None = None


class Effort(msgspec.Struct, frozen=True):
    """What an answer takes: operations, bytes each way, and bytes that are hashed."""

    operations: float = 0.0
    sent: float = 0.0
    fetched: float = 0.0
    hashed: float = 0.0


def seconds(means: AnswerMeans, effort: Effort, least: float) -> float:
    """How long an answer may take; ``least``: however little it is."""
    takes = effort.operations / max(1.0, means.speed) + effort.hashed / HASHED
    takes += effort.sent / (means.up or ASSUMED_UP) + effort.fetched / (means.down or ASSUMED_DOWN)
    return min(max(least, SAFETY * takes), max(least, MOST_S))


def opening_bytes(shape: ModelShape, training: TrainingSpec, layers: Layers, last: int, steps: int) -> int:
    """More than any opening of a step comes to.

    Args:
        layers: of the stage. ``last``: layers of the whole model.
        steps: of a segment.
    """
    vectors = _SHOWN * FLOAT32 * _PADDING * parameters_of(shape, layers, last)
    return HEAD_BYTES + int(vectors) + 2 * steps * _payload_bytes(shape, training, layers, last)


def short_bytes(shape: ModelShape, training: TrainingSpec, layers: Layers, last: int, steps: int) -> int:
    """About what an opening of a lean stage comes to without its anchor."""
    state = int(SHORT_BYTES * parameters_of(shape, layers, last))
    return state + steps * _payload_bytes(shape, training, layers, last)


def outer_bytes(shape: ModelShape, layers: Layers, last: int, replicas: int) -> int:
    """More than any opening of an outer step comes to: no contribution is longer than the values themselves."""
    vectors = (_OUTER + replicas) * FLOAT32 * _PADDING * parameters_of(shape, layers, last)
    return HEAD_BYTES + int(vectors)


def input_bytes(shape: ModelShape, layers: Layers, last: int) -> int:
    """About the most that one operation of a step reads: an optimizer's, over the whole stage."""
    return min(MAX_INPUT_BYTES, 4 * FLOAT32 * parameters_of(shape, layers, last))


def traced_bytes(shape: ModelShape, training: TrainingSpec, layers: Layers, last: int) -> int:
    """About what the operations of a step write: gradients for each micro-batch, the optimizer's vectors, all activations."""
    vectors = 2 * micro_count(training) + 12
    activations = training.batch * training.sequence * shape.hidden * 40 * (layers.last - layers.first)
    written = step_cost(training, recomputes=False) * activations
    return int(FLOAT32 * (vectors * parameters_of(shape, layers, last) + written))


def parameters_of(shape: ModelShape, layers: Layers, last: int) -> int:
    """Scalars of a stage."""
    return shape.stage_parameters(layers.first, layers.last, layers.first == 0, layers.last == last)


def _payload_bytes(shape: ModelShape, training: TrainingSpec, layers: Layers, last: int) -> int:
    """What a step of the stage receives, or sends, at most."""
    crossing = recorded_bytes(shape, training, training.batch * training.sequence)
    exchanged = FLOAT32 * parameters_of(shape, layers, last) if training.outer in TOGETHER else 0
    return crossing + exchanged


def asked(audit: Audit, now: float) -> Audit:
    """The audit whose present phase has just begun."""
    return msgspec.structs.replace(audit, asked=now)


def sending(audit: Audit, size: int, now: float) -> Audit:
    """The prover has made its opening of so many bytes, which is on its way from now on."""
    return audit if audit.made is None or audit.size else msgspec.structs.replace(audit, size=size, asked=now)


def due(audit: Audit, allowed: float) -> Audit:
    """With the deadline that its present phase has, if that is later: what was granted is not taken back."""
    deadline = audit.asked + allowed
    return msgspec.structs.replace(audit, deadline=deadline) if deadline > audit.deadline else audit
