"""A line between homes, emulated in this process: no kernel holds anything back."""

import asyncio
import contextlib
from dataclasses import dataclass

_PIECE = 16 << 10


@dataclass
class Line:
    """One direction of a line. ``trip``: seconds; ``rate``: bytes a second."""

    trip: float
    rate: float
    _free: float = 0.0

    def due(self, size: int) -> float:
        """When a payload arrives that is given now, by the loop's clock."""
        now = asyncio.get_running_loop().time()
        self._free = max(now, self._free) + size / self.rate
        return self._free + self.trip


class LineProxy:
    """A TCP port of loopback that leads to another one over a line; both directions are alike, and shared by all connections.

    Attributes:
        port: where it listens. ``open``: whether bytes pass at once, as while a model is loaded.
    """

    def __init__(self, target: int, trip: float, rate: float) -> None:
        """``target``: the port behind the line. ``trip``: of one direction, in seconds; ``rate``: bytes a second."""
        self._target, self._lines = target, (Line(trip, rate), Line(trip, rate))
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port, self.open = 0, True

    async def __aenter__(self) -> "LineProxy":
        self._server = await asyncio.start_server(self._lead, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        for line, source, target in ((self._lines[0], reader, far_writer), (self._lines[1], far_reader, writer)):
            task = asyncio.create_task(self._carry(line, source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, line: Line, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arriving: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(1024)
        handing = asyncio.create_task(_hand_on(arriving, writer))
        try:
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(_PIECE):
                    await arriving.put((0.0 if self.open else line.due(len(data)), data))
            await arriving.put((0.0, b""))
            await handing
        finally:
            handing.cancel()
            writer.close()


async def _hand_on(arriving: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter) -> None:
    """Write what has arrived, up to the empty piece."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(ConnectionError):
        while True:
            due, data = await arriving.get()
            if not data:
                return
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            writer.write(data)
            await writer.drain()
