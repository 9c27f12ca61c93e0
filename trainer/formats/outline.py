"""Where the rows of a JSON object are: a list of them, a column, rows with a name each, or a table of names and lists."""

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from protocol.datasets.field_names import TALKS, found_name
from protocol.datasets.file_formats import is_message
from trainer.errors import DataError
from trainer.formats.conversations import CHOSEN, COMPLETION, PROMPT, REJECTED, asked_names
from trainer.formats.fields import text_of
from trainer.formats.rows import shown
from trainer.formats.scanner import JsonScanner, keys

MAX_MEMBERS = 1000  # That are kept of one object; a document with lists has two or three.
MAX_LOOKED = 1 << 20  # Bytes of a value that is looked into.
MOST = 0.9  # Of the members are rows where all should be: the others are refused as rows.
FEW = 10  # Objects that are looked into.
_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw])
_NAMES: Final = msgspec.json.Decoder(list[str])
_JSON: Final = json.JSONDecoder(strict=False, parse_int=lambda _: 0, parse_float=lambda _: 0.0)
_FIRST_KEY: Final = re.compile(r'\{\s*"(?:[^"\\]|\\.)*"\s*:\s*', re.DOTALL)

Kind = Literal["rows", "texts", "lists", "object", "text", "other"]
"""A list of objects, of texts or of lists; an object; a text or null; or what has no rows."""


@dataclass
class Outline:
    """The members of a document's object.

    Attributes:
        kinds: of each, by its name.
        firsts: of lists of objects the first one, of objects their beginning.
        columns: names of columns, as pandas writes them beside their rows (orient="split").
        numbered: all names are numbers.
    """

    kinds: dict[str, Kind] = field(default_factory=dict)
    firsts: dict[str, bytes] = field(default_factory=dict)
    columns: list[str] = field(default_factory=list)
    numbered: bool = True
    mixed: bool = False
    """Members beyond those that are kept are of other kinds."""

    def chosen(self, text_field: str, name: str) -> str | None:
        """The member that has the rows; None where the object is a row itself, or its members are.

        Raises:
            DataError: several could be meant.
        """
        own = found_name(text_field, self.kinds)
        if own is not None and self.kinds[own] in ("texts", "object"):
            return own
        if self._names_rows(text_field) or (own is None and self._is_talk()):
            return None
        itself = (own is not None and self.kinds[own] == "text") or self._leads_to(text_field)
        lists = [key for key in self.kinds if self._has_rows(key, text_field, certain=itself)]
        named = [key for key in lists if text_field.startswith(f"{key}.")]
        if len(named or lists) > 1:
            listed = ", ".join(map(shown, lists[:10]))
            ways = f"name one with its field, such as {lists[0][:40]}.{text_field}"
            raise DataError("bad-json", f"{name} has several lists of rows, {listed}: {ways}")
        return next(iter(named or lists), None)

    def _is_talk(self) -> bool:
        """Whether the object is a conversation, whose messages are no rows."""
        names = self.kinds.keys()
        if {PROMPT, COMPLETION} <= names or {CHOSEN, REJECTED} <= names or asked_names(names):
            return True
        return any(is_message(_loaded(self.firsts.get(key, b""))) for key in TALKS)

    def is_by_name(self, text_field: str) -> bool:
        """Whether each member is a row, where none of them has rows.

        It is an object with the field (orient="index"), or as all others with another one; or a text with a number for a name.
        """
        if set(self.kinds.values()) == {"object"} and self._are_alike() and not self._leads_to(text_field):
            return True
        return self._names_rows(text_field)

    def _names_rows(self, text_field: str) -> bool:
        kinds = Counter(self.kinds.values())
        if kinds["text"] == len(self.kinds):
            return bool(self.kinds) and self.numbered and not self.mixed
        most = kinds["object"] >= MOST * len(self.kinds) and not kinds["rows"]
        return most and any(_has_text(value, text_field) for value in self.firsts.values())

    def place_of(self, member: str, text_field: str) -> int | None:
        """The place of the text in a member's rows that are lists; None where they are none."""
        own = found_name(text_field.removeprefix(f"{member}."), self.columns)
        return self.columns.index(own) if own is not None and self.kinds[member] == "lists" else None

    def _are_alike(self) -> bool:
        """Whether the first members have the same fields: then each is a row that lacks the one that is asked for."""
        rows = [_loaded(value) for value in self.firsts.values()]
        return len(rows) > 1 and {} not in rows and len({frozenset(row) for row in rows}) == 1

    def _leads_to(self, text_field: str) -> bool:
        """Whether an object within has the text, by names with dots between."""
        within = ((key, text_field.removeprefix(f"{key}.")) for key in self.firsts if self.kinds[key] == "object")
        return any(inner != text_field and _has_text(self.firsts[key], inner) for key, inner in within)

    def _has_rows(self, key: str, text_field: str, *, certain: bool) -> bool:
        """Whether a member has rows. ``certain``: only where the first has the text."""
        first, inner = self.firsts.get(key, b""), text_field.removeprefix(f"{key}.")
        match self.kinds[key]:
            case "rows":
                return not certain or _has_text(first, inner)
            case "lists":
                return self.place_of(key, text_field) is not None
            case "object":
                return not certain and _has_text(_first_value(first), inner)
        return False


