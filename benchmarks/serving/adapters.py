"""Sixteen requests over four adapters of one model, beside sixteen of one adapter, and of the model alone.

Adapters are drawn at random, at all linear layers. Each kind of batch is asked in turn, several rounds of them. What is measured
is processor time of this process, which other work on the machine does not count into.

    python -m benchmarks.serving.adapters --model FOLDER [--threads 1] [--rank 16] [--tokens 24] [--rounds 3]
"""

import argparse
import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.common import publish
from protocol.job.job import LoraSpec
from protocol.serving import AnsweredReport, EngineReport, GenerateCommand, RefusedReport, Sampling
from trainer.export.adapter import PREFIX
from trainer.serve.adapters import AdapterFiles
from trainer.serve.engine import Engine

REQUESTS, ADAPTERS = 16, 4
KINDS: dict[str, tuple[int, ...]] = {
    "the model alone": (0,),
    "one adapter": (1,),
    "four adapters": (1, 2, 3, 4),
    "the model and four adapters": (0, 1, 2, 3, 4),
}
"""Which adapters the requests of a batch ask for, in turn."""
PROMPT = "Request {number} is about a fox who was quick and brown, and who"


def drawn(model: Path, rank: int, seed: int) -> AdapterFiles:
    """An adapter whose changes are small beside the model's matrices."""
    with torch.device("meta"):
        kind: Any = AutoModelForCausalLM
        whole = kind.from_config(AutoConfig.from_pretrained(model))
    chance, matrices = torch.Generator().manual_seed(seed), dict[str, torch.Tensor]()
    for name, layer in whole.named_modules():
        if isinstance(layer, nn.Linear) and ".layers." in name:
            matrices[f"{PREFIX}{name}.lora_A.weight"] = torch.randn(rank, layer.in_features, generator=chance) * 0.01
            matrices[f"{PREFIX}{name}.lora_B.weight"] = torch.randn(layer.out_features, rank, generator=chance) * 0.01
    return AdapterFiles(LoraSpec(rank, 2.0 * rank), matrices)


class Batches:
    """Asks an engine for a batch at a time."""

    def __init__(self) -> None:
        self._left: set[str] = set()
        self._over = asyncio.Event()

    def say(self, report: EngineReport) -> None:
        """Take what the engine says."""
        if isinstance(report, RefusedReport):
            raise RuntimeError(report.detail)
        if isinstance(report, AnsweredReport):
            self._left.discard(report.id)
            if not self._left:
                self._over.set()

    async def tokens_per_second(self, engine: Engine, adapters: tuple[int, ...], tokens: int) -> float:
        """Tokens of ``REQUESTS`` answers at once, for each second of processor time; prompts are among the time."""
        commands = [
            GenerateCommand(
                str(number),
                PROMPT.format(number=number),
                tokens=tokens,
                sampling=Sampling(seed=number),
                adapter=adapters[number % len(adapters)],
            )
            for number in range(REQUESTS)
        ]
        self._left, self._over = {one.id for one in commands}, asyncio.Event()
        began = time.process_time()
        for command in commands:
            engine.ask(command)
        await self._over.wait()
        return REQUESTS * tokens / (time.process_time() - began)


async def measured(options: argparse.Namespace) -> dict[str, list[float]]:
    """Tokens a second of processor time of each kind of batch, a figure for each round."""
    adapters = [drawn(options.model, options.rank, seed) for seed in range(1, ADAPTERS + 1)]
    batches, found = Batches(), {kind: list[float]() for kind in KINDS}
    async with Engine(options.model, options.threads, batches.say, context=256, adapters=adapters) as engine:
        await batches.tokens_per_second(engine, KINDS["four adapters"], 4)
        for _ in range(options.rounds):
            for kind, numbers in KINDS.items():
                found[kind].append(await batches.tokens_per_second(engine, numbers, options.tokens))
    return found


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    for name, usual in (("threads", 1), ("rank", 16), ("tokens", 24), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    options = parser.parse_args()
    found = asyncio.run(measured(options))
    middle = {kind: statistics.median(values) for kind, values in found.items()}
    table = Table("16 requests of", "tokens a second of processor time", "beside one adapter", "least and most")
    for kind, values in found.items():
        share = middle[kind] / middle["one adapter"]
        table.add_row(kind, f"{middle[kind]:.1f}", f"{share:.2f}", f"{min(values):.1f} to {max(values):.1f}")
    Console(stderr=True).print(table)
    claim = "requests of four adapters share batches: they take little longer than those of one"
    publish("adapters", claim, {"rank": options.rank, "tokens_per_processor_second": found})


if __name__ == "__main__":
    main()
