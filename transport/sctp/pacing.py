"""When packets may leave: a bucket that fills at the pacing rate. Pure."""

BURST_S = 0.001  # A burst queues this long at the line's rate. Event loops wake up no more often.
GREATEST_BURST_S = 0.002  # What was missed is made up for in bursts of this.
LATE_S = 0.008  # A busy machine wakes us this late; what the line has missed by then is made up for.
LEAST_PACKETS = 2
URGENT_PACKETS = 4  # By how much messages of level 0 and retransmissions may run ahead of the pace.


class Pacer:
    """Bytes that may leave now.

    Attributes:
        burst: bytes that may leave at once.
    """

    def __init__(self, now: float) -> None:
        """Begin with room for a burst."""
        self._credit = 0.0
        self._at = now - BURST_S
        self.burst = 0.0

    def refill(self, rate: float, packet: int, now: float) -> None:
        """Add what ``rate`` bytes a second have brought; ``packet`` is the greatest packet."""
        least = LEAST_PACKETS * packet
        self._credit = min(max(least, rate * LATE_S), self._credit + rate * (now - self._at))
        self._at = now
        self.burst = max(least, rate * GREATEST_BURST_S)

    def spend(self, size: int) -> None:
        """Bytes have left."""
        self._credit -= size
        self.burst -= size

    def open(self, *, urgent: bool, packet: int) -> bool:
        """Whether a packet may leave."""
        return (self._credit > 0 and self.burst > 0) or (urgent and self._credit > -URGENT_PACKETS * packet)

    def wait(self, rate: float, packet: int) -> float:
        """Seconds until a burst may leave."""
        burst = max(LEAST_PACKETS * packet, rate * BURST_S)
        return max(0.0, (burst - self._credit) / rate) if rate > 0 else BURST_S