def outline_of(scanner: JsonScanner) -> Outline:
    """Go past an object, and say what it has; of thousands of members, the first are kept."""
    found = Outline()
    kind: Kind
    for key in keys(scanner):
        if key == "columns" and scanner.peek() == b"[":
            found.columns = _strings(scanner.value(MAX_LOOKED))
            kind, first = ("texts" if found.columns else "other"), b""
        else:
            kind, first = _kind(scanner, len(found.firsts) < FEW)
        if first:
            found.firsts[key] = first
        found.numbered = found.numbered and key.isdecimal()
        if len(found.kinds) < MAX_MEMBERS:
            found.kinds[key] = kind
        else:
            found.mixed = found.mixed or kind not in found.kinds.values()
    return found


def _kind(scanner: JsonScanner, looks: bool) -> tuple[Kind, bytes]:
    """Go past a member's value; returns what it is, and what there is to look into."""
    begin, most = scanner.peek(), MAX_LOOKED if looks else 0
    if begin == b"{":
        return "object", scanner.value(most, cut=True) or b""
    if begin != b"[":
        scanner.value(0)
        return ("text" if begin in (b'"', b"n") else "other"), b""
    scanner.take(b"[")
    kinds: dict[bytes, Kind] = {b"{": "rows", b'"': "texts", b"n": "texts", b"[": "lists"}
    kind = kinds.get(scanner.peek(), "other")
    if kind == "rows":
        first = scanner.value(most) or b""
        if scanner.take(b",]") == b",":
            scanner.rest()
        return kind, first
    scanner.rest()
    return kind, b""


def entry(row: bytes, column: int) -> bytes:
    """What a row that is a list has at a place; the row where it has nothing there."""
    try:
        return bytes(_LIST.decode(row)[column])
    except (msgspec.MsgspecError, IndexError, RecursionError):
        return row


def _strings(value: bytes | None) -> list[str]:
    try:
        return _NAMES.decode(value or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []


def _has_text(row: bytes, text_field: str) -> bool:
    """Whether an object has a text in the field, be it one that cannot be read, or is a conversation."""
    found = text_of(row.decode("utf-8", "replace").encode(), text_field, "") if row[:1] == b"{" else None
    return found.code == "bad-character" if isinstance(found, DataError) else found is not None


def _loaded(row: bytes) -> dict[str, Any]:
    """An object; without anything where it is none, or its end is missing."""
    try:
        found = _JSON.decode(row.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _first_value(value: bytes) -> bytes:
    """The first value within an object, of which the end may be missing; empty where it is none."""
    text = value.decode("utf-8", "replace")
    if (begin := _FIRST_KEY.match(text)) is None:
        return b""
    try:
        _, stop = _JSON.raw_decode(text, begin.end())
    except (ValueError, RecursionError):
        return b""
    return text[begin.end() : stop].encode()
