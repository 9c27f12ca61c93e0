"""What a step minimises: cross-entropy, or how often the rejected one of two answers is still preferred (DPO).

::

    loss of a pair = -log sigmoid(beta * ((p(chosen) - r(chosen)) - (p(rejected) - r(rejected))))

``p`` is the log-probability of an answer by the model with its adapter, ``r`` by the *reference*, which is the model without.
Each micro-batch passes every stage twice, first as the reference has it and without gradients. Both cross in one payload, the
reference's rows first; gradients come back of the others alone. So a step has the payloads that any step has.

Source: Direct Preference Optimization, arXiv 2305.18290, equation 7.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from protocol.ids import MAX_LOSS
from protocol.task import PreferenceScore
from trainer.data.data import Windows
from trainer.data.marks import learnt, pairs
from trainer.stage.lora import without_adapters
from trainer.stage.micro_batch import MicroBatch
from trainer.stage.stage import Stage


def counted(stage: Stage, windows: Windows) -> int:
    """What the loss of windows is a mean over: learnt targets, or pairs of answers."""
    return learnt(windows) if stage.training.preference is None else pairs(windows)


def parted(stage: Stage, crossed: Tensor) -> tuple[Tensor, Tensor]:
    """A later stage's inputs, and those of the reference, of what crossed; on views of it."""
    if stage.training.preference is None:
        return crossed, crossed
    reference, own = crossed.chunk(2)
    return own, reference


def passed_on(stage: Stage, inputs: Tensor, reference: Tensor, batch: MicroBatch) -> tuple[Tensor, Tensor]:
    """What an earlier stage gives, and what of it crosses; ``reference``: the inputs of the model without adapters."""
    if stage.training.preference is None:
        outputs = stage.forward(inputs, batch.positions)
        return outputs, outputs.detach()
    with without_adapters():
        beside = stage.forward(reference, batch.positions)
    outputs = stage.forward(inputs, batch.positions)
    return outputs, torch.cat((beside, outputs.detach()))


def summed(stage: Stage, inputs: Tensor, reference: Tensor, batch: MicroBatch) -> Tensor:
    """The sum of a micro-batch's losses on the last stage; arguments as of ``passed_on``."""
    if stage.training.preference is None:
        return stage.summed_loss(inputs, batch.targets, batch.positions)
    return loss_of(margins(stage, inputs, reference, batch))


def margins(stage: Stage, inputs: Tensor, reference: Tensor, batch: MicroBatch) -> Tensor:
    """By how much each chosen answer's reward is above that of the rejected one, ``[pairs]`` float64, on the last stage.

    An answer's *reward* is ``beta * (p - r)``, as in the module's docstring; arguments as of ``passed_on``.
    """
    preference = stage.training.preference
    assert preference is not None
    with without_adapters():
        beside = stage.scores(reference, batch)
    gained = (stage.scores(inputs, batch) - beside).view(-1, 2)
    return preference.beta * (gained[:, 0] - gained[:, 1])


def score_of(found: Sequence[float]) -> PreferenceScore | None:
    """What ``margins`` of held-out pairs come to; None: there are no pairs."""
    if not found:
        return None
    mean = math.fsum(found) / len(found)
    return PreferenceScore(sum(one > 0 for one in found) / len(found), max(-MAX_LOSS, min(mean, MAX_LOSS)))


def loss_of(found: Tensor) -> Tensor:
    """The sum of the losses of pairs with these ``margins``."""
    return -functional.logsigmoid(found).sum()
