"""Small jobs for tests: models of a few thousand parameters, tokens that can be learnt, pipelines as threads."""

import hashlib
import json
import queue
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from protocol.audit import StepLeaf, ends_segment, segment
from protocol.boundary import Kind, PayloadKey, Position, crossings
from protocol.job.job import DatasetSpec, JobSpec, ModelSpec, TrainingSpec
from protocol.models.model import resolve
from trainer.audit.opening_file import SegmentEnd, write_opening
from trainer.audit.step_leaves import RoundTrace, job_digest, made_after
from trainer.data.data import TokenFile
from trainer.data.marks import BEGINS, UNLEARNT
from trainer.errors import TrainerError
from trainer.outer import Local, OuterMethod, OuterState, local_digest, outer_method
from trainer.outer.inner_update import update
from trainer.stage.activation_cache import Caches
from trainer.stage.model import Cut
from trainer.stage.snapshots import SnapshotKeeper
from trainer.stage.stage import Stage, StageState, vector_digest
from trainer.stage.steps import Recorder, accumulate, digests
from trainer.transfer import fetched

VOCABULARY = 300
SEQUENCE = 16
ENV = "test-class"

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
GEMMA: dict[str, Any] = LLAMA | {
    "head_dim": 16,
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 6,
    "query_pre_attn_scalar": 16,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
FAMILY_CONFIGS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "qwen2": LLAMA | {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": LLAMA | {"model_type": "qwen3", "head_dim": 16},
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64},
    "mistral": LLAMA | {"model_type": "mistral", "sliding_window": 5},
    "mixtral": LLAMA | {"model_type": "mixtral", "num_local_experts": 3, "num_experts_per_tok": 2},
    "qwen3_moe": LLAMA
    | {
        "model_type": "qwen3_moe",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "head_dim": 16,
        "norm_topk_prob": True,
    },
    "olmo2": LLAMA | {"model_type": "olmo2"},
    "phi3": LLAMA | {"model_type": "phi3", "sliding_window": 7},
    "smollm3": LLAMA | {"model_type": "smollm3", "no_rope_layers": [1, 0, 1]},
    "granite": LLAMA
    | {
        "model_type": "granite",
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.25,
        "residual_multiplier": 0.5,
        "logits_scaling": 2.0,
    },
    "gemma2": GEMMA | {"model_type": "gemma2"},
    "gemma3_text": GEMMA
    | {
        "model_type": "gemma3_text",
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1_000_000.0},
        },
    },
    "gpt_neox": {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    | {
        "model_type": "gpt_neox",
        "rotary_pct": 0.5,
    },
}


def training(**changes: Any) -> TrainingSpec:
    values: dict[str, Any] = {
        "tokens": 4096,
        "sequence": SEQUENCE,
        "batch": 4,
        "micro_batches": 2,
        "inner_steps": 4,
        "seed": 7,
        "warmup_steps": 2,
        "activations": "fp32",
        "commit_every": 1,
        "learning_rate": 3e-3,
    }
    return TrainingSpec(**(values | changes))


def job(config: dict[str, Any] = LLAMA, **changes: Any) -> JobSpec:
    return JobSpec("small", ModelSpec(config=config), 1, DatasetSpec("0" * 64), training=training(**changes))


def config_of(family: str = "llama") -> dict[str, Any]:
    return resolve(ModelSpec(config=FAMILY_CONFIGS[family]), VOCABULARY)


def write_tokens(path: Path, count: int, seed: int) -> None:
    """Tokens that mostly count upwards: a model of any size learns that quickly."""
    generator = np.random.default_rng(seed)
    jumps = generator.integers(0, VOCABULARY, count)
    steps = np.where(generator.random(count) < 0.1, jumps, 1)
    (np.cumsum(steps) % VOCABULARY).astype("<u4").tofile(path)


def write_marked(path: Path, marked: list[int], sequence: int = SEQUENCE) -> TokenFile:
    """A token file of windows of whole documents, and the token that ends the last label."""
    np.array([*marked, BEGINS | UNLEARNT], dtype="<u4").tofile(path)
    return TokenFile(path, sequence, VOCABULARY)


def job_folder(folder: Path, family: str = "llama") -> Path:
    folder.mkdir(exist_ok=True)
    write_tokens(folder / "train.bin", 20_000, 1)
    write_tokens(folder / "heldout.bin", 2_000, 2)
    (folder / "config.json").write_text(json.dumps(config_of(family)))
    return folder


