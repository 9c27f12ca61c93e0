"""A stage's weights in one file that a worker reads: what of it is here, while it comes and afterwards."""

import hashlib
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.encrypted_files import SealedFile, SealedMosaic
from common.errors import SealedFileError
from protocol.models.weights import Span, Unit, WeightIndex, header, spans, units
from protocol.weight_sharing import PIECE_BYTES, bits


@dataclass(frozen=True)
class TensorRun:
    """Neighbouring tensors of one unit that are not here yet; ``offset``: where they begin in the unit."""

    unit: int
    span: Span
    offset: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.span.end - self.span.begin


class WeightLayout:
    """A safetensors file that comes in any order. Others may have the units of it that are whole.

    Attributes:
        path: where it is once all of it has come.
        units: what it consists of.
        done: those that are here.
    """

    def __init__(self, index: WeightIndex, wanted: Sequence[Span], path: Path, key: bytes) -> None:
        """Begin with none of the tensors; raises OSError where the disk does not take the file."""
        self.index = index
        self.path = path
        self.units = units(index, wanted)
        self.done: set[int] = set()
        self._key = key
        self._missing = [set(unit.span.names) for unit in self.units]
        head = header(index, wanted)
        self.begins = len(head)
        size = len(head) + sum(unit.size for unit in self.units)
        self._mosaic: SealedMosaic | None = SealedMosaic(path.with_suffix(".part"), key, size)
        self._mosaic.write(head, 0)

    def runs(self) -> list[TensorRun]:
        """What is missing, in order."""
        return [
            TensorRun(number, span, span.begin - unit.span.begin)
            for number, (unit, missing) in enumerate(zip(self.units, self._missing, strict=True))
            for span in spans(self.index, missing)
        ]

    def put(self, run: TensorRun, data: bytes, begin: int) -> None:
        """Write bytes of a run from its byte ``begin`` on; raises OSError, SealedFileError."""
        if self._mosaic is None:
            raise SealedFileError(f"{self.path.name} is finished")
        self._mosaic.write(data, self.begins + self.units[run.unit].at + run.offset + begin)

    def have(self, run: TensorRun) -> None:
        """These tensors are here, and right."""
        self._missing[run.unit].difference_update(run.span.names)
        if not self._missing[run.unit]:
            self.done.add(run.unit)

    def finish(self) -> None:
        """All tensors are here: the file is at ``path``. Raises OSError."""
        assert self._mosaic is not None
        self._mosaic.finish()
        self._mosaic.path.chmod(0o644)  # The sandbox's user is another.
        os.replace(self._mosaic.path, self.path)
        self._mosaic = None

    def abandon(self) -> None:
        """Nobody waits for it any more."""
        if self._mosaic is not None:
            self._mosaic.abandon()

    # --- for others -----------------------------------------------------------------------------------------------------

    def done_bits(self) -> bytes:
        """Which units others may have."""
        return bits(self.done, len(self.units))

    def piece(self, unit: int, begin: int) -> bytes:
        """The piece of a unit from its byte ``begin`` on; empty where it is not here (any more)."""
        if unit not in self.done or begin >= self.units[unit].size:
            return b""
        at = self.begins + self.units[unit].at
        first, last = at + begin, at + min(begin + PIECE_BYTES, self.units[unit].size)
        mosaic = self._mosaic
        try:
            if mosaic is not None:
                return mosaic.read(first, last)
            with SealedFile(self.path, self._key) as file:
                return file.read(first, last)
        except (OSError, ValueError, SealedFileError):  # The lease has ended, or the file has just been finished.
            return b""


class TensorCheck:
    """Holds tensors that come one after the other against their digests."""

    def __init__(self, index: WeightIndex, names: Iterable[str]) -> None:
        """Nothing has come yet."""
        self._coming = deque((name, index.tensors[name]) for name in names)
        self._wrong: str | None = None
        self._begin()

    def _begin(self) -> None:
        self._hasher = hashlib.sha256()
        self._left = self._coming[0][1].end - self._coming[0][1].begin if self._coming else 0

    def update(self, data: bytes) -> None:
        """Take the next bytes."""
        view = memoryview(data)
        while self._coming:
            self._hasher.update(view[: self._left])
            taken = min(len(view), self._left)
            self._left, view = self._left - taken, view[taken:]
            if self._left:
                return
            name, tensor = self._coming.popleft()
            if self._wrong is None and self._hasher.hexdigest() != tensor.sha256:
                self._wrong = name
            self._begin()

    def first_wrong(self) -> str | None:
        """The first of the tensors that has not come, or whose digest is another than the index says."""
        self.update(b"")
        return self._wrong or next((name for name, _ in self._coming), None)


def pieces_of_run(run: TensorRun) -> Iterator[tuple[int, int]]:
    """Where to ask for a run's bytes in its unit, and how many come each time."""
    for begin in range(0, run.size, PIECE_BYTES):
        yield run.offset + begin, min(PIECE_BYTES, run.size - begin)


def beginners(found: Sequence[Unit], nodes: Sequence[str]) -> dict[int, str]:
    """Which of ``nodes`` begins with which unit: each has neighbouring ones, of about as many bytes."""
    total = sum(unit.size for unit in found) or 1
    return {
        number: nodes[min((unit.at + unit.size // 2) * len(nodes) // total, len(nodes) - 1)]
        for number, unit in enumerate(found)
    }
