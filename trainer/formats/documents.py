"""JSON lines, and JSON documents of any length: an array of rows, an object with a list of them, or one object after another.

A document is cut into its rows by its brackets and quotes alone, so that it never has to fit into memory and one bad row
is one bad row.
"""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Final, Literal

from trainer.errors import DataError
from trainer.formats.fields import string_of, text_of
from trainer.formats.rows import MAX_ROW_BYTES, DatasetRow, long_row, place, shown
from trainer.formats.source import BLOCK, SourceStream

RAW_BYTES = 400  # Of a row that cannot be read: enough to guess its encoding.
MAX_KEY_BYTES = 1 << 16
MAX_MEMBERS = 1000  # Lists of one object; a document has two or three.
_WRITTEN: Final = re.compile(rb"[^ \t\r\n]")
_STRUCTURE: Final = re.compile(rb'["{}\[\]]')
_INSIDE: Final = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_SCALAR_END: Final = re.compile(rb"[,\]}\s]")

Kind = Literal["rows", "texts", "column", "other"]
"""A list of objects, a list of texts, an object whose values are a column, or what has no rows."""


def json_lines(stream: SourceStream, field: str, name: str, encoding: str) -> Iterator[DatasetRow]:
    """The rows of a file with one JSON object a line."""
    number = 0
    while line := stream.readline(MAX_ROW_BYTES + 1):
        number += 1
        if len(line) > MAX_ROW_BYTES:
            while not line.endswith(b"\n") and (line := stream.readline(BLOCK)):
                pass
            yield DatasetRow(number, stream.since(), long_row(place(number, name)))
        elif line := alone(line):
            yield made(number, stream.since(), line, field, name, encoding)
        else:
            yield DatasetRow(number, stream.since(), "")


def alone(line: bytes) -> bytes:
    """What a line holds: without the mark that files have before they are joined, and the comma that an array has after it."""
    while line.startswith(BOM_UTF8):  # Of empty files, too.
        line = line.removeprefix(BOM_UTF8)
    return line.strip().removesuffix(b",")


def made(number: int, size: int, value: bytes, field: str, name: str, encoding: str) -> DatasetRow:
    """The row that an object is."""
    text = text_of(value, field, place(number, name), encoding)
    unreadable = isinstance(text, DataError) and text.code == "bad-encoding"
    return DatasetRow(number, size, text, _raw(value, field)[:RAW_BYTES] if unreadable else b"")


def _raw(value: bytes, field: str) -> bytes:
    """The bytes of a row's text, whatever their encoding: Latin-1 has a character for each of them."""
    text = text_of(value.decode("latin-1").encode(), field, "", "utf-8")
    return value if isinstance(text, DataError) else text.encode("latin-1", "replace")


def json_document(
    again: Callable[[], AbstractContextManager[SourceStream]], field: str, name: str, encoding: str
) -> Iterator[DatasetRow]:
    """The rows of one JSON document.

    Args:
        again: opens the file from its beginning.
    Raises:
        DataError: brackets, commas or quotes are missing, so that nobody knows where a row ends; or there are several lists.
    """
    with again() as stream:
        scanner = _Scanner(stream, name)
        if scanner.peek() != b"{":
            yield from _rows(scanner, stream, field, name, encoding)
            if scanner.peek():
                raise scanner.wrong("the end")
            return
        members = dict(_members(scanner))
    chosen = _chosen(members, field, name)
    with again() as stream:
        scanner = _Scanner(stream, name)
        if chosen is None:
            number = 0
            while scanner.peek():
                number += 1
                scanner.expect(b"{")
                yield _row(scanner.value(MAX_ROW_BYTES), number, stream, field, name, encoding)
            return
        _go_to(scanner, chosen)
        yield from _rows(scanner, stream, field.removeprefix(f"{chosen}."), name, encoding)


