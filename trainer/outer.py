"""The outer step between replicas: DiLoCo with encoded pseudo-gradients.

After a round of inner steps each replica of a stage has moved from the common *anchor* to its own parameters. It encodes
``anchor - parameters`` and sends the bytes to the same stage of the other replicas. Every member then decodes the same
bytes, its own included, averages them in the order of the replicas and takes one Nesterov step. Only single
multiplications, additions and divisions are used, which every processor rounds alike, so the new anchor is the same to the
last bit on all of them.

Source: DiLoCo, arXiv 2311.08105, algorithm 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.codecs import CodecName, decode, encode
from trainer.errors import RoundError
from transport.wire.job import TrainingSpec

PSEUDO_GRADIENT_CODECS: Mapping[str, CodecName] = {"int8": "int8-block", "fp32": "fp32"}


@dataclass
class OuterState:
    """What all replicas of a stage share at the beginning of a round: flat ``[n]`` float32 on the CPU."""

    anchor: Tensor
    momentum: Tensor


def pseudo_gradient(anchor: Tensor, parameters: Tensor, training: TrainingSpec) -> bytes:
    """Encoded ``anchor - parameters``.

    Raises:
        NonFiniteError: training has diverged.
    """
    return encode(anchor - parameters.detach().cpu(), PSEUDO_GRADIENT_CODECS[training.pseudo_gradient])


def check_pseudo_gradient(data: bytes, size: int, training: TrainingSpec) -> Tensor:
    """The flat ``[size]`` tensor of an encoded pseudo-gradient; raises ``CodecError`` as ``decode`` does."""
    return decode(data, (size,), PSEUDO_GRADIENT_CODECS[training.pseudo_gradient])


def outer_step(state: OuterState, contributions: Mapping[int, bytes], training: TrainingSpec) -> OuterState:
    """The next anchor and momentum.

    Args:
        contributions: encoded pseudo-gradients by replica; the order of the mapping does not matter.
    Raises:
        RoundError: nobody contributes.
        CodecError: bytes that are no pseudo-gradient of this stage.
    """
    if not contributions:
        raise RoundError("an outer step without any contribution: at least one replica must be whole")
    total = torch.zeros_like(state.anchor)
    for replica in sorted(contributions):
        total.add_(check_pseudo_gradient(contributions[replica], state.anchor.numel(), training))
    mean = total.div_(float(len(contributions)))
    momentum = state.momentum.mul(training.outer_momentum).add_(mean)
    update = momentum.mul(training.outer_momentum).add_(mean).mul_(training.outer_learning_rate)
    return OuterState(state.anchor.sub(update), momentum)
