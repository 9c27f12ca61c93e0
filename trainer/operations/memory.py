"""Which operation wrote which bytes of which allocation, so that every read can name where its bytes are from."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from protocol.audit import MemoryRegion, Piece

SCALAR, BYTES = "scalar", "bytes"


@dataclass(frozen=True)
class MemoryOrigin:
    """Bytes ``start`` to ``stop`` of an allocation are from byte ``offset`` on what an operation wrote."""

    start: int
    stop: int
    operation: int
    output: int
    offset: int
    digest: bytes


class TraceMemory:
    """Allocations, numbered from 1 in the order in which they were first seen.

    A weak reference keeps the number of an allocation from being given again, without keeping its bytes.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._held: list[StorageWeakRef] = []
        self._origins: list[list[MemoryOrigin]] = [[]]

    def number(self, tensor: Tensor) -> int | None:
        """The number of a tensor's allocation, None where it was never seen."""
        return self._numbers.get(tensor.untyped_storage()._cdata)

    def add(self, tensor: Tensor) -> int:
        """Number a tensor's allocation."""
        reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        self._held.append(reference)
        self._numbers[reference.cdata] = number = self.add_bytes()
        return number

    def add_bytes(self) -> int:
        """The number of an allocation that is no tensor's."""
        self._origins.append([])
        return len(self._origins) - 1

    def write(self, memory: int, start: int, stop: int, operation: int, output: int, digest: bytes) -> None:
        """From now on these bytes are what the operation wrote."""
        known = self._origins[memory]
        first, last = _overlapping(known, start, stop)
        kept = []
        if first < last and known[first].start < start:
            old = known[first]
            kept.append(MemoryOrigin(old.start, start, old.operation, old.output, old.offset, old.digest))
        kept.append(MemoryOrigin(start, stop, operation, output, 0, digest))
        if first < last and known[last - 1].stop > stop:
            old = known[last - 1]
            offset = old.offset + stop - old.start
            kept.append(MemoryOrigin(stop, old.stop, old.operation, old.output, offset, old.digest))
        known[first:last] = kept

    def unwritten(self, memory: int, start: int, stop: int) -> list[tuple[int, int]]:
        """The parts of these bytes that no operation wrote."""
        known = self._origins[memory]
        first, last = _overlapping(known, start, stop)
        gaps, at = [], start
        for origin in known[first:last]:
            if origin.start > at:
                gaps.append((at, origin.start))
            at = max(at, origin.stop)
        return [*gaps, (at, stop)] if at < stop else gaps

    def pieces(self, memory: int, start: int, stop: int) -> tuple[Piece, ...]:
        """Where these bytes are from; all of them were written."""
        known = self._origins[memory]
        first, last = _overlapping(known, start, stop)
        found = []
        for origin in known[first:last]:
            low, high = max(start, origin.start), min(stop, origin.stop)
            if low >= high:
                continue
            offset = origin.offset + low - origin.start
            found.append(Piece(low - start, high - low, origin.operation, origin.output, offset, origin.digest))
        return tuple(found)


def _overlapping(known: list[MemoryOrigin], start: int, stop: int) -> tuple[int, int]:
    first = bisect_right(known, start, key=lambda origin: origin.stop)
    return first, max(first, bisect_left(known, stop, key=lambda origin: origin.start))


def span(tensor: Tensor) -> tuple[int, int]:
    """First byte of a tensor in its allocation, and the one after its last; equal where it has no values."""
    start = int(tensor.storage_offset()) * tensor.element_size()
    if not tensor.numel():
        return start, start
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + int(last + 1) * tensor.element_size()


def region(tensor: Tensor, memory: int) -> MemoryRegion:
    """Where a tensor lies."""
    start, _ = span(tensor)
    name = str(tensor.dtype).removeprefix("torch.")
    return MemoryRegion(memory, start, name, tuple(tensor.shape), tuple(tensor.stride()))


def raw(tensor: Tensor, start: int, stop: int) -> Tensor:
    """Bytes ``start`` to ``stop`` of a tensor's allocation, as uint8 that shares them."""
    view = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return view.set_(tensor.untyped_storage(), start, (stop - start,), (1,))