def _members(scanner: "_Scanner") -> Iterator[tuple[str, Kind]]:
    """The lists and columns that the document's object has; of thousands, the first."""
    found = 0
    for key in _keys(scanner):
        begin = scanner.peek()
        kind: Kind = "other"
        if begin == b"{":
            kind = "column"
            scanner.value(0)
        elif begin == b"[":
            scanner.take(b"[")
            kind = {b"{": "rows", b'"': "texts"}.get(scanner.peek(), "other")  # type: ignore[assignment]
            scanner.rest()
        else:
            scanner.value(0)
        if kind != "other" and found < MAX_MEMBERS:
            found += 1
            yield key, kind


def _chosen(members: Mapping[str, Kind], field: str, name: str) -> str | None:
    """The member that has the rows; None where the object is a row itself.

    Raises:
        DataError: several could be meant.
    """
    if members.get(field) in ("texts", "column"):
        return field
    lists = [key for key, kind in members.items() if kind == "rows"]
    named = [key for key in lists if field.startswith(f"{key}.")]
    if len(named or lists) > 1:
        listed = ", ".join(map(shown, lists[:10]))
        ways = f"name one with its field, such as {lists[0][:40]}.{field}"
        raise DataError("bad-json", f"{name} has several lists of rows, {listed}: {ways}")
    return next(iter(named or lists), None)


def _go_to(scanner: "_Scanner", chosen: str) -> None:
    for key in _keys(scanner):
        if key == chosen:
            return
        scanner.value(0)


def _keys(scanner: "_Scanner") -> Iterator[str]:
    """The keys of an object; whoever asks goes past each value before the next."""
    scanner.take(b"{")
    if scanner.peek() == b"}":
        scanner.take(b"}")
        return
    while True:
        scanner.expect(b'"')
        key = scanner.value(MAX_KEY_BYTES)
        scanner.take(b":")
        yield "" if key is None else _string(key)
        if scanner.take(b",}") == b"}":
            return


def _string(value: bytes) -> str:
    try:
        return str(json.loads(value, strict=False))
    except ValueError:
        return ""


def _rows(scanner: "_Scanner", stream: SourceStream, field: str, name: str, encoding: str) -> Iterator[DatasetRow]:
    """The values of a list, or of an object: a column as pandas writes it."""
    number = 0
    if scanner.expect(b"[{") == b"{":
        for _ in _keys(scanner):
            number += 1
            yield _row(scanner.value(MAX_ROW_BYTES), number, stream, field, name, encoding)
        return
    scanner.take(b"[")
    if scanner.peek() == b"]":
        scanner.take(b"]")
        return
    while True:
        number += 1
        yield _row(scanner.value(MAX_ROW_BYTES), number, stream, field, name, encoding)
        if scanner.take(b",]") == b"]":
            return
        if scanner.peek() == b"]":  # A comma after the last row means nothing else.
            scanner.take(b"]")
            return


def _row(value: bytes | None, number: int, stream: SourceStream, field: str, name: str, encoding: str) -> DatasetRow:
    if value is None:
        return DatasetRow(number, stream.since(), long_row(place(number, name)))
    if value[:1] != b'"' and value != b"null":
        return made(number, stream.since(), value, field, name, encoding)
    text = string_of(value, place(number, name), encoding)
    unreadable = isinstance(text, DataError) and text.code == "bad-encoding"
    return DatasetRow(number, stream.since(), text, value[:RAW_BYTES] if unreadable else b"")


