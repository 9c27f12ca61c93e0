"""The window while somebody else keeps the queue full: CUBIC's, deaf to losses that no full queue explains.

Source: RFC 9438 for the law. That only losses late in the queue's range count follows from a drop-tail queue: it drops when it
is full, and then the round trip is the longest. Losses of a radio link come at any round trip.
"""

CUBIC_SCALE = 0.4  # C of RFC 9438, packets a second cubed.
DECREASE = 0.7
FRIENDLY_GAIN = 3 * (1 - DECREASE) / (1 + DECREASE)  # RFC 9438, section 4.3
FULL_SHARE = 0.75  # A loss counts at this share of the longest queueing delay seen lately.
DELAY_MEMORY_S = 10.0  # A period of CUBIC on home lines; then the longest delay fades.


class CompetingWindow:
    """A CUBIC window in bytes."""

    def __init__(self, now: float, window: float, packet_bytes: int) -> None:
        self._packet = packet_bytes
        self._greatest = window
        self._start = now
        self._delay = 0.0
        self._friendly = window
        self._longest = 0.0
        self._longest_at = now
        self._deaf_until = 0.0
        self.window = window

    def see_delay(self, now: float, delay: float) -> None:
        """Learn a queueing delay, in seconds."""
        if delay >= self._longest or now - self._longest_at > DELAY_MEMORY_S:
            self._longest, self._longest_at = delay, now

    def on_loss(self, now: float, rtt: float, delay: float) -> bool:
        """A packet was lost while the queueing delay was `delay`; whether that was taken as congestion."""
        if now < self._deaf_until or delay < FULL_SHARE * self._longest:
            return False
        self._deaf_until = now + rtt
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
