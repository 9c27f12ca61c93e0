"""What was uploaded is read once, in a stream, before anybody pays for training on it.

Each check reads a file of any size in bounded memory, and refuses it with the place of the first fault: a byte, a line, a row.
"""

import codecs
import math
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from coordinator.errors import InvalidError, TooLargeError

CHUNK_BYTES = 1 << 20
MAX_ROW_BYTES = 16 << 20  # A row is held in memory whole; the longest documents of public corpora are a tenth of this.
MAX_TOKENIZER_BYTES = 64 << 20  # The largest public tokenizers (250,000 entries with merges) have 33 MB.
MAX_SAFETENSORS_HEADER = 25 << 20  # A quarter of what the format's own reader takes: 100,000 tensors.
MAX_TENSOR_AXES = 8  # Language models have three at most; without a bound a header could ask for a product of millions.
_TOKENIZER_MODELS = frozenset({"BPE", "Unigram", "WordLevel", "WordPiece"})
_TENSOR_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_MAGIC = {
    b"\x1f\x8b": "a gzip archive: unpack it first",
    b"PK\x03\x04": "a zip archive: unpack it first",
    b"PAR1": "a Parquet file: choose that format",
    b"\x93NUMPY": "an array of NumPy: choose the format npy",
    b"\x28\xb5\x2f\xfd": "a Zstandard archive: unpack it first",
    b"%PDF": "a PDF: extract its text first",
    b"\xff\xfe": "UTF-16 text: save it as UTF-8",
    b"\xfe\xff": "UTF-16 text: save it as UTF-8",
}


class DatasetReport(msgspec.Struct, frozen=True):
    """What a good file holds: lines or rows, and characters of text."""

    rows: int
    characters: int


class StoredTensor(msgspec.Struct, frozen=True):
    """What a safetensors header says of a tensor; offsets count from the end of the header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


_HEADER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TENSOR = msgspec.json.Decoder(StoredTensor)
_METADATA = msgspec.json.Decoder(dict[str, str])
_ROW = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT = msgspec.json.Decoder(str)


def check_text(path: Path) -> DatasetReport:
    """Read UTF-8 text and count its lines and characters.

    Raises:
        InvalidError: empty, binary, or not UTF-8, with the byte and the line where it stops being so.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    lines = characters = read = 0
    blank, last = True, b""
    with path.open("rb") as file:
        _refuse_magic(file)
        for chunk in _chunks(file):
            _refuse_nul(chunk, read, lines)
            held = len(decoder.getstate()[0])
            text = _decode(decoder, chunk, read - held, lines)
            blank = blank and not text.strip()
            lines += chunk.count(b"\n")
            characters += len(text)
            read += len(chunk)
            last = chunk
        pending = len(decoder.getstate()[0])
    if pending:
        raise InvalidError(f"byte {read - pending:,} (line {lines + 1:,}): the last character is cut off", "dataset")
    if blank:
        raise InvalidError(f"the file has {read:,} bytes and no text: choose a file with text in it", "dataset")
    return DatasetReport(rows=lines + (0 if last.endswith(b"\n") else 1), characters=characters)


def check_jsonl(path: Path, field: str) -> DatasetReport:
    """Read one JSON object a line and count those with text under ``field``.

    Raises:
        InvalidError: no row, a row that is not a JSON object, or has no text under ``field``; with its number.
    """
    rows = characters = 0
    with path.open("rb") as file:
        _refuse_magic(file)
        for number, line in _lines(file):
            if line.strip():
                characters += len(_row_text(line, number, field))
                rows += 1
    if characters == 0:
        raise InvalidError(f"{rows:,} rows and no text under {field!r}: choose a file with text in it", "dataset")
    return DatasetReport(rows=rows, characters=characters)


