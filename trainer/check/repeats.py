"""Rows that come again, found on the disk: memory does not grow with the dataset.

Each row is kept as a hash and its number, in one of ``PARTS`` files by the hash; then each file is sorted by itself. Python's own
hash of bytes has 64 bits and another key in each process: of 20 million rows two differ by accident once in 100,000 checks.
"""

import tempfile
from array import array
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

    def add(self, row: int, content: bytes) -> None:
        """Note a row."""
        self._hashes.append(hash(content))
        self._rows.append(row)
        if len(self._rows) >= _HELD:
            self._flush()

    def found(self, most: int) -> tuple[int, list[int]]:
        """How many rows have come before, and the numbers of the first ``most`` of them."""
        self._flush()
        count, first = 0, list[int]()
        for file in self._files:
            file.seek(0)
            pairs = np.fromfile(file, dtype=_PAIR)
            order = np.argsort(pairs["hash"], kind="stable")  # Rows were added in order, and stay so among equals.
            hashes, rows = pairs["hash"][order], pairs["row"][order]
            again: NDArray[np.int64] = rows[1:][hashes[1:] == hashes[:-1]]
            count += len(again)
            first = sorted([*first, *np.sort(again)[:most].tolist()])[:most]
        return count, first

    def _flush(self) -> None:
        pairs = np.empty(len(self._rows), dtype=_PAIR)
        pairs["hash"], pairs["row"] = self._hashes, self._rows
        part = pairs["hash"] & (PARTS - 1)
        for index, file in enumerate(self._files):
            pairs[part == index].tofile(file)
        del self._hashes[:], self._rows[:]
