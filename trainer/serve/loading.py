"""A model folder in memory, ready to answer: any family that trains, and models that see."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    GenerationConfig,
)

from protocol.job.job import ServedWeights
from trainer.errors import WeightsError
from trainer.malloc_trim import trim
from trainer.memory import lacks_memory
from trainer.serve.few_rows import quicken
from trainer.serve.quantizing import ServedWeightsConfig
from trainer.stage.quantized import matrices

GENERATION = "generation_config.json"
NAMED = 3  # Tensors that a folder lacks.
SHOWN = 300  # Characters of what the library says.


@dataclass(frozen=True)
class ModelTokens:
    """What is known of a model without its weights.

    Attributes:
        vocabulary: how many logits there are.
        ends: tokens that end an answer.
    """

    tokenizer: Any
    vocabulary: int
    ends: list[int]


@dataclass(frozen=True)
class LoadedModel(ModelTokens):
    """A model with its tokenizer. ``config``: of the part that writes."""

    model: Any
    config: Any

    @property
    def parameters(self) -> int:
        """How many the model has."""
        return parameters_of(self.model)

    def twin(self) -> Any:
        """The same parameters in modules of their own, whose way of attention and state are nobody else's."""
        narrow = (matrix for _, matrix in matrices(self.model))
        shared = {id(one): one for one in chain(self.model.parameters(), self.model.buffers(), narrow)}
        return copy.deepcopy(self.model, shared)


def parameters_of(module: nn.Module) -> int:
    """Scalars of a module, those of its quantised matrices among them."""
    wide = sum(one.numel() for one in module.parameters())
    return wide + sum(matrix.numel() for _, matrix in matrices(module))


def load(
    folder: Path, device: str, weights: Mapping[str, Any] | None = None, held: ServedWeights = "float32"
) -> LoadedModel:
    """Load a folder, to compute in float32.

    Args:
        weights: by name what ``[...]`` makes a tensor of; None: they lie in the folder.
        held: how matrices are held.
    Raises:
        WeightsError: a tensor is missing, or no such model is known.
    """
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        settings = {"dtype": torch.float32, "output_loading_info": True, "trust_remote_code": False}
        if held != "float32":
            settings["quantization_config"] = ServedWeightsConfig(held, device)
        if weights is None:
            writes = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
            kind: Any = AutoModelForCausalLM if writes else AutoModelForImageTextToText
            model, told = kind.from_pretrained(folder, **settings)
        else:
            model, told = _class_of(config).from_pretrained(None, config=config, state_dict=weights, **settings)
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, SafetensorError) as error:
        if lacks_memory(error):
            raise
        raise WeightsError("bad-model", f"the model cannot be loaded: {str(error)[:SHOWN]}") from error
    if missing := sorted(told["missing_keys"]):
        names = ", ".join(missing[:NAMED])
        raise WeightsError("missing-tensor", f"the model lacks {len(missing):,} of its tensors: {names}")
    if weights is not None and (folder / GENERATION).exists():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    if held != "float32":
        trim()  # Of what was float32 for a moment, half stays with the process otherwise.
    text = config.get_text_config()
    ends = _ends(model.generation_config, tokenizer)
    loaded = LoadedModel(tokenizer, int(text.vocab_size), ends, model.to(device), text)
    quicken(loaded.model)
    return loaded


def load_tokens(folder: Path) -> ModelTokens:
    """What is known of a folder's model without its weights.

    Raises:
        WeightsError: no such model is known.
    """
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        there = (folder / GENERATION).exists()
        made = GenerationConfig.from_pretrained(folder) if there else GenerationConfig.from_model_config(config)
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, OSError) as error:
        if lacks_memory(error):
            raise
        raise WeightsError("bad-model", f"the model cannot be loaded: {str(error)[:SHOWN]}") from error
    return ModelTokens(tokenizer, int(config.get_text_config().vocab_size), _ends(made, tokenizer))


def _class_of(config: Any) -> Any:
    """What the classes that find a model by its folder would choose."""
    writes = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    found: Any = (MODEL_FOR_CAUSAL_LM_MAPPING if writes else MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING)[type(config)]
    return found[0] if isinstance(found, tuple) else found


def _ends(generation: Any, tokenizer: Any) -> list[int]:
    """Tokens that end an answer."""
    given = generation.eos_token_id
    named = given if isinstance(given, list) else [given]
    return sorted({int(one) for one in (*named, tokenizer.eos_token_id) if one is not None})
