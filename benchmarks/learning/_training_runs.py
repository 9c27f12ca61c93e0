"""Replicas of a model trained one after the other in one process: what a network of them computes, since all is determined.

The stage, its inner steps, the codecs and the outer methods are the product's own. A run is named by all that decides its
numbers; what was run once is read from ``training-runs.jsonl``.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from torch import Tensor

from benchmarks.learning._training_recipes import Recipe
from benchmarks.learning._training_text import Corpus
from protocol.audit import ends_segment
from protocol.boundary import Position
from protocol.job.job import TrainingSpec
from protocol.job.rounds import schedule
from protocol.job.sharding import shard_count
from trainer.audit.environment import configure
from trainer.codecs import CodecName, decode, encode
from trainer.data.data import TokenFile, Windows
from trainer.outer import Local, OuterMethod, OuterState, outer_method
from trainer.outer.checks import mean_update
from trainer.outer.every_step import GRADIENT_CODEC
from trainer.outer.inner_update import update
from trainer.outer.shards import read_result, reduce_shard
from trainer.stage.model import Cut
from trainer.stage.stage import Stage, StageState
from trainer.stage.steps import Recorded, accumulate
from trainer.stage.storage import ALIGNMENT

REPLICAS = 4
SEQUENCE, BATCH, VOCABULARY = 128, 4, 259
CLIP = 1.0
JUDGED_WINDOWS = 768  # 98 thousand tokens: differences between runs are then known to about 0.001 nats.
CURVE_WINDOWS = 128
CURVE_POINTS = 8
FIRST_STEP = 1 << 20  # Samples after the warm start are others than those in it.
NOBODY = Recorded({})  # One stage: nothing crosses a boundary.
SPEEDS = (1.0, 0.8, 0.5, 0.25)
PAYLOAD, PACKET = 1404, 1500  # docs: what IPv4, UDP, DTLS and SCTP leave of a packet.

Figures = dict[str, Any]
Family = Literal["llama", "gpt2"]


@dataclass(frozen=True)
class Size:
    """A model of bytes."""

    hidden: int
    layers: int
    heads: int
    intermediate: int
    learning_rate: float
    warm_steps: int
    steps: int

    def config(self, family: Family = "llama") -> dict[str, Any]:
        """As in ``config.json``."""
        if family == "gpt2":
            return {
                "model_type": "gpt2",
                "vocab_size": VOCABULARY,
                "n_embd": self.hidden,
                "n_layer": self.layers,
                "n_head": self.heads,
                "n_positions": SEQUENCE,
                "resid_pdrop": 0.0,
                "embd_pdrop": 0.0,
                "attn_pdrop": 0.0,
                "tie_word_embeddings": False,
            }
        return {
            "model_type": "llama",
            "vocab_size": VOCABULARY,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "max_position_embeddings": SEQUENCE,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
        }


SIZES: Mapping[str, Size] = {
    "0.2M": Size(64, 4, 4, 176, 3e-3, 300, 200),
    "1M": Size(128, 4, 4, 352, 2e-3, 1000, 600),
    "5M": Size(256, 6, 4, 704, 1e-3, 500, 300),
    "10M": Size(384, 6, 6, 1024, 1e-3, 500, 300),
}


class Exchange:
    """How contributions become the next state: in a mesh, or by shards with what their reducers keep."""

    def __init__(self, method: OuterMethod, count: int) -> None:
        self._method = method
        self._residues: list[Tensor | None] = [None] * count
        self.count = count

    def apply(self, state: OuterState, contributions: Mapping[int, tuple[bytes, ...]], index: int) -> OuterState:
        """The outer step of a round."""
        if self.count == 1:
            return self._method.apply(state, {p: pieces[0] for p, pieces in contributions.items()}, index)
        shards, free = self._method.shards(index, self.count), self._method.free(index)
        results = []
        for shard in range(self.count):
            parts = {replica: pieces[shard] for replica, pieces in contributions.items()}
            here = shards.take(free, shard)
            made = reduce_shard(shards, shard, parts, self._method.combining, here, self._residues[shard])
            self._residues[shard] = made.residue
            results.append(read_result(shards, shard, made.data, here))
        left_out = tuple(sorted({replica for _, odd in results for replica in odd}))
        return self._method.step(state, shards.join([mean for mean, _ in results]), left_out, index)


@dataclass
class Setting:
    """What all runs of a table share."""

    size: str
    steps: int
    warm: bool
    seed: int
    folder: Path
    precision: Literal["fp32", "bf16"] = "fp32"
    corpus: Corpus = "python"
    family: Family = "llama"

    @property
    def warm_file(self) -> str:
        """Where the state after the warm start is kept."""
        about = f"{self.family}-{self.corpus}-{self.precision}"
        return f"warm-{self.size}-{SIZES[self.size].warm_steps}-{self.seed}-{about}.pt"

    def config(self) -> dict[str, Any]:
        """The model's."""
        return SIZES[self.size].config(self.family)

    def spec(self, recipe: Recipe | None = None) -> TrainingSpec:
        """The training section of a job document."""
        shape = SIZES[self.size]
        values: dict[str, Any] = {
            "tokens": self.steps * BATCH * SEQUENCE * REPLICAS,
            "sequence": SEQUENCE,
            "batch": BATCH,
            "micro_batches": 1,
            "learning_rate": shape.learning_rate * (recipe.learning if recipe else 1.0),
            "warmup_steps": self.steps // 20,
            "clip_norm": CLIP,
            "precision": self.precision,
            "seed": self.seed,
            "exchange": "mesh",
        }
        return TrainingSpec(**(values | dict(recipe.training if recipe else {})))


