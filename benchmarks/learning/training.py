"""Replicas over home links learn what replicas in one machine learn, with hundreds of times fewer bytes.

Real text, four replicas, equal tokens, warm start: each method's bytes and held-out loss beside torch's DDP, Flower's FedAvg and
one worker alone. Our replicas run one after the other in this process, which gives the same numbers as a network of them; the
others run as real processes.

``bytes`` are what a node uploads for one other replica, encoded, with all headers of the encoding; ``ratio`` divides the float32
gradients of every step by them. ``upload`` is all that a node sends: to each of the three others in our case, by what the
loopback interface counted in the others'.
"""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any, get_args

import msgspec
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.common import FOLDER, publish
from benchmarks.learning._training_peers import measure
from benchmarks.learning._training_recipes import RECIPES, Recipe
from benchmarks.learning._training_runs import (
    FIRST_STEP,
    JUDGED_WINDOWS,
    REPLICAS,
    SEQUENCE,
    SIZES,
    Family,
    Runner,
    Setting,
    remembered,
)
from benchmarks.learning._training_text import Corpus, prepared
from protocol.job.job import TrainingSpec

Figures = dict[str, Any]
HERE = FOLDER / "training"
QUICK = ("together", "alone", "int4 gradients", "H=20 int4", "400x", "1000x")


class Bench:
    """The tables, one for each size and kind of start."""

    def __init__(self, options: argparse.Namespace, progress: Progress, console: Console) -> None:
        self._options = options
        self._progress = progress
        self._console = console
        HERE.mkdir(parents=True, exist_ok=True)
        self._text = prepared(HERE, SEQUENCE, options.corpus)

    def table(self, size: str, warm: bool, seed: int) -> list[Figures]:
        """Rows of one setting, DDP first."""
        steps = self._options.steps or SIZES[size].steps
        about = self._options
        setting = Setting(size, steps, warm, seed, HERE, about.precision, about.corpus, about.family)
        recipes = [recipe for recipe in RECIPES if recipe.name in self._options.methods and (warm or recipe.scratch)]
        name = f"{size}, {'warm' if warm else 'from scratch'}, seed {seed}"
        job = self._progress.add_task(name, total=len(recipes) + 1)
        done = 0

        def tell(share: float) -> None:
            self._progress.update(job, completed=done + share)

        runner = Runner(setting, self._text, tell)
        if warm:
            runner.warm_start()
        rows = []
        for recipe in recipes:
            done += 1
            if recipe.how in ("ddp", "flower"):
                row = remembered(setting, recipe, partial(self._peer, recipe, setting))
            else:
                row = runner.run(recipe)
            rows.append(row | {"name": recipe.name, "note": recipe.note})
            self._console.print(f"{name}: {recipe.name}: {row.get('failed') or round(row['loss'], 4)}")
        self._progress.update(job, completed=len(recipes) + 1)
        compare(rows)
        self._console.print(shown(name, rows))
        return rows

    def _peer(self, recipe: Recipe, setting: Setting) -> Figures:
        """A row of somebody else's program."""
        order = {
            "config": setting.config(),
            "training": msgspec.to_builtins(setting.spec(recipe)),
            "state": str(self._state(setting)) if setting.warm else None,
            "text": str(self._text),
            "steps": setting.steps,
            "first": FIRST_STEP,
            "judged": JUDGED_WINDOWS,
            "replicas": REPLICAS,
        }
        figures = measure(recipe.how, order, HERE)
        if "failed" in figures:
            return figures
        tokens = setting.steps * TrainingSpec(**order["training"]).batch * SEQUENCE
        if figures["sent_by_all"] is not None:
            figures |= {"upload": figures["sent_by_all"] / REPLICAS, "upload_per_token": None}
            figures["upload_per_token"] = round(figures["upload"] / tokens, 2)
        return figures | {"tokens": tokens * REPLICAS}

    def _state(self, setting: Setting) -> Path:
        return HERE / setting.warm_file


def compare(rows: list[Figures]) -> None:
    """Add each row's gap to the first one's loss, and to the lone worker's, in percent."""
    known = {row["name"]: row["loss"] for row in rows if "loss" in row}
    for row in rows:
        for other, column in (("together", "gap"), ("alone", "over_alone")):
            if "loss" in row and other in known:
                row[column] = round(100 * (row["loss"] / known[other] - 1), 2)
        if row.get("wire_bytes"):
            tokens = row["tokens"] / REPLICAS
            row["upload_per_token"] = round((REPLICAS - 1) * row["wire_bytes"] / tokens, 3)


def shown(title: str, rows: list[Figures]) -> Table:
    """For people."""
    table = Table(title=title)
    for column in ("method", "loss", "over DDP", "over alone", "bytes a token", "ratio", "upload a token", "seconds"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for row in rows:
        if "failed" in row:
            table.add_row(row["name"], row["failed"])
            continue
        gap, alone = (f"{row[key]:+.2f} %" if key in row else "" for key in ("gap", "over_alone"))
        cells = [row.get(key) for key in ("bytes_per_token", "ratio", "upload_per_token", "seconds")]
        table.add_row(
            row["name"], f"{row['loss']:.4f}", gap, alone, *("" if cell is None else f"{cell:g}" for cell in cells)
        )
    return table


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--sizes", default="1M,5M", help=f"of {','.join(SIZES)}")
    parser.add_argument("--methods", default="all", help="separated by commas")
    parser.add_argument("--starts", default="warm,scratch")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--steps", type=int, default=0, help="steps of each replica; 0: the size's own")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument(
        "--corpus", choices=get_args(Corpus), default="python", help="english: a Debian package, fetched"
    )
    parser.add_argument("--family", choices=get_args(Family), default="llama")
    parser.add_argument("--quick", action="store_true", help="a small model and few methods, in minutes")
    options = parser.parse_args()
    if options.quick:
        options.sizes, options.methods, options.starts = "0.2M", ",".join(QUICK), "warm"
    options.methods = [recipe.name for recipe in RECIPES] if options.methods == "all" else options.methods.split(",")
    unknown = set(options.methods) - {recipe.name for recipe in RECIPES}
    if unknown:
        sys.exit(f"no method {', '.join(sorted(unknown))}: there are {', '.join(recipe.name for recipe in RECIPES)}")
    return options


def main() -> None:
    """Run the tables and write the document."""
    options, console = parse(), Console(stderr=True)
    tables: Figures = {}
    with Progress(console=console) as progress:
        bench = Bench(options, progress, console)
        for size in options.sizes.split(","):
            for start in options.starts.split(","):
                for seed in options.seeds.split(","):
                    tables[f"{size} {start} {seed}"] = bench.table(size, start == "warm", int(seed))
                    publish("training", str(__doc__).splitlines()[0], {"tables": tables})


if __name__ == "__main__":
    main()
