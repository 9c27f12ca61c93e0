"""An outer step shown and run again: the state before it and what came in, as one safetensors file.

In a mesh that are the agreed pseudo-gradients. By shards it is the result of each shard; and of those that this member reduced,
the contributors' parts, each with its path to what its contributor committed to, and the residue that it began with.
"""

import hashlib
from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from torch import Tensor

from common.untrusted_text import untrusted
from protocol.audit import AuditReport, OuterRecord, ReplayOuter, ShardRecord
from trainer.audit.shown_state import read_anchor
from trainer.errors import CodecError, OpeningError, RoundError
from trainer.files.tensors import Piece, TakenTensors, file_in_pieces, wide
from trainer.outer.checks import ALIKE
from trainer.outer.method import OuterMethod, OuterState, momentum_type
from trainer.outer.shards import ShardPart, reduce_shard, residue_digest
from trainer.stage.stage import Stage

Shown = Mapping[str, bytes]
"""What came into an outer step, by the names below."""


def contribution_name(replica: int) -> str:
    """Of a pseudo-gradient of a mesh."""
    return f"contribution.{replica}"


def result_name(shard: int) -> str:
    """Of a shard's result."""
    return f"result.{shard}"


def part_name(shard: int, replica: int) -> str:
    """Of a shard of a pseudo-gradient, as ``ShardPart`` writes it."""
    return f"part.{shard}.{replica}"


def residue_name(shard: int) -> str:
    """Of the residue that a reducer began with: float32, little-endian."""
    return f"residue.{shard}"


def outer_step(
    method: OuterMethod,
    stage: Stage,
    state: OuterState,
    contributions: Mapping[int, bytes],
    round_index: int,
    weights: Mapping[int, int] = ALIKE,
) -> tuple[OuterState, OuterRecord]:
    """The shared state of the next round, and what says so; raises as ``OuterMethod.apply``."""
    after = method.apply(state, contributions, round_index, weights)
    stage.constrain(after.anchor)
    return after, OuterRecord(state.digest(), after.digest(), after.left_out)


def outer_step_of_results(
    method: OuterMethod,
    stage: Stage,
    state: OuterState,
    results: Mapping[int, bytes],
    round_index: int,
    contributors: int,
) -> tuple[OuterState, OuterRecord]:
    """The same from the results of all shards, by their names, of so many contributors; raises ``CodecError``."""
    after = method.apply_results(state, results, round_index, contributors == 1)
    stage.constrain(after.anchor)
    digests = {shard: hashlib.sha256(data).hexdigest() for shard, data in results.items()}
    return after, OuterRecord(state.digest(), after.digest(), after.left_out, digests)


def write_outer(state: OuterState, shown: Shown) -> list[Piece]:
    """The opening of an outer step, in pieces; ``state``: before it."""
    vectors = {"anchor": wide(state.anchor), "momentum": state.momentum}
    return file_in_pieces({**vectors, **shown})


def judge_outer(method: OuterMethod, stage: Stage, command: ReplayOuter, opening: bytes | bytearray) -> AuditReport:
    """Run an outer step again and compare; every failure that the prover can cause becomes a verdict.

    An outer step gives the same bits on every processor, so there is no environment class to compare.
    """
    try:
        opened = _Opened.read(opening, command, stage)
        due = opened.due()
    except OpeningError as error:
        return AuditReport(command.audit, "malformed", untrusted(error))
    try:
        if command.record.results:
            given = len(command.contributors)
            after, record = outer_step_of_results(method, stage, opened.state, due, command.round, given)
        else:
            after, record = outer_step(method, stage, opened.state, due, command.round, command.weights)
        record = OuterRecord(record.before, record.after, record.left_out, record.results, command.record.reduced)
        found = ""
        if record != command.record:
            found = f"the outer step gives {record}, committed was {command.record}"
        elif after.anchor_digest != command.parameters:
            found = "the parameters after the outer step are not those that were reported"
        for reduced in command.record.reduced:
            found = found or _compare_reduced(method, command, opened, reduced)
    except OpeningError as error:
        return AuditReport(command.audit, "malformed", untrusted(error))
    except (CodecError, RoundError) as error:
        return AuditReport(command.audit, "mismatch", untrusted(f"the outer step cannot be done: {error}"))
    return AuditReport(command.audit, "mismatch" if found else "match", untrusted(found))


