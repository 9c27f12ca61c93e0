"""The agent's end of what carries an element's files (``desktop.agent.sandbox.porter``)."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from desktop.agent.base.payloads import PIECE, Payload, pieces_of
from desktop.agent.errors import WorkerDiedError, WorkerError, WorkerProtocolError
from protocol.job.elements import MAX_RESULT_FILES

MAX_LINE = 64 << 10
MAX_LIST_BYTES = 64 << 20  # A hundred thousand names of five hundred bytes.


class CarryError(WorkerError):
    """A file could not be laid in, or what was left cannot be taken; the text says why."""


@dataclass(frozen=True)
class LeftFiles:
    """What an element left. ``full``: there was no room for more."""

    sizes: Mapping[str, int]
    full: bool


class PorterLink:
    """One question at a time. Every call raises WorkerDiedError where the porter has gone."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def clear(self) -> None:
        """Empty what elements leave; raises CarryError where that cannot be."""
        _faultless(await self._ask({"do": "clear"}))

    async def drop(self, path: str) -> None:
        """Take an input away, and the folders that it leaves empty."""
        _faultless(await self._ask({"do": "drop", "path": path}))

    async def put(self, path: str, payload: Payload) -> None:
        """Lay an input in; raises CarryError where there is no room, OSError where the disk has lost it."""
        _faultless(await self._ask({"do": "put", "path": path, "size": payload.size}, payload))

    async def left(self, most_bytes: int) -> LeftFiles:
        """What lies there after an element; raises CarryError where it is too much, or not only plain files."""
        answer = _faultless(await self._ask({"do": "list", "files": MAX_RESULT_FILES, "bytes": most_bytes}))
        if not 0 <= int(answer["size"]) <= MAX_LIST_BYTES:
            raise WorkerProtocolError("the list of what an element left is too long")
        with _gone():
            found = json.loads(await self._reader.readexactly(int(answer["size"])))
        return LeftFiles({str(path): int(size) for path, size in found}, bool(answer["full"]))

    async def get(self, path: str, size: int) -> AsyncIterator[bytes]:
        """One of these, piece by piece; raises CarryError where it is not what it was."""
        _faultless(await self._ask({"do": "get", "path": path, "size": size}))
        left = size
        while left:
            with _gone():
                piece = await self._reader.read(min(PIECE, left))
            if not piece:
                raise WorkerDiedError("what carries an element's files has ended")
            left -= len(piece)
            yield piece

    def close(self) -> None:
        """Let it end."""
        self._writer.close()

    async def _ask(self, question: dict[str, Any], payload: Payload | None = None) -> dict[str, Any]:
        with _gone():
            self._writer.write(json.dumps(question).encode() + b"\n")
            if payload is not None:
                async for piece in pieces_of(payload):
                    self._writer.write(piece)
                    await self._writer.drain()
            await self._writer.drain()
            line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise WorkerDiedError("what carries an element's files has ended")
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise WorkerProtocolError(f"what carries an element's files says {line[:80]!r}") from error
        if not isinstance(answer, dict):
            raise WorkerProtocolError("what carries an element's files says no answer")
        return answer


@contextlib.contextmanager
def _gone() -> Any:
    try:
        yield
    except (ConnectionError, asyncio.IncompleteReadError, ValueError) as error:
        raise WorkerDiedError(f"what carries an element's files has ended: {error}") from error


def _faultless(answer: dict[str, Any]) -> dict[str, Any]:
    if fault := answer.get("fault"):
        raise CarryError(str(fault))
    return answer