class Runner:
    """Runs recipes of one setting."""

    def __init__(self, setting: Setting, text: Path, tell: Callable[[float], None]) -> None:
        """``tell`` hears which share of a run is done."""
        configure(1)
        self._setting = setting
        self._tell = tell
        self._train = TokenFile(text / "train.bin", SEQUENCE, VOCABULARY)
        heldout = TokenFile(text / "heldout.bin", SEQUENCE, VOCABULARY)
        self._judged = [heldout.sample(0, part, 0, 32)[0] for part in range(JUDGED_WINDOWS // 32)]

    def run(self, recipe: Recipe) -> Figures:
        """Figures of a recipe, measured or remembered."""
        return remembered(self._setting, recipe, lambda: self._measure(recipe))

    # --- the ways -----------------------------------------------------------------------------------------------------

    def _measure(self, recipe: Recipe) -> Figures:
        match recipe.how:
            case "together":
                return self._in_step(recipe, REPLICAS)
            case "alone":
                return self._in_step(recipe, 1)
            case "gradients":
                return self._in_step(recipe, REPLICAS, GRADIENT_CODEC)
            case "rounds":
                plan = [(first, [steps] * REPLICAS) for first, steps in rounds_of(self._setting.spec(recipe))]
                return self._in_rounds(recipe, plan, self._setting.steps)
            case "timed":
                plan = [
                    (at, [round(ticks * speed) for speed in SPEEDS])
                    for at, ticks in rounds_of(self._setting.spec(recipe))
                ]
                return self._in_rounds(recipe, plan, self._setting.steps)
            case "slowest":
                slowed = int(self._setting.steps * min(SPEEDS))
                shorter = replace(self._setting, steps=slowed)
                plan = [(first, [steps] * REPLICAS) for first, steps in rounds_of(shorter.spec(recipe))]
                return self._in_rounds(recipe, plan, slowed)
            case "ddp" | "flower":
                raise ValueError(f"{recipe.name} is somebody else's program: _training_peers runs it")

    def _in_step(self, recipe: Recipe, replicas: int, codec: CodecName | None = None) -> Figures:
        """Gradients averaged at every step: by all, or by one alone."""
        training = self._setting.spec(recipe)
        stage = self.stage(training)
        sent, curve = 0, []
        for step in range(self._setting.steps):
            updates: list[Tensor] = []
            for replica in range(replicas):
                self.gradients(stage, training, step, replica, 1 if codec else replicas)
                if codec:
                    data = encode(stage.gradients, codec)
                    updates.append(decode(data, tuple(stage.gradients.shape), codec))
                    stage.gradients.zero_()
                    sent += len(data) if replica == 0 else 0
            if updates:
                stage.gradients.copy_(mean_update(updates))
            elif replicas > 1:
                sent += 4 * stage.parameter_count
            update(stage, Position(0, 1), NOBODY, step, self._setting.steps)
            self._tell((step + 1) / self._setting.steps)
            if (step + 1) * CURVE_POINTS // self._setting.steps > step * CURVE_POINTS // self._setting.steps:
                curve.append((step + 1, self.loss(stage, CURVE_WINDOWS)))
        tokens = self._setting.steps * BATCH * SEQUENCE
        return self._figures(
            stage, curve, sent, self._setting.steps if replicas > 1 else 0, tokens, replicas, codec is not None
        )

    def _in_rounds(self, recipe: Recipe, plan: Sequence[tuple[int, list[int]]], total: int) -> Figures:
        """Rounds of inner steps; ``plan`` says where each begins and how many steps each replica takes in it."""
        training = self._setting.spec(recipe)
        stages = [self.stage(training) for _ in range(REPLICAS)]
        method = outer_method(training, stages[0].slots, stages[0].size)
        state = OuterState.first(stages[0].values().clone(), training)
        local: list[Local] = [method.fresh(state) for _ in stages]
        chance = np.random.Generator(np.random.Philox(key=training.seed))
        reducing = Exchange(method, shard_count(training, REPLICAS))
        sent, curve, losses = 0, [], 0
        for index, (first, steps) in enumerate(plan):
            contributions: dict[int, tuple[bytes, ...]] = {}
            for replica, stage in enumerate(stages):
                stage.load(method.start(state, local[replica], index))
                for step in range(steps[replica]):
                    at = first + (step if recipe.how != "timed" else int(step / SPEEDS[replica]))
                    self.gradients(stage, training, first + step, replica, 1)
                    update(stage, Position(0, 1), NOBODY, at, total)
                    if ends_segment(step, training.commit_every, steps[replica]):
                        stage.shorten(state.anchor)
                made = method.contribution(state.anchor, stage.values(), local[replica], index, reducing.count)
                sent += sum(map(len, made.pieces)) if replica == 0 else 0
                if chance.random() >= recipe.lost or (replica == REPLICAS - 1 and not contributions):
                    contributions[replica], local[replica] = made.pieces, made.local
                else:
                    losses += 1
                self._tell((index + (replica + 1) / REPLICAS) / len(plan))
            state = reducing.apply(state, contributions, index)
            if (index + 1) * CURVE_POINTS // len(plan) > index * CURVE_POINTS // len(plan):
                stages[0].load(state.anchor)
                curve.append((first + max(steps), self.loss(stages[0], CURVE_WINDOWS)))
        stages[0].load(state.anchor)
        tokens = sum(sum(steps) for _, steps in plan) // REPLICAS * BATCH * SEQUENCE
        figures = self._figures(stages[0], curve, sent, total, tokens, REPLICAS, True)
        return figures | {"round_steps": [max(steps) for _, steps in plan], "lost_contributions": losses}

    # --- pieces -------------------------------------------------------------------------------------------------------

    def stage(self, training: TrainingSpec) -> Stage:
        """The whole model as a run begins with it."""
        shape = SIZES[self._setting.size]
        stage = Stage(self._setting.config(), Cut(0, shape.layers, True, True), training)
        if self._setting.warm:
            continue_from(stage, self.warm_start())
        return stage

    def warm_start(self) -> StageState:
        """The state after ``warm_steps`` steps in which all replicas averaged their gradients; computed once."""
        shape, setting = SIZES[self._setting.size], self._setting
        file = setting.folder / setting.warm_file
        if not file.exists():
            cold = replace(setting, steps=shape.warm_steps, warm=False)
            training = cold.spec()
            stage = Stage(setting.config(), Cut(0, shape.layers, True, True), training)
            for step in range(cold.steps):
                for replica in range(REPLICAS):
                    windows, _ = self._train.sample(training.seed, step, replica, training.batch)
                    accumulate(stage, Position(0, 1), windows, NOBODY, share=REPLICAS)
                update(stage, Position(0, 1), NOBODY, step, cold.steps)
                self._tell((step + 1) / cold.steps)
            state = stage.state()
            torch.save([state.parameters, state.first_moment, state.second_moment, state.adam_steps], file)
        return StageState(*torch.load(file))

    def gradients(self, stage: Stage, training: TrainingSpec, step: int, replica: int, share: int) -> None:
        """Add the gradients of a replica's own samples of a step, divided by ``share``, to the stage's."""
        windows, _ = self._train.sample(training.seed, FIRST_STEP + step, replica, training.batch)
        accumulate(stage, Position(0, 1), windows, NOBODY, share=share)

    def loss(self, stage: Stage, windows: int = JUDGED_WINDOWS) -> float:
        """Held-out, in nats a token."""
        return judge(stage, self._judged[: windows // 32])

    def _figures(
        self,
        stage: Stage,
        curve: list[tuple[int, float]],
        sent: int,
        steps: int,
        tokens: int,
        replicas: int,
        peers: bool,
    ) -> Figures:
        naive = 4 * stage.parameter_count * steps
        return {
            "parameters": stage.parameter_count,
            "loss": self.loss(stage, JUDGED_WINDOWS),
            "curve": [(step, round(loss, 4)) for step, loss in curve],
            "tokens": tokens * replicas,
            "bytes": sent,
            "wire_bytes": -(-sent // PAYLOAD) * PACKET if peers else 0,
            "bytes_per_token": round(sent / tokens, 3),
            "ratio": round(naive / sent, 1) if sent else None,
        }


def remembered(setting: Setting, recipe: Recipe, measure: Callable[[], Figures]) -> Figures:
    """Figures of a run from ``training-runs.jsonl``, or measured now and kept there; what failed is not kept."""
    identity = _identity(setting, recipe)
    name = hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:16]
    file = setting.folder / "training-runs.jsonl"
    for line in file.read_text().splitlines() if file.exists() else ():
        known: Figures = json.loads(line)
        if known["id"] == name:
            return known
    wall, cpu = time.perf_counter(), time.process_time()
    figures = measure()
    if "failed" in figures:
        return figures
    spent = {"seconds": round(time.perf_counter() - wall, 1), "cpu_s": round(time.process_time() - cpu, 1)}
    document = {"id": name, "recipe": recipe.name, **identity, **spent, **figures}
    with file.open("a") as output:
        output.write(json.dumps(document, default=str) + "\n")
    return document


def _identity(setting: Setting, recipe: Recipe) -> Figures:
    """All that decides a run's numbers."""
    return {
        "size": setting.size,
        "steps": setting.steps,
        "warm": SIZES[setting.size].warm_steps if setting.warm else 0,
        "seed": setting.seed,
        "corpus": setting.corpus,
        "family": setting.family,
        "how": recipe.how,
        "training": msgspec.to_builtins(setting.spec(recipe)),
        "lost": recipe.lost,
        **({"codec": GRADIENT_CODEC} if recipe.how == "gradients" else {}),
    }


def continue_from(stage: Stage, state: StageState) -> None:
    """Put a stage into a state of float32 vectors, rounded to how it keeps them."""
    for slot in stage.slots:
        span = slice(slot.start, slot.start + -(-slot.count // ALIGNMENT) * ALIGNMENT)
        part = stage.storage.read(slot, span)
        part.values.copy_(state.parameters[span])
        part.first.copy_(state.first_moment[span])
        part.second.copy_(state.second_moment[span][: part.second.numel()])
        stage.storage.write(slot, span, part, state.adam_steps)
    stage.adam_steps = state.adam_steps


def rounds_of(training: TrainingSpec) -> Iterator[tuple[int, int]]:
    """First step and steps of each round."""
    plan = schedule(training, REPLICAS)
    return (plan.round(index) for index in range(plan.rounds))


def judge(stage: Stage, parts: Sequence[Windows]) -> float:
    """Mean cross-entropy in nats a token."""
    total, tokens = 0.0, 0
    with torch.no_grad():
        for windows in parts:
            rows = torch.from_numpy(windows)
            total += float(stage.summed_loss(rows[:, :-1], rows[:, 1:]))
            tokens += rows.shape[0] * (rows.shape[1] - 1)
    return total / tokens