class _Scanner:
    """Goes through JSON value by value, without looking at what is within."""

    def __init__(self, stream: SourceStream, name: str) -> None:
        self._stream, self._name = stream, name
        self._held, self._at = b"", 0
        self._passed = 0

    def peek(self) -> bytes:
        """The next byte that is no blank; empty at the end."""
        while True:
            found = _WRITTEN.search(self._held, self._at)
            if found is not None:
                self._at = found.start()
                if found[0] != BOM_UTF8[:1] or not self._mark():
                    return found[0]
                continue
            if not self._more():
                return b""

    def _mark(self) -> bool:
        """Go past the mark that a file had before it was joined to another; whether one stands here."""
        if len(self._held) - self._at < len(BOM_UTF8):
            rest, passed = self._held[self._at :], self._passed + self._at
            self._held, self._at, self._passed = rest + self._stream.read(BLOCK), 0, passed
        found = self._held.startswith(BOM_UTF8, self._at)
        self._at += len(BOM_UTF8) if found else 0
        return found

    def expect(self, wanted: bytes) -> bytes:
        """The next byte, which must be one of those that are wanted; it stays."""
        found = self.peek()
        if not found or found not in wanted:
            raise self.wrong(" or ".join(chr(byte) for byte in wanted))
        return found

    def take(self, wanted: bytes) -> bytes:
        """As ``expect``, and go past it."""
        found = self.expect(wanted)
        self._at += 1
        return found

    def value(self, most: int) -> bytes | None:
        """Go past one value; returns it, unless it has more bytes than ``most``."""
        kept = _Kept(most)
        begin = self.peek()
        if not begin or begin in b",:]}":
            raise self.wrong("a value")
        if begin not in b'"{[':
            self._scalar(kept)
            return kept.whole()
        depth = 0
        while True:
            found = self._to(kept)
            if found == b'"':
                self._string(kept)
            else:
                depth += 1 if found in b"{[" else -1
            if depth <= 0:
                return kept.whole()

    def rest(self) -> None:
        """Go past what is left of a list."""
        if self.peek() == b"]":
            self.take(b"]")
            return
        while True:
            self.value(0)
            if self.take(b",]") == b"]":
                return
            if self.peek() == b"]":
                self.take(b"]")
                return

    def _to(self, kept: "_Kept") -> bytes:
        """Go past the next quote or bracket, and return it."""
        while True:
            found = _STRUCTURE.search(self._held, self._at)
            stop = len(self._held) if found is None else found.end()
            kept.add(self._held[self._at : stop])
            self._at = stop
            if found is not None:
                return found[0]
            if not self._more():
                raise self.wrong("the end of an object or a list")

    def _string(self, kept: "_Kept") -> None:
        """Go past the rest of a string, whose first quote is behind."""
        while True:
            inside = _INSIDE.match(self._held, self._at)
            assert inside is not None, "it matches nothing, too"
            stop = inside.end()
            closed = self._held[stop : stop + 1] == b'"'
            escaped = (
                self._held[stop : stop + 1] == b"\\"
            )  # The last byte that is here: what it escapes comes with more.
            kept.add(self._held[self._at : stop + closed + escaped])
            self._at = stop + closed + escaped
            if closed:
                return
            if not self._more():
                raise self.wrong('the end of a text (")')
            if escaped:
                kept.add(self._held[:1])
                self._at = 1

    def _scalar(self, kept: "_Kept") -> None:
        while True:
            found = _SCALAR_END.search(self._held, self._at)
            stop = len(self._held) if found is None else found.start()
            kept.add(self._held[self._at : stop])
            self._at = stop
            if found is not None or not self._more():
                return

    def _more(self) -> bool:
        self._passed += len(self._held)
        self._held, self._at = self._stream.read(BLOCK), 0
        return bool(self._held)

    def wrong(self, wanted: str) -> DataError:
        """What stands here is not what JSON has there."""
        here = self._held[self._at : self._at + 40].decode("utf-8", "replace")
        stands = f"stands {shown(here)}" if here else "the file ends"
        where = f"at byte {self._passed + self._at + 1:,} {stands}, where {wanted} should be"
        return DataError(
            "bad-json",
            f"{self._name} is not JSON: {where}; write it anew, or as JSON lines, or choose the format text if it is none",
        )


class _Kept:
    """The bytes of a value, as long as they are not too many."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes: bytearray | None = bytearray()

    def add(self, part: bytes) -> None:
        if self._bytes is not None:
            self._bytes += part
            if len(self._bytes) > self._most:
                self._bytes = None

    def whole(self) -> bytes | None:
        return None if self._bytes is None else bytes(self._bytes)
