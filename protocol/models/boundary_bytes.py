"""What crosses a stage boundary, as arithmetic without torch: bytes, and choices that follow from a link.

The coordinator plans with these numbers, and the trainer's codecs are tested against them.
"""

import math
from dataclasses import dataclass

import msgspec

from protocol.job.job import TrainingSpec
from protocol.models.config_values import ModelConfigError
from protocol.models.model import ModelShape

SUBSPACE_FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3", "smollm3", "phi3", "olmo2", "gpt2"})
"""Whose hidden states begin with the plain embedding row, and whose layers only add to them."""

HEADER_BYTES = 32  # Of one encoded tensor of three dimensions.
MAX_LOOKAHEAD = 8  # A stage holds that many more micro-batches for each stage that follows; memory grows with it.
MAX_MICRO_BATCHES = 256  # As a job document allows.
MESSAGE_S = 0.002  # Of computing time for each micro-batch: kernels start, payloads are packed, hashed and named.
# More in flight than an even pace needs: passes and packets come unevenly, and every gap would be waited out.
_UNEVEN = 2
_FOUR_BITS = 4.5 / 8
"""Bytes a value in an envelope: at most 4.44 bits (``trainer.codecs.activations``), and Huffman codes are a little longer."""
_ENOUGH_TOKENS = 128  # In one message, for the mean of each channel to be sent with it.
_PAGE = 4096
_LINK_SHARE = 0.9  # Of the time that a stage computes, its link may be busy: retransmissions and control need the rest.
_ZERO_BUBBLE = 1 / 3  # Of 1F1B's waiting time remains: forward, minus the weights' half of backward, is about that.


def boundary_bytes(shape: ModelShape, training: TrainingSpec, tokens: int) -> tuple[int, int]:
    """Bytes forward and backward over one boundary for ``tokens`` tokens in one message each, header included.

    ``aq4`` is counted as on a sample's later visits, and four bits as in their envelopes, in which hidden states take less.
    """
    forward, backward = payload_bytes(shape, training, tokens)
    spared = tokens * _channels(shape, training) * (1 - _FOUR_BITS)
    if training.activations in ("int4", "aq4"):
        forward -= math.floor(training.forward_passes * spared)
    if gradient_codec(training) == "int4":
        backward -= math.floor(spared)
    return forward, backward


def payload_bytes(shape: ModelShape, training: TrainingSpec, tokens: int) -> tuple[int, int]:
    """As ``boundary_bytes``, of what is in the envelopes: as long as a stage keeps it."""
    channels = _channels(shape, training)
    there = _body(training.activations, training.forward_passes * tokens, channels)
    return HEADER_BYTES + there, HEADER_BYTES + _body(gradient_codec(training), tokens, channels)


def step_cost(training: TrainingSpec, recomputes: bool | None = None) -> float:
    """What a layer computes in a step, in parts of one pass forward and a backward pass of twice that.

    Where answers are compared it runs forward twice; where it ``recomputes``, once more. None: as the job has it.
    """
    again = training.recomputes if recomputes is None else recomputes
    return (training.forward_passes + again + 2) / 3


def recorded_bytes(shape: ModelShape, training: TrainingSpec, tokens: int) -> int:
    """Bytes that a stage between two others keeps of a step of ``tokens`` tokens, so that it can be run again."""
    recorded = sum(payload_bytes(shape, training, tokens))
    if training.activations == "aq4":  # Cached entries on both sides; a first visit is as long as one.
        recorded += 2 * _body("int8", tokens, _channels(shape, training))
    return recorded


