"""Keys and values of one stage's layers, in pages, and where in them a pass reads and writes."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trainer.transfer import whole_numbers

PAGE = 32  # Tokens.


class NoPagesError(Exception):
    """More tokens than there are pages for."""


def pages_of(tokens: int) -> int:
    """How many pages so many tokens lie in."""
    return -(-tokens // PAGE)


class PageTables:
    """Which pages belong to whom; those with low numbers are given first, so that memory nobody needed stays untouched."""

    def __init__(self, pages: int) -> None:
        """``pages``: how many there are."""
        self._free = list(range(pages))
        self._held: dict[int, list[int]] = {}
        self._owners = [0] * pages
        self.highest = 0
        """Of the pages that were ever given, the highest and one."""

    @property
    def free(self) -> int:
        """How many are nobody's."""
        return len(self._free)

    def held(self, owner: int) -> list[int]:
        """Those of ``owner``, in order."""
        return self._held.get(owner, [])

    def reach(self, owner: int, tokens: int) -> list[int]:
        """The pages of ``owner``, enough for so many tokens.

        Raises:
            NoPagesError: there are not so many.
        """
        held = self._held.setdefault(owner, [])
        if (more := pages_of(tokens) - len(held)) > len(self._free):
            raise NoPagesError(f"{more:,} more pages are needed, and {len(self._free):,} are free")
        for _ in range(more):
            held.append(heapq.heappop(self._free))
            self._owners[held[-1]] = 1
            self.highest = max(self.highest, held[-1] + 1)
        return held

    def share(self, owner: int, other: int, count: int) -> None:
        """A new owner has another one's first ``count`` pages, too.

        Raises:
            NoPagesError: there are not so many.
        """
        pages = self._held.get(other, [])[:count]
        if len(pages) < count:
            raise NoPagesError(f"{count:,} pages of request {other} are wanted, which has {len(pages):,}")
        self._held[owner] = pages
        for page in pages:
            self._owners[page] += 1

    def release(self, owner: int, kept: int = 0) -> None:
        """An owner needs no more than its first ``kept`` pages."""
        held = self._held.pop(owner, [])
        for page in held[kept:]:
            self._owners[page] -= 1
            if not self._owners[page]:
                heapq.heappush(self._free, page)
        if kept:
            self._held[owner] = held[:kept]


@dataclass(frozen=True)
class RowGroup:
    """Rows of a pass that have as many tokens, and as many pages, as each other.

    Attributes:
        tokens: which of the pass's tokens, ``[rows, t]``; ``places``: of their sequences, ``[rows, t]``.
        pages: where their keys and values lie, ``[rows, n]``.
    """

    tokens: Tensor
    places: Tensor
    pages: Tensor
    _masks: dict[tuple[int | None, int], Tensor] = field(default_factory=dict)

    def mask(self, window: int | None, repeats: int) -> Tensor:
        """What each token attends to, ``[rows, 1, repeats * t, n * PAGE]``: itself and those before, within a window.

        ``repeats``: query heads that share a head of keys; theirs lie behind each other.
        """
        if (window, repeats) not in self._masks:
            keys = torch.arange(self.pages.shape[1] * PAGE, device=self.pages.device)
            seen = keys <= self.places[..., None]
            if window is not None:
                seen &= keys > self.places[..., None] - window
            self._masks[window, repeats] = seen.repeat(1, repeats, 1)[:, None]
        return self._masks[window, repeats]


@dataclass(frozen=True)
class PassPlaces:
    """Where the tokens of a pass belong: ``positions`` ``[t]`` in their sequences, ``written`` ``[t]`` among keys and values."""

    cache: "LayerCache"
    positions: Tensor
    written: Tensor
    groups: tuple[RowGroup, ...]


class LayerCache:
    """Keys and values of some layers."""

    def __init__(self, layers: int, pages: int, heads: int, width: int, device: torch.device) -> None:
        """Room for ``pages`` of ``heads`` keys and values of ``width`` numbers.

        A page is zeroed when it is first given, so that a masked place does no harm and an unused one takes no memory.
        """
        self.tables = PageTables(pages)
        self._zeroed = 0
        size = (pages * PAGE, heads, width)
        self.keys = [torch.empty(size, device=device) for _ in range(layers)]
        self.values = [torch.empty(size, device=device) for _ in range(layers)]

    @property
    def bytes_used(self) -> int:
        """Memory of the pages that were ever given."""
        one = sum(keys[0].nbytes for keys in self.keys) + sum(values[0].nbytes for values in self.values)
        return one * PAGE * self.tables.highest

    def clear(self) -> None:
        """Forget everything, also what was not finite."""
        self.tables, self._zeroed = PageTables(len(self.keys[0]) // PAGE), 0

    def _zero(self) -> None:
        """Zero the pages that were given for the first time."""
        if self.tables.highest > self._zeroed:
            for one in (*self.keys, *self.values):
                one[self._zeroed * PAGE : self.tables.highest * PAGE].zero_()
            self._zeroed = self.tables.highest

    def places_of(self, owner: int, count: int) -> Tensor:
        """Where an owner's first places lie, ``[count]``."""
        held = whole_numbers(self.tables.held(owner)[: pages_of(count)], self.keys[0].device)
        return (held[:, None] * PAGE + torch.arange(PAGE, device=held.device)).flatten()[:count]

    def places(self, rows: Sequence[tuple[int, int, int]]) -> PassPlaces:
        """Where the rows of a pass belong: (owner, first place, tokens) of each.

        Raises:
            NoPagesError: there is not so much room.
        """
        for owner, first, count in rows:
            self.tables.reach(owner, first + count)
        self._zero()
        device, alike, begin = self.keys[0].device, dict[tuple[int, int], list[tuple[int, int, list[int]]]](), 0
        positions: list[int] = []
        written: list[int] = []
        for owner, first, count in rows:
            held = self.tables.held(owner)[: pages_of(first + count)]
            alike.setdefault((count, len(held)), []).append((begin, first, held))
            positions += range(first, first + count)
            written += [held[place // PAGE] * PAGE + place % PAGE for place in range(first, first + count)]
            begin += count
        groups = []
        for (count, _), found in alike.items():
            steps = torch.arange(count, device=device)
            begins, firsts = (whole_numbers([one[i] for one in found], device)[:, None] for i in (0, 1))
            pages = whole_numbers([one[2] for one in found], device)
            groups.append(RowGroup(begins + steps, firsts + steps, pages))
        return PassPlaces(self, whole_numbers(positions, device), whole_numbers(written, device), tuple(groups))


class CrossedStates:
    """Hidden states at one side of a stage, where their tokens' keys and values lie: halves, and of each a scale.

    A request that shares pages has sketches of its own of them. Halves of what is at most 1 are off by less than sketches are.
    """

    def __init__(self, pages: int, hidden: int, device: torch.device) -> None:
        self._halves = torch.empty((pages * PAGE, hidden), dtype=torch.float16, device=device)
        self._scales = torch.empty((pages * PAGE, 1), device=device)

    def write(self, lie: Tensor, states: Tensor) -> None:
        """Keep ``states`` ``[t, hidden]`` at the places ``lie`` ``[t]``."""
        scales = states.abs().amax(1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
        self._halves.index_copy_(0, lie, (states / scales).half())
        self._scales.index_copy_(0, lie, scales.float())

    def read(self, lie: Tensor) -> Tensor:
        """``[t, hidden]``, float32, of the places ``lie``."""
        return self._halves[lie].float() * self._scales[lie]
