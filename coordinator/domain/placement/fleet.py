"""Nodes as numbers: speed, memory, lines and the ways between them, with guesses where nobody has measured."""

from collections.abc import Callable, Sequence
from typing import overload

import msgspec

from coordinator.domain.network import Line
from coordinator.domain.placement.node import MEGABYTE, Candidate, MeasuredNetwork

UNKNOWN_RATE = 1e12  # Bytes a second where not one line was measured: then lines decide nothing.
LEAST_RATE = 1.0  # A line that was measured as dead still divides.
MOST_LOSS = 0.99
MAX_PAIRED = 96  # Nodes whose pairs are looked at one by one; of more, near ones are found by their relays.
GUESSED_ROUND_TRIP = 0.08  # Between two nodes of a large network of which nothing was measured: across a continent.

Matrix = Sequence[Sequence[float]]


class Fleet(msgspec.Struct, frozen=True):
    """Candidates by index.

    Attributes:
        speed: operations a second. ``up``, ``down``: bytes a second of the node's line.
        memory: bytes, of a graphics card where ``cards`` says so.
        byte: seconds a byte takes from one node to another. ``rtt``: seconds there and back.
        region: nodes with the same number are near each other.
        measured: whether anything is known of lines or ways.
    """

    nodes: tuple[Candidate, ...]
    speed: list[float]
    memory: list[int]
    cards: list[bool]
    up: list[float]
    down: list[float]
    byte: Matrix
    rtt: Matrix
    measured: bool
    region: Sequence[int] = ()


class _Row(Sequence[float]):
    """A row of a matrix whose cells are worked out when they are asked for."""

    def __init__(self, cell: Callable[[int, int], float], row: int, count: int) -> None:
        self._cell, self._row, self._count = cell, row, count

    @overload
    def __getitem__(self, at: int) -> float: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[float]: ...

    def __getitem__(self, at: int | slice) -> float | Sequence[float]:
        if isinstance(at, slice):
            return [self._cell(self._row, column) for column in range(self._count)[at]]
        return self._cell(self._row, at)

    def __len__(self) -> int:
        return self._count


def lazy(cell: Callable[[int, int], float], count: int) -> Matrix:
    """A square matrix that keeps nothing: for fleets whose pairs are too many."""
    return [_Row(cell, row, count) for row in range(count)]


def survey(candidates: Sequence[Candidate], network: MeasuredNetwork | None) -> Fleet:
    """Turn what is known into matrices.

    A line that nobody has measured counts as the median of those that somebody has, a round trip as their mean.
    """
    lines = [network.line(candidate.node) if network else None for candidate in candidates]
    up = _filled(lines, lambda line: line.up)
    down = _filled(lines, lambda line: line.down)
    rtt, byte = _ways(candidates, network, up, down)
    told = any(line is not None and (line.up is not None or line.down is not None) for line in lines)
    return Fleet(
        nodes=tuple(candidates),
        speed=[max(1.0, candidate.flops) for candidate in candidates],
        memory=[candidate.memory_mb * MEGABYTE for candidate in candidates],
        cards=[candidate.card for candidate in candidates],
        up=up,
        down=down,
        byte=byte,
        rtt=rtt,
        measured=told or (len(candidates) <= MAX_PAIRED and any(map(any, rtt))),
        region=_regions(candidates, network),
    )


def _ways(
    candidates: Sequence[Candidate], network: MeasuredNetwork | None, up: Sequence[float], down: Sequence[float]
) -> tuple[Matrix, Matrix]:
    """Round trips, and seconds a byte, between every two nodes."""
    count = len(candidates)
    if count > MAX_PAIRED:

        def way(a: int, b: int) -> float:
            found = network.rtt(candidates[a].node, candidates[b].node) if network else 0.0
            return GUESSED_ROUND_TRIP if found is None else found

        return lazy(way, count), lazy(lambda a, b: max(1 / up[a], 1 / down[b]), count)
    loss = _losses(candidates, network) if network else None
    every = range(count)
    byte = [[max(1 / up[a], 1 / down[b]) / (1 - loss[a][b] if loss else 1.0) for b in every] for a in every]
    return _round_trips(candidates, network), byte


def _regions(candidates: Sequence[Candidate], network: MeasuredNetwork | None) -> list[int]:
    """By nearest relay; who has measured none is in a region of its own kind."""
    names = [(network.nearest(candidate.node) or "") if network else "" for candidate in candidates]
    number = {name: i for i, name in enumerate(sorted(set(names)))}
    return [number[name] for name in names]


def _filled(lines: Sequence[Line | None], rate: Callable[[Line], float | None]) -> list[float]:
    told = [None if line is None else rate(line) for line in lines]
    known = sorted(value for value in told if value is not None)
    guess = known[len(known) // 2] if known else UNKNOWN_RATE
    return [max(LEAST_RATE, guess if value is None else value) for value in told]


def _round_trips(candidates: Sequence[Candidate], network: MeasuredNetwork | None) -> list[list[float]]:
    count = len(candidates)
    found = [[0.0] * count for _ in range(count)]
    if network is None:
        return found
    known, total, unknown = 0, 0.0, []
    for a in range(count):
        for b in range(a):
            rtt = network.rtt(candidates[a].node, candidates[b].node)
            if rtt is None:
                unknown.append((a, b))
                continue
            found[a][b] = found[b][a] = rtt
            known, total = known + 1, total + rtt
    for a, b in unknown:
        found[a][b] = found[b][a] = total / known if known else 0.0
    return found


def _losses(candidates: Sequence[Candidate], network: MeasuredNetwork) -> list[list[float]]:
    count = len(candidates)
    found = [[0.0] * count for _ in range(count)]
    for a in range(count):
        for b in range(a):
            found[a][b] = found[b][a] = min(MOST_LOSS, network.loss(candidates[a].node, candidates[b].node))
    return found
