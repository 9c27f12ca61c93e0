"""What msgspec says of data that do not fit a type, in plain words: which field, what it holds, and what it may hold.

``protocol.codec`` is the door where this is used; nothing else shows a person the library's own text.
"""

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from msgspec import inspect

MAX_KINDS = 256  # Types that are kept looked through, as many as the codec has decoders for.
SHOWN_NAMES = 8  # Fields or choices that are listed; a reader looks for one.
SHOWN_CHARACTERS = 60  # Of a value or a name that somebody wrote.
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table of names and values",
    "null": "empty",
    "bytes": "bytes in base64",
}
_BOUNDS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
_UNITS = {"str": "characters", "bytes": "bytes", "array": "entries", "object": "entries"}
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_LIBRARY = ("Expected `", "Invalid ", "Number out of range", "`")
"""How the library's own sentences begin; others are ours, of a ``__post_init__``."""
_NOT_FINITE = re.compile(rb"-?(?:NaN|Infinity)\b")  # As Python's json writes them.
_ELSEWHERE = {
    "r": "rank",
    "lora_alpha": "alpha",
    "target_modules": "targets",
    "epochs": "tokens",
    "num_train_epochs": "tokens",
    "max_length": "sequence",
    "max_seq_length": "sequence",
    "per_device_train_batch_size": "batch",
    "lr": "learning_rate",
}
"""What other trainers call fields of a job."""
_HEXADECIMAL = re.compile(r"\^\[0-9a-f\]\{(\d+)\}\$")


@dataclass(frozen=True)
class Refusal:
    """``field``: where, as in ``training.tokens``; empty for the whole. ``words``: what is wrong there, without the place."""

    field: str
    words: str
    own: bool = False
    """The words are a whole sentence of ours, of a type that checks itself."""

    def __str__(self) -> str:
        if self.own:
            return f"{self.field}: {self.words}" if self.field else self.words
        named = f"it{self.field}" if self.field.startswith("[") else self.field
        return f"{named.replace('[...]', ' (one of its entries)') or 'it'} {self.words}"


def refusal(said: str, kind: Any, value: Any = None) -> Refusal:
    """The library's text on a value that is no ``kind``, in words.

    Args:
        value: the plain data that were refused, where they are at hand: the one in question is then shown.
    """
    text, at_a_name, path = said.partition(" - at `key` in `$")
    if at_a_name:
        return Refusal(path.rstrip("`").lstrip("."), f"has a name that {_wanted(text)}")
    text, _, path = said.partition(" - at `$")
    field = path.rstrip("`").lstrip(".")
    here = list(_types_at(kind, field))
    if found := re.fullmatch(r"Object contains unknown field `(.*)`", text, re.DOTALL):
        return Refusal(field, _unknown(found[1], here))
    if found := re.fullmatch(r"Object missing required field `(.*)`", text, re.DOTALL):
        return Refusal(f"{field}.{found[1]}".lstrip("."), "is missing: give it")
    if found := re.fullmatch(r"Invalid (?:enum )?value (.*)", text, re.DOTALL):
        return Refusal(field, f"is {found[1][:SHOWN_CHARACTERS]}: {_choice(found[1], here, kind, field)}")
    if not text.startswith(_LIBRARY):
        return Refusal(field, text, own=True)
    wanted = _wanted(text)
    held = _value_at(value, field)
    shown = _shown(held, text)
    return Refusal(field, f"is {shown}, and {wanted}" if shown else wanted)


def malformed(said: str, data: bytes) -> str:
    """The library's text on bytes that are no JSON or MessagePack, in words."""
    if not data.strip():
        return "it is empty"
    if "truncated" in said:
        return (
            "it is cut off: its end is missing"
            if _is_cut(data)
            else "it has half a character, as \\ud83d alone: mend that"
        )
    found = re.search(r"\(byte (\d+)\)", said)
    at = int(found[1]) if found else 0
    if not said.startswith("JSON"):
        return f"it is no message, from byte {at:,} on"
    line, near = data.count(b"\n", 0, at) + 1, data[at : at + 20].decode(errors="replace")
    if number := _NOT_FINITE.search(data[max(0, at - 1) : at + 9]):
        return f"it holds {number[0].decode()} on line {line:,}: only finite numbers are taken"
    return f"it is no JSON, from line {line:,} on: {near!r}"


def _is_cut(data: bytes) -> bool:
    """Whether the end is missing of what the library calls so; it says the same of half a character."""
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return True
    return False


