"""What a frozen model in 4 or 8 bits costs: an adapter of a published model learns beside it, and beside the model as it came.

All see the same samples of one text in the same order, from the same adapters. The loss is on text that is held out, before and
after. ``frozen`` are bytes a parameter that the frozen model takes; ``away`` is the loss beside that of the model as it came.

    python -m benchmarks.learning.adapters --model FOLDER [--text FILE] [--steps 60] [--seeds 1,2,3] [--memory lean]

FOLDER has ``config.json``, ``tokenizer.json`` and ``model.safetensors``, as Hugging Face has them.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from benchmarks.common import publish
from cottage.demo.corpus import write_corpus
from protocol.boundary import Position
from protocol.job.job import LoraSpec, ModelSpec, TrainingSpec
from protocol.models.model import resolve
from trainer.audit.environment import configure
from trainer.outer.inner_update import update
from trainer.stage.model import Cut
from trainer.stage.quantized import QuantizedMatrix
from trainer.stage.stage import Stage
from trainer.stage.steps import Recorded, accumulate, heldout_loss

KINDS: tuple[Literal["none", "int8", "nf4"], ...] = ("none", "int8", "nf4")
SEQUENCE, BATCH, HELDOUT = 256, 4, 16


def windows_of(model: Path, text: Path, steps: int) -> np.ndarray[Any, Any]:
    """Samples ``[n, SEQUENCE + 1]`` of the text's beginning: the last ``HELDOUT`` are held out."""
    wanted = (steps * BATCH + HELDOUT) * (SEQUENCE + 1)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    ids = tokenizer.encode(text.read_text(errors="replace")[: 8 * wanted], add_special_tokens=False).ids
    if len(ids) < wanted:
        raise SystemExit(f"{text} has {len(ids):,} tokens and {wanted:,} are needed: give fewer --steps")
    return np.array(ids[:wanted], dtype=np.int64).reshape(-1, SEQUENCE + 1)


def trained(model: Path, rows: np.ndarray[Any, Any], spec: TrainingSpec, steps: int) -> dict[str, Any]:
    """One adapter, from its beginning."""
    given = json.loads((model / "config.json").read_text())
    config = resolve(ModelSpec(config=given, weights="0" * 64), int(given["vocab_size"]))
    layers = int(config["num_hidden_layers"])
    stage = Stage(config, Cut(0, layers, True, True), spec, model)
    heldout = [rows[-HELDOUT:]]
    before = heldout_loss(stage, heldout, Recorded({}))
    order = np.random.default_rng(spec.seed).permutation(len(rows) - HELDOUT)
    began = time.perf_counter()
    for step in range(steps):
        accumulate(stage, Position(0, 1), rows[order[step * BATCH : (step + 1) * BATCH]], Recorded({}))
        update(stage, Position(0, 1), Recorded({}), step, steps)
    seconds = time.perf_counter() - began
    wide = stage.storage.weights.element_size()
    parts = stage.frozen().values()
    held = sum(part.bytes if isinstance(part, QuantizedMatrix) else wide * part.numel() for part in parts)
    return {
        "before": before,
        "after": heldout_loss(stage, heldout, Recorded({})),
        "frozen": round(held / sum(part.numel() for part in parts), 3),
        "tokens_s": round(steps * BATCH * SEQUENCE / seconds, 1),
    }


def shown(rows: dict[str, list[dict[str, Any]]]) -> Table:
    """For people: means of the seeds."""
    table = Table(title="an adapter beside a frozen model")
    for name in ("", "bytes a parameter", "loss before", "after", "away", "tokens/s"):
        table.add_column(name, justify="right" if name else "left")
    base = float(np.mean([row["after"] for row in rows["none"]]))
    for kind, found in rows.items():
        before, after, speed = (float(np.mean([row[key] for row in found])) for key in ("before", "after", "tokens_s"))
        cells = (
            f"{found[0]['frozen']:.2f}",
            f"{before:.4f}",
            f"{after:.4f}",
            f"{after / base - 1:+.2%}",
            f"{speed:.0f}",
        )
        table.add_row(kind, *cells)
    return table


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a folder of Hugging Face's")
    parser.add_argument("--text", type=Path, help="to learn; else the Python library's sources")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--memory", default="float32", choices=("float32", "lean"))
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    configure(options.threads)
    torch.manual_seed(0)
    rows: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as folder:
        text = options.text or Path(folder) / "text"
        if options.text is None:
            write_corpus(text)
        samples = windows_of(options.model, text, options.steps)
    for seed in map(int, options.seeds.split(",")):
        for kind in KINDS:
            spec = TrainingSpec(
                sequence=SEQUENCE,
                batch=BATCH,
                micro_batches=2,
                learning_rate=2e-4,
                weight_decay=0.0,
                clip_norm=1.0,
                precision="bf16",
                memory=options.memory,
                seed=seed,
                lora=LoraSpec(rank=16, alpha=32.0, quantize=kind),
            )
            with console.status(f"seed {seed}, {kind}"):
                rows[kind].append(trained(options.model, samples, spec, options.steps))
    console.print(shown(rows))
    publish(
        "adapters",
        "an adapter beside a model in 4 bits is within 1 % of one beside the model as it came",
        {"rows": rows},
    )


if __name__ == "__main__":
    main()
