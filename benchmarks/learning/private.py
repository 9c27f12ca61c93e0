"""What a privacy budget leaves to be learnt: eight owners, beside Flower's local privacy and one place with opacus.

One small model is trained on text that everybody may see, and then on eight owners' dialogues, of unequal size, with one budget
of epsilon and delta for all rounds. The loss is of text that the owners held back; ``gain`` is by how much it fell. ``bytes``
are those that one owner sends and receives in all rounds.

* ``cottage``: owners' updates as ``FederatedMember`` makes them, exchanged by shards; of an adapter or the whole model; a clip
  that stays, or follows the updates. ``secure sums``: of six owners at least, or of all eight, by ``protocol.secure_sum``.
* ``flower``: Flower's ``LocalDpMod`` arithmetic (its own clip and noise functions and FedAvg) on the same steps. It has no
  accountant: each round gets its part of epsilon and delta. ``exact`` is given the noise that Cottage's accountant finds.
* ``opacus``: one place that holds all text, and a budget for one window of it: a weaker promise, for comparison.

The peers are packages that ask for other versions of what is here, so they come alone: ``pip install --no-deps flwr==1.42.0
opacus==1.6.0 opt-einsum pycryptodome iterators tomli-w grpcio grpcio-health-checking pathspec``. Those that are missing are left
out, and named.

    python -m benchmarks.learning.private [--epsilon 8] [--rounds 6] [--steps 8] [--seeds 1,2,3]
"""

import argparse
import hashlib
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file

from benchmarks.common import publish
from coordinator.domain.privacy import PrivacyBudget, next_clip
from cottage.demo.corpus import write_corpus
from protocol.boundary import Position
from protocol.codec import encode
from protocol.federated.sums import terms_of
from protocol.identity import NodeKey
from protocol.job.federated import AdaptiveClipping, FederatedSpec, PrivacySpec
from protocol.job.job import LoraSpec, ModelSpec, TrainingSpec
from protocol.models.model import resolve
from protocol.secure_sum import SumOwner, SumServer
from trainer.audit.environment import configure
from trainer.outer import Layout, OuterState, outer_method
from trainer.outer.audit import outer_step_of_results
from trainer.outer.inner_update import update
from trainer.outer.private import PrivacyTerms, SystemNoise, protect
from trainer.outer.shards import reduce_shard
from trainer.outer.summed import SummedTerms, mean_of, summand
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
CLIPS = (0.001, 0.01, 0.1)
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

    def loss(self, stage: Stage) -> float:
        """Nats a byte of what owners held back."""
        return heldout_loss(stage, [self.texts.heldout], Recorded({})) or 0.0

    def federate(
        self, stage: Stage, seed: int, combine: Callable[[OuterState, list[torch.Tensor], int], OuterState]
    ) -> float:
        """All rounds: each owner's steps, then ``combine`` of where they led; the gain in loss."""
        drawn = np.random.default_rng(seed)
        state = OuterState.first(stage.values().clone(), stage.training)
        for number in range(self.rounds):
            moved = []
            for rows in self.texts.owners:
                stage.load(state.anchor)
                stage.reset_moments()
                self.train(stage, rows, self.steps, drawn)
                moved.append(stage.values().clone())
            state = combine(state, moved, number)
        stage.load(state.anchor)
        return self.before - self.loss(stage)


def cottage(bench: Bench, seed: int, adapter: bool, clip: float, adaptive: bool = False) -> dict[str, float]:
    """As a federated job does it."""
    spec = spec_of(seed, adapter, 3e-3 if adapter else 1e-3)
    stage, count = bench.stage(spec), len(OWNERS)
    method, layout = outer_method(spec, stage.slots, stage.size), Layout(tuple(stage.slots), stage.size)
    privacy = PrivacySpec(
        noise_multiplier=bench.budget.noise(bench.rounds),
        clip=clip,
        adaptive=AdaptiveClipping(quantile=0.5, rate=0.5, bit_noise=20.0) if adaptive else None,
    )
    spent = {"bytes": 0, "clip": clip}

    def combine(state: OuterState, moved: list[torch.Tensor], number: int) -> OuterState:
        terms, told = PrivacyTerms.of(privacy, spent["clip"]), []
        parts: list[tuple[bytes, ...]] = []
        for own in moved:
            safe = protect(state.anchor, own, layout, terms, SystemNoise())
            told += [] if safe.unclipped is None else [safe.unclipped]
            parts.append(method.contribution(state.anchor, safe.parameters, {}, number, count).pieces)
        shards, free = method.shards(number, count), method.free(number)
        results = {}
        for shard in range(count):
            given = {owner: pieces[shard] for owner, pieces in enumerate(parts)}
            results[shard] = reduce_shard(shards, shard, given, method.combining, shards.take(free, shard), None).data
        sent = sum(len(part) for part in parts[0][1:]) + (count - 1) * len(results[0])
        received = sum(len(pieces[0]) for pieces in parts[1:]) + sum(len(results[shard]) for shard in range(1, count))
        spent["bytes"] += sent + received
        if privacy.adaptive is not None:
            spent["clip"] = next_clip(spent["clip"], told, privacy.adaptive.quantile, privacy.adaptive.rate)
        return outer_step_of_results(method, stage, state, results, number, count)[0]

    return {"gain": bench.federate(stage, seed, combine), "values": stage.parameter_count} | spent


