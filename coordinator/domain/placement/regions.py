"""Thousands of nodes: regions first, and within them pipelines of one make, so that all replicas fit one cut.

Pairs are never looked at, so 10,000 nodes take as long as sorting them.
"""

from collections.abc import Callable, Sequence

from coordinator.domain.placement.cost import Load
from coordinator.domain.placement.fleet import Fleet

Rows = list[list[int]]


def layouts(fleet: Fleet, load: Load, stages: int) -> list[Rows]:
    """Ways to make all nodes into rows of ``stages`` within regions, best row first.

    Like with like: a row of equals waits for nobody, and rows differ. In tiers, by speed or by memory: every row has its quick
    and its slow nodes at the same stages, so one cut serves them all, and rows are equals.
    """
    beat = _beats(fleet, load, stages)
    speed = [-value for value in fleet.speed]
    memory = [-float(value) for value in fleet.memory]
    like = _rows(fleet, stages, beat, lambda members, _: _chunks(members, stages))
    tiers = [_rows(fleet, stages, order, lambda members, rows: _tiers(members, rows)) for order in (speed, memory)]
    ranked = sorted(like, key=lambda row: (max([beat[node] for node in row]), row))
    return [[_stand(fleet, row) for row in ranked], *tiers]


def places(rows: Sequence[Sequence[int]], replicas: int, count: int) -> list[int]:
    """The first ``replicas`` rows as places, stage by stage; everybody else of ``count`` nodes behind."""
    seated = [row[stage] for stage in range(len(rows[0])) for row in rows[:replicas]]
    taken = set(seated)
    return seated + [node for node in range(count) if node not in taken]


def _beats(fleet: Fleet, load: Load, stages: int) -> list[float]:
    """What a mean stage would take on each node, its line included."""
    share = load.layers / stages * load.layer_operations
    moved = (load.forward_bytes + load.backward_bytes) * (stages > 1)
    lines = zip(fleet.speed, fleet.up, fleet.down, strict=True)
    return [max(share / speed, moved / up, moved / down) for speed, up, down in lines]


def _rows(fleet: Fleet, stages: int, order: Sequence[float], make: Callable[[list[int], int], Rows]) -> Rows:
    """Rows of each region, those at the head of their region's order first; what is left over in all regions makes the last."""
    by_region: dict[int, list[int]] = {}
    for node, region in enumerate(fleet.region or [0] * len(fleet.nodes)):
        by_region.setdefault(region, []).append(node)
    found: list[tuple[float, list[int]]] = []
    left: list[int] = []
    for region in sorted(by_region):
        members = sorted(by_region[region], key=lambda node: (order[node], node))
        rows = len(members) // stages
        # Who is left over is the last in the order: the weakest stand by.
        found += [((i + 1) / rows, row) for i, row in enumerate(make(members[: rows * stages], rows))]
        left += members[rows * stages :]
    left.sort(key=lambda node: (order[node], node))
    rest = make(left[: len(left) // stages * stages], len(left) // stages)
    return [row for _, row in sorted(found)] + rest


def _chunks(members: list[int], stages: int) -> Rows:
    return [members[i : i + stages] for i in range(0, len(members), stages)]


def _tiers(members: list[int], rows: int) -> Rows:
    return [members[row::rows] for row in range(rows)]


def _stand(fleet: Fleet, row: list[int]) -> list[int]:
    """The weakest lines first and last, where a stage talks to one neighbour only; between them the quickest first."""
    if len(row) < 3:
        return sorted(row, key=lambda node: (-fleet.speed[node], node))
    first, last, *between = sorted(row, key=lambda node: (fleet.up[node], node))
    return [first, *sorted(between, key=lambda node: (-fleet.speed[node], node)), last]
