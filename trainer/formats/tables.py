"""CSV and its kin: commas, semicolons, tabs or bars between fields, quotes around those that have them or line ends within."""

import csv
import io
from collections.abc import Iterator
from typing import Any, Literal

from protocol.datasets.field_names import found_name
from protocol.datasets.file_formats import HEAD_BYTES, said_delimiter, table
from protocol.datasets.table_quotes import quoted_rows, with_backslashes
from trainer.errors import DataError
from trainer.formats.conversations import ASKED, CHOSEN, COMPLETION, PROMPT, REJECTED, names_talk, talk_of
from trainer.formats.rows import MAX_ROW_BYTES, DatasetRow, bad_encoding, choices, long_row, place
from trainer.formats.source import SourceStream

RAW_BYTES = 400


def table_rows(stream: SourceStream, field: str, name: str, encoding: str) -> Iterator[DatasetRow]:
    """The rows of the column ``field``; the first line names the columns.

    Raises:
        DataError: no line, no such column, or a line without end.
    """
    csv.field_size_limit(MAX_ROW_BYTES)
    head = stream.peek(HEAD_BYTES)[:HEAD_BYTES].decode("utf-8", "replace")
    found = table(head, False, field, certain=True)
    delimiter = found[0] if found else said_delimiter(head) or ("\t" if "\t" in head.split("\n", 1)[0] else ",")
    lines = _lines(stream, name)
    if said_delimiter(head):
        next(lines)
    # Some write a blank after each delimiter, before the quotes too.
    blanks = len(titles := head.split("\n", 1)[0].split(delimiter)) > 1 and all(one[:1] == " " for one in titles[1:])
    records = _records(_reader(lines, head, delimiter, blanks))
    header = next((record for record in records if not _is_blank(record)), None)  # Some begin with empty lines.
    if isinstance(header, DataError):
        raise DataError(header.code, f"the first line of {name} {header.detail}")
    if header is None:
        return
    titles, width = [title.strip() for title in header], len(header)
    talks = names_talk(titles, field)
    column = -1 if talks else _column(titles, field, name)
    for number, record in enumerate(records, 1):
        if isinstance(record, DataError):
            yield DatasetRow(number, stream.since(), DataError(record.code, f"{place(number, name)} {record.detail}"))
        elif _is_blank(record):
            yield DatasetRow(number, stream.since(), "")
        elif talks:
            yield _talk(number, stream.since(), record, titles, talks, field, name, encoding)
        else:
            yield _row(number, stream.since(), record, column, width, name, encoding)


def _is_blank(record: list[str] | DataError) -> bool:
    return not isinstance(record, DataError) and (not record or (len(record) == 1 and not record[0].strip()))


def _reader(lines: Iterator[str], head: str, delimiter: str, blanks: bool) -> Any:
    """What cuts lines into fields, with quotes as the head of the table has them. ``blanks``: they begin fields for nothing."""
    seen = list(io.StringIO(head, newline=""))
    if with_backslashes(seen[said_delimiter(head) != "" :], delimiter):
        return quoted_rows(lines, delimiter, skipinitialspace=blanks, strict=True)
    quoting: Literal[0, 3] = csv.QUOTE_NONE if _without_quotes(head, delimiter) else csv.QUOTE_MINIMAL
    return csv.reader(lines, delimiter=delimiter, quoting=quoting, skipinitialspace=blanks, strict=True)


def _without_quotes(head: str, delimiter: str) -> bool:
    """Whether quotes are letters in a table as any other.

    Tables with tabs are often written so, as text/tab-separated-values has it. Then each line is a row, and read with quotes
    some lines are none.
    """
    lines = list(io.StringIO(head, newline=""))[:-1]
    if delimiter != "\t" or len({line.count("\t") for line in lines}) != 1:
        return False
    try:
        return sum(1 for _ in csv.reader(lines, delimiter="\t", strict=True)) != len(lines)
    except csv.Error:
        return True


