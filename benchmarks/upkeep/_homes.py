"""Homes for benchmarks: nodes over real WebSockets that say as much as an agent does, as often, and come back as one does."""

import asyncio
import itertools
import random
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from common.clock import backoff, within
from coordinator.web.signal import PATH
from desktop.agent.coordinator.session import HANDSHAKE_S, RECONNECT_MAX_S
from protocol.codec import decode
from protocol.node import (
    Acknowledged,
    Assign,
    Beat,
    Challenge,
    CoordinatorMessage,
    Heartbeat,
    HeldLease,
    Refused,
    Report,
    Welcome,
)
from protocol.task import Progress, TaskReport
from tests.coordinator.conftest import ScriptedNode
from tests.coordinator.fake_task import FakeTask
from tests.coordinator.fakes import Peers

TICK_S = 1.0  # A home at work says where it is, and does what has become possible.


@dataclass
class Fleet:
    """What all homes share: where they come in, what their workers say to each other, and what was measured.

    Attributes:
        counts: beside what was said, ``cuts``: connections that have ended; ``refused``: that were not taken, or put off.
    """

    doors: list[str]
    http: aiohttp.ClientSession
    peers: Peers = field(default_factory=Peers)
    counts: Counter[str] = field(default_factory=Counter)
    waits: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def url(self) -> str:
        """Of any."""
        return self.doors[0]

    def measure_anew(self) -> None:
        """Forget what was counted."""
        self.counts.clear()
        self.waits.clear()


class Home(ScriptedNode):
    """One of them. ``here``: it was let in, and its connection holds."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        """Not yet connected."""
        super().__init__(fleet, number)  # type: ignore[arg-type]  # It asks for address and peers alone.
        self._fleet = fleet
        self._turns = itertools.count(number)
        self._beat_sent = 0.0
        self._next = 0.0
        self._sent: dict[tuple[str, int], float] = {}
        self._step = 0
        self._wait: float | None = None  # For as long it was told to stay away.
        self._assigned = asyncio.Event()
        self.here = False

    async def run(self) -> None:
        """Connect and obey; come back as agents do, at any door, until cancelled."""
        failures = 0
        while True:
            doors = self._fleet.doors
            came, self._wait = False, None
            try:
                came = await self._connection(doors[next(self._turns) % len(doors)] + PATH)
            except* (aiohttp.ClientError, OSError):
                came = self.here
            self.here = False
            self._fleet.counts["cuts" if came else "refused"] += 1
            failures = 1 if came else failures + 1
            wait = backoff(failures, random.random)
            if self.tasks:
                wait = min(wait, RECONNECT_MAX_S)
            await asyncio.sleep(wait if self._wait is None else self._wait)

    async def _connection(self, url: str) -> bool:
        """One, to its end; whether it was let in."""
        async with asyncio.timeout(HANDSHAKE_S) as limit, self._fleet.http.ws_connect(url, max_msg_size=0) as socket:
            self._socket = socket
            challenge = await socket.receive()
            if challenge.type is not aiohttp.WSMsgType.BINARY:
                return False
            await self.send(self.hello(decode(challenge.data, Challenge)))
            async with asyncio.TaskGroup() as group:
                living: asyncio.Task[None] | None = None
                async for frame in socket:
                    message: CoordinatorMessage = decode(frame.data, CoordinatorMessage)
                    self._time(message)
                    await self._obey(message)
                    if isinstance(message, Welcome):
                        limit.reschedule(None)
                        self.here, living = True, group.create_task(self._live())
                if living is not None:
                    living.cancel()
        return self.here

    def _time(self, message: CoordinatorMessage) -> None:
        now = time.perf_counter()
        match message:
            case Beat(next_seconds=seconds):
                self._fleet.waits["beat"].append(now - self._beat_sent)
                self._next = self._beat_sent + seconds
            case Acknowledged(lease=lease, seq=seq):
                for key in [key for key in self._sent if key[0] == lease and key[1] <= seq]:
                    self._fleet.waits["ack"].append(now - self._sent.pop(key))
            case Refused(retry_seconds=seconds):
                self._wait = seconds
            case Assign():
                self._assigned.set()
            case _:
                pass

    async def _live(self) -> None:
        spread = self.welcomes[-1].heartbeat_seconds
        # Nobody starts on the stroke of the clock.
        await asyncio.sleep(spread * (int(self.key.address[-2:], 36) / 36**2))
        while True:
            now = time.perf_counter()
            if now >= self._next:
                self._beat_sent, self._next = now, now + self.welcomes[-1].heartbeat_seconds
                self._fleet.counts["beats"] += 1
                await self.send(Heartbeat(tuple(HeldLease(lease, self.fences[lease]) for lease in self.tasks)))
            for lease, task in list(self.tasks.items()):
                if task.assign.stage is not None:
                    self._step += 1
                    await self._say(lease, [self._progress(task), *task.work()])
            await self._rest()

    async def _rest(self) -> None:
        """Until there is something to do: for who has no work that is a heartbeat, or an assignment."""
        if self.tasks:
            await asyncio.sleep(TICK_S)
            return
        self._assigned.clear()
        with suppress(TimeoutError):
            await within(max(0.0, self._next - time.perf_counter()), self._assigned.wait())

    def _progress(self, task: FakeTask) -> Progress:
        plan, begun = task.assign.plan, task.begun
        epoch, number = (plan.epoch, 0) if begun is None else (begun.plan.epoch, begun.round)
        return Progress(epoch, number, self._step, 1024, 5.0)

    @property
    def works(self) -> bool:
        """Whether it has a seat, and is no spare."""
        return any(task.assign.stage is not None for task in self.tasks.values())

    async def _say(self, lease: str, bodies: list[TaskReport]) -> None:
        """All is kept before any of it is sent: the connection may end meanwhile."""
        reports = []
        for body in bodies:
            seq = 0 if isinstance(body, Progress) else self.said.get(lease, 0) + 1
            reports.append(report := Report(lease, self.fences[lease], seq, body))
            if seq:
                self.said[lease] = seq
                self.reports[lease].append(report)
        for report in reports:
            self._fleet.counts["stored" if report.seq else "progress"] += 1
            await self.send(report)

    async def send(self, message: Any) -> None:
        """Send it, and note when, where it is acknowledged. That the connection has ended is seen where it is read."""
        if isinstance(message, Report) and message.seq:
            self._sent.setdefault((message.lease, message.seq), time.perf_counter())
        with suppress(ConnectionError):
            await super().send(message)
