"""Passes of few rows through a stage that draws, beside the same with every product in the library's usual way.

The stage is the second half of a model, with its head. It passes 1 to 9 rows, each of another answer, in both ways in turn. The
shortest of ``--runs`` passes counts, by processor time of the one thread that computes.

    python -m benchmarks.serving.few_rows --model FOLDER [--runs 24] [--slept 0.06]

``slept``: a pass of one row again and again, after so many seconds of sleep each, and after as many in which the core was kept
busy; medians of elapsed time, so nothing else should compute meanwhile. Writes build/bench/few_rows.json.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file

from benchmarks.common import publish
from trainer.serve.few_rows import FewRows
from trainer.serve.stages.pages import LayerCache
from trainer.serve.stages.share import ModelShare, cache_size
from trainer.stage.model import Cut

CONTEXT, BEGUN = 2048, 40  # Tokens that a cache has room for, and that each answer has already.
ROWS = (1, 2, 3, 4, 5, 6, 8, 9)
CLAIM = "passes of one to four rows take a processor less than in the library's usual way"


class Stage:
    """The second half of a model."""

    def __init__(self, folder: Path) -> None:
        weights = {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}
        layers = len({name.split(".layers.")[1].split(".")[0] for name in weights if ".layers." in name})
        cut = Cut(layers // 2, layers, False, True)
        self.share = ModelShare(folder, cut, weights, "cpu")
        shape = self.share.shape
        pages = cache_size(shape, CONTEXT).pages
        self._cache = LayerCache(cut.last - cut.first, pages, shape.kv_heads, shape.head_dim, self.share.device)
        self._cache.places([(owner, 0, BEGUN) for owner in range(max(ROWS))])
        self.quick: list[tuple[dict[str, Any], FewRows]] = [
            (vars(part), forward)
            for part in self.share._module.modules()
            if isinstance(forward := vars(part).get("forward"), FewRows)
        ]

    def run(self, rows: int) -> None:
        """One more token of so many answers."""
        places = self._cache.places([(owner, BEGUN, 1) for owner in range(rows)])
        self.share.logits(self.share.run(torch.ones(rows, self.share.shape.hidden), places))

    @contextmanager
    def usual(self) -> Iterator[None]:
        """Meanwhile all products are made in the library's usual way."""
        for part, _ in self.quick:
            del part["forward"]
        try:
            yield
        finally:
            for part, forward in self.quick:
                part["forward"] = forward


def seconds(stage: Stage, rows: int, clock: Callable[[], float] = time.thread_time) -> float:
    """Of one pass."""
    began = clock()
    stage.run(rows)
    return clock() - began


def both(stage: Stage, rows: int, runs: int) -> dict[str, float]:
    """Milliseconds of a pass, in both ways."""
    quick, usual = [], []
    for _ in range(runs):
        with stage.usual():
            usual.append(seconds(stage, rows))
        quick.append(seconds(stage, rows))
    return {"ms": 1e3 * min(quick), "usual_ms": 1e3 * min(usual), "ratio": min(quick) / min(usual)}


def slept(stage: Stage, runs: int, pause: float) -> dict[str, float]:
    """Milliseconds of a pass of one row after each way to spend a pause, and without one."""

    def busy() -> None:
        until = time.perf_counter() + pause
        while time.perf_counter() < until:
            pass

    found: dict[str, float] = {}
    for name, wait in {"again": lambda: None, "slept": lambda: time.sleep(pause), "busy": busy}.items():
        times = []
        for _ in range(2 * runs):
            wait()
            times.append(seconds(stage, 1, time.perf_counter))
        found[f"{name}_ms"] = 1e3 * statistics.median(times)
    return found


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a folder of Hugging Face's")
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--slept", type=float, default=0.06, help="seconds")
    options = parser.parse_args()
    torch.set_num_threads(1)
    stage = Stage(options.model)
    rows = {str(count): both(stage, count, options.runs) for count in ROWS}
    found = {"slept_s": options.slept, "rows": rows, **slept(stage, options.runs, options.slept)}
    table = Table(
        "rows", "ms of a processor", "in the usual way", "ratio", title="a pass of half of a model and its head"
    )
    for count, one in rows.items():
        table.add_row(count, f"{one['ms']:.1f}", f"{one['usual_ms']:.1f}", f"{one['ratio']:.2f}")
    Console(stderr=True).print(table)
    publish("few_rows", CLAIM, found)


if __name__ == "__main__":
    main()
