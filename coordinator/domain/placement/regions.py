"""Thousands of nodes: regions first, and within them pipelines of one make, so that all replicas fit one cut.

Pairs are never looked at, so 10,000 nodes take as long as sorting them.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from coordinator.domain.placement.cost import Load
from coordinator.domain.placement.fleet import Fleet

Rows = list[list[int]]


class Layouts:
    """Ways to make nodes into pipelines of ``stages`` within regions."""

    def __init__(self, fleet: Fleet, load: Load, stages: int, enough: int) -> None:
        """Sort the nodes; that is most of the work, and done once for every number of replicas.

        Args:
            enough: bytes with which a node can hold a mean stage.
        """
        self._fleet, self._stages = fleet, stages
        beats = _beats(fleet, load, stages)
        last = sum(beats) + 1  # Behind every other.
        self._quick = _Walk(fleet, stages, beats)
        self._large = _Walk(fleet, stages, [-float(value) for value in fleet.memory])
        self._able = _Walk(fleet, stages, [b + last * (m < enough) for b, m in zip(beats, fleet.memory, strict=True)])

    def places(self, replicas: int) -> list[list[int]]:
        """Places of ``replicas`` pipelines, ``stage * replicas + replica``, everybody else behind.

        Of the quickest nodes, lines included, of the largest, or of the quickest that are large enough; within regions, or over
        all of them. Like with like: a row of equals waits for nobody, and rows differ. In tiers, by speed or by memory: every
        row has its quick and its slow nodes at the same stages, so one cut serves them all, and rows are equals.
        """
        like = self._quick.rows(replicas, lambda members, _: _chunks(members, self._stages))
        by_speed, by_memory = _tiers(self._fleet.speed), _tiers(self._fleet.memory)
        walks = (self._quick, self._large, self._able)
        tiers = [walk.rows(replicas, make) for walk in walks for make in (by_speed, by_memory)]
        whole = [self._whole(walk.order[: self._stages * replicas], replicas) for walk in walks]
        return [self._places(rows) for rows in ([_stand(self._fleet, row) for row in like], *tiers, *whole)]

    def _whole(self, members: list[int], replicas: int) -> Rows:
        """Tiers by memory over all regions, where none has enough large machines; in each tier, regions in one order."""
        ordered = sorted(members, key=lambda node: (-self._fleet.memory[node], -self._fleet.speed[node], node))
        region = self._fleet.region or [0] * len(self._fleet.nodes)
        tiers = [ordered[i : i + replicas] for i in range(0, len(ordered), replicas)]
        return [list(row) for row in zip(*(sorted(tier, key=lambda node: region[node]) for tier in tiers), strict=True)]

    def _places(self, rows: Rows) -> list[int]:
        seated = [row[stage] for stage in range(self._stages) for row in rows]
        taken = set(seated)
        return seated + [node for node in range(len(self._fleet.nodes)) if node not in taken]


class _Walk:
    """Nodes best first: whenever a region has ``stages`` more of them, it has another row."""

    def __init__(self, fleet: Fleet, stages: int, order: Sequence[float]) -> None:
        region = fleet.region or [0] * len(fleet.nodes)
        self._stages = stages
        self._members: dict[int, list[int]] = {}
        self._completed: list[int] = []
        self.order = sorted(range(len(order)), key=lambda node: (order[node], node))
        for node in self.order:
            members = self._members.setdefault(region[node], [])
            members.append(node)
            if len(members) % stages == 0:
                self._completed.append(region[node])
        self._rank = {node: order[node] for node in range(len(order))}

    def rows(self, replicas: int, make: Callable[[list[int], int], Rows]) -> Rows:
        """As many rows of the best nodes; where regions have no more, rows of what is left over in all of them."""
        counts = Counter(self._completed[:replicas])
        found: Rows = []
        for region in sorted(counts):
            found += make(self._members[region][: counts[region] * self._stages], counts[region])
        missing = replicas - len(found)
        if missing > 0:
            left = [n for region, all_ in self._members.items() for n in all_[counts[region] * self._stages :]]
            left.sort(key=lambda node: (self._rank[node], node))
            found += make(left[: missing * self._stages], missing)
        return found


def _beats(fleet: Fleet, load: Load, stages: int) -> list[float]:
    """What a mean stage would take on each node, its line included."""
    share = load.layers / stages * load.layer_operations
    moved = (load.forward_bytes + load.backward_bytes) * (stages > 1)
    lines = zip(fleet.speed, fleet.up, fleet.down, strict=True)
    return [max(share / speed, moved / up, moved / down) for speed, up, down in lines]


def _chunks(members: list[int], stages: int) -> Rows:
    return [members[i : i + stages] for i in range(0, len(members), stages)]


def _tiers(size: Sequence[float]) -> Callable[[list[int], int], Rows]:
    def make(members: list[int], rows: int) -> Rows:
        ordered = sorted(members, key=lambda node: (-size[node], node))
        return [ordered[row::rows] for row in range(rows)]

    return make


def _stand(fleet: Fleet, row: list[int]) -> list[int]:
    """The weakest lines first and last, where a stage talks to one neighbour only; between them the quickest first."""
    if len(row) < 3:
        return sorted(row, key=lambda node: (-fleet.speed[node], node))
    first, last, *between = sorted(row, key=lambda node: (fleet.up[node], node))
    return [first, *sorted(between, key=lambda node: (-fleet.speed[node], node)), last]
