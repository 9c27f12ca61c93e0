"""Stage checkpoints of a run with low-rank adapters, as one folder that ``peft`` opens. Free of torch."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from protocol.codec import MessageError, convert
from protocol.job.job import LoraSpec
from protocol.models.text_part import AROUND, module_of
from trainer.errors import WeightsError

_ADAPTER = re.compile(r"^(?P<module>.*\.(?:layers|h)\.(?P<layer>\d+)\..*)\.lora_(?P<side>[AB])\.weight$")
ADAPTER, DESCRIBED = "adapter_model.safetensors", "adapter_config.json"
PREFIX = "base_model.model."
"""Before a layer's name in an adapter's files."""


def is_adapter(tensors: Mapping[str, NDArray[np.float32]]) -> bool:
    """Whether checkpoints hold adapters, and not a model."""
    return any(_ADAPTER.match(name) for name in tensors)


def save_adapter(
    tensors: Mapping[str, NDArray[np.float32]],
    layers: int,
    config: Mapping[str, Any],
    card: Mapping[str, Any],
    out: Path,
) -> dict[str, Any]:
    """Write ``adapter_model.safetensors``; returns what belongs into ``adapter_config.json``.

    Args:
        layers: of the whole model: each must have the same adapters.
        config: of the job.
        card: its ``spec`` is the job document.
    Raises:
        WeightsError: adapters are missing, do not fit each other, or the card does not say with which ``alpha`` they learnt.
    """
    spec, base = _spec(card)
    places: dict[str, set[int]] = {}
    for name, value in tensors.items():
        match = _ADAPTER.match(name)
        rank = value.shape[0 if match is None or match["side"] == "A" else 1]
        if match is None or rank != spec.rank:
            raise WeightsError("wrong-shape", f"{name} {value.shape} is no adapter of rank {spec.rank}")
        kind = name.replace(f".{match['layer']}.", ".*.", 1)
        places.setdefault(kind, set()).add(int(match["layer"]))
    for kind, found in places.items():
        if found != set(range(layers)):
            missing = sorted(set(range(layers)) - found)
            raise WeightsError(
                "missing-tensor", f"{kind} is missing for layers {missing}: give one checkpoint of each stage"
            )
    named = {module_of(name) if AROUND in config else name: value for name, value in tensors.items()}
    save_file(
        {PREFIX + name: np.ascontiguousarray(value) for name, value in named.items()},
        out / ADAPTER,
        metadata={"format": "pt"},
    )
    (out / ADAPTER).chmod(0o644)
    modules: list[str] | str = sorted({kind.rpartition(".lora_")[0].rpartition(".")[2] for kind in places})
    if AROUND in config:  # Other parts have layers of the same names.
        modules = rf"{re.escape(module_of('model.layers.'))}\d+\..*\.({'|'.join(modules)})"
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": spec.base_model or base,
        "r": spec.rank,
        "lora_alpha": spec.alpha,
        "use_rslora": spec.rslora,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": modules,
        "fan_in_fan_out": config["model_type"] == "gpt2",
        "inference_mode": True,
    }


def described_spec(described: Mapping[str, Any]) -> LoraSpec:
    """Rank and scale that an ``adapter_config.json`` says.

    Raises:
        WeightsError: it says none, or such as cannot be.
    """
    given = {"rank": "r", "alpha": "lora_alpha", "rslora": "use_rslora"}
    try:
        found: LoraSpec = convert(
            {ours: described[theirs] for ours, theirs in given.items() if theirs in described}, LoraSpec
        )
    except (MessageError, TypeError) as error:
        raise WeightsError("bad-adapter", f"adapter_config.json describes no adapter: {error}") from error
    return found


def _spec(card: Mapping[str, Any]) -> tuple[LoraSpec, str]:
    """What the job says of its adapters, and the repository of the Hub that its model is of; "" where it is of none."""
    document = card.get("spec")
    training, model = (
        found if isinstance(document, Mapping) and isinstance(found := document.get(key), Mapping) else {}
        for key in ("training", "model")
    )
    try:
        spec: LoraSpec = convert(training.get("lora"), LoraSpec)
    except MessageError as error:
        raise WeightsError(
            "missing-document", f"adapters need the job's training.lora in the card's spec: {error}"
        ) from error
    return spec, str(model.get("hub") or "").partition("@")[0]
