"""Activation checkpointing: of each decoder layer only its input is kept, and the layer runs again in the backward pass.

Memory for a micro-batch in flight falls from all of a layer's intermediate values to one hidden state a layer; a step does a
third more work. The second run computes the same bits as the first, so nothing else changes. Our own, since
``torch.utils.checkpoint`` imports torch's compiler, which takes seconds and a hundred megabytes.

Source: Chen et al., arXiv 1604.06174.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

Run = Callable[[Tensor], Tensor]


def recompute_layers(layers: nn.ModuleList) -> None:
    """Make every layer of a decoder keep its input only."""
    for layer in layers:
        layer.forward = _Layer(layer.forward)


def summed_in_parts(part: Callable[[slice], Run], rows: Tensor, count: int) -> Tensor:
    """The sum of what ``part(span)`` makes of so many ``rows`` at a time, in float64 or scalars; of each only its rows are kept.

    A head and its cross-entropy over a large vocabulary take gigabytes otherwise. Source: Cut Your Losses, arXiv 2411.09009,
    in plain torch.
    """
    spur, total = torch.zeros(0, requires_grad=torch.is_grad_enabled()), torch.zeros((), device=rows.device)
    for start in range(0, len(rows), count):
        span = slice(start, min(start + count, len(rows)))
        total = total + _apply(part(span), rows[span], spur)
    return total


class _Layer:
    """Stands for a layer's ``forward``."""

    def __init__(self, forward: Callable[..., Tensor]) -> None:
        self._forward = forward

    def __call__(self, hidden: Tensor, *others: Any, **named: Any) -> Tensor:
        if not torch.is_grad_enabled():
            return self._forward(hidden, *others, **named)
        kind = hidden.device.type
        autocast, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

        def run(values: Tensor) -> Tensor:
            with torch.autocast(kind, dtype=dtype, enabled=autocast):
                return self._forward(values, *others, **named)

        # A tensor that needs a gradient, so that one comes back even where the input is frozen.
        spur = torch.zeros(0, requires_grad=True)
        return _apply(run, hidden, spur)


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Run, hidden: Tensor, _spur: Tensor) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(hidden)
        with torch.no_grad():
            return run(hidden)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor | None, None]:
        (kept,) = ctx.saved_tensors
        hidden = kept.detach().requires_grad_(ctx.needs_input_grad[1])
        with torch.enable_grad():
            outputs = ctx.run(hidden)
        torch.autograd.backward(outputs, gradients[0])  # Gradients of the layer's parameters are added here.
        return None, hidden.grad, None


_apply = cast(Callable[[Run, Tensor, Tensor], Tensor], _Recomputed.apply)
