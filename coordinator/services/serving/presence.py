"""Which seats of replicas are there, asked while an answer waits: so it is known which of several nodes hangs.

Only silence counts. A home that computes says so at once, however long a pass takes it, up to ``STUCK_S``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coordinator.domain import serving as rules
from coordinator.domain.lease import Lease
from coordinator.services.core.context import Context
from coordinator.services.network.nodes import Nodes
from coordinator.services.serving.answers import AnsweringReplica, AnswerPart
from protocol.node import Command
from protocol.serving import EngineReport, PingCommand, PongReport
from protocol.task import AskModel


@dataclass
class AskedSeat:
    """A seat that was asked whether it is there, and has said nothing since. ``since``: when it was asked first."""

    lease: Lease
    since: float


class SeatPresence:
    """Asks nodes, and keeps who does not answer."""

    def __init__(self, context: Context, nodes: Nodes) -> None:
        """Nothing was asked yet."""
        self._context, self._nodes = context, nodes
        self._asked: dict[str, AskedSeat] = {}  # By lease.
        self._shunned: set[str] = set()  # Nodes that lost a seat so, and have said nothing since.
        self._numbers = 0

    def ask(self, seats: Sequence[Lease]) -> None:
        """Ask each of them, unless it is asked already. One without a connection is known to be away."""
        for seat in seats:
            session = self._nodes.session(seat.node)
            if session is not None and seat.id not in self._asked:
                self._numbers += 1
                self._asked[seat.id] = AskedSeat(seat, self._context.clock.now())
                session.send(Command(seat.id, seat.fence, AskModel(PingCommand(f"ping-{self._numbers}"))))

    async def next_report(
        self, part: AnswerPart, seconds: float, missed: Callable[[AnsweringReplica], None]
    ) -> EngineReport | None:
        """What comes next of a part of an answer; None: it has to go on elsewhere.

        Args:
            missed: called with its replica when one of that one's seats does not say that it is there; it ends the part.
        Raises:
            TimeoutError: nothing comes within so many seconds, and nobody is missing.
        """
        clock, home = self._context.clock, part.home
        until = clock.now() + seconds
        while True:
            look = min(rules.PING_S, until - clock.now()) if home.staged else until - clock.now()
            try:
                async with clock.timeout(max(0.0, look)):
                    return await part.reports.get()
            except TimeoutError:
                if home.staged and home.here and part.reports.empty():
                    if self.missing(home.seats):
                        missed(home)
                    self.ask(home.seats)
                if clock.now() >= until and part.reports.empty():
                    raise

    def heard(self, lease: str, reports: Sequence[EngineReport]) -> None:
        """A seat has spoken. A pass without an end is none that it computes."""
        if not any(isinstance(one, PongReport) and one.computing > rules.STUCK_S for one in reports):
            self._asked.pop(lease, None)

    def missing(self, seats: Sequence[Lease], seconds: float = rules.PONG_S) -> list[Lease]:
        """Those among them that were asked so long ago, and have said nothing since."""
        until = self._context.clock.now() - seconds
        asked = (self._asked.get(seat.id) for seat in seats)
        return [one.lease for one in asked if one is not None and one.since <= until]

    def away(self, seats: Sequence[Lease]) -> list[tuple[str, str]]:
        """Leases of those that are missing for so long that others are to have their seats, and why."""
        why = f"it has not said for {rules.AWAY_S:g} s that it is there, though it was asked"
        return [(seat.id, why) for seat in self.missing(seats, rules.AWAY_S)]

    def forget(self, seats: Sequence[Lease]) -> None:
        """These hold their seats no more; who was not there gets no other one before it speaks."""
        self._shunned |= {seat.node for seat in self.missing(seats)}
        for seat in seats:
            self._asked.pop(seat.id, None)

    def lost(self, node: str) -> None:
        """A node's connection is gone, and what it was asked with it."""
        self._asked = {name: one for name, one in self._asked.items() if one.lease.node != node}

    def speaks(self, node: str) -> None:
        """A node has said something."""
        self._shunned.discard(node)

    @property
    def shunned(self) -> frozenset[str]:
        """Nodes that get no seat now."""
        return frozenset(self._shunned)
