"""The cut and the seats of the least bottleneck, where only machines and their own lines count: a start for unequal nodes.

Whether a beat can be kept is decided by three facts. A node holds ``beat x speed / layer`` layers. Its line says whether it may
stand first (it sends forward only), last (backward only), or between. And a stage holds as much as its weakest node. So for every
number of layers of the first and the last stage: who may stand nowhere else stands there, the weakest of the others fill up, and
the rest, in order, make the stages between. The least beat that places all layers is found by halving.

Sets that fit the first and the last stage are a matroid, of which taking the weakest first gives the weakest set of all (Edmonds
1971, "Matroids and the greedy algorithm"); what it leaves is the strongest rest, and in order that makes the largest stages.
"""

from collections.abc import Iterator, Sequence

import msgspec

from coordinator.domain.pipeline import match
from coordinator.domain.placement.cost import Load
from coordinator.domain.placement.fleet import Fleet

POWER = 8  # Of links in a matching; more loses small ones beside large ones to rounding.
HALVINGS = 18  # The beat is then known to 1 part in 250,000.


class Seating(msgspec.Struct, frozen=True):
    """Who stands where, if ways count for nothing, and the most layers that each stage then holds within the beat."""

    rooms: list[int]
    places: list[int]


def least_bottleneck(fleet: Fleet, load: Load, stages: int, replicas: int) -> list[int]:
    """Places, ``stage * replicas + replica``, of the first ``stages * replicas`` nodes; everybody else behind.

    Memory is not looked at: the search that begins here does.
    """
    _, found = least_beat(fleet, load, stages, replicas)
    nodes = list(range(stages * replicas)) if found is None else found.places
    return nodes + list(range(len(nodes), len(fleet.nodes)))


def least_beat(fleet: Fleet, load: Load, stages: int, replicas: int) -> tuple[float, Seating | None]:
    """The least beat of the first ``stages * replicas`` nodes, if ways count for nothing, and who then stands where.

    No plan of all these nodes is quicker by more than the halvings leave. Without a seating, which is where layers cost nothing,
    the beat says nothing.
    """
    nodes = range(stages * replicas)
    high = max((load.layers * load.layer_operations + load.head_operations) / fleet.speed[node] for node in nodes)
    high += max(max(line_times(fleet, load, node)) for node in nodes)
    low, best = 0.0, next(seatings(fleet, load, stages, replicas, high), None)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        found = next(seatings(fleet, load, stages, replicas, middle), None)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    return low, best


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


def line_times(fleet: Fleet, load: Load, node: int) -> tuple[float, float, float]:
    """Seconds a micro-batch that the node's line takes when it stands first, between, and last."""
    there, back, up, down = load.forward_bytes, load.backward_bytes, fleet.up[node], fleet.down[node]
    both = there + back
    return max(there / up, back / down), max(both / up, both / down), max(back / up, there / down)


def seatings(fleet: Fleet, load: Load, stages: int, replicas: int, beat: float) -> Iterator[Seating]:
    """Of the first ``stages * replicas`` nodes: for every size of the first and the last stage the seating with the most room.

    Only those that place all layers within ``beat``; none where there are none.
    """
    nodes = range(stages * replicas)
    room = [_room(load, stages, fleet.speed[node], beat) for node in nodes]
    if min(room) < 1:
        return
    tail_room = [_room(load, stages, fleet.speed[node], beat, load.head_operations) for node in nodes]
    if stages == 1:
        if min(tail_room) >= load.layers:
            yield Seating([min(tail_room)], list(nodes))
        return
    lines = [line_times(fleet, load, node) for node in nodes]
    first, between, last = ([line[kind] <= beat for line in lines] for kind in range(3))
    forced = [stages == 2 or not may for may in between]
    order = sorted(nodes, key=lambda node: (not forced[node], room[node], node))
    for head in sorted(set(room)):
        may_head = [first[node] and room[node] >= head for node in nodes]
        for tail in sorted({size for size in tail_room if size > 0}):
            may_tail = [last[node] and tail_room[node] >= tail for node in nodes]
            ends = _ends(order, forced, may_head, may_tail, replicas)
            if ends is None:
                continue
            taken = {*ends[0], *ends[1]}
            inner = sorted((node for node in nodes if node not in taken), key=lambda node: (-room[node], node))
            tiers = [inner[i : i + replicas] for i in range(0, len(inner), replicas)]
            rooms = [head, *(room[tier[-1]] for tier in tiers), tail]
            if sum(rooms) >= load.layers:
                yield Seating(rooms, [*ends[0], *inner, *ends[1]])


def _room(load: Load, stages: int, speed: float, beat: float, beside: float = 0.0) -> int:
    """Layers that a node computes within ``beat``, with ``beside`` operations more."""
    if load.layer_operations <= 0:
        return 0
    return min(load.layers - stages + 1, int((beat * speed - beside) / load.layer_operations * (1 + 1e-9)))


def _ends(
    order: Sequence[int], forced: Sequence[bool], may_head: Sequence[bool], may_tail: Sequence[bool], replicas: int
) -> tuple[list[int], list[int]] | None:
    """Who stands first and last: all who are ``forced``, and the earliest others in ``order``; None where that does not fit."""
    opening, closing, either = list[int](), list[int](), list[int]()
    for node in order:
        side = either if may_head[node] and may_tail[node] else opening if may_head[node] else closing
        able = may_head[node] or may_tail[node]
        full = side is not either and len(side) == replicas
        if able and not full and len(opening) + len(closing) + len(either) < 2 * replicas:
            side.append(node)
        elif forced[node]:
            return None
    missing = replicas - len(opening)
    opening, closing = opening + either[:missing], closing + either[missing:]
    return (opening, closing) if len(opening) == len(closing) == replicas else None
