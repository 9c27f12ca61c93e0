"""CSV and its kin: commas, semicolons, tabs or bars between fields, quotes around those that have them or line ends within."""

import csv
import io
from collections.abc import Iterator

from protocol.file_formats import HEAD_BYTES, said_delimiter, table
from trainer.errors import DataError
from trainer.formats.rows import MAX_ROW_BYTES, DatasetRow, bad_encoding, long_row, place, shown
from trainer.formats.source import SourceStream

RAW_BYTES = 400


def table_rows(stream: SourceStream, field: str, name: str, encoding: str) -> Iterator[DatasetRow]:
    """The rows of the column ``field``; the first line names the columns.

    Raises:
        DataError: no line, no such column, or a line without end.
    """
    csv.field_size_limit(MAX_ROW_BYTES)
    head = stream.peek(HEAD_BYTES)[:HEAD_BYTES].decode("utf-8", "replace")
    found = table(head, False, field)
    delimiter = found[0] if found else said_delimiter(head) or ("\t" if "\t" in head.split("\n", 1)[0] else ",")
    lines = _lines(stream, name)
    if said_delimiter(head):
        next(lines)
    records = _records(csv.reader(lines, delimiter=delimiter, strict=True))
    header = next((record for record in records if record != []), None)  # Some begin with empty lines.
    if isinstance(header, DataError):
        raise header
    if header is None:
        return
    column, width = _column([title.strip() for title in header], field, name), len(header)
    for number, record in enumerate(records, 1):
        if isinstance(record, DataError):
            yield DatasetRow(number, stream.since(), DataError(record.code, f"{place(number, name)} {record.detail}"))
        elif not record:
            yield DatasetRow(number, stream.since(), "")
        else:
            yield _row(number, stream.since(), record, column, width, name, encoding)


def _lines(stream: SourceStream, name: str) -> Iterator[str]:
    text = io.TextIOWrapper(stream, "utf-8", "surrogateescape", newline="")
    number = 0
    while line := text.readline(MAX_ROW_BYTES):
        number += 1
        if len(line) == MAX_ROW_BYTES:
            raise long_row(f"line {number:,} of {name}")
        yield line.lstrip("\ufeff")  # Of a file that was joined to others.
    text.detach()  # Whoever opened the stream closes it.


def _records(reader: Iterator[list[str]]) -> Iterator[list[str] | DataError]:
    """Records, and what is wrong with those that are none; empty lines at the end are nothing."""
    while True:
        try:
            record = next(reader, None)
        except csv.Error as error:
            yield _fault(str(error))
            continue
        if record is None:
            return
        yield record


def _fault(said: str) -> DataError:
    """In our words what the reader says."""
    if "limit" in said:
        return DataError(
            "long-row", f"has a field of more than {MAX_ROW_BYTES:,} bytes: a quote may not be closed there"
        )
    if "end of data" in said:
        return DataError("bad-row", "opens a quote that nothing closes: close it, or double quotes within a field")
    if "expected after" in said:
        return DataError("bad-row", 'has a quote within a quoted field: write it twice ("")')
    return DataError("bad-row", "has a line end within a field without quotes: put the field in quotes")


def _column(header: list[str], field: str, name: str) -> int:
    if header.count(field) == 1:
        return header.index(field)
    if not any(header):
        raise DataError(
            "bad-table", f"{name} names no column in its first line: write the names there, {field!r} among them"
        )
    listed = ", ".join(map(shown, header[:10])) + (" and others" if len(header) > 10 else "")
    if field in header:
        raise DataError("bad-table", f"{name} has several columns {field!r}: give one of them another name")
    raise DataError("bad-table", f"{name} has no column {field!r}: its first line names {listed}; name one of them")


def _row(number: int, size: int, record: list[str], column: int, width: int, name: str, encoding: str) -> DatasetRow:
    where = place(number, name)
    if len(record) != width:
        detail = (
            f"{where} has {len(record):,} fields, the first line {width:,}: put texts that have the delimiter in quotes"
        )
        return DatasetRow(number, size, DataError("bad-row", detail))
    text = record[column]
    raw = text.encode("utf-8", "surrogateescape")
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return DatasetRow(number, size, bad_encoding(where, error, encoding), raw[:RAW_BYTES])
    return DatasetRow(number, size, long_row(where) if len(raw) > MAX_ROW_BYTES else text)
