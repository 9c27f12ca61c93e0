"""One replica's pipeline in one process, a thread a stage: real stages, codecs and payloads without a network."""

import queue
from collections import Counter
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pynvml
import torch

from benchmarks.common import FOLDER
from cottage.demo.corpus import write_corpus
from protocol.boundary import Kind, Position
from protocol.job.job import ModelSpec, TokenizerSpec, TrainingSpec
from protocol.job.learning_rate import learning_rate
from protocol.models.model import resolve
from trainer.codecs.envelope import wrap
from trainer.data.data import TokenFile, Windows, heldout_parts
from trainer.data.prepare import prepare
from trainer.formats.source import Dataset
from trainer.stage.activation_cache import Caches
from trainer.stage.boundary_codec import wrapped_kinds
from trainer.stage.model import Cut
from trainer.stage.stage import Stage
from trainer.stage.steps import Recorded, Recorder, accumulate, heldout_loss

VOCABULARY = 259
PATIENCE = 900.0  # Seconds until a stage whose neighbour failed gives up.


def byte_text(sequence: int) -> Path:
    """A folder with ``train.bin`` and ``heldout.bin``: the running Python library's sources, a byte a token."""
    out = FOLDER / f"bytes-{sequence}"
    if not (out / "manifest.json").exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        write_corpus(FOLDER / "bytes.txt")
        prepare(Dataset.of(FOLDER / "bytes.txt", "text"), TokenizerSpec(kind="bytes"), None, 0.02, sequence, out)
        (FOLDER / "bytes.txt").unlink()
    return out


def of_card(process: int) -> int:
    """Bytes that a process has of the graphics card, by the driver's account; torch gives none back, so they are its most."""
    pynvml.nvmlInit()
    try:
        card = pynvml.nvmlDeviceGetHandleByIndex(0)
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(card)
        return next((int(each.usedGpuMemory or 0) for each in running if each.pid == process), 0)
    finally:
        pynvml.nvmlShutdown()


def llama(width: int, layers: int, vocabulary: int = VOCABULARY) -> dict[str, Any]:
    """The config of a small Llama."""
    config = {
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": width * 8 // 3 // 16 * 16,
        "num_hidden_layers": layers,
        "num_attention_heads": max(1, width // 32),
        "num_key_value_heads": max(1, width // 32),
        "max_position_embeddings": 1024,
    }
    return resolve(ModelSpec(config=config), vocabulary)


def even_cuts(layers: int, stages: int) -> list[Cut]:
    """Layers in near-equal parts."""
    edges = [stage * layers // stages for stage in range(stages + 1)]
    return [Cut(edges[s], edges[s + 1], s == 0, s == stages - 1) for s in range(stages)]


class Wire:
    """A boundary between threads that counts what crosses it."""

    def __init__(
        self, stage: int, lanes: dict[tuple[int, Kind, int], "queue.SimpleQueue[bytes]"], wrapped: frozenset[str]
    ) -> None:
        self._stage, self._lanes, self._wrapped = stage, lanes, wrapped
        self.bytes: Counter[str] = Counter()

    def arrived(self, kind: Kind, micro: int) -> bool:
        """As ``Boundary.arrived``."""
        return not self._lane(self._stage, kind, micro).empty()

    def receive(self, kind: Kind, micro: int) -> bytes:
        """As ``Boundary.receive``."""
        return self._lane(self._stage, kind, micro).get(timeout=PATIENCE)

    def send(self, kind: Kind, micro: int, payload: bytes, naive: int) -> None:
        """As ``Boundary.send``."""
        self.bytes[kind] += len(wrap(payload) if kind in self._wrapped else payload)
        self.bytes["naive"] += naive
        self._lane(self._stage + (1 if kind == "activation" else -1), kind, micro).put(payload)

    def _lane(self, stage: int, kind: Kind, micro: int) -> "queue.SimpleQueue[bytes]":
        return self._lanes.setdefault((stage, kind, micro), queue.SimpleQueue())


class Replica:
    """A pipeline of ``stages`` stages in this process."""

    def __init__(self, config: dict[str, Any], layers: int, stages: int, training: TrainingSpec) -> None:
        self.training = training
        self.stages = [Stage(config, cut, training) for cut in even_cuts(layers, stages)]
        lanes: dict[tuple[int, Kind, int], queue.SimpleQueue[bytes]] = {}
        self.wires = [Wire(index, lanes, frozenset[str](wrapped_kinds(training))) for index in range(stages)]
        self._caches = [Caches.empty() for _ in self.stages]
        self._threads = ThreadPoolExecutor(stages, "stage")

    def step(self, windows: Windows, rate: float) -> float:
        """One inner step on a batch; its loss."""
        futures = [self._threads.submit(self._work, index, windows, rate) for index in range(len(self.stages))]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
        loss = futures[-1].result()
        assert loss is not None
        return loss

    def _work(self, index: int, windows: Windows, rate: float) -> float | None:
        torch.set_num_threads(1)
        position = Position.of(index, len(self.stages), self.training)
        recorder = Recorder(self.wires[index], self._caches[index])
        loss = accumulate(self.stages[index], position, windows, recorder)
        self.stages[index].adam_step(rate)
        return loss

    def train(self, tokens: TokenFile, steps: int) -> list[float]:
        """``steps`` steps of the job's own samples and learning rates; their losses."""
        spec, losses = self.training, []
        for step in range(steps):
            windows, _ = tokens.sample(spec.seed, step, 0, spec.batch, spec.sampling, spec.shares)
            losses.append(self.step(windows, learning_rate(spec, step, steps)))
        return losses

    def copy_to(self, whole: Stage) -> None:
        """Put all parameters into a stage that has every layer."""
        named = {slot.name: (stage, slot) for stage in self.stages for slot in stage.slots}
        for slot in whole.slots:
            stage, own = named[slot.name]
            whole.parameters[slot.start : slot.start + slot.count] = stage.parameters[own.start : own.start + own.count]

    def copy_from(self, whole: Stage) -> None:
        """Take all parameters from a stage that has every layer."""
        for stage in self.stages:
            named = {slot.name: slot for slot in whole.slots}
            values = {
                slot.name: whole.parameters[named[slot.name].start : named[slot.name].start + slot.count]
                for slot in stage.slots
            }
            stage.load_named(values)

    def share_of_naive(self) -> float:
        """Bytes that crossed, as part of what float32 would have taken."""
        total = sum((wire.bytes for wire in self.wires), Counter[str]())
        naive = total.pop("naive")
        return sum(total.values()) / naive


def heldout(whole: Stage, tokens: TokenFile) -> float:
    """Mean loss of a whole model on held-out windows."""
    found = heldout_loss(whole, heldout_parts(tokens, whole.training), Recorded({}))
    assert found is not None
    return found
