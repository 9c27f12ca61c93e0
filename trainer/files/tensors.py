"""Tensors of a safetensors file, one at a time, from a file that may be encrypted; and such a file in pieces, to send.

Source: the format as https://huggingface.co/docs/safetensors describes it.
"""

import json
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from common.encrypted_files import SealedFile
from common.errors import SealedFileError
from trainer.files.inputs import InputFile

_WIDE_AT_ONCE = 1 << 20  # Values that are made wide at a time.
MAX_HEADER = 100_000_000  # As the format's own reader has it.
_LENGTH = struct.Struct("<Q")
_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {kind: name for name, kind in _TYPES.items()}
_ORDER = ("I64", "F64", "F32", "I32", "BF16", "F16", "I16", "I8", "U8", "BOOL")  # As the format's own writer has them.


class TensorFile(Protocol):
    """What is read of a file."""

    def keys(self) -> list[str]:
        """The names of its tensors."""

    def get_tensor(self, name: str) -> Tensor:
        """One of them."""


@contextmanager
def open_tensors(file: InputFile) -> Iterator[TensorFile]:
    """The tensors of a file.

    Raises:
        SafetensorError, OSError: it is broken, or was changed; here or when a tensor is read.
    """
    if isinstance(file, SealedFile):
        try:
            yield _Tensors(file)
        except SealedFileError as error:
            raise SafetensorError(str(error)) from error
    else:
        with safe_open(file, "pt") as opened:
            yield cast(TensorFile, opened)


class Source(Protocol):
    """Where a file's bytes come from, as ``SealedFile`` has it."""

    size: int

    def read(self, begin: int, end: int) -> bytes:
        """Some of them."""

    def read_into(self, target: bytearray, begin: int) -> None:
        """Fill ``target``."""


class _Memory:
    """A ``Source`` that is in memory."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._data, self.size = memoryview(data), len(data)

    def read(self, begin: int, end: int) -> bytes:
        return bytes(self._data[begin:end])

    def read_into(self, target: bytearray, begin: int) -> None:
        target[:] = self._data[begin : begin + len(target)]


class _Shared(_Memory):
    """The same, of which tensors are no copies."""

    def view(self, begin: int, end: int) -> memoryview:
        return self._data[begin:end]


def tensors_in(data: bytes | bytearray | memoryview) -> TensorFile:
    """The tensors of a file in memory, of which only those are copied that are asked for; raises ``SafetensorError``."""
    return _Tensors(_Memory(data))


def tensors_within(data: bytearray) -> TensorFile:
    """The same, whose tensors are that memory itself: nobody may change it any more."""
    return _Tensors(_Shared(data))


class TakenTensors(Mapping[str, Tensor]):
    """The tensors of a file in memory, each to be had once: what has been taken gives its part of the file back."""

    def __init__(self, data: bytearray) -> None:
        """Of ``data``, which becomes shorter; raises ``SafetensorError`` where it is no such file."""
        length = _LENGTH.unpack_from(data)[0] if len(data) >= _LENGTH.size else MAX_HEADER + 1
        self._begin, self._data = _LENGTH.size + length, data
        if length > min(MAX_HEADER, len(data) - _LENGTH.size):
            raise SafetensorError("the header is too large, or not there")
        self._places = places_in(bytes(data[_LENGTH.size : self._begin]))
        end = 0
        for name, place in sorted(self._places.items(), key=lambda item: (item[1].begin, item[1].end)):
            if place.begin != end or math.prod(place.shape) * place.dtype.itemsize != place.end - place.begin:
                raise SafetensorError(
                    f"the tensor {name} does not lie where the one before ends, or has another length"
                )
            end = place.end
        if self._begin + end != len(data):
            raise SafetensorError("the file is longer, or shorter, than its tensors")
        self._gone: list[StoredAt] = []

    def __contains__(self, name: object) -> bool:
        """Whether it is there to be taken."""
        return name in self._places

    def __getitem__(self, name: str) -> Tensor:
        """A tensor of its own memory."""
        return self.made(name, lambda tensor: tensor.clone())

    def made(self, name: str, make: Callable[[Tensor], Tensor]) -> Tensor:
        """What is made of a tensor, which must be something of its own."""
        place = self._places.pop(name)
        begin = self._begin + place.begin - sum(gone.end - gone.begin for gone in self._gone if gone.end <= place.begin)
        end = begin + place.end - place.begin
        if begin == end:
            return make(torch.empty(place.shape, dtype=place.dtype))
        # A view for a moment: a vector that still looks into the file would keep it from becoming shorter.
        made = make(torch.frombuffer(memoryview(self._data)[begin:end], dtype=place.dtype).view(place.shape))
        self._gone.append(place)
        del self._data[begin:end]
        return made

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self._places)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._places)


def tensors_of(source: Source) -> TensorFile:
    """The tensors of a file that somebody has opened, each of which is read when it is asked for; raises ``SafetensorError``.

    Where its bytes turn out to be changed, what ``source`` raises is raised.
    """
    return _Tensors(source)


class _Tensors:
    """Reads the header and then each tensor by itself, so that no more than one is in memory twice.

    The format's own reader takes paths only.
    """

    def __init__(self, file: Source) -> None:
        self._file = file
        head = file.read(0, _LENGTH.size)
        length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else MAX_HEADER + 1
        if length > min(MAX_HEADER, file.size - _LENGTH.size):
            raise SafetensorError("the header is too large, or not there")
        self._data = _LENGTH.size + length
        self._places = places_in(file.read(_LENGTH.size, self._data))

    def keys(self) -> list[str]:
        return list(self._places)

    def get_tensor(self, name: str) -> Tensor:
        place = self._places[name]
        kind, shape, begin, end = place.dtype, place.shape, place.begin, place.end
        if not 0 <= begin <= end <= self._file.size - self._data:
            raise SafetensorError(f"the tensor {name} lies outside of the file")
        if math.prod(shape) * kind.itemsize != end - begin:
            raise SafetensorError(f"the tensor {name} has {end - begin:,} bytes, which its shape {shape} does not fit")
        if begin == end:
            return torch.empty(shape, dtype=kind)
        if isinstance(self._file, _Shared):
            return torch.frombuffer(self._file.view(self._data + begin, self._data + end), dtype=kind).view(shape)
        data = bytearray(end - begin)
        self._file.read_into(data, self._data + begin)
        return torch.frombuffer(data, dtype=kind).view(shape)


@dataclass(frozen=True)
class StoredAt:
    """Where a tensor lies: bytes ``begin`` to ``end`` behind the header."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


