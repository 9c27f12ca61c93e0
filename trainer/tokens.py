"""Datasets that were tokenised already, as a stream of pieces of token ids; hostile files are refused by name. Free of torch.

``uint16`` and ``uint32``: a plain little-endian array, as GPT-style training scripts write them. ``npy``: one array of
NumPy, of one or two axes, never one with objects in it. ``ids``: JSONL, each line an array of ids.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from trainer.errors import DataError
from trainer.text import MAX_DATASET_BYTES, MAX_ROW_BYTES, file_size
from transport.wire.job import DatasetFormat

PIECE_TOKENS = 4096  # About as long as a piece of text; held-out pieces come from all over the file.
MAX_NPY_HEADER = 4096
_PLAIN: Mapping[str, str] = {"uint16": "<u2", "uint32": "<u4"}

Ids = NDArray[np.int64]


def id_pieces(path: Path, form: DatasetFormat, vocabulary: int, piece_tokens: int = PIECE_TOKENS) -> Iterator[Ids]:
    """The pieces of a tokenised dataset, in order, none empty; every id is in ``0 <= id < vocabulary``.

    Raises:
        DataError: missing, empty, gigantic, cut in the middle of an id, of another type, or an id beyond the vocabulary.
    """
    size = file_size(path)
    if size == 0:
        raise DataError("empty-dataset", f"{path.name} is empty: upload a file with token ids in it")
    if size > MAX_DATASET_BYTES:
        raise DataError("too-large", f"{path.name} has {size:,} bytes: at most {MAX_DATASET_BYTES:,} are taken")
    with path.open("rb") as file:
        if form == "ids":
            yield from _rows(path.name, file, vocabulary)
            return
        kind = np.dtype(_PLAIN[form]) if form in _PLAIN else _npy_type(path.name, file, size)
        if (size - file.tell()) % kind.itemsize:
            raise DataError(
                "bad-length", f"{path.name} has {size:,} bytes: they are no whole number of {kind.name} ids"
            )
        at = 0
        while block := file.read(piece_tokens * kind.itemsize):
            ids = np.frombuffer(block, dtype=kind)
            yield _checked(ids, f"{path.name}, id {at:,} on", vocabulary)
            at += len(ids)


def _npy_type(name: str, file: BinaryIO, size: int) -> np.dtype[np.generic]:
    """Read a header of NumPy's format; the file stands at its data then. Never unpickles anything."""
    try:
        version = npy.read_magic(file)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, fortran, kind = read(file, max_header_size=MAX_NPY_HEADER)
    except (ValueError, KeyError, EOFError) as error:
        raise DataError("bad-npy", f"{name} is no .npy file of version 1 or 2: {error}") from error
    if kind.hasobject or kind.kind not in "iu":
        raise DataError("bad-npy", f"{name} holds {kind}: save token ids as whole numbers, such as uint16 or int32")
    if len(shape) not in (1, 2) or (fortran and len(shape) > 1):
        raise DataError("bad-npy", f"{name} has the shape {shape}: save one or two axes in C order")
    count = int(np.prod([int(axis) for axis in shape], dtype=object))
    if count * kind.itemsize != size - file.tell():
        raise DataError("bad-npy", f"{name} promises {count:,} ids of {kind}, the file has another length")
    return kind


def _rows(name: str, file: BinaryIO, vocabulary: int) -> Iterator[Ids]:
    number = 0
    while line := file.readline(MAX_ROW_BYTES + 1):
        number += 1
        where = f"row {number:,} of {name}"
        if len(line) > MAX_ROW_BYTES:
            raise DataError("bad-row", f"{where} has more than {MAX_ROW_BYTES:,} bytes: split it")
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError("bad-row", f"{where} is not JSON ({error}): each line must be an array of ids") from error
        if not isinstance(row, list) or any(type(entry) is not int or abs(entry) >= 2**62 for entry in row):
            raise DataError("bad-row", f"{where} is no array of whole numbers: each line must be an array of ids")
        if row:
            yield _checked(np.array(row, dtype=np.int64), where, vocabulary)


def _checked(ids: NDArray[np.generic], where: str, vocabulary: int) -> Ids:
    wide = ids.astype(np.int64)
    low, high = int(wide.min()), int(wide.max())
    if low < 0 or high >= vocabulary:
        raise DataError(
            "bad-token",
            f"{where} has the id {low if low < 0 else high}, the tokenizer has {vocabulary:,}: "
            "bring the tokenizer that the ids were made with, or choose the right format",
        )
    return wide
