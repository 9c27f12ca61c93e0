"""What a privacy budget leaves to be learnt: eight owners, beside Flower with its privacy wrappers, and opacus.

One small model is trained on text that everybody may see, and then on eight owners' dialogues, of unequal size, with one budget
of epsilon and delta for all rounds. The loss is of text that the owners held back; ``gain`` is by how much it fell. ``bytes``
are those that one owner sends and receives in all rounds.

* ``cottage``: owners' updates as ``FederatedMember`` makes them, exchanged by shards; of an adapter or the whole model; a clip
  that stays, or ``follows`` the updates. ``secure sums``: of six owners at least, or of all eight, by ``protocol.secure_sum``.
* ``flower``: a Flower strategy and eight ClientApps with the same steps, in one process. ``LocalDpMod`` has noise at each owner,
  and no accountant: each round gets its part of epsilon and delta. ``exact`` is given the noise that Cottage's accountant finds.
  ``trusted server`` is ``DifferentialPrivacyClientSideFixedClipping``: the server sees all updates and puts noise on their sum.
  ``follows`` is ``DifferentialPrivacyClientSideAdaptiveClipping``.
* ``a window``: the same eight owners where the promise is about one window of theirs. Cottage's are the steps of
  ``trainer.outer.private_steps`` (``privacy.unit: example``), and Flower's ClientApps make opacus' steps.
* ``opacus``: one place that holds all text, and a budget for one window of it: a weaker promise, for comparison.

The peers are packages that ask for other versions of what is here, so they come alone: ``pip install --no-deps flwr==1.42.0
opacus==1.6.0 opt-einsum pycryptodome iterators tomli-w grpcio grpcio-health-checking pathspec``. Those that are missing are left
out, and named.

    python -m benchmarks.learning.private [--epsilon 8] [--rounds 6] [--steps 8] [--seeds 1,2,3] [--clips 0.01,0.1] [--only WORDS]
"""

import argparse
import hashlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.common import publish
from benchmarks.learning._private_bench import BATCH, CLIPS, COUNT_NOISE, OWNERS, Bench, Windows, spec_of, texts
from benchmarks.learning._private_peers import central, local, opacus, with_opacus
from coordinator.domain.privacy import next_clip
from protocol.boundary import Position
from protocol.codec import encode
from protocol.federated.sum_values import beside_of
from protocol.federated.sums import terms_of
from protocol.identity import NodeKey
from protocol.job.federated import AdaptiveClipping, FederatedSpec, PrivacySpec
from protocol.secure_sum import SumOwner, SumServer
from trainer.audit.environment import configure
from trainer.outer import Layout, OuterMethod, OuterState, outer_method
from trainer.outer.audit import outer_step_of_results
from trainer.outer.inner_update import update
from trainer.outer.private import PrivacyTerms, SystemNoise, protect
from trainer.outer.private_steps import StepPrivacy, private_gradients
from trainer.outer.shards import reduce_shard
from trainer.outer.summed import SummedTerms, mean_of, summand
from trainer.stage.stage import Stage
from trainer.stage.steps import Recorded


def cottage(bench: Bench, seed: int, adapter: bool, clip: float, adaptive: bool = False) -> dict[str, float]:
    """As a federated job does it."""
    spec = spec_of(seed, adapter, 3e-3 if adapter else 1e-3)
    stage, count = bench.stage(spec), len(OWNERS)
    method, layout = outer_method(spec, stage.slots, stage.size), Layout(tuple(stage.slots), stage.size)
    privacy = PrivacySpec(
        noise_multiplier=bench.budget.noise(bench.rounds),
        clip=clip,
        adaptive=AdaptiveClipping(quantile=0.5, rate=1.0, bit_noise=OWN_BIT_NOISE) if adaptive else None,
    )
    spent = {"bytes": 0, "clip": clip}

    def combine(state: OuterState, moved: list[torch.Tensor], number: int) -> OuterState:
        terms, told, safe = PrivacyTerms.of(privacy, spent["clip"]), [], []
        for own in moved:
            made = protect(state.anchor, own, layout, terms, SystemNoise())
            told += [] if made.unclipped is None else [made.unclipped]
            safe.append(made.parameters)
        results, crossed = exchanged(method, state, safe, number)
        spent["bytes"] += crossed
        if privacy.adaptive is not None:
            spent["clip"] = next_clip(spent["clip"], told, privacy.adaptive.quantile, privacy.adaptive.rate)
        return outer_step_of_results(method, stage, state, results, number, count)[0]

    return {"gain": bench.federate(stage, seed, combine), "values": stage.parameter_count} | spent


