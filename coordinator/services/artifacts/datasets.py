"""What was uploaded is looked at before it becomes an artifact: whether it can be what it is said to be.

Weights and tokenizers are checked whole, in bounded memory. Of datasets only the form is: their rows are read by a process of its
own, with limits (``services.artifacts.dataset_checks``).
"""

import math
import re
from pathlib import Path

import msgspec

from coordinator.errors import InvalidError, TooLargeError
from protocol.datasets.encodings import encoding_of, first_control
from protocol.datasets.file_formats import HEAD_BYTES, ContentError, recognise, settle
from protocol.datasets.foreign_files import POINTERS
from protocol.job.job import DatasetFormat
from protocol.models.config_keys import DEQUANTISE

CHUNK_BYTES = 1 << 20
MAX_TOKENIZER_BYTES = 64 << 20  # The largest public tokenizers (250,000 entries with merges) have 33 MB.
MAX_SAFETENSORS_HEADER = 25 << 20  # A quarter of what the format's own reader takes: 100,000 tensors.
LOOKED_AT = 4096  # Bytes of what should be weights and is not.
MAX_TENSOR_AXES = 8  # Language models have three at most; without a bound a header could ask for a product of millions.
NAMELESS_WEIGHTS = "the weights file"  # An artifact's own name is a digest, which says nothing to anybody.
_ADAPTER = re.compile(r"(?:^|[._])lora_(?:A|B|embedding_A|embedding_B|magnitude_vector)(?:\.|$)")
_QUANTISED = re.compile(
    r"\.(?:qweight|qzeros|g_idx|SCB|absmax|nested_absmax|quant_map|quant_state\.bitsandbytes__\w+|weight_packed"
    r"|weight_scale(?:_inv)?|input_scale|weight_zero_point|W_q)$"
)
"""Beside packed weights, as GPTQ, AWQ, bitsandbytes, compressed-tensors, FP8 and HQQ write them."""
_TOKENIZER_MODELS = frozenset({"BPE", "Unigram", "WordLevel", "WordPiece"})
_TENSOR_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
    "C64": 8,
}
_SAVE_ANEW = "load the model with transformers, and save_pretrained writes safetensors"
_OTHER_WEIGHTS = {
    b"PK\x03\x04": f"it is a file of torch.save: {_SAVE_ANEW}",
    b"\x80\x02": f"it is a pickle, which is never opened here: {_SAVE_ANEW}",
    b"GGUF": "it is a GGUF file, which cannot be trained further: take the model that it was made of",
    b"\x89HDF": f"it is an HDF5 file: {_SAVE_ANEW}",
    **{begin: f"it is a pointer of {what}" for begin, what in POINTERS.items()},
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


def check_form(path: Path, form: DatasetFormat, name: str = "") -> None:
    """See at the door that a file can be a dataset of this form; a process of its own reads all of it
    (``services.artifacts.dataset_checks``).

    What could be several formats passes: its bytes are the same whichever it is, and somebody chooses later.

    Args:
        name: what its owner calls it.
    Raises:
        InvalidError: empty, cut, or certainly another thing.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
        file.seek(max(0, size - 4))
        end = file.read(4)
    content = recognise(head, size <= HEAD_BYTES, name)
    if form != "auto" or content.problem:
        try:
            form = settle(content, name or "the file", form)
        except ContentError as error:
            raise InvalidError(str(error), "dataset") from error
    if size <= HEAD_BYTES and not content.packing and not head.strip():
        raise InvalidError(f"the file has {size:,} bytes and no text: choose a file with text in it", "dataset")
    if content.packing:
        return
    if content.formats == ("parquet",) and (size < 12 or end != b"PAR1"):
        raise InvalidError("this Parquet file does not end with PAR1: it is cut; upload it anew", "dataset")
    width = {"uint16": 2, "uint32": 4}.get(form, 1)
    if size % width:
        raise InvalidError(f"{size:,} bytes are no whole number of {form} token ids", "dataset")


def check_weights(path: Path, name: str = NAMELESS_WEIGHTS) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file that is one, and a model's; raises as ``read_safetensors``."""
    _, found = read_safetensors(path, name)
    for key, tensor in found.items():
        if _ADAPTER.search(key):
            raise InvalidError(
                f"{name} holds an adapter (tensor {key[:80]!r} of shape {tensor.shape}), not a model: merge it into its base "
                "model (merge_and_unload of peft), and upload what save_pretrained writes then",
                "weights",
            )
        if _QUANTISED.search(key):
            raise InvalidError(
                f"{name} holds quantised weights (tensor {key[:80]!r} of shape {tensor.shape}): {DEQUANTISE}", "weights"
            )
    return found


def read_safetensors(
    path: Path, name: str = NAMELESS_WEIGHTS, within: tuple[int, int] | None = None
) -> tuple[int, dict[str, StoredTensor]]:
    """Where the data of a safetensors file begin in ``path``, and its tensors: of known types, none overlapping or missing.

    Args:
        name: what its owner calls the file, for messages.
        within: first byte and size of the safetensors file, where it is a part of ``path``.
    Raises:
        InvalidError: the header or a tensor in it does not describe the file.
    """
    start, size = within or (0, path.stat().st_size)
    with path.open("rb") as file:
        file.seek(start)
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_SAFETENSORS_HEADER):
            file.seek(start)
            what = _otherwise(file.read(LOOKED_AT), size)
            raise InvalidError(f"{name} is no safetensors file: {what}", "weights")
        header = file.read(length)
    try:
        entries = _HEADER.decode(header)
        _METADATA.decode(entries.pop("__metadata__", msgspec.Raw(b"{}")))
        tensors = {name: _TENSOR.decode(entry) for name, entry in entries.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidError(f"{name} has a damaged safetensors header: save and upload it anew", "weights") from error
    try:
        _check_layout(tensors, size - 8 - length)
    except InvalidError as error:
        raise InvalidError(f"{name}: {error.detail}", error.field) from error
    return start + 8 + length, tensors


def _otherwise(begin: bytes, size: int) -> str:
    """What a file is that is no safetensors file, and what to do about it."""
    for magic, what in _OTHER_WEIGHTS.items():
        if begin.startswith(magic):
            return what
    if encoding_of(begin) == ("utf-8", 0) and not first_control(begin.decode("utf-8", "ignore")):
        return (
            f"it has {size:,} bytes of text, such as the page of an error: download it anew" if size else "it is empty"
        )
    return "it does not begin with a header of its tensors: it is another format, or damaged; save or download it anew"


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
        detail = "this is no tokenizer.json, or a damaged one: save_pretrained of transformers writes it beside a model"
        raise InvalidError(detail, "tokenizer") from error
    if kind not in _TOKENIZER_MODELS or "vocab" not in model:
        known = ", ".join(sorted(_TOKENIZER_MODELS))
        raise InvalidError(
            f"tokenizer.json has the model type {kind[:60]!r}: save one of {known} with its vocab", "tokenizer"
        )


def _check_layout(tensors: dict[str, StoredTensor], size: int) -> None:
    if not tensors:
        raise InvalidError("there is no tensor in it: save the model anew", "weights")
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        shown = name[:80]
        begin, stop = tensor.data_offsets
        width = _TENSOR_BYTES.get(tensor.dtype)
        if width is None:
            raise InvalidError(
                f"tensor {shown!r} has the type {tensor.dtype[:20]!r} and the shape {tensor.shape[:MAX_TENSOR_AXES]}: "
                "use F32, F16 or BF16",
                "weights",
            )
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
    if end != size:
        raise InvalidError(
            f"the tensors describe {end:,} bytes and the file has {size:,}: it is cut or padded", "weights"
        )
