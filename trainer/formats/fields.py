"""The text of a row of JSON: strict and quick for nearly all rows, and patient with what nobody uses of the others.

A row is refused for what is wrong with its text, or with its form: NaN, half a character or a number of a thousand digits
in another field are nobody's business.
"""

import json
from typing import Any, Final

import msgspec

from protocol.datasets.field_names import found_name
from trainer.errors import DataError
from trainer.formats.conversations import talk_of
from trainer.formats.rows import bad_encoding, half_character, no_field, no_text, not_json, too_deep
from trainer.formats.talk import Said

_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_STRING: Final = msgspec.json.Decoder(str)
_PATIENT: Final = json.JSONDecoder(strict=False, parse_int=lambda _: 0, parse_float=lambda _: 0.0)
_KINDS: Final = {
    dict: "an object",
    list: "a list",
    int: "a number",
    float: "a number",
    bool: "true or false",
    str: "a text",
}
MAX_NAMES = 40  # Fields that are gathered for a message.


def text_of(row: bytes, field: str, where: str, encoding: str = "utf-8") -> str | Said | DataError:
    """The text in a field of one row, or its conversation.

    Args:
        row: one JSON object, in UTF-8.
        field: its name; or names with dots between, for objects within objects.
        where: the row's name, for messages.
    Returns:
        the text, empty where it is null; or why there is none.
    """
    try:
        found = _walked(_OBJECT.decode(row), field)
        if found is not None and (text := "" if found == b"null" else _STRING.decode(found)).strip():
            return text
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass  # What is wrong may be nobody's business.
    return _patiently(row, field, where, encoding)


def _walked(row: dict[str, msgspec.Raw], field: str) -> msgspec.Raw | None:
    """The value at a path; the whole path may be a field's own name."""
    if field in row:
        return row[field]
    at = field.find(".")
    while at > 0:
        inner = row.get(field[:at])
        if inner is not None and bytes(memoryview(inner)[:1]) == b"{":
            return _walked(_OBJECT.decode(inner), field[at + 1 :])
        at = field.find(".", at + 1)
    return None


def _patiently(row: bytes, field: str, where: str, encoding: str) -> str | Said | DataError:
    try:
        characters = row.decode()
    except UnicodeDecodeError as error:
        return bad_encoding(where, error, encoding)
    try:
        value, stop = _PATIENT.raw_decode(characters.lstrip())
    except json.JSONDecodeError as error:
        return not_json(where, characters.lstrip(), _broken_at(error))
    except (RecursionError, ValueError):
        return too_deep(where)
    if characters.lstrip()[stop:].strip():
        return not_json(where, characters.lstrip(), stop)
    found = value_of(value, field, where)
    if isinstance(found, str | DataError):
        return found
    try:  # Its numbers count, as those of other rows do not.
        return value_of(json.loads(characters, strict=False), field, where)
    except ValueError:
        return DataError("bad-row", f"{where} has a number of thousands of digits: leave it out, or write it as a text")


def string_of(value: bytes, where: str, encoding: str) -> str | DataError:
    """The text that a row of a list of texts is, or null."""
    try:
        return "" if value == b"null" else checked(_PATIENT.decode(value.decode()), where)
    except UnicodeDecodeError as error:
        return bad_encoding(where, error, encoding)
    except json.JSONDecodeError as error:
        return not_json(where, error.doc, _broken_at(error))


def _broken_at(error: json.JSONDecodeError) -> int:
    """The character from which on it is no JSON; of a text without its last quote, the end."""
    return len(error.doc) if error.msg.startswith("Unterminated string") else error.pos


def value_of(value: Any, field: str, where: str) -> str | Said | DataError:
    """The text in a field of a row that is read already, or its conversation."""
    if not isinstance(value, dict):
        way = ', as pandas does with orient="records", lines=True' if isinstance(value, list) else ""
        what = f'{where} is {kind_of(value)}, not an object such as {{"text": "..."}}: write one there{way}'
        return DataError("bad-row", what)
    missing = object()
    text = _stepped(value, field, missing)
    if (text is missing or text is None or text == "") and (talk := talk_of(value, field, where)) is not None:
        return talk
    if isinstance(text, list) and text and (talk := talk_of({**value, field: text}, field, where)) is not None:
        return talk
    if text is missing:
        return no_field(where, field, sorted(names_of(value)))
    if text is None:
        return ""
    if not isinstance(text, str):
        return no_text(where, field, kind_of(text))
    return checked(text, where)


def checked(text: str, where: str) -> str | DataError:
    """A text, unless half of a character is in it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return half_character(where, text)
    return text


def _stepped(row: dict[str, Any], field: str, missing: object) -> Any:
    if (own := found_name(field, row)) is not None:
        return row[own]
    at = field.find(".")
    while at > 0:
        first = found_name(field[:at], row)
        inner = missing if first is None else row[first]
        if isinstance(inner, dict):
            return _stepped(inner, field[at + 1 :], missing)
        if inner is None:
            return None  # An object that is not there has no text, as in Parquet.
        at = field.find(".", at + 1)
    return missing


def kind_of(value: Any) -> str:
    """What a value is, in words."""
    return "nothing (null)" if value is None else _KINDS.get(type(value), "something else")


def names_of(row: dict[str, Any], before: str = "") -> list[str]:
    """The paths of a row's fields that could hold its text."""
    found: list[str] = []
    for name, value in row.items():
        deeper = isinstance(value, dict) and value and before.count(".") < 3
        found += names_of(value, f"{before}{name}.") if deeper else [before + name]
        if len(found) > MAX_NAMES:
            break
    return found[:MAX_NAMES]
