"""What a step of a stage takes in and gives out, and in which order its leaf names it: the same for trainer and coordinator.

Two members that exchange in a step each commit to what crossed between them: one to what it sent, the other to what it
received. ``differences`` holds their leaves against each other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from protocol.audit import StepLeaf
from protocol.ids import Digest
from protocol.job.job import TOGETHER, TrainingSpec
from protocol.plan import Plan

Kind = Literal["activation", "gradient", "offer", "behind", "ahead", "exchange"]
PayloadKey = tuple[Kind, int]
"""What goes into a step: its kind and the micro-batch.

``activation`` and ``gradient`` cross a boundary, so does ``offer`` (``trainer.stage.activation_cache``, one a step,
upstream). ``behind`` and
``ahead`` are entries of this stage's own caches, recorded like what was received since the step depends on them. ``exchange``
goes between replicas of the stage, and has the sender's number.
"""


def micro_count(training: TrainingSpec) -> int:
    """Micro-batches of a step: none is empty."""
    return min(training.micro_batches, training.batch)


def shares_norm(training: TrainingSpec) -> bool:
    """Whether the stages tell each other their gradients' sums of squares at a step's end."""
    return training.clip_norm is not None or training.precision == "fp16"


def crossings(training: TrainingSpec) -> int:
    """Payloads that cross a boundary each way in a step: one a micro-batch, and one more where the norm is shared."""
    return micro_count(training) + shares_norm(training)


def comparable_across(training: TrainingSpec) -> bool:
    """Whether what a segment of steps came to can be held against a re-run by another environment class.

    Not where replicas exchange within steps or contribute before the round's end, nor where activations cross as differences to
    what the stages have cached: such payloads are no vectors with a distance, or are not shown.
    """
    return training.outer not in TOGETHER and training.overlap == 0 and training.activations != "aq4"


@dataclass(frozen=True)
class Position:
    """Which stage of how many; which replica, and with which others it exchanges in every step."""

    stage: int
    stages: int
    cached: int = 0
    """Micro-batches whose activations are differences to cached ones: all of a step's, or none."""
    replica: int = 0
    peers: tuple[int, ...] = ()

    @staticmethod
    def of(stage: int, stages: int, training: TrainingSpec) -> "Position":
        """The place of a stage in a pipeline of a job."""
        return Position(stage, stages, micro_count(training) if training.activations == "aq4" else 0)

    def expected(self, micros: int) -> list[PayloadKey]:
        """What a step receives and recalls, in the order of its commitment."""
        keys: list[PayloadKey] = []
        if self.stage > 0:
            keys += [("activation", micro) for micro in range(micros)]
        if self.stage < self.stages - 1:
            keys += [("gradient", micro) for micro in range(micros)]
        if self.cached and self.stage > 0:
            keys += [("behind", micro) for micro in range(self.cached)]
        if self.cached and self.stage < self.stages - 1:
            keys += [("offer", 0), *(("ahead", micro) for micro in range(self.cached))]
        return keys + [("exchange", peer) for peer in self.peers]

    def produced(self, micros: int) -> list[PayloadKey]:
        """What a step makes and sends, in the order of its commitment; an offer is no result of it."""
        keys: list[PayloadKey] = []
        if self.stage < self.stages - 1:
            keys += [("activation", micro) for micro in range(micros)]
        if self.stage > 0:
            keys += [("gradient", micro) for micro in range(micros)]
        return [*keys, ("exchange", self.replica)] if self.peers else keys

    def hands(self, other: "Position", micros: int) -> list[PayloadKey]:
        """What of ``produced`` goes to another member of the job; nothing where the two do not exchange."""
        if self.replica == other.replica and self.stage + 1 == other.stage:
            return [("activation", micro) for micro in range(micros)]
        if self.replica == other.replica and self.stage == other.stage + 1:
            return [("gradient", micro) for micro in range(micros)]
        return [("exchange", self.replica)] if self.stage == other.stage and self.replica in other.peers else []


def position_of(plan: Plan, stage: int, replica: int, training: TrainingSpec) -> Position:
    """Where a member stands, and with whom it exchanges in every step."""
    peers = tuple(p for p in plan.replicas() if p != replica) if training.outer in TOGETHER else ()
    cached = Position.of(stage, len(plan.layers), training).cached
    return Position(stage, len(plan.layers), cached, replica, peers)


def fits(position: Position, leaf: StepLeaf, micros: int) -> bool:
    """Whether a leaf names as many payloads as a step there has."""
    return len(leaf.received) == len(position.expected(micros)) and len(leaf.sent) == len(position.produced(micros))


def differences(
    one: tuple[Position, StepLeaf], other: tuple[Position, StepLeaf], micros: int
) -> tuple[PayloadKey, ...]:
    """What one of two members says it sent and the other says it received otherwise, both ways; of leaves that fit."""
    found: list[PayloadKey] = []
    for (sender, gave), (receiver, took) in ((one, other), (other, one)):
        sent = _named(sender.produced(micros), gave.sent)
        received = _named(receiver.expected(micros), took.received)
        found += [key for key in sender.hands(receiver, micros) if sent[key] != received[key]]
    return tuple(found)


def _named(keys: list[PayloadKey], digests: tuple[Digest, ...]) -> Mapping[PayloadKey, Digest]:
    return dict(zip(keys, digests, strict=True))
