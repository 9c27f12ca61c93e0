"""A job document from a file, YAML or JSON, as plain data that arrive at the coordinator as they were written."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from protocol.codec import MessageError, decode_json
from protocol.refusals import yaml_place

MAX_DOCUMENT = 16 << 20  # Bytes; a coordinator takes less, and says how much.
_FLOAT = re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")


class DocumentError(Exception):
    """A file holds no job document; the text names the file, the place and the way out."""


def read_document(path: Path) -> dict[str, Any]:
    """The document in a file.

    Raises:
        DocumentError: it is neither YAML nor JSON, no table, or has a number that is none.
        OSError: the file cannot be read.
    """
    data = path.read_bytes()
    document = _json(data, path) if path.suffix == ".json" else _yaml(data, path)
    if not isinstance(document, dict):
        raise DocumentError(f"{path}: a job document is a table with name, model, dataset and budget")
    for place, value in _numbers(document, ""):
        if not math.isfinite(value):
            raise DocumentError(f"{path}: {place} is {value}, no finite number: write one, or leave {place} out")
    return document


def _json(data: bytes, path: Path) -> Any:
    try:
        return decode_json(data, Any, MAX_DOCUMENT)
    except MessageError as error:
        raise DocumentError(f"{path}: {error}") from error


def _yaml(data: bytes, path: Path) -> Any:
    import yaml  # Only here: a program that uses the SDK needs none.

    class Loader(yaml.SafeLoader):
        """Reads ``3e-3`` as a number, as the coordinator does."""

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789"))
    try:
        return yaml.load(data, Loader=Loader)  # noqa: S506 - a subclass of the safe loader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DocumentError(f"{path}: it is no YAML{yaml_place(error)}") from error


def _numbers(value: Any, place: str) -> Iterator[tuple[str, float]]:
    match value:
        case dict():
            for key, inner in value.items():
                yield from _numbers(inner, f"{place}.{key}".lstrip("."))
        case list():
            for number, inner in enumerate(value):
                yield from _numbers(inner, f"{place}[{number}]")
        case float():
            yield place, value
