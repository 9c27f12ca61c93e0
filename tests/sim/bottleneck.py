"""Packets of several flows through one bottleneck, in virtual time: what a congestion controller meets on a home line.

The line is a drop-tail queue of bytes with a rate, a delay, and, by the seed, random loss, jitter and reordering. Each sender
paces, keeps to the window, takes delivery-rate samples and finds losses as the data path does (draft-ietf-ccwg-bbr, section 4.1;
RFC 9002, section 6.1); every transmission has its own number, so a retransmission is simply one more packet. Receivers
acknowledge once a batch of arrivals, and senders wake late now and then, because both are Python programs on a shared machine.
"""

import heapq
import random
from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from transport.sctp.congestion.control import AckSample, Controller

PACKET_BYTES = 1448
REORDERING_PACKETS = 3  # RFC 9002, section 6.1.1
SEND_QUANTUM_S = 0.001  # The data path wakes about every millisecond and sends what has become due.
MAX_BURST_S = 0.012  # What a late sender may make up for.
LATE_MOST_S = 0.004  # What a busy machine adds to a timer now and then.
TIMEOUT_S = 0.3
FIRST_TIMEOUT_S = 1.0  # Before the first round trip is known (RFC 6298, section 2.1).


@dataclass
class Line:
    """A bottleneck.

    Attributes:
        rate: bytes a second; `changes` are (second, rate) and hold for packets that enter the queue from then on.
        rtt: propagation there and back; `rtt_changes` likewise.
        buffer: bytes that the queue holds.
        loss, reordering: chance a packet; a reordered one comes `late` seconds later.
        loss_before: what is lost never enters the queue, as on a bad wireless link in front of it.
        jitter: greatest delay added to a packet, in seconds, without changing the order.
        stalls: (from, to): acknowledgements that would arrive in this time arrive at its end.
        measure_from: from when on `waited` (seconds in the queue, summed) and `carried` (packets) count.
    """

    rate: float
    rtt: float
    buffer: float
    loss: float = 0.0
    loss_before: bool = False
    jitter: float = 0.0
    reordering: float = 0.0
    late: float = 0.003
    changes: tuple[tuple[float, float], ...] = ()
    rtt_changes: tuple[tuple[float, float], ...] = ()
    stalls: tuple[tuple[float, float], ...] = ()
    measure_from: float = 0.0
    waited: float = 0.0
    carried: int = 0
    _free_at: float = 0.0
    _last_arrival: float = 0.0

    def at(self, now: float) -> None:
        """Take over the changes that are due."""
        while self.changes and self.changes[0][0] <= now:
            self.rate, self.changes = self.changes[0][1], self.changes[1:]
        while self.rtt_changes and self.rtt_changes[0][0] <= now:
            self.rtt, self.rtt_changes = self.rtt_changes[0][1], self.rtt_changes[1:]

    def carry(self, now: float, size: int, chance: random.Random) -> float | None:
        """When a packet that is sent now arrives, or None where it is lost."""
        if self.loss_before and chance.random() < self.loss:
            return None
        backlog = max(0.0, self._free_at - now) * self.rate
        if backlog + size > self.buffer:
            return None
        if now >= self.measure_from:
            self.waited += max(0.0, self._free_at - now)
            self.carried += 1
        self._free_at = max(now, self._free_at) + size / self.rate
        if self.loss and not self.loss_before and chance.random() < self.loss:
            return None
        arrival = self._free_at + self.rtt / 2
        if self.jitter:
            arrival = max(self._last_arrival, arrival + chance.random() * self.jitter)
            self._last_arrival = arrival
        if self.reordering and chance.random() < self.reordering:
            arrival += self.late
        return arrival

    def acknowledgement_at(self, now: float) -> float:
        """When an acknowledgement that is sent now reaches the sender."""
        arrival = now + self.rtt / 2
        for start, end in self.stalls:
            if start <= arrival < end:
                return end
        return arrival


@dataclass(slots=True)
class Sent:
    """A packet on its way, with the state that a delivery-rate sample needs."""

    at: float
    size: int
    delivered: int
    delivered_at: float
    first_sent_at: float
    app_limited: bool


