"""How fast an association sends: a short queue of known length, whatever the line loses, and a fair share of it.

The controller regulates the queue that it sees, not an estimate of the line's rate. Once an epoch (a round trip, at least 30 ms)
it takes the smallest round trip of that time, `standing`, compares it with the path's own, `base`, and steps the window towards

    window * (base + target) / standing,    target = base * 0.6 * packets ** (-1/3)

where `packets` is the window less its part of the queue. The fixed point is a queue of `target` seconds: a line that is always
busy, and 8 % more round trip at 100 Mbit/s and 50 ms. This is FAST TCP's law (Wei, Jin, Low, Hegde: "FAST TCP", IEEE/ACM Trans.
Networking 2006) with a target that falls as the rate grows, as in Swift (Kumar et al., SIGCOMM 2020, section 3.5): all flows of a
queue see one delay, and only equal windows find it equally right. Neither losses nor clumped acknowledgements enter the law, so
neither can mislead it; and only packets that end a burst tell how long the queue is, which on fast lines outlasts a few bursts,
where flows no longer even out by it alone. Who seems to have a short, slow line to itself keeps half of that queue
(`transport.sctp.congestion.rivalry.Alone`).

Where the peer tells when packets arrived, the queue on the way back is left out of the round trips: two homes that send to each
other at once would take each other's queues for their own, and one of them would starve.

- *startup* doubles the window every round trip until a queue shows (HyStart++, RFC 9406) or the rate stops growing.
- *drain* halts until the window is below what the path holds without queues. It comes after the start-up, every five seconds,
  when the queue is suspect, and when others drain. It shows the path's own round trip to everybody on the line (BBR's ProbeRTT,
  draft-ietf-ccwg-bbr, section 5.3.4), and it tells whose queue it is. That all join is what makes the base true for newcomers.
- *competing*: a queue that drains do not empty is held by somebody who fills it, be it a long one, or a short one that makes this
  flow ever smaller. Then the window is CUBIC's (`transport.sctp.congestion.competing`) until three drains in a row
  succeed; the idea of two modes is Copa's (Arun, Balakrishnan, NSDI 2018, section 2.2), what tells them apart is ours
  (`transport.sctp.congestion.rivalry`).
- *yielding* (polite only): the target is smaller and flat, and while the queue is not its own the flow halves its window every
  epoch (RFC 6817; draft-irtf-iccrg-ledbat-plus-plus). It takes an idle line again in growing steps.
"""

from collections import deque

from transport.sctp.congestion.competing import CompetingWindow
from transport.sctp.congestion.control import AckSample
from transport.sctp.congestion.filters import BaseRtt, Epoch, LeastOf, Noise
from transport.sctp.congestion.pacing import DENSE, burst_seconds, rest_seconds
from transport.sctp.congestion.phases import STILL_AGAIN_S, Drain, LongerPath, Startup
from transport.sctp.congestion.rivalry import SUSPECT_TARGETS, Alone, Rivalry

MAX_RATE = 1.25e9  # 10 Gbit/s: no home line is faster, and a peer that acknowledges nonsense gets no more.
MAX_WINDOW = 64 << 20  # 1 Gbit/s over 500 ms.
INITIAL_PACKETS = 48  # RFC 6928 has 10 sent at once; these are paced.
FIRST_RTT_S = 0.050  # Pace of the initial window where the round trip is unknown.
LEAST_RTT_S = 0.0005  # Loopback and home networks: timers are no finer.
LEAST_PACKETS = 4  # Three later packets show a loss (RFC 9002, section 6.1.1).
LEAST_POLITE_PACKETS = 2  # draft-irtf-iccrg-ledbat-plus-plus, section 4.4

