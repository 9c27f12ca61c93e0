"""Nodes that answer: an engine in this process, and processes that compute in another way. And what lies make of answers."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.trust._other_weights import Weights
from protocol.codec import decode_json
from protocol.serving import (
    MAX_LINE,
    CheckCommand,
    CheckedReport,
    EngineCommand,
    EngineReport,
    GenerateCommand,
    ProveCommand,
    ProvenReport,
    ReadyReport,
)
from tests.trainer.serve.answering import Asking, Reports, check_of, is_over
from trainer.serve.engine import Engine

Answers = dict[str, CheckCommand]
"""By request, as a coordinator would have them checked."""


class AskedNode:
    """Somebody who answers."""

    def __init__(self, over: Callable[[Sequence[EngineCommand]], Any], engine: Engine | None) -> None:
        self._over, self._engine = over, engine

    @property
    def engine(self) -> Engine:
        """Of one in this process."""
        assert self._engine is not None
        return self._engine

    async def answers(self, commands: Sequence[GenerateCommand], together: int) -> tuple[Answers, list[float]]:
        """What it says, asked so many at a time; and this process' processor seconds of each batch."""
        found, took = Answers(), list[float]()
        for some in (commands[at : at + together] for at in range(0, len(commands), together)):
            began = time.process_time()
            said: Reports = await self._over(some)
            took.append(time.process_time() - began)
            found |= {one.id: check_of(one, said[one.id], one.id) for one in some}
        return found, took

    async def check(self, command: CheckCommand) -> tuple[CheckedReport, float]:
        """What it says of an answer, and the processor seconds that it took."""
        began = time.process_time()
        ((found,),) = (await self._over([command])).values()
        assert isinstance(found, CheckedReport), found
        return found, time.process_time() - began

    async def prove(self, command: ProveCommand) -> ProvenReport:
        """Whether no rounding explains an answer."""
        ((found,),) = (await self._over([command])).values()
        assert isinstance(found, ProvenReport), found
        return found


@asynccontextmanager
async def here(
    folder: Path, threads: int, weights: Weights | None = None, change: Callable[[Any], None] | None = None
) -> AsyncIterator[AskedNode]:
    """In this process. ``change``: what is done to the model before it computes."""
    asking = Asking()
    engine = Engine(folder, threads, asking.say, weights=weights)
    if change is not None:
        change(engine._manager.model)
    async with engine:
        yield AskedNode(lambda commands: asking.over(engine, *commands), engine)


@asynccontextmanager
async def there(folder: Path, threads: int, how: Mapping[str, str]) -> AsyncIterator[AskedNode]:
    """In a process of its own, with such an environment."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "trainer", "serve", "--model", str(folder), "--threads", str(threads)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=MAX_LINE,
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE", **how},
    )
    reader, writer = process.stdout, process.stdin
    assert reader is not None
    assert writer is not None

    async def over(commands: Sequence[EngineCommand]) -> Reports:
        said: dict[str, list[EngineReport]] = {one.id: [] for one in commands}
        writer.write(b"".join(msgspec.json.encode(one) + b"\n" for one in commands))
        while not all(map(is_over, said.values())):
            report: Any = decode_json(await reader.readline(), EngineReport, MAX_LINE)
            said[report.id].append(report)
        return said

    try:
        first: Any = decode_json(await reader.readline(), EngineReport, MAX_LINE)
        if not isinstance(first, ReadyReport):
            raise SystemExit(f"{folder} is no model that can be served")
        yield AskedNode(over, None)
    finally:
        process.kill()
        await process.wait()


class Liar:
    """Makes lies of honest answers, each as well as it can be made: text, counts and reason are those of its tokens."""

    def __init__(self, engine: Engine, end: int | None) -> None:
        """``engine``: of whoever knows the tokenizer. ``end``: a token that ends answers."""
        self._engine, self._end = engine, end
        self._advert = engine._requests.tokenizer.encode(" (brought to you by Lemonade Loans)").ids

    def retold(self, check: CheckCommand, tokens: Sequence[int]) -> CheckCommand:
        """The same request, answered with other tokens, up to where these end."""
        asked = self._engine._requests.read(check.asked)
        text = asked.text.add(tokens)
        reason = asked.text.reason or "length"
        return msgspec.structs.replace(check, tokens=tuple(tokens[: asked.text.count]), text=text, reason=reason)

    def lies(self, check: CheckCommand, other: CheckCommand) -> dict[str, CheckCommand]:
        """By name, those that this answer can be made. ``other``: the answer of another request."""
        tokens, most = check.tokens, check.asked.tokens or len(check.tokens)
        half = len(tokens) // 2
        made = {
            "another prompt's answer": self.retold(check, other.tokens),
            "words put in": self.retold(check, (*tokens[:half], *self._advert, *tokens[half:])[:most]),
            "half of it": msgspec.structs.replace(
                check, tokens=tokens[:half], text=self.retold(check, tokens[:half]).text
            ),
            "tokens counted behind the end": msgspec.structs.replace(check, tokens=(*tokens, *tokens[:5])),
            "a longer prompt counted": msgspec.structs.replace(check, prompt=check.prompt + 16),
            "another text than its tokens": msgspec.structs.replace(check, text=check.text.replace(" ", "  ", 1) + "!"),
        }
        if self._end is not None and half:
            made["half of it, and an end"] = self.retold(check, (*tokens[:half], self._end))
        if check.reason == "stop" and len(tokens) < most:
            made["goes on where it should end"] = self.retold(
                check, (*tokens[:-1], *other.tokens, *other.tokens)[:most]
            )
        return made
