"""An engine in this process, asked once."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from protocol.serving import (
    AnsweredReport,
    CheckCommand,
    CheckedReport,
    EngineCommand,
    EngineReport,
    GenerateCommand,
    ProvenReport,
    RefusedReport,
    Sampling,
    TextReport,
)
from trainer.serve.engine import Engine

GREEDY = Sampling(temperature=0)
SECONDS = 300.0  # Until it hangs; a busy machine takes a minute for several answers at a time.
Reports = dict[str, list[EngineReport]]


class Asking:
    """What an engine says, by request."""

    def __init__(self) -> None:
        self.said: Reports = {}
        self._news = asyncio.Event()

    def say(self, report: EngineReport) -> None:
        self.said.setdefault(getattr(report, "id", ""), []).append(report)
        self._news.set()

    async def until(self, there: Callable[[Reports], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not there(self.said):
                self._news.clear()
                await self._news.wait()

    async def over(self, engine: Engine, *commands: EngineCommand) -> Reports:
        """All that comes of these."""
        for command in commands:
            engine.ask(command)
        await self.until(lambda said: all(is_over(said.get(one.id, [])) for one in commands))
        return {one.id: self.said.pop(one.id) for one in commands}


def is_over(said: Sequence[EngineReport]) -> bool:
    return bool(said) and isinstance(said[-1], AnsweredReport | RefusedReport | CheckedReport | ProvenReport)


def text_of(said: Sequence[EngineReport]) -> str:
    return "".join(one.text for one in said if isinstance(one, TextReport))


def tokens_of(said: Sequence[EngineReport]) -> tuple[int, ...]:
    return tuple(token for one in said if isinstance(one, TextReport) for token in one.tokens)


def end_of(said: Sequence[EngineReport]) -> AnsweredReport:
    assert isinstance(said[-1], AnsweredReport), said[-1]
    return said[-1]


def check_of(command: GenerateCommand, said: Sequence[EngineReport], number: str = "check") -> CheckCommand:
    """The question whether an answer is right."""
    end = end_of(said)
    return CheckCommand(number, command, tokens_of(said), text_of(said), end.reason, end.prompt, end.calls)


def answered(folder: Path, prompt: str, tokens: int) -> tuple[str, AnsweredReport, CheckedReport]:
    """The likeliest text behind a prompt, how it ended, and what comes of checking it."""
    return asyncio.run(_answered(folder, GenerateCommand("1", prompt, tokens=tokens, sampling=GREEDY)))


async def _answered(folder: Path, command: GenerateCommand) -> tuple[str, AnsweredReport, CheckedReport]:
    asking = Asking()
    async with Engine(folder, 1, asking.say) as engine:
        said = (await asking.over(engine, command))["1"]
        (checked,) = (await asking.over(engine, check_of(command, said)))["check"]
    assert isinstance(checked, CheckedReport), checked
    return text_of(said), end_of(said), checked
