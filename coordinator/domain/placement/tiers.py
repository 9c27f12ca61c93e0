"""The cut and the seats of the least bottleneck, where only machines and their own lines count: a start for unequal nodes.

Whether a beat can be kept is decided by three facts. A node holds ``beat x speed / layer`` layers. Its line says whether it may
stand first (it sends forward only), last (backward only), or between. And a stage holds as much as its weakest node. So for every
number of layers of the first and the last stage: who may stand nowhere else stands there, the weakest of the others fill up, and
the rest, in order, make the stages between. The least beat that places all layers is found by halving.
"""

from collections.abc import Sequence

from coordinator.domain.pipeline import match
from coordinator.domain.placement.cost import Load
from coordinator.domain.placement.fleet import Fleet

POWER = 8  # Of links in a matching; more loses small ones beside large ones to rounding.
HALVINGS = 18  # The beat is then known to 1 part in 250,000.


def least_bottleneck(fleet: Fleet, load: Load, stages: int, replicas: int) -> list[int]:
    """Places, ``stage * replicas + replica``, of the first ``stages * replicas`` nodes; everybody else behind.

    Memory is not looked at: the search that begins here does.
    """
    nodes = list(range(stages * replicas))
    others = list(range(len(nodes), len(fleet.nodes)))
    high = max(load.layers * load.layer_operations / fleet.speed[node] for node in nodes)
    high += max(max(_lines(fleet, load, node)) for node in nodes)
    low, best = 0.0, _seated(fleet, load, stages, replicas, high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        found = _seated(fleet, load, stages, replicas, middle)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    return (nodes if best is None else best) + others


def paired(fleet: Fleet, load: Load, places: Sequence[int], stages: int, replicas: int) -> list[int]:
    """The same stages, their members in an order in which neighbours' slowest links are quick.

    A matching of the least sum of high powers: the largest link counts most, as in a bottleneck, and the others still count.
    """
    found = list(places)
    for stage in range(stages - 1):
        at = stage * replicas
        upper, lower = found[at : at + replicas], found[at + replicas : at + 2 * replicas]
        ways = [
            [max(load.forward_bytes * fleet.byte[a][b], load.backward_bytes * fleet.byte[b][a]) for b in lower]
            for a in upper
        ]
        scale = max(map(max, ways)) or 1.0
        chosen = match([[(way / scale) ** POWER for way in row] for row in ways])
        found[at + replicas : at + 2 * replicas] = [lower[column] for column in chosen]
    return found


def _lines(fleet: Fleet, load: Load, node: int) -> tuple[float, float, float]:
    """Seconds a micro-batch that the node's line takes when it stands first, between, and last."""
    there, back, up, down = load.forward_bytes, load.backward_bytes, fleet.up[node], fleet.down[node]
    both = there + back
    return max(there / up, back / down), max(both / up, both / down), max(back / up, there / down)


def _seated(fleet: Fleet, load: Load, stages: int, replicas: int, beat: float) -> list[int] | None:
    """Places that keep the beat; None where this way finds none."""
    if load.layer_operations <= 0:
        return None
    nodes = range(stages * replicas)
    most = load.layers - stages + 1
    room = [min(most, int(beat * fleet.speed[node] / load.layer_operations * (1 + 1e-9))) for node in nodes]
    if min(room) < 1:
        return None
    lines = [_lines(fleet, load, node) for node in nodes]
    first, between, last = ([line[kind] <= beat for line in lines] for kind in range(3))
    if stages == 1:
        return list(nodes) if min(room) >= load.layers else None
    sizes = sorted(set(room))
    for head in sizes:
        for tail in sizes:
            ends = _ends(room, first, between, last, (head, tail), replicas, stages == 2)
            if ends is None:
                continue
            inner = sorted((node for node in nodes if node not in ends[2]), key=lambda node: (-room[node], node))
            tiers = [inner[i : i + replicas] for i in range(0, len(inner), replicas)]
            if head + tail + sum(room[tier[-1]] for tier in tiers) >= load.layers:
                return [*ends[0], *(node for tier in tiers for node in tier), *ends[1]]
    return None


def _ends(
    room: Sequence[int],
    first: Sequence[bool],
    between: Sequence[bool],
    last: Sequence[bool],
    sizes: tuple[int, int],
    replicas: int,
    only: bool,
) -> tuple[list[int], list[int], set[int]] | None:
    """Who stands first and last when these stages hold ``sizes`` layers; ``only``: there are no stages between."""
    head = [node for node in range(len(room)) if first[node] and room[node] >= sizes[0]]
    tail = [node for node in range(len(room)) if last[node] and room[node] >= sizes[1]]
    may_head, may_tail = set(head), set(tail)
    forced = [node for node in range(len(room)) if only or not between[node]]
    opening = [node for node in forced if node not in may_tail]
    closing = [node for node in forced if node not in may_head]
    if set(opening) & set(closing):
        return None
    for node in forced:
        if node in may_head and node in may_tail:
            (opening if len(opening) <= len(closing) else closing).append(node)
    taken = {*opening, *closing}
    for side, allowed in ((opening, head), (closing, tail)):
        weakest = sorted((node for node in allowed if node not in taken), key=lambda node: (room[node], node))
        side += weakest[: max(0, replicas - len(side))]
        taken.update(side)
    if len(opening) != replicas or len(closing) != replicas:
        return None
    return opening, closing, taken
