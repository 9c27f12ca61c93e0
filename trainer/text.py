"""Datasets as a stream of pieces of text; every way in which a file can be unusable is named here. Free of torch.

A piece is a row of a JSONL or Parquet file, or about ``PIECE_CHARACTERS`` of a text file, cut at a line's end.
"""

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from trainer.errors import DataError
from transport.wire.job import DatasetFormat

PIECE_CHARACTERS = 16_384  # Small enough that held-out pieces come from all over the file.
MAX_ROW_BYTES = 64 << 20  # One document; a whole book has 1 MB.
MAX_DATASET_BYTES = 200 << 30  # As much as an upload may have.
_BLOCK = 1 << 20
_MAX_CONTROL_SHARE = 0.01  # Text has tabs, line ends and the odd form feed; binary data has a tenth and more.
_CONTROLS = re.compile("[\x01-\x07\x0e-\x1a\x1c-\x1f]")  # All but tab, line ends, form feed, backspace and escape.
_LINE = 1 << 20  # A longer line is looked at in parts.
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_STRING = msgspec.json.Decoder(str)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of ``size`` bytes: its text, empty where it has none, or why it cannot be read."""

    number: int
    size: int
    text: str | DataError


def pieces(
    path: Path,
    form: DatasetFormat,
    text_field: str,
    piece_characters: int = PIECE_CHARACTERS,
    faulty: Literal["refuse", "skip"] = "refuse",
) -> Iterator[str]:
    """The pieces of a dataset, in order, none empty.

    Args:
        faulty: what is done about rows that cannot be read.
    Raises:
        DataError: missing, empty, gigantic, binary, not UTF-8, or a row that is not what JSONL promises.
    """
    if form == "text":
        size_of(path)
        return _text(
            _decoded(path) if faulty == "refuse" else _good(numbered(path, form, text_field)), piece_characters
        )
    rows = numbered(path, form, text_field)
    return filter(None, _good(rows) if faulty == "skip" else _strict(rows))


def numbered(path: Path, form: DatasetFormat, text_field: str) -> Iterator[Row]:
    """Every row with its number, whatever it is worth.

    Raises:
        DataError: the whole file cannot be read: missing, empty, gigantic, binary, UTF-16, no Parquet file.
    """
    size_of(path)
    if form == "parquet":
        from trainer.parquet import parquet_rows  # Only where it is asked for: pyarrow takes a second to import.

        return parquet_rows(path, text_field)
    return _json_rows(path, text_field) if form == "jsonl" else _lines(path)


def size_of(path: Path) -> int:
    """Bytes of a dataset.

    Raises:
        DataError: missing, empty, or more than ``MAX_DATASET_BYTES``.
    """
    size = file_size(path)
    if size == 0:
        raise DataError("empty-dataset", f"{path.name} is empty: upload a file with text in it")
    if size > MAX_DATASET_BYTES:
        raise DataError("too-large", f"{path.name} has {size:,} bytes: at most {MAX_DATASET_BYTES:,} are taken")
    return size


def _good(rows: Iterator[Row]) -> Iterator[str]:
    return (row.text for row in rows if isinstance(row.text, str))


def _strict(rows: Iterator[Row]) -> Iterator[str]:
    for row in rows:
        if isinstance(row.text, DataError):
            raise row.text
        yield row.text


def file_size(path: Path) -> int:
    """Bytes of a dataset; raises ``DataError`` where it is missing."""
    try:
        return path.stat().st_size
    except OSError as error:
        raise DataError("missing-file", f"{path.name} cannot be read: {error.strerror}") from error


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


def _decoded(path: Path) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    offset = 0
    with path.open("rb") as file:
        while True:
            block = file.read(_BLOCK)
            if offset == 0 and block[:2] in (b"\xff\xfe", b"\xfe\xff"):
                raise DataError("bad-encoding", f"{path.name} is UTF-16: save it as UTF-8")
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                at = offset + error.start - len(decoder.getstate()[0])
                if b"\0" in block:
                    raise _binary(path) from error
                raise DataError(
                    "bad-encoding",
                    f"{path.name} is not UTF-8 at about byte {max(0, at):,} ({error.reason}): save it as UTF-8",
                ) from error
            offset += len(block)
            _refuse_binary(path, text)
            if text:
                yield text
            if not block:
                return


def _refuse_binary(path: Path, text: str) -> None:
    if "\0" in text:
        raise _binary(path)
    if _controls(text):
        raise _binary(path)


def _controls(text: str) -> bool:
    """Whether so much of a text is control characters that it is none."""
    found = len(_CONTROLS.findall(text))
    return found > 4 and found > len(text) * _MAX_CONTROL_SHARE


def _binary(path: Path) -> DataError:
    return DataError("binary-dataset", f"{path.name} is binary data, not text: upload plain text or JSONL")


def _lines(path: Path) -> Iterator[Row]:
    """Lines of a text file with their ends; one that is longer than ``_LINE`` comes in parts of one number."""
    number, cut = 0, False
    with path.open("rb") as file:
        head = file.read(4)
        file.seek(0)
        if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise DataError("bad-encoding", f"{path.name} is UTF-16: save it as UTF-8")
        while line := file.readline(_LINE):
            number += not cut
            cut = not line.endswith(b"\n")
            while cut and line[-1] & 0x80 and _unfinished(line) and (more := file.read(1)):
                line += more  # A part ends between two characters.
            if b"\0" in line:
                raise _binary(path)
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                yield Row(number, len(line), bad_encoding(f"line {number:,} of {path.name}", error))
            else:
                if _controls(text):
                    raise _binary(path)
                yield Row(number, len(line), text)


def _unfinished(part: bytes) -> bool:
    """Whether a part ends within a character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(part[-4:])
    return bool(decoder.getstate()[0])