def longest_payload(shape: ModelShape, training: TrainingSpec) -> int:
    """Bytes that no payload of a micro-batch exceeds: float32 for all channels, and a page for headers and digests a window."""
    windows = training.forward_passes * -(-training.batch // min(training.micro_batches, training.batch))
    return windows * (4 * training.sequence * shape.hidden + _PAGE)


def gradient_codec(training: TrainingSpec) -> str:
    """The codec of boundary gradients that a job's ``auto`` stands for."""
    if training.boundary_gradients != "auto":
        return training.boundary_gradients
    return "fp32" if training.activations == "fp32" else "int8"


def _channels(shape: ModelShape, training: TrainingSpec) -> int:
    return min(shape.hidden, training.subspace or shape.hidden)


def _body(kind: str, tokens: int, channels: int) -> int:
    match kind:
        case "fp32":
            return 4 * tokens * channels
        case "int4" | "aq4":  # Levels are bytes until they are in an envelope.
            return 4 * channels * (tokens >= _ENOUGH_TOKENS) + 2 + tokens * (channels + 1)
        case _:
            return tokens * (channels + 4)


def check_subspace(shape: ModelShape, training: TrainingSpec, cut: int | None = None, weights: bool = False) -> None:
    """Refuse a subspace that this model cannot have.

    Args:
        cut: layers before a boundary that hidden states cross; ``weights``: the model begins with given ones.
    Raises:
        ModelConfigError: naming the value and the way out.
    """
    channels = training.subspace
    if channels is None:
        return
    if weights:
        raise ModelConfigError(
            f"training.subspace is {channels}, and the model begins with uploaded weights: their layers write into all "
            "channels already, so nothing could be left out without changing what they compute. Leave subspace away, "
            "or start from random weights"
        )
    if shape.family not in SUBSPACE_FAMILIES:
        names = ", ".join(sorted(SUBSPACE_FAMILIES))
        raise ModelConfigError(
            f"training.subspace needs hidden states that begin with the embedding and are only added to; {shape.family} "
            f"does more: use one of {names}, or leave subspace away"
        )
    if channels >= shape.hidden:
        raise ModelConfigError(
            f"training.subspace is {channels} of {shape.hidden} channels: choose fewer, or leave it away"
        )
    if cut == shape.layers:
        raise ModelConfigError(
            f"a cut after the last layer ({cut} of {shape.layers}), which writes into all channels: with training.subspace the "
            "last stage needs at least one layer"
        )


def most_in_flight(stages: int, stage: int, lookahead: int) -> int:
    """Micro-batches that a stage keeps in memory at most, in either schedule."""
    return 1 + (stages - stage - 1) * (1 + lookahead)


@dataclass(frozen=True)
class Edge:
    """The slowest boundary of a pipeline and the slowest stage beside it.

    Attributes:
        stage_seconds: of computing one whole batch, forward and backward, on the slowest stage.
        latency: seconds one way. bits_per_second: of the slower direction.
        token_bytes: memory that a token in flight takes on the stage with the least room, ``room`` bytes of it.
        token_inputs: the same where only each layer's input is kept.
    """

    stages: int
    stage_seconds: float
    latency: float
    bits_per_second: float
    token_bytes: int
    token_inputs: int
    room: int


@dataclass(frozen=True)
class PipelineChoice:
    """How a pipeline runs, and why in words."""

    training: TrainingSpec
    seconds: float
    reason: str


def choose_crossing(shape: ModelShape, training: TrainingSpec, edge: Edge) -> PipelineChoice:
    """Codec, micro-batches, lookahead and recomputation with which a step takes least time.

    A job's own choice of codec is kept; ``auto`` takes 8 bits, which lose nothing, unless the link would then be the limit;
    then both directions take 4.
    Each micro-batch more shortens the time in which stages wait for their first one and adds one message; more in flight
    hides the link and takes memory.

    Raises:
        ModelConfigError: not even one window at a time fits into memory.
    """
    kinds = ("int8", "int4") if training.activations == "auto" else (training.activations,)
    found: list[PipelineChoice] = []
    for kind in kinds:
        narrow = kind == "int4" and training.activations == training.boundary_gradients == "auto"
        gradients = "int4" if narrow else training.boundary_gradients
        spec = msgspec.structs.replace(training, activations=kind, boundary_gradients=gradients)
        busy = 8 * max(boundary_bytes(shape, spec, training.batch * training.sequence)) / edge.bits_per_second
        for recompute in (training.recomputes, True):
            found += [_timed(spec, edge, busy, micros, recompute) for micros in _counts(training.batch)]
        found = [choice for choice in found if choice.seconds < math.inf]
        if found and busy <= _LINK_SHARE * edge.stage_seconds:
            break
    if not found:
        window = training.sequence * edge.token_inputs
        raise ModelConfigError(
            f"one window of {training.sequence} tokens takes {window:,} bytes, a stage has room for {edge.room:,}: choose "
            "shorter sequences, or more stages"
        )
    return min(found, key=lambda choice: choice.seconds)


def _counts(batch: int) -> list[int]:
    """Numbers of micro-batches that are tried: powers of two, up to one window each."""
    return [1 << power for power in range(min(batch, MAX_MICRO_BATCHES).bit_length())]


def _timed(training: TrainingSpec, edge: Edge, busy: float, micros: int, recompute: bool) -> PipelineChoice:
    """One way to run a step; infinitely slow where it does not fit into memory."""
    compute = edge.stage_seconds * step_cost(training, recompute or training.recomputes) / step_cost(training)
    part, transfer = compute / micros, edge.latency + busy / micros
    lookahead = 0
    if edge.stages > 1:
        lookahead = min(MAX_LOOKAHEAD, micros, math.ceil(2 * transfer / part) + _UNEVEN)
    tokens = -(-training.batch // micros) * training.sequence
    while lookahead and not _fits(edge, tokens, lookahead, micros, recompute):
        lookahead -= 1
    spec = msgspec.structs.replace(training, micro_batches=micros, lookahead=lookahead, recompute=recompute)
    if not _fits(edge, tokens, lookahead, micros, recompute):
        return PipelineChoice(spec, math.inf, "")
    beat = max(part, busy / micros, (part + 2 * transfer) / (1 + lookahead) if edge.stages > 1 else part)
    bubble = _ZERO_BUBBLE if training.schedule == "zero-bubble" else 1.0
    seconds = micros * beat + (edge.stages - 1) * (bubble * part + 2 * transfer) + micros * MESSAGE_S
    limit = "the link" if beat > part else "computing"
    kept = ", layers computed twice to save memory" if recompute else ""
    reason = (
        f"{training.activations}: a batch takes {compute:.3g} s to compute and {busy:.3g} s on the link, {limit} is the limit; "
        f"{micros} micro-batches, {lookahead} more in flight for each further stage to cover {1000 * transfer:.0f} ms each way"
        f"{kept}"
    )
    return PipelineChoice(spec, seconds, reason)


def _fits(edge: Edge, tokens: int, lookahead: int, micros: int, recompute: bool) -> bool:
    flying = min(micros, most_in_flight(edge.stages, 0, lookahead))
    if recompute:
        return tokens * (flying * edge.token_inputs + edge.token_bytes) <= edge.room
    return tokens * flying * edge.token_bytes <= edge.room
