"""The plan of a job: how many stages and replicas, who sits where, and why.

Every shape that the nodes allow is tried with a start that costs microseconds; the few best are searched.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from coordinator.domain.pipeline import arrange
from coordinator.domain.placement import explain
from coordinator.domain.placement.chains import tighten
from coordinator.domain.placement.cost import Load, estimate, load_of
from coordinator.domain.placement.fleet import MAX_PAIRED, Fleet, survey
from coordinator.domain.placement.flow import INFEASIBLE, RoundFlow
from coordinator.domain.placement.layers import most_layers, ranges, stage_memory, too_large
from coordinator.domain.placement.node import MEGABYTE, Candidate, MeasuredNetwork, NoPlacementError, Placement
from coordinator.domain.placement.regions import Layouts
from coordinator.domain.placement.search import anneal, descend
from coordinator.domain.placement.start import pipelines_inside
from coordinator.domain.placement.tiers import least_bottleneck
from protocol.ids import NodeAddress
from protocol.job.job import TrainingSpec
from protocol.models.model import ModelShape
from protocol.task import MAX_STAGES, Layers

MIN_ROUNDS = 4  # More replicas than leave this many outer rounds average models that have hardly learned.
MAX_OPEN_REPLICAS = 64  # Where the scheduler chooses; a document may ask for more.
# Swaps tried for a plan: a tenth of a second at 64 nodes, since the coordinator plans between two messages.
EFFORT = 600
ALL_WIDTHS = 16  # Numbers of replicas up to which each one is tried; of more, some between one and all.
FULL_EFFORT = 256  # Seats up to which the whole effort is made.
SAME_STAGES = 4  # Shapes with one number of stages that are tried.
TRIED, TRIED_SHARE = 40, 4  # Shapes that are searched for a quarter of the effort, of those whose starts look best,
SEARCHED = 4  # and in full, of those that then look best.
SIMPLER = 0.03  # More stages must be worth so much: each is one more machine whose loss breaks the replica.
STAGE_STEPS = (*range(1, 13), 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)  # Shapes beside these hardly differ.
MAX_WEIGHED = 16  # Nodes without a seat whose cost to the others is worked out; of more, the last one's reason stands.
FILLED = 20  # Seats filled anew for a beat, for each swap of the effort: a tenth of a second more at 64 nodes.
KNOWN = 64  # Plans that are kept, to be found again.
DESCENDED = 12  # Seats and bench up to which every swap is tried: then nothing is left to chance.


class PlanOptions(msgspec.Struct, frozen=True):
    """How a plan is looked for.

    Attributes:
        seed: of the search. ``effort``: swaps that it tries for a shape.
        load: what the job asks of machines and lines, where that is not what its document says.
        most_replicas: where the document leaves their number open.
    """

    seed: int = 0
    effort: int = EFFORT
    load: Load | None = None
    most_replicas: int = MAX_OPEN_REPLICAS


DEFAULT = PlanOptions()


class PlacementProblem(msgspec.Struct, frozen=True):
    """What is placed on whom. ``far``: seconds of a micro-batch there and back over each link, where pairs are few enough."""

    shape: ModelShape
    training: TrainingSpec
    fleet: Fleet
    load: Load
    far: Sequence[Sequence[float]] = ()

    def caps(self, stages: int) -> list[list[int]]:
        """Layers that each node can hold, by stage and node."""
        besides = [None if node.beside_mb is None else node.beside_mb * MEGABYTE for node in self.fleet.nodes]
        kinds = list(zip(self.fleet.memory, self.fleet.cards, besides, strict=True))
        known = {
            (stage, kind): most_layers(self.shape, self.training, stages, stage, *kind)
            for stage in range(stages)
            for kind in set(kinds)
        }
        return [[known[stage, kind] for kind in kinds] for stage in range(stages)]

    def layouts(self, stages: int) -> Layouts:
        """Pipelines of so many stages within regions."""
        share = -(-self.shape.layers // stages)
        middle = [Layers(0, share)] * stages
        enough = stage_memory(self.shape, self.training, middle, stages // 2, all(self.fleet.cards))
        return Layouts(self.fleet, self.load, stages, enough)


def choose(
    shape: ModelShape,
    training: TrainingSpec,
    candidates: Sequence[Candidate],
    stages: int | None,
    replicas: int | None,
    network: MeasuredNetwork | None = None,
    options: PlanOptions = DEFAULT,
) -> Placement:
    """Shape and seats for a job on these nodes: the shortest time for the job's tokens that memory and owners allow.

    Args:
        stages, replicas: None leaves the choice open.
        network: what was measured of lines and ways; None: nothing.
    Raises:
        NoPlacementError: too few nodes, or too little memory for any number of stages.
    """
    _enough(len(candidates), stages, replicas)
    if stages is not None and stages > shape.layers:
        raise NoPlacementError(f"{stages} stages for {shape.layers} layers: choose at most {shape.layers} stages")
    pool = sorted(candidates, key=lambda c: (-c.flops, c.node))
    fleet, load = survey(pool, network), options.load or load_of(shape, training)
    problem = PlacementProblem(shape, training, fleet, load, _far(fleet, load) if len(pool) <= MAX_PAIRED else ())
    asked = _Asked(problem, stages, replicas, min(options.most_replicas, _useful_replicas(training)), options)
    found = _plan(asked) if len(pool) > MAX_PAIRED else _known(asked)
    if found is None:
        most = stages or min(shape.layers, MAX_STAGES, len(pool) // (replicas or 1))
        memories = sorted(problem.fleet.memory, reverse=True)[:most]
        told = sorted((node.beside_mb for node in pool if node.beside_mb is not None), reverse=True)
        beside = sum(told[:most]) * MEGABYTE if len(told) == len(pool) else None
        raise NoPlacementError(too_large(shape, training, memories, all(fleet.cards), beside))
    return found


class _Asked(msgspec.Struct, frozen=True):
    """What a plan is looked for with. ``useful``: the most replicas, where their number is open."""

    problem: PlacementProblem
    stages: int | None
    replicas: int | None
    useful: int
    options: PlanOptions


_PLANS: OrderedDict[bytes, Placement | None] = OrderedDict()


def _known(asked: _Asked) -> Placement | None:
    """A job is quoted while its form is filled in, when it is made, and planned when it is paid: mostly all alike."""
    said = hashlib.sha256(msgspec.msgpack.encode(asked)).digest()
    if said not in _PLANS:
        _PLANS[said] = _plan(asked)
        if len(_PLANS) > KNOWN:
            _PLANS.popitem(last=False)
    _PLANS.move_to_end(said)
    return _PLANS[said]


def _plan(asked: _Asked) -> Placement | None:
    shapes = _shapes(asked.problem, asked.stages, asked.replicas, asked.useful)
    found = _search(asked.problem, shapes, asked.options)
    return None if found is None else _placement(asked.problem, found)


def _enough(count: int, stages: int | None, replicas: int | None) -> None:
    needed = (stages or 1) * (replicas or 1)
    if count < needed:
        raise NoPlacementError(
            f"the job asks for {stages or 1} x {replicas or 1} = {needed} nodes, and {count} are free: "
            "ask for fewer, or wait until more nodes have joined"
        )


def _shapes(problem: PlacementProblem, stages: int | None, replicas: int | None, useful: int) -> list[tuple[int, int]]:
    """(stages, replicas) that there are nodes for."""
    count = len(problem.fleet.nodes)
    most = min(problem.shape.layers, MAX_STAGES, count // (replicas or 1))
    found = []
    for width in [stages] if stages is not None else [step for step in STAGE_STEPS if step <= most]:
        if replicas is not None:
            found.append((width, replicas))
            continue
        full = min(count // width, useful)
        if full <= ALL_WIDTHS:
            some = set(range(1, full + 1))
        elif count <= MAX_PAIRED:
            some = {full, full - 1, *(full * part // 8 for part in range(1, 8))}
        else:
            some = {full, full * 3 // 4, full // 2, full // 4, full // 8, max(1, full // 16)}
        found += [(width, part) for part in sorted(some)]
    return found


def _search(problem: PlacementProblem, shapes: Sequence[tuple[int, int]], options: PlanOptions) -> RoundFlow | None:
    """The best plan over all shapes; None where memory holds none.

    Starts say little about what a search makes of them, so many shapes are searched a little, and the best of those in full.
    """
    tried = _best(_begun(problem, shapes), TRIED)
    for flow in tried:
        anneal(flow, _swaps(flow, options) // TRIED_SHARE, options.seed)
    searched = _best(tried, SEARCHED)
    for flow in searched:
        anneal(flow, _swaps(flow, options), options.seed + 1)
    searched += [tight for flow in searched for tight in _tightened(problem, flow, options)]
    for flow in searched:
        if len(flow.places) <= DESCENDED:
            descend(flow, passes=3)
        if len(flow.places) <= MAX_PAIRED:
            _prefer_quick(flow, problem.fleet)
    found = [flow for flow in searched if flow.counts is not None]
    return min(found, key=_worth) if found else None


def _tightened(problem: PlacementProblem, flow: RoundFlow, options: PlanOptions) -> list[RoundFlow]:
    """The same shape with the least beat that can be found, searched in full; none where that costs no less, or loops decide."""
    if flow.stages < 2 or len(flow.places) > MAX_PAIRED or flow.held_by_a_loop():
        return []
    caps, effort = problem.caps(flow.stages), FILLED * options.effort
    places = tighten(problem.fleet, problem.load, caps, flow.places, flow.replicas, effort, options.seed)
    found = RoundFlow(problem.fleet, problem.load, caps, flow.replicas, places)
    if found.cost() >= flow.cost():
        return []
    anneal(found, _swaps(flow, options), options.seed + 1)
    return [found]


def _swaps(flow: RoundFlow, options: PlanOptions) -> int:
    """Of a plan with many seats fewer: each of its swaps takes longer, and changes less."""
    return options.effort * FULL_EFFORT // max(FULL_EFFORT, flow.seats)


def _begun(problem: PlacementProblem, shapes: Sequence[tuple[int, int]]) -> list[RoundFlow]:
    """For every number of stages, the number of replicas whose start is best, and the next larger ones.

    Of those some node may lack memory at first: a swap or two often mend that, and then the larger plan is the better one.
    """
    begun: list[RoundFlow] = []
    for stages in sorted({stages for stages, _ in shapes}):
        caps, layouts = problem.caps(stages), problem.layouts(stages)
        same = [
            min(
                (
                    RoundFlow(problem.fleet, problem.load, caps, replicas, places)
                    for places in _starts(problem, stages, replicas, layouts)
                ),
                key=RoundFlow.cost,
            )
            for replicas in (r for s, r in shapes if s == stages)
        ]
        best = min(range(len(same)), key=lambda at: _worth(same[at]))
        begun += same[best : best + SAME_STAGES]
    return begun


def _best(flows: Sequence[RoundFlow], count: int) -> list[RoundFlow]:
    return sorted(flows, key=lambda flow: (_worth(flow), flow.stages, flow.replicas))[:count]


def _worth(flow: RoundFlow) -> float:
    """The cost, with what a further machine in each replica must be worth."""
    return flow.cost() * (1 + SIMPLER * (flow.stages > 1))


def _prefer_quick(flow: RoundFlow, fleet: Fleet) -> None:
    """Give seats to quicker nodes of the bench where that costs nothing: the search does not care who has slack, a job does."""
    best = flow.cost()
    for seat in sorted(range(flow.seats), key=lambda place: fleet.speed[flow.places[place]]):
        for place in range(flow.seats, len(flow.places)):
            if fleet.speed[flow.places[place]] <= fleet.speed[flow.places[seat]]:
                continue
            cost = flow.swap(seat, place)
            if cost <= best * (1 + 1e-9):
                best = min(best, cost)
            else:
                flow.swap(seat, place)


def _starts(problem: PlacementProblem, stages: int, replicas: int, layouts: Layouts) -> list[list[int]]:
    """Places by speed, with distinct owners on a stage; by memory; and by region, where ways were measured.

    Args:
        layouts: pipelines within regions; of very many nodes the only starts.
    """
    fleet = problem.fleet
    everyone = list(range(len(fleet.nodes)))
    if len(everyone) > MAX_PAIRED:
        return layouts.places(replicas)
    quick = _grouped(fleet, everyone, stages, replicas)
    large = _grouped(fleet, sorted(everyone, key=lambda node: (-fleet.memory[node], node)), stages, replicas)
    tiers = least_bottleneck(fleet, problem.load, stages, replicas)
    found = [quick, large, tiers, *layouts.places(replicas)]
    if stages > 1 and fleet.measured:
        name = {candidate.node: node for node, candidate in enumerate(fleet.nodes)}
        far = problem.far
        groups = [[fleet.nodes[node].node for node in quick[s * replicas : (s + 1) * replicas]] for s in range(stages)]
        paired = [name[node] for group in arrange(groups, lambda a, b: far[name[a]][name[b]]) for node in group]
        found += [
            paired + quick[stages * replicas :],
            pipelines_inside(far, everyone[: stages * replicas], stages, replicas) + everyone[stages * replicas :],
        ]
        if stages * replicas < len(everyone):
            found.append(pipelines_inside(far, everyone, stages, replicas))
    return found


def _far(fleet: Fleet, load: Load) -> list[list[float]]:
    """Seconds that a micro-batch takes there and back over each link."""
    count = range(len(fleet.nodes))
    there, back = load.forward_bytes, load.backward_bytes
    return [
        [there * fleet.byte[a][b] + back * fleet.byte[b][a] + fleet.rtt[a][b] if a != b else 0.0 for b in count]
        for a in count
    ]


def _grouped(fleet: Fleet, order: Sequence[int], stages: int, replicas: int) -> list[int]:
    """Stage by stage in ``order``, with few repeated owners on a stage; who is left comes behind."""
    left, seated = list(order), list[int]()
    for _ in range(stages):
        owners: set[str] = set()
        for _ in range(replicas):
            window = left[: stages * replicas - len(seated)]
            node = next((n for n in window if fleet.nodes[n].owner not in owners), left[0])
            owners.add(fleet.nodes[node].owner)
            left.remove(node)
            seated.append(node)
    return seated + left


def _useful_replicas(training: TrainingSpec) -> int:
    tokens_a_round = training.batch * training.sequence * training.inner_steps
    return max(1, training.tokens // (tokens_a_round * MIN_ROUNDS))


def _placement(problem: PlacementProblem, flow: RoundFlow) -> Placement:
    assert flow.counts is not None
    fleet, rows = problem.fleet, flow.rows
    timed = estimate(fleet, problem.load, flow.counts, rows)
    return Placement(
        layers=ranges(flow.counts),
        seats={(s, r): fleet.nodes[node].node for r, row in enumerate(rows) for s, node in enumerate(row)},
        step_seconds=max(timed.steps),
        round_seconds=timed.seconds,
        limit=explain.limit(fleet, problem.load, flow.counts, rows, timed),
        left_out=_left_out(problem, flow),
    )


def _left_out(problem: PlacementProblem, flow: RoundFlow) -> dict[NodeAddress, str]:
    """Why nodes have no seat: memory, what they would cost the others, or that their number makes no further replica."""
    fleet, bench = problem.fleet, flow.places[flow.seats :]
    if not bench:
        return {}
    rows, stages = flow.rows, len(flow.rows[0])
    cut = ranges(flow.counts or ())
    least = {
        card: min(stage_memory(problem.shape, problem.training, cut, stage, card) for stage in range(stages))
        for card in (False, True)
    }
    fitting = [node for node in bench if fleet.memory[node] >= least[fleet.cards[node]]]
    able = set(fitting)
    found = {
        fleet.nodes[node].node: (
            f"{fleet.memory[node] // MEGABYTE:,} MB of memory, "
            f"and the smallest of {stages} stages needs {least[fleet.cards[node]] // MEGABYTE:,} MB"
        )
        for node in bench
        if node not in able
    }
    seats = f"{len(rows)} x {stages} seats are all that the plan has"
    reason = seats
    for at, node in enumerate(fitting):
        if at < MAX_WEIGHED:
            others = [other for other in fitting[: stages + MAX_WEIGHED] if other != node]
            reason = _wider(problem, flow, [node, *others]) or seats
        found[fleet.nodes[node].node] = reason
    return found


def _wider(problem: PlacementProblem, flow: RoundFlow, further: Sequence[int]) -> str:
    """Why the first of ``further`` makes no further replica with the next; an empty text where the job has no use for one."""
    stages, replicas = len(flow.rows[0]), len(flow.rows)
    if len(further) < stages:
        return f"{len(further)} left over: a further replica takes {stages} nodes"
    places = [node for s in range(stages) for node in (*flow.places[s * replicas : (s + 1) * replicas], further[s])]
    wide = RoundFlow(problem.fleet, problem.load, problem.caps(stages), replicas + 1, places)
    if wide.counts is None or wide.cost() >= INFEASIBLE:
        return "a further replica would not fit the memory of these nodes with the same cut"
    ratio = wide.cost() / flow.cost()
    return f"with it every token would take {ratio:.2g} times as long" if ratio > 1 else ""