def exchanged(
    method: OuterMethod, state: OuterState, moved: list[torch.Tensor], number: int
) -> tuple[dict[int, bytes], int]:
    """What all parameters are reduced to, shard by shard, and the bytes that one owner sends and receives."""
    count = len(moved)
    parts = [method.contribution(state.anchor, own, {}, number, count).pieces for own in moved]
    shards, free = method.shards(number, count), method.free(number)
    results = {}
    for shard in range(count):
        given = {owner: pieces[shard] for owner, pieces in enumerate(parts)}
        results[shard] = reduce_shard(shards, shard, given, method.combining, shards.take(free, shard), None).data
    sent = sum(len(part) for part in parts[0][1:]) + (count - 1) * len(results[0])
    received = sum(len(pieces[0]) for pieces in parts[1:]) + sum(len(results[shard]) for shard in range(1, count))
    return results, sent + received


def by_window(bench: Bench, seed: int, adapter: bool, clip: float) -> dict[str, float]:
    """As a federated job does it whose promise is about one window: noise in each owner's steps."""
    spec = spec_of(seed, adapter, 3e-3 if adapter else 1e-3)
    stage, spent = bench.stage(spec), {"bytes": 0, "clip": clip}
    method = outer_method(spec, stage.slots, stage.size)
    most = min(0.5, BATCH / min(len(rows) for rows in bench.texts.owners))
    terms = StepPrivacy(clip, bench.noise_of_steps(most))

    def train(stage: Stage, rows: Windows, steps: int, drawn: np.random.Generator) -> None:
        rate = min(most, BATCH / len(rows))
        for step in range(steps):
            private_gradients(stage, rows[drawn.random(len(rows)) < rate], terms, SystemNoise())
            update(stage, Position(0, 1), Recorded({}), step, steps + 1)

    def combine(state: OuterState, moved: list[torch.Tensor], number: int) -> OuterState:
        results, crossed = exchanged(method, state, moved, number)
        spent["bytes"] += crossed
        return outer_step_of_results(method, stage, state, results, number, len(moved))[0]

    gain = bench.federate(stage, seed, combine, train)
    return {"gain": gain, "values": stage.parameter_count, "noise": terms.noise} | spent


def summed(bench: Bench, seed: int, adapter: bool, clip: float, least: int, adaptive: bool = False) -> dict[str, float]:
    """As a federated job with secure sums does it, with keys, shares and masks, of ``least`` owners at least."""
    spec, keys = spec_of(seed, adapter, 3e-3 if adapter else 1e-3), [NodeKey.generate() for _ in OWNERS]
    stage = bench.stage(spec)
    method, layout = outer_method(spec, stage.slots, stage.size), Layout(tuple(stage.slots), stage.size)
    follows = AdaptiveClipping(quantile=0.5, rate=1.0, bit_noise=COUNT_NOISE) if adaptive else None
    privacy = PrivacySpec(noise_multiplier=bench.budget.noise(bench.rounds), clip=clip, adaptive=follows)
    federated = FederatedSpec(tuple(key.address for key in keys), bench.rounds, least, privacy, "secure")
    spent = {"bytes": 0, "clip": clip}

    def combine(state: OuterState, moved: list[torch.Tensor], number: int) -> OuterState:
        made, length = SummedTerms.of(federated, spent["clip"]), stage.parameter_count + len(federated.beside)
        terms = terms_of("0" * 32, federated, 1, number, length)
        owners, server = [SumOwner(terms, key) for key in keys], SumServer(terms)
        told = server.keys(keys_told := [owner.keys() for owner in owners])
        boxes = server.boxes(shares := [owner.share(told) for owner in owners])
        vectors = [summand(state.anchor, own, layout, made, SystemNoise()) for own in moved]
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
        mean = mean_of(total, hashlib.sha256(total).hexdigest(), layout, made, len(summands))
        if follows is not None:
            within = (1 + beside_of(total, federated, made.privacy.clip, len(summands))["unclipped"]) / 2
            spent["clip"] = next_clip(spent["clip"], [within], follows.quantile, follows.rate)
        return method.step(state, mean, (), number)

    gain = bench.federate(stage, seed, combine)
    return {"gain": gain, "values": stage.parameter_count, "own_noise": federated.own_noise} | spent


