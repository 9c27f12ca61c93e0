"""What crosses from stage to stage, and what it costs in loss: codecs, caches of repeated samples, and subspaces.

A small Llama in four stages (three boundaries) learns Python's own sources, byte by byte. Every row sees the same samples in
the same order, and begins with the weights that training in one process left: from random weights at a high rate two runs that
differ in one bit end 1 % apart. *Streaming*: nothing is seen twice; held-out loss. *Repeating*: 256 windows, up to 25 times;
training loss of the last epoch. Bytes are those of the payloads, headers included. Rows of the subspace start from random
weights, as they must.

Claims: 8 bits 0.0 %, 4 bits at most 0.3 % (streaming), AQ-SGD's 4 bits at most 0.2 % (repeating), and a subspace below 5 % of
the naive bytes. The rows "one process" say what the subspace itself costs, without any codec, at several learning rates.

    python -m benchmarks.learning.activations [--steps 600] [--width 128] [--only streaming|repeating|subspace] [--quick]
"""

import argparse
import itertools
import time
from pathlib import Path
from typing import Any

import msgspec
import torch

from benchmarks.common import FOLDER, publish
from benchmarks.learning._replica import Replica, byte_text, heldout, llama
from protocol.job.job import RATE_FROM_RANDOM, TrainingSpec
from trainer.audit.environment import configure
from trainer.codecs import CodecName, encode
from trainer.codecs.envelope import wrap
from trainer.data.data import TokenFile
from trainer.stage.model import Cut
from trainer.stage.stage import Stage

LAYERS, STAGES = 4, 4
REPEATED = 256
RATES = (1.5e-3, 3e-3, 6e-3)

STREAMING: dict[str, dict[str, Any]] = {
    "float32": {"activations": "fp32"},
    "8 bits": {"activations": "int8"},
    "4 bits, gradients 8": {"activations": "int4"},
    "4 bits, gradients 4": {"activations": "int4", "boundary_gradients": "int4"},
}
REPEATING = STREAMING | {
    "AQ-SGD 4 bits, gradients 8": {"activations": "aq4"},
    "AQ-SGD 4 bits, gradients 4": {"activations": "aq4", "boundary_gradients": "int4"},
}


