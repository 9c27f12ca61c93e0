"""What one peer has for this node: reassembly within bounds, each message delivered once. Pure bookkeeping: no socket, no clock.

A message is *partial* (announced, perhaps waiting for memory), *busy* (complete, queued or in the handler) or *settled*. Partial
messages die with their link and come again; busy and settled ones are remembered across links of the peer's session, so a message
that is sent again is neither delivered again nor forgotten.
"""

import mmap
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from transport.budget import MemoryBudget, Ticket
from transport.errors import MalformedFrameError
from transport.framing import Ack, Begin, Cancel, Fail, Frame, Grant, More
from transport.lane import Lane
from transport.limits import PeerLimits
from transport.outbox import MAX_ID_SPAN

MAX_REMEMBERED_FAILURES = 2048  # More than can be open at once, so any message that comes again gets its true answer.


@dataclass(eq=False)
class Delivery:
    """A complete message for the handler."""

    lane: Lane
    session: bytes
    id: int
    header: bytes
    payload: memoryview
    eager: bool
    ticket: Ticket | None


@dataclass(eq=False)
class _Partial:
    lane: Lane
    begin: Begin
    crc: int
    buffer: bytearray | mmap.mmap | None = None
    received: int = 0
    ticket: Ticket | None = None

    def empty(self) -> Ticket | None:
        """Let go of the memory at once (ticket and message point at each other) and return what pays for it."""
        ticket, self.ticket, self.buffer = self.ticket, None, None
        return ticket


