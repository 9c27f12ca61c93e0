"""What it costs to have a round on the disk, so that it can be opened after a crash: bytes, and time beside that of its steps.

The last of two stages does some of a round's steps; the round's record is made of as many as it has. What the training thread
does for it (``trainer.worker.round_record``), the way over a Unix socket, and what the agent does (``crash_records``: sealed and
written) are timed apart. States and moments are on the store in any case: their bytes are shown beside.

    python -m benchmarks.trust.crash_records [--rounds 5]
"""

import argparse
import socket
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks.common import publish
from benchmarks.learning._replica import llama
from common.encrypted_files import OVERHEAD, SEGMENT
from desktop.agent.jobs.crash_records import CrashRecords, RoundStart
from desktop.agent.jobs.state_store import StateStore
from protocol.audit import StepLeaf, state_interval
from protocol.boundary import PayloadKey, Position, crossings
from protocol.job.job import DatasetSpec, JobSpec, ModelSpec, TrainingSpec
from protocol.node import Assign
from protocol.plan import Layers, Member, Plan
from protocol.worker import RecordPart
from trainer.audit.environment import configure
from trainer.audit.step_leaves import RoundTrace
from trainer.outer import OuterState, outer_method
from trainer.outer.audit import contribution_name
from trainer.outer.inner_update import update
from trainer.stage.model import Cut
from trainer.stage.snapshots import SnapshotKeeper
from trainer.stage.stage import Stage
from trainer.stage.steps import Recorded, Recorder, accumulate, digests
from trainer.worker.checkpoint import write_checkpoint, write_moments
from trainer.worker.round_record import write_outer_record, write_steps

VOCABULARY, TOTAL, REPLICAS = 4096, 10_000, 2
STEPS_DONE = 3  # Of each round: all steps of it are alike.
MODELS = {"2 M": (256, 4), "25 M": (768, 6)}
"""Width and layers; a stage has half of the layers, and the head."""
SPEC = TrainingSpec(tokens=10**7, sequence=128, batch=16, micro_batches=4, inner_steps=50, commit_every=10)
NODE = "1" * 32


