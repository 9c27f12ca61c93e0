"""A row of a dataset, and every fault that one can have: named by file, number, what is wrong and what to do."""

import re
from dataclasses import dataclass

from protocol.datasets.field_names import near_name, shown_name
from trainer.errors import DataError
from trainer.formats.talk import Said

MAX_ROW_BYTES = 64 << 20  # One document; a whole book has 1 MB.
NO_CHARACTER, HALF, CUT = "\udc80", "\ud800", "\ud840"
"""What stands in UTF-8 for bytes of another encoding: of no character, of half a one, and of one at the end of the file."""
LISTED = 10  # Names of fields in a message.
_JAVAS = re.compile(rb"\xed[\xa0-\xaf][\x80-\xbf]\xed[\xb0-\xbf][\x80-\xbf]|\xc0\x80")
SHOWN = 40  # Characters of a name or of what stands at a wrong place.


@dataclass(frozen=True, slots=True)
class DatasetRow:
    """A row, for which ``size`` bytes of the file were read: its text, empty where it has none, or why it cannot be read.

    Attributes:
        raw: of a row whose characters cannot be read: its beginning.
        talk: the conversation, or the two answers, that the row is; its text is what is said in it.
    """

    number: int
    size: int
    text: str | DataError
    raw: bytes = b""
    talk: Said | None = None

    @classmethod
    def of(cls, number: int, size: int, found: "str | Said | DataError", raw: bytes = b"") -> "DatasetRow":
        """The row that something was found in."""
        if isinstance(found, str | DataError):
            return cls(number, size, found, raw)
        return cls(number, size, found.text(), raw, found)


def place(number: int, name: str) -> str:
    """How a row is named."""
    return f"row {number:,} of {name}"


def shown(value: str) -> str:
    """A name, or what stands somewhere, for a message."""
    return repr(value if len(value) <= SHOWN else value[:SHOWN] + "…")


def long_row(where: str) -> DataError:
    """More than ``MAX_ROW_BYTES``."""
    return DataError("long-row", f"{where} has more than {MAX_ROW_BYTES:,} bytes: split it")


def bad_encoding(where: str, error: UnicodeDecodeError, encoding: str) -> DataError:
    """Bytes that are no characters of the encoding that the file is read in."""
    if encoding != "utf-8":  # The bytes that are looked at here are not the file's own.
        mark = error.object[error.start : error.start + 2]  # Three bytes, of which a block may have two.
        if mark == CUT.encode("utf-8", "surrogatepass")[:2]:
            ends = f"{where} breaks off within a character: the file, in {encoding}, is cut at its end; fetch it anew"
            return DataError("bad-character", ends)
        if mark == HALF.encode("utf-8", "surrogatepass")[:2]:
            half = f"{where} has half a character, in {encoding}: its other half was cut off"
            return DataError("bad-character", f"{half}; write it anew, or leave such rows out")
        what = (
            f"{where} has bytes that are no characters in {encoding}: name another encoding, or save the file as UTF-8"
        )
    elif _JAVAS.match(error.object, error.start):
        what = f"{where} has characters as Java writes them (modified UTF-8, CESU-8): write the file anew, as UTF-8"
    else:
        wrong = f"byte {error.start + 1:,} of it is {error.object[error.start]:02X}"
        what = f"{where} is not UTF-8: {wrong}; save the file as UTF-8, or name its encoding"
    return DataError("bad-encoding", what)


def half_character(where: str, text: str) -> DataError:
    """A surrogate without its other half, which no encoding of text has."""
    half = next(character for character in text if "\ud800" <= character <= "\udfff")
    return DataError(
        "bad-character",
        f"{where} has half a character (\\u{ord(half):04x}): its other half was cut off; write it anew, or leave such rows out",
    )


def no_field(where: str, field: str, names: list[str]) -> DataError:
    """A row without the text's field; ``names``: those that it has."""
    return DataError(
        "no-field", f"{where} has no field {field!r}: {_nearly(names) or choices(field, names, 'its fields are')}"
    )


def _nearly(names: list[str]) -> str:
    """What is missing for the row to be a conversation, or a pair of answers; empty: much."""
    if ("chosen" in names) != ("rejected" in names):
        return f"a preference has both, and {'rejected' if 'chosen' in names else 'chosen'} is missing"
    if talk := next((name for name in ("messages", "conversations") if name in names), None):
        return f"for a conversation {talk} is a list of objects with role and content, or from and value"
    return ""


def choices(field: str, names: list[str], are: str) -> str:
    """The names that there are instead of ``field``, the one that may be meant first; ``are``: what they are called."""
    listed = ", ".join(map(shown_name, names[:LISTED])) + (" and others" if len(names) > LISTED else "")
    near = near_name(field, names)
    meant = f"did you mean {shown_name(near)}? " if near else ""
    return f"{meant}{are[0].upper() if meant else are[0]}{are[1:]} {listed or 'none'}; name one of them"


def no_text(where: str, field: str, what: str) -> DataError:
    """The text's field has something else."""
    return DataError(
        "bad-row", f"{where} has {what} in the field {field!r}, not text: name another field, or write text"
    )


def not_json(where: str, text: str, at: int, wanted: str = 'an object such as {"text": "..."}') -> DataError:
    """What is no JSON from a character on."""
    rest = text[at:].strip()
    how = f"at character {at + 1:,} stands {shown(rest[:SHOWN])}" if rest else "it breaks off before its end"
    return DataError("bad-row", f"{where} is not JSON: {how}; each row is {wanted}")


def too_deep(where: str) -> DataError:
    """Brackets within brackets without end."""
    return DataError("bad-row", f"{where} has brackets within brackets, hundreds of them: write it flat")
