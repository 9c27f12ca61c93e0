"""What commands print with (``common.console``: in tables and colours): nothing gets past it that a terminal acts on.

Text of others is made safe where it comes in (``common.untrusted_text``). This is the second door: whatever was forgotten
there, in an error or a line of JSON, is stopped here. The checks of the sources let nothing else write to a terminal.
"""

import sys
from typing import Any

import msgspec

from common.untrusted_text import untrusted, untrusted_lines


def say(text: str, error: bool = False) -> None:
    """Print text of our own, which may have several lines, as it is: never wrapped, so that programs can read it."""
    stream = sys.stderr if error else sys.stdout
    stream.write(f"{untrusted_lines(text)}\n")
    stream.flush()


def complain(who: str, why: object) -> None:
    """Print what went wrong, on one line of standard error. ``who``: the command."""
    say(f"{who}: {untrusted(why)}", error=True)


def say_json(value: Any, indent: int = 0) -> None:
    """Print one JSON document: on one line, or indented. What does not show is escaped, as JSON allows in all its texts."""
    text = msgspec.json.encode(value)
    say(escaped(msgspec.json.format(text, indent=indent).decode() if indent else text.decode()))


def escaped(document: str) -> str:
    """A JSON document with every character that does not show written as its code."""
    if document.isascii() and "\x7f" not in document:
        return document  # JSON writes the other control characters of ASCII as codes already.
    return "".join(char if char == "\n" or _shows(char) else _code(char) for char in document)


def _shows(char: str) -> bool:
    return untrusted(char) == char


def _code(char: str) -> str:
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
