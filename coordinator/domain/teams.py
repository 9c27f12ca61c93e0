"""Nodes that hold a model together: how its layers are cut into stages, and who takes which. Pure.

A replica takes one turn around its nodes for each token, so those with little time between them come first, and of others the
quickest. A cut is made once for a deployment: evenly by parameters where nodes are large enough for that, else by their memory.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from coordinator.domain import serving as rules
from coordinator.domain.placement import Candidate, MeasuredNetwork, Needed
from coordinator.domain.placement.layers import ranges
from coordinator.domain.serving import HeldModel
from protocol.ids import NodeAddress
from protocol.models.model import ModelShape
from protocol.task import Layers

MOST_STAGES = 16  # As ``ServeSpec.stages``.
UNKNOWN_RTT_S = 0.1  # Between homes whose way to each other nobody has measured.

Team = Mapping[int, Candidate]
"""Who takes which stage."""
Pair = frozenset[NodeAddress]


class TeamWishes(msgspec.Struct, frozen=True):
    """What counts beside memory.

    Attributes:
        owners: who has seats already; others come first.
        apart: pairs of nodes that never hold a replica together again.
        broken: of how many replicas that fell silent a node was; who was of fewer comes first.
        network: what was measured between nodes; None: nothing.
    """

    owners: frozenset[NodeAddress] = frozenset()
    apart: Collection[Pair] = ()
    broken: Mapping[NodeAddress, int] = {}
    network: MeasuredNetwork | None = None


def cut_for(shape: ModelShape, stages: int, caps: Sequence[int] | None = None) -> tuple[Layers, ...] | None:
    """Cut the layers so that the stage with the most parameters has as few as can be; None: there are too few.

    Args:
        caps: layers that each stage can hold; None: any number.
    """
    caps = [shape.layers] * stages if caps is None else caps
    if stages > shape.layers or min(caps) < 1 or sum(caps) < shape.layers:
        return None
    edges = [0] * stages
    edges[0] += shape.embedding_parameters
    edges[-1] += shape.head_parameters
    counts = [1] * stages
    for _ in range(shape.layers - stages):
        open_stages = [stage for stage in range(stages) if counts[stage] < caps[stage]]
        least = min(open_stages, key=lambda stage: ((counts[stage] + 1) * shape.layer_parameters + edges[stage], stage))
        counts[least] += 1
    return ranges(counts)


def first_team(
    held: HeldModel, free: Sequence[Candidate], stages: int | None, wishes: TeamWishes
) -> tuple[tuple[Layers, ...], Team] | None:
    """The cut of a deployment and its first replica; None: these nodes hold it in no way.

    Args:
        stages: how many; None: as few as these nodes hold.
    """
    for number in range(1, MOST_STAGES + 1) if stages is None else (stages,):
        if len(free) < number:
            return None
        found = _even(held, free, number, wishes) or _by_memory(held, free, number, wishes)
        if found is not None:
            return found
    return None


def team(
    needed: Needed, stages: Collection[int], free: Sequence[Candidate], near: Sequence[NodeAddress], wishes: TeamWishes
) -> Team | None:
    """Somebody for each of these stages of a replica; None: there are not enough.

    Who holds a large stage holds a small one, too, so the largest is given away first.

    Args:
        near: nodes that hold its other stages.
    """
    left, chosen = list(free), dict[int, Candidate]()
    for stage in sorted(stages, key=lambda stage: (-needed["main"][stage], stage)):
        members = [*near, *(one.node for one in chosen.values())]
        able = [one for one in left if one.holds(needed, stage) and _may_join(one.node, members, wishes.apart)]
        if not able:
            return None
        best = min(able, key=_order(members, wishes))
        left.remove(best)
        chosen[stage] = best
    return chosen


def _even(
    held: HeldModel, free: Sequence[Candidate], stages: int, wishes: TeamWishes
) -> tuple[tuple[Layers, ...], Team] | None:
    cut = cut_for(held.shape, stages)
    if cut is None:
        return None
    found = team(rules.needed(held, cut), range(stages), free, (), wishes)
    return None if found is None else (cut, found)


def _by_memory(
    held: HeldModel, free: Sequence[Candidate], stages: int, wishes: TeamWishes
) -> tuple[tuple[Layers, ...], Team] | None:
    """A cut for the largest nodes, the two largest at the ends, which hold the embedding and the head."""
    if stages == 1 or stages > held.shape.layers:
        return None
    largest = sorted(free, key=lambda one: (-one.memory_mb, one.node))[:stages]
    places = [*largest[1:], largest[0]]
    caps = [_most_layers(one, held, stage, stages) for stage, one in enumerate(places)]
    cut = cut_for(held.shape, stages, caps)
    if cut is None:
        return None
    found = team(rules.needed(held, cut), range(stages), free, (), wishes)
    return None if found is None else (cut, found)


def _most_layers(one: Candidate, held: HeldModel, stage: int, stages: int) -> int:
    """As many layers as a node can hold as this stage; 0: not one."""
    low, high = 0, held.shape.layers - stages + 1
    while low < high:
        middle = (low + high + 1) // 2
        if one.holds(rules.stage_needed(held, middle, stage == 0, stage == stages - 1), 0):
            low = middle
        else:
            high = middle - 1
    return low


def _may_join(node: NodeAddress, members: Sequence[NodeAddress], apart: Collection[Pair]) -> bool:
    return not any(frozenset((node, other)) in apart for other in members)


def _order(members: Sequence[NodeAddress], wishes: TeamWishes) -> Callable[[Candidate], tuple[object, ...]]:
    def key(one: Candidate) -> tuple[object, ...]:
        way = sum(_rtt(one.node, other, wishes.network) for other in members)
        return (wishes.broken.get(one.node, 0), one.owner in wishes.owners, way, -one.flops, one.node)

    return key


def _rtt(one: NodeAddress, other: NodeAddress, network: MeasuredNetwork | None) -> float:
    measured = None if network is None else network.rtt(one, other)
    return UNKNOWN_RTT_S if measured is None else measured
