"""Rows that come again, found on the disk: memory does not grow with the dataset.

Each row is kept as a hash and its number, in one of ``PARTS`` files by the hash; then each file is sorted by itself. Python's own
hash of bytes has 64 bits and another key in each process: of 20 million rows two differ by accident once in 100,000 checks.
"""

import tempfile
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

PARTS = 64  # 200 million rows then take 50 MB for each part.
_HELD = 1 << 18  # Rows in memory before they go to the disk: 4 MB.
_PAIR = np.dtype([("hash", "<i8"), ("row", "<i8")])


class Repeats:
    """Counts rows that are equal to an earlier one."""

    def __init__(self, folder: Path) -> None:
        """Use a folder below ``folder`` until the end of the ``with`` block."""
        self._folder = tempfile.TemporaryDirectory(dir=folder)
        self._files = [(Path(self._folder.name) / str(part)).open("wb+") for part in range(PARTS)]
        self._hashes = array("q")
        self._rows = array("q")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        for file in self._files:
            file.close()
        self._folder.cleanup()

    def add(self, row: int, content: bytes, *, held: bool = False) -> None:
        """Note a row, and whether it is held out."""
        self._hashes.append(hash(content))
        self._rows.append(row << 1 | held)
        if len(self._rows) >= _HELD:
            self._flush()

    def found(self, most: int) -> tuple[int, list[int]]:
        """How many rows have come before, and the numbers of the first ``most`` of them."""
        count, first = 0, list[int]()
        for hashes, rows, _ in self._parts():
            again: NDArray[np.int64] = rows[1:][hashes[1:] == hashes[:-1]]
            count += len(again)
            first = sorted([*first, *np.sort(again)[:most].tolist()])[:most]
        return count, first

    def leaked(self, most: int) -> tuple[int, list[int]]:
        """How many rows are held out and among the others, too, and the numbers of the first ``most`` of them."""
        count, first = 0, list[int]()
        for hashes, rows, held in self._parts():
            alike = np.cumsum(np.concatenate([[0], hashes[1:] != hashes[:-1]])) if len(hashes) else rows
            trained = np.bincount(alike, weights=~held, minlength=1) > 0
            known = rows[held & trained[alike]]
            count += len(known)
            first = sorted([*first, *np.sort(known)[:most].tolist()])[:most]
        return count, first

    def _parts(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]]:
        """Hashes, numbers and whether rows are held out; equal hashes lie side by side, in the rows' order."""
        self._flush()
        for file in self._files:
            file.seek(0)
            pairs = np.fromfile(file, dtype=_PAIR)
            order = np.argsort(pairs["hash"], kind="stable")  # Rows were added in order, and stay so among equals.
            rows = pairs["row"][order]
            yield pairs["hash"][order], rows >> 1, (rows & 1).astype(bool)

    def _flush(self) -> None:
        pairs = np.empty(len(self._rows), dtype=_PAIR)
        pairs["hash"], pairs["row"] = self._hashes, self._rows
        part = pairs["hash"] & (PARTS - 1)
        for index, file in enumerate(self._files):
            pairs[part == index].tofile(file)
        del self._hashes[:], self._rows[:]
