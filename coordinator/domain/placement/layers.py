"""How many layers each stage gets: in proportion to speed, never more than memory holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from coordinator.domain.placement.node import MEGABYTE, Needed, NoPlacementError
from protocol.audit import KEPT_ROUNDS, state_interval
from protocol.boundary import comparable_across, shares_norm
from protocol.job.job import TOGETHER, TrainingSpec
from protocol.job.updates import UPDATES
from protocol.models.boundary_bytes import most_in_flight, recorded_bytes
from protocol.models.model import LEAN_LOGITS, LEAN_PART, ModelShape
from protocol.task import Layers

FLOAT32 = 4
# A trainer without a stage, and what its allocator keeps (`benchmarks/learning/stage_speed.py`).
BASE_MEMORY = 450 * MEGABYTE
# Beside a card, with torch's libraries for it: measured on an H200.
BASE_BESIDE = 1500 * MEGABYTE
BASE_CARD = 700 * MEGABYTE  # On a graphics card: its context and libraries, 678 on an H200.
# Vectors more, of a card: its gradients in double precision for their norm, when the optimizer's is not there.
_DOUBLES = 1
_READ = 2.5  # Vectors: what of a round that was read back the allocator keeps; counted on workers on processors.
_LEVELS = 0.5  # Vectors: two updates, a byte for each value.
_SENT = 0.15  # Vectors: updates as they came, of two replicas and two rounds.
_EXCHANGE = 3  # Vectors: two replicas' gradients and their mean, where replicas exchange at every step.


@dataclass(frozen=True)
class _Kept:
    """Vectors of four bytes a parameter, by ``TrainingSpec.memory``.

    Attributes:
        stage: parameters, gradients, two moments, which of them decay. ``state``: parameters and two moments; of a round's
            ``first`` one a lean stage keeps the moments alone.
        anchor: of a round. ``shared``: anchor and momentum of outer steps.
        step: what making a contribution, an outer step, or handing over what came of it takes for a moment.
        again: a second stage, on which an audited round is run again up to a state that was not kept.
        away: a card's own stage meanwhile, whose codes are there in any case. ``packed``: what an opening is compressed to.
        codes: of the state that was said last.
        card: parameters, gradients, two moments, which of them decay, and what an optimizer's step takes for a moment.
        frozen: of a parameter that does not learn.
        moment: bytes that an optimizer's step and a loss take for a moment, of a stage of whatever size.
    """

    stage: float
    state: float
    first: float
    anchor: float
    shared: float
    step: float
    again: float
    away: float
    packed: float
    codes: float
    card: float
    frozen: float = 1.0
    moment: int = 0


_KEPT: Mapping[str, _Kept] = {
    "float32": _Kept(5, 3, 3, 1, 2, 4, 5, 0, 0, 0, 6),
    # A card makes room for the second stage; ten float32 of a part, and four of the logits that are there at once.
    # Kept states are short (`trainer.stage.short`): codes of parameters in 8 bits, and moments.
    # The codes of the state that was said last are there, too; anchors and outer momenta are bf16. An outer step takes both anew,
    # and a byte for each value of two updates.
    "lean": _Kept(
        2.04,
        0.78,
        0.54,
        0.5,
        1.26,
        1.5,
        2.04,
        0.54,
        0.63,
        0.26,
        2.04,
        0.5,
        FLOAT32 * (10 * LEAN_PART + 4 * LEAN_LOGITS),
    ),
}


def stage_memory(
    shape: ModelShape, training: TrainingSpec, cut: Sequence[Layers], stage: int, card: bool = False
) -> int:
    """Bytes that a worker of the stage needs at most; ``card``: on its graphics card, where it computes on one."""
    part = cut[stage]
    return _memory(shape, training, len(cut), stage, part.last - part.first, card)


def most_layers(
    shape: ModelShape,
    training: TrainingSpec,
    stages: int,
    stage: int,
    memory: int,
    card: bool = False,
    beside: int | None = None,
) -> int:
    """As many layers as a stage can hold in ``memory`` bytes, of a graphics card or not; 0 if not one.

    Args:
        beside: bytes of main memory beside a card; None: nobody has told.
    """
    low, high = 0, shape.layers - stages + 1
    while low < high:
        middle = (low + high + 1) // 2
        fits = _memory(shape, training, stages, stage, middle, card) <= memory
        if fits and card and beside is not None:
            fits = _beside(shape, training, stages, stage, middle) <= beside
        if fits:
            low = middle
        else:
            high = middle - 1
    return low


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
    caps = [most_layers(shape, training, stages, stage, memory) for stage, memory in enumerate(memories)]
    layer = float(shape.stage_operations(0, 1, False, training.sequence))
    head = float(shape.stage_operations(0, 0, True, training.sequence))
    counts = share_layers(shape.layers, layer, head, speeds, caps)
    if counts is None:
        raise NoPlacementError(too_large(shape, training, memories))
    return ranges(counts)


def share_layers(
    layers: int, layer: float, head: float, speeds: Sequence[float], caps: Sequence[int]
) -> tuple[int, ...] | None:
    """Layers of each stage, so that the slowest stage is as quick as can be; None if memory cannot hold them all.

    One layer at a time goes to the stage that then has the least to do: for the largest of increasing costs that is optimal.

    Args:
        layer: work of a layer. ``head``: what the last stage has beside its layers.
        speeds: work a second of each stage. ``caps``: layers that each stage can hold.
    """
    stages = len(speeds)
    if min(caps) < 1 or sum(caps) < layers or stages > layers:
        return None
    extra = [0.0] * (stages - 1) + [head]
    counts = [1] * stages
    heap = [((2 * layer + extra[stage]) / speeds[stage], stage) for stage in range(stages) if caps[stage] > 1]
    heapify(heap)
    for _ in range(layers - stages):
        _, stage = heappop(heap)
        counts[stage] += 1
        if counts[stage] < caps[stage]:
            heappush(heap, (((counts[stage] + 1) * layer + extra[stage]) / speeds[stage], stage))
    return tuple(counts)


def ranges(counts: Sequence[int]) -> tuple[Layers, ...]:
    """Numbers of layers as ranges in order."""
    cut: list[Layers] = []
    for count in counts:
        first = cut[-1].last if cut else 0
        cut.append(Layers(first, first + count))
    return tuple(cut)


def too_large(
    shape: ModelShape, training: TrainingSpec, memories: Sequence[int], card: bool = False, beside: int | None = None
) -> str:
    """What is missing, with both figures.

    Args:
        card: all are of graphics cards. beside: bytes of main memory beside them, together, where all have told.
    """
    whole = _memory(shape, training, 1, 0, shape.layers, card) // MEGABYTE
    have = sum(memories) // MEGABYTE
    needs_beside = _beside(shape, training, 1, 0, shape.layers)
    if card and beside is not None and beside < needs_beside and have >= whole:
        return (
            f"the model needs about {needs_beside // MEGABYTE:,} MB of main memory beside graphics cards, and the "
            f"{len(memories)} nodes that would share it have {beside // MEGABYTE:,} MB: choose a smaller model, or wait until "
            "more nodes have joined; whoever lends a card can lend more memory beside it in Settings"
        )
    return (
        f"the model needs about {whole:,} MB in training, and the {len(memories)} nodes that would share it have "
        f"{have:,} MB: choose a smaller model, batch or sequence, or wait until more nodes have joined"
    )


def fixed_memory(shape: ModelShape, training: TrainingSpec, parameters: int, stages: int, card: bool) -> int:
    """Bytes of a worker that do not grow with the tokens in flight, beside ``ModelShape.stage_memory_bytes``.

    The process itself, what outer steps take, what a replica carries from round to round, states and payloads of the rounds
    that can be audited and of the one under way, and what showing one of them takes. Of all that a graphics card (``card``) has
    the process's own part, and a second stage where showing takes one.

    Args:
        parameters: that learn, of one of so many ``stages``.
    """
    exchange = _EXCHANGE if training.outer in TOGETHER else 0
    kept, lean = _KEPT[training.memory], training.memory == "lean"
    if card:
        second = kept.again * (_runs_again(shape, training, parameters) and not lean)
        return BASE_CARD + int(FLOAT32 * parameters * (second + exchange))
    second = kept.again * (_interval(shape, training, parameters) != training.commit_every)
    return _kept_memory(shape, training, parameters, stages, second, exchange, _READ)


def _kept_memory(
    shape: ModelShape,
    training: TrainingSpec,
    parameters: int,
    stages: int,
    second: float,
    further: float = 0,
    read: float = 0,
    settles: bool = False,
) -> int:
    """Main memory for what outer steps take, what a replica carries, and rounds that can be audited.

    Agents keep what audits need. A worker lets go of rounds that are over, and has one back to show it, unless it keeps more
    states of each round than come back (``trainer.worker.opening_service``).

    Args:
        second: vectors that running a round again takes beside it. further: vectors that are there in any case.
        read: what stays of a round that was read back.
        settles: a lean card: no contribution is made, nor an outer step, while a round is shown.
    """
    kept, carried = _KEPT[training.memory], _carried_vectors(training)
    states = -(-training.inner_steps // _interval(shape, training, parameters))
    rounds = 1 if states == 1 else KEPT_ROUNDS + 1
    vectors = kept.shared + 2 * carried + rounds * (kept.first + (states - 1) * kept.state) + further
    vectors += KEPT_ROUNDS * (kept.anchor + carried) if states > 1 else read
    if settles:
        vectors += _most_at_once(kept, carried)
    else:  # A round that came back is run again, or is shown while the next one makes its contribution.
        shown = kept.anchor + carried
        vectors += max(kept.first + shown + second, kept.step + shown + kept.state + kept.packed)
    payloads = recorded_bytes(shape, training, training.batch * training.sequence) if stages > 1 else 0
    recorded = min(rounds + 1, KEPT_ROUNDS + 1) * training.inner_steps * payloads
    return BASE_MEMORY + int(FLOAT32 * parameters * vectors) + recorded


def _most_at_once(kept: _Kept, carried: float) -> float:
    """Vectors of the largest moment beside a card that makes room: of these one comes after the other."""
    shows = kept.away + kept.anchor + carried + kept.packed
    # Somebody else's segment: the opening has its anchor as float32, which is kept shorter then; and what it is unpacked to.
    judges = kept.away + kept.anchor + kept.packed + max(1, carried + kept.state + kept.codes)
    judges_outer = 2 * (kept.shared - kept.codes) + _LEVELS
    # What a replica carries is there once in the middle of a round. An outer step begins when the round's state has gone.
    return max(max(shows, judges, judges_outer) - carried, kept.step - kept.first - kept.codes) + _SENT


def beside_memory(shape: ModelShape, training: TrainingSpec, cut: Sequence[Layers], stage: int) -> int:
    """Bytes of main memory that a worker needs beside a graphics card which computes the stage."""
    part = cut[stage]
    return _beside(shape, training, len(cut), stage, part.last - part.first)


def _beside(shape: ModelShape, training: TrainingSpec, stages: int, stage: int, layers: int) -> int:
    learnt, _ = shape.stage_learns(0, layers, stage == 0, stage == stages - 1, training.lora)
    return beside_of(shape, training, learnt, stages)


def beside_of(shape: ModelShape, training: TrainingSpec, parameters: int, stages: int) -> int:
    """As ``beside_memory``, of one of so many ``stages``, of which so many ``parameters`` learn."""
    kept = _KEPT[training.memory]
    lean = training.memory == "lean"
    held = _kept_memory(shape, training, parameters, stages, kept.state, settles=lean)
    return BASE_BESIDE - BASE_MEMORY + held


def needed(shape: ModelShape, training: TrainingSpec, cut: Sequence[Layers]) -> Needed:
    """What each stage takes, wherever it is."""
    stages = range(len(cut))
    return {
        "main": [stage_memory(shape, training, cut, stage) for stage in stages],
        "card": [stage_memory(shape, training, cut, stage, card=True) for stage in stages],
        "beside": [beside_memory(shape, training, cut, stage) for stage in stages],
    }


def _interval(shape: ModelShape, training: TrainingSpec, parameters: int) -> int:
    """Steps between the states of a round that a worker keeps."""
    payloads = recorded_bytes(shape, training, training.batch * training.sequence)
    return state_interval(
        training.inner_steps, int(_KEPT[training.memory].state * FLOAT32 * parameters), payloads, training.commit_every
    )


def _runs_again(shape: ModelShape, training: TrainingSpec, parameters: int) -> bool:
    """Whether a card may have to run a segment again on a second stage while it is in the middle of a step.

    To find a state that was not kept, or what a segment came to, which auditors of other classes want to see.
    """
    return comparable_across(training) or _interval(shape, training, parameters) != training.commit_every


def needs(shape: ModelShape, training: TrainingSpec, counts: Sequence[int], stage: int, tokens: int, card: bool) -> int:
    """Bytes of a worker with so many ``tokens`` in flight, of each of which its layers keep everything.

    Args:
        counts: layers of each stage.
    """
    last, layers = stage == len(counts) - 1, counts[stage]
    learnt, _ = shape.stage_learns(0, layers, stage == 0, last, training.lora)
    kept, lean = _KEPT[training.memory], training.memory == "lean"
    vectors = kept.stage
    if card:  # The norm of lean gradients is taken part by part.
        vectors = kept.card + _DOUBLES * (shares_norm(training) and not lean)
    if card and not lean and _runs_again(shape, training, learnt):
        tokens *= 2  # Those of the second stage, too.
    # Whose values are there together. Of main memory the allocator keeps what the others had (`benchmarks.learning.stage_speed`).
    at_once = 1 if training.recomputes and card else layers
    grows = shape.stage_memory_bytes(learnt, last and not lean, at_once, tokens, training.sequence, vectors)
    grows += FLOAT32 * at_once * shape.adapter_values(training.lora) * tokens
    grows += FLOAT32 * (training.forward_passes - 1) * shape.hidden * tokens  # The reference's inputs cross beside.
    if lean and card:
        grows += kept.moment
    elif lean and last:
        grows += FLOAT32 * min(3 * shape.vocabulary * tokens, 4 * LEAN_LOGITS)
    grows += shape.frozen_bytes(layers, stage == 0, last, training.lora, FLOAT32 * kept.frozen)
    return fixed_memory(shape, training, learnt, len(counts), card) + grows


def _carried_vectors(training: TrainingSpec) -> float:
    """Of what a replica carries from round to round: a residual, or its own weights."""
    lossy = training.error_feedback is not None or UPDATES[training.pseudo_gradient].feedback
    if training.outer == "sparseloco" or (training.outer in ("diloco", "averaging") and lossy):
        return 1 if training.memory == "float32" else 0.26
    return 1 if training.outer == "streaming" else 0


def _memory(shape: ModelShape, training: TrainingSpec, stages: int, stage: int, layers: int, card: bool = False) -> int:
    micro = -(-training.batch // training.micro_batches)
    in_flight = min(training.micro_batches, most_in_flight(stages, stage, training.lookahead))
    if (
        training.recomputes
    ):  # Of those under way the layers' inputs, of one micro-batch everything, on a card of one layer.
        kept = FLOAT32 * layers * shape.hidden * micro * in_flight * training.sequence
        in_flight = 1
    else:
        kept = 0
    counts = [layers] * stages
    return kept + needs(shape, training, counts, stage, micro * in_flight * training.sequence, card)
