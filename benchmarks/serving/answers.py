"""Answers of a model that stays in its process, beside ``transformers.generate`` with the same weights and threads.

Each way answers the same prompts with the likeliest tokens, in turns: one at a time, and several together (of ``generate`` as one
batch, which is the most that it can do, and needs all prompts before it begins). ``first`` is the time to a first token of one
request: of a process that is there, and of one that begins for it, as each trial of a model did.

    python -m benchmarks.serving.answers --model FOLDER [--streams 1,4,16] [--tokens 64] [--runs 3] [--threads 1]
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.common import publish
from protocol.codec import decode_json
from protocol.serving import MAX_LINE, AnsweredReport, EngineReport, GenerateCommand, ReadyReport, Sampling, TextReport

GREEDY = Sampling(temperature=0)
THINGS = ("a lemon", "the sea", "an oak", "a swan", "the night", "a brick", "copper", "a peach")


class Served:
    """``trainer serve`` with a model. ``made``: tokens that it has answered so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.made = 0

    @property
    def pid(self) -> int:
        """Its number on this system."""
        return self._process.pid

    @classmethod
    async def begin(cls, model: Path, threads: int, weights: str = "float32") -> "Served":
        """Start it, and wait until it is ready. ``weights``: how it holds the model."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "trainer", "serve", "--model", str(model), "--threads", str(threads), "--weights", weights),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=MAX_LINE,
        )
        made = cls(process)
        if not isinstance(await made._next(), ReadyReport):
            raise SystemExit(f"{model} is no model that can be served")
        return made

    async def answer(self, prompts: Sequence[str], tokens: int) -> tuple[float, float]:
        """Seconds to the first piece of text, and tokens a second of all; the model may end an answer before it is as long."""
        assert self._process.stdin is not None
        began, first, left, made = time.perf_counter(), 0.0, len(prompts), 0
        for number, prompt in enumerate(prompts):
            command = GenerateCommand(str(number), prompt, tokens=tokens, sampling=GREEDY)
            self._process.stdin.write(msgspec.json.encode(command) + b"\n")
        while left:
            report = await self._next()
            if isinstance(report, TextReport):
                first = first or time.perf_counter() - began
            if isinstance(report, AnsweredReport):
                left, made = left - 1, made + report.tokens
        self.made += made
        return first, made / (time.perf_counter() - began)

    async def end(self) -> None:
        """End it."""
        self._process.kill()
        await self._process.wait()

    async def _next(self) -> Any:
        assert self._process.stdout is not None
        return decode_json(await self._process.stdout.readline(), EngineReport, MAX_LINE)


class Plain:
    """``transformers.generate`` in this process."""

    def __init__(self, model: Path, threads: int) -> None:
        torch.set_num_threads(threads)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(model, padding_side="left")
        self._tokenizer.pad_token = self._tokenizer.eos_token
        self._model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    def answer(self, prompts: Sequence[str], tokens: int) -> float:
        """Tokens a second of a batch; each answer has all its tokens."""
        began = time.perf_counter()
        given = self._tokenizer(list(prompts), return_tensors="pt", padding=True)
        with torch.no_grad():
            self._model.generate(**given, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
        return len(prompts) * tokens / (time.perf_counter() - began)

    def asked(self, count: int) -> list[str]:
        """So many prompts of different lengths, in the model's chat template where it has one."""
        said = [f"What colour is {THINGS[n % len(THINGS)]}, and why?{' Say more.' * (n % 5)}" for n in range(count)]
        if self._tokenizer.chat_template is None:
            return said
        talks = [[{"role": "user", "content": one}] for one in said]
        return [self._tokenizer.apply_chat_template(one, tokenize=False, add_generation_prompt=True) for one in talks]


async def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All runs; of each number of streams the medians."""
    plain = Plain(options.model, options.threads)
    began = time.perf_counter()
    served = await Served.begin(options.model, options.threads)
    cold = time.perf_counter() - began + (await served.answer(plain.asked(1), 4))[0]
    rows: dict[str, dict[str, Any]] = {}
    for streams in map(int, options.streams.split(",")):
        prompts, found = plain.asked(streams), list[tuple[float, float, float]]()
        for _ in range(options.runs + 1):  # The first one warms both up.
            first, ours = await served.answer(prompts, options.tokens)
            theirs = await asyncio.to_thread(plain.answer, prompts, options.tokens)
            found.append((first, ours, theirs))
        first, ours, theirs = (statistics.median(column) for column in zip(*found[1:], strict=True))
        rates = {"ours": ours, "generate": theirs, "ratio": ours / theirs}
        rows[str(streams)] = {"first_s": round(first, 3), **{name: round(rate, 2) for name, rate in rates.items()}}
    await served.end()
    return {"cold_first_s": round(cold, 2), "streams": rows}


def shown(found: dict[str, Any]) -> Table:
    """For people."""
    table = Table(title=f"tokens a second; a process that begins has its first token after {found['cold_first_s']} s")
    for name in ("at a time", "first token, s", "ours", "generate", "ratio"):
        table.add_column(name, justify="right")
    for streams, row in found["streams"].items():
        table.add_row(streams, *(f"{row[name]:.2f}" for name in ("first_s", "ours", "generate", "ratio")))
    return table


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a folder of Hugging Face's")
    parser.add_argument("--streams", default="1,4,16")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    found = asyncio.run(measured(options))
    Console(stderr=True).print(shown(found))
    publish(
        "answers",
        "answers take at most a fifth longer than generate, of one prompt or of a batch, and begin at once",
        found,
    )


if __name__ == "__main__":
    main()
