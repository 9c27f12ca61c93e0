"""How fast an association sends: a short queue of known length, whatever the line loses, and a fair share of it.

The controller regulates the queue that it sees, not an estimate of the line's rate. Once a round trip it takes the smallest round
trip of that time, `standing`, compares it with the path's own round trip, `base`, and steps the window towards

    window * (base + target) / standing,    target = base * 0.6 * packets ** (-1/3)

where `packets` is the window without its queue. The fixed point is a queue of `target` seconds: a line that is always busy, and
8 % more round trip at 100 Mbit/s and 50 ms. This is FAST TCP's law (Wei, Jin, Low, Hegde: "FAST TCP", IEEE/ACM Trans. Networking
2006) with a target that falls with the rate, as in Swift (Kumar et al., SIGCOMM 2020, section 3.5): all flows of a queue see one
delay, and only equal windows find it equally right. Neither losses nor clumped acknowledgements enter the law, so neither can
mislead it.

- *startup* doubles the window every round trip until a queue shows or the rate stops growing.
- *drain* halts until the window is below what the path holds without queues. It comes after the start-up, every five seconds, and
  when the queue is twice the target and stays. It shows the path's own round trip to everybody on the line, therefore flows
  that share a line fall into step (BBR's ProbeRTT, draft-ietf-ccwg-bbr, section 5.3.4), and it tells whose queue it is.
- *competing*: a queue that a drain does not empty is held by somebody who fills it. Then the window is CUBIC's
  (`transport.sctp.competing`) until a drain succeeds, as in Copa (Arun, Balakrishnan, NSDI 2018, section 2.2).
- *yielding* (polite only): a flow that shall not compete halves its window every round trip while the queue is not its own
  (RFC 6817; draft-irtf-iccrg-ledbat-plus-plus), and takes the line again by doubling.
"""

from collections import deque

from transport.sctp.competing import CompetingWindow
from transport.sctp.control import AckSample
from transport.sctp.filters import BaseRtt, Epoch
from transport.sctp.phases import STILL_AGAIN_S, Drain, LongerPath, Startup

MAX_RATE = 1.25e9  # 10 Gbit/s: no home line is faster, and a peer that acknowledges nonsense gets no more.
MAX_WINDOW = 64 << 20  # 1 Gbit/s over 500 ms.
INITIAL_PACKETS = 48  # RFC 6928 has 10 sent at once; these are paced.
FIRST_RTT_S = 0.050  # Pace of the initial window where the round trip is unknown.
LEAST_PACKETS = 4  # Three later packets show a loss (RFC 9002, section 6.1.1).
LEAST_POLITE_PACKETS = 2  # draft-irtf-iccrg-ledbat-plus-plus, section 4.4

TARGET_SHARE = 0.5
TARGET_POWER = -1 / 3
TARGET_MOST = 0.25
POLITE_TARGET_S = 0.025  # RFC 6817 allows 100 ms; a call in the same home should not hear it.
POLITE_TARGET_SHARE = 0.5  # Of the target of others, so that a polite flow gives way to them as well.
STEP = 0.5  # Gain of the law: the delay seen is a round trip old.
LEAST_STEP, GREATEST_STEP = 0.8, 1.5  # One epoch may be a stall of the acknowledgements.
STEADY_PACE = 1.10  # The window decides; the pace only spreads.
STARTUP_PACE = 2.0

FOREIGN_SHARE = 1.5  # The queue is suspect at this many targets
SUSPECT_EPOCHS_LONG = 2  # where the queue is longer than the path
SUSPECT_EPOCHS = 4  # for as many epochs.
REMAINING_SHARE = 0.10  # A drain that leaves more than this share of the base found somebody else's queue.
DRAIN_SHARE = 0.75
TEST_SHARE = 0.9
EMPTIED_TESTS = 2
DRAIN_EVERY_S = 5.0
COMPETING_TEST_S = 4.0
COMPETING_TEST_MOST_S = 12.0
FAIR_SHARE = 0.5  # Of the rate that was ours alone, once somebody has come.
LEAST_RTT_S = 0.0005  # Loopback and home networks: timers are no finer.
USED_SHARE = 0.7  # A window that is not used does not grow.
IDLE_EPOCHS = 3  # After as many epochs without a queue the steps double: the line became faster.
MOST_DOUBLINGS = 4
YIELD = 0.5
CRUISE = 1.04
RATE_EPOCHS = 3
LEAST_PACE_S = 0.1
DIP_SHARE = 0.04
DIP_TEST_S = 1.0
RETURN_S = 15.0
MEMORY_S = 30.0
HOLD_LEAST_S, HOLD_ROUNDS = 0.5, 10
POLITE_TARGET_MOST = 0.06


