"""When packets may leave: a bucket that fills at the pacing rate. Pure."""

BURST_S = 0.001  # A burst queues this long at the line's rate.
LATE_S = 0.002  # Event loops wake up to a millisecond late, and whole milliseconds apart.
LEAST_PACKETS = 2
URGENT_PACKETS = 4  # By how much messages of level 0 and retransmissions may run ahead of the pace.


class Pacer:
    """Bytes that may leave now."""

    def __init__(self, now: float) -> None:
        """Begin with room for a burst."""
        self._credit = 0.0
        self._at = now - LATE_S

    def refill(self, rate: float, packet: int, now: float) -> None:
        """Add what ``rate`` bytes a second have brought; ``packet`` is the greatest packet."""
        most = max(LEAST_PACKETS * packet, rate * LATE_S)
        self._credit = min(most, self._credit + rate * (now - self._at))
        self._at = now

    def spend(self, size: int) -> None:
        """Bytes have left."""
        self._credit -= size

    def open(self, *, urgent: bool, packet: int) -> bool:
        """Whether a packet may leave."""
        return self._credit > (-URGENT_PACKETS * packet if urgent else 0)

    def wait(self, rate: float, packet: int) -> float:
        """Seconds until a burst may leave."""
        burst = max(LEAST_PACKETS * packet, rate * BURST_S)
        return max(0.0, (burst - self._credit) / rate) if rate > 0 else LATE_S
