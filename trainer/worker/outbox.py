"""What goes to the agent: put by the computing thread without waiting for the socket, taken by the socket's loop."""

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

from protocol.task import TaskReport
from protocol.worker import WorkerMessage, WorkerReport
from trainer.files.tensors import Piece
from trainer.worker.work_times import WorkTimes

# One pseudo-gradient of 128 million parameters, twice; beyond it computing waits for the socket.
MAX_OUTGOING_BYTES = 256 << 20


Payload = tuple[bytes | Piece, ...]


class WorkerOutbox:
    """A bounded queue from one thread to one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hand over to a consumer on ``loop``."""
        self._loop = loop
        self.times = WorkTimes()
        self._room = threading.Condition()
        self._queue: deque[tuple[WorkerMessage, Payload, Future[None] | None]] = deque()
        self._leaving: Future[None] | None = None
        self._bytes = 0
        self._closed = False
        self._ready = asyncio.Event()

    def put(self, message: WorkerMessage, *payload: bytes | Piece, left: Future[None] | None = None) -> None:
        """Queue a message and the pieces of its payload; waits only while ``MAX_OUTGOING_BYTES`` are queued already.

        After ``close``, does nothing.

        Args:
            left: done once nobody reads the pieces any more.
        """
        size = sum(map(len, payload))
        with self._room:
            self._room.wait_for(lambda: self._closed or not self._bytes or self._bytes + size <= MAX_OUTGOING_BYTES)
            if self._closed:
                return
            self._queue.append((message, payload, left))
            self._bytes += size
            self._loop.call_soon_threadsafe(self._ready.set)

    def report(self, body: TaskReport, *payload: bytes | Piece, split: int = 0) -> None:
        """Queue a report; nobody may change its payload any more. ``split``: as in ``WorkerReport``."""
        self.put(WorkerReport(body, split, self.times.of(body)), *payload)

    def show(self, body: TaskReport, pieces: Sequence[Piece], left: Future[None]) -> None:
        """Queue a report with pieces of memory that nobody changes until they have ``left``."""
        self.put(WorkerReport(body, took=self.times.of(body)), *pieces, left=left)

    @property
    def closed(self) -> bool:
        """Whether nothing is taken any more."""
        return self._closed

    async def get(self) -> tuple[WorkerMessage, Payload] | None:
        """The next message, in order; ``None`` when closed and empty. Whoever asks has done with the last one."""
        if self._leaving is not None:
            self._leaving.set_result(None)
            self._leaving = None
        while True:
            with self._room:
                if self._queue:
                    message, payload, self._leaving = self._queue.popleft()
                    self._bytes -= sum(map(len, payload))
                    self._room.notify_all()
                    return message, payload
                if self._closed:
                    return None
                self._ready.clear()
            await self._ready.wait()

    def close(self) -> None:
        """Take nothing more; what is queued is still delivered. Called on the loop."""
        with self._room:
            self._closed = True
            self._room.notify_all()
        self._ready.set()
