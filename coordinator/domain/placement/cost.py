"""How long a plan's steps and rounds take: computing, links, their latency, and the exchange at the end of a round.

A replica's stages work at once (1F1B), so once its pipeline is full a micro-batch leaves every *beat*, which is the largest of

- a stage's computing, one micro-batch forward and backward;
- a micro-batch's way over a link, forward or backward, and what one node's line sends, or receives, for it in all;
- a loop: the time from a stage's forward pass to its backward pass, divided by the micro-batches that the stage may have under
  way, ``1 + (stages - stage - 1) * (1 + ahead)``. This is where latency counts.

A step is the first micro-batch's whole loop and a beat for each other one. A round is ``period`` steps and the exchange: every
node sends its stage's pseudo-gradient to the stage's other replicas.

Source: PipeDream-Flush, arXiv 2006.09503, section 2.2 (1F1B); DiLoCo, arXiv 2311.08105 (rounds). The formula is held against a
discrete-event simulation of the schedule in ``tests/coordinator/planner/test_plan_cost.py``.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from coordinator.domain.placement.fleet import Fleet
from protocol.job.job import DGC_DENSITY, SPARSE_DENSITY, TOGETHER, TrainingSpec
from protocol.job.sharding import SHARDED_FROM, sharded_from
from protocol.job.updates import UPDATES
from protocol.models.boundary_bytes import boundary_bytes, step_cost
from protocol.models.model import ModelShape
from protocol.task import Layers

COMPUTE_SHARE = 0.75  # Of its measured speed; the measurement is the quickest step of a small model on an idle machine.
FLOAT32 = 4.0
STEP_BYTES: Mapping[str, float] = {"gradients": 0.5 + 2 / 256, "demo": FLOAT32 / 421}
"""Of a gradient that is exchanged in every step; demo's is 421 times less than float32, as measured."""
DGC_ENTRY_BYTES = 5.0  # A value and the distance to the last one.
INDEX_BYTES = 1.5  # Where in its chunk of 4,096 a value stands that a sparse method sends.


class Load(msgspec.Struct, frozen=True):
    """What a job asks of machines and lines.

    Attributes:
        layers: of the model.
        layer_operations, head_operations: of a micro-batch, forward and backward.
        forward_bytes, backward_bytes: of a micro-batch over one boundary.
        layer_bytes, embedding_bytes, head_bytes: of a pseudo-gradient.
        scalar_bytes: of a pseudo-gradient, on average; 0: not known.
        micro_batches: in a step. ``tokens``: in a step of one replica. ``period``: steps in a round.
        ahead: micro-batches that a stage may have under way beyond 1F1B's own, for each stage that follows.
        fixed_time: rounds end by the clock, and a slow replica has made fewer steps; else all make as many.
        round_seconds: of such rounds; 0: as long as the mean replica needs for ``period`` steps.
        overlap: the exchange is hidden behind the next round's steps.
        together: replicas exchange in every step; that is counted with the round's exchange.
        sharded: from ``SHARDED_FROM`` replicas on each averages its part and sends it back, instead of all to every other.
    """

    layers: int
    layer_operations: float
    head_operations: float
    forward_bytes: float
    backward_bytes: float
    layer_bytes: float
    embedding_bytes: float
    head_bytes: float
    micro_batches: int
    tokens: float
    period: int
    ahead: int = 0
    fixed_time: bool = False
    overlap: bool = False
    sharded: bool = False
    scalar_bytes: float = 0.0
    together: bool = False
    round_seconds: float = 0.0

    def stage_bytes(self, counts: Sequence[int], stage: int) -> float:
        """Bytes of a stage's pseudo-gradient."""
        edges = self.embedding_bytes * (stage == 0) + self.head_bytes * (stage == len(counts) - 1)
        return counts[stage] * self.layer_bytes + edges


def load_of(shape: ModelShape, training: TrainingSpec) -> Load:
    """The load of a job as its document has it."""
    tokens = training.batch * training.sequence
    micro = tokens / training.micro_batches
    scalar = UPDATES[training.pseudo_gradient].value_bytes
    if training.outer == "sparseloco":
        scalar = (training.density or SPARSE_DENSITY) * (scalar + INDEX_BYTES)
    if training.outer in TOGETHER:
        density = training.density or DGC_DENSITY
        scalar += training.inner_steps * STEP_BYTES.get(training.outer, density * DGC_ENTRY_BYTES)
    forward, backward = boundary_bytes(shape, training, int(micro))
    return Load(
        layers=shape.layers,
        layer_operations=step_cost(training)
        * micro
        * shape.stage_operations(0, 1, False, training.sequence)
        / COMPUTE_SHARE,
        head_operations=step_cost(training, recomputes=False)
        * micro
        * shape.stage_operations(0, 0, True, training.sequence)
        / COMPUTE_SHARE,
        forward_bytes=float(forward),
        backward_bytes=float(backward),
        layer_bytes=scalar * shape.layer_parameters,
        embedding_bytes=scalar * shape.embedding_parameters,
        head_bytes=scalar * shape.head_parameters,
        micro_batches=training.micro_batches,
        tokens=float(tokens),
        period=training.inner_steps,
        ahead=training.lookahead,
        overlap=training.overlap > 0,
        scalar_bytes=scalar,
        together=training.outer in TOGETHER,
        sharded=sharded_from(training) > 0,
        fixed_time=training.round_seconds is not None,
        round_seconds=training.round_seconds or 0.0,
    )


