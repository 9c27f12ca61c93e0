"""What committing to every step costs: hashes of payloads and states, kept states, leaves and their tree.

The last of two stages of the demo's model (``tiny-llama``) does the demo's steps, 20 a round, on payloads that came once. A round
with commitments and one without are done side by side in one process: they take turns step by step, and who goes first changes
each time, so that what else the machine does meets both alike. Both the processor's time, of all threads, and the clock's are
counted; so is hashing the round's anchor and momentum. What makes the commitments is what ``trainer.worker.member`` makes
them with. The goal: less than 3 % of a step.

    python -m benchmarks.trust.commitments [--rounds 32] [--every 1 10]
"""

import argparse
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import torch

from benchmarks.common import publish
from protocol.audit import KEPT_ROUNDS, StepLeaf, state_interval
from protocol.boundary import PayloadKey, Position, crossings
from protocol.job.job import ModelSpec, TrainingSpec
from protocol.models.boundary_bytes import recorded_bytes
from protocol.models.model import resolve
from trainer.audit.environment import configure
from trainer.audit.step_leaves import RoundTrace, job_digest
from trainer.data.data import Windows
from trainer.outer import OuterState
from trainer.outer.inner_update import update
from trainer.stage.model import Cut
from trainer.stage.snapshots import SnapshotKeeper
from trainer.stage.stage import Stage
from trainer.stage.steps import Recorded, Recorder, accumulate, digests

VOCABULARY = 2048
TOTAL = 10_000


