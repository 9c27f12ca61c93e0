"""Which node sits where: the shape of the network a job needs, the cut of its layers, and who fills a seat.

Memory, measured speed, measured links. Stages are cut in proportion to the speed of the slowest node that will hold them;
replicas of a stage go to distinct owners where that is possible; neighbours in a pipeline get the best links that were measured.
"""

from collections.abc import Mapping, Sequence

import msgspec

from coordinator.domain.pipeline import Cost, arrange
from transport.wire.ids import NodeAddress
from transport.wire.job import TrainingSpec
from transport.wire.model import ModelShape
from transport.wire.task import MAX_STAGES, Layers

MEGABYTE = 1 << 20
BASE_MEMORY = 600 * MEGABYTE  # An idle trainer with torch loaded takes 450-550 MB.
MIN_ROUNDS = 4  # More replicas than leave this many outer rounds average models that have hardly learned.
MAX_OPEN_REPLICAS = 64  # Where the scheduler chooses; a document may ask for more.


class Candidate(msgspec.Struct, frozen=True):
    """A node that may take a seat. ``owner``: where it is paid."""

    node: NodeAddress
    owner: NodeAddress
    memory_mb: int
    flops: float
    env_class: str


class Placement(msgspec.Struct, frozen=True):
    """``layers`` by stage; ``seats``: (stage, replica) -> node."""

    layers: tuple[Layers, ...]
    seats: dict[tuple[int, int], NodeAddress]


class NoPlacementError(Exception):
    """The network cannot hold the job; the text says what is missing."""


