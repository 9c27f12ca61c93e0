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
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from protocol.job.job import ServedWeights
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
class ServedWeightsConfig(QuantizationConfigMixin):  # type: ignore[misc]
    """How a model's matrices are held. ``device``: where codes are made and lie."""

    def __init__(self, weights: ServedWeights, device: str) -> None:
        self.quant_method: Any = METHOD
        self.weights, self.device = weights, device


@register_quantizer(METHOD)
class MatrixQuantizer(HfQuantizer):  # type: ignore[misc]
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

    def make(self, owner: nn.Module, name: str, value: Tensor) -> None:
        """Make codes of a layer's ``weight``, if it is to have any; the layer holds them once everything is loaded.

        Raises:
            NonFiniteError: a value is no number.
        """
        bits = takes(owner, name, self.quantization_config.weights)
        if bits is not None:
            check_finite(value, f"tensor {name}")
            self._made.append((owner, codes_of(value.float(), bits, self.quantization_config.device)))

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


class _Quantize(ConversionOps):  # type: ignore[misc]
    """Makes codes of what was read."""

    def __init__(self, make: Callable[[nn.Module, str, Tensor], None]) -> None:
        self._make = make

    def convert(
        self,
        input_dict: dict[str, Any],
        model: Any = None,
        full_layer_name: str = "",
        missing_keys: set[str] | None = None,
        **_: Any,
    ) -> dict[str, Tensor]:
        """Take one parameter; nothing is left for the library to put anywhere."""
        (given,) = input_dict.values()
        value = given[0] if isinstance(given, list) else given
        owner = model.get_submodule(full_layer_name.rpartition(".")[0])
        if value.shape != owner.weight.shape:
            raise ValueError(f"tensor {full_layer_name} is {tuple(value.shape)}, which is wrong")
        self._make(owner, full_layer_name, value)
        owner.weight._is_hf_initialized = True  # Else the library draws values for it.
        if missing_keys is not None:
            missing_keys.discard(full_layer_name)
        return {}


def _is_tied(model: Any, name: str) -> bool:
    """Whether other parameters are the same tensor."""
    tied = model.all_tied_weights_keys
    return name in tied or name in tied.values()