class Bench:
    """A stage, the records of its agent, and what they take."""

    def __init__(self, width: int, layers: int, folder: Path) -> None:
        config = llama(width, layers, VOCABULARY)
        first = Stage(config, Cut(0, layers // 2, True, False), SPEC)
        self.stage = Stage(config, Cut(layers // 2, layers, False, True), SPEC)
        self.position = Position.of(1, 2, SPEC)
        self.windows = np.random.default_rng(0).integers(0, VOCABULARY, (SPEC.batch, SPEC.sequence + 1))
        rows = SPEC.batch // SPEC.micro_batches
        self.payloads: dict[PayloadKey, bytes] = {}
        for micro in range(SPEC.micro_batches):
            outputs = first.forward(torch.from_numpy(self.windows[micro * rows : (micro + 1) * rows, :-1]))
            self.payloads["activation", micro] = first.crossing.encode(outputs.detach(), "forward")
        self.outer = OuterState(self.stage.state().parameters, torch.zeros_like(self.stage.parameters))
        self.method = outer_method(SPEC, self.stage.slots, self.stage.parameters.numel())
        self.store = StateStore(folder / "states", b"s" * 32)
        self.records = CrashRecords(folder / "records", b"s" * 32, self.store, "", 1 << 40, time.time)
        plan = Plan(0, (Layers(0, layers // 2), Layers(layers // 2, layers)), (Member(1, 0, NODE),))
        spec = JobSpec("bench", ModelSpec(config=config), 1, DatasetSpec("0" * 64), training=SPEC)
        self.assign = Assign("a" * 32, 1, "b" * 32, spec, 1, 0, plan, {})
        self.folder = folder

    def round(self, number: int) -> dict[str, float]:
        """One round: what it takes in seconds and in bytes."""
        figures: dict[str, float] = {}
        trace, step_seconds = self.steps(number)
        figures["step"] = step_seconds
        given = self.method.contribution(self.outer.anchor, self.stage.parameters, {}, number)
        figures["states"] = self.timed("keep_states", figures, self.keep_states, number)
        for kind, write in (
            ("steps", lambda: write_steps(trace, TOTAL, self.position)),
            ("outer", lambda: write_outer_record(self.outer.digest(), self.shown(given.data))),
        ):
            pieces = self.timed(f"write_{kind}", figures, write)
            data = b"".join(pieces)
            self.timed(f"socket_{kind}", figures, over_a_socket, pieces)
            part = RecordPart(0, number, kind)  # type: ignore[arg-type]
            self.timed(f"keep_{kind}", figures, self.records.keep, self.assign, part, self.start, data)
            figures[kind] = -(-len(data) // SEGMENT) * OVERHEAD + len(data)
        return figures

    def shown(self, data: bytes) -> dict[str, bytes]:
        """What comes into an outer step of a mesh."""
        return {contribution_name(replica): data for replica in range(REPLICAS)}

    def steps(self, number: int) -> tuple[RoundTrace, float]:
        """A trace of a whole round, of whose steps some were done; seconds of one."""
        payload_bytes = sum(map(len, self.payloads.values()))
        every = state_interval(SPEC.inner_steps, 12 * self.stage.parameters.numel(), payload_bytes, SPEC.commit_every)
        trace, keeper = RoundTrace(0, self.outer.anchor, every, segment=SPEC.commit_every), SnapshotKeeper()
        trace.before_step(self.stage, keeper)
        micros, began = crossings(SPEC), time.perf_counter()
        for step in range(STEPS_DONE):
            recorder = Recorder(Recorded(self.payloads))
            loss = accumulate(self.stage, self.position, self.windows, recorder)
            update(self.stage, self.position, recorder, step, TOTAL)
            received = digests(recorder.received, self.position.expected(micros))
            sent = digests(recorder.sent, self.position.produced(micros))
        took = (time.perf_counter() - began) / STEPS_DONE
        for step in range(SPEC.inner_steps):
            anchor = self.outer.anchor_digest
            leaf = StepLeaf(step, "bench", "0" * 64, received, sent, "0" * 64, "0" * 64, anchor, loss, job="0" * 64)
            trace.add(leaf, recorder.received)
        return trace, took

    def keep_states(self, number: int) -> float:
        """What the agent keeps of every round for peers, with or without records."""
        state, moments = write_checkpoint(self.outer, self.stage.slots, number), write_moments(self.stage, number)
        self.start = RoundStart(self.store.keep("seat", state), self.store.keep("seat-own", moments))
        return float(len(state) + len(moments))

    @staticmethod
    def timed(name: str, figures: dict[str, float], work: Callable[..., Any], *arguments: Any) -> Any:
        """Do it, and note for how many seconds."""
        began = time.perf_counter()
        done = work(*arguments)
        figures[name] = time.perf_counter() - began
        return done


def over_a_socket(pieces: list[memoryview]) -> None:
    """As a worker hands it to its agent."""
    near, far = socket.socketpair()
    size = sum(map(len, pieces))

    def read() -> None:
        left = size
        while left:
            left -= len(far.recv(min(left, 1 << 20)))

    reader = threading.Thread(target=read)
    reader.start()
    for piece in pieces:
        near.sendall(piece)
    reader.join()
    near.close()
    far.close()


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """Medians for each model."""
    found: dict[str, dict[str, float]] = {}
    for name, (width, layers) in MODELS.items():
        with TemporaryDirectory() as folder:
            bench = Bench(width, layers, Path(folder))
            all_rounds = [bench.round(number) for number in range(1, rounds + 1)]
        median = {key: statistics.median(one[key] for one in all_rounds) for key in all_rounds[0]}
        round_seconds = SPEC.inner_steps * median["step"]
        training = median["write_steps"] + median["write_outer"]
        extra = training + sum(median[f"{what}_{kind}"] for what in ("socket", "keep") for kind in ("steps", "outer"))
        found[name] = {
            "parameters": bench.stage.parameter_count,
            "round_seconds": round_seconds,
            "training_thread_percent": 100 * training / round_seconds,
            "all_percent": 100 * extra / round_seconds,
            **median,
        }
    return found


def main() -> int:
    """Measure, print, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    configure(1)
    found = measure(options.rounds)
    for name, figures in found.items():
        print(
            f"{name}: {figures['parameters']:,.0f} parameters, a round of {SPEC.inner_steps} steps takes "
            f"{figures['round_seconds']:.1f} s; written of it {figures['steps'] / 1e6:.2f} MB, of its outer step "
            f"{figures['outer'] / 1e6:.2f} MB, beside {figures['states'] / 1e6:.1f} MB of states that are kept anyway; "
            f"training thread {figures['training_thread_percent']:.3f} %, in all {figures['all_percent']:.2f} %"
        )
    claim = "having a round on the disk takes less than a percent of the time of its steps"
    publish("crash_records", claim, {"models": found, "steps": SPEC.inner_steps, "replicas": REPLICAS})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
