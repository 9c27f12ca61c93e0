"""``python -m trainer`` of somebody who cheats in one way, to show that it is found: ``--lie WHAT`` beside the usual words.

Whoever owns a machine can change what runs there. This changes it at the doors that ``trainer.worker`` has for other classes. It
imports nothing but the trainer: in a container, whose image has no demo, it is the text of ``python -c``.
"""

import argparse
import itertools
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import msgspec
import torch
from torch import Tensor

from protocol.audit import Read
from protocol.boundary import PayloadKey, crossings
from protocol.task import BeginRound, ReplayStep, RoundCommit, TaskReport
from trainer.__main__ import main as trainer
from trainer.audit.replay import OpeningReplayer, Redone, Rerun
from trainer.audit.step_leaves import RoundTrace
from trainer.codecs import encode
from trainer.data.data import Windows
from trainer.operations.effects import Value
from trainer.operations.tracer import Source, Tracer
from trainer.outer.inner_update import update
from trainer.outer.shards import Result, Shards
from trainer.stage.steps import Recorder, accumulate
from trainer.worker.dispute_player import DisputePlayer
from trainer.worker.member import Made, StageMember
from trainer.worker.sharding import ShardExchange
from trainer.worker.worker import Worker

EXAGGERATION = 10.0  # Enough to steer the mean of a few replicas.
WRONG_PRODUCT = 2  # Every stage with a layer has more products than that.

Meddle = Callable[[int, str, Sequence[Value]], None]
"""May change what an operation wrote: its index, its name, and the values."""


class WrongGradients(StageMember):
    """Walks up the loss instead of down, and commits to what came of it."""

    def compute(self, windows: Windows, recorder: Recorder, rate_index: int, total_steps: int) -> float | None:
        """A step with the gradients turned around."""
        loss = accumulate(self.stage, self._position, windows, recorder)
        self.stage.gradients.neg_()
        self._left_out += not update(self.stage, self._position, recorder, rate_index, total_steps)
        return loss


class ForgedCommitment(StageMember):
    """Computes as it should and commits to something else."""

    def say(self, report: TaskReport) -> None:
        """A root under which there are no leaves."""
        if isinstance(report, RoundCommit):
            root = bytes(byte ^ 0xFF for byte in bytes.fromhex(report.root))
            report = msgspec.structs.replace(report, root=root.hex())
        super().say(report)


class Lazy(StageMember):
    """Computes its first step and sends that one's payloads again ever after."""

    _first: tuple[Mapping[PayloadKey, bytes], float | None] | None = None

    def compute(self, windows: Windows, recorder: Recorder, rate_index: int, total_steps: int) -> float | None:
        """The first step, or what it sent and said once more."""
        if self._first is None:
            loss = super().compute(windows, recorder, rate_index, total_steps)
            self._first = recorder.sent, loss
            return loss
        sent, loss = self._first
        for (kind, micro), payload in sent.items():
            recorder.send(kind, micro, payload, 4 * len(payload))
        for kind, micro in self._position.expected(crossings(self._training)):
            if kind in ("behind", "ahead"):
                recorder.received[kind, micro] = b""
            else:
                recorder.receive(kind, micro)
        return loss


class Substitute(StageMember):
    """Computes and commits to its steps as it should, and contributes something else than they gave."""

    def made(self, command: BeginRound, trace: RoundTrace) -> Made:
        """The same direction with ``EXAGGERATION`` times the norm; the last leaf binds the true one."""
        true = super().made(command, trace)
        shards = self._method.shards(command.round, len(true.pieces))
        far = shards.join([shards.decode(data, at) for at, data in enumerate(true.pieces)]).mul_(EXAGGERATION)
        return replace(true, pieces=shards.encode(far))


class FalseExchange(ShardExchange):
    """Hands out another mean than the parts of its shard give."""

    def made(
        self,
        shards: Shards,
        place: int,
        parts: dict[int, bytes],
        free: Tensor,
        residue: Tensor | None,
        weights: dict[int, int],
    ) -> Result:
        """The mean turned around."""
        turned = {replica: encode(shards.decode(data, place).neg_(), shards.codec) for replica, data in parts.items()}
        return super().made(shards, place, turned, free, residue, weights)


class FalseReducer(StageMember):
    """Trains as it should, and reduces its shard to something else."""

    exchange = FalseExchange


def wrong_product() -> Meddle:
    """Changes the lowest bit of the product ``WRONG_PRODUCT`` of a step, counted from 0."""
    products = itertools.count()

    def flip(_index: int, name: str, written: Sequence[Value]) -> None:
        if name == "aten.mm.default" and next(products) == WRONG_PRODUCT:
            assert isinstance(written[0], Tensor)
            written[0].view(torch.int32).view(-1)[0].bitwise_xor_(1)

    return flip


class MeddlingTracer(Tracer):  # type: ignore[no-untyped-call]
    """Records what an operation has come to after ``meddle``."""

    def __init__(self, meddle: Meddle, catch: Collection[Source] = (), last: int | None = None) -> None:
        """As ``Tracer``."""
        super().__init__(catch, last)
        self._meddle = meddle

    def record(
        self, name: str, module: str, arguments: str, reads: list[Read], written: Sequence[Value | bytes]
    ) -> None:
        """Meddle, then record."""
        self._meddle(len(self.leaves), name, [value for value in written if not isinstance(value, bytes)])
        super().record(name, module, arguments, reads, written)


class WrongOperation(StageMember):
    """Changes the lowest bit of one product of each step."""

    def compute(self, windows: Windows, recorder: Recorder, rate_index: int, total_steps: int) -> float | None:
        """A step with that operation."""
        with MeddlingTracer(wrong_product()).recording(self.stage.module, {}):
            return super().compute(windows, recorder, rate_index, total_steps)


class StubbornPlayer(DisputePlayer):
    """Stands by its changed operations in a dispute."""

    def __init__(
        self, auditor: OpeningReplayer, replay: ReplayStep, opening: bytes, meddle: Callable[[], Meddle] = wrong_product
    ) -> None:
        """``meddle`` is asked once a step."""
        super().__init__(auditor, replay, opening)
        self._meddle = meddle

    def step(self, rerun: Rerun, step: int) -> Redone:
        """Run it with the same change."""
        with self.tracer().recording(self._stage.module, {}):
            return super().step(rerun, step)

    def tracer(self, catch: Collection[Source] = (), last: int | None = None) -> Tracer:
        """One that makes the change."""
        return MeddlingTracer(self._meddle(), catch, last)


LIES: Mapping[str, type[StageMember]] = {
    "gradient": WrongGradients,
    "commitment": ForgedCommitment,
    "lazy": Lazy,
    "substitute": Substitute,
    "operation": WrongOperation,
    "shard": FalseReducer,
}


def main(words: Sequence[str]) -> int:
    """Run a verb of the trainer; a worker lies as ``--lie`` says. Returns the exit code."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--lie", choices=LIES)
    options, others = parser.parse_known_args(words)
    if options.lie is not None:
        Worker.member = LIES[options.lie]
    if options.lie == "operation":
        Worker.player = StubbornPlayer
    return trainer(others)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
