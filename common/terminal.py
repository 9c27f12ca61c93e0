"""What commands print with (``common.console``: in tables and colours): nothing gets past it that a terminal acts on.

Text of others is made safe where it comes in (``common.untrusted_text``). This is the second door: whatever was forgotten
there, in an error or a line of JSON, is stopped here. The checks of the sources let nothing else write to a terminal.
"""

import sys
from typing import Any, ClassVar

import msgspec

from common.system_words import in_words
from common.untrusted_text import untrusted, untrusted_lines


def say(text: str, error: bool = False) -> None:
    """Print text of our own, which may have several lines, as it is: never wrapped, so that programs can read it."""
    stream = sys.stderr if error else sys.stdout
    if stream is None:
        return  # Whoever started us has closed it: nobody wants to read.
    stream.write(f"{writable(untrusted_lines(text), stream.encoding)}\n")
    stream.flush()


def writable(text: str, encoding: str | None) -> str:
    """``text`` as a terminal of this encoding can show it: ``?`` stands for what it has no character for."""
    try:
        text.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        return text.encode(encoding or "utf-8", "replace").decode(encoding or "utf-8")
    return text


def somebody_answers() -> bool:
    """Whether somebody can be asked: standard input is a terminal, and not closed."""
    return sys.stdin is not None and sys.stdin.isatty()


class NobodyAnswersError(EOFError):
    """Somebody has to agree, and standard input is closed or at its end."""

    def __init__(self, way: str) -> None:
        super().__init__(f"nobody can be asked here: {way}")


def given_line() -> str:
    """The next line of standard input; empty where it is closed."""
    return "" if sys.stdin is None else sys.stdin.readline()


def complain(who: str, why: object) -> None:
    """Print what went wrong, on one line of standard error. ``who``: the command; of the system's errors, our words."""
    said = in_words(why) if isinstance(why, BaseException) else why
    say(f"{who}: {untrusted(said)}", error=True)


def complain_of_no_answer(who: str, error: EOFError, status: int) -> int:
    """Say that a question found standard input at its end; returns ``status``."""
    complain(who, error if isinstance(error, NobodyAnswersError) else "nobody has answered: the input is at its end")
    return status


class Waits:
    """Whom a command that somebody began waits for; what runs on and on has a log.

    ``told``: those that were named already: once is enough.
    """

    spoken_of = False
    told: ClassVar[set[str]] = set()

    @classmethod
    def tell(cls, whom: str) -> None:
        """Name one."""
        if whom not in cls.told:
            cls.told.add(whom)
            say(f"Waiting for {untrusted(whom)} to answer; Ctrl+C ends it", error=True)


def say_json(value: Any, indent: int = 0) -> None:
    """Print one JSON document: on one line, or indented. What does not show is escaped, as JSON allows in all its texts."""
    text = msgspec.json.encode(value)
    document = escaped(msgspec.json.format(text, indent=indent).decode() if indent else text.decode())
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    if writable(document, encoding) != document:
        document = "".join(char if char.isascii() else _code(char) for char in document)
    say(document)


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
