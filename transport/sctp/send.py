"""What has been sent: fragments on their way, what the peer acknowledged, what is lost and goes again. Pure.

TSNs are kept at full width (they never wrap here). A fragment's TSN is given when it is first sent. What is lost is
``Rack``'s to find. When acknowledgements stop, one probe is sent (RFC 8985, section 7), then everything on its way is held to
be lost (RFC 9260, section 6.3.3).
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Hashable, Iterable, MutableMapping
from operator import attrgetter

from transport.sctp.congestion.control import AckSample
from transport.sctp.packet import (
    ACK_AT_ONCE,
    FIRST_FRAGMENT,
    HALF_TSN,
    LAST_FRAGMENT,
    TSN_MASK,
    TSN_MODULO,
    UNORDERED,
    Sack,
)
from transport.sctp.rack import Rack
from transport.sctp.record import ABANDONED, ACKED, INFLIGHT, LOST, Departure, Flight, Record, Sent
from transport.sctp.rtt import RoundTrips
from transport.sctp.schedule import ScheduledMessage, StreamSchedule

MAX_COPIED = 64  # Urgent packets sent twice whose copies may still be told as duplicates: no sign of reordering.
MAX_TIMEOUT_S = 2.0  # A line that comes back after a cut is noticed this soon; a packet in two seconds burdens nobody.
LEAST_RTT_S = 1e-6  # A clock that has not moved meanwhile says nothing finer.
COMPACT_AT = 4096  # Fragments acknowledged before the list is cut; a bound on what is kept in vain.
_TSN = attrgetter("tsn")


class SendBook:
    """The sending half of an association.

    Attributes:
        inflight: bytes on their way, headers included.
        payload_sent: bytes of messages that have left, sent again or not, since the start.
        retransmitted, lost, timeouts: packets sent again, packets held to be lost, and retransmission timeouts, since the start.
        full_lost: packets of full size lost since the last one of them arrived.
        released: bytes that have left the queues, per owner; the caller takes them out.
        fault: why the association must end; empty while the peer keeps the rules.
        round_trips: round trip times.
    """

    def __init__(self, first_tsn: int, window: int, sequences: MutableMapping[int, int], *, partial: bool) -> None:
        """Begin.

        Args:
            first_tsn: TSN of the first fragment.
            window: the peer's advertised receive window, bytes.
            sequences: next sequence number per ordered stream; who resets a stream removes its entry.
            partial: the peer knows FORWARD-TSN, so messages may be given up.
        """
        self._schedule = StreamSchedule()
        self._sequences = sequences
        self._partial = partial
        self._current: ScheduledMessage | None = None
        self._sent: list[Sent] = []  # One for each TSN; a flight is there as often as it has fragments.
        self._states = bytearray()  # One for each TSN.
        self._base = first_tsn  # TSN of the first in both.
        self._una = first_tsn  # First TSN that is not acknowledged cumulatively.
        self._next = first_tsn
        self._high = first_tsn - 1  # Highest TSN that is acknowledged in any way.
        self._holes: list[Record] = []  # What is not acknowledged up to _high.
        self._patched = -1  # No fragment beyond this TSN was sent again.
        self._again: deque[int] = deque()
        self._peer_window = window
        self._payload_inflight = 0
        self._payload_max = 1024
        self._headers = 93
        self._full = 1 << 16
        self._delivered = 0
        self._delivered_at = 0.0
        self._first_sent_at = 0.0
        self._limited_until = 0
        self._round_end = 0
        self._rack = Rack()
        self._copied: deque[int] = deque(maxlen=MAX_COPIED)
        self._progress_at = 0.0
        self._silent = 0
        self._given_up = 0
        self._forward_at = -MAX_TIMEOUT_S
        self.round_trips = RoundTrips()
        self.inflight = 0
        self.payload_sent = 0
        self.retransmitted = 0
        self.lost = 0
        self.timeouts = 0
        self.full_lost = 0
        self.released: dict[Hashable, int] = {}
        self.fault = ""

    # What to send

    @property
    def next_tsn(self) -> int:
        """TSN that the next new fragment will have, at full width."""
        return self._next

    @property
    def outstanding(self) -> bool:
        """Whether anything sent is not acknowledged cumulatively."""
        return self._una != self._next

    @property
    def backlog(self) -> bool:
        """Whether there is anything to send."""
        return bool(self._again) or self._current is not None or bool(self._schedule)

    @property
    def urgent(self) -> bool:
        """Whether something waits that may exceed the pace a little: a message of level 0, or a retransmission."""
        return bool(self._again) or self._schedule.urgent

    @property
    def overtaking(self) -> int:
        """Bytes of a begun message that a waiting message of level 0 comes after; -1 where none of level 0 waits."""
        if not self._schedule.urgent:
            return -1
        return len(self._current.data) - self._current.sent if self._current is not None else 0

    def waits(self, stream: int) -> bool:
        """Whether a stream has messages that are not fully sent once."""
        return self._schedule.waits(stream) or (self._current is not None and self._current.stream == stream)

    def set_size(self, payload: int, headers: int) -> None:
        """Cut later fragments to ``payload`` bytes; each packet has ``headers`` bytes besides."""
        self._payload_max = payload
        self._headers = headers
        self._full = payload + headers
        self.full_lost = 0

    def set_level(self, stream: int, level: int) -> None:
        """See ``StreamSchedule.set_level``."""
        self._schedule.set_level(stream, level)

    def queue(self, message: ScheduledMessage) -> None:
        """Put a message into its stream's queue."""
        self._schedule.add(message)

    def drop(self, stream: int) -> None:
        """Forget the messages of a stream of which nothing was sent yet."""
        for message in self._schedule.drop(stream):
            self._release(message, len(message.data))

    def next(self, now: float) -> Record | None:
        """The fragment to send now, counted as sent; None if there is none or the peer has no room."""
        again = self._again
        if again and not (self._schedule.urgent and self._current is None):
            while again:
                tsn = again.popleft()
                if tsn < self._una:
                    continue
                if self._states[tsn - self._base] == LOST:
                    record = self._record(tsn)
                    self.retransmitted += 1
                    record.ask()
                    record.departure = self._depart(now)
                    record.sends += 1
                    self._states[tsn - self._base] = INFLIGHT
                    self._patched = max(self._patched, tsn)
                    self.inflight += record.size
                    self.payload_sent += record.payload
                    return record
        new = self._next_new(now)
        if new is None and not again and self._current is None and not self._schedule:
            self._limited_until = self._delivered + self.inflight or 1
        return new

    def next_run(self, now: float, room: int) -> list[Sent]:
        """The same as often as ``room`` allows: fragments are added while what they take is below it.

        Neighbours of one message and length that leave for the first time are one flight, what is sent again is not.

        Args:
            room: bytes on the wire, above 0.
        """
        if not self._again and (flight := self._next_flight(now, room)) is not None:
            return [flight]
        run: list[Sent] = []
        while (record := self.next(now)) is not None:
            run.append(record)
            room -= record.size
            if room <= 0 or record.sends == 1 or not self._again or self._schedule.urgent:
                break
        return run

    def _next_flight(self, now: float, room: int) -> Flight | None:
        """The current message's next fragments of full length; None where there are fewer than two."""
        message = self._current or self._begin_message(now)
        if message is None:
            return None
        payload, start, total = self._payload_max, message.sent, len(message.data)
        size = payload + (-payload & 3) + self._headers
        count = min(
            -(-room // size), (total - start) // payload, (self._peer_window - self._payload_inflight) // payload
        )
        if count < 2:
            return None
        flags = bytearray((0 if message.ordered else UNORDERED,)) * count
        flags[0] |= self._begins(message)
        message.sent = start + count * payload
        flags[-1] |= self._ends(message)
        flight = Flight(message, start, payload, flags, self._next, size, self._depart(now))
        self._add(flight, count)
        return flight

    def _begins(self, message: ScheduledMessage) -> int:
        """Flags that the next fragment has if it is the message's first."""
        if message.sent:
            return 0
        message.first_tsn = self._next
        return FIRST_FRAGMENT

    def _ends(self, message: ScheduledMessage) -> int:
        """Flags that the last fragment has if it is the message's last, which is then over."""
        if message.sent < len(message.data):
            return 0
        self._current = None
        self._release(message, message.sent)
        return LAST_FRAGMENT if self._schedule else LAST_FRAGMENT | ACK_AT_ONCE

    def _add(self, sent: Sent, count: int) -> None:
        self._sent += [sent] * count
        self._states += bytes((INFLIGHT,)) * count
        self._next += count
        self._payload_inflight += count * sent.payload
        self.payload_sent += count * sent.payload
        self.inflight += count * sent.size

    def _record(self, tsn: int) -> Record:
        """A fragment's own record, from now on apart from its flight."""
        index = tsn - self._base
        record = self._sent[index] = self._sent[index].fragment(tsn)
        return record

    def repeat(self, record: Record) -> bool:
        """Whether to send a copy of what is on its way; its round trip is ambiguous then (RFC 9260, section 6.3.1, C5)."""
        if record.tsn < self._una or self._states[record.tsn - self._base] != INFLIGHT:
            return False
        record.sends += 1
        self._copied.append(record.tsn & TSN_MASK)
        return True

    def settle_released(self) -> dict[Hashable, int]:
        """Take out how many bytes of whose messages have left the queues since the last call."""
        if self._current is not None:
            self._release(self._current, self._current.sent)
        released, self.released = self.released, {}
        return released

    def _next_new(self, now: float) -> Record | None:
        message = self._current
        if message is None:
            message = self._begin_message(now)
            if message is None:
                return None
        start = message.sent
        size = min(len(message.data) - start, self._payload_max)
        if self._payload_inflight + size > self._peer_window and self._una != self._next:
            return None  # One packet is always allowed: it asks a closed window (RFC 9260, section 6.1 A).
        flags = (0 if message.ordered else UNORDERED) | self._begins(message)
        message.sent = end = start + size
        flags |= self._ends(message)
        wire = size + (-size & 3) + self._headers
        record = Record(message, start, end, flags, self._next, wire, self._depart(now))
        self._add(record, 1)
        return record

    def _begin_message(self, now: float) -> ScheduledMessage | None:
        while (message := self._schedule.take()) is not None:
            if message.expires_at is not None and message.expires_at < now and self._partial:
                self._release(message, len(message.data))
                continue
            if message.ordered:
                sequence = self._sequences.get(message.stream, 0)
                message.sequence = sequence
                self._sequences[message.stream] = (sequence + 1) & 0xFFFF
            self._current = message
            return message
        return None

    def _depart(self, now: float) -> Departure:
        if self.inflight == 0:
            self._first_sent_at = self._delivered_at = now
            if self._silent == 0:
                self._progress_at = now
        limited = self._limited_until > self._delivered
        return Departure(now, self._delivered, self._delivered_at, self._first_sent_at, limited)

    def _release(self, message: ScheduledMessage, upto: int) -> None:
        if message.owner is not None and upto > message.released:
            self.released[message.owner] = self.released.get(message.owner, 0) + upto - message.released
            message.released = upto

    # What the peer acknowledged

    def forward_delay(self, tsn: int, arrived: float) -> float | None:
        """How long the packet with this TSN (32 bits) was on its way, up to a constant; None where that is ambiguous."""
        index = self._una - 1 + ((tsn - self._una + 1 + HALF_TSN) & TSN_MASK) - HALF_TSN - self._base
        if not 0 <= index < len(self._sent) or self._sent[index].sends != 1:
            return None
        return arrived - self._sent[index].departure.at

    def on_sack(self, sack: Sack, now: float, forward: float | None = None) -> AckSample | None:
        """Take an acknowledgement.

        Args:
            forward: see ``AckSample``.
        Returns:
            what it told, or None if it is older than another or breaks the rules (then ``fault`` says how).
        """
        behind = self._una - 1
        cumulative = behind + ((sack.cumulative - behind + HALF_TSN) & TSN_MASK) - HALF_TSN
        if cumulative < behind:
            return None
        gaps = _valid_gaps(sack)
        if cumulative >= self._next or (gaps and cumulative + gaps[-1][1] >= self._next):
            self.fault = f"the peer acknowledges TSN {sack.cumulative} and beyond: that was never sent"
            return None
        acked: list[tuple[Sent, int]] = []
        before = self._delivered
        self._ack_cumulative(cumulative, acked, now)
        if gaps:
            self._ack_gaps(cumulative, gaps, acked)
        self._peer_window = sack.window
        newly = self._delivered - before
        rtt, rate, limited, ended, burst = self._sample(acked, now) if acked else (None, None, False, False, True)
        self._rack.adapt(any(tsn not in self._copied for tsn in sack.duplicates), ended)
        lost = self._find_losses(now) if self._holes else 0
        return AckSample(now, rtt, rate, limited, newly, lost, self.inflight, ended, forward, burst)

    def _ack(self, records: Iterable[Record], acked: list[tuple[Sent, int]]) -> None:
        """Take these one by one; adds what is newly acknowledged to ``acked``, with the last TSN of it, in ascending order."""
        states, base, high, whole = self._states, self._base, self._high, self._full
        for record in records:
            tsn = record.tsn
            state = states[tsn - base]
            if state in (ACKED, ABANDONED):
                continue
            if state == INFLIGHT:
                self.inflight -= record.size
            if record.size >= whole:
                self.full_lost = 0
            if tsn < high and record.sends == 1:
                self._rack.reorders = True  # It was overtaken, not lost.
            states[tsn - base] = ACKED
            self._payload_inflight -= record.payload
            self._delivered += record.size
            acked.append((record, tsn))

    def _ack_neighbours(self, first: int, last: int, acked: list[tuple[Sent, int]]) -> None:
        """The same for all TSNs between these two, which are higher than what was acknowledged: seldom is one not on its way."""
        sent, states, base = self._sent, self._states, self._base
        at, end = first - base, last + 1 - base
        if first <= self._patched or states.count(INFLIGHT, at, end) != end - at:
            self._ack(map(self._record, range(first, last + 1)), acked)
            return
        states[at:end] = bytes((ACKED,)) * (end - at)
        while at < end:
            one = sent[at]
            count = min(one.tsn + one.count - base, end) - at
            size, at = count * one.size, at + count
            self.inflight -= size
            self._payload_inflight -= count * one.payload
            self._delivered += size
            if one.size >= self._full:
                self.full_lost = 0
            acked.append((one, at - 1 + base))

    def _ack_cumulative(self, cumulative: int, acked: list[tuple[Sent, int]], now: float) -> None:
        if cumulative < self._una:
            return
        base, holes = self._base, self._holes
        last = cumulative + 1 - base
        if self._given_up:
            self._given_up -= self._states.count(ABANDONED, self._una - base, last)
        if holes and holes[0].tsn <= cumulative:
            filled = bisect_right(holes, cumulative, key=_TSN)
            self._ack(holes[:filled], acked)
            del holes[:filled]
        if cumulative > self._high:
            self._ack_neighbours(self._high + 1, cumulative, acked)
            self._high = cumulative
        self._una = cumulative + 1
        self._progress_at, self._silent = now, 0
        if last >= COMPACT_AT or last == len(self._sent):
            del self._sent[:last], self._states[:last]
            self._base += last

    def _ack_gaps(self, cumulative: int, gaps: tuple[tuple[int, int], ...], acked: list[tuple[Sent, int]]) -> None:
        starts = [cumulative + first for first, _ in gaps]
        ends = [cumulative + last for _, last in gaps]
        if self._holes:
            left: list[Record] = []
            filled: list[Record] = []
            for record in self._holes:
                index = bisect_right(starts, record.tsn) - 1
                (filled if index >= 0 and record.tsn <= ends[index] else left).append(record)
            self._holes = left
            self._ack(filled, acked)
        if ends[-1] <= self._high:
            return
        begin = self._high + 1
        for index in range(max(0, bisect_right(starts, begin) - 1), len(starts)):
            self._holes += map(self._record, range(begin, starts[index]))
            first, last = max(begin, starts[index]), ends[index]
            if first <= last:
                self._ack_neighbours(first, last, acked)
                begin = last + 1
        self._high = ends[-1]

    def _sample(self, acked: list[tuple[Sent, int]], now: float) -> tuple[float | None, float | None, bool, bool, bool]:
        """Round trip, delivery rate, whether it was limited by the application, and whether a round and a burst ended."""
        self._delivered_at = self._progress_at = now
        self._silent = 0
        latest = max(sent.departure.at for sent, _ in acked)
        best = next(sent.fragment(tsn) for sent, tsn in reversed(acked) if sent.departure.at == latest)
        left = best.departure
        rtt = max(now - left.at, LEAST_RTT_S) if best.sends == 1 else None
        if rtt is not None:
            self.round_trips.add(rtt, now)
        smallest = self.round_trips.smallest or 0.0
        self._rack.arrived(best, smallest, now)
        interval = max(now - left.delivered_at, left.at - left.first_sent_at)
        rate = (self._delivered - left.delivered) / interval if interval > 0 and interval >= smallest else None
        self._first_sent_at = left.at
        ended = left.delivered >= self._round_end
        if ended:
            self._round_end = self._delivered
        return rtt, rate, left.app_limited, ended, bool(best.flags & ACK_AT_ONCE)

    # What is lost

    def _find_losses(self, now: float) -> int:
        """Hold to be lost what ``Rack`` says; returns how many bytes."""
        states, base = self._states, self._base
        holes = [record for record in self._holes if states[record.tsn - base] == INFLIGHT]
        found = self._rack.lost(holes, self._high, self.round_trips, now)
        # One that is lost may end its message, and with it those that come after.
        return sum(self._lose(record, now) for record in found if states[record.tsn - base] == INFLIGHT)

    def _lose(self, record: Record, now: float) -> int:
        self.inflight -= record.size
        self.lost += 1
        if record.size >= self._full:
            self.full_lost += 1
        message = record.message
        late = message.expires_at is not None and message.expires_at < now
        often = message.max_retransmits is not None and record.sends > message.max_retransmits
        self._states[record.tsn - self._base] = LOST
        if self._partial and (late or often):
            self._abandon(message)
        else:
            self._again.append(record.tsn)
        return record.size

    def _abandon(self, message: ScheduledMessage) -> None:
        """Give up a message with all its fragments (RFC 3758, section 3.5 A3)."""
        message.abandoned = True
        states, base = self._states, self._base
        for index in range(max(message.first_tsn, self._una) - base, len(states)):
            sent = self._sent[index]
            if sent.message is not message:
                break
            if states[index] in (ACKED, ABANDONED):
                continue
            if states[index] == INFLIGHT:
                self.inflight -= sent.size
            states[index] = ABANDONED
            self._payload_inflight -= sent.payload
            self._given_up += 1
        self._release(message, len(message.data))
        if self._current is message:
            self._current = None

    def forward(self, now: float) -> tuple[int, list[tuple[int, int]]] | None:
        """What a FORWARD-TSN must say now: the point and the last skipped number of each ordered stream; None for nothing.

        It is repeated once a round trip until the peer has moved on (RFC 3758, section 3.5).
        """
        if not self._given_up:
            return None
        point, streams = self._una - 1, {}
        for tsn in range(self._una, self._next):
            state = self._states[tsn - self._base]
            if state == ABANDONED:
                point = tsn
                message = self._sent[tsn - self._base].message
                if message.ordered:
                    streams[message.stream] = message.sequence
            elif state != ACKED:
                break
        if point < self._una or now - self._forward_at < (self.round_trips.smoothed or 0.0):
            return None
        self._forward_at = now
        return point % TSN_MODULO, list(streams.items())

    # When nothing comes

    @property
    def deadline(self) -> float | None:
        """When ``on_timer`` is to be called next; None while nothing is outstanding."""
        if self._una == self._next:
            return None
        due = self._progress_at + self._patience
        look = self._rack.look_at
        return due if look is None else min(due, look)

    @property
    def _patience(self) -> float:
        """Seconds without progress until something is done, doubled each time."""
        backoff: int = 1 << min(self._silent, 6)
        return min(self.round_trips.timeout * backoff, MAX_TIMEOUT_S)

    def on_timer(self, now: float) -> tuple[int, bool]:
        """The deadline has passed.

        Returns:
            bytes newly held to be lost, and whether it was a retransmission timeout.
        """
        lost = 0
        if self._rack.look_at is not None and now >= self._rack.look_at:
            lost = self._find_losses(now)
        if self._una == self._next or now < self._progress_at + self._patience:
            return lost, False
        self._progress_at = now
        self._silent += 1
        if self._silent == 1 and self.inflight:
            self._probe()
            return lost, False
        self.timeouts += 1
        return lost + self._time_out(now), True

    def on_path_change(self, now: float) -> None:
        """Packets take another way: round trips are learnt anew and what is on its way is held to be lost."""
        self.round_trips = RoundTrips()
        self._silent = 0
        self._progress_at = now
        self._rack.restart(now)
        self._time_out(now)

    def _probe(self) -> None:
        """Send the last fragment on its way once more: its acknowledgement shows what else is missing."""
        index = self._states.rfind(INFLIGHT, self._una - self._base)
        if index >= 0:
            self._states[index] = LOST
            self.inflight -= self._sent[index].size
            self._again.appendleft(self._base + index)

    def _time_out(self, now: float) -> int:
        lost = 0
        states, base = self._states, self._base
        first = self._una - base
        if first < len(states) and states[first] == ACKED:
            self._take_back()
        for index in range(first, len(states)):
            if states[index] == INFLIGHT:
                lost += self._lose(self._record(base + index), now)
        self._again = deque(base + index for index in range(first, len(states)) if states[index] == LOST)
        return lost

    def _take_back(self) -> None:
        """The peer dropped what it had acknowledged beyond a gap, as it may (RFC 9260, section 6.2)."""
        for index in range(self._una - self._base, len(self._states)):
            if self._states[index] == ACKED:
                self._states[index] = LOST
                self._payload_inflight += self._sent[index].payload
        self._high = self._una - 1
        self._holes = []


def _valid_gaps(sack: Sack) -> tuple[tuple[int, int], ...]:
    """The gaps if they ascend without touching; none where they do not, as if they were lost on the way."""
    last = 0
    for first, end in sack.gaps:
        if first <= last + 1 or end < first:
            return ()
        last = end
    return sack.gaps
