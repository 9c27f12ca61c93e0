"""Datasets of text as a stream of pieces; every way in which a file can be unusable is named. Free of torch.

A piece is a row of JSON, of a table or of Parquet, or about ``PIECE_CHARACTERS`` of a text file, cut at a line's end.
"""

import codecs
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, groupby

from protocol.datasets.encodings import has_controls
from protocol.datasets.file_formats import FileContent
from protocol.job.job import TOKENISED
from trainer.errors import DataError
from trainer.formats.documents import RAW_BYTES, json_document, json_lines
from trainer.formats.rows import MAX_ROW_BYTES, DatasetRow, bad_encoding, long_row, place
from trainer.formats.source import BLOCK, Dataset, SourceStream, opened, spooled
from trainer.formats.tables import table_rows
from trainer.formats.talk import Said

PIECE_CHARACTERS = 16_384  # Small enough that held-out pieces come from all over the file.
_LINE = 1 << 20  # A longer line is looked at in parts.


def pieces(dataset: Dataset, piece_characters: int = PIECE_CHARACTERS) -> Iterator[str]:
    """The pieces of a dataset, in order, none empty. What is done about rows that cannot be read, its spec says.

    Raises:
        DataError: missing, empty, gigantic, binary, of another format, or a row that cannot be read.
    """
    content = dataset.look()
    skips = dataset.spec.faulty == "skip"
    if dataset.format(content) == "text":
        blocks = _good(numbered(dataset)) if skips else _decoded(dataset, content)
        return _text(blocks, piece_characters)
    return filter(None, _good(numbered(dataset)) if skips else _strict(numbered(dataset)))


def documents(dataset: Dataset) -> Iterator[DatasetRow]:
    """The rows that are trained on, in order: texts and conversations, each whole and none empty; raises as ``pieces``."""
    for _, parts in groupby(numbered(dataset), key=lambda part: part.number):
        row = _whole(parts, dataset.name)
        if isinstance(row.text, DataError) and dataset.spec.faulty == "refuse":
            raise row.text
        if isinstance(row.text, str) and row.text:
            yield row


def _whole(parts: Iterator[DatasetRow], name: str) -> DatasetRow:
    """A row, of a line that was read in parts."""
    first = next(parts)
    texts, size, length = list[str](), 0, 0
    for part in chain([first], parts):
        if isinstance(part.text, DataError):
            return part
        texts.append(part.text)
        size += part.size
        length += len(part.text)
        if length > MAX_ROW_BYTES:
            return DatasetRow(first.number, size, long_row(place(first.number, name)))
    return first if len(texts) == 1 else replace(first, size=size, text="".join(texts))


def first_talk(dataset: Dataset) -> Said | None:
    """The conversation that a dataset's first row that can be read is; None where it has texts. Raises where none can be read."""
    if dataset.format(dataset.look()) in ("text", *TOKENISED):
        return None
    first = next((row for row in numbered(dataset) if isinstance(row.text, str) and row.text), None)
    return None if first is None else first.talk


def numbered(dataset: Dataset) -> Iterator[DatasetRow]:
    """Every row with its number, whatever it is worth.

    Raises:
        DataError: the whole file cannot be read: missing, empty, gigantic, binary, damaged, of another format.
    """
    content = dataset.look()
    kind, field, name = dataset.format(content), dataset.spec.text_field, dataset.name
    encoding = dataset.encoding(content)
    if kind == "parquet":
        return _parquet(dataset, content)
    again = partial(opened, dataset, content)
    if kind == "json":
        return json_document(again, field, name, encoding)
    return _streamed(dataset, content, kind, encoding)


def _streamed(dataset: Dataset, content: FileContent, kind: str, encoding: str) -> Iterator[DatasetRow]:
    with opened(dataset, content) as stream:
        if kind == "jsonl":
            yield from json_lines(stream, dataset.spec.text_field, dataset.name, encoding)
        elif kind == "csv":
            yield from table_rows(stream, dataset.spec.text_field, dataset.name, encoding)
        else:
            yield from _lines(stream, dataset.name, encoding)


def _parquet(dataset: Dataset, content: FileContent) -> Iterator[DatasetRow]:
    from trainer.formats.parquet import parquet_rows  # Only where it is asked for: pyarrow takes a second to import.

    with spooled(dataset, content) as file:
        yield from parquet_rows(file, dataset.size, dataset.spec.text_field, dataset.name)


def _good(rows: Iterator[DatasetRow]) -> Iterator[str]:
    return (row.text for row in rows if isinstance(row.text, str))


def _strict(rows: Iterator[DatasetRow]) -> Iterator[str]:
    for row in rows:
        if isinstance(row.text, DataError):
            raise row.text
        yield row.text


def _text(blocks: Iterator[str], piece_characters: int) -> Iterator[str]:
    waiting = ""
    for block in blocks:
        waiting += block
        while len(waiting) >= 2 * piece_characters:
            cut = waiting.find("\n", piece_characters, 2 * piece_characters) + 1 or 2 * piece_characters
            yield waiting[:cut]
            waiting = waiting[cut:]
    if waiting:
        yield waiting


def _decoded(dataset: Dataset, content: FileContent) -> Iterator[str]:
    """The text in blocks, several times as quick as line by line."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    lines = 0
    with opened(dataset, content) as stream:
        while True:
            block = stream.read(BLOCK)
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                number = lines + 1 + error.object.count(b"\n", 0, error.start)
                begin = error.object.rfind(b"\n", 0, error.start) + 1
                here = UnicodeDecodeError(
                    "utf-8", error.object[begin:], error.start - begin, error.end - begin, error.reason
                )
                raise bad_encoding(f"line {number:,} of {dataset.name}", here, dataset.encoding(content)) from error
            _refuse_binary(text, dataset.name)
            lines += text.count("\n")
            if text:
                yield text
            if not block:
                return


def _refuse_binary(text: str, name: str) -> None:
    if has_controls(text):
        detail = f"{name} is binary data, not text: upload plain text, JSON lines, a table or Parquet"
        raise DataError("binary-dataset", detail)


def _lines(stream: SourceStream, name: str, encoding: str) -> Iterator[DatasetRow]:
    """Lines of a text file with their ends; one that is longer than ``_LINE`` comes in parts of one number."""
    number, cut = 0, False
    window, held = [], 0
    while line := stream.readline(_LINE):
        number += not cut
        cut = not line.endswith(b"\n")
        while cut and line[-1] & 0x80 and _unfinished(line) and (more := stream.read(1)):
            line += more  # A part ends between two characters.
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            fault = bad_encoding(f"line {number:,} of {name}", error, encoding)
            yield DatasetRow(number, stream.since(), fault, line[max(0, error.start - 40) :][:RAW_BYTES])
        else:
            window.append(text)
            held += len(text)
            if held >= BLOCK:
                _refuse_binary("".join(window), name)
                window, held = [], 0
            yield DatasetRow(number, stream.since(), text)
    _refuse_binary("".join(window), name)


def _unfinished(part: bytes) -> bool:
    """Whether a part ends within a character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(part[-4:])
    return bool(decoder.getstate()[0])
