"""Texts that strangers might write to whoever reads them (``tests/corpus/texts``), and what must never come of them."""

import enum
import re
import unicodedata
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from protocol.job.job import HUB_PATTERN, JobSpec

FOLDER = Path(__file__).parents[1] / "corpus" / "texts"
TEXTS = {file.stem: file.read_bytes().decode() for file in sorted(FOLDER.glob("*.txt"))}
# What rich writes by itself: colours, and the movements of a bar that is drawn again.
OWN = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[[0-9]*[ABGK]|\x1b\[2K|\r")
ALL = " ".join(TEXTS.values())


def acts(text: str, own: bool = False) -> list[str]:
    """Characters of ``text`` that a terminal, a log or a reader is deceived by; ``own``: after what rich writes itself."""
    left = OWN.sub("", text) if own else text
    return sorted({char for char in left if char not in "\n\t" and _acts(char)})


def _acts(char: str) -> bool:
    return unicodedata.category(char)[0] == "C" or char in "\u2028\u2029\u115f\u1160\u3164\uffa0"


CHOSEN: dict[type[msgspec.Struct], dict[str, Any]] = {JobSpec: {"serve": None, "federated": None, "array": None}}
"""What cannot be with all the rest: a job learns from a dataset, or at owners, or it serves."""


def hostile(kind: Any, text: str, name: str = "") -> Any:
    """Plain data of a type, with ``text`` wherever the type takes any text."""
    if isinstance(kind, NewType):
        return hostile(kind.__supertype__, text, name)
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _annotated(parts, text, name)
    if origin is Literal:
        return "file" if "file" in parts else parts[0]  # What has all the fields of its struct.
    if kind is str:
        return text
    if kind in (int, float):
        return 1
    if kind is bool:
        return True
    if kind is bytes:
        return ""
    if origin in (tuple, list) and parts:
        return [hostile(parts[0], text, name)]
    if origin is dict:
        return {str(hostile(parts[0], text, name)): hostile(parts[1], text, name)}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return next(iter(kind)).value
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind, include_extras=True)
        tag = kind.__struct_config__.tag
        made = {field: hostile(hints[field], text, field) for field in kind.__struct_encode_fields__}
        made |= CHOSEN.get(kind, {})
        return made if tag is None else {kind.__struct_config__.tag_field: tag, **made}
    some = [part for part in parts if part is not type(None)]
    return hostile(some[0], text, name) if some else None


def _annotated(parts: tuple[Any, ...], text: str, name: str) -> Any:
    metas = [meta for meta in parts[1:] if isinstance(meta, Meta)]
    pattern = next((meta.pattern for meta in metas if meta.pattern), None)
    inner = parts[0].__supertype__ if isinstance(parts[0], NewType) else parts[0]
    if inner is str:
        fitting = {r"^[0-9a-f]{32}$": "ab" * 16, r"^[0-9a-f]{64}$": "ab" * 32, r"^[01]{168}$": "1" * 168}
        fitting |= {r"^[A-Z]{3}$": "EUR", f"^{HUB_PATTERN}$": f"some/model@{'0' * 40}"}
        if pattern in fitting:
            return fitting[pattern]
        if pattern is not None and "1-9A-H" in pattern:
            return "1" * 40
        longest = next((meta.max_length for meta in metas if meta.max_length), len(text))
        candidate = text.replace("\0", "")[:longest]
        return candidate if pattern is None or re.search(pattern, candidate) else "x"
    bounds = {bound: getattr(meta, bound) for meta in metas for bound in ("ge", "gt", "le", "lt")}
    if inner in (int, float):
        return next((bounds[bound] for bound in ("ge", "le") if bounds[bound] is not None), 1)
    return hostile(parts[0], text, name)