def _lines(stream: SourceStream, name: str) -> Iterator[str]:
    text = io.TextIOWrapper(stream, "utf-8", "surrogateescape", newline="")
    number = 0
    while line := text.readline(MAX_ROW_BYTES):
        number += 1
        if len(line) == MAX_ROW_BYTES:
            raise long_row(f"line {number:,} of {name}")
        yield line.lstrip("\ufeff")  # Of a file that was joined to others.
    text.detach()  # Whoever opened the stream closes it.


def _records(reader: Any) -> Iterator[list[str] | DataError]:
    """Records, and what is wrong with those that are none; empty lines at the end are nothing."""
    while True:
        before = reader.line_num
        try:
            record = next(reader, None)
        except csv.Error as error:
            yield _fault(str(error), reader.line_num - before - 1)
            continue
        if record is None:
            return
        yield record


def _fault(said: str, more: int) -> DataError:
    """In our words what the reader says. ``more``: lines after the first that it has read as a part of the row."""
    taken = "" if more < 1 else f"; {more:,} more {'line is' if more == 1 else 'lines are'} read as a part of it"
    if "limit" in said:
        return DataError(
            "long-row", f"has a field of more than {MAX_ROW_BYTES:,} bytes{taken}: a quote may not be closed there"
        )
    if "end of data" in said:
        return DataError(
            "bad-row", f"opens a quote that nothing closes{taken}: close it, or double quotes within a field"
        )
    if "expected after" in said:
        return DataError("bad-row", f'has a quote within a quoted field{taken}: write it twice ("")')
    return DataError("bad-row", f"has a line end within a field without quotes{taken}: put the field in quotes")


def _column(header: list[str], field: str, name: str) -> int:
    if header.count(field) > 1:
        raise DataError("bad-table", f"{name} has several columns {field!r}: give one of them another name")
    if (own := found_name(field, header)) is not None:
        return header.index(own)
    if not any(header):
        raise DataError(
            "bad-table", f"{name} names no column in its first line: write the names there, {field!r} among them"
        )
    named = choices(field, [title for title in header if title], "its first line names")
    if len(header) == 1:
        named += "; or let the file begin with the line of the names, parted by commas, semicolons, tabs or bars"
    raise DataError("bad-table", f"{name} has no column {field!r}: {named}")


def _row(number: int, size: int, record: list[str], column: int, width: int, name: str, encoding: str) -> DatasetRow:
    where = place(number, name)
    if len(record) != width:
        return DatasetRow(number, size, _another_width(where, record, width))
    text = record[column]
    raw = text.encode("utf-8", "surrogateescape")
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return DatasetRow(number, size, bad_encoding(where, error, encoding), raw[:RAW_BYTES])
    return DatasetRow(number, size, long_row(where) if len(raw) > MAX_ROW_BYTES else text)


def _another_width(where: str, record: list[str], width: int) -> DataError:
    advice = "put texts that have the delimiter in quotes"
    return DataError("bad-row", f"{where} has {len(record):,} fields, the first line {width:,}: {advice}")


def _talk(
    number: int, size: int, record: list[str], titles: list[str], talks: list[str], field: str, name: str, encoding: str
) -> DatasetRow:
    """The conversation in some columns, of which lists are written as JSON."""
    if len(record) != len(titles):
        return DatasetRow(number, size, _another_width(place(number, name), record, len(titles)))
    for column in talks:
        single = _row(number, size, record, titles.index(column), len(titles), name, encoding)
        if isinstance(single.text, DataError):
            return single
    row = {column: record[titles.index(column)] for column in talks if record[titles.index(column)]}
    if not row:
        return DatasetRow(number, size, "")
    first = tuple(talks[:2])
    empty = first if first in ((CHOSEN, REJECTED), (PROMPT, COMPLETION), *ASKED) else ()
    found = talk_of({**dict.fromkeys(empty, ""), **row}, field, place(number, name))
    wrong = DataError(
        "bad-row", f"{place(number, name)} has no list of messages, as JSON, in {talks[0]!r}: write one there"
    )
    return DatasetRow.of(number, size, wrong if found is None else found)
