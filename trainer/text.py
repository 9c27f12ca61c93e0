"""Datasets as a stream of pieces of text; every way in which a file can be unusable is named here. Free of torch.

A piece is a row of a JSONL or Parquet file, or about ``PIECE_CHARACTERS`` of a text file, cut at a line's end.
"""

import codecs
import json
from collections.abc import Iterator
from pathlib import Path

from trainer.errors import DataError
from transport.wire.job import DatasetFormat

PIECE_CHARACTERS = 16_384  # Small enough that held-out pieces come from all over the file.
MAX_ROW_BYTES = 64 << 20  # One document; a whole book has 1 MB.
MAX_DATASET_BYTES = 200 << 30  # As much as an upload may have.
_BLOCK = 1 << 20
_MAX_CONTROL_SHARE = 0.01  # Text has tabs, line ends and the odd form feed; binary data has a tenth and more.
_TEXT_CONTROLS = frozenset("\t\n\r\f\v\b\x1b")


def pieces(path: Path, form: DatasetFormat, text_field: str, piece_characters: int = PIECE_CHARACTERS) -> Iterator[str]:
    """The pieces of a dataset, in order, none empty.

    Raises:
        DataError: missing, empty, gigantic, binary, not UTF-8, or a row that is not what JSONL promises.
    """
    size = file_size(path)
    if size == 0:
        raise DataError("empty-dataset", f"{path.name} is empty: upload a file with text in it")
    if size > MAX_DATASET_BYTES:
        raise DataError("too-large", f"{path.name} has {size:,} bytes: at most {MAX_DATASET_BYTES:,} are taken")
    if form == "parquet":
        from trainer.parquet import parquet_rows  # Only where it is asked for: pyarrow takes a second to import.

        return parquet_rows(path, text_field)
    return _rows(path, text_field) if form == "jsonl" else _text(path, piece_characters)


def file_size(path: Path) -> int:
    """Bytes of a dataset; raises ``DataError`` where it is missing."""
    try:
        return path.stat().st_size
    except OSError as error:
        raise DataError("missing-file", f"{path.name} cannot be read: {error.strerror}") from error


def _text(path: Path, piece_characters: int) -> Iterator[str]:
    waiting = ""
    for block in _decoded(path):
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
    controls = sum(text.count(chr(code)) for code in range(32) if chr(code) not in _TEXT_CONTROLS)
    if controls > len(text) * _MAX_CONTROL_SHARE:
        raise _binary(path)


def _binary(path: Path) -> DataError:
    return DataError("binary-dataset", f"{path.name} is binary data, not text: upload plain text or JSONL")


def _rows(path: Path, text_field: str) -> Iterator[str]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_ROW_BYTES + 1):
            number += 1
            if len(line) > MAX_ROW_BYTES:
                raise DataError(
                    "bad-row", f"row {number:,} of {path.name} has more than {MAX_ROW_BYTES:,} bytes: split it"
                )
            if line.strip() and (text := _row(path, number, line, text_field)):
                yield text


def _row(path: Path, number: int, line: bytes, text_field: str) -> str:
    where = f"row {number:,} of {path.name}"
    try:
        row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        if b"\0" in line:
            raise _binary(path) from error
        raise DataError("bad-encoding", f"{where} is not UTF-8 ({error.reason}): save it as UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise DataError("bad-row", f"{where} is not JSON ({error}): each line must be one JSON object") from error
    if not isinstance(row, dict):
        raise DataError("bad-row", f"{where} is a {type(row).__name__}, not an object with a field {text_field!r}")
    text = row.get(text_field)
    if not isinstance(text, str):
        fields = ", ".join(sorted(map(str, row))[:10]) or "none"
        raise DataError("bad-row", f"{where} has no text in field {text_field!r}: its fields are {fields}")
    return text
