"""What a congestion controller keeps of its samples: the path's own round trip, and sums over an epoch."""

from collections import deque
from dataclasses import dataclass

from transport.sctp.congestion.control import AckSample

BASE_MEMORY_S = 20.0  # Four drains; larger changes of the route a drain shows sooner.
BASE_BUCKET_S = 2.5
EMPTY_SHARE = 0.02  # A round trip this much over the base still tells of an empty queue,
EMPTY_NOISE_S = 0.0004  # and so does one that is later by what a scheduler adds.
NOISE_MEMORY = 16  # Round trips.
EPOCH_SAMPLES = 4  # The smallest of fewer round trips tells more of the scheduler than of the queue.
EPOCH_LEAST_S = 0.030


class BaseRtt:
    """The round trip without queues: the smallest of the last twenty seconds.

    Noise only ever adds to a round trip, so the smallest is the best estimate.
    """

    def __init__(self) -> None:
        self._buckets: deque[tuple[float, float]] = deque()
        self.value: float | None = None
        self.emptied_at = 0.0
        self.fell_at = 0.0
        self.held = False
        self._before_fall = 0.0

    def update(self, now: float, rtt: float) -> None:
        """Learn a round trip. While `held` (the queue is not ours to empty) nothing is forgotten."""
        if self.value is None:
            self._before_fall = rtt
        if self.value is None or rtt < self.value:
            self.value = rtt
            if rtt < self._before_fall - self.tolerance:
                self.fell_at, self._before_fall = now, rtt
        if rtt <= self.value + self.tolerance:
            self.emptied_at = now
        if not self._buckets or now - self._buckets[-1][0] >= BASE_BUCKET_S:
            self._buckets.append((now, rtt))
            if not self.held:
                self._forget(now)
        elif rtt < self._buckets[-1][1]:
            self._buckets[-1] = (self._buckets[-1][0], rtt)

    def adopt(self, now: float, rtt: float) -> None:
        """The path became longer: start from this round trip."""
        self._buckets.clear()
        self._buckets.append((now, rtt))
        self.value = self._before_fall = rtt
        self.emptied_at = now

    @property
    def tolerance(self) -> float:
        """How far over the base a round trip may be, in seconds, that met no queue."""
        return EMPTY_SHARE * (self.value or 0.0) + EMPTY_NOISE_S

    def _forget(self, now: float) -> None:
        while self._buckets[0][0] < now - BASE_MEMORY_S:
            self._buckets.popleft()
        self.value = min(rtt for _, rtt in self._buckets)
        self._before_fall = max(self._before_fall, self.value)


class LeastOf:
    """The smallest value of the last twenty seconds; clocks that drift apart are a millisecond apart by then.

    Attributes:
        value: None before the first.
    """

    def __init__(self) -> None:
        self._buckets: deque[tuple[float, float]] = deque()
        self.value: float | None = None

    def update(self, now: float, value: float) -> None:
        """Learn a value."""
        buckets = self._buckets
        if not buckets or now - buckets[-1][0] >= BASE_BUCKET_S:
            buckets.append((now, value))
            while buckets[0][0] < now - BASE_MEMORY_S:
                buckets.popleft()
            self.value = min(least for _, least in buckets)
        elif value < buckets[-1][1]:
            buckets[-1] = (buckets[-1][0], value)
            if self.value is None or value < self.value:
                self.value = value


class Noise:
    """By how much a round trip differs from the one before (RFC 3550, section 6.4.1).

    Attributes:
        value: seconds, smoothed.
    """

    def __init__(self) -> None:
        self.value = 0.0
        self._last: float | None = None

    def update(self, rtt: float) -> None:
        """Learn a round trip."""
        if self._last is not None:
            self.value += (abs(rtt - self._last) - self.value) / NOISE_MEMORY
        self._last = rtt


@dataclass(slots=True)
class Epoch:
    """Sums over about one round trip.

    Attributes:
        standing: smallest round trip in it: the queue that never went away; infinite before the first. Of packets that ended
            a burst, where there were any: those before them in a burst wait for less, and are asked about only after losses.
        acked, lost: bytes.
        peak: most bytes that were on their way.
        samples, rounds: round trips measured and ended.
        ends: whether any was of a packet that ended a burst.
        acknowledgements, short: all, and those of packets that had too little behind them.
    """

    started: float
    standing: float = float("inf")
    acked: int = 0
    lost: int = 0
    peak: int = 0
    samples: int = 0
    acknowledgements: int = 0
    rounds: int = 0
    short: int = 0
    ends: bool = False

    def add(self, sample: AckSample) -> None:
        """Count one acknowledgement."""
        if sample.rtt is not None:
            self.samples += 1
            if sample.ends_burst and not self.ends:
                self.ends, self.standing = True, sample.rtt
            elif sample.rtt < self.standing and sample.ends_burst == self.ends:
                self.standing = sample.rtt
        self.acknowledgements += 1
        self.acked += sample.acked
        self.lost += sample.lost
        self.peak = max(self.peak, sample.inflight + sample.acked + sample.lost)
        self.short += sample.app_limited

    def complete(self, sample: AckSample) -> bool:
        """Whether a round trip is over and enough was seen; three round trips are always enough."""
        if not sample.round_ended:
            return False
        self.rounds += 1
        return (self.samples >= EPOCH_SAMPLES or self.rounds > 2) and sample.now - self.started >= EPOCH_LEAST_S

    def rate(self, now: float) -> float:
        """Bytes a second that were delivered."""
        return self.acked / max(now - self.started, EPOCH_LEAST_S)

    @property
    def limited(self) -> bool:
        """The application had too little to send most of the time."""
        return 2 * self.short > self.acknowledgements

    @property
    def loss(self) -> float:
        """Lost share of what was sent."""
        total = self.acked + self.lost
        return self.lost / total if total else 0.0