def _compare_reduced(method: OuterMethod, command: ReplayOuter, opened: "_Opened", said: ShardRecord) -> str:
    """Reduce a shard again; returns the difference in words."""
    replicas = command.plan.replicas()
    if said.shard not in replicas:
        return f"there is no shard {said.shard} to reduce"
    place = replicas.index(said.shard)
    shards = method.shards(command.round, len(replicas))
    free = shards.take(method.free(command.round), place)
    residue = opened.residue(said, shards.length(place))
    parts = opened.parts(said.shard, place)
    made = reduce_shard(shards, place, parts, method.combining, free, residue, command.weights)
    if made.digest != said.result:
        return f"the result of shard {said.shard} is not what its parts give"
    if residue_digest(made.residue) != said.after:
        return f"the residue of shard {said.shard} is not what its parts leave"
    return ""


class _Opened:
    """What a prover showed of an outer step."""

    def __init__(self, state: OuterState, tensors: Mapping[str, Tensor], command: ReplayOuter) -> None:
        self.state = state
        self._tensors = tensors
        self._command = command

    @classmethod
    def read(cls, opening: bytes | bytearray, command: ReplayOuter, stage: Stage) -> "_Opened":
        """Raises ``OpeningError`` where it does not begin with the state that the record names. A bytearray is used up."""
        try:
            tensors = TakenTensors(opening if isinstance(opening, bytearray) else bytearray(opening))
        except (SafetensorError, ValueError, KeyError) as error:
            raise OpeningError(f"no safetensors file: {error}") from error
        anchor = read_anchor(tensors, stage.size) if stage.lean else _vector(tensors, "anchor", stage.size)
        state = OuterState(
            anchor,
            _vector(tensors, "momentum", stage.size, momentum_type(stage.training)),
        )
        if state.digest() != command.record.before:
            raise OpeningError("the state is not the one that the record begins with")
        return cls(state, tensors, command)

    def due(self) -> dict[int, bytes]:
        """The contributions that were agreed on, or the results; raises ``OpeningError`` where another one is shown."""
        results, contributors = self._command.record.results, self._command.contributors
        if results:
            return {shard: self._agreed(result_name(shard), digest) for shard, digest in results.items()}
        return {p: self._agreed(contribution_name(p), digest) for p, digest in contributors.items()}

    def parts(self, shard: int, place: int) -> dict[int, bytes]:
        """A shard of all contributions that were agreed on, by replica; raises ``OpeningError``."""
        found, count = {}, len(self._command.plan.replicas())
        for replica, due in self._command.contributors.items():
            name = part_name(shard, replica)
            try:
                part = ShardPart.read(self._bytes(name))
            except CodecError as error:
                raise OpeningError(f"{name}: {error}") from error
            if (part.root, part.place, part.count) != (due, place, count):
                raise OpeningError(f"{name} is no part of the contribution that was agreed on")
            found[replica] = part.data
        return found

    def residue(self, said: ShardRecord, length: int) -> Tensor | None:
        """What a reducer began with; raises ``OpeningError`` where that is not what it had ended with."""
        if said.before is None:
            return None
        data = self._bytes(residue_name(said.shard))
        if len(data) != 4 * length:
            raise OpeningError(f"a residue of {len(data):,} bytes where {4 * length:,} are due")
        residue = torch.frombuffer(bytearray(data), dtype=torch.float32)
        if residue_digest(residue) != said.before:
            raise OpeningError(f"the residue of shard {said.shard} is not the one that the round before left")
        return residue

    def _agreed(self, name: str, due: str) -> bytes:
        data = self._bytes(name)
        if hashlib.sha256(data).hexdigest() != due:
            raise OpeningError(f"{name} is not the one that was agreed on")
        return data

    def _bytes(self, name: str) -> bytes:
        value = self._tensors.get(name)
        if value is None or value.dtype != torch.uint8 or value.dim() != 1:
            raise OpeningError(f"{name} is missing, or not bytes")
        return value.numpy().tobytes()


def _vector(tensors: Mapping[str, Tensor], name: str, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    value = tensors.get(name)
    if value is None or value.dtype != dtype or tuple(value.shape) != (size,):
        raise OpeningError(f"{name} is missing, or not {size:,} {str(dtype).removeprefix('torch.')} values")
    return value.clone()