class Bench:
    """The last of two stages, with what it receives in a step."""

    def __init__(self, training: TrainingSpec) -> None:
        config = resolve(ModelSpec(preset="tiny-llama"), VOCABULARY)
        layers = int(config["num_hidden_layers"])
        generator = np.random.default_rng(0)
        self.training = training
        self.position = Position.of(1, 2, training)
        self.windows: Windows = generator.integers(0, VOCABULARY, (training.batch, training.sequence + 1))
        first = Stage(config, Cut(0, layers // 2, True, False), training)
        kept: dict[PayloadKey, bytes] = {}
        rows = training.batch // training.micro_batches
        for micro in range(training.micro_batches):
            outputs = first.forward(torch.from_numpy(self.windows[micro * rows : (micro + 1) * rows, :-1]))
            kept["activation", micro] = first.crossing.encode(outputs.detach(), "forward")
        self.payloads = kept
        self.stage = Stage(config, Cut(layers // 2, layers, False, True), training)
        self.anchor = self.stage.state().parameters  # A member has it from the outer step before.
        self.momentum = torch.zeros_like(self.anchor)
        self.keeper = SnapshotKeeper()
        self.kept: list[RoundTrace] = []

    def step(self, number: int) -> tuple[Recorder, float | None]:
        """One inner step."""
        recorder = Recorder(Recorded(self.payloads))
        loss = accumulate(self.stage, self.position, self.windows, recorder)
        update(self.stage, self.position, recorder, number, TOTAL)
        return recorder, loss

    def round(self, first_step: int) -> Iterator[None]:
        """A round without commitments, a step at a time."""
        for index in range(self.training.inner_steps):
            self.step(first_step + index)
            yield

    def committed_round(self, first_step: int) -> Iterator[None]:
        """A round with commitments, a step at a time, up to the root; what comes before and after the steps is with them."""
        stage, every, micros = self.stage, self.training.commit_every, crossings(self.training)
        outer = OuterState(self.anchor, self.momentum)
        outer.digest()
        tokens = self.training.batch * self.training.sequence
        size = recorded_bytes(stage.shape, self.training, tokens)
        interval = state_interval(self.training.inner_steps, 12 * stage.parameters.numel(), size, every)
        trace = RoundTrace(first_step, outer.anchor, interval, segment=every)
        job = job_digest(self.training)
        for index in range(self.training.inner_steps):
            trace.before_step(stage, self.keeper)
            recorder, loss = self.step(first_step + index)
            received = digests(recorder.received, self.position.expected(micros))
            sent = digests(recorder.sent, self.position.produced(micros))
            leaf = StepLeaf(
                first_step + index, "bench", "0" * 64, received, sent, None, None, outer.anchor_digest, loss, job=job
            )
            trace.add(leaf, recorder.received)
            if index + 1 < self.training.inner_steps:
                yield
        trace.after_steps(stage, self.keeper)
        trace.bind("0" * 64)
        trace.tree()
        self.kept.append(trace)
        for old in self.kept[:-KEPT_ROUNDS]:
            self.keeper.give_back(old.states.values())
        self.kept = self.kept[-KEPT_ROUNDS:]
        yield

    def both(self, number: int) -> tuple["Seconds", "Seconds"]:
        """A round without and one with commitments, step by step in turns; what each took."""
        ways = (self.round(number), self.committed_round(number))
        took = [Seconds(0.0, 0.0), Seconds(0.0, 0.0)]
        for step in range(self.training.inner_steps):
            for way in (0, 1) if (number + step) % 2 else (1, 0):
                began = Seconds.now()
                next(ways[way])
                took[way] += began.seconds()
        return took[0], took[1]


@dataclass(frozen=True)
class Seconds:
    """Of the processor, and by the clock."""

    processor: float
    clock: float

    def __add__(self, other: "Seconds") -> "Seconds":
        return Seconds(self.processor + other.processor, self.clock + other.clock)

    @staticmethod
    def now() -> "Seconds":
        """Since some beginning."""
        return Seconds(time.process_time(), time.perf_counter())

    def seconds(self) -> "Seconds":
        """Since then."""
        now = Seconds.now()
        return Seconds(now.processor - self.processor, now.clock - self.clock)


def measure(training: TrainingSpec, rounds: int) -> dict[str, float | list[float]]:
    """Milliseconds of a step each way, and the part that commitments add: medians over pairs of rounds, and how sure they are."""
    bench = Bench(training)
    for number in range(KEPT_ROUNDS + 1):  # From then on memory is used again, as in every longer run.
        bench.both(number)
    pairs = [bench.both(number) for number in range(rounds)]
    processor = [100 * (b.processor / a.processor - 1) for a, b in pairs]
    clock = [100 * (b.clock / a.clock - 1) for a, b in pairs]
    steps = training.inner_steps
    return {
        "parameters": bench.stage.parameter_count,
        "step_ms_without": round(1000 * statistics.median(a.processor for a, _ in pairs) / steps, 2),
        "step_ms_with": round(1000 * statistics.median(b.processor for _, b in pairs) / steps, 2),
        "overhead_percent": round(statistics.median(processor), 2),
        "overhead_percent_quartiles": [round(q, 2) for q in statistics.quantiles(processor, n=4)[::2]],
        "overhead_percent_interval": _interval(processor),
        "overhead_percent_of_time": round(statistics.median(clock), 2),
        "overhead_percent_of_time_interval": _interval(clock),
    }


def _interval(values: Sequence[float]) -> list[float]:
    """Between which the median lies in 95 of 100 such measurements, whatever the noise looks like: a rank of the sorted values.

    Source: the interval of the sign test, as half of the values are below the median (Conover, Practical Nonparametric
    Statistics, section 3.2). The quartiles beside it say how far single pairs lie apart, which more pairs do not change.
    """
    ordered, count = sorted(values), len(values)
    tail, rank = 0.0, 0
    while (tail := tail + math.comb(count, rank) / 2**count) <= 0.025:
        rank += 1
    low = max(0, rank - 1)
    return [round(ordered[low], 2), round(ordered[-1 - low], 2)]


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=32)
    parser.add_argument("--every", type=int, nargs="+", default=[1, 10])
    options = parser.parse_args()
    configure(1)
    rows = {
        f"state hashed every {every} steps": measure(
            msgspec.structs.replace(TrainingSpec(), commit_every=every), options.rounds
        )
        for every in options.every
    }
    publish("commitments", "goal: commitments cost less than 3 % of a step's time", {"rows": rows})


if __name__ == "__main__":
    main()
