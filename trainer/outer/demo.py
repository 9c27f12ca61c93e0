"""DeMo: momentum that is not shared, of which the strongest frequencies are sent and taken out.

Each replica adds its gradients to a momentum of its own, sends the ``KEEP`` strongest frequencies of each tile of 64 x 64 as
signs under one magnitude, and takes what it sent out of the momentum. Everybody averages each frequency over those that sent it,
goes back from frequencies to parameters and moves by the sign.

The momentum lives in the stage's first moment. It is the method's own optimizer: the learning rate is that of a sign step, about
a quarter of AdamW's.

Source: DeMo, arXiv 2411.19870, algorithm 1; 1-bit values as in DisTrO.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from trainer.codecs import decode, encode, encoded_size
from trainer.codecs.frequency import Frequencies, Tiled, restore, tiling, transform
from trainer.outer.every_step import Moment
from trainer.stage.stage import Stage
from trainer.transfer import HostCopy, to_device

KEEP = 8
DECAY = 0.999


@dataclass(frozen=True)
class DeMo:
    """A ``StepMethod`` with its own optimizer."""

    keep: int = KEEP
    decay: float = DECAY
    optimizes: bool = True

    def message(self, stage: Stage, at: Moment) -> bytes:
        """As ``StepMethod.message``."""
        momentum, codec = stage.first_moment, self._codec(stage)
        momentum.mul_(self.decay).add_(stage.gradients, alpha=at.rate)
        coefficients = transform(HostCopy(momentum).arrived(), codec.layout)
        data = encode(coefficients, codec)
        # What is taken out are the coefficients as they were, not their signs: else a sign's error would pile up.
        sent = decode(data, tuple(coefficients.shape), codec) != 0
        momentum.sub_(to_device(restore(coefficients.mul_(sent), codec.layout), stage.device))
        return data

    def limit(self, stage: Stage, at: Moment) -> int:
        """As ``StepMethod.limit``."""
        return encoded_size((stage.gradients.numel(),), self._codec(stage))

    def reduce(self, stage: Stage, messages: Mapping[int, bytes], at: Moment) -> None:
        """As ``StepMethod.reduce``."""
        codec, shape = self._codec(stage), (stage.gradients.numel(),)
        total, senders = torch.zeros(shape), torch.zeros(shape)
        for replica in sorted(messages):
            update = decode(messages[replica], shape, codec)
            total.add_(update)
            senders.add_(update != 0)
        direction = to_device(restore(total.div_(senders.clamp_min_(1.0)), codec.layout).sign_(), stage.device)
        stage.decay_parameters(at.rate)
        stage.parameters.sub_(direction.mul_(at.rate))
        stage.gradients.zero_()

    def _codec(self, stage: Stage) -> Frequencies:
        layout: tuple[Tiled, ...] = tuple(tiling(slot.start, slot.shape) for slot in stage.slots)
        return Frequencies(layout, self.keep)
