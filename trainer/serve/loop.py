"""Commands of ``protocol.serving`` come in on standard input and reports go out, a line each; it ends with its input."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec

from protocol.codec import MessageError, decode_json
from protocol.job.job import ServedWeights
from protocol.serving import MAX_LINE, EngineCommand, EngineReport, ReadyReport
from protocol.stdio import open_stdio
from trainer.errors import InputError
from trainer.serve.adapters import AdapterFiles
from trainer.serve.engine import Engine


async def serve(folder: Path, threads: int, held: ServedWeights = "float32", adapters: Sequence[Path] = ()) -> None:
    """Answer until nobody asks any more.

    Args:
        held: how the model's matrices are held.
        adapters: folders of those that requests may ask for, numbered from 1.
    Raises:
        InputError: a line is no command, or the model cannot be loaded. Exception: its thread failed.
    """
    reader, writer = await open_stdio(MAX_LINE)

    def say(report: EngineReport) -> None:
        if not writer.is_closing():
            writer.write(msgspec.json.encode(report) + b"\n")

    beside = [AdapterFiles.of_folder(one) for one in adapters]
    async with Engine(folder, threads, say, held=held, adapters=beside) as engine:
        say(ReadyReport(engine.longest))
        if (failure := await engine.beside(_read(reader, engine))) is not None:
            raise failure


async def _read(reader: asyncio.StreamReader, engine: Engine) -> None:
    while line := await reader.readline():
        try:
            engine.ask(decode_json(line, EngineCommand, MAX_LINE))
        except MessageError as error:
            raise InputError("bad-command", str(error)) from error