TARGET_SHARE = 0.6
TARGET_POWER = -1 / 3  # Steeper: no queue left at 1 Gbit/s. Flatter: flows even out too slowly.
TARGET_MOST = 0.22  # Of 20 packets. Lower, and eight flows of 50 packets each do not even out (Jain 0.72 at 0.17).
TARGET_ALONE = 0.11  # On a short line of its own, where packets leave one by one: 20 Mbit/s over 10 ms, 1.8 packets,
LEAST_QUEUE_PACKETS = 1.85  # and never fewer: the queue must outlast what a wake-up is late (at 1.6 lines ran dry).
FINE_RATE = 4e6  # Bytes a second up to which packets leave one by one: each wake-up costs some 50 microseconds.
NOISE_TARGETS = 4.0  # No queue shorter than so many differences between round trips can be seen, so none is regulated
# (differences of one packet's time are those of its place in the queue, and tell the queue all the same),
NOISE_MOST_S = 0.002  # up to this, which no household minds: on a local network schedulers are slower than the wire.
WAKE_BURSTS = 2.6  # The queue must outlast a burst, which it holds itself, and what wakes up late after it,
WAKE_SHARE = 0.16  # but never for longer than this part of the base: at 1 Gbit/s the share above leaves less.
# The same where packets come so densely that the peer lets them gather: they are acknowledged later.
DENSE_SHARE = 0.18
FORWARD_LEAST = 1 / 8  # Of the queueing delay there and back is held to be on the way there, whatever the peer says.
POLITE_TARGET_S = 0.025  # RFC 6817 allows 100 ms; a call in the same home should not hear it.
POLITE_TARGET_SHARE = 0.5  # Of the target of others, so that a polite flow gives way to them as well.
POLITE_TARGET_MOST = 0.06  # A target that grew while the flow yields would stop it from yielding.

STEP = 0.5  # Gain of the law: the delay seen is a round trip old.
LEAST_STEP, GREATEST_STEP = 0.8, 1.5  # One epoch may be a stall of the acknowledgements.
RUN_UP = 1.4  # Steps that double stop at this much over what was delivered: the rest would be queue.
YIELD = 0.5
YIELD_EPOCHS = 2  # One may be this flow's own doing.
TOO_MUCH_LOSS = 0.10  # A buffer too short for a queue to show drops what is too fast.
USED_SHARE = 0.7  # A window that is not used does not grow.
IDLE_EPOCHS = 3  # After as many epochs without a queue the steps double: the line became faster.
MOST_DOUBLINGS = 4  # Then it is a new line, and the start-up measures it.

STARTUP_HOLDS = 1.4  # A rate sample is a round trip's mean, while the rate doubles in it.
STARTUP_PACE = 2.0  # A window a round trip on average, while the window doubles.
WINDOW_PACE = 1.10  # The window decides; the pace only spreads.
# Of the window a round trip: a pace that follows what was delivered could otherwise only ever fall.
CRUISE_LEAST = 0.25
CRUISE = 1.04  # In the steady state, of the rate delivered: acknowledgements in clumps must not make clumps of packets.
RATE_EPOCHS = 3

