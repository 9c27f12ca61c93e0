"""The window while somebody else keeps the queue full: CUBIC's, deaf to losses that no full queue explains.

Source: RFC 9438 for the law. That only losses late in the queue's range count follows from a drop-tail queue: it drops when it
is full, and then the round trip is the longest. Losses of a radio link come at any round trip.
"""

from collections import deque

CUBIC_SCALE = 0.4  # C of RFC 9438, packets a second cubed.
DECREASE = 0.7
FRIENDLY_GAIN = 3 * (1 - DECREASE) / (1 + DECREASE)  # RFC 9438, section 4.3
SEARCH_GAIN = 0.5  # Half of slow start: the queue is there already, and what is too much is lost for all.
FULL_SHARE = 0.75  # A loss counts at this share of the longest queueing delay seen lately.
SAMPLES = 3  # The smallest of these is the delay: a sender that woke late saw none of it in the queue.
DELAY_MEMORY_S = 10.0  # A period of CUBIC on home lines; then the longest delay fades.


class CompetingWindow:
    """A CUBIC window in bytes."""

    def __init__(self, now: float, window: float, packet_bytes: int, *, searching: bool = False) -> None:
        self._packet = packet_bytes
        self._greatest = window
        self._start = now
        self._delay = 0.0
        self._friendly = window
        self._longest = 0.0
        self._longest_at = now
        self._deaf_until = 0.0
        self._searching = searching
        self._recent: deque[float] = deque(maxlen=SAMPLES)
        self.window = window

    def see_delay(self, delay: float) -> None:
        """Learn a packet's queueing delay, in seconds."""
        self._recent.append(delay)

    def see_standing(self, now: float, delay: float) -> None:
        """Learn the least queueing delay of an epoch, in seconds: no stall of a machine looks like a long queue."""
        if delay >= self._longest or now - self._longest_at > DELAY_MEMORY_S:
            self._longest, self._longest_at = delay, now

    def on_loss(self, now: float, rtt: float, *, much: bool) -> bool:
        """A packet was lost, or `much` of an epoch; whether that was taken as congestion."""
        full = much or min(self._recent, default=0.0) >= FULL_SHARE * self._longest
        if now < self._deaf_until or not full:
            return False
        self._deaf_until = now + rtt
        self._searching = False
        self._greatest = self.window if self.window >= self._greatest else self.window * (1 + DECREASE) / 2
        self.window = max(2.0 * self._packet, self.window * DECREASE)
        self._restart(now)
        return True

    def pause(self, now: float, seconds: float) -> None:
        """Time in which the window was not used does not count."""
        self._start += seconds
        self._deaf_until = max(self._deaf_until, now)

    def grow(self, now: float, rtt: float, acked: int) -> None:
        """Bytes were acknowledged while the window was in use."""
        if self._searching:
            self.window += SEARCH_GAIN * acked
            return
        elapsed = now - self._start + rtt
        target = self._greatest + CUBIC_SCALE * self._packet * (elapsed - self._delay) ** 3
        self._friendly += FRIENDLY_GAIN * acked / self.window * self._packet
        target = min(1.5 * self.window, max(target, self._friendly))
        if target > self.window:
            self.window += (target - self.window) / self.window * acked

    def _restart(self, now: float) -> None:
        self._start = now
        self._friendly = self.window
        self._delay = max(0.0, (self._greatest - self.window) / self._packet / CUBIC_SCALE) ** (1 / 3)
