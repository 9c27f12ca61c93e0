"""A residual stream of which only a few channels ever change: the rest of it need not cross a link.

Every layer reads the whole hidden state and writes into its first ``channels`` channels only. The others carry the token's
own embedding, fixed at its random start, through the whole model, so whoever knows the token and the job's seed knows them::

    channel   0 .. channels-1    token embedding (learnt) + everything that layers add       crosses the link
              channels .. width  token embedding (fixed)                                     known on both sides

Nothing is approximated: the rows of the output projections that would write beyond ``channels`` are zero and stay zero, and
gradients of fixed channels are needed by nobody, so forward and backward passes give the same bits as in one process. The
finished model is an ordinary Hugging Face model. The last layer is free, as nothing crosses a link behind it.

Source: Subspace networks, arXiv 2506.01260 (sections 4 and 5), with the subspace along the axes instead of a drawn one: that
is the same family of models up to a rotation of the residual stream, it takes no products to project, and AdamW keeps to it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from protocol.job.job import TrainingSpec
from protocol.models.model import ModelShape
from trainer.stage.model import initial_embedding
from trainer.transfer import to_device

_LAYER = re.compile(r"\.(?:layers|h)\.(?P<index>\d+)\.(?P<part>.*)\.(?P<leaf>weight|bias)$")
_WRITERS = frozenset({"self_attn.o_proj", "mlp.down_proj", "attn.c_proj", "mlp.c_proj"})
_TRANSPOSED = frozenset({"attn.c_proj", "mlp.c_proj"})  # GPT-2 keeps its matrices as [inputs, outputs].
_TOKENS = ("embed_tokens.weight", "wte.weight")
_POSITIONS = "wpe.weight"


class ParameterPlace(Protocol):
    """Where a parameter lies in flat vectors, see ``trainer.stage.storage.Slot``."""

    @property
    def name(self) -> str:
        """Its name in the whole model."""

    @property
    def shape(self) -> tuple[int, ...]:
        """As a tensor."""

    @property
    def start(self) -> int:
        """Its first value; ``count`` of them follow."""

    @property
    def count(self) -> int:
        """How many values it has."""


@dataclass(frozen=True)
class Subspace:
    """What a stage may learn.

    Attributes:
        learnt: flat ``[n]`` float32, 1 where a parameter is learnt and 0 where it stays.
        kept: flat ``[n]`` float32, the values of what stays, and 0 elsewhere.
        fixed: ``[v, width - channels]``, the channels of each token's embedding that do not cross links.
    """

    learnt: Tensor
    kept: Tensor
    fixed: Tensor

    @staticmethod
    def of(
        config: Mapping[str, Any],
        shape: ModelShape,
        slots: Sequence[ParameterPlace],
        size: int,
        training: TrainingSpec,
        device: torch.device,
    ) -> "Subspace | None":
        """The subspace of a stage's job; None where the job has none.

        Args:
            slots: the stage's parameters in flat vectors of ``size``.
        """
        channels = training.subspace
        if channels is None:
            return None
        start = initial_embedding(config, shape, training.seed)
        learnt, kept = torch.ones(size), torch.zeros(size)
        for slot in slots:
            span = slice(slot.start, slot.start + slot.count)
            beyond = _staying(slot, shape, channels)
            if beyond is not None:
                learnt[span].view(slot.shape)[beyond] = 0.0
                if slot.name.endswith(_TOKENS):
                    kept[span].view(slot.shape)[beyond] = start[beyond]
        return Subspace(to_device(learnt, device), to_device(kept, device), start[:, channels:].contiguous())

    def hold(self, vector: Tensor) -> None:
        """Put everything in ``[n]`` parameters that stays back to what it was."""
        vector.mul_(self.learnt.to(vector.device)).add_(self.kept.to(vector.device))


def _staying(slot: ParameterPlace, shape: ModelShape, channels: int) -> tuple[slice, ...] | None:
    """The part of a parameter that is not learnt: rows that would write beyond ``channels``, or channels of an embedding."""
    beyond = slice(channels, None)
    match = _LAYER.search(slot.name)
    if match is None:
        return (slice(None), beyond) if slot.name.endswith((*_TOKENS, _POSITIONS)) else None
    if match["part"] not in _WRITERS or int(match["index"]) == shape.layers - 1:
        return None
    columns = match["part"] in _TRANSPOSED and match["leaf"] == "weight"
    return (slice(None), beyond) if columns else (beyond,)
