"""From the counters of one connection to the figures of a link."""

from collections import deque

from transport.ice.stats import LinkStats
from transport.sctp.congestion.control import PathStats

LOSS_WINDOW_S = 10.0


class Figures:
    """Fills what ``LinkStats`` tells of the path, connection after connection."""

    def __init__(self, stats: LinkStats) -> None:
        """Take the figures of all links to the peer; a connection counts from zero."""
        self._stats = stats
        self._retransmitted = 0
        self._seen: deque[tuple[float, int, int]] = deque([(0.0, 0, 0)])

    def update(self, path: PathStats, now: float) -> None:
        """Bring the figures up to date.

        Args:
            now: seconds, of the clock that all calls use.
        """
        stats, again = self._stats, path.packets_retransmitted
        stats.min_rtt_s, stats.queue_s = path.min_rtt_s, path.queue_s
        stats.send_rate, stats.receive_rate = path.send_rate, path.receive_rate
        stats.mtu = path.mtu
        stats.retransmitted += again - self._retransmitted
        self._retransmitted = again
        stats.loss = self._loss(path.packets_sent, again, now)

    def _loss(self, sent: int, again: int, now: float) -> float:
        seen = self._seen
        seen.append((now, sent, again))
        while len(seen) > 2 and seen[1][0] <= now - LOSS_WINDOW_S:
            seen.popleft()
        _, sent_before, again_before = seen[0]
        return min(1.0, (again - again_before) / (sent - sent_before)) if sent > sent_before else 0.0
