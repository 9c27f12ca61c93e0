"""A backward pass in two halves: what the stage before waits for now, gradients of weight matrices later.

Only matrix products are put off, since they are nearly all of the work; biases, norms and embeddings get their gradients
in the first half. Inputs and output gradients of each product are kept until its second half, and the products are the
ones that autograd would have done, so the bits are the same either way.

Source: Zero Bubble, arXiv 2401.10241, section 3 (splitting B and W).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D


class LateWeights:
    """Products of one module whose weights' gradients are still to be added."""

    def __init__(self, module: nn.Module) -> None:
        """Take over every ``nn.Linear`` and ``Conv1D`` of ``module``, whose weights' ``grad`` must exist already."""
        self._waiting: defaultdict[int, list[tuple[nn.Parameter, Tensor, Tensor]]] = defaultdict(list)
        self._micro: int | None = None
        for part in module.modules():
            if isinstance(part, nn.Linear | Conv1D) and part.weight.requires_grad:
                part.forward = _LateProduct(part, self)  # type: ignore[method-assign]

    @property
    def putting_off(self) -> bool:
        """Whether the backward pass that runs now is a first half."""
        return self._micro is not None

    @contextmanager
    def put_off(self, micro: int) -> Iterator[None]:
        """While this lasts, backward passes belong to ``micro`` and leave weight matrices alone."""
        self._micro = micro
        try:
            yield
        finally:
            self._micro = None

    @torch.no_grad()
    def add(self, micro: int) -> None:
        """The second half of ``micro``'s backward pass: add its gradients to the weights'."""
        for weight, left, right in self._waiting.pop(micro, ()):
            assert weight.grad is not None
            weight.grad.add_(left.t().mm(right))

    def forget(self) -> None:
        """Drop what waits, of a step that did not end."""
        self._waiting.clear()

    def take(self, weight: nn.Parameter, left: Tensor, right: Tensor) -> Tensor | None:
        """Keep the product ``left.T @ right`` for later (``None``), or give it where nothing is to be put off."""
        if self._micro is None:
            return left.t().mm(right)
        self._waiting[self._micro].append((weight, left, right))
        return None


class _LateProduct:
    """Stands for ``forward`` of a linear layer."""

    def __init__(self, part: nn.Linear | Conv1D, late: LateWeights) -> None:
        self._part, self._late = part, late

    def __call__(self, inputs: Tensor) -> Tensor:
        part, weight = self._part, self._part.weight
        kind = inputs.device.type
        if torch.is_autocast_enabled(kind):  # Where autograd's own product would have been of this type, so is ours.
            dtype = torch.get_autocast_dtype(kind)
            inputs, cast_weight = inputs.to(dtype), weight.to(dtype)
        else:
            cast_weight = weight
        bias = None if part.bias is None else part.bias.to(cast_weight.dtype)
        with torch.autocast(kind, enabled=False):
            return _apply(inputs, cast_weight, bias, part, self._late)


class _Product(torch.autograd.Function):
    """``nn.Linear`` and ``Conv1D`` (the same with a transposed weight), their weight's gradient perhaps put off."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, part: nn.Linear | Conv1D, late: LateWeights
    ) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.part, ctx.late = part, late
        if isinstance(part, nn.Linear):
            return functional.linear(inputs, weight, bias)
        flat = inputs.view(-1, inputs.shape[-1])
        product = flat.mm(weight) if bias is None else torch.addmm(bias, flat, weight)
        return product.view(*inputs.shape[:-1], part.nf)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        part, flat = ctx.part, gradients[0].reshape(-1, gradients[0].shape[-1])
        rows = inputs.detach().reshape(-1, inputs.shape[-1])  # What waits must not hold on to the graph behind it.
        linear = isinstance(part, nn.Linear)
        to_inputs = flat.mm(weight if linear else weight.t()).view(inputs.shape) if ctx.needs_input_grad[0] else None
        left, right = (flat, rows) if linear else (rows, flat)
        to_weight = ctx.late.take(part.weight, left, right) if ctx.needs_input_grad[1] else None
        to_bias = flat.sum(0) if ctx.needs_input_grad[2] else None
        return to_inputs, to_weight, to_bias, None, None


_apply = cast(Callable[..., Tensor], _Product.apply)
