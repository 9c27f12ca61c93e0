"""What a task has to say, kept until the coordinator has stored it."""

import asyncio
from collections import deque

from common.clock import Clock
from desktop.agent.errors import WorkerProtocolError
from protocol.node import HeldLease, Report
from protocol.task import TaskReport

MAX_UNACKNOWLEDGED = 200  # Some five for each round: a coordinator away for forty rounds has forgotten the lease.
REPORTS_PER_S = 20.0  # A coordinator takes fifty messages a second from a node with all its leases.
REPORTS_BURST = 150.0
ALL = 2**63  # Acknowledges whatever there is: nobody asks for it any more.
LOG_COST = 20.0  # Of a bucket of their own: one message with lines of a log a second, seven at once.


class ReportPace:
    """Lets ``REPORTS_BURST`` reports pass at once and ``REPORTS_PER_S`` in the long run: a talkative worker waits.

    Otherwise one worker could have the connection closed that all the leases of its node share.
    """

    def __init__(self, clock: Clock) -> None:
        """Begin with a full bucket."""
        self._clock = clock
        self._tokens = REPORTS_BURST
        self._at = clock.now()

    def spares(self, cost: float) -> bool:
        """Take ``cost`` reports' worth if that can be had at once; whether it could."""
        self._fill()
        if self._tokens < cost:
            return False
        self._tokens -= cost
        return True

    async def wait(self) -> None:
        """Return when the next report may go."""
        self._fill()
        self._tokens -= 1
        if self._tokens < 0:
            await self._clock.sleep(-self._tokens / REPORTS_PER_S)

    def _fill(self) -> None:
        now = self._clock.now()
        self._tokens = min(REPORTS_BURST, self._tokens + (now - self._at) * REPORTS_PER_S)
        self._at = now


class ReportOutbox:
    """The reports of one lease that are not acknowledged, in order."""

    def __init__(self, lease: HeldLease, *, goes_on: bool = False) -> None:
        """Begin with report 1 of ``lease``; ``goes_on``: with the one after those of an agent that died, once that is known."""
        self.lease = lease
        self._next = 1
        self.begins = asyncio.Event()
        """Set once it is known which number the next report has."""
        if not goes_on:
            self.begins.set()
        self._kept: deque[Report] = deque()

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, body: TaskReport, trace: str = "") -> Report:
        """Number a report and keep it. ``trace``: what it is part of.

        Raises:
            WorkerProtocolError: ``MAX_UNACKNOWLEDGED`` wait already.
        """
        if len(self._kept) >= MAX_UNACKNOWLEDGED:
            raise WorkerProtocolError(
                f"{MAX_UNACKNOWLEDGED} reports wait to be acknowledged: the worker reports too much"
            )
        return self.force(body, trace)

    def force(self, body: TaskReport, trace: str = "") -> Report:
        """Number and keep the last report of a task, however many wait."""
        report = Report(self.lease.lease, self.lease.fence, self._next, body, trace)
        self._next += 1
        self._kept.append(report)
        return report

    def lossy(self, body: TaskReport) -> Report:
        """A report that may get lost: never numbered, never kept."""
        return Report(self.lease.lease, self.lease.fence, 0, body)

    def acknowledge(self, seq: int) -> None:
        """Forget the reports up to and including ``seq``."""
        if not self.begins.is_set() and seq < ALL:
            self._next = max(self._next, seq + 1)
            self.begins.set()
        while self._kept and self._kept[0].seq <= seq:
            self._kept.popleft()

    def waiting(self) -> tuple[Report, ...]:
        """What must be sent again after a reconnect, in order."""
        return tuple(self._kept)