CHOOSING = 0  # The seed that the clip is chosen with; it counts for nothing else.
OWN_BIT_NOISE = 4.0  # On each owner's word whether its update was within the clip, where single words are seen.
WAYS: dict[str, Callable[[Bench, int, float], dict[str, float]]] = {
    "cottage, adapter": lambda bench, seed, clip: cottage(bench, seed, True, clip),
    "cottage, adapter, secure sums of 8": lambda bench, seed, clip: summed(bench, seed, True, clip, 8),
    "cottage, adapter, secure sums of 8, follows": lambda bench, seed, clip: summed(bench, seed, True, clip, 8, True),
    "flower, LocalDpMod, whole model": lambda bench, seed, clip: local(bench, seed, False, clip, False),
    "flower, LocalDpMod, whole model, exact": lambda bench, seed, clip: local(bench, seed, False, clip, True),
    "flower, LocalDpMod, adapter, exact": lambda bench, seed, clip: local(bench, seed, True, clip, True),
    "flower, trusted server, whole model": lambda bench, seed, clip: central(bench, seed, False, clip),
    "flower, trusted server, whole model, follows": lambda bench, seed, clip: central(bench, seed, False, clip, True),
    "flower, trusted server, adapter": lambda bench, seed, clip: central(bench, seed, True, clip),
    "cottage, adapter, a window": lambda bench, seed, clip: by_window(bench, seed, True, clip),
    "flower, opacus, whole model, a window": lambda bench, seed, clip: with_opacus(bench, seed, False, clip),
    "flower, opacus, adapter, a window": lambda bench, seed, clip: with_opacus(bench, seed, True, clip),
    "opacus, one place, a window": opacus,
    "cottage, adapter, follows": lambda bench, seed, clip: cottage(bench, seed, True, clip, True),
    "cottage, whole model": lambda bench, seed, clip: cottage(bench, seed, False, clip),
    "cottage, whole model, secure sums of 8": lambda bench, seed, clip: summed(bench, seed, False, clip, 8),
    "cottage, adapter, secure sums of 6": lambda bench, seed, clip: summed(bench, seed, True, clip, 6),
    "cottage, whole model, secure sums of 6": lambda bench, seed, clip: summed(bench, seed, False, clip, 6),
    "cottage, whole model, a window": lambda bench, seed, clip: by_window(bench, seed, False, clip),
}


def measured(
    bench: Bench, way: Callable[[Bench, int, float], dict[str, float]], seeds: list[int], clips: list[float]
) -> dict[str, Any]:
    """Each clip with ``CHOOSING``, and the best one with all seeds."""
    began = time.monotonic()
    tried = [way(bench, CHOOSING, clip) for clip in clips]
    best = max(range(len(clips)), key=lambda place: tried[place]["gain"])
    found = [way(bench, seed, clips[best]) for seed in seeds]
    gains = [one["gain"] for one in found]
    return {
        "values": found[0]["values"],
        "clip": clips[best],
        "gain": float(np.mean(gains)),
        "least": min(gains),
        "most": max(gains),
        "bytes": round(found[0]["bytes"]),
        "by clip": [one["gain"] for one in tried],
        "last clips": [one.get("last clip", one["clip"]) for one in tried],
        "seconds": round(time.monotonic() - began),
    }


def main() -> None:
    """Measure all ways, one after the other; each is printed when it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--clips", default=CLIPS)
    parser.add_argument("--only", default="", metavar="WORDS", help="ways whose name ends with these words")
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    if CHOOSING in seeds:
        parser.error(f"--seeds {options.seeds}: {CHOOSING} chooses the clip, so it cannot be measured with")
    clips = [float(clip) for clip in options.clips.split(",")]
    configure(1)
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), texts(), options.rounds, options.steps, options.epsilon)
        for name, way in WAYS.items():
            if not name.endswith(options.only):
                continue
            try:
                rows[name] = measured(bench, way, seeds, clips)
            except ModuleNotFoundError as error:
                print(f"{name} is left out: {error}", flush=True)
                continue
            print(name, rows[name], flush=True)
    table = Table(title=f"epsilon {options.epsilon:g}, {options.rounds} rounds, loss {bench.before:.3f} before")
    tried = [f"at {clip:g}" for clip in clips]
    for column in ("", "values", "clip", "gain, mean", "least", "most", *tried, "bytes an owner"):
        table.add_column(column, justify="right" if column else "left")
    for name, row in rows.items():
        gains = (f"{gain:+.4f}" for gain in (row["gain"], row["least"], row["most"], *row["by clip"]))
        table.add_row(name, f"{row['values']:,}", f"{row['clip']:g}", *gains, f"{row['bytes']:,}")
    Console(width=180).print(table)
    publish(
        "private",
        "a federation learns no less within a privacy budget than the same rounds with Flower, and sends fewer bytes",
        {
            "before": bench.before,
            "epsilon": options.epsilon,
            "noise": bench.budget.noise(bench.rounds),
            "windows": [len(rows) for rows in bench.texts.owners],
            "ways": rows,
        },
    )


if __name__ == "__main__":
    main()
