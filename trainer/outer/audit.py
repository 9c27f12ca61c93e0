"""An outer step shown and run again: the state before it and the agreed pseudo-gradients, as one safetensors file."""

import hashlib
from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from common.untrusted_text import untrusted
from protocol.audit import AuditReport, OuterRecord, ReplayOuter
from trainer.errors import CodecError, OpeningError, RoundError
from trainer.files.tensors import file_in_pieces
from trainer.outer.method import OuterMethod, OuterState
from trainer.stage.stage import Stage

_CONTRIBUTION = "contribution."


def outer_step(
    method: OuterMethod, stage: Stage, state: OuterState, contributions: Mapping[int, bytes], round_index: int
) -> tuple[OuterState, OuterRecord]:
    """The shared state of the next round, and what says so; raises as ``OuterMethod.apply``."""
    after = method.apply(state, contributions, round_index)
    stage.constrain(after.anchor)
    return after, OuterRecord(state.digest(), after.digest(), after.left_out)


def write_outer(state: OuterState, contributions: Mapping[int, bytes]) -> list[memoryview]:
    """The opening of an outer step, in pieces; ``state``: before it."""
    shown: dict[str, Tensor | bytes] = {"anchor": state.anchor, "momentum": state.momentum}
    shown |= {f"{_CONTRIBUTION}{replica}": data for replica, data in contributions.items()}
    return file_in_pieces(shown)


def judge_outer(method: OuterMethod, stage: Stage, command: ReplayOuter, opening: bytes) -> AuditReport:
    """Run an outer step again and compare; every failure that the prover can cause becomes a verdict.

    An outer step gives the same bits on every processor, so there is no environment class to compare.
    """
    try:
        state, contributions = _read(opening, command, stage.size)
    except OpeningError as error:
        return AuditReport(command.audit, "malformed", untrusted(error))
    try:
        after, record = outer_step(method, stage, state, contributions, command.round)
    except (CodecError, RoundError) as error:
        return AuditReport(command.audit, "mismatch", untrusted(f"the outer step cannot be done: {error}"))
    found = ""
    if record != command.record:
        found = f"the outer step gives {record}, committed was {command.record}"
    elif after.anchor_digest != command.parameters:
        found = "the parameters after the outer step are not those that were reported"
    return AuditReport(command.audit, "mismatch" if found else "match", untrusted(found))


def _read(opening: bytes, command: ReplayOuter, size: int) -> tuple[OuterState, dict[int, bytes]]:
    try:
        tensors = load(opening)
    except (SafetensorError, ValueError, KeyError) as error:
        raise OpeningError(f"no safetensors file: {error}") from error
    state = OuterState(_vector(tensors, "anchor", size), _vector(tensors, "momentum", size))
    if state.digest() != command.record.before:
        raise OpeningError("the state is not the one that the record begins with")
    contributions = {}
    for replica, due in command.contributors.items():
        value = tensors.get(f"{_CONTRIBUTION}{replica}")
        if value is None or value.dtype != torch.uint8 or value.dim() != 1:
            raise OpeningError(f"the contribution of replica {replica} is missing, or not bytes")
        contributions[replica] = value.numpy().tobytes()
        if hashlib.sha256(contributions[replica]).hexdigest() != due:
            raise OpeningError(f"the contribution of replica {replica} is not the one that was agreed on")
    return state, contributions


def _vector(tensors: Mapping[str, Tensor], name: str, size: int) -> Tensor:
    value = tensors.get(name)
    if value is None or value.dtype != torch.float32 or tuple(value.shape) != (size,):
        raise OpeningError(f"{name} is missing, or not {size:,} float32 values")
    return value.clone()