def subspaces(width: int) -> dict[str, dict[str, Any]]:
    """Rows of the subspace: channels that cross, and how."""
    four = {"activations": "int4", "boundary_gradients": "int4"}
    return {
        f"subspace {width // 4} of {width}, float32": {"activations": "fp32", "subspace": width // 4},
        f"subspace {width // 4} of {width}, 4 bits": {**four, "subspace": width // 4},
        f"subspace {width // 8} of {width}, 8 bits": {"activations": "int8", "subspace": width // 8},
        f"subspace {width // 8} of {width}, 4 bits": {**four, "subspace": width // 8},
    }


def run(
    config: dict[str, Any],
    spec: TrainingSpec,
    steps: int,
    train: TokenFile,
    held: TokenFile,
    start: Stage | None,
    stages: int = STAGES,
) -> tuple[dict[str, Any], Stage]:
    """One row, and the whole model that came of it."""
    began = time.process_time()
    replica = Replica(config, LAYERS, stages, spec)
    if start is not None:
        replica.copy_from(start)
    losses = replica.train(train, steps)
    whole = Stage(config, Cut(0, LAYERS, True, True), spec, initialise=False)
    replica.copy_to(whole)
    tail = losses[-max(1, REPEATED // spec.batch) :]
    row = {
        "steps": steps,
        "training": sum(tail) / len(tail),
        "heldout": heldout(whole, held),
        "share of naive": replica.share_of_naive() if stages > 1 else 0.0,
        "cpu seconds": time.process_time() - began,
    }
    return row, whole


def bits(config: dict[str, Any], spec: TrainingSpec, start: Stage, held: TokenFile) -> dict[str, float]:
    """Bits a value that real activations of the first boundary take in an envelope, by codec."""
    replica = Replica(config, LAYERS, STAGES, spec)
    replica.copy_from(start)
    with torch.no_grad():
        hidden = replica.stages[0].forward(torch.from_numpy(held.heldout()[:32, :-1]))
    codecs: tuple[CodecName, ...] = ("int8-token", "int4-token")
    found = {}
    for codec in codecs:
        found[codec] = round(8 * len(wrap(encode(hidden, codec))) / hidden.numel(), 2)
    print("bits a value in an envelope:", found, flush=True)
    return found


def main() -> None:
    """Run the rows that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=["streaming", "repeating", "subspace"])
    parser.add_argument("--quick", action="store_true", help="windows of 64 tokens, 8 a batch, half the steps")
    options = parser.parse_args()
    if options.quick:
        options.sequence, options.batch, options.steps = 64, 8, options.steps // 2
    configure(1)
    text = byte_text(options.sequence)
    train, held = (TokenFile(text / f"{name}.bin", options.sequence, 259) for name in ("train", "heldout"))
    base = TrainingSpec(
        sequence=options.sequence,
        batch=options.batch,
        micro_batches=2,
        warmup_steps=max(2, options.steps // 20),
        seed=options.seed,
        learning_rate=RATE_FROM_RANDOM,
    )
    figures: dict[str, Any] = {"options": vars(options)}
    config = llama(options.width, LAYERS)
    if options.only != "subspace":
        _, start = run(config, msgspec.structs.replace(base, activations="fp32"), options.steps, train, held, None, 1)
        slow = msgspec.structs.replace(base, learning_rate=RATE_FROM_RANDOM / 6, seed=options.seed + 1)
        figures["bits"] = bits(config, slow, start, held)
    if options.only in (None, "streaming"):
        figures["streaming"] = _table(config, slow, STREAMING, options.steps, train, held, start, "heldout")
    if options.only in (None, "repeating"):
        figures["repeating"] = _repeating(config, slow, options.steps, start, held, text)
    if options.only in (None, "subspace"):
        figures["subspace"] = _subspace(config, base, options.steps, train, held, options.width)
    publish("activations", __doc__.splitlines()[0], figures)


def _table(
    config: dict[str, Any],
    base: TrainingSpec,
    rows: dict[str, dict[str, Any]],
    steps: int,
    train: TokenFile,
    held: TokenFile,
    start: Stage | None,
    judged: str,
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, changes in rows.items():
        row, _ = run(config, msgspec.structs.replace(base, **changes), steps, train, held, start)
        first = next(iter(found.values()), row)
        row["gap %"] = 100 * (row[judged] / first[judged] - 1)
        found[name] = row
        _say(name, row)
    return found


def _repeating(
    config: dict[str, Any], base: TrainingSpec, steps: int, start: Stage, held: TokenFile, text: Path
) -> dict[str, Any]:
    few = FOLDER / "repeated.bin"
    few.write_bytes((text / "heldout.bin").read_bytes()[: 4 * (REPEATED * base.sequence + 1)])
    repeated = TokenFile(few, base.sequence, 259)
    epochs = max(4, min(25, steps * base.batch // REPEATED))
    spec = msgspec.structs.replace(base, sampling="epochs")
    return _table(config, spec, REPEATING, epochs * REPEATED // base.batch, repeated, held, start, "training")


def _subspace(
    config: dict[str, Any], base: TrainingSpec, steps: int, train: TokenFile, held: TokenFile, width: int
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for rate, channels in itertools.product(RATES, (None, width // 4, width // 8)):
        spec = msgspec.structs.replace(base, learning_rate=rate, subspace=channels, activations="fp32")
        name = f"one process, {channels or width} of {width} channels, rate {rate:g}"
        found[name], _ = run(config, spec, steps, train, held, None, stages=1)
        _say(name, found[name])
    best = {
        channels: min(
            RATES, key=lambda rate: found[f"one process, {channels} of {width} channels, rate {rate:g}"]["heldout"]
        )
        for channels in (width, width // 4, width // 8)
    }
    whole = min(found[f"one process, {width} of {width} channels, rate {rate:g}"]["heldout"] for rate in RATES)
    for name, changes in subspaces(width).items():
        spec = msgspec.structs.replace(base, **changes, learning_rate=best[changes["subspace"]])
        found[name], _ = run(config, spec, steps, train, held, None)
        found[name]["gap %"] = 100 * (found[name]["heldout"] / whole - 1)
        _say(name, found[name])
    return found


def _say(name: str, row: dict[str, Any]) -> None:
    gap = f"{row['gap %']:+6.2f} %" if "gap %" in row else " " * 8
    print(
        f"{name:52} training {row['training']:.4f}  held out {row['heldout']:.4f} {gap}  "
        f"{100 * row['share of naive']:5.1f} % of naive  {row['cpu seconds']:.0f} s",
        flush=True,
    )


if __name__ == "__main__":
    main()
