"""What crosses between the stages of a plan, where a job leaves it open: ``choose_crossing`` on what was measured."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from coordinator.domain.placement.cost import load_of, pace
from coordinator.domain.placement.fleet import Fleet, survey
from coordinator.domain.placement.layers import FLOAT32, needs
from coordinator.domain.placement.node import Candidate, MeasuredNetwork, Placement
from protocol.ids import NodeAddress
from protocol.job.job import CrossingPlan, TrainingSpec
from protocol.models.boundary_bytes import Edge, PipelineChoice, choose_crossing
from protocol.models.config_values import ModelConfigError
from protocol.models.model import ModelShape


class Chosen(msgspec.Struct, frozen=True):
    """How a job's stages talk, and why in words."""

    crossing: CrossingPlan
    reason: str


def settle_crossing(
    shape: ModelShape,
    training: TrainingSpec,
    found: Placement,
    candidates: Mapping[NodeAddress, Candidate],
    network: MeasuredNetwork | None = None,
) -> Chosen | None:
    """Codecs, micro-batches, lookahead and recomputation for a plan; None where the job has named its codec itself.

    Args:
        candidates: by node, all those who have a seat. ``network``: what was measured of lines and ways; None: nothing.
    """
    if training.activations != "auto":
        return None
    replicas = 1 + max(replica for _, replica in found.seats)
    seats = [[candidates[found.seats[s, r]] for s in range(len(found.layers))] for r in range(replicas)]
    edge = edge_of(shape, training, [part.last - part.first for part in found.layers], seats, network)
    try:
        choice = choose_crossing(shape, training, edge)
    except (
        ModelConfigError
    ) as error:  # The rule counts the first stage's depth on the smallest machine; the plan did fit.
        kept = msgspec.structs.replace(training, activations="int8")
        choice = PipelineChoice(kept, 0.0, f"int8, and micro-batches as the document has them: {error}")
    return Chosen(CrossingPlan.of(choice.training), f"between stages {choice.reason}")


def edge_of(
    shape: ModelShape,
    training: TrainingSpec,
    counts: Sequence[int],
    seats: Sequence[Sequence[Candidate]],
    network: MeasuredNetwork | None = None,
) -> Edge:
    """The slowest boundary and the slowest stage of all replicas; memory where least of a batch's tokens fits.

    Args:
        counts: layers by stage. ``seats``: by replica the nodes of its stages, as many as there are counts.
    """
    fleet = survey([candidate for row in seats for candidate in row], network)
    stages = len(counts)
    rows = [range(at, at + stages) for at in range(0, stages * len(seats), stages)]
    load = load_of(shape, training)
    rooms = [
        _room(shape, training, counts, stage, fleet.memory[row[stage]], fleet.cards[row[stage]])
        for row in rows
        for stage in range(stages)
    ]
    room, token_bytes, token_inputs = min(rooms, key=lambda each: each[0] / each[1])
    ways = [(a, b) for row in rows for a, b in pairwise(row)]
    return Edge(
        stages=stages,
        stage_seconds=load.micro_batches * max(max(pace(fleet, load, counts, row).compute) for row in rows),
        latency=max((fleet.rtt[a][b] / 2 for a, b in ways), default=0.0),
        bits_per_second=8
        * min((_rate(fleet, row, at) for row in rows for at in range(stages - 1)), default=float("inf")),
        token_bytes=token_bytes,
        token_inputs=token_inputs,
        room=room,
    )


def _rate(fleet: Fleet, row: Sequence[int], at: int) -> float:
    """Bytes a second of one direction over a boundary; a stage between two others sends both ways over its one line."""
    one, other, last = row[at], row[at + 1], len(row) - 1
    shared = [2 if 0 < stage < last else 1 for stage in (at, at + 1)]
    ends = [
        min(fleet.up[node], fleet.down[node]) / share
        for node, share in zip((one, other), shared, strict=True)
        if share > 1
    ]
    return min(1 / fleet.byte[one][other], 1 / fleet.byte[other][one], *ends)


def _room(
    shape: ModelShape, training: TrainingSpec, counts: Sequence[int], stage: int, memory: int, card: bool
) -> tuple[int, int, int]:
    """Bytes that are left for tokens in flight, bytes of a token, and bytes of its layers' inputs alone."""
    none, one = (needs(shape, training, counts, stage, tokens, card) for tokens in (0, 1))
    return max(0, memory - none), one - none, FLOAT32 * counts[stage] * shape.hidden
