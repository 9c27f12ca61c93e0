"""Deep Gradient Compression: the largest tenth of a percent of the gradients at every step, and the rest later.

Each replica keeps a momentum ``u`` and what it has not sent yet ``v``, in the stage's two moments: ``u = m u + g``, ``v = v + u``
(momentum correction); the largest values of ``v`` are sent and zeroed in both (momentum factor masking). Everybody moves against
the mean, so this is momentum SGD: its learning rate is about a hundred times AdamW's. Gradients are clipped before they are
added, to ``clip_norm / sqrt(replicas)``. For the first tenth of the steps more is sent: a quarter, a sixteenth and so on.

Source: Deep Gradient Compression, arXiv 1712.01887, algorithm 4 and section 3.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from trainer.codecs import decode, encode, encoded_size
from trainer.codecs.varint import GlobalTopK
from trainer.outer.checks import mean_update
from trainer.outer.every_step import Moment
from trainer.stage.stage import Stage
from trainer.transfer import to_device

MOMENTUM = 0.9
WARM_UP_SHARE = 10  # Of the steps, as a divisor.
WARM_UP = (0.25, 0.0625, 0.015625, 0.004)


@dataclass(frozen=True)
class DGC:
    """A ``StepMethod`` with its own optimizer; ``density`` after the warm-up."""

    density: float
    momentum: float = MOMENTUM
    optimizes: bool = True

    def message(self, stage: Stage, at: Moment) -> bytes:
        """As ``StepMethod.message``."""
        velocity, unsent = stage.first_moment, stage.second_moment
        velocity.mul_(self.momentum).add_(stage.gradients)
        unsent.add_(velocity)
        codec = self._codec(at)
        data = encode(unsent, codec)
        sent = to_device(decode(data, tuple(unsent.shape), codec) != 0, stage.device)
        velocity.masked_fill_(sent, 0.0)
        unsent.masked_fill_(sent, 0.0)
        return data

    def limit(self, stage: Stage, at: Moment) -> int:
        """As ``StepMethod.limit``."""
        return encoded_size((stage.gradients.numel(),), self._codec(at))

    def reduce(self, stage: Stage, messages: Mapping[int, bytes], at: Moment) -> None:
        """As ``StepMethod.reduce``."""
        shape, codec = (stage.gradients.numel(),), self._codec(at)
        mean = mean_update([decode(messages[replica], shape, codec) for replica in sorted(messages)])
        mean.masked_fill_(_padding(stage), 0.0)
        stage.decay_parameters(at.rate)
        stage.parameters.sub_(to_device(mean.mul_(at.rate), stage.device))
        stage.gradients.zero_()

    def _codec(self, at: Moment) -> GlobalTopK:
        steps = max(1, at.total // WARM_UP_SHARE)
        if at.step >= steps:
            return GlobalTopK(self.density)
        return GlobalTopK(max(self.density, WARM_UP[at.step * len(WARM_UP) // steps]))


def _padding(stage: Stage) -> torch.Tensor:
    free = torch.ones(stage.gradients.numel(), dtype=torch.bool)
    for slot in stage.slots:
        free[slot.start : slot.start + slot.count] = False
    return free
