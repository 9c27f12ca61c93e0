"""The two passing phases of the rate controller: filling an unknown line, and emptying its queue."""

from collections import deque

from transport.sctp.congestion.control import AckSample
from transport.sctp.congestion.filters import Epoch

# Less than this an epoch, for FLAT_EPOCHS epochs: the line is full (draft-ietf-ccwg-bbr, section 5.3.1.2).
GROWTH = 1.25
FLAT_EPOCHS = 3
LOSS = 0.10  # Lost of an epoch: the queue is too short to show as a delay.
ARRIVALS = 64  # Acknowledgements that are remembered: at 1 Gbit/s some twenty milliseconds.
SAMPLES = 3  # RFC 9406 takes eight packets; one sample here stands for several.
DELAY_SHARE = 0.125  # RFC 9406, section 4.2, as are the two limits.
DELAY_LEAST_S = 0.004
DELAY_MOST_S = 0.016

FALL_SHARE, FALL_NOISE_S = 0.01, 0.0003  # A round trip that changed by less met no queue of this flow.
STILL_SHARE, STILL_NOISE_S = 0.03, 0.0005  # One that varies by less than this met nobody's queue.
STILL_AGAIN_S = 2.5  # Time between two looks,
STILL_LOOKS = 4  # and how many make sure. CUBIC's window stands nearly still for about five seconds.

ROUNDS = 1.25  # Once the window is low a packet needs one to meet the shorter queue and tell.
PATIENT_ROUNDS = 2.5  # Others who joined a round trip later are done as well.
GIVE_UP_ROUNDS = 2  # The window comes down in one, unless acknowledgements are lost.


class LongerPath:
    """Tells a path that became longer from a queue that others hold: neither our window nor time changes its round trip."""

    def __init__(self) -> None:
        self._looks = 0
        self._rtt = 0.0
        self._looked_at = 0.0
        self._drifts = False

    @property
    def sure(self) -> bool:
        """Whether it was still for long enough."""
        return self._looks >= STILL_LOOKS

    @property
    def watching(self) -> bool:
        """Whether a look has been taken, and others shall follow."""
        return self._looks > 0

    def clear(self) -> None:
        """Begin anew."""
        self._looks = 0
        self._drifts = False

    def judge(self, now: float, before: float, least: float) -> bool:
        """Learn what a drain did to the round trip; whether the path may be longer."""
        fall = before - least
        same = not self._looks or self._near(least)
        self._drifts |= not same
        if self._drifts or fall > FALL_SHARE * least + FALL_NOISE_S:
            self._looks = 0
            return False
        self._looks, self._rtt, self._looked_at = self._looks + 1, least, now
        return True

    def waiting(self, now: float, standing: float) -> bool:
        """Whether the next look is yet to come, and the round trip has stayed the same since the last."""
        if self._looks and not self._near(standing):
            self._looks = 0
            self._drifts = True
        return self._looks > 0 and now - self._looked_at < STILL_AGAIN_S

    def _near(self, rtt: float) -> bool:
        return abs(rtt - self._rtt) <= STILL_SHARE * self._rtt + STILL_NOISE_S


class Startup:
    """Notices that the line is full, by its queue, its rate, or its losses.

    Attributes:
        suspects: the newest round trip was longer than the path's own: the window should grow no further before more is known.
        lossy: it ended because too much was lost, without a queue.
        fastest: highest delivery rate of a sample, bytes a second.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=SAMPLES)
        self._arrivals: deque[tuple[float, int]] = deque(maxlen=ARRIVALS)
        self._busy_since = 0.0
        self.suspects = self.lossy = False
        self.fastest = 0.0
        self._rate = 0.0
        self._flat = 0

    @property
    def carried(self) -> float:
        """Bytes a second that have arrived since a queue stands, which is all that the line has for this flow; 0 if unknown."""
        train = [(at, size) for at, size in self._arrivals if at > self._busy_since]
        seconds = train[-1][0] - train[0][0] if self.suspects and train else 0.0
        return sum(size for _, size in train[1:]) / seconds if seconds else 0.0

    @property
    def least(self) -> float:
        """Smallest of the last round trips, in seconds."""
        return min(self._recent)

    def queue_shows(self, sample: AckSample, base: float | None) -> bool:
        """Whether the last round trips all were longer than the path's own (HyStart++, RFC 9406)."""
        self.fastest = max(self.fastest, sample.delivery_rate or 0.0)
        if sample.acked:
            self._arrivals.append((sample.now, sample.acked))
        if sample.rtt is None or base is None:
            return False
        self._recent.append(sample.rtt)
        margin = min(DELAY_MOST_S, max(DELAY_LEAST_S, base * DELAY_SHARE))
        waited = sample.rtt - base
        if waited > margin and not self.suspects:
            self._busy_since = sample.now - waited  # The line has been busy while this packet waited.
        self.suspects = waited > margin
        return len(self._recent) == SAMPLES and self.least > base + margin

    def finished(self, epoch: Epoch, rate: float) -> bool:
        """Whether an epoch shows that the rate no longer grows, or that too much is lost."""
        self.lossy = epoch.loss > LOSS
        if self.lossy:
            return True
        if epoch.limited:
            return False
        if rate > self._rate * GROWTH:
            self._rate, self._flat = rate, 0
        else:
            self._flat += 1
        return self._flat >= FLAT_EPOCHS


class Drain:
    """Keeps the window under what the path holds, until the queue of this flow has gone and a round trip has shown it.

    Attributes:
        started: when.
        standing: the round trip before, in seconds.
        inherent: bytes of this flow that the path holds without queues.
        first: it ends a start-up, whose overshoot may take longer.
        least: smallest round trip since.
    """

    def __init__(self, now: float, *, standing: float, inherent: float, share: float, patient: bool) -> None:
        self.started = now
        self.standing = standing
        self.inherent = inherent
        self.first = False
        self.least = float("inf")
        self._share = share
        self._rounds = PATIENT_ROUNDS if patient else ROUNDS
        self._low_at: float | None = None

    @property
    def window(self) -> float:
        """Bytes that may be on their way meanwhile."""
        return self.inherent * self._share

    def limit(self, inherent: float) -> None:
        """The path holds no more than this."""
        self.inherent = min(self.inherent, inherent)

    def see(self, sample: AckSample, empty: float, srtt: float) -> bool:
        """Learn from an acknowledgement; `empty` is a round trip that met no queue. Whether the drain is over."""
        if sample.rtt is not None:
            self.least = min(self.least, sample.rtt)
        if self._low_at is None:
            if sample.inflight <= self.window or sample.now - self.started > GIVE_UP_ROUNDS * srtt:
                self._low_at = sample.now
            return False
        return self.least <= empty or sample.now - self._low_at > self._rounds * self.least
