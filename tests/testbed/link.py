"""What a home's access line does to packets."""

from collections.abc import Mapping
from dataclasses import dataclass

LEAST_QUEUE = 15_000  # Bytes: ten full packets, less than what any real device holds.
UNLIMITED_QUEUE = 1 << 30


@dataclass(frozen=True)
class Link:
    """One access line. What befalls single packets happens on the way up, so a path between two homes meets it once a direction.

    Attributes:
        up, down: bit/s of IP packets; 0 is unlimited.
        rtt_ms: round trip to another home with the same line; to a relay or the public host it is half of it.
        loss: share of packets that vanish.
        jitter_ms: further delay, uniform from 0 to this, without overtaking.
        reorder: share of packets held back by ``hold_ms`` while others overtake them.
        duplicate: share of packets that arrive twice.
        queue_bdp: the drop-tail queue before each rate, in products of that rate and ``rtt_ms``.
        mtu: bytes; what is larger vanishes on its way down.
    """

    up: float = 0.0
    down: float = 0.0
    rtt_ms: float = 0.0
    loss: float = 0.0
    jitter_ms: float = 0.0
    reorder: float = 0.0
    hold_ms: float = 5.0
    duplicate: float = 0.0
    queue_bdp: float = 1.0
    mtu: int = 1500

    def properties(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """What the emulator is to set on the way up and on the way down."""
        delay_us = self.rtt_ms * 1e3 / 4  # A round trip between two homes crosses two lines, twice each.
        fate = {
            "loss": self.loss,
            "jitter_us": self.jitter_ms * 1e3,
            "reorder": self.reorder,
            "hold_us": self.hold_ms * 1e3,
            "duplicate": self.duplicate,
        }
        up = {"rate": self.up, "delay_us": delay_us, "queue": self._queue(self.up)}
        return up | fate, {"rate": self.down, "delay_us": delay_us, "queue": self._queue(self.down)}

    def _queue(self, rate: float) -> float:
        product = rate / 8 * self.rtt_ms / 1e3
        return max(LEAST_QUEUE, self.queue_bdp * product) if rate else UNLIMITED_QUEUE