def summed(bench: Bench, seed: int, adapter: bool, clip: float, least: int) -> dict[str, float]:
    """As a federated job with secure sums does it, with keys, shares and masks, of ``least`` owners at least."""
    spec, keys = spec_of(seed, adapter, 3e-3 if adapter else 1e-3), [NodeKey.generate() for _ in OWNERS]
    stage = bench.stage(spec)
    method, layout = outer_method(spec, stage.slots, stage.size), Layout(tuple(stage.slots), stage.size)
    privacy = PrivacySpec(noise_multiplier=bench.budget.noise(bench.rounds), clip=clip)
    federated = FederatedSpec(tuple(key.address for key in keys), bench.rounds, least, privacy, "secure")
    made, spent = SummedTerms.of(federated, None), {"bytes": 0, "clip": clip}

    def combine(state: OuterState, moved: list[torch.Tensor], number: int) -> OuterState:
        terms = terms_of("0" * 32, federated, 1, number, stage.parameter_count)
        owners, server = [SumOwner(terms, key) for key in keys], SumServer(terms)
        told = server.keys(keys_told := [owner.keys() for owner in owners])
        boxes = server.boxes(shares := [owner.share(told) for owner in owners])
        vectors = [summand(state.anchor, own, layout, made, SystemNoise())[0] for own in moved]
        masked = [
            owner.mask(boxes[key.address], vector.tobytes())
            for owner, key, vector in zip(owners, keys, vectors, strict=True)
        ]
        summands = server.summands(masked)
        signed = server.signatures([owner.sign(summands) for owner in owners])
        total = server.total(shown := [owner.show(signed) for owner in owners])
        said: list[Any] = [keys_told[0], shares[0], masked[0], signed[0], shown[0]]
        heard: list[Any] = [told, boxes[keys[0].address], summands, signed, total]
        spent["bytes"] += sum(len(encode(one)) for one in (*said, *heard))
        mean = mean_of(total, hashlib.sha256(total).hexdigest(), layout, made.grid, len(summands))
        return method.step(state, mean, (), number)

    gain = bench.federate(stage, seed, combine)
    return {"gain": gain, "values": stage.parameter_count, "own_noise": federated.own_noise} | spent


def flower(bench: Bench, seed: int, adapter: bool, clip: float, exact: bool) -> dict[str, float]:
    """As ``flwr.clientapp.mod.LocalDpMod`` and FedAvg do it, with their own functions."""
    from flwr.app import Array
    from flwr.server.strategy.aggregate import aggregate
    from flwr.supercore.differential_privacy import add_gaussian_noise_inplace, compute_clip_model_update

    spec = spec_of(seed, adapter, 3e-3 if adapter else 1e-3)
    stage, sent = bench.stage(spec), {"bytes": 0}
    rounds, budget = bench.rounds, bench.budget
    each = clip * np.sqrt(2 * np.log(1.25 * rounds / budget.delta)) / (budget.epsilon / rounds)
    deviation = clip * budget.noise(rounds) if exact else float(each)
    sizes = [slot.count for slot in stage.slots]
    np.random.seed(seed)  # Flower's noise is of numpy's global generator.

    def cut(vector: torch.Tensor) -> list[np.ndarray[Any, Any]]:
        return [vector[slot.start : slot.start + slot.count].numpy().copy() for slot in stage.slots]

    def combine(state: OuterState, moved: list[torch.Tensor], _: int) -> OuterState:
        anchor, results = cut(state.anchor), []
        for own in moved:
            arrays = cut(own)
            compute_clip_model_update(arrays, anchor, clip)
            add_gaussian_noise_inplace(arrays, deviation)
            results.append((arrays, 1))
        sent["bytes"] += sum(len(Array(one.astype(np.float32)).data) for one in (*anchor, *results[0][0]))
        joined = state.anchor.clone()
        for slot, size, values in zip(stage.slots, sizes, aggregate(results), strict=True):
            joined[slot.start : slot.start + size] = torch.from_numpy(np.asarray(values, dtype=np.float32))
        return OuterState(joined, state.momentum)

    return {"gain": bench.federate(stage, seed, combine), "values": stage.parameter_count, "clip": clip} | sent


