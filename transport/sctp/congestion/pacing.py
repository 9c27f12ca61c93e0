"""When packets may leave: a bucket that fills at the pacing rate. Pure."""

# Of the round trip: a burst adds this much to the queue, and saves a wake-up for each packet but the first.
BURST_SHARE = 1 / 32
LEAST_BURST_S, MOST_BURST_S = 0.001, 0.004  # Event loops wake up no more often than once a millisecond.
GREATEST_BURSTS = 2.0  # What was missed is made up for in bursts of so many.
LEAST_REST_TRIP_S = 0.008  # Of shorter round trips a rest would be too large a part.
DENSE = 16e3  # Packets a second, 190 Mbit/s: so many gather in a millisecond that a rest saves most of the wake-ups.
LATE_S = 0.008  # A busy machine wakes us this late; what the line has missed by then is made up for.
LEAST_PACKETS = 1
URGENT_PACKETS = 4  # By how much messages of level 0 and retransmissions may run ahead of the pace.


def burst_seconds(round_trip: float | None) -> float:
    """How much of the line's time a burst may take, in seconds."""
    return min(max((round_trip or 0.0) * BURST_SHARE, LEAST_BURST_S), MOST_BURST_S)


def rest_seconds(round_trip: float | None) -> float:
    """For how long packets may gather before they are read, in seconds: as long as a burst, and not at all on short ways."""
    return burst_seconds(round_trip) if (round_trip or 0.0) >= LEAST_REST_TRIP_S else 0.0


class Pacer:
    """Bytes that may leave now.

    Attributes:
        burst_s: the line's time of one burst, in seconds; see ``burst_seconds``.
        burst: bytes that may leave at once.
        open: whether a packet of a burst that is due may leave.
    """

    def __init__(self, now: float) -> None:
        """Begin with room for a burst."""
        self.burst_s = LEAST_BURST_S
        self._credit = 0.0
        self._at = now - 2 * LEAST_BURST_S
        self._due = True
        self.burst = 0.0
        self.open = False

    def refill(self, rate: float, packet: int, now: float) -> None:
        """Add what ``rate`` bytes a second have brought; ``packet`` is the greatest packet."""
        least = LEAST_PACKETS * packet
        self._credit = min(max(least, rate * LATE_S), self._credit + rate * (now - self._at))
        self._at = now
        self._due = self._credit >= max(least, rate * self.burst_s)
        self.burst = max(least, rate * self.burst_s * GREATEST_BURSTS)
        self.open = self._due and self._credit > 0

    def spend(self, size: int) -> None:
        """Bytes have left."""
        self._credit -= size
        self.burst -= size
        self.open = self._due and self._credit > 0 and self.burst > 0

    @property
    def room(self) -> int:
        """Bytes that may leave while ``open``; the packet that reaches beyond them still may."""
        return max(1, int(min(self._credit, self.burst)))

    def ahead(self, packet: int) -> bool:
        """Whether an urgent packet may leave, before a burst is due."""
        return self._credit > -URGENT_PACKETS * packet

    def wait(self, rate: float, packet: int) -> float:
        """Seconds until a burst may leave."""
        burst = max(LEAST_PACKETS * packet, rate * self.burst_s)
        return max(0.0, (burst - self._credit) / rate) if rate > 0 else self.burst_s
