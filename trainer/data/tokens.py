"""Datasets that were tokenised already, as a stream of pieces of token ids; hostile files are refused by name. Free of torch.

``uint16`` and ``uint32``: a plain little-endian array, as GPT-style training scripts write them. ``npy``: one array of
NumPy, of one or two axes, never one with objects in it. ``ids``: JSONL, each line an array of ids.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from trainer.errors import DataError
from trainer.formats.documents import alone
from trainer.formats.fields import kind_of
from trainer.formats.rows import MAX_ROW_BYTES, long_row, not_json, place, too_deep
from trainer.formats.source import Dataset, opened

PIECE_TOKENS = 4096  # About as long as a piece of text; held-out pieces come from all over the file.
MAX_NPY_HEADER = 4096
_PLAIN: Mapping[str, str] = {"uint16": "<u2", "uint32": "<u4"}

Ids = NDArray[np.int64]


def id_pieces(dataset: Dataset, vocabulary: int, piece_tokens: int = PIECE_TOKENS) -> Iterator[Ids]:
    """The pieces of a tokenised dataset, in order, none empty; every id is in ``0 <= id < vocabulary``.

    Raises:
        DataError: missing, empty, gigantic, cut in the middle of an id, of another type, or an id beyond the vocabulary.
    """
    content, name = dataset.look(), dataset.name
    form = dataset.format(content)
    with opened(dataset, content, characters=form == "ids") as file:
        if form == "ids":
            yield from _rows(name, file, vocabulary)
            return
        kind, promised = (np.dtype(_PLAIN[form]), None) if form in _PLAIN else _npy_type(name, file)
        at = 0
        while block := file.read(piece_tokens * kind.itemsize):
            if len(block) % kind.itemsize:
                raise DataError(
                    "bad-length", f"{name} ends in the middle of an id of {kind.name}: it is cut, or of another format"
                )
            ids = np.frombuffer(block, dtype=kind)
            yield _checked(ids, f"{name}, id {at:,} on", vocabulary)
            at += len(ids)
        if promised is not None and at != promised:
            raise DataError("bad-npy", f"{name} promises {promised:,} ids and has {at:,}: it is cut; save it anew")


def _npy_type(name: str, file: BinaryIO) -> tuple[np.dtype[np.generic], int]:
    """Read a header of NumPy's format: type and number of ids; the file stands at its data then. Never unpickles anything."""
    try:
        version = npy.read_magic(file)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, fortran, kind = read(file, max_header_size=MAX_NPY_HEADER)
    except (ValueError, KeyError, EOFError) as error:
        detail = f"{name} is no .npy file of version 1 or 2, or its header is damaged: save the ids with numpy.save"
        raise DataError("bad-npy", detail) from error
    if kind.hasobject or kind.kind not in "iu":
        raise DataError("bad-npy", f"{name} holds {kind}: save token ids as whole numbers, such as uint16 or int32")
    if len(shape) not in (1, 2) or (fortran and len(shape) > 1):
        raise DataError("bad-npy", f"{name} has the shape {shape}: save one or two axes in C order")
    return kind, int(np.prod([int(axis) for axis in shape], dtype=object))


def _rows(name: str, file: BinaryIO, vocabulary: int) -> Iterator[Ids]:
    number = 0
    while line := file.readline(MAX_ROW_BYTES + 1):
        number += 1
        where = place(number, name)
        if len(line) > MAX_ROW_BYTES:
            raise long_row(where)
        if not (line := alone(line)):
            continue
        row = _array(line, where)
        if any(type(entry) is not int or abs(entry) >= 2**62 for entry in row):
            raise DataError("bad-row", f"{where} has something else than whole numbers: each line is an array of ids")
        if row:
            yield _checked(np.array(row, dtype=np.int64), where, vocabulary)


def _array(line: bytes, where: str) -> list[Any]:
    try:
        text = line.decode("utf-8", "replace")
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise not_json(where, text, error.pos, "an array of ids such as [17, 4]") from error
    except ValueError as error:  # A number of thousands of digits.
        raise DataError("bad-row", f"{where} has a number that is no id: each line is an array of ids") from error
    except RecursionError as error:
        raise too_deep(where) from error
    if not isinstance(row, list):
        raise DataError("bad-row", f"{where} is {kind_of(row)}: each line is an array of ids, such as [17, 4]")
    return row


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
