"""Two stages in two processes of one thread each, against one process: speed, and what the pipeline costs in CPU time.

Both do the same steps on the same samples with the worker's own code (stages, schedules, codecs), over a
loopback socket. With M micro-batches 1F1B can be 2M / (M + 1) times as quick as one process, a zero-bubble schedule
2 * 3M / (3M + 1) times. Each runs as its paper draws it, and with as many micro-batches ahead as `activations: auto` takes where
the line is no matter: what encoding and the way take is hidden then. Speed needs two idle cores: the best step counts, and
a busy machine shows as a poor one. CPU time is the median's, of both processes together. Two cores that share caches, memory and
perhaps a core's units are each slower than one alone, whatever runs on them: two whole models beside each other, which exchange
nothing, say by how much (*cores' scaling*), and are what the pipeline's CPU time is held against.

Claims, for 1F1B with micro-batches ahead: at least 95 % of 2M / (M + 1) at M = 4, 8, 16; CPU overhead at most 7 %.

    python -m benchmarks.learning.pipeline [--steps 8] [--micro-batches 4,8,16]
"""

import argparse
import multiprocessing
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable
from itertools import product
from multiprocessing.connection import Connection
from typing import Any, Literal

import msgspec
import numpy as np

from benchmarks.common import publish
from benchmarks.learning._replica import even_cuts, llama
from protocol.boundary import Kind, Position
from protocol.job.job import TrainingSpec
from trainer.audit.environment import configure
from trainer.data.data import Windows
from trainer.stage.model import Cut
from trainer.stage.stage import Stage
from trainer.stage.steps import Recorded, Recorder, accumulate

WIDTH, LAYERS, SEQUENCE, ROWS = 192, 8, 128, 4
RATE = 1e-3
SCHEDULES: tuple[Literal["1f1b", "zero-bubble"], ...] = ("1f1b", "zero-bubble")
AHEAD = 2
_HEAD = struct.Struct("<BII")
_KINDS: tuple[Kind, ...] = ("activation", "gradient")


