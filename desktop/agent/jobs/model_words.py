"""What a model says, on its way to the coordinator: all of it, in order, in as few packets as the node's line has room for.

What it says to those who ask in private goes to them. Of these requests the coordinator hears nothing, at no stage.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec

from desktop.agent.base.budget import ByteBudget
from desktop.agent.errors import WorkerProtocolError
from protocol.private.sessions import MARK
from protocol.serving import MAX_SAID, EngineReport
from protocol.task import ModelSaid

MAX_REPORT = 200 << 10  # The coordinator takes frames of 256 KB from a node.
PACKET_BYTES = 64 << 10
WAITING = (4 << 20, 16_384)  # Bytes and reports; then the worker's next one waits in its socket.


class ModelReports:
    """Of one lease. What comes while a packet waits for its turn goes with the next one."""

    def __init__(self, send: Callable[[ModelSaid, bool], Awaitable[None]]) -> None:
        """``send`` returns when the next packet may go."""
        self._send = send
        self._waiting: deque[tuple[EngineReport, int]] = deque()
        self._budget = ByteBudget(*WAITING)
        self._news, self._begun = asyncio.Event(), asyncio.Event()
        self.private: dict[str, Callable[[EngineReport], None]] = {}
        """Who hears of a private request, by its name; it must not wait."""

    def begin(self) -> None:
        """It is known that the worker is ready: from now on it is heard."""
        self._begun.set()

    async def put(self, said: ModelSaid) -> None:
        """Take what the worker says, once there is room.

        Raises:
            WorkerProtocolError: a report that no frame holds.
        """
        for report in said.reports:
            if self._is_private(report):
                continue
            size = len(msgspec.msgpack.encode(report))
            if size > MAX_REPORT:
                raise WorkerProtocolError(f"the model says {size:,} bytes at once: {MAX_REPORT:,} at most")
            await self._budget.take(size)
            self._add(report, size)

    def say(self, report: EngineReport) -> None:
        """A word of the agent's own, where its worker cannot say it."""
        if not self._is_private(report):
            self._budget.force(0)
            self._add(report, 0)

    def _is_private(self, report: EngineReport) -> bool:
        """Whether it is of a private request; then who listens has it now."""
        name = getattr(report, "id", "")
        if listener := self.private.get(name):
            listener(report)
        return bool(name.startswith(MARK))

    def _add(self, report: EngineReport, size: int) -> None:
        self._waiting.append((report, size))
        self._news.set()

    async def run(self) -> None:
        """Hand on, until cancelled."""
        await self._begun.wait()
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting:
                await self._send(self._packet(), False)

    def _packet(self) -> ModelSaid:
        taken: list[EngineReport] = []
        left = PACKET_BYTES
        while self._waiting and len(taken) < MAX_SAID and (not taken or self._waiting[0][1] <= left):
            report, size = self._waiting.popleft()
            self._budget.give(size)
            taken.append(report)
            left -= size
        return ModelSaid(tuple(taken))