def operations_of(shape: ModelShape, training: TrainingSpec, layers: Layers, is_last: bool, tokens: int) -> float:
    """Operations that a stage does for so many tokens, forward and backward, as ``load_of`` counts them."""
    own = step_cost(training) * shape.stage_operations(layers.first, layers.last, False, training.sequence)
    head = step_cost(training, recomputes=False) * shape.stage_operations(0, 0, True, training.sequence)
    return tokens * (own + (head if is_last else 0))


class ReplicaPace(msgspec.Struct, frozen=True):
    """One replica's times, all in seconds of a micro-batch, by stage or by boundary; ``loop`` is already divided."""

    compute: list[float]
    forward: list[float]
    backward: list[float]
    up: list[float]
    down: list[float]
    loop: list[float]
    beat: float
    step: float


def pace(fleet: Fleet, load: Load, counts: Sequence[int], nodes: Sequence[int]) -> ReplicaPace:
    """Times of the replica whose stages stand on ``nodes``, with ``counts`` layers each."""
    last = len(nodes) - 1
    speed, byte, rtt, up, down = fleet.speed, fleet.byte, fleet.rtt, fleet.up, fleet.down
    there, back = load.forward_bytes, load.backward_bytes
    compute = [count * load.layer_operations / speed[node] for count, node in zip(counts, nodes, strict=True)]
    compute[last] += load.head_operations / speed[nodes[last]]
    forward = [there * byte[a][b] for a, b in pairwise(nodes)]
    backward = [back * byte[b][a] for a, b in pairwise(nodes)]
    sends = [there * (stage < last) + back * (stage > 0) for stage in range(last + 1)]
    gets = [there * (stage > 0) + back * (stage < last) for stage in range(last + 1)]
    ups = [size / up[node] for size, node in zip(sends, nodes, strict=True)]
    downs = [size / down[node] for size, node in zip(gets, nodes, strict=True)]
    loop, loops = compute[last], [0.0] * (last + 1)
    beat = max(max(compute), max(ups), max(downs), max(forward, default=0.0), max(backward, default=0.0))
    for stage in range(last, -1, -1):
        if stage < last:
            loop += compute[stage] + forward[stage] + backward[stage] + rtt[nodes[stage]][nodes[stage + 1]]
        depth = 1 + (last - stage) * (1 + load.ahead)
        if load.micro_batches > depth:
            loops[stage] = loop / depth
    beat = max(beat, max(loops))
    return ReplicaPace(compute, forward, backward, ups, downs, loops, beat, loop + (load.micro_batches - 1) * beat)


class PlannedRound(msgspec.Struct, frozen=True):
    """A plan's round.

    Attributes:
        steps: seconds of an inner step by replica.
        stepping: seconds that the round's steps take. ``exchange``: seconds of the exchange.
        seconds: of the round. ``rate``: tokens a second of all replicas together.
        busy: share of the round in which the average node computes.
    """

    steps: list[float]
    stepping: float
    exchange: float
    seconds: float
    rate: float
    busy: float


def estimate(fleet: Fleet, load: Load, counts: Sequence[int], rows: Sequence[Sequence[int]]) -> PlannedRound:
    """A round of the plan whose replicas stand on ``rows``."""
    paces = [pace(fleet, load, counts, nodes) for nodes in rows]
    steps = [found.step for found in paces]
    stepping, made = stepping_of(load, steps)
    exchange = max(
        (
            exchange_of(fleet, load, counts, stage, nodes[stage], len(rows))
            for nodes in rows
            for stage in range(len(counts))
        ),
        default=0.0,
    )
    seconds = joined(load, stepping, exchange, max(max(*found.up, *found.down) / found.beat for found in paces))
    work = sum(sum(p.compute) * load.micro_batches * m for p, m in zip(paces, made, strict=True))
    return PlannedRound(
        steps, stepping, exchange, seconds, sum(made) * load.tokens / seconds, work / seconds / len(counts) / len(rows)
    )


def stepping_of(load: Load, steps: Sequence[float]) -> tuple[float, list[float]]:
    """Seconds that a round steps, and the steps that each replica makes in them."""
    if load.round_seconds > 0:
        made = [max(1.0, min(float(load.period), load.round_seconds / step)) for step in steps]
        return max(count * step for count, step in zip(made, steps, strict=True)), made
    if load.fixed_time:
        seconds = load.period * len(steps) / sum([1 / step for step in steps])
        return seconds, [seconds / step for step in steps]
    return load.period * max(steps), [float(load.period)] * len(steps)


def exchange_of(fleet: Fleet, load: Load, counts: Sequence[int], stage: int, node: int, replicas: int) -> float:
    """Seconds that one node sends, and receives, the pseudo-gradients of its stage."""
    by_shards = load.sharded and replicas >= SHARDED_FROM
    size = load.stage_bytes(counts, stage) * (replicas - 1) * (2 / replicas if by_shards else 1)
    return size / min(fleet.up[node], fleet.down[node])


def joined(load: Load, stepping: float, exchange: float, line: float) -> float:
    """Seconds of a round from its two parts: one after the other, or at once over lines that activations fill to ``line``."""
    if not load.overlap:
        return stepping + exchange
    return max(stepping, exchange + stepping * line)
