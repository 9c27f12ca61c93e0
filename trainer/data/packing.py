"""Documents side by side in windows: whole, the longest first, each where it leaves the least room (best fit). Free of torch.

Source: Ding et al., Fewer Truncations Improve Language Modeling, arXiv 2404.10830, as ``trl`` has it under the name bfd.
"""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from trainer.data.encoded import TokenIds
from trainer.data.marks import BEGINS, UNLEARNT


class Packer:
    """Takes documents as they come, and gives them in windows; they wait on the disk."""

    def __init__(self, path: Path, sequence: int) -> None:
        """Let documents wait in ``path`` until the end of the ``with`` block; none is longer than ``sequence``."""
        self._path, self._sequence = path, sequence
        self._file = path.open("wb+")
        self._lengths: list[int] = []
        self.tokens = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)

    def add(self, marked: TokenIds) -> None:
        """Take a document, marked as it is to lie in the file."""
        self._file.write(marked.astype("<u4").tobytes())
        self._lengths.append(len(marked))
        self.tokens += len(marked)

    def windows(self) -> Iterator[TokenIds]:
        """All documents in windows of ``sequence`` tokens, what is left of each filled; one more token ends the last label."""
        self._file.flush()
        if not self._lengths:
            return
        lengths = np.array(self._lengths, dtype=np.int64)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        waiting = np.memmap(self._path, dtype="<u4", mode="r")
        for window in best_fit(lengths, self._sequence):
            filled = filling(self._sequence)
            at = 0
            for document in window:
                filled[at : at + lengths[document]] = waiting[starts[document] : starts[document + 1]]
                at += int(lengths[document])
            if at < self._sequence:
                filled[at] |= BEGINS
            yield filled
        last = filling(1)
        last[0] |= BEGINS
        yield last


def filling(count: int) -> TokenIds:
    """Tokens that stand for nothing: nobody learns them, and as a document of their own nobody looks at them."""
    return np.full(count, UNLEARNT, dtype=np.uint32)


def best_fit(lengths: NDArray[np.int64], sequence: int) -> list[list[int]]:
    """Which documents each window has; equal lengths in their order, so that the same come out everywhere."""
    windows: list[list[int]] = []
    open_windows: defaultdict[int, list[int]] = defaultdict(list)
    rooms = 0  # A bit for each room that some window has left.
    for document in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[document])
        fitting = rooms >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            window = open_windows[room].pop()
            if not open_windows[room]:
                rooms ^= 1 << room
        else:
            room, window = sequence, len(windows)
            windows.append([])
        windows[window].append(document)
        if left := room - length:
            open_windows[left].append(window)
            rooms |= 1 << left
    return windows


def marked(ids: TokenIds, learnt: NDArray[np.bool_]) -> TokenIds:
    """A document as it lies in a file; its first token is never learnt, since nothing comes before it."""
    found = np.where(learnt, ids, ids | np.uint32(UNLEARNT)).astype(np.uint32)
    found[0] |= np.uint32(BEGINS | UNLEARNT)
    return found