def cuts(layers: int, stages: int) -> list[Cut]:
    edges = [stage * layers // stages for stage in range(stages + 1)]
    return [Cut(edges[s], edges[s + 1], s == 0, s == stages - 1) for s in range(stages)]


@dataclass
class Wire:
    """A boundary between stages that are threads of this process."""

    stage: int
    lanes: dict[tuple[int, Kind, int], "queue.Queue[bytes]"]

    def arrived(self, kind: Kind, micro: int) -> bool:
        return not self.lanes[self.stage, kind, micro].empty()

    def receive(self, kind: Kind, micro: int) -> bytes:
        return self.lanes[self.stage, kind, micro].get(timeout=30)

    def send(self, kind: Kind, micro: int, payload: bytes, naive: int) -> None:
        self.lanes[self.stage + (1 if kind == "activation" else -1), kind, micro].put(payload)


@dataclass
class Pipeline:
    """All stages of one replica, each step run by one thread a stage."""

    stages: list[Stage]
    tokens: TokenFile
    replica: int = 0
    lanes: dict[tuple[int, Kind, int], "queue.Queue[bytes]"] = field(default_factory=dict)
    recorders: list[Recorder] = field(default_factory=list)
    caches: list[Caches] = field(default_factory=list)

    def __post_init__(self) -> None:
        micros = crossings(self.stages[0].training)
        self.caches = [Caches.empty() for _ in self.stages]
        for stage in range(len(self.stages)):
            self.lanes[stage, "offer", 0] = queue.Queue()
            for micro in range(micros):
                self.lanes[stage, "activation", micro] = queue.Queue()
                self.lanes[stage, "gradient", micro] = queue.Queue()

    def step(self, step: int, total: int, turned: Stage | None = None) -> float:
        """One step; ``turned``: the stage that walks up the loss instead of down."""
        spec = self.stages[0].training
        windows, _ = self.tokens.sample(spec.seed, step, self.replica, spec.batch, spec.sampling, spec.shares)
        losses: list[float | None] = [None] * len(self.stages)
        errors: list[TrainerError] = []
        self.recorders = [Recorder(Wire(index, self.lanes), self.caches[index]) for index in range(len(self.stages))]

        def work(index: int) -> None:
            torch.set_num_threads(1)
            stage = self.stages[index]
            try:
                position = Position.of(index, len(self.stages), spec)
                losses[index] = accumulate(stage, position, windows, self.recorders[index])
                if stage is turned:
                    stage.gradients.neg_()
                update(stage, position, self.recorders[index], step, total)
            except TrainerError as error:  # Raised again below, in the test's own thread.
                errors.append(error)

        threads = [threading.Thread(target=work, args=(index,)) for index in range(len(self.stages))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        loss = losses[-1]
        assert loss is not None
        return loss


def pipeline(
    family: str, stages: int, tokens: TokenFile, spec: TrainingSpec, layers: int = 3, device: str = "cpu"
) -> Pipeline:
    config = config_of(family)
    return Pipeline([Stage(config, cut, spec, device=device) for cut in cuts(layers, stages)], tokens)


@dataclass
class Committed:
    """A round that one stage of a pipeline did and committed to."""

    trace: RoundTrace
    position: Position
    spec: TrainingSpec
    total: int
    sent: list[dict[PayloadKey, bytes]]
    after: StageState
    method: OuterMethod

    @property
    def root(self) -> str:
        return self.trace.tree().root.hex()

    def opening(self, step: int, ending: bool = False, anchored: bool = True) -> bytes:
        first, stop = segment(step, self.spec.commit_every, len(self.trace.leaves))
        made = made_after(self.spec, len(self.trace.leaves))
        shown = SegmentEnd(self.trace.states.get(stop, self.after), tuple(self.sent[first:stop])) if ending else None
        pieces = write_opening(
            self.trace,
            step,
            self.trace.states[first],
            self.position,
            crossings(self.spec),
            self.method,
            made,
            shown,
            anchored,
        )
        return b"".join(pieces)


def commit_round(
    line: Pipeline,
    stage: int,
    steps: int,
    total: int,
    first_step: int = 0,
    local: Local | None = None,
    keeper: SnapshotKeeper | None = None,
) -> Committed:
    """An honest round of the whole pipeline, as ``stage`` commits to it, with every state kept."""
    keeper = keeper or SnapshotKeeper()
    position = Position.of(stage, len(line.stages), line.stages[0].training)
    own, spec = line.stages[stage], line.stages[stage].training
    micros = crossings(spec)
    anchor = fetched(own.values())
    method = outer_method(spec, own.slots, anchor.numel())
    carried_in = method.fresh(OuterState(anchor, torch.zeros_like(anchor))) if local is None else local
    if own.training.memory == "lean":
        own.load(anchor)
    trace = RoundTrace(first_step, anchor, 1, carried_in, segment=spec.commit_every)
    sent = []
    for index in range(steps):
        step = first_step + index
        trace.before_step(own, keeper)
        loss = line.step(step, total)
        _, samples = line.tokens.sample(spec.seed, step, line.replica, spec.batch, spec.sampling, spec.shares)
        recorder = line.recorders[stage]
        leaf = StepLeaf(
            step=step,
            env_class=ENV,
            samples=samples,
            received=digests(recorder.received, position.expected(micros)),
            sent=digests(recorder.sent, position.produced(micros)),
            before=None,
            after=None,
            anchor=vector_digest(trace.anchor),
            loss=loss if own.cut.is_last else None,
            local=trace.local_digest,
            job=job_digest(spec),
        )
        trace.add(leaf, recorder.received)
        sent.append(recorder.sent)
        if ends_segment(index, spec.commit_every, steps):
            own.shorten(anchor)
        given = method.contribution(trace.anchor, own.values(), trace.local, min(1, first_step))
        if index == made_after(spec, steps):
            bound = hashlib.sha256(given.data).hexdigest()
    trace.after_steps(own, keeper)
    trace.bind(bound, local_digest(given.local), made_after(spec, steps))
    return Committed(trace, position, spec, total, sent, own.state(), method)
