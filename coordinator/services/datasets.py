"""What was uploaded is looked at before it becomes an artifact: whether it can be what it is said to be.

Weights and tokenizers are checked whole, in bounded memory. Of datasets only the form is: their rows are read by a process of its
own, with limits (``services.checks``).
"""

import math
from pathlib import Path

import msgspec

from coordinator.errors import InvalidError, TooLargeError
from transport.wire.job import DatasetFormat

CHUNK_BYTES = 1 << 20
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


def check_form(path: Path, form: DatasetFormat) -> None:
    """See at the door that a file can be a dataset of this form; a process of its own reads all of it (``services.checks``).

    Raises:
        InvalidError: empty, cut, binary, or another kind of file.
    """
    if form not in ("text", "jsonl"):
        check_binary(path, form)
        return
    with path.open("rb") as file:
        head = file.read(CHUNK_BYTES)
    for magic, what in _MAGIC.items():
        if head.startswith(magic):
            raise InvalidError(f"this is {what}", "dataset")
    if b"\0" in head:
        raise InvalidError(f"byte {head.index(0):,} is zero: this is a binary file, not text", "dataset")
    if path.stat().st_size <= CHUNK_BYTES and not head.strip():
        raise InvalidError(f"the file has {len(head):,} bytes and no text: choose a file with text in it", "dataset")


def check_binary(path: Path, form: DatasetFormat) -> None:
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
