"""In which numbers a stage computes. Parameters, gradients, moments and payloads are float32 always.

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
from torch import Tensor

from protocol.job.job import TrainingSpec

_DTYPES: Mapping[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


def computing(training: TrainingSpec, device: torch.device) -> AbstractContextManager[object]:
    """The context in which a stage's layers run forward; backward follows each product's own type."""
    dtype = _DTYPES.get(training.precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def scaled(logits: Tensor, training: TrainingSpec) -> Tensor:
    """Logits in float32 whose gradient is multiplied by the job's loss scale where it computes in half floats."""
    wide = logits.float()
    if training.precision == "fp16" and wide.requires_grad:
        cast(Any, wide).register_hook(lambda gradient: gradient * training.loss_scale)
    return wide
