"""The published files that a job started from: copied as they are, and where each tensor lies in them. Free of torch."""

import json
import shutil
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.models.model import tensors_of
from protocol.models.tensor_names import ways
from trainer.errors import WeightsError
from trainer.export.hf_metadata import write_json

_STORED: Mapping[str, str] = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_LENGTH = struct.Struct("<Q")
_INDEX = "model.safetensors.index.json"


class TensorPlace(NamedTuple):
    """Where a tensor lies in a safetensors file: its first byte, and the type of its numbers as such files name it."""

    file: Path
    begin: int
    kind: str


def copied(weights: Sequence[Path], out: Path) -> dict[str, TensorPlace]:
    """Copy files of weights into a folder, under the names that such a folder has; where each tensor lies there.

    Raises:
        WeightsError: one is broken.
    """
    files = [out / name for name in _names(len(weights))]
    for path, file in zip(weights, files, strict=True):
        shutil.copyfile(path, file)
    places = {key: place for file in files for key, place in places_in(file).items()}
    if len(files) > 1:
        size = sum(file.stat().st_size for file in files)
        found = {key: place.file.name for key, place in places.items()}
        write_json(out / _INDEX, {"metadata": {"total_size": size}, "weight_map": found})
    return places


def places_in(file: Path) -> dict[str, TensorPlace]:
    """Every tensor of a safetensors file by name; raises ``WeightsError``: it is broken."""
    try:
        with file.open("rb") as opened:
            (length,) = _LENGTH.unpack(opened.read(_LENGTH.size))
            header = json.loads(opened.read(length))
        header.pop("__metadata__", None)
        data = _LENGTH.size + length
        return {key: TensorPlace(file, data + int(one["data_offsets"][0]), one["dtype"]) for key, one in header.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise WeightsError("bad-safetensors", f"{file.name} cannot be read as safetensors: {error}") from error


def published_embedding(files: Sequence[Path], name: str, config: Mapping[str, Any]) -> NDArray[np.float32]:
    """The token embedding ``name`` of published weights.

    Raises:
        WeightsError: no file has it, or one is broken.
    """
    shape = tensors_of(config).embedding[name]
    wanted = {way[0].key for way in ways(name, shape, config, tied=False)}
    for file in files:
        places = places_in(file)
        for key in wanted & places.keys():
            begin, kind = places[key][1:]
            try:
                values = np.memmap(file, dtype=_STORED[kind], mode="r", offset=begin, shape=shape)
            except (OSError, ValueError, KeyError) as error:
                raise WeightsError("bad-safetensors", f"{key} of {file.name} cannot be read: {error}") from error
            wide = (values.astype(np.uint32) << np.uint32(16)).view(np.float32) if kind == "BF16" else values
            return wide.astype(np.float32)
    raise WeightsError("missing-tensor", f"the model's own weights have no tensor {name}")


def _names(count: int) -> list[str]:
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
