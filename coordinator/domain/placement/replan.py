"""Whether nodes should change seats in mid-run, because speeds are no longer what the plan was made for.

The cut stays: checkpoints belong to it. Seats may change at the boundary of a round, where a node that takes another stage
fetches that stage's state. So a move must win back what it costs, several times over, and a plan that has just been changed
rests.
"""

from collections.abc import Mapping, Sequence
from heapq import nsmallest

import msgspec

from coordinator.domain.network import Line
from coordinator.domain.placement import explain
from coordinator.domain.placement.choose import DEFAULT, DESCENDED, PlacementProblem, PlanOptions
from coordinator.domain.placement.cost import estimate, load_of
from coordinator.domain.placement.fleet import survey
from coordinator.domain.placement.flow import RoundFlow
from coordinator.domain.placement.layers import needed
from coordinator.domain.placement.node import Candidate, MeasuredNetwork, Needed
from coordinator.domain.placement.search import anneal, descend
from protocol.ids import NodeAddress
from protocol.job.job import TrainingSpec
from protocol.models.model import ModelShape
from protocol.task import Layers

GAIN = 1.2  # A round must become so much quicker: measured rates vary by a tenth from one hour to the next.
PAYBACK = 3.0  # What is won until the job's end over what the move costs: half of all forecasts are too hopeful.
BENCH = 16  # Free nodes that seats are compared with; among thousands a search finds none of them by chance.
QUICKEST = 128  # Of all free nodes, among which the near ones come first.
# What a look may come to, in times of a stage: a hundredth of a second or two, in which nobody else is answered.
LOOKED = 2_400
LEAST_SWAPS = 48
START_S = 30.0  # Of a worker in its sandbox, until it can fetch anything.
REST_ROUNDS = 5  # After a change; else two plans that are about as good would take turns.

Seat = tuple[int, int]


class Moves(msgspec.Struct, frozen=True):
    """A better seating.

    Attributes:
        seats: seat -> the node that takes it, for seats whose node changes.
        gain: rounds become so many times quicker. ``cost_seconds``: fetching the states, once.
        reason: in words.
    """

    seats: dict[Seat, NodeAddress]
    gain: float
    cost_seconds: float
    reason: str