def places_in(header: bytes) -> dict[str, StoredAt]:
    """Where tensors lie in a file with this header, by name; raises ``SafetensorError``."""
    try:
        entries = json.loads(header)
        entries.pop("__metadata__", None)
        return {name: _place(entry) for name, entry in entries.items()}
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise SafetensorError(f"the header cannot be read: {error}") from error


def _place(entry: Any) -> StoredAt:
    shape = tuple(int(axis) for axis in entry["shape"])
    if any(axis < 0 for axis in shape):
        raise ValueError(f"the shape {shape}")
    begin, end = entry["data_offsets"]
    return StoredAt(_TYPES[entry["dtype"]], shape, int(begin), int(end))


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a tensor that is contiguous and on the CPU, as bytes."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


class Widened:
    """The float32 of a bf16 vector in main memory as bytes, of which a little at a time is made."""

    def __init__(self, values: Tensor) -> None:
        """Of contiguous ``[n]``, which nobody may change as long as this is needed."""
        self._values = values

    def __len__(self) -> int:
        """In bytes."""
        return 4 * self._values.numel()

    def __iter__(self) -> Iterator[memoryview]:
        """All of them, in order."""
        return (bytes_of(part.float()) for part in torch.split(self._values, _WIDE_AT_ONCE))


Piece = memoryview | Widened


def wide(values: Tensor) -> Tensor | Widened:
    """A vector as ``file_in_pieces`` writes it: float32, also where it is kept as bf16."""
    return Widened(values) if values.dtype == torch.bfloat16 else values


def vector_in_pieces(values: Tensor) -> tuple[Piece, ...]:
    """The bytes of a vector, float32 also where it is kept as bf16."""
    content = wide(values)
    return (content if isinstance(content, Widened) else bytes_of(content),)


def parts_of(pieces: Iterable[Piece]) -> Iterator[memoryview]:
    """All the bytes of pieces, in order."""
    for piece in pieces:
        if isinstance(piece, Widened):
            yield from piece
        else:
            yield piece


def file_in_pieces(contents: Mapping[str, Tensor | bytes | bytearray | Widened]) -> list[Piece]:
    """A safetensors file: its header, then the memory of each tensor, of which no copy is made.

    The bytes are those that the format's own writer gives.

    Args:
        contents: contiguous tensors on the CPU, or bytes, which become a vector of type U8. Nobody may change them as long as the
            pieces are needed. What is ``wide`` becomes float32.
    """
    parts: list[tuple[int, str, list[int], Piece]] = []
    for name, content in contents.items():
        if isinstance(content, bytes | bytearray):
            parts.append((_ORDER.index("U8"), name, [len(content)], memoryview(content)))
        elif isinstance(content, Widened):
            parts.append((_ORDER.index("F32"), name, [len(content) // 4], content))
        else:
            parts.append((_ORDER.index(_NAMES[content.dtype]), name, list(content.shape), bytes_of(content)))
    parts.sort(key=lambda part: part[:2])
    header, end = {}, 0
    for order, name, shape, piece in parts:
        begin, end = end, end + len(piece)
        header[name] = {"dtype": _ORDER[order], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return [memoryview(_LENGTH.pack(len(text)) + text), *(part[-1] for part in parts)]
