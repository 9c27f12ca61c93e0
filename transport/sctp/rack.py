"""Which packets are lost: those that others, sent later, overtook long enough ago (RACK: RFC 8985). Pure.

Until the path has shown that it reorders, three later packets are enough as well (RFC 9260, section 7.2.4).
"""

from collections.abc import Iterable

from transport.sctp.record import Record
from transport.sctp.rtt import RoundTrips

REORDER_THRESHOLD = 3  # RFC 9260, section 7.2.4.
MAX_STEPS = 16  # Quarters of the smallest round trip; RFC 8985, section 6.2, bounds them by the round trip.
CALM_ROUNDS = 16  # Rounds without a needless retransmission after which the window narrows again (same place).


class Rack:
    """What has arrived last among what was sent last, and how long the path may reorder.

    Attributes:
        reorders: the path has shown that it reorders packets.
        look_at: when packets may be lost that were not at the last look; None where there are none.
    """

    def __init__(self) -> None:
        """Nothing has arrived yet."""
        self.reorders = False
        self.look_at: float | None = None
        self._newest: tuple[float, int] = (0.0, -1)  # Sending time and TSN of the latest-sent fragment that arrived.
        self._newest_rtt = 0.0
        self._steps = 1
        self._calm = 0

    def restart(self, now: float) -> None:
        """Nothing that was sent before now overtakes anything: packets take another way."""
        self._newest = (now, -1)

    def arrived(self, record: Record, smallest: float, now: float) -> None:
        """The latest-sent fragment of an acknowledgement; ``smallest``: round trip, for one sent again may be the older copy."""
        left = record.departure.at
        if (left, record.tsn) > self._newest and (record.sends == 1 or now - left >= smallest):
            self._newest, self._newest_rtt = (left, record.tsn), now - left

    def adapt(self, doubled: bool, round_ended: bool) -> None:
        """Widen the time that packets may reorder where a fragment was sent again in vain, narrow it after calm rounds."""
        if doubled:
            self.reorders = True
            if self._calm:
                self._steps = min(self._steps + 1, MAX_STEPS)
            self._calm = 0
        elif round_ended:
            self._calm += 1
            if self._calm >= CALM_ROUNDS:
                self._steps, self._calm = 1, 1

    def lost(self, holes: Iterable[Record], high: int, trips: RoundTrips, now: float) -> list[Record]:
        """Those of ``holes``, all on their way, that are lost; ``high``: the highest TSN that arrived. Sets ``look_at``."""
        slack = min(self._steps * (trips.smallest or 0.0) / 4, trips.smoothed or 0.0)
        patience, newest = self._newest_rtt + slack, self._newest
        overtaken = -1 if self.reorders else high - REORDER_THRESHOLD  # What was sent once is lost up to this TSN.
        lost, again = [], None
        for record in holes:
            left = record.departure.at
            if (left, record.tsn) > newest:
                continue
            due = left + patience
            if now >= due or (record.tsn <= overtaken and record.sends == 1):
                lost.append(record)
            elif again is None or due < again:
                again = due
        self.look_at = again
        return lost
