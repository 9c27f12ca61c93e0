"""Stage checkpoints and tokenizer into one Hugging Face model folder. Free of torch."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

from protocol.models.families import FAMILY
from protocol.models.model import ModelShape, inspect_config
from protocol.models.tensor_names import HEAD
from protocol.models.text_part import AROUND, joined
from trainer.errors import WeightsError
from trainer.export.adapter import is_adapter, save_adapter
from trainer.export.card import compares_answers, model_card
from trainer.export.hf_metadata import (
    end_of,
    finished_config,
    finished_generation,
    finished_settings,
    save_weights,
    write_json,
)
from trainer.export.metrics_export import write_curve
from trainer.export.published import published_embedding
from trainer.export.whole_model import save_within

ANCHOR = "anchor."


SETTINGS, GENERATION = "tokenizer_config.json", "generation_config.json"


def assemble(
    checkpoints: Sequence[Path],
    config: Mapping[str, Any],
    tokenizer: Path,
    out: Path,
    card: Mapping[str, Any],
    beside: Mapping[str, Mapping[str, Any]] | None = None,
    weights: Sequence[Path] = (),
) -> int:
    """Write ``config.json``, ``model.safetensors``, ``tokenizer.json``, ``tokenizer_config.json`` and ``README.md``, the run's
    curve where the card has one (``trainer.export.metrics_export``), and ``generation_config.json`` where one came in.

    Args:
        checkpoints: one of each stage, of the same round, in any order; of a run with adapters they make an adapter of peft.
        card: what the run was, see ``trainer.export.card``.
        beside: small files of the folder that the model came from, by name: ``SETTINGS`` and ``GENERATION``.
        weights: safetensors files that the run started from, where the model ``keeps_embedding`` or is a part of theirs.
    Returns:
        How many parameters the stages have: ``ModelShape.parameters``.
    Raises:
        WeightsError: a checkpoint is broken, a stage is missing or there twice, or rounds differ.
        ModelConfigError: the config describes no model.
    """
    tensors = _read(checkpoints)
    shape, beside = inspect_config(config), beside or {}
    if is_adapter(tensors):
        return _assemble_adapter(tensors, shape, tokenizer, out, card, config, beside)
    if shape.keeps_embedding:
        embedding = FAMILY[shape.family].embedding
        _add(tensors, embedding, published_embedding(weights, embedding, config), Path("the model's own weights"))
        tensors[HEAD] = tensors[embedding]
    count = sum(tensor.size for tensor in tensors.values())
    if count != shape.parameters:
        raise WeightsError(
            "missing-tensor",
            f"{len(checkpoints)} checkpoints hold {count:,} parameters, the model has {shape.parameters:,}: "
            "give one checkpoint of each stage",
        )
    out.mkdir(parents=True, exist_ok=True)
    within = AROUND in config and bool(weights)
    if within:
        tied, dtype = save_within(tensors, config, weights, out)
    else:
        tied, dtype = save_weights(tensors, config, out / "model.safetensors")
    end = write_tokenizer(tokenizer, out, shape.max_positions, config, beside)
    finished = finished_config(config, end, tied=tied, dtype=dtype)
    write_json(out / "config.json", joined(finished, config[AROUND]) if within else finished)
    if generation := finished_generation(config, beside.get(GENERATION, {})):
        write_json(out / GENERATION, generation)
    _write_card(card, model_card(card, shape.distinct_parameters, finished), out)
    return count


def _assemble_adapter(
    tensors: Mapping[str, NDArray[np.float32]],
    shape: ModelShape,
    tokenizer: Path,
    out: Path,
    card: Mapping[str, Any],
    config: Mapping[str, Any],
    beside: Mapping[str, Mapping[str, Any]],
) -> int:
    """A folder with an adapter instead of a model: ``adapter_config.json``, ``adapter_model.safetensors``, and the rest."""
    out.mkdir(parents=True, exist_ok=True)
    described = save_adapter(tensors, shape.layers, config, card, out)
    write_tokenizer(tokenizer, out, shape.max_positions, config, beside)
    write_json(out / "adapter_config.json", described)
    count = sum(tensor.size for tensor in tensors.values())
    if generation := finished_generation(config, beside.get(GENERATION, {})):
        write_json(out / GENERATION, generation)
    _write_card(card, model_card(card, count, config, adapter=True), out)
    return count


def _write_card(card: Mapping[str, Any], text: str, out: Path) -> None:
    rounds = card.get("rounds")
    rows = [row for row in rounds if isinstance(row, Mapping)] if isinstance(rounds, list) else []
    if rows:
        write_curve(rows, out, answers=compares_answers(card))
    (out / "README.md").write_text(text, "utf-8")


def _read(checkpoints: Sequence[Path]) -> dict[str, NDArray[np.float32]]:
    tensors: dict[str, NDArray[np.float32]] = {}
    rounds = set()
    for path in checkpoints:
        try:
            with safe_open(path, "numpy") as file:
                rounds.add(_round_of(file.get_tensor("round"), path))
                for key in file.keys():  # noqa: SIM118 (no mapping: it has keys() alone)
                    if key.startswith(ANCHOR):
                        _add(tensors, key.removeprefix(ANCHOR), file.get_tensor(key), path)
        except (SafetensorError, OSError, TypeError) as error:
            raise WeightsError("bad-safetensors", f"{path.name} cannot be read as a checkpoint: {error}") from error
    if len(rounds) > 1:
        raise WeightsError("wrong-round", f"the checkpoints are of rounds {sorted(rounds)}: give those of one round")
    return tensors


def _round_of(value: NDArray[np.int64], path: Path) -> int:
    if value.dtype != np.int64 or value.size != 1:
        raise WeightsError("wrong-shape", f"checkpoint {path.name} does not say which round begins with it")
    return int(value.reshape(-1)[0])


def _add(tensors: dict[str, NDArray[np.float32]], name: str, value: NDArray[np.float32], path: Path) -> None:
    if name in tensors:
        raise WeightsError("duplicate-tensor", f"{path.name} holds {name}, which another checkpoint holds too")
    if value.dtype == np.int16:  # The upper half of each float32, whose lower one is zero.
        value = (value.astype(np.int32) << 16).view(np.float32)
    if value.dtype != np.float32:
        raise WeightsError("wrong-shape", f"{name} of checkpoint {path.name} is {value.dtype}: checkpoints are float32")
    if not bool(np.isfinite(value).all()):
        raise WeightsError("not-finite", f"{name} of checkpoint {path.name} holds NaN or infinite values")
    tensors[name] = value


def write_tokenizer(
    source: Path, out: Path, max_positions: int, config: Mapping[str, Any], beside: Mapping[str, Mapping[str, Any]]
) -> int | None:
    """Copy the tokenizer so that ``AutoTokenizer`` opens it; returns the id of the token that ends its documents."""
    tokenizer = Tokenizer.from_file(str(source))
    shutil.copyfile(source, out / "tokenizer.json")
    write_json(out / SETTINGS, finished_settings(tokenizer, config, beside.get(SETTINGS, {}), max_positions))
    return end_of(tokenizer, config)
