"""A model held as float32, in 8 and in 4 bits: memory, speed, how its answers differ, and whether checks find the difference.

Memory and speed are of ``trainer serve``, a process of its own for each, asked in turns; speed is in tokens a second of its
own processor time, so that other work on the machine counts little. Differences are of a text's tokens:
``loss`` in nats a token, ``divergence`` of the next token's distribution from that of float32, ``same`` the share of tokens
whose likeliest next one is the same, and ``states`` how far hidden states behind half of the layers are off, of their length.
At last each kind answers, and each other one checks that. ``found`` are answers that are called wrong.

    python -m benchmarks.serving.weights --model FOLDER [--streams 1,8] [--tokens 48] [--runs 2] [--answers 12] [--threads 1]
"""

import argparse
import asyncio
import os
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional

from benchmarks.common import ROOT, publish
from benchmarks.serving.answers import Plain, Served
from benchmarks.serving.embeddings import SENTENCES
from protocol.job.job import ServedWeights
from protocol.serving import CheckedReport, GenerateCommand, Sampling
from tests.trainer.serve.answering import Asking, Reports, check_of
from trainer.audit.environment import configure
from trainer.serve.checking import TOLERANCE
from trainer.serve.embeddings import TextEmbedder
from trainer.serve.engine import Engine
from trainer.serve.loading import LoadedModel, load
from trainer.stage.quantized import matrices

KINDS: tuple[ServedWeights, ...] = get_args(ServedWeights)
WINDOW = 512  # Tokens of a text that are computed together.
MEGABYTE = 1 << 20