def check_binary(path: Path, form: str) -> None:
    """See at the door that a Parquet or tokenised dataset can be one; ``prepare`` reads it in a process of its own.

    Raises:
        InvalidError: empty, cut, or another kind of file.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        begin = file.read(8)
        file.seek(max(0, size - 8))
        end = file.read(8)
    if form == "parquet" and (size < 12 or begin[:4] != b"PAR1" or end[4:] != b"PAR1"):
        raise InvalidError("not a Parquet file: it does not begin and end with PAR1; it may be cut", "dataset")
    if form == "npy" and begin[:6] != b"\x93NUMPY":
        raise InvalidError("not an .npy file: save the ids with numpy.save", "dataset")
    if form == "ids" and begin.lstrip()[:1] != b"[":
        raise InvalidError(
            "not a file of ids: each line must be a JSON array of whole numbers, such as [17, 4]", "dataset"
        )
    width = {"uint16": 2, "uint32": 4}.get(form, 1)
    if size == 0 or size % width:
        raise InvalidError(f"{size:,} bytes are no whole number of {form} token ids", "dataset")
    if form in ("uint16", "uint32") and (begin[:4] == b"PAR1" or begin[:6] == b"\x93NUMPY"):
        raise InvalidError(f"this is {_MAGIC[b'PAR1' if begin[:4] == b'PAR1' else begin[:6]]}", "dataset")


def check_weights(path: Path) -> None:
    """See that a safetensors file is one; raises as ``read_safetensors``."""
    read_safetensors(path)


def read_safetensors(path: Path) -> tuple[int, dict[str, StoredTensor]]:
    """Where the data of a safetensors file begin, and its tensors: of known types, in place, none overlapping or missing.

    Raises:
        InvalidError: the header or a tensor in it does not describe the file.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_SAFETENSORS_HEADER):
            raise InvalidError(f"not a safetensors file: its header would have {length:,} of {size:,} bytes", "weights")
        header = file.read(length)
    try:
        entries = _HEADER.decode(header)
        _METADATA.decode(entries.pop("__metadata__", msgspec.Raw(b"{}")))
        tensors = {name: _TENSOR.decode(entry) for name, entry in entries.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidError(f"the safetensors header cannot be read: {error}", "weights") from error
    _check_layout(tensors, size - 8 - length)
    return 8 + length, tensors


def check_tokenizer(path: Path) -> None:
    """See that a file is a ``tokenizer.json`` with a model that the tokenizers library has.

    Raises:
        InvalidError: not JSON, or without such a model.
        TooLargeError: beyond ``MAX_TOKENIZER_BYTES``.
    """
    size = path.stat().st_size
    if size > MAX_TOKENIZER_BYTES:
        raise TooLargeError(f"a tokenizer of {size:,} bytes: at most {MAX_TOKENIZER_BYTES:,} are taken", "tokenizer")
    try:
        model = _ROW.decode(_ROW.decode(path.read_bytes()).get("model", msgspec.Raw(b"{}")))
        kind = _TEXT.decode(model.get("type", msgspec.Raw(b'""')))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidError(f"not a tokenizer.json: {error}", "tokenizer") from error
    if kind not in _TOKENIZER_MODELS or "vocab" not in model:
        known = ", ".join(sorted(_TOKENIZER_MODELS))
        raise InvalidError(
            f"tokenizer.json has the model type {kind[:60]!r}: save one of {known} with its vocab", "tokenizer"
        )


def _check_layout(tensors: dict[str, StoredTensor], size: int) -> None:
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        shown = name[:80]
        begin, stop = tensor.data_offsets
        width = _TENSOR_BYTES.get(tensor.dtype)
        if width is None:
            raise InvalidError(f"tensor {shown!r} has the type {tensor.dtype[:20]!r}: use F32, F16 or BF16", "weights")
        if len(tensor.shape) > MAX_TENSOR_AXES or max(tensor.shape, default=0) > size:
            raise InvalidError(
                f"tensor {shown!r} has more axes or longer ones than a file of {size:,} bytes", "weights"
            )
        expected = width * math.prod(tensor.shape)
        if min(tensor.shape, default=0) < 0 or begin != end or stop - begin != expected:
            raise InvalidError(
                f"tensor {shown!r} takes bytes {begin:,} to {stop:,}; its shape needs {expected:,} from {end:,} on",
                "weights",
            )
        end = stop
    if end != size or not tensors:
        raise InvalidError(
            f"the tensors describe {end:,} bytes and the file has {size:,}: it is cut or padded", "weights"
        )


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers from 1."""
    number = 0
    while line := file.readline(MAX_ROW_BYTES + 1):
        number += 1
        if len(line) > MAX_ROW_BYTES:
            raise TooLargeError(f"row {number:,} is longer than {MAX_ROW_BYTES:,} bytes: split it", "dataset")
        yield number, line


def _row_text(line: bytes, number: int, field: str) -> str:
    if b"\0" in line:
        raise InvalidError(f"row {number:,} holds a zero byte: this is a binary file, not JSONL", "dataset")
    try:
        row = _ROW.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidError(f"row {number:,} is not a JSON object: {error}", "dataset") from error
    if field not in row:
        names = ", ".join(repr(name[:40]) for name in list(row)[:8]) or "none"
        raise InvalidError(f"row {number:,} has no field {field!r}: its fields are {names}", "dataset")
    try:
        return _TEXT.decode(row[field])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidError(f"row {number:,}: the field {field!r} is not text: {error}", "dataset") from error


def _decode(decoder: codecs.IncrementalDecoder, chunk: bytes, start: int, lines: int) -> str:
    """Decode the next chunk; ``start`` is the file's offset of the first byte that is not decoded yet."""
    try:
        return decoder.decode(chunk)
    except UnicodeDecodeError as error:
        line = lines + 1 + error.object.count(b"\n", 0, error.start)
        raise InvalidError(
            f"byte {start + error.start:,} (line {line:,}) is not UTF-8: save the file with the encoding UTF-8",
            "dataset",
        ) from error


def _refuse_nul(chunk: bytes, read: int, lines: int) -> None:
    at = chunk.find(b"\0")
    if at >= 0:
        line = lines + 1 + chunk.count(b"\n", 0, at)
        raise InvalidError(f"byte {read + at:,} (line {line:,}) is zero: this is a binary file, not text", "dataset")


def _refuse_magic(file: BinaryIO) -> None:
    head = file.read(8)
    file.seek(0)
    for magic, what in _MAGIC.items():
        if head.startswith(magic):
            raise InvalidError(f"this is {what}", "dataset")
