"""In which numbers a stage computes. What is trained is float32 always (``trainer.stage.storage``), and so are payloads.

``bf16`` and ``fp16`` run matrix products in 16 bits through torch's autocast, on float32 master weights. Half floats have too
small an exponent for gradients, so the loss is scaled up before the backward pass and gradients down after it; a step
whose gradients overflow is left out by all stages alike (``trainer.outer.inner_update``). The scale is the job's and does
not move: a step can then be run again from its opening alone.

Source: mixed precision, arXiv 1710.03740.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from protocol.job.job import TrainingSpec

_DTYPES: Mapping[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


def computing(training: TrainingSpec, device: torch.device) -> AbstractContextManager[object]:
    """The context in which a stage's layers run forward; backward follows each product's own type."""
    dtype = _DTYPES.get(training.precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def compute_wide(module: nn.Module) -> None:
    """Have hidden states be float32 beside bf16 weights, as they are beside float32 ones: each product narrows its own inputs."""
    for part in module.modules():
        if isinstance(part, nn.Embedding):
            part.register_forward_hook(lambda _part, _inputs, output: output.float())
        elif isinstance(part, nn.LayerNorm):
            part.forward = _WideNorm(part)  # type: ignore[method-assign, assignment]


class _WideNorm:
    """Stands for ``forward`` of a layer norm, which takes no bf16 weights beside float32 inputs."""

    def __init__(self, part: nn.LayerNorm) -> None:
        self._part = part

    def __call__(self, inputs: Tensor) -> Tensor:
        part = self._part
        bias = None if part.bias is None else part.bias.float()
        return functional.layer_norm(inputs, part.normalized_shape, part.weight.float(), bias, part.eps)


def scaled(logits: Tensor, training: TrainingSpec) -> Tensor:
    """Logits in float32 whose gradient is multiplied by the job's loss scale where it computes in half floats."""
    wide = logits.float()
    if training.precision == "fp16" and wide.requires_grad:
        cast(Any, wide).register_hook(lambda gradient: gradient * training.loss_scale)
    return wide
