"""What crosses a stage boundary, as arithmetic without torch: bytes, and choices that follow from a link.

The coordinator plans with these numbers, and the trainer's codecs are tested against them.
"""

import math
from dataclasses import dataclass

import msgspec

from transport.wire.job import TrainingSpec
from transport.wire.model import ModelConfigError, ModelShape

SUBSPACE_FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3", "smollm3", "phi3", "olmo2", "gpt2"})
"""Whose hidden states begin with the plain embedding row, and whose layers only add to them."""

HEADER_BYTES = 32  # Of one encoded tensor of three dimensions.
_GROUP = 32
MAX_LOOKAHEAD = 8  # A stage holds that many more micro-batches for each stage that follows; memory grows with it.
_INT8_SHARE = 0.9  # Of the time that a stage computes, its link may be busy: retransmissions and control need the rest.


def boundary_bytes(shape: ModelShape, training: TrainingSpec, tokens: int) -> tuple[int, int]:
    """Bytes forward and backward over one boundary for ``tokens`` tokens in one message each, header included.

    ``aq4`` is counted as on a sample's later visits.
    """
    channels = min(shape.hidden, training.subspace or shape.hidden)
    ways = (training.activations, gradient_codec(training))
    forward, backward = (HEADER_BYTES + _body(kind, tokens, channels) for kind in ways)
    return forward, backward


def gradient_codec(training: TrainingSpec) -> str:
    """The codec of boundary gradients that a job's ``auto`` stands for."""
    if training.boundary_gradients != "auto":
        return training.boundary_gradients
    return "fp32" if training.activations == "fp32" else "int8"


def _body(kind: str, tokens: int, channels: int) -> int:
    match kind:
        case "fp32":
            return 4 * tokens * channels
        case "int4" | "aq4":
            groups = -(-tokens * channels // _GROUP)
            return groups * (2 + _GROUP // 2)
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


@dataclass(frozen=True)
class Choice:
    """What was chosen for a pipeline, and why in words."""

    activations: str
    micro_batches: int
    lookahead: int
    reason: str


def choose_crossing(
    shape: ModelShape, training: TrainingSpec, stages: int, stage_seconds: float, latency: float, bits_per_second: float
) -> Choice:
    """Codec, micro-batches and lookahead for the slowest edge of a pipeline.

    Eight bits lose nothing and are kept where they fit; a job that names a codec keeps it. Micro-batches are as many as
    the job allows (they only cost messages), fewer where one would compute for less time than a message takes to leave.
    The lookahead covers the way there and back.

    Args:
        stage_seconds: of computing one whole batch on the slowest stage, forward and backward.
        latency: seconds one way; ``bits_per_second``: of the slower direction.
    """
    tokens = training.batch * training.sequence
    kinds = ("int8", "int4") if training.activations == "auto" else (training.activations,)
    kind, busy = kinds[-1], 0.0
    for candidate in kinds:
        spec = msgspec.structs.replace(training, activations=candidate)
        busy = 8 * max(boundary_bytes(shape, spec, tokens)) / bits_per_second
        if busy <= _INT8_SHARE * stage_seconds:
            kind = candidate
            break
    micros = max(1, min(training.micro_batches, training.batch))
    part = stage_seconds / micros
    transfer = latency + busy / micros
    lookahead = 0 if stages == 1 else min(MAX_LOOKAHEAD, math.ceil(2 * transfer / part))
    limit = "the link" if busy > stage_seconds else "computing"
    reason = (
        f"{kind}: a batch takes {stage_seconds:.3g} s to compute and {busy:.3g} s on the link, so {limit} is the limit; "
        f"{micros} micro-batches of {part:.3g} s, {lookahead} more in flight for each further stage since a message takes "
        f"{transfer:.3g} s each way"
    )
    return Choice(kind, micros, lookahead, reason)
