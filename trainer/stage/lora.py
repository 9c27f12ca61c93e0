"""Low-rank adapters: the model's own parameters are frozen, beside some matrices two thin ones learn.

``y = x W + scale * (x A) B`` with ``A`` random and ``B`` zero at first, so that training begins with the model as it is. The
scale is ``alpha`` over the rank, or over its root. Only adapters are in a stage's vectors: state, pseudo-gradient and checkpoint
shrink with them. What comes out is an adapter of ``peft`` (``trainer.export.assemble``).

Source: LoRA, arXiv 2106.09685; names and initial values as in peft.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from protocol.job.job import LoraSpec
from protocol.models.config_values import ModelConfigError
from trainer.stage.quantized import QuantizedMatrix, product

_left_out: ContextVar[bool] = ContextVar("left_out", default=False)


@contextmanager
def without_adapters() -> Iterator[None]:
    """Meanwhile this thread computes what the models would without their adapters, and no gradients."""
    token = _left_out.set(True)
    try:
        with torch.no_grad():
            yield
    finally:
        _left_out.reset(token)


class Adapted(nn.Module):
    """A linear layer ``[..., in] -> [..., out]`` with an adapter; parameters keep the names of the layer it replaces."""

    def __init__(self, base: nn.Module, spec: LoraSpec) -> None:
        super().__init__()
        self._transposed = isinstance(base, Conv1D)  # GPT-2 keeps its matrices as [in, out].
        self.weight = cast(nn.Parameter, base.weight)
        self.register_parameter("bias", cast("nn.Parameter | None", base.bias))
        inputs, outputs = self.weight.shape if self._transposed else self.weight.shape[::-1]
        with torch.device("meta"):
            self.lora_A = nn.Linear(inputs, spec.rank, bias=False)
            self.lora_B = nn.Linear(spec.rank, outputs, bias=False)
        self._scale = spec.scale
        self.quantized: QuantizedMatrix | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        """As the layer that it replaces, plus the adapter's part, unless that is left out."""
        bias = cast("Tensor | None", self.bias)
        if self.quantized is not None:
            plain = product(inputs, self.quantized, bias, self._transposed)
        else:
            plain = functional.linear(inputs, self.weight.T if self._transposed else self.weight, bias)
        if _left_out.get():
            return plain
        return plain + cast(Tensor, self.lora_B(self.lora_A(inputs))) * self._scale


def adapt(module: nn.Module, spec: LoraSpec) -> None:
    """Freeze a stage and put adapters beside the targets of its layers.

    Raises:
        ModelConfigError: a target is no linear layer of this model, or the stage has no layer at all.
    """
    module.requires_grad_(False)
    found = dict(_linear_layers(module))
    names = {name.rpartition(".")[2] for name in found}
    if unknown := sorted(set(spec.targets) - names):
        raise ModelConfigError(
            f"training.lora.targets has {unknown[0]!r}: this model has {', '.join(sorted(names)) or 'no layers here'}"
        )
    if not found:
        raise ModelConfigError("a stage without layers has nothing to adapt: choose fewer stages")
    for name, layer in found.items():
        parent, _, leaf = name.rpartition(".")
        if not spec.targets or leaf in spec.targets:
            setattr(module.get_submodule(parent), leaf, Adapted(layer, spec))


def _linear_layers(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Linear layers within decoder layers, routers and head excepted."""
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear | Conv1D) and (".layers." in name or ".h." in name):
            yield name, part
