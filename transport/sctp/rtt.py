"""Round trip times of one path. Pure."""

from collections import deque

INITIAL_TIMEOUT_S = 1.0  # RFC 6298, section 2.1.
MIN_TIMEOUT_S = 0.06  # Twice the delay that a peer may give an acknowledgement, and a slice of its scheduler.
ACK_DELAY_S = 0.025  # A peer may wait 20 ms with an acknowledgement.
MEMORY_S = 10.0  # A smallest round trip older than this may be of another path.
SLICE_S = 1.0  # The memory forgets in steps of this.


class RoundTrips:
    """Smoothed and smallest round trips, and how long to wait for an acknowledgement.

    Attributes:
        smoothed: None before the first, in seconds.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self.smoothed: float | None = None
        self._variance = 0.0
        self._slices: deque[tuple[float, float]] = deque()

    @property
    def smallest(self) -> float | None:
        """The smallest of about the last ten seconds in which there was one."""
        return min(rtt for _, rtt in self._slices) if self._slices else None

    @property
    def timeout(self) -> float:
        """Seconds after which silence means loss (RFC 6298, with the delay that acknowledgements may have)."""
        if self.smoothed is None:
            return INITIAL_TIMEOUT_S
        return max(self.smoothed + 4 * self._variance + ACK_DELAY_S, MIN_TIMEOUT_S)

    def add(self, rtt: float, now: float) -> None:
        """Learn one (RFC 6298, section 2)."""
        if self.smoothed is None:
            self.smoothed, self._variance = rtt, rtt / 2
        else:
            self._variance += (abs(self.smoothed - rtt) - self._variance) / 4
            self.smoothed += (rtt - self.smoothed) / 8
        slices = self._slices
        if slices and now - slices[-1][0] < SLICE_S:
            if rtt < slices[-1][1]:
                slices[-1] = (slices[-1][0], rtt)
            return
        slices.append((now, rtt))
        while now - slices[0][0] > MEMORY_S and len(slices) > 1:
            slices.popleft()
