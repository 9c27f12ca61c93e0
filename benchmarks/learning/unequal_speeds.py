"""What a slow replica's update should weigh: held-out loss of rounds of fixed time, at equal steps, by how updates are averaged.

Four replicas do 5, 5, 10 and 20 inner steps in each round (``--steps``). Samples, steps and bytes are the same in all rows, only
the outer step differs. ``plain``: each update alike. ``checked``: the same without odd ones, as the product does by default.
``tokens``: by steps. ``root``: by their square root. ``directions``: lengths and directions averaged apart, both by steps, as in
Decoupled DiLoCo (arXiv 2604.21428).

An average weighted by steps is longer, which a larger outer learning rate gives as well; so each is run with ``--scales``, too:
its update times that. *Farthest* is the longest update of a round over the median, at most: the checks refuse some of them.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.common import FOLDER, publish
from benchmarks.learning._training_recipes import Recipe
from benchmarks.learning._training_runs import BATCH, NOBODY, SEQUENCE, SIZES, Runner, Setting
from benchmarks.learning._training_text import prepared
from protocol.audit import ends_segment
from protocol.boundary import Position
from trainer.outer import Local, OuterState, outer_method
from trainer.outer.checks import Combining
from trainer.outer.inner_update import update

HERE = FOLDER / "training"
METHODS: Mapping[str, Mapping[str, Any]] = {
    "diloco": {"outer": "diloco", "outer_learning_rate": 0.7, "outer_momentum": 0.5},
    "averaging": {"outer": "averaging", "outer_learning_rate": 1.0, "outer_momentum": 0.0},
}
Figures = dict[str, Any]


def weighted(updates: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """The mean of updates ``[n]``."""
    total = torch.zeros_like(updates[0], dtype=torch.float64)
    for one, weight in zip(updates, weights, strict=True):
        total.add_(one.double(), alpha=weight)
    return total.div_(sum(weights)).float()


def directions(updates: Sequence[Tensor], steps: Sequence[int]) -> Tensor:
    """The mean direction, as long as the updates are on average."""
    lengths = [float(one.norm()) for one in updates]
    mean = weighted([one / length for one, length in zip(updates, lengths, strict=True)], steps)
    length = sum(length * count for length, count in zip(lengths, steps, strict=True)) / sum(steps)
    return mean.mul(length / float(mean.norm()))


AVERAGES: Mapping[str, Callable[[Sequence[Tensor], Sequence[int]], Tensor]] = {
    "plain": lambda updates, steps: weighted(updates, [1.0] * len(steps)),
    "checked": lambda updates, _: Combining(checked=True).combine(dict(enumerate(updates)))[0],
    "tokens": weighted,
    "root": lambda updates, steps: weighted(updates, [count**0.5 for count in steps]),
    "directions": directions,
}


def run(runner: Runner, setting: Setting, recipe: Recipe, average: str, scale: float, steps: list[int]) -> Figures:
    """Rounds until replicas have done the setting's steps on average."""
    training = setting.spec(recipe)
    stages = [runner.stage(training) for _ in steps]
    method = outer_method(training, stages[0].slots, stages[0].size)
    state = OuterState.first(stages[0].values().clone(), training)
    local: list[Local] = [method.fresh(state) for _ in stages]
    farthest = 0.0
    for index in range(setting.steps * len(steps) // sum(steps)):
        updates, done = [], index * sum(steps) // len(steps)
        for replica, stage in enumerate(stages):
            stage.load(method.start(state, local[replica], index))
            for step in range(steps[replica]):
                runner.gradients(stage, training, index * max(steps) + step, replica, 1)
                update(stage, Position(0, 1), NOBODY, min(done + step, setting.steps - 1), setting.steps)
                if ends_segment(step, training.commit_every, steps[replica]):
                    stage.shorten(state.anchor)
            made = method.contribution(state.anchor, stage.values(), local[replica], index)
            local[replica] = made.local
            updates.append(method.decode_update(made.data, index))
        lengths = sorted(float(one.norm()) for one in updates)
        farthest = max(farthest, lengths[-1] / lengths[(len(lengths) - 1) // 2])
        state = method.step(state, AVERAGES[average](updates, steps).mul(scale), (), index)
    stages[0].load(state.anchor)
    return {"loss": round(runner.loss(stages[0]), 5), "farthest": round(farthest, 2)}


def rows(options: argparse.Namespace) -> Iterator[Figures]:
    """One for each method, codec, average and scale, with all seeds."""
    text = prepared(HERE, SEQUENCE)
    settings = [Setting(options.size, options.total, True, seed, HERE) for seed in options.seeds]
    runners = [Runner(setting, text, lambda _: None) for setting in settings]
    for method in options.methods.split(","):
        for codec in options.codecs.split(","):
            recipe = Recipe(method, "timed", {**METHODS[method], "pseudo_gradient": codec})
            for average in options.averages.split(","):
                for scale in options.scales:
                    found = [
                        run(runner, setting, recipe, average, scale, options.steps)
                        for runner, setting in zip(runners, settings, strict=True)
                    ]
                    losses = [figures["loss"] for figures in found]
                    yield {
                        "method": method,
                        "codec": codec,
                        "average": average,
                        "scale": scale,
                        "losses": losses,
                        "loss": round(statistics.fmean(losses), 5),
                        "farthest": max(figures["farthest"] for figures in found),
                    }


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="0.2M")
    parser.add_argument("--total", type=int, default=200, help="inner steps of a replica, on average")
    parser.add_argument("--steps", default="5,5,10,20", help="inner steps of each replica in a round")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--codecs", default="int8,coarse")
    parser.add_argument("--averages", default="plain,tokens,root", help=f"of {','.join(AVERAGES)}")
    parser.add_argument("--scales", default="1")
    options = parser.parse_args()
    options.steps, options.seeds = ([int(one) for one in text.split(",")] for text in (options.steps, options.seeds))
    options.scales = [float(one) for one in options.scales.split(",")]
    return options


def main() -> None:
    """Run all rows and write the document."""
    options, console = parse(), Console(stderr=True, width=110)
    table = Table("method", "average", "times", "loss", "over the first", "of each seed", "farthest")
    done: list[Figures] = []
    for row in rows(options):
        done.append(row)
        first = next(other for other in done if (other["method"], other["codec"]) == (row["method"], row["codec"]))
        row["over_first"] = round(100 * (row["loss"] / first["loss"] - 1), 2)
        console.print(row)
        seeds = ", ".join(f"{loss:.4f}" for loss in row["losses"])
        cells = f"{row['scale']:g}", f"{row['loss']:.4f}", f"{row['over_first']:+.2f} %", seeds, f"{row['farthest']:g}"
        table.add_row(f"{row['method']} {row['codec']}", row["average"], *cells)
    console.print(table)
    tokens = options.total * BATCH * SEQUENCE * len(options.steps)
    publish("unequal_speeds", str(__doc__).splitlines()[0], {"steps": options.steps, "tokens": tokens, "rows": done})


if __name__ == "__main__":
    main()
