"""Routers of mixture-of-experts layers are pulled towards using all experts alike: their auxiliary loss, layer by layer.

A layer's loss is ``experts x sum over experts of (share of tokens x mean probability)``: ``k``, the experts that a token takes,
where all are used alike, and more where few are. Its mean over the model's layers, times ``router_aux_loss_coef``, is added
to what is minimised, never to the loss that is reported. The gradient joins at the router's own output, so a stage needs
nothing of other stages, and layers that are computed twice give the same bits. (transformers pools the layers before it
multiplies shares and probabilities; layer by layer is what the paper has, and for one layer the same.)

Source: Switch Transformer, arXiv 2101.03961, equations 4-6; ``load_balancing_loss_func`` of Mixtral in transformers.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

ROUTER = "TopKRouter"  # The end of the class names of routers; they give logits, scores and chosen experts.

Routed = tuple[Tensor, Tensor, Tensor]


class Balance:
    """The auxiliary loss of one stage's routers; a dense stage has none.

    Attributes:
        weight: of the micro-batch that is being computed: its part of what the step's gradient is averaged over.
    """

    def __init__(self, module: nn.Module, layers: int) -> None:
        """Join every router of ``module``, a stage of a model with ``layers`` layers."""
        self.weight = 0.0
        config = cast(Any, module).config
        self._share = float(getattr(config, "router_aux_loss_coef", None) or 0.0) / layers
        for part in module.modules():
            if self._share and type(part).__name__.endswith(ROUTER):
                part.register_forward_hook(self._join)

    def _join(self, _router: nn.Module, _inputs: object, outputs: Routed) -> Routed | None:
        if not torch.is_grad_enabled() or not self.weight:
            return None
        logits, scores, chosen = outputs
        return logits, _joined(scores, layer_loss(logits, chosen) * (self._share * self.weight)), chosen


def layer_loss(logits: Tensor, chosen: Tensor) -> Tensor:
    """One router's loss, from ``[n, experts]`` logits and the ``[n, k]`` experts that were chosen."""
    probabilities = torch.softmax(logits.float(), dim=-1)
    tokens = torch.zeros_like(probabilities).scatter_(1, chosen, 1.0).mean(dim=0)
    return logits.shape[-1] * (tokens * probabilities.mean(dim=0)).sum()


class _Join(torch.autograd.Function):
    """Passes ``scores`` on, and in the backward pass gives ``term`` a gradient of one."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, term: Tensor) -> Tensor:
        ctx.save_for_backward(term)
        return scores.view_as(scores)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (term,) = ctx.saved_tensors
        return gradients[0], torch.ones_like(term)


_joined = cast(Callable[[Tensor, Tensor], Tensor], _Join.apply)
