"""The loss of what an owner holds back, as it may be told: with noise, and where one unit of privacy changes little.

::

    each window --> its loss, at most ``most`` --> from -1 (none) to 1 (``most``) --> their mean --> + noise, or into a secure sum

With one unit's part taken away its windows count as 0, the middle. Where an owner is the unit that is all of them, and the mean
changes by 1 at most. Where an example is, it is one window of ``m``, and the mean changes by ``1 / m``.
"""

import math
from dataclasses import dataclass

import torch

from protocol.job.federated import PrivacySpec
from protocol.job.privacy_sum import loss_noise
from trainer.data.data import Windows
from trainer.outer.private import MOST_TOLD, NoiseSource
from trainer.stage.micro_batch import MicroBatch
from trainer.stage.objective import counted, summed
from trainer.stage.stage import Stage


@dataclass(frozen=True)
class OwnersLoss:
    """``mean``: in [-1, 1], without noise; ``windows``: that it is of."""

    mean: float
    windows: int

    def told(self, privacy: PrivacySpec, noise: NoiseSource) -> float:
        """In nats a token, with noise; it may be below nothing."""
        assert privacy.heldout is not None
        deviation = loss_noise(privacy) / (self.windows if privacy.per_example else 1)
        nats = privacy.heldout.most / 2 * (1 + self.mean + deviation * float(noise.normal(1)))
        return max(-MOST_TOLD, min(MOST_TOLD, nats))


def owners_loss(stage: Stage, windows: Windows, most: float) -> OwnersLoss:
    """That of the whole model as it stands, forward only.

    Args:
        windows: ``[m, sequence + 1]``, one example each. most: nats a token that one counts with at most.
    """
    found = []
    with torch.no_grad():
        for at in range(len(windows)):
            batch, count = MicroBatch.of(windows[at : at + 1]), counted(stage, windows[at : at + 1])
            loss = float(summed(stage, batch.ids, batch.ids, batch)) / count if count else 0.0
            found.append(min(loss, most) if math.isfinite(loss) else most)
    return OwnersLoss(2 * math.fsum(found) / len(found) / most - 1, len(found))
