"""Whether nodes should change seats in mid-run, because speeds are no longer what the plan was made for.

The cut stays: checkpoints belong to it. Seats may change at the boundary of a round, where a node that takes another stage
fetches that stage's state. So a move must win back what it costs, several times over, and a plan that has just been changed
rests.
"""

from collections.abc import Mapping, Sequence

import msgspec

from coordinator.domain.placement import explain
from coordinator.domain.placement.choose import DEFAULT, DESCENDED, PlacementProblem, PlanOptions
from coordinator.domain.placement.cost import estimate, load_of
from coordinator.domain.placement.fleet import survey
from coordinator.domain.placement.flow import RoundFlow
from coordinator.domain.placement.node import Candidate, MeasuredNetwork
from coordinator.domain.placement.search import anneal, descend
from protocol.ids import NodeAddress
from protocol.job.job import TrainingSpec
from protocol.models.model import ModelShape
from protocol.task import Layers

GAIN = 1.2  # A round must become so much quicker: measured rates vary by a tenth from one hour to the next.
PAYBACK = 3.0  # What is won until the job's end over what the move costs: half of all forecasts are too hopeful.
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
    problem = PlacementProblem(
        shape, training, survey([*seated, *free], network), options.load or load_of(shape, training)
    )
    counts = tuple(part.last - part.first for part in layers)
    before, after = (_flow(problem, counts, len(replicas), len(seated) + len(free)) for _ in range(2))
    if before.counts is None:
        return None  # Who holds a stage has less memory than it says it needs: that is not for a search to judge.
    anneal(after, options.effort, options.seed)
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
