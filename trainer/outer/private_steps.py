"""An owner's steps where the promise is about one example: its gradient is cut to a norm, and noise is on the sum (DP-SGD).

::

    each example that was drawn --> its own gradient --> clip to an L2 norm --+
    another one                 --> its own gradient --> clip ----------------+--> sum --> + Gaussian noise --> / batch --> AdamW

From the noise on nothing knows the examples: moments, weights, the round's update, codecs, and what the others make of them are
post-processing. So updates leave as they are, and each step of a round is charged as a release to whoever sees all of them.

A gradient comes of a forward and a backward pass with one example alone: exact for any model, whatever its layers, and no
example's gradient is kept. Passes of a whole batch with a gradient an example (as opacus makes them with hooks on layers) are
quicker on a card, and know neither quantised matrices nor layers of ours.

The mean is over ``batch``, which everybody knows, and not over how many were drawn, which nobody may. A step that draws none is
a step of noise.

Source: Abadi et al., arXiv 1607.00133, algorithm 1.
"""

from dataclasses import dataclass

import torch

from protocol.job.federated import PrivacySpec
from trainer.data.data import Windows
from trainer.data.marks import learnt
from trainer.errors import RoundError
from trainer.outer.method import Layout
from trainer.outer.private import NoiseSource, shorten
from trainer.stage.micro_batch import MicroBatch
from trainer.stage.objective import summed
from trainer.stage.short import spans
from trainer.stage.stage import Stage


@dataclass(frozen=True)
class StepPrivacy:
    """How a step is made private.

    Attributes:
        clip: L2 norm that an example's gradient is scaled down to.
        noise: standard deviation of the noise on their sum, in clips.
    """

    clip: float
    noise: float

    @classmethod
    def of(cls, spec: PrivacySpec) -> "StepPrivacy":
        """Those of a job's document; raises ``RoundError`` where it names no noise."""
        if spec.noise_multiplier is None:
            raise RoundError("federated.privacy.noise_multiplier is not settled, and no step is made without noise")
        return cls(spec.clip, spec.noise_multiplier)


def private_gradients(stage: Stage, windows: Windows, terms: StepPrivacy, noise: NoiseSource) -> None:
    """Leave the noised mean of the gradients of examples in ``stage.gradients``, for an optimizer.

    Args:
        stage: the whole model. windows: ``[b, sequence + 1]``, one example each, of which ``b`` may be 0.
    """
    total = torch.zeros_like(stage.gradients)
    for example in range(len(windows)):
        stage.gradients.zero_()
        _pass(stage, windows[example : example + 1])
        shorten(stage.gradients, terms.clip)  # One that is not finite is zero: a refusal would tell of it.
        total.add_(stage.gradients)
    scale, batch = terms.noise * terms.clip, stage.training.batch
    for span in spans(total.numel()):
        noised = total[span].cpu().double().add_(noise.normal(span.stop - span.start), alpha=scale)
        stage.gradients[span] = noised.div_(batch).float().to(stage.device)
    Layout(tuple(stage.slots), stage.size).clear(stage.gradients)
    stage.mask_gradients()


def _pass(stage: Stage, window: Windows) -> None:
    """The gradient of an example's mean loss over what is learnt of it."""
    count = learnt(window)
    if count == 0:
        return
    batch = MicroBatch.of(window)
    stage.weigh(1.0)
    stage.backward(summed(stage, batch.ids, batch.ids, batch) / count)
    stage.mask_gradients()
