"""An adapter and the model that it was trained beside, as one model folder.

The published files are copied, and only matrices that have an adapter are written anew in them, in the type that they came in.
Embeddings that were tied stay tied, and what else is in the files stays as it was. No more than one matrix is in memory.

Source: LoRA, arXiv 2106.09685, section 4.1.
"""

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from protocol.models.model import DTYPES, STARTS_TIED, inspect_config
from protocol.models.tensor_names import HEAD, Part, way_in
from protocol.models.text_part import AROUND, joined, parameter_of
from trainer.errors import WeightsError
from trainer.export.adapter import ADAPTER, DESCRIBED, PREFIX, described_spec
from trainer.export.assemble import GENERATION, write_tokenizer
from trainer.export.card import merged_card
from trainer.export.hf_metadata import finished_config, finished_generation, write_json
from trainer.export.published import TensorPlace, copied
from trainer.files.tensors import bytes_of


def merge(
    weights: Sequence[Path],
    adapter: Path,
    config: Mapping[str, Any],
    out: Path,
    generation: Mapping[str, Any] | None = None,
) -> int:
    """Write the merged folder; what lies beside the adapter in its folder comes along.

    Args:
        weights: the published model's safetensors files, in order.
        adapter: a folder as ``trainer.export.assemble`` writes it. config: the job's.
        generation: the content of the ``generation_config.json`` that the model came with.
    Returns:
        How many matrices were changed.
    Raises:
        WeightsError: a file is broken, or the adapter is of another model.
    """
    described = json.loads((adapter / DESCRIBED).read_text())
    spec = described_spec(described)
    transposed = bool(described["fan_in_fan_out"])
    out.mkdir(parents=True, exist_ok=True)
    for file in adapter.iterdir():
        if file.is_file() and file.name not in (ADAPTER, DESCRIBED):
            shutil.copyfile(file, out / file.name)
    if (readme := out / "README.md").is_file():
        readme.write_text(merged_card(readme.read_text("utf-8")), "utf-8")
    places = copied(weights, out)
    try:
        with safe_open(adapter / ADAPTER, "pt") as thin:
            pairs = sorted(key.removesuffix(".lora_A.weight") for key in thin.keys() if "lora_A" in key)  # noqa: SIM118
            for pair in pairs:
                change = (
                    thin.get_tensor(f"{pair}.lora_B.weight") @ thin.get_tensor(f"{pair}.lora_A.weight") * spec.scale
                )
                name = f"{parameter_of(pair.removeprefix(PREFIX))}.weight"
                _add(name, change.t() if transposed else change, config, places)
    except SafetensorError as error:
        raise WeightsError("bad-safetensors", f"a file of the model cannot be read as safetensors: {error}") from error
    _describe(config, places, out, generation or {})
    return len(pairs)


def start(
    weights: Sequence[Path],
    tokenizer: Path,
    config: Mapping[str, Any],
    out: Path,
    beside: Mapping[str, Mapping[str, Any]],
) -> None:
    """Write the folder of a published model as it came, to be held beside what was made of it.

    Args:
        beside: small files of its folder, by name: ``SETTINGS`` and ``GENERATION``.
    Raises:
        WeightsError: a file is broken.
    """
    out.mkdir(parents=True, exist_ok=True)
    write_tokenizer(tokenizer, out, inspect_config(config).max_positions, config, beside)
    _describe(config, copied(weights, out), out, beside.get(GENERATION, {}))


def _describe(
    config: Mapping[str, Any], places: Mapping[str, TensorPlace], out: Path, generation: Mapping[str, Any]
) -> None:
    """What lies beside a folder's weights."""
    tied = bool(config.get(STARTS_TIED, False)) and not any(key.endswith((HEAD, "embed_out.weight")) for key in places)
    kinds = Counter(place.kind for place in places.values())
    numbers = next((name for name, kind in DTYPES.items() if kinds and kind == kinds.most_common(1)[0][0]), "float32")
    finished = finished_config(config, None, tied=tied, dtype=numbers)
    write_json(out / "config.json", joined(finished, config[AROUND]) if AROUND in config else finished)
    if made := finished_generation(config, generation):
        write_json(out / GENERATION, made)


def _add(name: str, change: Tensor, config: Mapping[str, Any], places: Mapping[str, TensorPlace]) -> None:
    """Add to a matrix where it lies in its file."""
    parts = way_in(places, name, tuple(change.shape), config, False)
    if parts is None:
        raise WeightsError(
            "missing-tensor", f"the model has no {name}, which the adapter changes: it is of another one"
        )
    for part in parts:
        _add_part(places[part.key], part, change[part.index])


def _add_part(place: TensorPlace, part: Part, change: Tensor) -> None:
    with safe_open(place.file, "pt") as opened:
        value: Tensor = opened.get_tensor(part.key)
    if value.shape != change.shape:
        raise WeightsError(
            "wrong-shape", f"{part.key} is {tuple(value.shape)}, the adapter's part {tuple(change.shape)}"
        )
    merged = (value.float() + change).to(value.dtype)
    with place.file.open("r+b") as stored:
        stored.seek(place.begin)
        stored.write(bytes_of(merged))
