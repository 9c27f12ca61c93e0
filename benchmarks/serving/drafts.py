"""A model in two stages over an emulated line, with drafts of a small model, of what was seen before, and without any.

Three pairs of worker processes answer the same requests in turn, one at a time: of words that are new in each round, drawn at
temperature 1 and greedily, and of a text that repeats itself. The line is that of ``benchmarks.serving.stages``. Answers of a
request must be the same from all three, token for token, or the run fails.

    python -m benchmarks.serving.drafts --model FOLDER --draft FOLDER [--tokens 48] [--runs 3] [--trip 0.05] [--mbit 20]

``benchmarks.serving.fit_draft`` makes a draft model where there is none. Of ratios to the answers without drafts, which were
measured right before, the median of all rounds counts. Writes build/bench/drafts.json.
"""

import argparse
import asyncio
import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from transformers import AutoConfig

from benchmarks.common import publish
from benchmarks.serving.answers import Plain
from benchmarks.serving.stages import FREE, GREEDY, REPEATED, SPEC, going_on, median_of, two_stages
from protocol.job.job import ModelSpec

KINDS = {"new words, drawn": FREE, "new words, greedy": GREEDY, "words that repeat": GREEDY}
NONE = "import sys; from trainer.serve.stages import lead; lead.DRAFTS = 0; from trainer.__main__ import main; sys.exit(main())"
"""A worker that drafts nothing."""
WAYS = ("without drafts", "of what was seen", "of a draft model")


async def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second behind the first one, by kind and way, and ratios to those without drafts."""
    plain = Plain(options.model, 1)
    prompts = plain.asked(options.runs + 1)
    del plain
    config = AutoConfig.from_pretrained(options.model)
    with_draft = msgspec.structs.replace(
        SPEC, serve=msgspec.structs.replace(SPEC.serve, draft=ModelSpec(from_job="cd" * 16))
    )
    found: dict[str, dict[str, list[float]]] = {kind: {way: [] for way in WAYS} for kind in KINDS}
    async with contextlib.AsyncExitStack() as stack:
        ways = {
            WAYS[0]: await stack.enter_async_context(two_stages(options, config, program=("-c", NONE))),
            WAYS[1]: await stack.enter_async_context(two_stages(options, config)),
            WAYS[2]: await stack.enter_async_context(two_stages(options, config, spec=with_draft, draft=options.draft)),
        }
        for run in range(options.runs + 1):  # The first one warms all up.
            for kind, sampling in KINDS.items():
                prompt = f"{run}. {prompts[run]}" if kind.startswith("new") else f"{run}. {REPEATED * 3}"
                texts = set()
                for way, workers in ways.items():
                    first, rate, answering = await workers.answer([prompt], options.tokens, sampling)
                    texts.add(answering.text)
                    speed = going_on(first, rate, sum(answering.tokens.values()))
                    print(f"round {run}, {kind}, {way}: {speed:.1f} tokens a second", file=sys.stderr, flush=True)
                    if run:
                        found[kind][way].append(speed)
                if len(texts) != 1:
                    raise SystemExit(f"answers of {kind} differ between ways to draft: {texts}")
    ratios = {kind: {way: median_of(row[way], row[WAYS[0]]) for way in WAYS[1:]} for kind, row in found.items()}
    busy = os.getloadavg()[0]
    return {"trip_s": options.trip, "mbit": options.mbit, "load": busy, "tokens_a_second": found, "ratios": ratios}


def shown(found: dict[str, Any]) -> Table:
    """For people."""
    table = Table(title="one answer of two stages over a line of homes, tokens a second behind the first")
    table.add_column("text")
    for way in WAYS:
        table.add_column(way, justify="right")
    for kind, row in found["tokens_a_second"].items():
        ratios = found["ratios"][kind]
        cells = [
            f"{sorted(row[way])[len(row[way]) // 2]:.1f}" + (f" ({ratios[way]:.2f})" if way in ratios else "")
            for way in WAYS
        ]
        table.add_row(kind, *cells)
    return table


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a folder of Hugging Face's")
    parser.add_argument("--draft", type=Path, required=True, help="that of a small model with the same tokenizer")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--trip", type=float, default=0.05)
    parser.add_argument("--mbit", type=float, default=20.0)
    found = asyncio.run(measured(parser.parse_args()))
    Console(stderr=True).print(shown(found))
    publish("drafts", "answers are the same with drafts and without; the ratios say how much sooner they come", found)


if __name__ == "__main__":
    sys.exit(main())