@dataclass
class Flow:
    """A sender and its receiver.

    Attributes:
        late_chance: of a wake-up to be late.
        batch: shortest and longest time that a receiver collects arrivals before it acknowledges.
        on_time: what to do at a moment.
        supply: bytes that the application has handed over until a moment; None is without end.
        delivered_log: (moment, bytes delivered in all) at each acknowledgement.
        rtt_log: (moment, round trip) likewise.
    """

    controller: Controller
    start: float = 0.0
    stop: float = float("inf")
    supply: Callable[[float], float] | None = None
    late_chance: float = 0.01
    packet: int = PACKET_BYTES
    batch: tuple[float, float] = (0.001, 0.005)
    delivered: int = 0
    lost: int = 0
    sent: int = 0
    inflight: int = 0
    delivered_log: list[tuple[float, int]] = field(default_factory=list)
    rtt_log: list[tuple[float, float]] = field(default_factory=list)
    packets: dict[int, Sent] = field(default_factory=dict)
    on_time: dict[float, Callable[[], None]] = field(default_factory=dict)
    _limited_until: int = 0
    _next: int = 0
    _highest: int = -1
    _round_end: int = 0
    _delivered_at: float = 0.0
    _first_sent_at: float = 0.0
    _tokens: float = 0.0
    _last: float = 0.0
    _progress: float = 0.0
    _srtt: float = 0.0
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    acknowledging: bool = False

    def begin(self) -> None:
        """Nothing has been saved up before the start."""
        self._last = self.start

    def pump(self, now: float, line: Line, chance: random.Random) -> None:
        """Send what pacing, window and supply allow."""
        for moment in [moment for moment in self.on_time if moment <= now]:
            self.on_time.pop(moment)()
        rate = self.controller.pacing_rate
        self._tokens = min(self._tokens + rate * (now - self._last), max(rate * MAX_BURST_S, 4.0 * self.packet))
        self._last = now
        room = self.controller.window - self.inflight
        left = float("inf") if self.supply is None else self.supply(now) - (self.delivered + self.inflight)
        if self.inflight and now - self._progress > self._timeout:
            self._time_out(now)
            room = self.controller.window
        while self._tokens > 0 and room > 0 and left > 0:
            self._send(now, line, chance)
            self._tokens -= self.packet
            room -= self.packet
            left -= self.packet
        if left <= 0 and room > 0 and self._tokens > 0:
            self._limited_until = self.delivered + self.inflight or 1

    @property
    def _timeout(self) -> float:
        return max(TIMEOUT_S, 3 * self._srtt) if self._srtt else FIRST_TIMEOUT_S

    def _time_out(self, now: float) -> None:
        for packet in self.packets.values():
            self.lost += packet.size
        self.packets.clear()
        self.inflight = 0
        self._progress = now
        self.controller.on_timeout(now)

    def _send(self, now: float, line: Line, chance: random.Random) -> None:
        if not self.inflight:
            if self.sent and now - self._progress > 0.1:
                self.controller.on_restart(now)
            self._delivered_at = self._first_sent_at = self._progress = now
        number, self._next = self._next, self._next + 1
        limited = self._limited_until > self.delivered
        self.packets[number] = Sent(now, self.packet, self.delivered, self._delivered_at, self._first_sent_at, limited)
        self.inflight += self.packet
        self.sent += self.packet
        arrival = line.carry(now, self.packet, chance)
        if arrival is not None:
            if self.arrivals and arrival < self.arrivals[-1][0]:
                insort(self.arrivals, (arrival, number))
            else:
                self.arrivals.append((arrival, number))

    def take_arrived(self, now: float) -> list[int]:
        """Numbers of the packets that have come to the receiver."""
        count = 0
        for arrival, _ in self.arrivals:
            if arrival > now:
                break
            count += 1
        numbers = [number for _, number in self.arrivals[:count]]
        del self.arrivals[:count]
        return numbers

    def acknowledge(self, now: float, numbers: Iterable[int]) -> None:
        """What the sender does with one selective acknowledgement."""
        acked, newest_number, newest = 0, -1, None
        for number in numbers:
            packet = self.packets.pop(number, None)
            if packet is None:
                continue
            acked += packet.size
            if number > newest_number:
                newest_number, newest = number, packet
        if newest is None:
            return
        self.inflight -= acked
        self.delivered += acked
        self._delivered_at = self._progress = now
        self._highest = max(self._highest, newest_number)
        rtt = now - newest.at
        self._srtt = rtt if not self._srtt else 0.875 * self._srtt + 0.125 * rtt
        interval = max(now - newest.delivered_at, newest.at - newest.first_sent_at, 1e-6)
        rate = (self.delivered - newest.delivered) / interval
        self._first_sent_at = newest.at
        lost = self._find_losses(now)
        ended = newest_number >= self._round_end
        if ended:
            self._round_end = self._next
        self.delivered_log.append((now, self.delivered))
        self.rtt_log.append((now, rtt))
        self.controller.on_ack(AckSample(now, rtt, rate, newest.app_limited, acked, lost, self.inflight, ended))

    def _find_losses(self, now: float) -> int:
        gone = []
        for number, packet in self.packets.items():
            if number > self._highest - REORDERING_PACKETS:
                break
            if now - packet.at > self._srtt * 0.9:
                gone.append(number)
        lost = sum(self.packets.pop(number).size for number in gone)
        self.inflight -= lost
        self.lost += lost
        return lost

    def rate_between(self, start: float, end: float) -> float:
        """Bytes a second delivered between two moments."""
        return (self._delivered_until(end) - self._delivered_until(start)) / (end - start)

    def _delivered_until(self, moment: float) -> int:
        low, high = 0, len(self.delivered_log)
        while low < high:
            middle = (low + high) // 2
            if self.delivered_log[middle][0] <= moment:
                low = middle + 1
            else:
                high = middle
        return self.delivered_log[low - 1][1] if low else 0

    def mean_rtt(self, start: float, end: float) -> float:
        """Mean of the round trips seen between two moments, each weighted with the time until the next."""
        total = 0.0
        weight = 0.0
        for (now, rtt), (following, _) in zip(self.rtt_log, self.rtt_log[1:], strict=False):
            if start <= now < end:
                total += rtt * (following - now)
                weight += following - now
        return total / weight if weight else float("nan")