def reseat(
    shape: ModelShape,
    training: TrainingSpec,
    layers: Sequence[Layers],
    holders: Mapping[Seat, Candidate],
    free: Sequence[Candidate],
    network: MeasuredNetwork | None,
    rounds_left: int,
    rounds_since: int,
    options: PlanOptions = DEFAULT,
) -> Moves | None:
    """Seats to change before the next round; None where the plan stays as it is.

    Args:
        layers: the job's cut. ``holders``: seat (stage, replica) -> its node, every seat of each replica.
        free: nodes without a seat.
        rounds_left: of the job. ``rounds_since``: rounds since seats last changed.
    """
    if rounds_since < REST_ROUNDS or rounds_left < 1 or not holders:
        return None
    replicas = sorted({replica for _, replica in holders})
    stages = len(layers)
    seated = [holders[stage, replica] for stage in range(stages) for replica in replicas]
    bench = _bench(free, seated, needed(shape, training, layers), network)
    problem = PlacementProblem(
        shape, training, survey([*seated, *bench], network), options.load or load_of(shape, training)
    )
    counts = tuple(part.last - part.first for part in layers)
    before, after = (_flow(problem, counts, len(replicas), len(seated) + len(bench)) for _ in range(2))
    if before.counts is None:
        return None  # Who holds a stage has less memory than it says it needs: that is not for a search to judge.
    swaps = min(options.effort, max(LEAST_SWAPS, LOOKED // (stages + len(replicas))))
    anneal(after, _relieve(after, swaps), options.seed)
    if len(after.places) <= DESCENDED:
        descend(after, passes=2)
    _settle(after)
    gain = before.cost() / after.cost()
    changed = {
        (place // len(replicas), replicas[place % len(replicas)]): problem.fleet.nodes[node]
        for place, node in enumerate(after.places[: after.seats])
        if node != place
    }
    if gain < GAIN or not changed:
        return None
    cost = _fetching(problem, layers, after, len(replicas))
    timed = estimate(problem.fleet, problem.load, counts, before.rows)
    won = timed.seconds * (1 - 1 / gain) * rounds_left
    if won < PAYBACK * cost:
        return None
    limit = explain.limit(problem.fleet, problem.load, counts, before.rows, timed)
    return Moves(
        seats={seat: candidate.node for seat, candidate in changed.items()},
        gain=gain,
        cost_seconds=cost,
        reason=f"rounds would be {gain:.2g} times as quick with {len(changed)} seats changed: now they are limited by {limit}",
    )


def _flow(problem: PlacementProblem, counts: tuple[int, ...], replicas: int, count: int) -> RoundFlow:
    return RoundFlow(problem.fleet, problem.load, problem.caps(len(counts)), replicas, range(count), counts)


def _bench(
    free: Sequence[Candidate], seated: Sequence[Candidate], memory: Needed, network: MeasuredNetwork | None
) -> list[Candidate]:
    """Free nodes that could make rounds quicker: of those that hold a stage the quickest, near ones first, and the best lines."""
    stages = range(len(memory["main"]))
    least = {False: min(stages, key=memory["main"].__getitem__), True: min(stages, key=memory["card"].__getitem__)}
    fitting = [c for c in free if c.holds(memory, least[c.card])]
    if len(fitting) <= BENCH or network is None:
        return nsmallest(BENCH, fitting, key=lambda c: (-c.flops, c.node))
    regions = {network.nearest(candidate.node) for candidate in seated}
    quick = nsmallest(QUICKEST, fitting, key=lambda c: (-c.flops, c.node))
    near = sorted(quick, key=lambda c: (network.nearest(c.node) not in regions, -c.flops, c.node))
    lines = {c.node: network.line(c.node) for c in fitting}
    wide = nsmallest(BENCH, fitting, key=lambda c: (-_rate(lines[c.node]), -c.flops, c.node))
    both = [one for pair in zip(near[:BENCH], wide, strict=True) for one in pair]
    return list({candidate.node: candidate for candidate in both}.values())[:BENCH]


def _rate(line: Line | None) -> float:
    """Of the slower direction, as far as it was measured; 0: neither was."""
    known = [] if line is None else [rate for rate in (line.up, line.down) if rate is not None]
    return min(known, default=0.0)


def _relieve(after: RoundFlow, swaps: int) -> int:
    """Give what bounds the plan to the best of the bench, for as long as one helps; how many swaps may still be tried."""
    best = after.cost()
    while swaps > 0:
        found = None
        for seat in after.weak():
            for place in range(after.seats, len(after.places)):
                cost, swaps = after.swap(seat, place), swaps - 1
                after.swap(seat, place)
                if cost < best * (1 - 1e-9):
                    best, found = cost, (seat, place)
        if found is None:
            break
        after.swap(*found)
    return max(0, swaps)


def _settle(after: RoundFlow) -> None:
    """Put back whoever can sit where he sat for the same cost; a node's index is the place that it came from."""
    best, moved = after.cost(), True
    while moved:
        moved = False
        for place in range(after.seats):
            at = after.places.index(place)
            if at == place:
                continue
            cost = after.swap(place, at)
            if cost <= best * (1 + 1e-9):
                best, moved = min(best, cost), True
            else:
                after.swap(place, at)


def _fetching(problem: PlacementProblem, layers: Sequence[Layers], after: RoundFlow, replicas: int) -> float:
    """Seconds until the last node that moves has begun and has its stage's state: anchor and outer momentum."""
    found = [
        _state_bytes(problem.shape, layers, place // replicas) / problem.fleet.down[node]
        for place, node in enumerate(after.places[: after.seats])
        if node != place
    ]
    return START_S + max(found, default=0.0)


def _state_bytes(shape: ModelShape, layers: Sequence[Layers], stage: int) -> float:
    """Bytes of a stage's checkpoint: two float32 a parameter."""
    part = layers[stage]
    return 8.0 * shape.stage_parameters(part.first, part.last, stage == 0, stage == len(layers) - 1)