DRAIN_SHARE = 0.75  # Of what the path holds: the queue empties even where some of those who share it do not drain.
TEST_SHARE = 0.90  # Competing, a deeper drain would empty a queue that is not ours alone.
DRAIN_EVERY_S = 5.0  # At 150 ms of round trip a drain costs 0.7 % of this time.
UNSURE_PAUSE_S = 1.5  # While drains do not empty the queue: who has less than a fair share should not wait long for it.
SURE_BASE_S = 1.0  # A base younger than this may be the trough of somebody else's queue.
REMAINING_SHARE = 0.10  # A drain that leaves more than this share of the base found somebody else's queue.
CLEAR_SHARE = 0.05  # One that leaves less emptied it: jitter may look like so much.
LOWER_SHARE = 0.02  # A base that fell by this share was a queue: there may be more to drain.


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
        fine: whether the sender has a timer that is fine enough to send packet by packet.
        one_by_one: packets should leave so now.
    """

    def __init__(self, packet_bytes: int, rtt_hint: float | None = None, polite: bool = False) -> None:
        self.packet_bytes = packet_bytes
        self.polite = polite
        self.fine = False
        self._hint = rtt_hint or FIRST_RTT_S
        self._reset()

    def _reset(self) -> None:
        self.state = "startup"
        self._base = BaseRtt()
        self._forward = LeastOf()
        self._noise = Noise()
        self._window = float(INITIAL_PACKETS * self.packet_bytes)
        self._srtt: float | None = None
        self._bandwidth = 0.0
        self._epoch = Epoch(0.0)
        self._standing = self._hint
        self._startup = Startup()
        self._drain: Drain | None = None
        self._competing: CompetingWindow | None = None
        self._rivalry = Rivalry()
        self._alone = Alone()
        self.one_by_one = False
        self._longer = LongerPath()
        self._shallow = False
        self._rates: deque[float] = deque([0.0], maxlen=RATE_EPOCHS)
        self._cruise = 0.0
        self._idle_epochs = 0
        self._last_base = 0.0

    @property
    def pacing_rate(self) -> float:
        """Bytes a second at which packets may leave."""
        gain = STARTUP_PACE if self.state == "startup" and self._srtt else WINDOW_PACE
        rate = gain * self.window / max(self._srtt or self._hint, LEAST_RTT_S)
        if self.state == "steady" and self._cruise:
            rate = min(rate, max(self._cruise, rate * CRUISE_LEAST))
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
        if sample.forward is not None and sample.rtt is not None:
            sample = self._without_way_back(sample, sample.rtt, sample.forward)
        epoch = self._epoch
        epoch.add(sample)
        rtt = sample.rtt
        if rtt is not None:
            self._base.update(sample.now, rtt)
            self._srtt = rtt if self._srtt is None else self._srtt + (rtt - self._srtt) / 8
            if sample.ends_burst:
                self._noise.update(rtt)
        if self._drain is not None:
            self._on_ack_draining(sample, self._drain)
        elif self.state == "startup":
            self._on_ack_starting(sample)
        elif self._competing is not None:
            self._on_ack_competing(sample, self._competing)
        if epoch.complete(sample):
            self._end_epoch(sample.now, epoch)

    def _without_way_back(self, sample: AckSample, rtt: float, forward: float) -> AckSample:
        """Leave out of a round trip the queue on the way back: it is the peer's, and to give way to it would be in vain.

        The clocks drift apart; so what both measures agree on counts, and a drift is forgotten with the base.
        """
        self._forward.update(sample.now, forward)
        base = min(rtt, self._base.value or rtt)
        there = max(forward - (self._forward.value or 0.0), (rtt - base) * FORWARD_LEAST)
        return sample._replace(rtt=min(rtt, base + there))

    def on_timeout(self, now: float) -> None:
        """Nothing was acknowledged for a retransmission timeout: begin anew with the least window; the base stays known."""
        self._window = LEAST_PACKETS * float(self.packet_bytes)
        self._drain = self._competing = None
        self._begin_startup(now)

    def on_restart(self, now: float) -> None:
        """The first packet after an idle time is about to leave: what was counted before it is no epoch."""
        self._epoch = Epoch(now)
        self._base.emptied_at = max(self._base.emptied_at, now - DRAIN_EVERY_S / 2)

    def on_path_change(self, now: float) -> None:
        """The packets take another way from now on: everything is learnt anew."""
        self._reset()
        self._epoch = Epoch(now)

    def _end_epoch(self, now: float, epoch: Epoch) -> None:
        rate = epoch.rate(now)
        if not epoch.limited or rate > self._bandwidth:
            self._bandwidth = rate
        self._epoch = Epoch(now)
        if self._drain is not None:
            return
        self._base.held = self.polite or self._competing is not None
        self._rates.append(rate)
        if self.state == "steady" and epoch.peak >= USED_SHARE * self._window:
            self._alone.see(now, rate)
        self._cruise = 0.0
        if epoch.samples:
            self._standing = epoch.standing
        if self.state == "startup":
            if self._startup.finished(epoch, rate):
                self._end_startup(now)
        elif self._competing is not None:
            if epoch.samples and self._base.value is not None:
                self._competing.see_standing(now, epoch.standing - self._base.value)
            if self._rivalry.dip(now, self._standing) or self._rivalry.test_due(now):
                self._begin_drain(now)
        elif epoch.samples:
            self._regulate(now, epoch)

    # The law

    def _target(self, base: float) -> float:
        """Queueing delay to hold, in seconds."""
        packets = max(1.0, self._window * base / self._standing / self.packet_bytes)
        share = TARGET_SHARE * float(packets**TARGET_POWER)
        if self.polite:
            return min(POLITE_TARGET_S, base * min(POLITE_TARGET_MOST, POLITE_TARGET_SHARE * share))
        packet = self.packet_bytes / self._bandwidth if self._bandwidth else 0.0
        unseen = min(NOISE_TARGETS * max(0.0, self._noise.value - packet), NOISE_MOST_S)
        target = base * min(TARGET_MOST, share)
        now = self._epoch.started
        self.one_by_one = (
            self.fine
            and 0 < self._bandwidth < FINE_RATE
            and self._rivalry.lone(now)
            and self._alone.on_short_line(now, base, packets)
        )
        if self.one_by_one:
            target = min(target, max(base * TARGET_ALONE, LEAST_QUEUE_PACKETS * packet))
        else:
            gathers = rest_seconds(base) and self._bandwidth >= DENSE * self.packet_bytes
            wake = DENSE_SHARE if gathers else WAKE_SHARE
            target = max(target, min(base * wake, WAKE_BURSTS * burst_seconds(base)))
        return max(target, unseen)

    def _regulate(self, now: float, epoch: Epoch) -> None:
        base = self._base.value or epoch.standing
        target = self._target(base)
        delay = epoch.standing - base
        if self._rivalry.holding(now):
            if self._rivalry.dip(now, epoch.standing):
                self._begin_drain(now)
            return
        self._watch(now, delay, target, base)
        if self._drain is not None or (self._longer.waiting(now, epoch.standing) and not self.polite):
            return
        if self._drain_due(now, base, target):
            self._begin_drain(now)
            return
        ratio = (base + target) / (base + delay + self._hole(epoch))
        self._step(now, epoch, ratio, idle=delay < target * (1 if self.polite else 0.5))

    def _hole(self, epoch: Epoch) -> float:
        """Seconds that a lost packet takes from the smallest round trip: it leaves a hole in a queue of a few packets.

        Where it was lost behind the queue it does not, so half of it counts.
        """
        return min(self.packet_bytes, epoch.lost) / self._bandwidth / 2 if self.one_by_one else 0.0

    def _step(self, now: float, epoch: Epoch, ratio: float, *, idle: bool) -> None:
        step = 1 - STEP + STEP * ratio
        if self.polite and self._rivalry.epochs >= YIELD_EPOCHS:
            step = YIELD
        if step <= 1.0:
            self._idle_epochs = 0
            step = max(step, YIELD if self.polite else LEAST_STEP)
        elif epoch.peak < USED_SHARE * self._window:
            return
        else:
            self._idle_epochs = self._idle_epochs + 1 if idle else 0
            doublings = self._idle_epochs - IDLE_EPOCHS
            if self._shallow:
                doublings = 0
                step = step if epoch.loss <= TOO_MUCH_LOSS else 1 - epoch.loss / 4
            if doublings > MOST_DOUBLINGS and not self.polite:
                self._begin_startup(now)
                return
            if doublings > 0:
                greatest = 1 / YIELD if self.polite else GREATEST_STEP
                carried = RUN_UP * self._bandwidth * self._standing / self._window
                step = max(step, min(greatest, carried, step ** (2 ** min(MOST_DOUBLINGS, doublings))))
        self._window = min(float(MAX_WINDOW), max(self._least, self._window * step))
        if self._idle_epochs <= IDLE_EPOCHS:
            self._cruise = max(self._rates) * CRUISE * max(1.0, step)

    def _watch(self, now: float, delay: float, target: float, base: float) -> None:
        """Suspect a queue that stays."""
        rivalry = self._rivalry
        if delay <= SUSPECT_TARGETS * target + self._base.tolerance:
            rivalry.epochs = 0
            if self.state == "yielding":
                self.state = "steady"
            return
        rivalry.suspect(now, self._window, self._bandwidth)
        if (
            self.state != "yielding"
            and rivalry.convinced(delay, base)
            and not self._longer.waiting(now, self._standing)
        ):
            self._begin_drain(now)

    def _drain_due(self, now: float, base: float, target: float) -> bool:
        """Whether it is time to show the path's own round trip, or others are doing so."""
        lower = self._last_base > base * (1 + LOWER_SHARE) + self._base.tolerance
        if self._rivalry.rested(now):
            self._last_base = base
        dip = self._rivalry.dip(now, self._standing, base + target)
        if not self.polite and (dip or (lower and self._rivalry.rested(now))):
            return True
        pause = STILL_AGAIN_S if self._longer.watching else DRAIN_EVERY_S
        if self._rivalry.unsure(now, self._window * base / self._standing) and not self.polite:
            pause = UNSURE_PAUSE_S
        return now - max(self._base.emptied_at, self._rivalry.tested_at) > pause

    # Draining

    def _begin_drain(self, now: float) -> None:
        base = self._base.value or self._standing
        share = DRAIN_SHARE if self._competing is None else TEST_SHARE
        self._drain = Drain(
            now,
            standing=self._standing,
            inherent=self._window * base / self._standing,
            share=share,
            patient=self._competing is not None or self._rivalry.epochs > 0,
        )
        self.state = "drain"

    def _on_ack_draining(self, sample: AckSample, drain: Drain) -> None:
        base = self._base.value or self._standing
        if drain.see(sample, base + self._base.tolerance, self._srtt or base):
            self._drain = None
            self._epoch = Epoch(sample.now)
            self._rivalry.tested_at = sample.now
            self._end_drain(sample.now, drain, base)

    def _end_drain(self, now: float, drain: Drain, base: float) -> None:
        remaining = drain.least - base
        empty = remaining <= CLEAR_SHARE * base + self._base.tolerance
        if self._competing is not None and not self._may_leave(now, drain, empty=empty):
            self._compete(now, drain)
            return
        rivalry = self._rivalry
        still = remaining > self._base.tolerance and rivalry.seen_empty
        still = still and self._longer.judge(now, drain.standing, drain.least)
        squeezed = not empty and rivalry.squeezed(now, drain.inherent)
        if empty and not drain.first and now - self._base.fell_at > SURE_BASE_S:
            rivalry.emptied(now, drain.inherent)
        foreign = remaining > max(self._target(base), REMAINING_SHARE * base) + self._base.tolerance
        if (foreign or (squeezed and not still and not self.polite)) and not drain.first:
            self._find_foreign(now, drain, still=still, hold=foreign)
            return
        if still:
            base = self._adopt_when_sure(now, drain.least, base)
        else:
            self._longer.clear()
        self._competing = None
        rivalry.clear()
        self._settle(drain, min(self._window, drain.inherent * (base + self._target(base)) / base))

    def _may_leave(self, now: float, drain: Drain, *, empty: bool) -> bool:
        """Whether a drain shows that nobody fills the queue any more."""
        if empty:
            return self._rivalry.may_leave(now, self._window)
        self._rivalry.refused()
        return False

    def _find_foreign(self, now: float, drain: Drain, *, still: bool, hold: bool) -> None:
        """The queue did not go: the path is longer, a newcomer starts, or somebody keeps it full."""
        if still:
            self._settle(drain, self._window * YIELD if self.polite else max(self._window, self._rivalry.before))
            self._adopt_when_sure(now, drain.least, drain.least)
        elif hold and not self.polite and self._rivalry.hold(now, drain.least):
            self._settle(drain, self._window)
        else:
            self._compete(now, drain)

    def _settle(self, drain: Drain, window: float) -> None:
        self.state = "steady"
        self._standing = drain.standing
        self._last_base = self._base.value or 0.0
        self._window = max(self._least, window)

    def _adopt_when_sure(self, now: float, rtt: float, base: float) -> float:
        if not self._longer.sure:
            return base
        self._base.adopt(now, rtt)
        self._longer.clear()
        self._rivalry.clear()
        return rtt

    # Competing

    def _compete(self, now: float, drain: Drain) -> None:
        if self.polite:
            self.state = "yielding"
            self._competing = None
            self._window = max(self._least, self._window * YIELD)
            return
        self.state = "competing"
        self.one_by_one = False
        if self._competing is None:
            self._competing = self._rivalry.compete(now, self._window, drain.standing, self.packet_bytes)
        else:
            self._competing.pause(now, now - drain.started)
        self._window = self._competing.window

    def _on_ack_competing(self, sample: AckSample, competing: CompetingWindow) -> None:
        if self._srtt is None or self._base.value is None:
            return
        if sample.rtt is not None:
            competing.see_delay(sample.rtt - self._base.value)
        test = self.polite
        if sample.lost and competing.on_loss(sample.now, self._srtt, much=self._epoch.loss > TOO_MUCH_LOSS):
            test = self._rivalry.test_due(sample.now)
        elif sample.inflight + sample.acked + sample.lost >= USED_SHARE * competing.window:
            competing.grow(sample.now, self._srtt, sample.acked)
        self._window = min(float(MAX_WINDOW), competing.window)
        if test:
            self._begin_drain(sample.now)

    # Start-up

    def _begin_startup(self, now: float) -> None:
        self._startup = Startup()
        self._epoch = Epoch(now)
        self._idle_epochs = 0
        self.one_by_one = False
        self.state = "startup"

    def _on_ack_starting(self, sample: AckSample) -> None:
        full = self._startup.queue_shows(sample, self._base.value)
        if sample.inflight + sample.acked + sample.lost >= self._window / 2 and not self._startup.suspects:
            self._window = min(float(MAX_WINDOW), self._window + sample.acked)
        if full:
            self._standing = self._startup.least
            self._end_startup(sample.now)

    def _end_startup(self, now: float) -> None:
        """Drain at once. The queue seen is a round trip old, and the window has grown since: the rate tells more.

        A rate sample is a whole round trip's, of which the first ones were mostly waiting; so what arrived since the queue stands
        counts as well.
        """
        startup, base = self._startup, self._base.value or self._standing
        self._begin_drain(now)
        self._shallow = startup.lossy
        if self._drain is not None:
            self._drain.first = True
            self._drain.limit(base * max(STARTUP_HOLDS * startup.fastest, startup.carried))
