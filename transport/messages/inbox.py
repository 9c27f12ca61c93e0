"""What one peer has for this node: reassembly within bounds, each message delivered once. Pure bookkeeping: no socket, no clock.

A message is *partial* (announced, perhaps waiting for memory), *busy* (complete, queued or in the handler) or *settled*. A stream
is in its handler from the moment that it has memory. All three outlive their link: over the next one of the peer's session a
partial message goes on from what is here, and a busy or settled one is neither delivered again nor forgotten. How long a partial
message waits for the next link is the session's affair (``drop_partial``).
"""

import mmap
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from common.errors import MalformedFrameError
from common.peer_memory import MemoryBudget, Ticket
from transport.messages.flow_window import FlowWindow
from transport.messages.framing import Ack, Begin, Cancel, Fail, Frame, Grant, More
from transport.messages.lanes import Lane
from transport.messages.limits import PeerLimits
from transport.messages.outbox import MAX_ID_SPAN
from transport.messages.stream import IncomingStream

MAX_REMEMBERED_FAILURES = 2048  # More than can be open at once, so any message that comes again gets its true answer.
PROGRESS = 1 << 20  # Bytes between two reports to the sender of a stream: 120 a second at 1 Gbit/s.
PROGRESS_PER_WINDOW = 4  # ... and at least four to a window, so that it never runs dry.
MAX_PIECES = 16_384  # Ahead of missing ones, of all messages together: a full window in the shortest frames.
PIECE_COST = 256  # What Python keeps of a piece besides its bytes.
EARLY_SLACK = 8  # Frames of 4 KB cost a sixteenth more than their bytes; an eighth leaves room for short last ones.


@dataclass(eq=False)
class ReceivedMessage:
    """A complete message for the handler."""

    lane: Lane
    id: int
    header: bytes
    payload: memoryview
    eager: bool
    ticket: Ticket | None


@dataclass(eq=False)
class _Partial:
    """A message that is not complete.

    Attributes:
        buffer, stream: where its bytes go; neither while it waits for memory.
        announced: it was, over the present link.
        upto: bytes that the sender may send over the present link.
        received: how many bytes from the first one on are here without a gap.
        ahead: pieces that came before an earlier one, over the present link: begin -> end, and the bytes of a stream.
        told: what the sender last heard to be here.
    """

    lane: Lane
    begin: Begin
    buffer: bytearray | mmap.mmap | None = None
    stream: IncomingStream | None = None
    received: int = 0
    announced: bool = True
    upto: int = 0
    told: int = 0
    ticket: Ticket | None = None
    ahead: dict[int, tuple[int, memoryview | None]] = field(default_factory=dict)

    @property
    def has_memory(self) -> bool:
        """Whether the bytes have a place."""
        return self.buffer is not None or self.stream is not None

    @property
    def owes(self) -> bool:
        """Whether the peer holds up memory. A stream's producer may take its time: it holds up only its window."""
        return self.has_memory and (not self.announced or self.stream is None)

    def empty(self) -> Ticket | None:
        """Let go of the memory at once (ticket and message point at each other) and return what pays for it."""
        ticket, self.ticket, self.buffer = self.ticket, None, None
        return ticket


