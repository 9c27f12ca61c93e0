"""What all ways of ``benchmarks.learning.private`` begin with: owners' texts, one model that everybody has, and rounds."""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import yaml
from safetensors.torch import save_file

from coordinator.domain.privacy import PrivacyBudget, least_noise
from cottage.demo.corpus import write_corpus
from protocol.boundary import Position
from protocol.job.federated import PrivacySpec
from protocol.job.job import LoraSpec, ModelSpec, TrainingSpec
from protocol.job.privacy_sum import keeps_to_budget
from protocol.models.model import resolve
from trainer.outer import OuterState
from trainer.outer.inner_update import update
from trainer.stage.model import Cut
from trainer.stage.stage import Stage
from trainer.stage.steps import Recorded, accumulate, heldout_loss

OWNERS = (
    ("tech_support",),
    ("coding",),
    ("trivia",),
    ("emotion",),
    ("ai",),
    ("conversations", "literature", "psychology"),
    ("humor", "money", "science", "computers"),
    ("sports", "gossip", "movies", "politics", "botprofile", "food", "greetings", "history", "health"),
)
HELD = 16  # One window in so many is held back.
PUBLIC_BYTES = 400_000
SEQUENCE, BATCH, PUBLIC_STEPS, DELTA = 48, 8, 300, 1e-5
CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
}
COUNT_NOISE = 2.0  # On how many of eight updates were within a clip that follows them, where that sum alone is seen.
CLIPS = "0.001,0.01,0.1,1"  # Norms to begin with, of which the best counts.
Windows = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Texts:
    """Windows ``[n, SEQUENCE + 1]`` of bytes: everybody's, each owner's, and what owners held back."""

    public: Windows
    owners: tuple[Windows, ...]
    heldout: Windows


def windows_of(text: bytes) -> Windows:
    """Side by side."""
    whole = len(text) // (SEQUENCE + 1) * (SEQUENCE + 1)
    return np.frombuffer(text[:whole], dtype=np.uint8).reshape(-1, SEQUENCE + 1).astype(np.int64)


def texts() -> Texts:
    """Everybody's: source of the Python library. Owners': dialogues of chatterbot-corpus, 137 to 1,718 windows each."""
    import chatterbot_corpus

    folder = Path(chatterbot_corpus.__file__).parent / "data" / "english"
    with tempfile.TemporaryDirectory() as place:
        write_corpus(Path(place) / "public", PUBLIC_BYTES)
        public = windows_of((Path(place) / "public").read_bytes())
    owned = []
    for names in OWNERS:
        talks = [
            talk for name in names for talk in yaml.safe_load((folder / f"{name}.yml").read_text())["conversations"]
        ]
        owned.append(windows_of("\n\n".join("\n".join(map(str, talk)) for talk in talks).encode()))
    kept = tuple(np.delete(rows, np.s_[::HELD], axis=0) for rows in owned)
    return Texts(public, kept, np.concatenate([rows[::HELD] for rows in owned]))


def spec_of(seed: int, adapter: bool, rate: float) -> TrainingSpec:
    """Of the owners' steps."""
    lora = LoraSpec(rank=1, alpha=4.0) if adapter else None
    return TrainingSpec(
        tokens=1,
        sequence=SEQUENCE,
        batch=BATCH,
        micro_batches=1,
        seed=seed,
        warmup_steps=0,
        decay="constant",  # As that of the others.
        learning_rate=rate,
        outer="averaging",
        outer_momentum=0.0,
        pseudo_gradient="int8",
        check_updates=False,
        lora=lora,
    )


class Bench:
    """One model that everybody has, and owners who go on from it."""

    def __init__(self, folder: Path, given: Texts, rounds: int, steps: int, epsilon: float) -> None:
        """Train what everybody may see."""
        self.texts, self.rounds, self.steps, self.budget = given, rounds, steps, PrivacyBudget(epsilon, DELTA)
        self.folder = folder
        self.config = resolve(ModelSpec(config=CONFIG), 256)
        stage = Stage(self.config, Cut(0, 2, True, True), spec_of(1, False, 3e-3))
        self.train(stage, given.public, PUBLIC_STEPS, np.random.default_rng(1))
        named = {s.name: stage.values()[s.start : s.start + s.count].view(s.shape).clone() for s in stage.slots}
        save_file(named, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self.config))
        self.before = self.loss(stage)

    def stage(self, spec: TrainingSpec) -> Stage:
        """The model, to be trained as ``spec`` says."""
        return Stage(self.config, Cut(0, 2, True, True), spec, self.folder / "model.safetensors")

    def train(self, stage: Stage, rows: Windows, steps: int, drawn: np.random.Generator) -> None:
        """Steps on windows that are drawn."""
        for step in range(steps):
            batch = rows[drawn.integers(0, len(rows), BATCH)]
            accumulate(stage, Position(0, 1), batch, Recorded({}))
            update(stage, Position(0, 1), Recorded({}), step, steps + 1)

    def noise_of_steps(self, sampling: float) -> float:
        """With which all steps of all rounds keep to the budget for one window, as owners' nodes work it out."""
        spec = PrivacySpec("example", self.budget.epsilon, DELTA, sampling=sampling)

        def fits(noise: float) -> bool:
            asked = msgspec.structs.replace(spec, noise_multiplier=noise)
            return keeps_to_budget(asked, self.rounds, self.steps)

        found = least_noise(fits)
        assert found is not None
        return found

    def loss(self, stage: Stage) -> float:
        """Nats a byte of what owners held back."""
        return heldout_loss(stage, [self.texts.heldout], Recorded({})) or 0.0

    def federate(
        self,
        stage: Stage,
        seed: int,
        combine: Callable[[OuterState, list[torch.Tensor], int], OuterState],
        train: Callable[[Stage, Windows, int, np.random.Generator], None] | None = None,
    ) -> float:
        """All rounds: each owner's steps (``train``), then ``combine`` of where they led; the gain in loss."""
        drawn = np.random.default_rng(seed)
        state = OuterState.first(stage.values().clone(), stage.training)
        for number in range(self.rounds):
            moved = []
            for rows in self.texts.owners:
                stage.load(state.anchor)
                stage.reset_moments()
                (train or self.train)(stage, rows, self.steps, drawn)
                moved.append(stage.values().clone())
            state = combine(state, moved, number)
        stage.load(state.anchor)
        return self.before - self.loss(stage)
