"""Embeddings of a model: how far rounding moves them, how far other weights do, and whether a mean or the last token tells more.

Each text is computed alone and in batches as an engine makes them, then with the model's weights in bfloat16, in int8 (a scale
for each row), and 1 % off. ``nearest`` counts sentences whose paraphrase is the nearest of all others.

    python -m benchmarks.serving.embeddings --model FOLDER [--threads 1]
"""

import argparse
import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.common import publish
from trainer.audit.environment import configure
from trainer.serve.embeddings import PASS, TOLERANCE, TextEmbedder
from trainer.serve.loading import LoadedModel, load

PAIRS = (
    ("A man is playing a guitar.", "Someone plays a musical instrument."),
    ("The cat sleeps on the sofa.", "A kitten is napping on the couch."),
    ("Stock prices fell sharply today.", "The market dropped a lot this afternoon."),
    ("He cooked dinner for his family.", "A father prepared a meal for his children."),
    ("The train was late because of snow.", "Snow delayed the railway service."),
    ("She is learning to speak French.", "A woman studies the French language."),
    ("The recipe needs two eggs and flour.", "You need flour and a couple of eggs to bake this."),
    ("Water boils at one hundred degrees.", "The boiling point of water is 100 C."),
)
SENTENCES = tuple(one for pair in PAIRS for one in pair)


def rows_of(loaded: LoadedModel) -> list[list[int]]:
    """The sentences as tokens, all of them together, and that several times: more than a pass has."""
    texts = (*SENTENCES, " ".join(SENTENCES), " ".join(SENTENCES * 5))
    rows = [list(loaded.tokenizer(text)["input_ids"]) for text in texts]
    assert len(rows[-1]) > PASS
    return rows


def alone(embedder: TextEmbedder, rows: Sequence[Sequence[int]]) -> Tensor:
    """Vectors ``[texts, width]``, one after the other."""
    return torch.stack([embedder.vectors([row])[0] for row in rows])


def in_batches(embedder: TextEmbedder, rows: Sequence[Sequence[int]]) -> Tensor:
    """The same as an engine makes them."""
    made = []
    while rows:
        size = embedder.batch(rows)
        made.append(embedder.vectors(rows[:size]))
        rows = rows[size:]
    return torch.cat(made)


def changed(loaded: LoadedModel, change: Callable[[Tensor], Tensor]) -> TextEmbedder:
    """With other matrices."""
    model = copy.deepcopy(loaded.model)
    for matrix in model.parameters():
        if matrix.dim() == 2:
            matrix.data = change(matrix.data)
    return TextEmbedder(replace(loaded, model=model))


def in_int8(matrix: Tensor) -> Tensor:
    """Rounded to 127 steps to either side of nought, with a scale for each row."""
    scale = matrix.abs().amax(1, keepdim=True).clamp_min(1e-12) / 127
    return (matrix / scale).round() * scale


def off(matrix: Tensor) -> Tensor:
    """Each value off by 1 %, more or less."""
    return matrix * (1 + 0.01 * torch.randn(matrix.shape, generator=torch.Generator().manual_seed(1)))


@torch.no_grad()
def nearest(loaded: LoadedModel, pool: Callable[[Tensor], Tensor]) -> int:
    """Of how many sentences the paraphrase is the nearest; ``pool`` makes a vector of states ``[tokens, width]``."""
    made = []
    for sentence in SENTENCES:
        ids = torch.tensor([loaded.tokenizer(sentence)["input_ids"]])
        vector = pool(loaded.model.base_model(ids, use_cache=False).last_hidden_state[0])
        made.append(vector / vector.norm())
    vectors = torch.stack(made)
    near = (vectors @ vectors.T).fill_diagonal_(-2.0).argmax(1).tolist()
    return sum(other == number ^ 1 for number, other in enumerate(near))


def measured(folder: Path, threads: int) -> dict[str, Any]:
    """Distances between vectors of length 1, and tokens a second in batches."""
    configure(threads)
    loaded = load(folder, "cpu")
    rows, honest = rows_of(loaded), TextEmbedder(loaded)
    right = alone(honest, rows)
    began = time.perf_counter()
    batched = in_batches(honest, rows)
    seconds = time.perf_counter() - began
    narrow = TextEmbedder(replace(loaded, model=copy.deepcopy(loaded.model).to(torch.bfloat16)))
    others = {
        "in batches": batched,
        "bfloat16": in_batches(narrow, rows),
        "int8": in_batches(changed(loaded, in_int8), rows),
        "1 % off": in_batches(changed(loaded, off), rows),
    }
    distances = {}
    for name, vectors in others.items():
        away = (vectors - right).norm(dim=1)
        distances[name] = {"least": float(away.min()), "median": float(away.median()), "most": float(away.max())}
    return {
        "texts": len(rows),
        "tokens_per_s": round(sum(map(len, rows)) / seconds, 1),
        "distances": distances,
        "nearest": {
            "of": len(SENTENCES),
            "mean": nearest(loaded, lambda states: states.mean(0)),
            "last": nearest(loaded, lambda states: states[-1]),
        },
    }


def shown(found: dict[str, Any]) -> Table:
    """For people."""
    near = found["nearest"]
    title = (
        f"{found['tokens_per_s']} tokens a second; nearest: mean {near['mean']}, last {near['last']} of {near['of']}"
    )
    table = Table(title=title)
    for name in ("computed", "least", "median", "most"):
        table.add_column(name, justify="right")
    for name, row in found["distances"].items():
        table.add_row(name, *(f"{row[column]:.1e}" for column in ("least", "median", "most")))
    return table


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a folder of Hugging Face's")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    found = measured(options.model, options.threads)
    Console(stderr=True).print(shown(found))
    publish("embeddings", f"only other weights move embeddings further than {TOLERANCE:g}", found)


if __name__ == "__main__":
    main()
