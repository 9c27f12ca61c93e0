"""Exchanging at every inner step: what replicas send instead of waiting for the end of a round.

The exchange is part of a step: payloads are recorded and committed to like those of the pipeline, so a step that was drawn runs
again exactly. A round still ends with an outer step, which averages what differs between machines that round differently, and
which checks by hash that all go on alike.

Every replica waits for every other one at each step, so a round that loses a member is done again by all
(``protocol.job.job.TOGETHER``).

* ``gradients``: 4-bit gradients in blocks of 256 whose levels are squares (``trainer.codecs.dense.Squares4``), for fast links:
  7.9 times fewer bytes; error feedback brings nothing at 4 bits. Blocks as in ZeRO++, arXiv 2306.10209, section 3.3.
* ``demo``: ``trainer.outer.demo``. ``dgc``: ``trainer.outer.dgc``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from protocol.boundary import Position
from trainer.codecs import CodecName, decode, encode, encoded_size
from trainer.outer.checks import mean_update
from trainer.stage.stage import Stage
from trainer.stage.steps import Boundary
from trainer.transfer import fill

GRADIENT_CODEC: CodecName = "int4-squares"


@dataclass(frozen=True)
class Moment:
    """Where a job is: the learning rate of the step, its global index and how many there are."""

    rate: float
    step: int
    total: int


class StepMethod(Protocol):
    """How replicas learn from each other once an inner step.

    Attributes:
        optimizes: ``reduce`` moves the parameters itself; else it makes the gradients common, and the job's optimizer goes on.
    """

    @property
    def optimizes(self) -> bool:
        """As above."""

    def message(self, stage: Stage, at: Moment) -> bytes:
        """What the other replicas get of this one's gradients; may change the stage's moments, which belong to the method."""

    def limit(self, stage: Stage, at: Moment) -> int:
        """Bytes of the longest message of a step."""

    def reduce(self, stage: Stage, messages: Mapping[int, bytes], at: Moment) -> None:
        """Use the messages of all replicas, this one's included; raises ``CodecError``."""


def exchange(method: StepMethod, stage: Stage, position: Position, boundary: Boundary, at: Moment) -> None:
    """Send this replica's message, wait for all others', and use them.

    Raises:
        CodecError: a message is none of this step. AbandonedError: the round is given up.
    """
    messages = {position.replica: method.message(stage, at)}
    if position.peers:
        boundary.send("exchange", position.replica, messages[position.replica], 4 * stage.parameter_count)
    for peer in position.peers:
        messages[peer] = boundary.receive("exchange", peer)
    method.reduce(stage, messages, at)


@dataclass(frozen=True)
class Gradients:
    """A ``StepMethod``: the mean of 4-bit gradients takes the place of each replica's own."""

    optimizes: bool = False

    def message(self, stage: Stage, at: Moment) -> bytes:
        """As ``StepMethod.message``."""
        return encode(stage.gradients.float(), GRADIENT_CODEC)

    def limit(self, stage: Stage, at: Moment) -> int:
        """As ``StepMethod.limit``."""
        return encoded_size((stage.gradients.numel(),), GRADIENT_CODEC)

    def reduce(self, stage: Stage, messages: Mapping[int, bytes], at: Moment) -> None:
        """As ``StepMethod.reduce``."""
        shape = (stage.gradients.numel(),)
        mean = mean_update([decode(messages[p], shape, GRADIENT_CODEC) for p in sorted(messages)])
        fill(stage.gradients, mean.to(stage.gradients.dtype))
