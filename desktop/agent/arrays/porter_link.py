"""The agent's end of what carries an element's files (``desktop.agent.sandbox.porter``)."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from desktop.agent.base.payloads import PIECE, Payload, pieces_of
from desktop.agent.errors import WorkerDiedError, WorkerError, WorkerProtocolError
from protocol.job.elements import INLINE_BYTES, MAX_RESULT_FILES

MAX_LINE = 64 << 10
MAX_LIST_BYTES = 64 << 20  # A hundred thousand names of five hundred bytes.


class CarryError(WorkerError):
    """A file could not be laid in, or what was left cannot be taken; the text says why."""


@dataclass(frozen=True)
class LeftFiles:
    """What an element left. ``full``: there was no room for more.

    ``contents``: all of it, where that is little: then nothing lies there any more.
    """

    sizes: Mapping[str, int]
    full: bool
    contents: Mapping[str, bytes] | None = None


class PorterLink:
    """One question at a time. Every call raises WorkerDiedError where the porter has gone."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def clear(self) -> None:
        """Empty what elements leave; raises CarryError where that cannot be."""
        _faultless(await self._ask({"do": "clear"}))

    async def lay(self, gone: Sequence[str], new: Mapping[str, Payload]) -> None:
        """Take inputs away, with the folders that they leave empty, then lay others in.

        Raises CarryError where there is no room, OSError where the disk has lost one.
        """
        for path in gone:
            self._say({"do": "drop", "path": path})
        for path, payload in new.items():
            self._say({"do": "put", "path": path, "size": payload.size})
            with _gone():
                async for piece in pieces_of(payload):
                    self._writer.write(piece)
                    await self._writer.drain()
        answers = [await self._answer() for _ in range(len(gone) + len(new))]
        for answer in answers:
            _faultless(answer)

    async def left(self, most_bytes: int, take: bool = False) -> LeftFiles:
        """What lies there after an element; raises CarryError where it is too much, or not only plain files.

        ``take``: have it with its contents where that is no more than a report takes.
        """
        bounds = {"files": MAX_RESULT_FILES, "bytes": most_bytes}
        answer = _faultless(await self._ask({"do": "list", "most": INLINE_BYTES if take else -1, **bounds}))
        if not 0 <= int(answer["size"]) <= MAX_LIST_BYTES:
            raise WorkerProtocolError("the list of what an element left is too long")
        with _gone():
            found = json.loads(await self._reader.readexactly(int(answer["size"])))
        sizes = {str(path): int(size) for path, size in found}
        if not answer["taken"]:
            return LeftFiles(sizes, bool(answer["full"]))
        if sum(sizes.values()) > INLINE_BYTES:
            raise WorkerProtocolError("more of what an element left comes than was asked for")
        with _gone():
            return LeftFiles(
                sizes,
                bool(answer["full"]),
                {path: await self._reader.readexactly(size) for path, size in sizes.items()},
            )

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

    async def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        self._say(question)
        with _gone():
            await self._writer.drain()
        return await self._answer()

    def _say(self, question: dict[str, Any]) -> None:
        with _gone():
            self._writer.write(json.dumps(question).encode() + b"\n")

    async def _answer(self) -> dict[str, Any]:
        with _gone():
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
