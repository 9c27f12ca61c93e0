"""Matrices of a model that ``transformers`` loads become codes while they are read, one tensor after the other.

The library asks a quantiser, as it does for the methods of its own, which parameters it wants. So a tensor's name, its place and
what is made of several tensors are the library's, and codes are those of ``trainer.stage.quantized``.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.core_model_loading import ConversionOps
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from protocol.job.job import ServedWeights
from trainer.errors import WeightsError
from trainer.stage.model import check_finite
from trainer.stage.quantized import Bits, QuantizedMatrix, hold, quantized, takes

METHOD = "cottage"
CACHED_PART = 1 << 18
"""Values that a processor makes wide at a time: so they stay in its cache."""


def codes_of(value: Tensor, bits: Bits, device: str) -> QuantizedMatrix:
    """A matrix as engines hold it; ``value``: float32."""
    made = quantized(value, bits, torch.device(device))
    return replace(made, part=CACHED_PART) if device == "cpu" else made


@register_quantization_config(METHOD)
class ServedWeightsConfig(QuantizationConfigMixin):
    """How a model's matrices are held. ``device``: where codes are made and lie."""

    def __init__(self, weights: ServedWeights, device: str) -> None:
        self.quant_method: Any = METHOD
        self.weights, self.device = weights, device


@register_quantizer(METHOD)
class MatrixQuantizer(HfQuantizer):
    """Says which parameters become codes: those that training quantises, by the same rule.

    An embedding that is the head, too, is loaded as it is: once both have it, its rows are looked up as codes, and the head
    computes in float32. Stages do the same, where the two ends lie apart.
    """

    quantization_config: ServedWeightsConfig

    def __init__(self, quantization_config: ServedWeightsConfig, **more: Any) -> None:
        super().__init__(quantization_config, **more)
        self._made: list[tuple[nn.Module, QuantizedMatrix]] = []

    def param_needs_quantization(self, model: Any, param_name: str, **_: Any) -> bool:
        """Whether a parameter, by its full name, becomes codes when it is read."""
        owner = model.get_submodule(param_name.rpartition(".")[0])
        if isinstance(owner, nn.Embedding) and _is_tied(model, param_name):
            return False
        return takes(owner, param_name, self.quantization_config.weights) is not None

    def get_quantize_ops(self) -> ConversionOps:
        """What is done with such a parameter."""
        return _Quantize(self.make)

    def make(self, owner: Any, name: str, value: Tensor) -> bool:
        """Make codes of a layer's ``weight``, which holds them once everything is loaded; False: it is to have none.

        Raises:
            NonFiniteError: a value is no number. WeightsError: the matrix is of another shape.
        """
        bits = takes(owner, name, self.quantization_config.weights)
        if bits is None:
            return False
        if value.shape != owner.weight.shape:
            raise WeightsError("wrong-shape", f"tensor {name} is {tuple(value.shape)}, which is wrong")
        check_finite(value, f"tensor {name}")
        self._made.append((owner, codes_of(value.float(), bits, self.quantization_config.device)))
        return True

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> Any:
        """Have layers compute from codes, also of embeddings that were loaded as they are."""
        made = {owner for owner, _ in self._made}
        for name, owner in model.named_modules():
            if isinstance(owner, nn.Embedding) and owner not in made:
                self.make(owner, f"{name}.weight", owner.weight)
        while self._made:
            hold(*self._made.pop())
        return model

    def is_serializable(self) -> bool:
        """Nobody stores it: the model's own files are what is kept."""
        return False

    @property
    def is_trainable(self) -> bool:
        """Nothing of it learns."""
        return False


class _Quantize(ConversionOps):
    """Makes codes of what was read."""

    def __init__(self, make: Callable[[nn.Module, str, Tensor], bool]) -> None:
        self._make = make

    def convert(
        self, input_dict: dict[str, Any], source_patterns: list[str], target_patterns: list[str], **kwargs: Any
    ) -> dict[str, list[Tensor]]:
        """Take parameters that were made of what was read; those that stay as they are are left for the library to put."""
        left: dict[str, list[Tensor]] = {}
        for name, given in input_dict.items():
            value = given[0] if isinstance(given, list) else given
            owner = kwargs["model"].get_submodule(name.rpartition(".")[0])
            if not self._make(owner, name, value):
                left[name] = [value]
                continue
            owner.weight._is_hf_initialized = True  # Else the library draws values for it.
            kwargs["missing_keys"].discard(name)
        return left


def _is_tied(model: Any, name: str) -> bool:
    """Whether other parameters are the same tensor."""
    tied = model.all_tied_weights_keys
    return name in tied or name in tied.values()
