"""An engine in this process, asked once."""

import asyncio
from pathlib import Path

from protocol.serving import AnsweredReport, EngineReport, GenerateCommand, RefusedReport, Sampling, TextReport
from trainer.serve.engine import Engine

GREEDY = Sampling(temperature=0)
SECONDS = 60.0


def answered(folder: Path, prompt: str, tokens: int) -> tuple[str, AnsweredReport]:
    """The likeliest text behind a prompt, and how it ended."""
    return asyncio.run(_answered(folder, GenerateCommand("1", prompt, tokens=tokens, sampling=GREEDY)))


async def _answered(folder: Path, command: GenerateCommand) -> tuple[str, AnsweredReport]:
    said: list[EngineReport] = []
    over = asyncio.Event()

    def say(report: EngineReport) -> None:
        said.append(report)
        if isinstance(report, AnsweredReport | RefusedReport):
            over.set()

    async with Engine(folder, 1, say) as engine, asyncio.timeout(SECONDS):
        engine.generate(command)
        await over.wait()
    end = said[-1]
    assert isinstance(end, AnsweredReport), end
    return "".join(one.text for one in said if isinstance(one, TextReport)), end
