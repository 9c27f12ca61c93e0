"""What has been received: which TSNs, which messages are whole, and how much room is left. Pure.

TSNs are kept at full width (they never wrap here). Received TSNs form runs without gaps; the first run ends at the cumulative
TSN. Because the fragments of one message have consecutive TSNs (RFC 9260, section 6.9), a run needs to remember only two
incomplete messages: the one that its first TSNs end (``head``) and the one that its last TSNs begin (``tail``). Every arriving
chunk therefore costs the same, however large the gap is.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from transport.sctp.packet import FIRST_FRAGMENT, HALF_TSN, LAST_FRAGMENT, TSN_MASK, UNORDERED, DataRun, Sack

RECEIVE_WINDOW = 32 << 20  # A gigabit over 100 ms holds 12.5 MB, and as much again behind a loss.
MAX_AHEAD = 0xFFFF  # A SACK can only name what lies this far beyond the cumulative TSN.
MAX_RUNS = 2048  # A window of 11,000 packets with 5 % lost has 550 gaps; more are dropped as the network would.
MAX_DUPLICATES = 32  # Reported per SACK; they tell the sender that a retransmission was in vain.
COST_SLACK = 4  # Peers do not know of CHUNK_COST: a quarter more than was advertised is taken.
CHUNK_COST = 160  # What Python keeps for a chunk besides its bytes, so that tiny chunks cannot fill the memory.

_START = attrgetter("start")
_ENDS = bytes(bool(flags & (FIRST_FRAGMENT | LAST_FRAGMENT)) for flags in range(256))  # To translate flags by.


class SctpMessage(NamedTuple):
    """A whole message."""

    stream: int
    protocol: int
    data: bytes


@dataclass(slots=True)
class _Fragments:
    """Consecutive fragments of one message that is not whole."""

    stream: int
    sequence: int
    protocol: int
    unordered: bool
    parts: list[bytes]
    size: int


@dataclass(slots=True)
class _Run:
    """TSNs without a gap. ``head`` belongs to a message that began before the run, ``tail`` to one that ends after it.

    While ``open_head`` the run is nothing but the middle of one message.
    """

    start: int
    end: int
    head: _Fragments | None = None
    open_head: bool = False
    tail: _Fragments | None = None


@dataclass(slots=True)
class _Stream:
    """Order within one stream: the next sequence number, and whole messages that came before their turn."""

    next: int = 0
    waiting: dict[int, SctpMessage] = field(default_factory=dict)


class ReceiveBook:
    """The receiving half of an association.

    Attributes:
        ready: whole messages in the order of delivery; the caller takes them out.
        held: bytes of what is not delivered yet, with what keeping it costs.
        duplicates: chunks that had come before, since the start.
        dropped: chunks refused for lack of room, since the start.
        fault: why the association must end; empty while the peer keeps the rules.
    """

    def __init__(self, cumulative: int, max_message: int, window: int = RECEIVE_WINDOW) -> None:
        """Begin after TSN ``cumulative``; a message longer than ``max_message`` bytes is a fault."""
        self._runs = [_Run(cumulative, cumulative)]
        self._streams: dict[int, _Stream] = {}
        self._doubles: list[int] = []
        self._told_runs = 1
        self._max_message = max_message
        self._window = window
        self._most = window + window // COST_SLACK
        self.ready: list[SctpMessage] = []
        self.held = 0
        self.duplicates = 0
        self.dropped = 0
        self.fault = ""

    @property
    def cumulative(self) -> int:
        """The last TSN before the first gap, at full width."""
        return self._runs[0].end

    @property
    def gapless(self) -> bool:
        """Whether nothing is missing so far as can be seen, and nothing came twice."""
        return len(self._runs) == 1 and not self._doubles

    @property
    def gaps(self) -> bool:
        """Whether something is missing."""
        return len(self._runs) > 1

    @property
    def changed(self) -> bool:
        """Whether a gap has opened or closed or something came twice since the last acknowledgement."""
        return len(self._runs) != self._told_runs or bool(self._doubles)

    @property
    def window(self) -> int:
        """Bytes that there is room for."""
        return max(0, self._window - self.held)

    def sack(self, max_gaps: int, window: int = RECEIVE_WINDOW) -> Sack:
        """Say what has been received, naming at most ``max_gaps`` ranges; duplicates are told once.

        Args:
            max_gaps: how many ranges and duplicates fit.
            window: the most to advertise, bytes.
        """
        cumulative = self.cumulative
        gaps = tuple((run.start - cumulative, run.end - cumulative) for run in self._runs[1 : max_gaps + 1])
        doubles = tuple(self._doubles[: max(0, max_gaps - len(gaps))])
        self._doubles.clear()
        self._told_runs = len(self._runs)
        return Sack(cumulative & TSN_MASK, min(self.window, window), gaps, doubles)

    def on_data(self, tsn: int, stream: int, sequence: int, protocol: int, flags: int, payload: bytes) -> None:
        """Take a DATA chunk; ``tsn`` as on the wire, 32 bits."""
        runs = self._runs
        front = runs[0]
        ahead = (tsn - front.end) & TSN_MASK
        if ahead == 1:
            self._add(front, stream, sequence, protocol, flags, payload)
            if len(runs) > 1 and runs[1].start == front.end + 1:
                self._join(0)
            if self.held > self._window + self._max_message:
                self.fault = f"{self.held} bytes of messages that cannot be delivered: the peer withholds what is due"
        elif ahead == 0 or ahead >= HALF_TSN:
            self._double(tsn)
        else:
            self._on_later(front.end + ahead, stream, sequence, protocol, flags, payload)

    def on_run(self, run: DataRun) -> None:
        """Take consecutive DATA chunks, as ``on_data`` would take them one by one."""
        ends = run.flags.translate(_ENDS)
        at, count = 0, len(ends)
        while at < count:
            end = ends.find(1, at)
            end = end if end >= 0 else count
            if end == at:
                end = at + 1
                self._on_chunks(run, at, end)
            elif not self._on_middle(run, at, end):
                self._on_chunks(run, at, at + 1)  # Behind a gap it begins a run, whose middle the others then are.
                if not self._on_middle(run, at + 1, end):
                    self._on_chunks(run, at + 1, end)
            at = end

    def on_forward(self, point: int, streams: list[tuple[int, int]]) -> None:
        """The peer gives up everything up to ``point`` (32 bits) that has not come (RFC 3758, section 3.6)."""
        front = self._runs[0]
        ahead = (point - front.end) & TSN_MASK
        if ahead == 0 or ahead >= HALF_TSN:
            return
        target = front.end + ahead
        self._forget(front.tail)
        front.tail = None
        front.end = target
        while len(self._runs) > 1 and self._runs[1].start <= target + 1:
            run = self._runs.pop(1)
            self._forget(run.head)
            if run.end >= target:
                front.end, front.tail = run.end, run.tail
            else:
                self._forget(run.tail)
        for number, sequence in streams:
            self._skip(number, sequence)

    def reset(self, streams: list[int]) -> None:
        """The peer begins these streams anew (RFC 6525)."""
        for number in streams:
            stream = self._streams.pop(number, None)
            for message in stream.waiting.values() if stream is not None else ():
                self.held -= len(message.data) + CHUNK_COST

    # Runs

    def _on_later(self, tsn: int, stream: int, sequence: int, protocol: int, flags: int, payload: bytes) -> None:
        runs = self._runs
        last = runs[-1]
        index = len(runs) - 1 if tsn > last.end else bisect_right(runs, tsn, key=_START) - 1
        run = runs[index]
        if tsn <= run.end:
            self._double(tsn & TSN_MASK)
            return
        new = tsn != run.end + 1 or index == 0
        too_far = tsn - runs[0].end > MAX_AHEAD or self.held + len(payload) > self._most
        if too_far or (new and len(runs) >= MAX_RUNS):
            self.dropped += 1
            return
        if new:
            index += 1
            run = _Run(tsn, tsn - 1)
            runs.insert(index, run)
        self._add(run, stream, sequence, protocol, flags, payload)
        if index + 1 < len(runs) and runs[index + 1].start == tsn + 1:
            self._join(index)

    def _add(self, run: _Run, stream: int, sequence: int, protocol: int, flags: int, payload: bytes) -> None:
        """Put a chunk at the end of a run."""
        run.end += 1
        empty = run.start == run.end
        if flags & FIRST_FRAGMENT:
            self._close_off(run)
            if flags & LAST_FRAGMENT:
                self._whole(stream, sequence, bool(flags & UNORDERED), SctpMessage(stream, protocol, payload), held=0)
                return
            run.tail = _Fragments(stream, sequence, protocol, bool(flags & UNORDERED), [payload], len(payload))
            self.held += len(payload) + CHUNK_COST
            return
        message = run.tail
        if message is None and empty:
            run.head = message = _Fragments(stream, sequence, protocol, False, [], 0)
            run.open_head = True
        elif message is None and run.open_head:
            message = run.head
        if message is None or message.stream != stream:
            return  # The rest of a message whose beginning was abandoned.
        message.parts.append(payload)
        message.size += len(payload)
        self.held += len(payload) + CHUNK_COST
        if message.size > self._max_message:
            self.fault = f"an unfinished message of {message.size} bytes: at most {self._max_message} were agreed on"
        if flags & LAST_FRAGMENT:
            self._end_message(run)

    def _on_chunks(self, chunks: DataRun, begin: int, end: int) -> None:
        tsn, stream, sequence, protocol, flags, payloads = chunks
        for at in range(begin, end):
            self.on_data((tsn + at) & TSN_MASK, stream, sequence, protocol, flags[at], payloads[at])

    def _on_middle(self, chunks: DataRun, begin: int, end: int) -> bool:
        """Take the middle of a message at the end of what has come, if nothing about it needs a look at single chunks."""
        if begin == end:
            return True
        run, payloads = self._runs[-1], chunks.payloads[begin:end]
        count, size = len(payloads), sum(map(len, payloads))
        message = run.head if run.tail is None and run.open_head else run.tail
        held = self.held + size + CHUNK_COST * count
        if (
            message is None
            or message.stream != chunks.stream
            or (chunks.tsn + begin) & TSN_MASK != (run.end + 1) & TSN_MASK
            or run.end + count - self._runs[0].end > MAX_AHEAD
            or held > self._window
            or message.size + size > self._max_message
        ):
            return False
        run.end += count
        message.parts += payloads
        message.size += size
        self.held = held
        return True

    def _end_message(self, run: _Run) -> None:
        if run.tail is not None:
            tail, run.tail = run.tail, None
            self._finish(tail)
        else:
            run.open_head = False

    def _close_off(self, run: _Run) -> None:
        """A new message begins: what was not finished before it never will be."""
        if run.tail is not None:
            self._forget(run.tail)
            run.tail = None
        elif run.open_head:
            self._forget(run.head)
            run.head, run.open_head = None, False

    def _join(self, index: int) -> None:
        """Run ``index`` now reaches the next one: make them one."""
        left, right = self._runs[index], self._runs.pop(index + 1)
        left.end = right.end
        if right.head is None:
            self._close_off(left)
        elif left.tail is not None or left.open_head:
            whole = left.tail or left.head
            assert whole is not None
            if whole.stream != right.head.stream:
                self._forget(right.head)
                self._close_off(left)
            else:
                whole.parts += right.head.parts
                whole.size += right.head.size
                if whole.size > self._max_message:
                    self.fault = f"a message of {whole.size} bytes: at most {self._max_message} were agreed on"
                if not right.open_head:
                    self._end_message(left)
        else:
            self._forget(right.head)
        if right.tail is not None:
            left.tail = right.tail

    def _double(self, tsn: int) -> None:
        self.duplicates += 1
        if len(self._doubles) < MAX_DUPLICATES:
            self._doubles.append(tsn)

    def _forget(self, fragments: _Fragments | None) -> None:
        if fragments is not None:
            self.held -= fragments.size + CHUNK_COST * len(fragments.parts)

    # Messages

    def _finish(self, fragments: _Fragments) -> None:
        held = fragments.size + CHUNK_COST * len(fragments.parts)
        message = SctpMessage(fragments.stream, fragments.protocol, b"".join(fragments.parts))
        self._whole(fragments.stream, fragments.sequence, fragments.unordered, message, held)

    def _whole(self, number: int, sequence: int, unordered: bool, message: SctpMessage, held: int) -> None:
        """A message is whole: deliver it, or let it wait for its turn."""
        self.held -= held
        if unordered:
            self.ready.append(message)
            return
        stream = self._streams.get(number)
        if stream is None:
            stream = self._streams[number] = _Stream()
        if sequence != stream.next:
            if (sequence - stream.next) & 0xFFFF < 0x8000 and sequence not in stream.waiting:
                stream.waiting[sequence] = message
                self.held += len(message.data) + CHUNK_COST
            return
        self.ready.append(message)
        stream.next = (sequence + 1) & 0xFFFF
        if stream.waiting:
            self._release(stream)

    def _release(self, stream: _Stream) -> None:
        while (message := stream.waiting.pop(stream.next, None)) is not None:
            self.held -= len(message.data) + CHUNK_COST
            self.ready.append(message)
            stream.next = (stream.next + 1) & 0xFFFF

    def _skip(self, number: int, sequence: int) -> None:
        """Messages up to ``sequence`` that have not come never will; those that have are delivered."""
        stream = self._streams.setdefault(number, _Stream())
        if (sequence - stream.next) & 0xFFFF >= 0x8000:
            return
        last = (sequence + 1) & 0xFFFF
        for passed in sorted(stream.waiting, key=lambda due: (due - stream.next) & 0xFFFF):
            if (passed - stream.next) & 0xFFFF >= (last - stream.next) & 0xFFFF:
                break
            message = stream.waiting.pop(passed)
            self.held -= len(message.data) + CHUNK_COST
            self.ready.append(message)
        stream.next = last
        self._release(stream)
