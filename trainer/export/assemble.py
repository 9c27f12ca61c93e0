"""Stage checkpoints and tokenizer into one Hugging Face model folder. Free of torch."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

from protocol.models.model import ModelShape, inspect_config
from trainer.errors import WeightsError
from trainer.export.adapter import is_adapter, save_adapter
from trainer.export.hf_metadata import end_of, finished_config, finished_generation, finished_settings, save_weights
from trainer.export.metrics_export import with_perplexity, write_curve

ANCHOR = "anchor."


SETTINGS, GENERATION = "tokenizer_config.json", "generation_config.json"


def assemble(
    checkpoints: Sequence[Path],
    config: Mapping[str, Any],
    tokenizer: Path,
    out: Path,
    card: Mapping[str, Any],
    beside: Mapping[str, Mapping[str, Any]] | None = None,
) -> int:
    """Write ``config.json``, ``model.safetensors``, ``tokenizer.json``, ``tokenizer_config.json`` and ``README.md``, the run's
    curve where the card has one (``trainer.export.metrics_export``), and ``generation_config.json`` where one came in.

    Args:
        checkpoints: one of each stage, of the same round, in any order; of a run with adapters they make an adapter of peft.
        card: what the run was, see ``model_card``.
        beside: small files of the folder that the model came from, by name: ``SETTINGS`` and ``GENERATION``.
    Returns:
        How many parameters the model has.
    Raises:
        WeightsError: a checkpoint is broken, a stage is missing or there twice, or rounds differ.
        ModelConfigError: the config describes no model.
    """
    tensors = _read(checkpoints)
    shape, beside = inspect_config(config), beside or {}
    if is_adapter(tensors):
        return _assemble_adapter(tensors, shape, tokenizer, out, card, config, beside)
    count = sum(tensor.size for tensor in tensors.values())
    if count != shape.parameters:
        raise WeightsError(
            "missing-tensor",
            f"{len(checkpoints)} checkpoints hold {count:,} parameters, the model has {shape.parameters:,}: "
            "give one checkpoint of each stage",
        )
    out.mkdir(parents=True, exist_ok=True)
    tied, dtype = save_weights(tensors, config, out / "model.safetensors")
    end = _write_tokenizer(tokenizer, out, shape.max_positions, config, beside)
    finished = finished_config(config, end, tied=tied, dtype=dtype)
    _write_json(out / "config.json", finished)
    if generation := finished_generation(config, beside.get(GENERATION, {})):
        _write_json(out / GENERATION, generation)
    _write_card(card, model_card(card, shape.parameters, finished), out)
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
    described = save_adapter(tensors, shape.layers, shape.family, card, out)
    _write_tokenizer(tokenizer, out, shape.max_positions, config, beside)
    _write_json(out / "adapter_config.json", described)
    count = sum(tensor.size for tensor in tensors.values())
    text = model_card(card, count, {"model_type": f"rank-{described['r']} adapter of a {shape.family}"})
    _write_card(card, text.replace("library_name: transformers", "library_name: peft"), out)
    return count


def _write_card(card: Mapping[str, Any], text: str, out: Path) -> None:
    rounds = card.get("rounds")
    rows = [row for row in rounds if isinstance(row, Mapping)] if isinstance(rounds, list) else []
    if rows:
        write_curve(rows, out)
    (out / "README.md").write_text(text, "utf-8")


def model_card(card: Mapping[str, Any], parameters: int, config: Mapping[str, Any]) -> str:
    """The folder's README: what was trained, its curve, its receipts and the job document.

    Args:
        card: ``name``; every other text or number is shown in one table. ``rounds`` and ``receipts`` (lists of mappings)
            are shown as tables of their own, ``spec`` (a mapping) as JSON.
    """
    name = _cell(card.get("name", "model"))
    lines = ["---", "library_name: transformers", "pipeline_tag: text-generation", "---", "", f"# {name}", ""]
    lines += [
        f"A {config['model_type']} language model with {parameters:,} parameters, trained on a Cottage network.",
        "",
    ]
    facts = [
        {"what": key.replace("_", " "), "value": value}
        for key, value in card.items()
        if key != "name" and isinstance(value, str | int | float)
    ]
    if facts:
        lines += _table(facts)
    for title, key in (("Training curve", "rounds"), ("Receipts", "receipts")):
        rows = card.get(key)
        if isinstance(rows, list) and rows:
            shown = [_shown(row) for row in rows if isinstance(row, Mapping)]
            lines += [f"## {title}", "", *_table(shown)]
    if isinstance(card.get("spec"), Mapping):
        lines += ["## Job", "", "```json", json.dumps(card["spec"], indent=2, sort_keys=True), "```", ""]
    return "\n".join(lines)


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in with_perplexity(row).items() if key != "time"}


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    for row in rows:
        cells = (_cell(row.get(column)) for column in columns)
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def _cell(value: object) -> str:
    text = "" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


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
    if value.dtype != np.float32:
        raise WeightsError("wrong-shape", f"{name} of checkpoint {path.name} is {value.dtype}: checkpoints are float32")
    if not bool(np.isfinite(value).all()):
        raise WeightsError("not-finite", f"{name} of checkpoint {path.name} holds NaN or infinite values")
    tensors[name] = value


def _write_tokenizer(
    source: Path, out: Path, max_positions: int, config: Mapping[str, Any], beside: Mapping[str, Mapping[str, Any]]
) -> int | None:
    """Copy the tokenizer so that ``AutoTokenizer`` opens it; returns the id of the token that ends its documents."""
    tokenizer = Tokenizer.from_file(str(source))
    shutil.copyfile(source, out / "tokenizer.json")
    _write_json(out / SETTINGS, finished_settings(tokenizer, config, beside.get(SETTINGS, {}), max_positions))
    return end_of(tokenizer, config)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", "utf-8")
