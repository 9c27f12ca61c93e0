"""What has been sent: fragments on their way, what the peer acknowledged, what is lost and goes again. Pure.

TSNs are kept at full width (they never wrap here). A fragment's TSN is given when it is first sent. What is lost is
``Rack``'s to find. When acknowledgements stop, one probe is sent (RFC 8985, section 7), then everything on its way is held to
be lost (RFC 9260, section 6.3.3).
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Hashable, MutableMapping
from operator import attrgetter

from transport.sctp.control import AckSample
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
from transport.sctp.record import ABANDONED, ACKED, INFLIGHT, LOST, Departure, Record
from transport.sctp.rtt import RoundTrips
from transport.sctp.schedule import Outgoing, Schedule

MAX_COPIED = 64  # Urgent packets sent twice whose copies may still be told as duplicates: no sign of reordering.
MAX_TIMEOUT_S = 2.0  # A line that comes back after a cut is noticed this soon; a packet in two seconds burdens nobody.
LEAST_RTT_S = 1e-6  # A clock that has not moved meanwhile says nothing finer.
COMPACT_AT = 4096  # Records acknowledged before the list is cut; a bound on what is kept in vain.
_LEFT_AT, _START, _END = attrgetter("departure.at"), attrgetter("start"), attrgetter("end")


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
        self._schedule = Schedule()
        self._sequences = sequences
        self._partial = partial
        self._current: Outgoing | None = None
        self._records: list[Record] = []
        self._base = first_tsn  # TSN of the first record in the list.
        self._una = first_tsn  # First TSN that is not acknowledged cumulatively.
        self._next = first_tsn
        self._high = first_tsn - 1  # Highest TSN that is acknowledged in any way.
        self._holes: list[int] = []  # TSNs up to _high that are not acknowledged.
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
        """See ``Schedule.set_level``."""
        self._schedule.set_level(stream, level)

    def queue(self, message: Outgoing) -> None:
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
                record = self._records[tsn - self._base]
                if record.state is LOST:
                    self.retransmitted += 1
                    record.flags |= ACK_AT_ONCE
                    record.departure = self._depart(now)
                    record.state = INFLIGHT
                    record.sends += 1
                    self.inflight += record.size
                    self.payload_sent += record.end - record.start
                    return record
        new = self._next_new(now)
        if new is None and not again and self._current is None and not self._schedule:
            self._limited_until = self._delivered + self.inflight or 1
        return new

    def next_run(self, now: float, room: int) -> list[Record]:
        """The same as often as ``room`` allows: fragments are added while what they take is below it.

        New ones follow each other in one message; those that are sent again do not.

        Args:
            room: bytes on the wire, above 0.
        """
        first = self.next(now)
        if first is None:
            return []
        if first.sends > 1:
            return self._next_lost(first, now, room)
        run, message, payload = [first], self._current, self._payload_max
        if message is not first.message or self._again:
            return run
        size = payload + (-payload & 3) + self._headers
        count = min(
            (room - first.size + size - 1) // size,
            (len(message.data) - message.sent - 1) // payload,  # Its last fragment is ``next``'s.
            (self._peer_window - self._payload_inflight) // payload,
        )
        if count < 1:
            return run
        flags, departure, upto = 0 if message.ordered else UNORDERED, first.departure, message.sent + count * payload
        more = [
            Record(message, start, start + payload, flags, tsn, size, departure)
            for tsn, start in enumerate(range(message.sent, upto, payload), self._next)
        ]
        self._records += more
        self._next, message.sent = self._next + count, upto
        self._payload_inflight += count * payload
        self.payload_sent += count * payload
        self.inflight += count * size
        return run + more

    def _next_lost(self, first: Record, now: float, room: int) -> list[Record]:
        run, room = [first], room - first.size
        while room > 0 and self._again and not self._schedule.urgent and (record := self.next(now)) is not None:
            run.append(record)
            room -= record.size
        return run

    def repeat(self, record: Record) -> bool:
        """Whether to send a copy of what is on its way; its round trip is ambiguous then (RFC 9260, section 6.3.1, C5)."""
        if record.state is not INFLIGHT or record.tsn < self._una:
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
        start, total = message.sent, len(message.data)
        size = total - start
        if size > self._payload_max:
            size = self._payload_max
        if self._payload_inflight + size > self._peer_window and self._una != self._next:
            return None  # One packet is always allowed: it asks a closed window (RFC 9260, section 6.1 A).
        end = start + size
        flags = 0 if message.ordered else UNORDERED
        if start == 0:
            flags |= FIRST_FRAGMENT
            message.first_tsn = self._next
        message.sent = end
        if end == total:
            flags |= LAST_FRAGMENT
            self._current = None
            self._release(message, total)
            if not self._schedule:
                flags |= ACK_AT_ONCE
        wire = size + (-size & 3) + self._headers
        record = Record(message, start, end, flags, self._next, wire, self._depart(now))
        self._records.append(record)
        self._next += 1
        self._payload_inflight += size
        self.inflight += wire
        self.payload_sent += size
        return record

    def _begin_message(self, now: float) -> Outgoing | None:
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

    def _release(self, message: Outgoing, upto: int) -> None:
        if message.owner is not None and upto > message.released:
            self.released[message.owner] = self.released.get(message.owner, 0) + upto - message.released
            message.released = upto

    # What the peer acknowledged

    def forward_delay(self, tsn: int, arrived: float) -> float | None:
        """How long the packet with this TSN (32 bits) was on its way, up to a constant; None where that is ambiguous."""
        index = self._una - 1 + ((tsn - self._una + 1 + HALF_TSN) & TSN_MASK) - HALF_TSN - self._base
        if not 0 <= index < len(self._records) or self._records[index].sends != 1:
            return None
        return arrived - self._records[index].departure.at

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
        acked: list[Record] = []
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

    def _ack(self, records: list[Record], acked: list[Record]) -> None:
        """Put what is newly acknowledged into ``acked``, in ascending order of TSN."""
        high, whole = self._high, self._full
        inflight = payload = delivered = 0
        for record in records:
            state, size = record.state, record.size
            if state is INFLIGHT:
                inflight += size
            elif state is not LOST:
                continue
            if size >= whole:
                self.full_lost = 0
            if record.tsn < high and record.sends == 1:
                self._rack.reorders = True  # It was overtaken, not lost.
            record.state = ACKED
            payload += record.end - record.start
            delivered += size
            acked.append(record)
        self.inflight -= inflight
        self._payload_inflight -= payload
        self._delivered += delivered

    def _ack_neighbours(self, records: list[Record], acked: list[Record]) -> None:
        """The same for all between two TSNs that are higher than what was acknowledged: seldom is one not on its way."""
        if [record.state for record in records].count(INFLIGHT) != len(records):
            self._ack(records, acked)
            return
        sizes = [record.size for record in records]
        for record in records:
            record.state = ACKED
        if max(sizes, default=0) >= self._full:
            self.full_lost = 0
        acked += records
        delivered = sum(sizes)
        self.inflight -= delivered
        self._payload_inflight -= sum(map(_END, records)) - sum(map(_START, records))
        self._delivered += delivered

    def _ack_cumulative(self, cumulative: int, acked: list[Record], now: float) -> None:
        if cumulative < self._una:
            return
        records, base, holes = self._records, self._base, self._holes
        last = cumulative + 1 - base
        if self._given_up:
            self._given_up -= sum(record.state is ABANDONED for record in records[self._una - base : last])
        if holes and holes[0] <= cumulative:
            filled = bisect_right(holes, cumulative)
            self._ack([records[tsn - base] for tsn in holes[:filled]], acked)
            del holes[:filled]
        if cumulative > self._high:
            self._ack_neighbours(records[self._high + 1 - base : last], acked)
            self._high = cumulative
        self._una = cumulative + 1
        self._progress_at, self._silent = now, 0
        if last >= COMPACT_AT or last == len(records):
            del records[:last]
            self._base += last

    def _ack_gaps(self, cumulative: int, gaps: tuple[tuple[int, int], ...], acked: list[Record]) -> None:
        records, base = self._records, self._base
        starts = [cumulative + first for first, _ in gaps]
        ends = [cumulative + last for _, last in gaps]
        if self._holes:
            left: list[int] = []
            filled: list[Record] = []
            for tsn in self._holes:
                index = bisect_right(starts, tsn) - 1
                if index >= 0 and tsn <= ends[index]:
                    filled.append(records[tsn - base])
                else:
                    left.append(tsn)
            self._holes = left
            self._ack(filled, acked)
        if ends[-1] <= self._high:
            return
        begin = self._high + 1
        for index in range(max(0, bisect_right(starts, begin) - 1), len(starts)):
            self._holes.extend(range(begin, starts[index]))
            self._ack_neighbours(records[max(begin, starts[index]) - base : ends[index] + 1 - base], acked)
            begin = max(begin, ends[index] + 1)
        self._high = ends[-1]

    def _sample(self, acked: list[Record], now: float) -> tuple[float | None, float | None, bool, bool, bool]:
        """Round trip, delivery rate, whether it was limited by the application, and whether a round and a burst ended."""
        self._delivered_at = self._progress_at = now
        self._silent = 0
        latest = max(map(_LEFT_AT, acked))
        best = next(record for record in reversed(acked) if record.departure.at == latest)
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
        records, base = self._records, self._base
        holes = [records[tsn - base] for tsn in self._holes]
        found = self._rack.lost(holes, self._high, self.round_trips, now)
        # One that is lost may end its message, and with it those that come after.
        return sum(self._lose(record, now) for record in found if record.state is INFLIGHT)

    def _lose(self, record: Record, now: float) -> int:
        self.inflight -= record.size
        self.lost += 1
        if record.size >= self._full:
            self.full_lost += 1
        message = record.message
        late = message.expires_at is not None and message.expires_at < now
        often = message.max_retransmits is not None and record.sends > message.max_retransmits
        record.state = LOST
        if self._partial and (late or often):
            self._abandon(message)
        else:
            self._again.append(record.tsn)
        return record.size

    def _abandon(self, message: Outgoing) -> None:
        """Give up a message with all its fragments (RFC 3758, section 3.5 A3)."""
        message.abandoned = True
        for tsn in range(max(message.first_tsn, self._una), self._next):
            record = self._records[tsn - self._base]
            if record.message is not message:
                break
            if record.state is ACKED or record.state is ABANDONED:
                continue
            if record.state is INFLIGHT:
                self.inflight -= record.size
            record.state = ABANDONED
            self._payload_inflight -= record.end - record.start
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
            record = self._records[tsn - self._base]
            if record.state is ABANDONED:
                point = tsn
                if record.message.ordered:
                    streams[record.message.stream] = record.message.sequence
            elif record.state is not ACKED:
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
        for index in range(len(self._records) - 1, self._una - self._base - 1, -1):
            record = self._records[index]
            if record.state is INFLIGHT:
                record.state = LOST
                self.inflight -= record.size
                self._again.appendleft(record.tsn)
                return

    def _time_out(self, now: float) -> int:
        lost = 0
        start = self._una - self._base
        if start < len(self._records) and self._records[start].state is ACKED:
            self._take_back()
        for record in self._records[start:]:
            if record.state is INFLIGHT:
                lost += self._lose(record, now)
        self._again = deque(record.tsn for record in self._records[start:] if record.state is LOST)
        return lost

    def _take_back(self) -> None:
        """The peer dropped what it had acknowledged beyond a gap, as it may (RFC 9260, section 6.2)."""
        for record in self._records[self._una - self._base :]:
            if record.state is ACKED:
                record.state = LOST
                self._payload_inflight += record.end - record.start
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