def yaml_place(error: Exception) -> str:
    """Where a document stops being YAML, to end a sentence with; empty where the library does not say."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return (
            ": it is no text, or a value in it is none" if not isinstance(error, RecursionError) else ": it is too deep"
        )
    return f" from line {mark.line + 1:,}, character {mark.column + 1:,} on: see to colons, indents and closing brackets there"


def _wanted(text: str) -> str:
    """What there should be, as the rest of a sentence on a field."""
    if found := re.fullmatch(r"Expected `(?:int|float)` (>=|<=|>|<) (\S+)", text):
        return f"must be {_BOUNDS[found[1]]} {_number(found[2])}"
    if found := re.fullmatch(r"Expected `(\w+)` of (?:at least )?length (?:(>=|<=) )?(\d+)(?:,? got .*)?", text):
        bound = f"{_BOUNDS[found[2]]} " if found[2] else "exactly "
        if (found[2], found[3]) == (">=", "1"):
            return "must not be empty"
        return f"must have {bound}{int(found[3]):,} {_UNITS.get(found[1], 'entries')}"
    if found := re.fullmatch(r"Expected `int` that's a multiple of (\d+)", text):
        return f"must be a multiple of {int(found[1]):,}"
    if found := re.fullmatch(r"Expected `str` matching regex '(.*)'", text, re.DOTALL):
        if digits := _HEXADECIMAL.fullmatch(found[1]):
            return f"must be {digits[1]} characters of 0-9 and a-f"
        return "has characters that are not taken here"
    if found := re.fullmatch(r"Expected `([^`]*)`(?:, got `([^`]*)`)?", text):
        wanted = " or ".join(_TYPES.get(part, "another value") for part in dict.fromkeys(found[1].split(" | ")))
        got = _TYPES.get(found[2] or "")
        return f"must be {wanted}, not {got}" if got else f"must be {wanted}"
    if text.startswith("Number out of range"):
        return "is a number too large to be kept"
    if text.startswith("Invalid base64"):
        return "must be bytes in base64"
    return "has a value that is not taken here"


def _number(text: str) -> str:
    value = float(text)
    return f"{int(text):,}" if text.lstrip("-").isdigit() else f"{value:,g}"


def _shown(held: Any, text: str) -> str:
    """The value in question; text only where a number was wanted, since other texts may be secrets or long."""
    if isinstance(held, bool) or not text.startswith(("Expected `int", "Expected `float")):
        return ""
    if isinstance(held, str):
        return repr(held[:SHOWN_CHARACTERS])
    return repr(held) if isinstance(held, int | float) and -(2**64) < held < 2**64 else ""


def _unknown(name: str, here: Sequence[inspect.Type]) -> str:
    shown, names = repr(name[:SHOWN_CHARACTERS]), _names(here)
    if (own := _ELSEWHERE.get(name)) in names:
        return f"has no field {shown}: it is {own} here"
    inner = [
        f"{outer.encode_name}.{name}"
        for kind in here
        if isinstance(kind, inspect.StructType)
        for outer in kind.fields
        if name in _names(list(_flat(outer.type)))
    ]
    if inner:
        return f"has no field {shown}: it is {' or '.join(inner[:SHOWN_NAMES])}"
    near = difflib.get_close_matches(name[:SHOWN_CHARACTERS], names, 3, 0.6)
    if near:
        return f"has no field {shown}: the nearest {'is' if len(near) == 1 else 'are'} {', '.join(near)}"
    listed = ", ".join(names[:SHOWN_NAMES]) + (" and others" if len(names) > SHOWN_NAMES else "")
    return (
        f"has no field {shown}: there {'is' if len(names) == 1 else 'are'} {listed}" if names else f"takes no {shown}"
    )


def _choice(said: str, here: Sequence[inspect.Type], kind: Any, field: str) -> str:
    choices = [str(value) for found in here if isinstance(found, inspect.LiteralType) for value in found.values]
    choices += [str(member.value) for found in here if isinstance(found, inspect.EnumType) for member in found.cls]
    if not choices:  # The tag of a union.
        outer = _types_at(kind, field.rpartition(".")[0])
        choices = [str(found.tag) for found in outer if isinstance(found, inspect.StructType) and found.tag is not None]
    if not choices:
        return "that is not taken here"
    near = difflib.get_close_matches(said.strip("'\""), choices, 1, 0.6)
    listed = near + [choice for choice in choices if choice not in near]
    more = " or others" if len(listed) > SHOWN_NAMES else ""
    return f"it is one of {', '.join(listed[:SHOWN_NAMES])}{more}"


@lru_cache(MAX_KINDS)
def _looked_through(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _types_at(kind: Any, field: str) -> Iterator[inspect.Type]:
    """The types that a value at ``field`` may have."""
    found = list(_flat(_looked_through(kind)))
    for name, index in _STEP.findall(f".{field}" if field and not field.startswith("[") else field):
        found = [inner for outer in found for step in _step(outer, name, index) for inner in _flat(step)]
    yield from found


def _flat(kind: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.UnionType):
        for part in kind.types:
            yield from _flat(part)
    elif isinstance(kind, inspect.Metadata):
        yield from _flat(kind.type)
    else:
        yield kind


def _step(outer: inspect.Type, name: str, index: str) -> Iterator[inspect.Type]:
    match outer:
        case inspect.StructType() if name:
            yield from (field.type for field in outer.fields if field.encode_name == name)
        case inspect.DictType():
            yield outer.value_type
        case inspect.TupleType() if index.isdigit():
            yield from outer.item_types[int(index) : int(index) + 1]
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() | inspect.FrozenSetType():
            yield outer.item_type


def _names(here: Sequence[inspect.Type]) -> list[str]:
    return [field.encode_name for found in here if isinstance(found, inspect.StructType) for field in found.fields]


def _value_at(value: Any, field: str) -> Any:
    for name, index in _STEP.findall(f".{field}" if field and not field.startswith("[") else field):
        if name and isinstance(value, Mapping):
            value = value.get(name)
        elif index.isdigit() and isinstance(value, Sequence) and int(index) < len(value):
            value = value[int(index)]
        else:
            return None
    return value
