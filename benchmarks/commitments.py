"""What committing to every step costs: hashes of payloads and states, kept states, leaves and their tree.

The last of two stages of the demo's model (``tiny-llama``) does the demo's steps, 20 a round, on payloads that came once; rounds
with commitments and rounds without take turns in one process, and count processor time. Commitments are made as
``trainer.member`` makes them. The goal: less than 3 % of a step.

    python benchmarks/commitments.py [--rounds 6] [--every 1 10]
"""

import argparse
import statistics
import time

import msgspec
import numpy as np
import torch
from _common import publish

from trainer.data import Windows
from trainer.environment import configure
from trainer.model import Cut
from trainer.stage import Stage, vector_digest
from trainer.steps import PayloadKey, Position, Recorded, Recorder, accumulate, digests
from trainer.trace import RoundTrace, job_digest, state_interval
from trainer.update import crossings, update
from transport.wire.audit import StepLeaf
from transport.wire.crossing import recorded_bytes
from transport.wire.job import ModelSpec, TrainingSpec
from transport.wire.model import resolve

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

    def step(self, number: int) -> tuple[Recorder, float | None]:
        """One inner step."""
        recorder = Recorder(Recorded(self.payloads))
        loss = accumulate(self.stage, self.position, self.windows, recorder)
        update(self.stage, self.position, recorder, number, TOTAL)
        return recorder, loss

    def round(self, first_step: int) -> float:
        """Processor seconds of a round without commitments."""
        began = time.process_time()
        for index in range(self.training.inner_steps):
            self.step(first_step + index)
        return time.process_time() - began

    def committed_round(self, first_step: int) -> float:
        """Processor seconds of a round with commitments, up to the root."""
        began = time.process_time()
        stage, every, micros = self.stage, self.training.commit_every, crossings(self.training)
        anchor, job = self.anchor, job_digest(self.training)
        tokens = self.training.batch * self.training.sequence
        size = recorded_bytes(stage.shape, self.training, tokens)
        interval = state_interval(self.training.inner_steps, 12 * stage.parameters.numel(), size, every)
        trace = RoundTrace(first_step, anchor, interval, segment=every)
        begun, end = vector_digest(anchor), None
        for index in range(self.training.inner_steps):
            before = (end or stage.state_digest()) if trace.begins_segment() else None
            if trace.wants_state():
                trace.states[index] = stage.state()
            recorder, loss = self.step(first_step + index)
            end = stage.state_digest() if trace.ends_segment() else None
            received = digests(recorder.received, self.position.expected(micros))
            sent = digests(recorder.sent, self.position.produced(micros))
            leaf = StepLeaf(first_step + index, "bench", "0" * 64, received, sent, before, end, begun, loss, job=job)
            trace.add(leaf, recorder.received)
        trace.bind("0" * 64, after=end or stage.state_digest())
        trace.tree()
        return time.process_time() - began


def measure(training: TrainingSpec, rounds: int) -> dict[str, float]:
    """Milliseconds of a step each way, and the part that commitments add; medians over rounds that took turns."""
    bench = Bench(training)
    bench.round(0)
    without, committed = [], []
    for number in range(rounds):
        without.append(bench.round(number))
        committed.append(bench.committed_round(number))
    steps = training.inner_steps
    plain, whole = statistics.median(without) / steps, statistics.median(committed) / steps
    return {
        "parameters": bench.stage.parameter_count,
        "step_ms_without": round(1000 * plain, 2),
        "step_ms_with": round(1000 * whole, 2),
        "overhead_percent": round(100 * (whole / plain - 1), 2),
    }


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--every", type=int, nargs="+", default=[1, 10])
    options = parser.parse_args()
    configure(1)
    rows = {
        f"state hashed every {every} steps": measure(
            msgspec.structs.replace(TrainingSpec(), commit_every=every), options.rounds
        )
        for every in options.every
    }
    publish("commitments", "goal: commitments cost less than 3 % of a step's processor time", {"rows": rows})


if __name__ == "__main__":
    main()
