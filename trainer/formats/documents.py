"""JSON lines, and JSON documents of any length: an array of rows, an object with a list of them, or one object after another.

A document is cut into its rows by its brackets and quotes alone, so that it never has to fit into memory and one bad row
is one bad row.
"""

from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final

from protocol.datasets.file_formats import RECORD
from trainer.errors import DataError
from trainer.formats.fields import string_of, text_of
from trainer.formats.outline import entry, outline_of
from trainer.formats.rows import MAX_ROW_BYTES, DatasetRow, long_row, place, shown
from trainer.formats.scanner import JsonScanner, keys
from trainer.formats.source import BLOCK, SourceStream

RAW_BYTES = 400  # Of a row that cannot be read: enough to guess its encoding.
_RECORD: Final = RECORD.encode()


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
    """What a line holds: without the mark of files that were joined, the comma after it in an array, and a sequence's sign."""
    while line.startswith((BOM_UTF8, _RECORD)):  # Of empty files, too.
        line = line.removeprefix(BOM_UTF8).removeprefix(_RECORD)
    return line.strip().removesuffix(b",")


def made(number: int, size: int, value: bytes, field: str, name: str, encoding: str) -> DatasetRow:
    """The row that an object is, or a text."""
    where = place(number, name)
    is_text = value[:1] == b'"'
    text = _once(string_of(value, where, encoding), field, where) if is_text else text_of(value, field, where, encoding)
    unreadable = isinstance(text, DataError) and text.code == "bad-encoding"
    return DatasetRow.of(number, size, text, _raw(value, field)[:RAW_BYTES] if unreadable else b"")


def _once(text: str | DataError, field: str, where: str) -> str | DataError:
    """A text, unless it is the row once more: an object with the field, of which somebody has made JSON twice."""
    if isinstance(text, str) and text[:1] == "{" and not isinstance(text_of(text.encode(), field, ""), DataError):
        return DataError("bad-row", f"{where} is JSON within a text: it was made JSON twice; write the object alone")
    return text


def _raw(value: bytes, field: str) -> bytes:
    """The bytes of a row's text, whatever their encoding: Latin-1 has a character for each of them."""
    text = text_of(value.decode("latin-1").encode(), field, "", "utf-8")
    return text.encode("latin-1", "replace") if isinstance(text, str) else value


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
        scanner = JsonScanner(stream, name)
        if scanner.peek() != b"{":
            yield from _lists(scanner, field, name, encoding)
            return
        outline = outline_of(scanner)
        single = not scanner.peek()
    chosen = outline.chosen(field, name)
    with again() as stream:
        scanner = JsonScanner(stream, name)
        if chosen is not None:
            yield from _members(scanner, chosen, outline.place_of(chosen, field), field, name, encoding)
        elif single and outline.is_by_name(field):
            yield from _rows(scanner, field, name, encoding)
        else:
            number = 0
            while scanner.peek():
                number += 1
                scanner.expect(b"{")
                yield _row(scanner, number, field, name, encoding)


def _lists(scanner: JsonScanner, field: str, name: str, encoding: str) -> Iterator[DatasetRow]:
    """The rows of a list, and of those that were joined to it."""
    number = 0
    while True:
        for row in _rows(scanner, field, name, encoding, number=number):
            number = row.number
            yield row
        if (following := scanner.peek()) != b"[":
            break
    if following:
        raise scanner.wrong("the end")


def _members(
    scanner: JsonScanner, chosen: str, column: int | None, field: str, name: str, encoding: str
) -> Iterator[DatasetRow]:
    """The rows of one member of each object; most documents have one object, others a page after the other."""
    number, inner = 0, field.removeprefix(f"{chosen}.")
    while scanner.peek():
        found = False
        scanner.expect(b"{")
        for key in keys(scanner):
            if key != chosen or found or scanner.peek() not in (b"[", b"{"):
                scanner.value(0)
                continue
            found = True
            for row in _rows(scanner, inner, name, encoding, column, number):
                number = row.number
                yield row
        if not found:
            number += 1
            lacks = (
                f"{place(number, name)} should be in the list {shown(chosen)}, which a later object of the file has not"
            )
            yield DatasetRow(number, scanner.stream.since(), DataError("no-field", f"{lacks}: write it there, too"))


def _rows(
    scanner: JsonScanner, field: str, name: str, encoding: str, column: int | None = None, number: int = 0
) -> Iterator[DatasetRow]:
    """The values of a list, or of an object: a column as pandas writes it, or rows with a name each.

    Args:
        column: the place of the text in rows that are lists; None: they are none.
        number: of the row before.
    """
    if scanner.expect(b"[{") == b"{":
        for _ in keys(scanner):
            number += 1
            yield _row(scanner, number, field, name, encoding)
        return
    scanner.take(b"[")
    if scanner.peek() == b"]":
        scanner.take(b"]")
        return
    while True:
        number += 1
        yield _row(scanner, number, field, name, encoding, column)
        if scanner.take(b",]") == b"]":
            return
        if scanner.peek() == b"]":  # A comma after the last row means nothing else.
            scanner.take(b"]")
            return


def _row(
    scanner: JsonScanner, number: int, field: str, name: str, encoding: str, column: int | None = None
) -> DatasetRow:
    value, size = scanner.value(MAX_ROW_BYTES), scanner.stream.since()
    if value is None:
        return DatasetRow(number, size, long_row(place(number, name)))
    if column is not None and value[:1] == b"[":
        value = entry(value, column)
    if value == b"null":
        return DatasetRow(number, size, "")
    return made(number, size, value, field, name, encoding)