@dataclass
class Simulation:
    """Flows over a line, one event after the other: a sender wakes, a receiver acknowledges, an acknowledgement arrives."""

    line: Line
    flows: list[Flow]
    chance: random.Random
    _events: list[tuple[float, int, Callable[[float], None]]] = field(default_factory=list)
    _count: int = 0

    def at(self, moment: float, act: Callable[[float], None]) -> None:
        """Let something happen."""
        self._count += 1
        heapq.heappush(self._events, (moment, self._count, act))

    def run(self, seconds: float) -> None:
        """Until a moment."""
        for flow in self.flows:
            flow.begin()
            self.at(flow.start, partial(self._wake, flow))
        while self._events and self._events[0][0] <= seconds:
            now, _, act = heapq.heappop(self._events)
            self.line.at(now)
            act(now)

    def _wake(self, flow: Flow, now: float) -> None:
        late = self.chance.random() * LATE_MOST_S if self.chance.random() < flow.late_chance else 0.0
        self.at(now + SEND_QUANTUM_S + late, partial(self._wake, flow))
        self._send(flow, now)

    def _send(self, flow: Flow, now: float) -> None:
        if now < flow.stop:
            flow.pump(now, self.line, self.chance)
        self._await_arrivals(flow, now)

    def _await_arrivals(self, flow: Flow, now: float) -> None:
        if not flow.acknowledging and flow.arrivals:
            flow.acknowledging = True
            first = max(now, flow.arrivals[0][0])
            self.at(first + self.chance.uniform(*flow.batch), partial(self._acknowledge, flow))

    def _acknowledge(self, flow: Flow, now: float) -> None:
        flow.acknowledging = False
        numbers = flow.take_arrived(now)
        if numbers:
            self.at(self.line.acknowledgement_at(now), partial(self._learn, flow, numbers))
        self._await_arrivals(flow, now)

    def _learn(self, flow: Flow, numbers: list[int], now: float) -> None:
        flow.acknowledge(now, numbers)
        self._send(flow, now)


def run(line: Line, flows: list[Flow], seconds: float, seed: int = 1) -> None:
    """Let the flows send over the line."""
    Simulation(line, flows, random.Random(seed)).run(seconds)


class Cubic:
    """TCP CUBIC as kernels run it (RFC 9438): slow start, C = 0.4, a decrease to 0.7, one reaction a round trip."""

    def __init__(self, packet: int = PACKET_BYTES) -> None:
        self.packet = packet
        self.packets = 10.0
        self._threshold = float("inf")
        self._greatest = 0.0
        self._epoch: float | None = None
        self._delay = 0.0
        self._recovery_until = 0.0
        self._rtt = 0.1
        self._friendly = 0.0

    pacing_rate = 1e12
    fine = one_by_one = False
    min_rtt: float | None = None
    bandwidth = 0.0

    @property
    def window(self) -> int:
        return int(self.packets * self.packet)

    def on_ack(self, sample: AckSample) -> None:
        if sample.rtt is not None:
            self._rtt = 0.875 * self._rtt + 0.125 * sample.rtt
        if sample.lost and sample.now >= self._recovery_until:
            self._recovery_until = sample.now + self._rtt
            self._greatest = self.packets if self.packets >= self._greatest else self.packets * 0.85
            self.packets = self._threshold = max(2.0, self.packets * 0.7)
            self._epoch = None
            return
        if sample.now < self._recovery_until or sample.app_limited:
            return
        acked = sample.acked / self.packet
        if self.packets < self._threshold:
            self.packets += acked
            return
        self._grow(sample.now, acked)

    def _grow(self, now: float, acked: float) -> None:
        if self._epoch is None:
            self._epoch = now
            self._friendly = self.packets
            self._greatest = max(self._greatest, self.packets)
            self._delay = ((self._greatest - self.packets) / 0.4) ** (1 / 3)
        elapsed = now - self._epoch + self._rtt
        target = min(1.5 * self.packets, self._greatest + 0.4 * (elapsed - self._delay) ** 3)
        self._friendly += 0.53 * acked / self.packets
        target = max(target, self._friendly)
        if target > self.packets:
            self.packets += (target - self.packets) / self.packets * acked

    def on_timeout(self, now: float) -> None:
        self._threshold = max(2.0, self.packets * 0.7)
        self.packets = 2.0
        self._epoch = None

    def on_restart(self, now: float) -> None:
        self._epoch = None

    def on_path_change(self, now: float) -> None:
        self.__init__(self.packet)  # type: ignore[misc]