def memory_of(pid: int) -> dict[str, int]:
    """Megabytes of a process: now, and at the most so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    told = dict(line.split(":", 1) for line in lines if line.startswith("Vm"))
    return {name: int(told[key].split()[0]) * 1024 // MEGABYTE for name, key in (("ready", "VmRSS"), ("peak", "VmHWM"))}


def processor_s(pid: int) -> float:
    """Seconds that a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def processes(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Of each kind its process' memory once it is ready, and by streams the median of its tokens a second of a processor."""
    prompts = Plain(options.model, options.threads)
    served = {kind: await Served.begin(options.model, options.threads, kind) for kind in KINDS}
    found: dict[str, dict[str, Any]] = {kind: {"memory_mb": memory_of(one.pid)} for kind, one in served.items()}
    for streams in map(int, options.streams.split(",")):
        rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for _ in range(options.runs + 1):  # The first one warms up.
            for kind, one in served.items():
                began, before = processor_s(one.pid), one.made
                await one.answer(prompts.asked(streams), options.tokens)
                rates[kind].append((one.made - before) / (processor_s(one.pid) - began))
        for kind, all_of in rates.items():
            found[kind].setdefault("tokens_per_core_s", {})[str(streams)] = round(statistics.median(all_of[1:]), 2)
    for one in served.values():
        await one.end()
    return found


@dataclass
class Seen:
    """What a model says of a text: logits ``[t, v]`` and hidden states ``[t, d]`` of each window, and vectors of sentences."""

    logits: list[Tensor]
    states: list[Tensor]
    vectors: Tensor


@torch.no_grad()
def seen(loaded: LoadedModel, windows: list[Tensor]) -> Seen:
    """Compute a text and the sentences."""
    logits, states = [], []
    for window in windows:
        said = loaded.model(window[None], output_hidden_states=True, use_cache=False)
        logits.append(said.logits[0].float())
        states.append(said.hidden_states[len(said.hidden_states) // 2][0])
    rows = [list(loaded.tokenizer(one)["input_ids"]) for one in SENTENCES]
    embedder = TextEmbedder(loaded)
    return Seen(logits, states, torch.stack([embedder.vectors([row])[0] for row in rows]))


def apart(one: Seen, right: Seen, windows: list[Tensor]) -> dict[str, float]:
    """How far one is off another."""
    losses, divergences, same, states = [], [], [], []
    for mine, theirs, window in zip(one.logits, right.logits, windows, strict=True):
        losses.append(functional.cross_entropy(mine[:-1], window[1:], reduction="none"))
        divergences.append((theirs.softmax(-1) * (theirs.log_softmax(-1) - mine.log_softmax(-1))).sum(-1))
        same.append((mine.argmax(-1) == theirs.argmax(-1)).float())
    for mine, theirs in zip(one.states, right.states, strict=True):
        states.append(((mine - theirs).norm(dim=-1) / theirs.norm(dim=-1))[1:])  # A first token's state is huge.
    return {
        "loss": round(float(torch.cat(losses).mean()), 4),
        "divergence": round(float(torch.cat(divergences).mean()), 5),
        "same": round(float(torch.cat(same).mean()), 4),
        "states": round(float(torch.cat(states).median()), 5),
        "embeddings": round(float((one.vectors - right.vectors).norm(dim=1).median()), 5),
    }


def differences(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Of each kind how far it is off float32, and the bytes of a parameter."""
    right, found = None, dict[str, dict[str, Any]]()
    for kind in KINDS:
        loaded = load(options.model, "cpu", held=kind)
        ids = torch.tensor(loaded.tokenizer(options.text.read_text())["input_ids"][: options.length])
        windows = list(ids.split(WINDOW))
        mine = seen(loaded, windows)
        right = right or mine
        found[kind] = apart(mine, right, windows) | {"held_mb": round(_bytes(loaded) / MEGABYTE, 1)}
    return found


def _bytes(loaded: LoadedModel) -> int:
    plain = {one.data_ptr(): one.numel() * one.element_size() for one in loaded.model.parameters()}
    return sum(plain.values()) + sum(matrix.bytes for _, matrix in matrices(loaded.model))


def asked(count: int, tokens: int) -> Iterator[GenerateCommand]:
    """Requests, half of them for the likeliest tokens and half drawn."""
    for number in range(count):
        sampling = Sampling(number % 2, seed=number)
        sentence = SENTENCES[number % len(SENTENCES)]
        yield GenerateCommand(str(number), f"{sentence} And then", tokens=tokens, sampling=sampling)


async def checked(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """By who promised and who answered: how many answers are called wrong, and how far they are off, in nats."""
    commands, said = list(asked(options.answers, options.tokens)), dict[str, Reports]()
    for kind in KINDS:
        asking = Asking()
        async with Engine(options.model, options.threads, asking.say, held=kind) as engine:
            said[kind] = await asking.over(engine, *commands)
    found: dict[str, dict[str, Any]] = {}
    for promised in KINDS:
        asking = Asking()
        async with Engine(options.model, options.threads, asking.say, held=promised) as engine:
            for kind, answers in said.items():
                checks = [check_of(one, answers[one.id], f"check {one.id}") for one in commands]
                reports = [told[-1] for told in (await asking.over(engine, *checks)).values()]
                found.setdefault(promised, {})[kind] = _outcome(reports)
    return found


def _outcome(reports: list[Any]) -> dict[str, Any]:
    assert all(isinstance(one, CheckedReport) for one in reports), reports
    worst = sorted(one.worst for one in reports)
    return {
        "answers": len(reports),
        "found": sum(bool(one.wrong) for one in reports),
        "median_nats": round(statistics.median(worst), 6),
        "most_nats": round(worst[-1], 6),
    }


def shown(found: dict[str, Any]) -> Table:
    """For people."""
    table = Table(title="a model by how it is held")
    names = (
        "weights",
        "MB held",
        "process MB",
        "peak",
        "tokens a core second",
        "loss",
        "divergence",
        "same",
        "found by",
    )
    for name in names:
        table.add_column(name, justify="right")
    for kind, row in found["kinds"].items():
        memory, rates = row["memory_mb"], ", ".join(f"{rate} at {n}" for n, rate in row["tokens_per_core_s"].items())
        checks = ", ".join(f"{who} {by[kind]['found']}/{by[kind]['answers']}" for who, by in found["checks"].items())
        cells = (kind, row["held_mb"], memory["ready"], memory["peak"], rates, row["loss"], row["divergence"])
        table.add_row(*map(str, (*cells, row["same"], checks)))
    return table


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a folder of Hugging Face's")
    parser.add_argument("--text", type=Path, default=ROOT / "docs" / "explanation" / "architecture.md")
    parser.add_argument("--length", type=int, default=2048, help="tokens of the text")
    parser.add_argument("--streams", default="1,8")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--answers", type=int, default=12)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    configure(options.threads)
    console = Console(stderr=True)
    parts: list[dict[str, Any]] = []
    for measure in (
        differences,
        lambda given: asyncio.run(checked(given)),
        lambda given: asyncio.run(processes(given)),
    ):
        parts.append(measure(options))
        console.print(parts[-1])  # The next one takes a while.
    rows = {kind: row | parts[2][kind] for kind, row in parts[0].items()}
    found = {"tolerance_nats": TOLERANCE, "kinds": rows, "checks": parts[1]}
    console.print(shown(found))
    publish("weights", "a check passes whoever holds what was promised, and finds 8 bits where 4 are, or none", found)


if __name__ == "__main__":
    main()