class RateController:
    """The data path's congestion controller (see the module).

    Args:
        packet_bytes: a full packet on the wire; may be set anew when the path carries larger ones.
        rtt_hint: round trip in seconds as measured before, by ICE for instance; paces the first window.
        polite: whether to yield to everybody else; may be changed while running.

    Attributes:
        packet_bytes: see above.
        polite: see above.
        state: "startup", "steady", "drain", "competing" or "yielding", for logs.
    """

    def __init__(self, packet_bytes: int, rtt_hint: float | None = None, polite: bool = False) -> None:
        self.packet_bytes = packet_bytes
        self.polite = polite
        self._hint = rtt_hint or FIRST_RTT_S
        self._reset()

    def _reset(self) -> None:
        self.state = "startup"
        self._base = BaseRtt()
        self._window = float(INITIAL_PACKETS * self.packet_bytes)
        self._srtt: float | None = None
        self._bandwidth = 0.0
        self._epoch = Epoch(0.0)
        self._standing = self._hint
        self._startup = Startup()
        self._drain: Drain | None = None
        self._competing: CompetingWindow | None = None
        self._tested_at = 0.0
        self._suspect_epochs = 0
        self._suspect_window = self._suspect_rate = 0.0
        self._longer = LongerPath()
        self._idle_epochs = 0
        self._suspected_at = -MEMORY_S
        self._held_rtt = 0.0
        self._held_until = 0.0
        self._test_every = COMPETING_TEST_S
        self._rates: deque[float] = deque([0.0], maxlen=RATE_EPOCHS)
        self._cruise = 0.0
        self._emptied = 0
        self._episode_window = 0.0
        self._left: tuple[float, float] | None = None
        self._longest = 0.0
        self._last_base = 0.0

    @property
    def pacing_rate(self) -> float:
        """Bytes a second at which packets may leave."""
        gain = STARTUP_PACE if self.state == "startup" and self._srtt else STEADY_PACE
        rate = gain * self.window / max(self._srtt or self._hint, LEAST_RTT_S)
        if self.state == "steady" and self._cruise:
            rate = min(rate, max(self._cruise, self._least / LEAST_PACE_S))
        return min(MAX_RATE, rate)

    @property
    def window(self) -> int:
        """Bytes that may be on their way."""
        window = self._drain.window if self._drain else self._window
        return int(min(MAX_WINDOW, max(window, self._least)))

    @property
    def min_rtt(self) -> float | None:
        """The path's round trip without queues, in seconds, as far as it is known."""
        return self._base.value

    @property
    def bandwidth(self) -> float:
        """Bytes a second delivered of late, or more where the sender had too little to send."""
        return self._bandwidth

    @property
    def _least(self) -> float:
        return (LEAST_POLITE_PACKETS if self.polite else LEAST_PACKETS) * float(self.packet_bytes)

    def on_ack(self, sample: AckSample) -> None:
        """Learn from an acknowledgement."""
        epoch = self._epoch
        epoch.add(sample)
        rtt = sample.rtt
        if rtt is not None:
            self._base.update(sample.now, rtt)
            self._srtt = rtt if self._srtt is None else self._srtt + (rtt - self._srtt) / 8
        if self._drain is not None:
            self._on_ack_draining(sample, self._drain)
        elif self.state == "startup":
            self._on_ack_starting(sample)
        elif self._competing is not None:
            self._on_ack_competing(sample, self._competing)
        if epoch.complete(sample):
            self._end_epoch(sample.now, epoch)

    def on_timeout(self, now: float) -> None:
        """Nothing was acknowledged for a retransmission timeout: begin anew with the least window, the base stays known."""
        self._window = LEAST_PACKETS * float(self.packet_bytes)
        self._drain = self._competing = None
        self._base.held = False
        self._startup = Startup()
        self._epoch = Epoch(now)
        self.state = "startup"

    def on_restart(self, now: float) -> None:
        """The first packet after an idle time is about to leave: what was counted before it is no epoch."""
        self._epoch = Epoch(now)
        self._base.emptied_at = max(self._base.emptied_at, now - DRAIN_EVERY_S / 2)

    def on_path_change(self, now: float) -> None:
        """The packets take another way from now on: everything is learnt anew."""
        self._reset()
        self._epoch = Epoch(now)

    # Epochs

    def _end_epoch(self, now: float, epoch: Epoch) -> None:
        rate = epoch.rate(now)
        if not epoch.limited or rate > self._bandwidth:
            self._bandwidth = rate
        self._epoch = Epoch(now)
        if self._drain is not None:
            return
        self._rates.append(rate)
        self._cruise = 0.0
        self._standing = epoch.standing
        match self.state:
            case "startup":
                self._judge_startup(now, epoch, rate)
            case "competing":
                fell = epoch.standing < self._longest * (1 - DIP_SHARE) and now - self._tested_at > DIP_TEST_S
                self._longest = max(epoch.standing, self._longest * 0.97)
                if fell:
                    self._begin_drain(now, epoch.standing)
                else:
                    self._test_when_due(now)
            case _:
                self._regulate(now, epoch)

    def _judge_startup(self, now: float, epoch: Epoch, rate: float) -> None:
        if self._startup.finished(epoch, rate):
            self._begin_drain(now, epoch.standing)

    def _target(self, base: float) -> float:
        """Queueing delay to hold, in seconds."""
        packets = max(1.0, self._window * base / self._standing / self.packet_bytes)
        share = TARGET_SHARE * float(packets**TARGET_POWER)
        if self.polite:
            return min(POLITE_TARGET_S, base * min(POLITE_TARGET_MOST, POLITE_TARGET_SHARE * share))
        return base * min(TARGET_MOST, share)

    def _regulate(self, now: float, epoch: Epoch) -> None:
        base = self._base.value or epoch.standing
        target = self._target(base)
        delay = epoch.standing - base
        if now < self._held_until:
            self._held_rtt = max(self._held_rtt, epoch.standing)
            if epoch.standing < self._held_rtt * (1 - DIP_SHARE):
                self._begin_drain(now, epoch.standing)
            return
        self._watch(now, delay, target)
        if self._drain is not None or self._competing is not None or self._longer.waiting(now, epoch.standing):
            return
        lower = self._last_base - base > DIP_SHARE / 2 * base + self._base.tolerance
        self._last_base = base
        dip = self._longest > base + target and epoch.standing < self._longest * (1 - DIP_SHARE)
        self._longest = max(epoch.standing, self._longest * 0.97)
        if (lower or dip) and now - self._tested_at > DIP_TEST_S and not self.polite:
            self._begin_drain(now, epoch.standing)
            return
        step = 1 - STEP + STEP * (base + target) / (base + delay)
        if self.polite and self._suspect_epochs:
            step = YIELD
        if step > 1.0:
            if epoch.limited or epoch.peak < USED_SHARE * self._window:
                return
            self._idle_epochs = self._idle_epochs + 1 if delay < target / 2 else 0
            if self._idle_epochs > IDLE_EPOCHS + MOST_DOUBLINGS and not self.polite:
                self._startup = Startup()
                self.state = "startup"
                return
            if self._idle_epochs > IDLE_EPOCHS:
                step = min(GREATEST_STEP, step ** (2 ** min(MOST_DOUBLINGS, self._idle_epochs - IDLE_EPOCHS)))
        else:
            self._idle_epochs = 0
        self._window = min(
            float(MAX_WINDOW), max(self._least, self._window * max(step, YIELD if self.polite else LEAST_STEP))
        )
        if self._idle_epochs <= IDLE_EPOCHS:
            self._cruise = max(self._rates) * CRUISE * max(1.0, step)
        pause = STILL_AGAIN_S if self._longer.watching else DRAIN_EVERY_S
        if now - max(self._base.emptied_at, self._tested_at) > pause:
            self._begin_drain(now, epoch.standing)

    # Whose queue is it?

    def _watch(self, now: float, delay: float, target: float) -> None:
        if delay <= FOREIGN_SHARE * target + self._base.tolerance:
            self._suspect_epochs = 0
            if self.state == "yielding":
                self.state = "steady"
                self._base.held = False
            return
        if not self._suspect_epochs:
            self._episode_window = self._window
        if not self._suspect_epochs and now - self._suspected_at > MEMORY_S:
            self._suspect_window, self._suspect_rate = self._window, self._bandwidth
        self._suspect_epochs += 1
        self._suspected_at = now
        if self.state == "yielding":
            return
        enough = SUSPECT_EPOCHS if delay < (self._base.value or delay) else SUSPECT_EPOCHS_LONG
        if self._suspect_epochs < enough or self._longer.waiting(now, self._standing):
            return
        else:
            self._begin_drain(now, self._standing)

    def _begin_drain(self, now: float, standing: float) -> None:
        base = self._base.value or standing
        inherent = self._window * base / standing
        self._drain = Drain(
            now,
            standing,
            inherent * (DRAIN_SHARE if self._competing is None else TEST_SHARE),
            self._competing is not None or self._suspect_epochs > 0,
        )
        self.state = "drain"

    def _on_ack_draining(self, sample: AckSample, drain: Drain) -> None:
        base = self._base.value or self._standing
        if drain.see(sample, base + self._base.tolerance, self._srtt or base):
            self._drain = None
            self._epoch = Epoch(sample.now)
            self._end_drain(sample.now, drain)

    def _end_drain(self, now: float, drain: Drain) -> None:
        base = self._base.value or drain.standing
        remaining = drain.least - base
        self._tested_at = now
        if remaining > max(self._target(base), REMAINING_SHARE * base) + self._base.tolerance:
            if self._competing is None and self._longer.judge(now, drain.standing, drain.least):
                self._wait_or_adopt(now, drain)
            elif self._may_be_newcomer(now):
                self._held_rtt = 0.0
                self._held_until = now + max(HOLD_LEAST_S, HOLD_ROUNDS * drain.least)
                self.state = "steady"
            else:
                self._emptied = 0
                self._compete(now, drain.standing, drain.started)
            return
        if remaining > self._base.tolerance and self._longer.judge(now, drain.standing, drain.least):
            self._adopt_when_sure(now, drain.least)
        else:
            self._longer.clear()
        base = self._base.value or drain.standing
        if self._competing is not None:
            self._emptied += 1
            if self._emptied < EMPTIED_TESTS:
                self._compete(now, drain.standing, drain.started)
                return
            self._left = (now, self._competing.window)
        self.state = "steady"
        self._competing = None
        self._base.held = False
        self._suspect_epochs = 0
        self._held_until = 0.0
        self._standing = drain.standing
        self._window = max(self._least, self._window * min(1.0, (base + self._target(base)) / drain.standing))

    def _may_be_newcomer(self, now: float) -> bool:
        return (
            self._competing is None
            and not self.polite
            and not self._held_until
            and (self._left is None or now - self._left[0] > RETURN_S)
        )

    def _wait_or_adopt(self, now: float, drain: Drain) -> None:
        self.state = "steady"
        self._standing = drain.standing
        if not self.polite:
            self._window = max(self._window, self._episode_window)
        self._adopt_when_sure(now, drain.least)

    def _adopt_when_sure(self, now: float, rtt: float) -> None:
        if self._longer.sure:
            self._base.adopt(now, rtt)
            self._longer.clear()
            self._suspect_epochs = 0

    def _compete(self, now: float, standing: float, since: float) -> None:
        self._base.held = True
        if self.polite:
            self.state = "yielding"
            self._window *= YIELD
            return
        self.state = "competing"
        self._held_until = 0.0
        if self._competing is None:
            fair = FAIR_SHARE * self._suspect_rate * standing
            window = max(self._window, self._suspect_window, fair)
            if self._left is not None and now - self._left[0] < RETURN_S:
                window = max(window, self._left[1])
            self._longest = standing
            self._competing = CompetingWindow(now, window, self.packet_bytes)
        else:
            self._competing.pause(now, now - since)
        self._window = self._competing.window

    def _on_ack_competing(self, sample: AckSample, competing: CompetingWindow) -> None:
        if sample.rtt is None or self._base.value is None:
            return
        delay = sample.rtt - self._base.value
        competing.see_delay(sample.now, delay)
        if sample.lost and competing.on_loss(sample.now, sample.rtt, delay):
            self._test_when_due(sample.now)
        elif not sample.app_limited:
            competing.grow(sample.now, sample.rtt, sample.acked)
        self._window = min(float(MAX_WINDOW), competing.window)

    def _test_when_due(self, now: float) -> None:
        if self.polite or now - self._tested_at > self._test_every:
            self._begin_drain(now, self._standing)

    # Start-up

    def _on_ack_starting(self, sample: AckSample) -> None:
        full = self._startup.queue_shows(sample, self._base.value)
        if sample.inflight + sample.acked + sample.lost >= self._window / 2 and not self._startup.suspects:
            self._window = min(float(MAX_WINDOW), self._window + sample.acked)
        if full:
            self._standing = self._startup.least
            self._begin_drain(sample.now, self._standing)
