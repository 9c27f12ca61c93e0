"""Text that somebody else wrote, made safe to show: the one door for names, reasons, log lines and error texts of strangers.

A terminal acts on control characters (the clipboard, the title, the screen), a reader is deceived by invisible ones and by
those that turn the direction of writing, and a line break forges the next line of a log. ``untrusted`` takes them out. What it
returns has a type of its own, which everything that shows text of others asks for, so that mypy finds a way around the door.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Annotated, Any, Literal, NewType, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

Untrusted = NewType("Untrusted", str)
"""One line of text of others without anything that a screen acts on. ``untrusted`` makes one, and so does every ``Told``."""

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
MAX_TEXT = 4000  # Characters; nobody reads more in one place.
MAX_MARKS = 4  # On one letter; Vietnamese has two, and a tower of them covers the lines above.
# Letters and a symbol that show nothing: names made of them look empty.
_BLANKS = frozenset("\u115f\u1160\u2800\u3164\uffa0")
_JOINER = "\N{ZERO WIDTH JOINER}"
_PLAIN = re.compile(r"[ -~]*")
_PLAIN_LINES = re.compile(r"[\t\n -~]*")


def untrusted(text: object, limit: int = MAX_TEXT) -> Untrusted:
    """``text`` on one line of at most ``limit`` characters, without control, format and invisible characters.

    >>> untrusted("\\x1b]0;owned\\x07a\\nb")
    '�]0;owned�a b'
    """
    if _is_plain(text, limit):
        return cast(Untrusted, text)
    return Untrusted(_cut(_clean(str(text)[: limit + 1], _PLAIN, ""), limit))


def untrusted_lines(text: object, limit: int = 1 << 20) -> Untrusted:
    """The same for a text of several lines: line breaks and tabs stay, everything else is as in ``untrusted``."""
    if _is_plain(text, limit):
        return cast(Untrusted, text)
    whole = str(text)[: limit + 1].replace("\r\n", "\n")
    return Untrusted(_cut(_clean(whole, _PLAIN_LINES, "\t\n"), limit))


def _is_plain(text: object, limit: int) -> bool:
    """Whether it is shown as it is; most are, and a page has thousands."""
    return type(text) is str and text.isascii() and text.isprintable() and len(text) <= limit


def _clean(text: str, plain: re.Pattern[str], kept: str) -> str:
    if plain.fullmatch(text) is not None:
        return text
    shown: list[str] = []
    marks = 0
    for at, char in enumerate(text):
        kind = unicodedata.category(char)
        marks = marks + 1 if kind[0] == "M" else 0
        if marks > MAX_MARKS:
            continue
        if char in kept or (char == _JOINER and _joins(text, at)):
            shown.append(char)
        elif kind[0] == "Z" or char in "\t\n\r":
            shown.append(" ")
        elif kind[0] == "C" or char in _BLANKS:
            shown.append(REPLACEMENT)
        else:
            shown.append(char)
    return "".join(shown)


def _joins(text: str, at: int) -> bool:
    """Whether a joiner stands between two symbols, as in the picture of a family."""
    before = text[max(0, at - 3) : at].rstrip("\N{VARIATION SELECTOR-16}")[-1:]
    symbols = before and unicodedata.category(before) in ("So", "Sk") and text[at + 1 : at + 2]
    return bool(symbols) and unicodedata.category(text[at + 1]) == "So"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip(_JOINER)}…"


class Told(msgspec.Struct, frozen=True):
    """A message or record with text of others in it, which is made safe whenever one is made, read or changed.

    Fields of type ``Untrusted`` (alone, optional, or in a tuple or a dict) are cleaned, and cut to their ``max_length``.
    """

    def __post_init__(self) -> None:
        for name, clean in _cleaners(type(self)):
            msgspec.structs.force_setattr(self, name, clean(getattr(self, name)))


class View(Told, frozen=True):
    """An answer for people, of a program that need not be ours: all of its texts are as in ``Told``, whatever their type says."""


@lru_cache(1024)
def _cleaners(kind: type[msgspec.Struct]) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    hints, every = get_type_hints(kind, include_extras=True), issubclass(kind, View)
    found = ((name, _cleaner(hints[name], MAX_TEXT, every)) for name in kind.__struct_fields__)
    return tuple((name, clean) for name, clean in found if clean is not None)


def _cleaner(hint: Any, limit: int, every: bool) -> Callable[[Any], Any] | None:
    """What makes a value of this type safe; None where nothing in it is text of others. ``every``: any text is."""
    if hint is Untrusted or (every and hint is str):
        return lambda text: untrusted(text, limit) if isinstance(text, str) else text
    if get_origin(hint) is Annotated:
        inner, *extras = get_args(hint)
        metas = [meta for meta in extras if isinstance(meta, Meta)]
        if inner is str and any(meta.pattern for meta in metas):
            return None
        longest = next((meta.max_length for meta in metas if meta.max_length is not None), limit)
        return _cleaner(inner, longest if inner in (str, Untrusted) else limit, every)
    if isinstance(hint, TypeVar):
        return lambda value: _each(value, limit)
    if get_origin(hint) is Literal or all(_cleaner(part, limit, every) is None for part in get_args(hint)):
        return None
    # Of several types, and of what holds others, the value itself tells what it is.
    bound = min(_bounds(hint), default=limit)
    return lambda value: _each(value, bound)


def _bounds(hint: Any) -> Iterator[int]:
    """How long the texts within a type may be."""
    inner, *extras = get_args(hint) or (None,)
    if get_origin(hint) is Annotated and inner in (str, Untrusted):
        yield from (meta.max_length for meta in extras if isinstance(meta, Meta) and meta.max_length is not None)
    elif get_origin(hint) is not Literal:
        for part in get_args(hint):
            yield from _bounds(part)


def _each(value: Any, limit: int) -> Any:
    if isinstance(value, str):
        return untrusted(value, limit)
    if isinstance(value, dict):
        return {_each(key, limit): _each(held, limit) for key, held in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_each(held, limit) for held in value)
    return value