class MessageInbox:
    """All messages from one peer."""

    def __init__(
        self,
        limits: PeerLimits,
        budget: MemoryBudget,
        deliver: Callable[[ReceivedMessage], None],
        reply: Callable[[Frame], None],
        *,
        peer: str = "",
        open_stream: Callable[[IncomingStream], None] | None = None,
    ) -> None:
        """Take where messages and answers go; answers given while no link is up may be dropped.

        Args:
            deliver: takes complete messages; ``finished`` must follow.
            reply: takes answers.
            peer: the sender's address, for streams.
            open_stream: takes streams at their beginning; ``finished`` must follow. None: they are put together as any other.
        """
        self._limits = limits
        self._budget = budget
        self._deliver = deliver
        self._reply = reply
        self._peer = peer
        self._open_stream = open_stream
        self._session = b""
        self._watermark = 1
        self._settled: set[int] = set()
        self._failed: OrderedDict[int, str] = OrderedDict()
        self._partial: dict[int, _Partial] = {}
        self._busy: dict[int, ReceivedMessage | IncomingStream] = {}
        self._early: dict[int, list[tuple[Lane, More]]] = {}
        self._early_bytes = 0
        self._pieces = 0
        self._window = FlowWindow(limits)
        self._progress = 0

    @property
    def session(self) -> bytes:
        """The peer's session that the ids belong to; empty before the first link."""
        return self._session

    @property
    def progress(self) -> int:
        """Grows with every payload byte received."""
        return self._progress

    @property
    def awaits_bytes(self) -> bool:
        """Whether the peer owes bytes of a message that it announced and that has memory."""
        return any(partial.owes for partial in self._partial.values())

    @property
    def awaits_link(self) -> bool:
        """Whether a message has begun and is not complete."""
        return bool(self._partial)

    def start_link(self, session: bytes, floor: int) -> None:
        """A link to the peer is up: its messages go on, or are forgotten if the peer has restarted."""
        self.end_link()
        if session != self._session:
            self._forget("it has restarted")
            self._session, self._watermark = session, floor
            self._settled.clear()
            self._failed.clear()
            self._busy.clear()
            self._window.clear()
        self.on_floor(floor)

    def end_link(self) -> None:
        """The link is gone: what was announced must be announced again before bytes may come."""
        self._early.clear()
        self._early_bytes = 0
        for partial in self._partial.values():
            partial.announced, partial.upto = False, 0
            self._drop_pieces(partial)

    def drop_partial(self) -> None:
        """Free the memory of messages that are not complete; the sender begins again, where it still can."""
        for partial in self._partial.values():
            if partial.stream is None:
                self._window.leave(partial.lane, partial.begin.total, eager=partial.begin.eager)
        self._forget("no link to it for too long, or it broke the rules")

    def _forget(self, why: str) -> None:
        """Let go of all partial messages; streams stay in their handlers until those have noticed."""
        tickets = []
        for ident, partial in self._partial.items():
            self._drop_pieces(partial)
            if partial.stream is not None:
                partial.stream.break_off(why)
                self._busy[ident] = partial.stream
            tickets.append(partial.empty())
        self._partial.clear()
        self._budget.give_up(*(ticket for ticket in tickets if ticket is not None))

    def on_floor(self, floor: int) -> None:
        """The peer will never again speak of ids below ``floor``."""
        if floor > self._watermark:
            self._watermark = floor
            self._settled = {ident for ident in self._settled if ident >= floor}
        self._advance()

    def on_begin(self, lane: Lane, frame: Begin) -> None:
        """A message is announced, for the first time or again.

        Raises:
            MalformedFrameError: it oversteps the window, or its id is in use or absurd.
        """
        if frame.id >= self._watermark + 2 * MAX_ID_SPAN:
            raise MalformedFrameError(f"the peer announces message {frame.id} out of order")
        partial = self._partial.get(frame.id)
        if partial is not None:
            self._go_on(partial, lane, frame)
        elif self._is_settled(frame.id) or frame.id in self._busy:
            self._repeat(lane, frame)
        else:
            self._check_window(lane, frame)
            self._window.enter(lane, frame.total, eager=frame.eager)
            partial = self._partial[frame.id] = _Partial(lane, frame)
            self._make_room(partial)
            for early in self._take_early(frame.id):
                self.on_more(*early)

    def _go_on(self, partial: _Partial, lane: Lane, frame: Begin) -> None:
        """A partial message is announced over a new link."""
        same = (frame.total, frame.eager, frame.stream) == (
            partial.begin.total,
            partial.begin.eager,
            partial.begin.stream,
        )
        if partial.announced or not frame.again or lane is not partial.lane or not same:
            raise MalformedFrameError(f"the peer announces message {frame.id} out of order")
        partial.announced = True
        if partial.has_memory:
            self._grant(partial)

    def _repeat(self, lane: Lane, frame: Begin) -> None:
        """A message that is complete here is announced again: say what became of it, or later when it is known.

        Without order between frames it may also be the first time: what gave the message up came before it.
        """
        if not frame.again and (lane.ordered or frame.id in self._busy):
            raise MalformedFrameError(f"the peer announces message {frame.id} twice")
        if frame.id not in self._busy:
            self._answer(frame.id)

    def _make_room(self, partial: _Partial) -> None:
        begin = partial.begin
        streamed = begin.stream and self._open_stream is not None
        size = min(begin.total, self._limits.stream_window) if streamed else begin.total
        if begin.eager:
            self._seat(partial, None)
        elif self._budget.fits(size):
            ticket = self._budget.reserve(self, size, lambda ticket: self._seat(partial, ticket))
            if not partial.has_memory:
                partial.ticket = ticket
        else:
            del self._partial[begin.id]
            self._window.leave(partial.lane, begin.total, eager=False)
            self._settle(begin.id, f"{begin.total} bytes are more than this node takes from one peer in one piece")

    def _seat(self, partial: _Partial, ticket: Ticket | None) -> None:
        """There is memory for a message."""
        begin, partial.ticket = partial.begin, ticket
        if begin.stream and self._open_stream is not None:
            stream = IncomingStream(self._peer, partial.lane, begin.id, begin.header, begin.total, self._consumed)
            partial.stream, stream.ticket, partial.ticket = stream, partial.ticket, None
            self._open_stream(stream)
        elif begin.eager:
            partial.buffer = bytearray()  # Made with the first bytes, which mostly are all.
        else:
            # Pages of an anonymous map cost nothing until bytes arrive: an announcement alone takes no memory and no time.
            partial.buffer = mmap.mmap(-1, begin.total) if begin.total else bytearray()
        if begin.eager and not begin.again:
            partial.upto = begin.total
        elif partial.announced and (begin.total or not begin.eager):
            self._grant(partial)
        self._finish_if_whole(partial, None)

    def _grant(self, partial: _Partial) -> None:
        total, stream = partial.begin.total, partial.stream
        partial.upto = total if stream is None else min(total, stream.consumed + self._limits.stream_window)
        partial.told = partial.received
        self._reply(Grant(partial.begin.id, partial.received, partial.upto))

    def on_more(self, lane: Lane, frame: More) -> None:
        """Bytes of a message.

        Raises:
            MalformedFrameError: nobody asked for them, or they are out of order.
        """
        partial = self._partial.get(frame.id)
        if partial is None:
            self._out_of_turn(lane, frame)
            return
        data = memoryview(frame.data)
        self._check_piece(partial, lane, frame.offset, frame.offset + data.nbytes)
        self._progress += data.nbytes
        self._store(partial, frame.offset, data)
        if partial.received == partial.begin.total:
            self._finish_if_whole(partial, data)
        elif partial.begin.stream and partial.stream is None and partial.received - partial.told >= self._step:
            self._grant(partial)  # What is here the sender may forget.

    def _check_piece(self, partial: _Partial, lane: Lane, start: int, end: int) -> None:
        new = start == partial.received or (
            start > partial.received and start not in partial.ahead and not lane.ordered
        )
        if lane is not partial.lane or not new or end > partial.upto or self._pieces >= MAX_PIECES:
            raise MalformedFrameError(
                f"bytes {start}-{end} of message {partial.begin.id} ({partial.begin.total} bytes) are out of turn"
            )

    def _store(self, partial: _Partial, start: int, data: memoryview) -> None:
        """Put a piece in its place; a stream gets it once all before it is there."""
        end, stream = start + data.nbytes, partial.stream
        if stream is None and partial.buffer is not None and data.nbytes < partial.begin.total:
            if not len(partial.buffer):
                partial.buffer = bytearray(partial.begin.total)
            partial.buffer[start:end] = data
        partial.ahead[start] = end, None if stream is None else data
        self._pieces += 1
        while (piece := partial.ahead.pop(partial.received, None)) is not None:
            self._pieces -= 1
            partial.received = piece[0]
            if stream is not None and piece[1] is not None:
                stream.push(piece[1])

    def _drop_pieces(self, partial: _Partial) -> None:
        self._pieces -= len(partial.ahead)
        partial.ahead.clear()

    def _out_of_turn(self, lane: Lane, frame: More) -> None:
        """Bytes of a message that has been answered before its end are thrown away; those of one to be announced wait.

        Only an eager message's bytes may come before its announcement, so the window bounds what waits.
        """
        ident, size = frame.id, len(frame.data) + PIECE_COST
        if ident in self._busy or self._is_settled(ident):
            return
        fits = ident < self._watermark + 2 * MAX_ID_SPAN and self._early_bytes + size <= self._most_early
        if lane.ordered or not fits:
            raise MalformedFrameError(f"bytes of message {ident}, which was not announced")
        self._early.setdefault(ident, []).append((lane, frame))
        self._early_bytes += size

    def _take_early(self, ident: int) -> list[tuple[Lane, More]]:
        early = self._early.pop(ident, [])
        self._early_bytes -= sum(len(frame.data) + PIECE_COST for _, frame in early)
        return early

    @property
    def _most_early(self) -> int:
        limits = self._limits
        a_lane = limits.eager_window + limits.eager_window // EARLY_SLACK + limits.eager_count * PIECE_COST
        return a_lane * sum(not lane.ordered for lane in Lane)

    def on_cancel(self, frame: Cancel) -> None:
        """The peer gives a message up; it is confirmed once this node is done with it, whatever became of it."""
        if frame.id >= self._watermark + 2 * MAX_ID_SPAN:
            raise MalformedFrameError(f"the peer cancels message {frame.id} out of order")
        self._take_early(frame.id)
        partial = self._partial.pop(frame.id, None)
        if partial is not None:
            self._drop_pieces(partial)
        if partial is not None and partial.stream is not None:
            partial.stream.break_off("the sender gave it up")
            self._busy[frame.id] = partial.stream
        if frame.id in self._busy:
            return
        if partial is not None:
            self._window.leave(partial.lane, partial.begin.total, eager=partial.begin.eager)
            ticket = partial.empty()
            if ticket is not None:
                self._budget.give_up(ticket)
        self._settle(frame.id, None)

    def finished(self, delivery: ReceivedMessage | IncomingStream, failure: str | None) -> None:
        """The handler is done with a message: free its memory and tell the peer, if it still is the same session."""
        ident, size, eager = delivery.id, 0, False
        if isinstance(delivery, ReceivedMessage):
            size, eager, delivery.payload = delivery.payload.nbytes, delivery.eager, memoryview(b"")
        else:
            delivery.empty()
            self._leave_early(delivery)
        ticket, delivery.ticket = delivery.ticket, None
        if ticket is not None:
            self._budget.give_up(ticket)
        if self._busy.get(ident) is delivery:
            del self._busy[ident]
            self._window.leave(delivery.lane, size, eager=eager)
            self._settle(ident, failure)

    def _leave_early(self, stream: IncomingStream) -> None:
        """A handler that needs no more of a stream has settled it; what is on its way is thrown away."""
        partial = self._partial.get(stream.id)
        if partial is None or partial.stream is not stream:
            return
        del self._partial[stream.id]
        self._drop_pieces(partial)
        self._busy[stream.id] = stream

    def is_current(self, delivery: ReceivedMessage) -> bool:
        """Whether the message belongs to the peer's present session; a dead session's leftovers need no handler."""
        return self._busy.get(delivery.id) is delivery

    def _consumed(self, stream: IncomingStream) -> None:
        """A handler has made room in its stream's window: tell the sender, once it is worth a frame or the last of it."""
        partial = self._partial.get(stream.id)
        if partial is None or partial.stream is not stream or not partial.announced:
            return
        upto = min(stream.total, stream.consumed + self._limits.stream_window)
        if upto - partial.upto >= self._step or partial.upto < upto == stream.total:
            self._grant(partial)

    @property
    def _step(self) -> int:
        return min(PROGRESS, self._limits.stream_window // PROGRESS_PER_WINDOW)

    def _check_window(self, lane: Lane, frame: Begin) -> None:
        fits = self._window.fits(lane, frame.total, eager=frame.eager)
        small = frame.total <= self._limits.eager_message
        if not fits or (not small if frame.eager else small and not frame.stream):
            kind = "eager" if frame.eager else "large"
            raise MalformedFrameError(f"{kind} message {frame.id} of {frame.total} bytes oversteps the window")

    def _finish_if_whole(self, partial: _Partial, last: memoryview | None) -> None:
        begin = partial.begin
        if not partial.has_memory or partial.received < begin.total:
            return
        del self._partial[begin.id]
        if partial.stream is not None:
            self._busy[begin.id] = partial.stream
            return
        whole = last if last is not None and last.nbytes == begin.total else memoryview(partial.buffer or b"")
        delivery = ReceivedMessage(
            partial.lane, begin.id, begin.header, whole.toreadonly(), begin.eager, partial.empty()
        )
        self._busy[begin.id] = delivery
        self._deliver(delivery)

    def _is_settled(self, ident: int) -> bool:
        return ident < self._watermark or ident in self._settled

    def _settle(self, ident: int, failure: str | None) -> None:
        if failure is not None:
            self._failed[ident] = failure
            if len(self._failed) > MAX_REMEMBERED_FAILURES:
                self._failed.popitem(last=False)
        if ident >= self._watermark:
            self._settled.add(ident)
            self._advance()
        self._answer(ident)

    def _advance(self) -> None:
        while self._watermark in self._settled:
            self._settled.remove(self._watermark)
            self._watermark += 1

    def _answer(self, ident: int) -> None:
        failure = self._failed.get(ident)
        self._reply(Ack(ident) if failure is None else Fail(ident, failure))