class SocketBoundary:
    """A neighbour at the other end of a socket; one thread reads what comes."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._changed = threading.Condition()
        self._came: dict[tuple[Kind, int], bytes] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def arrived(self, kind: Kind, micro: int) -> bool:
        """As ``Boundary.arrived``."""
        with self._changed:
            return (kind, micro) in self._came

    def receive(self, kind: Kind, micro: int) -> bytes:
        """As ``Boundary.receive``."""
        with self._changed:
            self._changed.wait_for(lambda: (kind, micro) in self._came)
            return self._came.pop((kind, micro))

    def send(self, kind: Kind, micro: int, payload: bytes, naive: int) -> None:
        """As ``Boundary.send``."""
        self._line.sendall(_HEAD.pack(_KINDS.index(kind), micro, len(payload)) + payload)

    def _read(self) -> None:
        with self._line.makefile("rb") as file:
            while head := file.read(_HEAD.size):
                kind, micro, size = _HEAD.unpack(head)
                payload = file.read(size)
                with self._changed:
                    self._came[_KINDS[kind], micro] = payload
                    self._changed.notify_all()


def batches(spec: TrainingSpec, steps: int) -> list[Windows]:
    """The same random tokens for everybody."""
    chance = np.random.default_rng(1)
    return [chance.integers(0, 259, (spec.batch, SEQUENCE + 1), dtype=np.int64) for _ in range(steps)]


def measured(spec: TrainingSpec, steps: int, step: Callable[[Windows], float | None]) -> dict[str, Any]:
    """Seconds and CPU seconds of each step."""
    walls, cpus, loss = [], [], None
    for windows in batches(spec, steps):
        wall, cpu = time.perf_counter(), time.process_time()
        loss = step(windows)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return {"wall": walls, "cpu": cpus, "loss": loss}


def one_process(spec: TrainingSpec, steps: int, answer: Connection) -> None:
    """The whole model."""
    configure(1)
    stage = Stage(llama(WIDTH, LAYERS), Cut(0, LAYERS, True, True), msgspec.structs.replace(spec, schedule="1f1b"))

    def step(windows: Windows) -> float | None:
        loss = accumulate(stage, Position(0, 1), windows, Recorded({}))
        stage.adam_step(RATE)
        return loss

    answer.send(measured(spec, steps, step))


def one_stage(index: int, spec: TrainingSpec, steps: int, line: socket.socket, answer: Connection) -> None:
    """Half of it."""
    configure(1)
    stage = Stage(llama(WIDTH, LAYERS), even_cuts(LAYERS, 2)[index], spec)
    boundary = SocketBoundary(line)

    def step(windows: Windows) -> float | None:
        loss = accumulate(stage, Position(index, 2), windows, Recorder(boundary))
        stage.adam_step(RATE)
        return loss

    answer.send(measured(spec, steps, step))


def _run(target: Callable[..., None], arguments: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    started = []
    for each in arguments:
        here, there = context.Pipe()
        process = context.Process(target=target, args=(*each, there))
        process.start()
        started.append((process, here))
    answers = [here.recv() for _, here in started]
    for process, _ in started:
        process.join()
    return answers


def compare(spec: TrainingSpec, steps: int) -> dict[str, Any]:
    """One row: the whole model in one process, then two stages."""
    (whole,) = _run(one_process, [(spec, steps)])
    beside = _run(one_process, [(spec, steps)] * 2)
    left, right = socket.socketpair()
    stages = _run(one_stage, [(0, spec, steps, left), (1, spec, steps, right)])
    for line in (left, right):
        line.close()
    micros = spec.micro_batches
    speed = min(whole["wall"][1:]) / min(max(pair) for pair in list(zip(*(s["wall"] for s in stages), strict=True))[1:])
    scaling = min(whole["wall"][1:]) / min(min(each["wall"][1:]) for each in beside)
    apart = statistics.median(cpu for each in beside for cpu in each["cpu"][1:])
    both = [sum(pair) for pair in zip(*(stage["cpu"] for stage in stages), strict=True)]
    ideal = 6 * micros / (3 * micros + 1) if spec.schedule == "zero-bubble" else 2 * micros / (micros + 1)
    return {
        "speed-up": round(speed, 3),
        "ideal": round(ideal, 3),
        "share of ideal": round(speed / ideal, 3),
        "share of 2M/(M+1)": round(speed * (micros + 1) / (2 * micros), 3),
        "cores' scaling": round(scaling, 3),
        "share of it on these cores": round(speed * (micros + 1) / (2 * micros) / min(1.0, scaling), 3),
        "CPU overhead": round(statistics.median(both[1:]) / apart - 1, 4),
        "CPU overhead over one core alone": round(
            statistics.median(both[1:]) / statistics.median(whole["cpu"][1:]) - 1, 4
        ),
        "loss difference": abs(stages[1]["loss"] - whole["loss"]),
    }


def main() -> None:
    """All rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--micro-batches", default="4,8,16")
    options = parser.parse_args()
    rows = {}
    for micros in (int(text) for text in options.micro_batches.split(",")):
        for schedule, ahead in product(SCHEDULES, (0, AHEAD)):
            spec = TrainingSpec(
                sequence=SEQUENCE,
                batch=ROWS * micros,
                micro_batches=micros,
                activations="int8",
                schedule=schedule,
                lookahead=ahead,
            )
            rows[f"M={micros} {schedule}, {ahead} ahead"] = row = compare(spec, options.steps)
            print(
                f"M={micros:<3} {schedule:12} {ahead} ahead",
                "  ".join(f"{name} {value:.4g}" for name, value in row.items()),
                flush=True,
            )
    publish("pipeline", "95 % of 2M/(M+1) on two idle cores, at most 7 % CPU overhead", {"rows": rows})


if __name__ == "__main__":
    main()