class Inbox:
    """All messages from one peer."""

    def __init__(
        self,
        limits: PeerLimits,
        budget: MemoryBudget,
        deliver: Callable[[Delivery], None],
        reply: Callable[[Frame], None],
    ) -> None:
        """Take where complete messages go and where answers go; answers given while no link is up may be dropped."""
        self._limits = limits
        self._budget = budget
        self._deliver = deliver
        self._reply = reply
        self._session = b""
        self._watermark = 1
        self._settled: set[int] = set()
        self._failed: OrderedDict[int, str] = OrderedDict()
        self._partial: dict[int, _Partial] = {}
        self._busy: dict[int, Delivery] = {}
        self._discarding: set[int] = set()
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
        return any(partial.buffer is not None for partial in self._partial.values())

    def start_link(self, session: bytes, floor: int) -> None:
        """A link to the peer is up: forget partial messages, and everything if the peer has restarted."""
        self.drop_partial()
        if session != self._session:
            self._session, self._watermark = session, floor
            self._settled.clear()
            self._failed.clear()
            self._busy.clear()
        self.on_floor(floor)

    def drop_partial(self) -> None:
        """Free the memory of messages that are not complete: their link is gone."""
        tickets = [partial.empty() for partial in self._partial.values()]
        self._partial.clear()
        self._discarding.clear()
        self._budget.give_up(*(ticket for ticket in tickets if ticket is not None))

    def on_floor(self, floor: int) -> None:
        """The peer will never again speak of ids below ``floor``."""
        if floor > self._watermark:
            self._watermark = floor
            self._settled = {ident for ident in self._settled if ident >= floor}
        self._advance()

    def on_begin(self, lane: Lane, frame: Begin) -> None:
        """A message is announced.

        Raises:
            MalformedFrameError: it oversteps the window, or its id is in use or absurd.
        """
        if frame.id in self._partial or frame.id >= self._watermark + 2 * MAX_ID_SPAN:
            raise MalformedFrameError(f"the peer announces message {frame.id} out of order")
        if self._is_settled(frame.id) or frame.id in self._busy:
            if frame.eager and frame.total:
                self._discarding.add(frame.id)
            if frame.id not in self._busy:
                self._answer(frame.id)
            return
        self._check_window(frame)
        partial = _Partial(lane, frame, zlib.crc32(frame.header))
        self._partial[frame.id] = partial
        if frame.eager:
            partial.buffer = bytearray(frame.total)
            self._finish_if_whole(partial)
        elif self._budget.fits(frame.total):
            partial.ticket = self._budget.reserve(self, frame.total, lambda: self._granted(partial))
        else:
            del self._partial[frame.id]
            self._settle(frame.id, f"{frame.total} bytes are more than this node takes from one peer")

    def on_more(self, lane: Lane, frame: More) -> None:
        """Bytes of a message.

        Raises:
            MalformedFrameError: nobody asked for them, they are out of order, or the checksum is wrong.
        """
        partial = self._partial.get(frame.id)
        if partial is None:
            if frame.id in self._discarding:
                return
            raise MalformedFrameError(f"bytes of message {frame.id}, which was not announced")
        end = frame.offset + len(frame.data)
        in_order = lane is partial.lane and frame.offset == partial.received and end <= partial.begin.total
        if partial.buffer is None or not in_order:
            raise MalformedFrameError(
                f"bytes {frame.offset}-{end} of message {frame.id} ({partial.begin.total} bytes) are out of turn"
            )
        partial.buffer[frame.offset : end] = frame.data
        partial.crc = zlib.crc32(frame.data, partial.crc)
        partial.received = end
        self._progress += len(frame.data)
        self._finish_if_whole(partial)

    def on_cancel(self, frame: Cancel) -> None:
        """The peer gives a message up; it is confirmed once this node is done with it, whatever became of it."""
        partial = self._partial.pop(frame.id, None)
        if frame.id in self._busy:
            return
        if frame.id >= self._watermark + 2 * MAX_ID_SPAN:
            raise MalformedFrameError(f"the peer cancels message {frame.id} out of order")
        ticket = partial.empty() if partial is not None else None
        if ticket is not None:
            self._budget.give_up(ticket)
        self._discarding.discard(frame.id)
        self._settle(frame.id, None)

    def finished(self, delivery: Delivery, failure: str | None) -> None:
        """The handler is done with a message: free its memory and tell the peer, if it still is the same session."""
        delivery.payload = memoryview(b"")
        ticket, delivery.ticket = delivery.ticket, None
        if ticket is not None:
            self._budget.give_up(ticket)
        if self._busy.get(delivery.id) is delivery:
            del self._busy[delivery.id]
            self._settle(delivery.id, failure)

    def is_current(self, delivery: Delivery) -> bool:
        """Whether the message belongs to the peer's present session; a dead session's leftovers need no handler."""
        return self._busy.get(delivery.id) is delivery

    def _check_window(self, frame: Begin) -> None:
        open_frames = [partial.begin for partial in self._partial.values()]
        eager = [begin.total for begin in open_frames if begin.eager]
        eager += [delivery.payload.nbytes for delivery in self._busy.values() if delivery.eager]
        large = len(open_frames) + len(self._busy) - len(eager)
        limits = self._limits
        if not frame.eager and (large >= limits.large_count or frame.total <= limits.eager_message):
            raise MalformedFrameError(f"{large} large messages are open: message {frame.id} oversteps the window")
        over = len(eager) >= limits.eager_count or sum(eager) + frame.total > limits.eager_window
        if frame.eager and (over or frame.total > limits.eager_message):
            raise MalformedFrameError(f"eager message {frame.id} of {frame.total} bytes oversteps the window")

    def _granted(self, partial: _Partial) -> None:
        # Pages of an anonymous map cost nothing until bytes arrive: an announcement alone takes no memory and no time.
        partial.buffer = mmap.mmap(-1, partial.begin.total)
        self._reply(Grant(partial.begin.id))

    def _finish_if_whole(self, partial: _Partial) -> None:
        begin = partial.begin
        if partial.buffer is None or partial.received < begin.total:
            return
        if partial.crc != begin.crc:
            raise MalformedFrameError(
                f"message {begin.id} arrived damaged: checksum {partial.crc:08x}, not {begin.crc:08x}"
            )
        del self._partial[begin.id]
        payload = memoryview(partial.buffer).toreadonly()
        delivery = Delivery(partial.lane, self._session, begin.id, begin.header, payload, begin.eager, partial.empty())
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