def stage_memory(shape: ModelShape, training: TrainingSpec, cut: Sequence[Layers], stage: int) -> int:
    """Bytes that a worker of the stage needs."""
    last = stage == len(cut) - 1
    part = cut[stage]
    parameters = shape.stage_parameters(part.first, part.last, stage == 0, last)
    micro = -(-training.batch // training.micro_batches)
    in_flight = min(training.micro_batches, len(cut) - stage)  # 1F1B keeps as many as there are stages behind.
    tokens = micro * in_flight * training.sequence
    return BASE_MEMORY + shape.stage_memory_bytes(parameters, last, part.last - part.first, tokens)


def cut_layers(
    shape: ModelShape, training: TrainingSpec, speeds: Sequence[float], memories: Sequence[int]
) -> tuple[Layers, ...]:
    """Cut the layers so that the slowest stage is as quick as can be.

    Args:
        speeds: of each stage, any unit.
        memories: bytes that each stage has.
    Raises:
        NoPlacementError: more stages than layers, or some stage's memory cannot hold even its smallest part.
    """
    stages = len(speeds)
    if stages > shape.layers:
        raise NoPlacementError(f"{stages} stages for {shape.layers} layers: choose at most {shape.layers} stages")
    total = float(shape.stage_operations(0, shape.layers, True, training.sequence))
    low, high = 0.0, total / min(speeds)
    best = _fill(shape, training, speeds, memories, high)
    if best is None:
        raise NoPlacementError(_too_large(shape, training, memories))
    for _ in range(50):  # Halves the bracket each time: below a float's resolution after that.
        middle = (low + high) / 2
        found = _fill(shape, training, speeds, memories, middle)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    return best


def choose(
    shape: ModelShape,
    training: TrainingSpec,
    candidates: Sequence[Candidate],
    stages: int | None,
    replicas: int | None,
    cost: Cost | None = None,
) -> Placement:
    """Shape and seats for a job on these nodes: as few stages as memory allows, then as many replicas as are useful.

    Args:
        cost: seconds that a micro-batch takes on the link of two nodes, as far as it is measured; None: not at all.
    Raises:
        NoPlacementError: too few nodes, or too little memory for any number of stages.
    """
    needed = (stages or 1) * (replicas or 1)
    if len(candidates) < needed:
        raise NoPlacementError(
            f"the job asks for {stages or 1} x {replicas or 1} = {needed} nodes, and {len(candidates)} are free: "
            "ask for fewer, or wait until more nodes have joined"
        )
    most = min(shape.layers, MAX_STAGES, len(candidates) // (replicas or 1))
    reason = ""
    for count in [stages] if stages is not None else range(1, most + 1):
        width = replicas or min(len(candidates) // count, _useful_replicas(training))
        try:
            return _place(shape, training, candidates, count, width, cost)
        except NoPlacementError as error:
            reason = str(error)
    raise NoPlacementError(reason)


def fill(
    missing: Sequence[tuple[int, int]],
    holders: Mapping[tuple[int, int], Candidate],
    free: Sequence[Candidate],
    memory_needed: Sequence[int],
) -> dict[tuple[int, int], NodeAddress]:
    """Give missing seats to free nodes: lowest replicas first, quickest nodes first, owners that the stage has not yet.

    Args:
        missing: seats (stage, replica) that nobody holds.
        holders: who holds the other seats.
        free: nodes without a seat.
        memory_needed: bytes by stage.
    Returns:
        seat -> node for those that could be filled.
    """
    left = sorted(free, key=lambda c: (-c.flops, c.node))
    owners: dict[int, set[str]] = {}
    for (stage, _), holder in holders.items():
        owners.setdefault(stage, set()).add(holder.owner)
    filled: dict[tuple[int, int], NodeAddress] = {}
    for stage, replica in sorted(missing, key=lambda seat: (seat[1], seat[0])):
        fitting = [c for c in left if c.memory_mb * MEGABYTE >= memory_needed[stage]]
        if not fitting:
            continue
        taken = owners.setdefault(stage, set())
        chosen = next((c for c in fitting if c.owner not in taken), fitting[0])
        taken.add(chosen.owner)
        left.remove(chosen)
        filled[stage, replica] = chosen.node
    return filled


def moves(
    missing: Sequence[tuple[int, int]], held: Sequence[tuple[int, int]], fits: Mapping[int, frozenset[tuple[int, int]]]
) -> dict[tuple[int, int], tuple[int, int]]:
    """Complete lower broken replicas with members of higher broken ones, where no free node is left.

    Args:
        missing: seats that stay empty.
        held: seats that are taken.
        fits: stage -> held seats whose node has the memory for it.
    Returns:
        empty seat -> the seat whose holder moves there; only such moves as make a replica whole.
    """
    broken = sorted({replica for _, replica in missing})
    spent: set[tuple[int, int]] = set()
    moved: dict[tuple[int, int], tuple[int, int]] = {}
    for replica in broken:
        if any(seat[1] == replica for seat in spent):
            continue
        trial: dict[tuple[int, int], tuple[int, int]] = {}
        for seat in (s for s in missing if s[1] == replica):
            donors = [
                d for d in held
                if d[1] > replica and d[1] in broken and d in fits[seat[0]] and d not in spent and d not in trial.values()
            ]  # fmt: skip
            if not donors:
                break
            trial[seat] = max(donors, key=lambda d: (d[1], d[0] == seat[0]))
        else:
            moved |= trial
            spent |= set(trial.values())
    return moved


def _place(
    shape: ModelShape,
    training: TrainingSpec,
    candidates: Sequence[Candidate],
    stages: int,
    replicas: int,
    cost: Cost | None,
) -> Placement:
    """Quickest nodes, similar speeds on the same stage, the best links between neighbours."""
    chosen = sorted(candidates, key=lambda c: (-c.flops, c.node))[: stages * replicas]
    groups = _distinct_owners(chosen, stages, replicas)
    if cost is not None:
        by_node = {candidate.node: candidate for candidate in chosen}
        linked = arrange([[c.node for c in group] for group in groups], cost)
        try:
            return _cut(shape, training, [[by_node[node] for node in group] for group in linked])
        except NoPlacementError:
            pass  # In this order some stage lacks the memory for its part: the order by speed may do.
    return _cut(shape, training, groups)


def _cut(shape: ModelShape, training: TrainingSpec, groups: Sequence[Sequence[Candidate]]) -> Placement:
    speeds = [max(1.0, min(c.flops for c in group)) for group in groups]
    memories = [min(c.memory_mb for c in group) * MEGABYTE for group in groups]
    layers = cut_layers(shape, training, speeds, memories)
    seats = {(s, p): candidate.node for s, group in enumerate(groups) for p, candidate in enumerate(group)}
    return Placement(layers, seats)


def _distinct_owners(chosen: Sequence[Candidate], stages: int, replicas: int) -> list[list[Candidate]]:
    """Groups of ``replicas`` nodes, one a stage, in order of speed, with few repeated owners in a group."""
    left = list(chosen)
    groups: list[list[Candidate]] = []
    for _ in range(stages):
        group: list[Candidate] = []
        while len(group) < replicas:
            owners = {c.owner for c in group}
            candidate = next((c for c in left if c.owner not in owners), left[0])
            left.remove(candidate)
            group.append(candidate)
        groups.append(group)
    return groups


def _fill(
    shape: ModelShape, training: TrainingSpec, speeds: Sequence[float], memories: Sequence[int], limit: float
) -> tuple[Layers, ...] | None:
    """Greedily as many layers a stage as fit in ``limit`` time and memory; None if layers are left over."""
    stages, first = len(speeds), 0
    cut: list[Layers] = []
    for stage in range(stages):
        most = shape.layers - (stages - 1 - stage)  # Every stage after this one keeps a layer.
        last = first + 1
        if not _fits(shape, training, stages, stage, first, last, speeds[stage] * limit, memories[stage]):
            return None
        while last < most and _fits(
            shape, training, stages, stage, first, last + 1, speeds[stage] * limit, memories[stage]
        ):
            last += 1
        cut.append(Layers(first, last))
        first = last
    return tuple(cut) if first == shape.layers else None


def _fits(
    shape: ModelShape, training: TrainingSpec, stages: int, stage: int, first: int, last: int, work: float, memory: int
) -> bool:
    is_last = stage == stages - 1
    if shape.stage_operations(first, last, is_last, training.sequence) > work * (1 + 1e-9):
        return False
    cut = [Layers(0, 1)] * stage + [Layers(first, last)] + [Layers(0, 1)] * (stages - 1 - stage)
    return stage_memory(shape, training, cut, stage) <= memory


def _useful_replicas(training: TrainingSpec) -> int:
    tokens_a_round = training.batch * training.sequence * training.inner_steps
    return max(1, min(MAX_OPEN_REPLICAS, training.tokens // (tokens_a_round * MIN_ROUNDS)))


def _too_large(shape: ModelShape, training: TrainingSpec, memories: Sequence[int]) -> str:
    whole = stage_memory(shape, training, [Layers(0, shape.layers)], 0) // MEGABYTE
    have = sum(memories) // MEGABYTE
    return (
        f"the model needs about {whole:,} MB in training, and the {len(memories)} nodes that would share it have "
        f"{have:,} MB: choose a smaller model, batch or sequence, or wait until more nodes have joined"
    )