def opacus(bench: Bench, seed: int, clip: float) -> dict[str, float]:
    """One place, all windows, as many steps as one owner makes; the unit is a window."""
    from opacus.accountants.utils import get_noise_multiplier
    from opacus.optimizers import DPOptimizer

    spec = spec_of(seed, True, 3e-3)
    stage, rows = bench.stage(spec), np.concatenate(bench.texts.owners)
    steps, rate = bench.rounds * bench.steps, 2 * BATCH / len(rows)
    noise = get_noise_multiplier(
        target_epsilon=bench.budget.epsilon, target_delta=DELTA, sample_rate=rate, steps=steps, accountant="rdp"
    )
    learning = [parameter for parameter in stage.module.parameters() if parameter.requires_grad]
    optimizer = DPOptimizer(
        torch.optim.AdamW(learning, lr=3e-3),
        noise_multiplier=noise,
        max_grad_norm=clip,
        expected_batch_size=2 * BATCH,
    )
    drawn = np.random.default_rng(seed)
    torch.manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        grads: list[list[torch.Tensor]] = [[] for _ in learning]
        for row in rows[drawn.random(len(rows)) < rate]:
            for parameter in learning:
                parameter.grad = None
            stage.backward(
                stage.summed_loss(torch.from_numpy(row[None, :-1]), torch.from_numpy(row[None, 1:])) / SEQUENCE
            )
            for place, parameter in enumerate(learning):
                grads[place].append(parameter.grad.clone())
        for parameter, each in zip(learning, grads, strict=True):
            parameter.grad_sample = torch.stack(each) if each else torch.zeros(0, *parameter.shape)
        optimizer.step()
    return {"gain": bench.before - bench.loss(stage), "values": stage.parameter_count, "clip": clip, "bytes": 0}


WAYS: dict[str, Callable[[Bench, int, float], dict[str, float]]] = {
    "cottage, adapter": lambda bench, seed, clip: cottage(bench, seed, True, clip),
    "cottage, adapter, adaptive": lambda bench, seed, clip: cottage(bench, seed, True, clip, True),
    "cottage, whole model": lambda bench, seed, clip: cottage(bench, seed, False, clip),
    "cottage, adapter, secure sums of 6": lambda bench, seed, clip: summed(bench, seed, True, clip, 6),
    "cottage, adapter, secure sums of 8": lambda bench, seed, clip: summed(bench, seed, True, clip, 8),
    "cottage, whole model, secure sums of 6": lambda bench, seed, clip: summed(bench, seed, False, clip, 6),
    "cottage, whole model, secure sums of 8": lambda bench, seed, clip: summed(bench, seed, False, clip, 8),
    "flower, whole model": lambda bench, seed, clip: flower(bench, seed, False, clip, False),
    "flower, whole model, exact": lambda bench, seed, clip: flower(bench, seed, False, clip, True),
    "flower, adapter, exact": lambda bench, seed, clip: flower(bench, seed, True, clip, True),
    "opacus, one place, a window": opacus,
}


def main() -> None:
    """Try each way's clips with the first seed, and the best one with all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--seeds", default="1,2,3")
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    configure(1)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), texts(), options.rounds, options.steps, options.epsilon)
        rows: dict[str, list[dict[str, float]]] = {}
        for name, way in WAYS.items():
            try:
                tried = [way(bench, seeds[0], clip) for clip in CLIPS]
            except ModuleNotFoundError as error:
                print(f"{name} is left out: {error}")
                continue
            best = max(range(len(CLIPS)), key=lambda place: tried[place]["gain"])
            rows[name] = [tried[best], *(way(bench, seed, CLIPS[best]) for seed in seeds[1:])]
    table = Table(title=f"epsilon {options.epsilon:g}, {options.rounds} rounds, loss {bench.before:.3f} before")
    for column in ("", "values", "first clip", "gain, mean", "least", "most", "bytes an owner"):
        table.add_column(column, justify="right" if column else "left")
    for name, found in rows.items():
        gains = [row["gain"] for row in found]
        figures = (float(np.mean(gains)), min(gains), max(gains))
        sent = f"{found[0]['bytes']:,.0f}"
        table.add_row(
            name, f"{found[0]['values']:,}", f"{found[0]['clip']:g}", *(f"{gain:+.4f}" for gain in figures), sent
        )
    Console(width=150).print(table)
    publish(
        "private",
        "a federation learns more within a privacy budget than the same rounds with Flower, and sends fewer bytes",
        {
            "before": bench.before,
            "noise": bench.budget.noise(bench.rounds),
            "windows": [len(rows) for rows in bench.texts.owners],
            "ways": rows,
        },
    )


if __name__ == "__main__":
    main()