def _json_rows(path: Path, text_field: str) -> Iterator[Row]:
    number = 0
    with path.open("rb") as file:
        while line := file.readline(MAX_ROW_BYTES + 1):
            number += 1
            if len(line) > MAX_ROW_BYTES:
                size = len(line)
                while not line.endswith(b"\n") and (line := file.readline(MAX_ROW_BYTES)):
                    size += len(line)
                yield Row(number, size, long_row(f"row {number:,} of {path.name}"))
            elif line.strip():
                yield Row(number, len(line), _row(path, number, line, text_field))
            else:
                yield Row(number, len(line), "")


def long_row(where: str) -> DataError:
    """The fault of a row beyond ``MAX_ROW_BYTES``."""
    return DataError("long-row", f"{where} has more than {MAX_ROW_BYTES:,} bytes: split it")


def bad_encoding(where: str, error: UnicodeDecodeError) -> DataError:
    """The fault of a row that is not UTF-8."""
    return DataError(
        "bad-encoding", f"{where} is not UTF-8 (byte {error.start + 1:,} of it: {error.reason}): save it as UTF-8"
    )


def _row(path: Path, number: int, line: bytes, text_field: str) -> str | DataError:
    where = f"row {number:,} of {path.name}"
    if b"\0" in line:
        raise _binary(path)
    try:
        row = _OBJECT.decode(line.removeprefix(codecs.BOM_UTF8) if number == 1 else line)
        text = row.get(text_field)
        if text is None:
            fields = ", ".join(repr(name[:40]) for name in sorted(row)[:10]) or "none"
            return DataError("no-field", f"{where} has no text in field {text_field!r}: its fields are {fields}")
        return _STRING.decode(text)
    except UnicodeDecodeError as error:
        return bad_encoding(where, error)
    except msgspec.ValidationError as error:
        return DataError("bad-row", f"{where} is no object with text in field {text_field!r}: {error}")
    except (msgspec.MsgspecError, RecursionError) as error:
        try:
            line.decode()
        except UnicodeDecodeError as fault:
            return bad_encoding(where, fault)
        return DataError("bad-row", f"{where} is not JSON ({error}): each line must be one JSON object")
