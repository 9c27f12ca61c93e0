"""A coordinator's line to PostgreSQL, which may be cut off: nothing passes, nor says so, until it heals or breaks."""

import asyncio
import contextlib
import shutil
import tempfile
from pathlib import Path

SOCKET = ".s.PGSQL.5432"


class DatabaseLine:
    """A socket of its own before that of a server, as a network lies between both."""

    def __init__(self, server: Path) -> None:
        """``server``: the folder of its socket."""
        self.folder = Path(tempfile.mkdtemp(prefix="cottage-line-"))
        self._far = server / SOCKET
        self._passes = asyncio.Event()
        self._passes.set()
        self._listening: asyncio.Server | None = None
        self._lines: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """From now on there is one."""
        self._listening = await asyncio.start_unix_server(self._lead, self.folder / SOCKET)

    def cut_off(self) -> None:
        """Nothing passes from now on. Whoever waits is not told."""
        self._passes.clear()

    def heal(self, breaks: bool) -> None:
        """It passes again: what was on its way arrives, or all connections have been broken meanwhile."""
        if breaks:
            for line in self._lines:
                line.cancel()
        self._passes.set()

    async def close(self) -> None:
        """End it."""
        assert self._listening is not None
        self._listening.close()
        self.heal(breaks=True)
        await asyncio.gather(*self._lines, return_exceptions=True)
        shutil.rmtree(self.folder)

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = asyncio.current_task()
        assert line is not None
        self._lines.add(line)
        ends = [writer]
        try:
            await self._passes.wait()
            far_reader, far_writer = await asyncio.open_unix_connection(self._far)
            ends.append(far_writer)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(reader, far_writer))
                group.create_task(self._pass_on(far_reader, writer))
        except* (OSError, asyncio.CancelledError):
            pass  # One end is gone, or it breaks.
        finally:
            self._lines.discard(line)
            for end in ends:
                end.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            await self._passes.wait()
            with contextlib.suppress(OSError):
                writer.write(data)
                await writer.drain()
        await self._passes.wait()
        writer.close()
