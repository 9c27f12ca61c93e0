"""What this node has for one peer, until the peer has acknowledged it. Pure bookkeeping: no socket, no clock.

::

                 BEGIN            GRANT (eager: at once)          last byte
      QUEUED ------------> ANNOUNCED -------------------> FLOWING ----------> SENT      ACK or FAIL ends it in any state
                             ^  BEGIN, again                 |                 |
                             +------------ AGAIN <-----------+-----------------+        the link is lost

After a lost link every open message is announced again under its id, and goes on from what the peer holds; a peer that has
restarted holds nothing. A message that its caller has given up after BEGIN stays as a tombstone until the peer confirms, so that
both sides always agree about what occupies the window.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from common.errors import DeliveryFailedError, MalformedFrameError, StreamBrokenError
from transport.messages.flow_window import FlowWindow
from transport.messages.framing import MAX_FRAME, MIN_FRAME, MORE_OVERHEAD, Ack, Begin, Cancel, Fail, Frame, Grant, More
from transport.messages.lanes import WEIGHTS, Lane
from transport.messages.limits import PeerLimits
from transport.messages.message_source import READ_AHEAD, Chunks, MessageSource, Whole

MAX_ID_SPAN = 65_536  # Ids between the oldest open message and the newest: bounds what the receiver must remember.
LAST_TURN = 2  # Turns with credit, with fresh credit, and, as frames may have been longer before, without.


class _Phase(Enum):
    QUEUED = auto()
    AGAIN = auto()
    ANNOUNCED = auto()
    FLOWING = auto()
    SENT = auto()


@dataclass(eq=False)
class OutgoingMessage:
    """One message on its way. ``done`` ends with None, or with the error that the caller of ``send`` sees.

    Attributes:
        offset: the byte that goes next.
        high: bytes sent at most over any link to the peer's present session.
        have: bytes that the peer said it holds.
        upto: bytes that the peer has room for.
        again: the peer's present session has heard of it over an earlier link.
        listed: it stands in one of its lane's queues.
    """

    lane: Lane
    header: bytes
    source: MessageSource
    size: int
    eager: bool
    stream: bool
    done: asyncio.Future[None]
    id: int = -1
    offset: int = 0
    high: int = 0
    have: int = 0
    upto: int = 0
    phase: _Phase = _Phase.QUEUED
    again: bool = False
    cancelled: bool = False
    listed: bool = False


@dataclass
class _LaneQueue:
    """What one lane has to send.

    Attributes:
        eager: messages that go one after the other: were they to take turns, all of them would arrive at the end of all.
        large: messages that take turns frame by frame, for one of them may take minutes.
        large_next: whose turn it is where there are both.
    """

    fresh: deque[OutgoingMessage] = field(default_factory=deque)
    eager: deque[OutgoingMessage] = field(default_factory=deque)
    large: deque[OutgoingMessage] = field(default_factory=deque)
    cancels: deque[int] = field(default_factory=deque)
    large_next: bool = False
    credit: int = 0

    def list(self, message: OutgoingMessage, *, first: bool = False) -> None:
        """Queue a message that has bytes to send; ``first``: it has sent some just now."""
        if message.eager and first:
            self.eager.appendleft(message)
        else:
            (self.eager if message.eager else self.large).append(message)

    def take(self) -> OutgoingMessage | None:
        """The message whose bytes go next, taken out of its queue."""
        queue = self.large if self.large and (self.large_next or not self.eager) else self.eager
        self.large_next = queue is self.eager
        return queue.popleft() if queue else None


class MessageOutbox:
    """All messages for one peer."""

    def __init__(self, limits: PeerLimits) -> None:
        """Start empty."""
        self._limits = limits
        self._lanes = {lane: _LaneQueue() for lane in Lane}
        self._open: dict[int, OutgoingMessage] = {}
        self._next_id = 1
        self._window = FlowWindow(limits)
        self._resumed = 0

    @property
    def floor(self) -> int:
        """Every message with a smaller id is settled for good."""
        return next(iter(self._open), self._next_id)

    @property
    def wanted(self) -> bool:
        """Whether anything waits for a link."""
        live = any(not message.cancelled for message in self._open.values())
        return live or any(lane.fresh for lane in self._lanes.values())

    @property
    def resumed(self) -> int:
        """How many times a message went on, over a new link, from what the peer held."""
        return self._resumed

    @property
    def pending(self) -> Iterator[OutgoingMessage]:
        """Every message whose caller still waits."""
        for lane in self._lanes.values():
            yield from (message for message in lane.fresh if message.phase is _Phase.QUEUED)
        yield from (message for message in self._open.values() if not message.cancelled)

    def put(self, lane: Lane, header: bytes, payload: memoryview) -> OutgoingMessage:
        """Queue a message; ``payload`` must not change until its ``done`` is."""
        eager = payload.nbytes <= self._limits.eager_message
        return self._queue(lane, header, Whole(payload), payload.nbytes, eager=eager, stream=False)

    def put_stream(self, lane: Lane, header: bytes, chunks: Chunks, total: int) -> OutgoingMessage:
        """Queue a message whose bytes come later: tell ``fed`` when there are some."""
        return self._queue(lane, header, chunks, total, eager=False, stream=True)

    def fed(self, message: OutgoingMessage) -> None:
        """More of a stream may go."""
        if message.phase is _Phase.FLOWING and not message.cancelled:
            self._list(message)

    def cancel(self, message: OutgoingMessage) -> None:
        """Give up a message: forget it if the peer never heard of it, else tell the peer."""
        if not message.cancelled:
            self._withdraw(message)
            message.cancelled = True
            message.source.clear()
            if message.id in self._open:
                message.phase = _Phase.SENT
                self._lanes[message.lane].cancels.append(message.id)
        if not message.done.done():
            message.done.cancel()

    def break_off(self, message: OutgoingMessage, error: BaseException) -> None:
        """Give up a message; its caller gets ``error``."""
        if not message.done.done():
            message.done.set_exception(error)
        self.cancel(message)

    def next_frame(self, max_bytes: int = MAX_FRAME, *, only_control: bool = False) -> tuple[Lane, Frame] | None:
        """Return the frame to send next, or None while nothing may be sent.

        The control lane goes first; the others take turns by weight in bytes. Within a lane eager messages go one after the
        other and large ones frame by frame; where there are both, a frame of each in turn.

        Args:
            max_bytes: of the whole frame; held between ``MIN_FRAME`` and ``MAX_FRAME``.
            only_control: there is no room for what the other lanes have.
        """
        limit = max(MIN_FRAME, min(MAX_FRAME, max_bytes)) - MORE_OVERHEAD
        frame = self._frame_of(self._lanes[Lane.CONTROL], limit)
        if frame is not None:
            return Lane.CONTROL, frame
        if only_control:
            return None
        for turn in range(LAST_TURN + 1):
            for lane in WEIGHTS:
                queue = self._lanes[lane]
                frame = self._frame_of(queue, limit) if queue.credit > 0 or turn == LAST_TURN else None
                if frame is not None:
                    queue.credit -= len(frame.data) if isinstance(frame, More) else MORE_OVERHEAD
                    return lane, frame
            if turn == 0:
                for lane, weight in WEIGHTS.items():
                    self._lanes[lane].credit = min(0, self._lanes[lane].credit) + weight * limit
        return None

    def on_grant(self, grant: Grant) -> None:
        """Let a message flow, and forget what the peer holds; one that was settled or cancelled meanwhile stays as it is.

        Raises:
            MalformedFrameError: the peer grants what was never announced, needs no grant, or claims what it never got.
        """
        message = self._open.get(grant.id)
        if grant.id >= self._next_id or (message is not None and not _plausible(message, grant)):
            raise MalformedFrameError(
                f"the peer grants bytes {grant.have}-{grant.upto} of message {grant.id}, which does not wait for it"
            )
        if message is None or message.cancelled:
            return
        if message.phase is _Phase.ANNOUNCED:
            if grant.have < message.source.base:
                self.break_off(message, StreamBrokenError(_gone(message)))
                return
            self._resumed += grant.have > 0
            message.offset = grant.have
        message.have, message.upto = grant.have, grant.upto
        message.source.release(grant.have)
        message.source.allow(grant.upto)
        self._flow(message)

    def on_settled(self, frame: Ack | Fail) -> None:
        """End a message; a second answer (to a CANCEL that crossed the first) changes nothing.

        Raises:
            MalformedFrameError: the peer settles what was never announced.
        """
        if frame.id >= self._next_id:
            raise MalformedFrameError(f"the peer settles message {frame.id}, which was never announced")
        message = self._open.pop(frame.id, None)
        if message is None:
            return
        self._window.leave(message.lane, message.size, eager=message.eager)
        self._withdraw(message)
        message.source.clear()
        if message.done.done():
            return
        if isinstance(frame, Fail):
            message.done.set_exception(DeliveryFailedError(f"the peer could not take the message: {frame.reason}"))
        else:
            message.done.set_result(None)

    def rewind(self, *, new_session: bool) -> None:
        """Announce everything open again over a new link; to a restarted peer, cancelled messages are no more."""
        for queue in self._lanes.values():
            queue.eager.clear()
            queue.large.clear()
            queue.cancels.clear()
            queue.fresh = deque(message for message in queue.fresh if message.phase is _Phase.QUEUED)
        again: dict[Lane, list[OutgoingMessage]] = {lane: [] for lane in Lane}
        for message in list(self._open.values()):
            if new_session and message.source.base and not message.done.done():
                message.done.set_exception(StreamBrokenError(_gone(message)))
                message.cancelled = True
            if message.cancelled and new_session:
                del self._open[message.id]
                self._window.leave(message.lane, message.size, eager=message.eager)
                message.source.clear()
            elif message.cancelled:
                self._lanes[message.lane].cancels.append(message.id)
            else:
                _begin_again(message, new_session=new_session)
                again[message.lane].append(message)
        for lane, messages in again.items():
            self._lanes[lane].fresh.extendleft(reversed(messages))

    def fail_all(self, error: Exception) -> None:
        """End every waiting message with ``error``."""
        for message in list(self.pending):
            self.break_off(message, error)

    def _queue(
        self, lane: Lane, header: bytes, source: MessageSource, size: int, *, eager: bool, stream: bool
    ) -> OutgoingMessage:
        done = asyncio.get_running_loop().create_future()
        message = OutgoingMessage(lane, header, source, size, eager, stream, done)
        self._lanes[lane].fresh.append(message)
        return message

    def _frame_of(self, queue: _LaneQueue, limit: int) -> Frame | None:
        if queue.cancels:
            return Cancel(queue.cancels.popleft())
        if queue.fresh and self._may_announce(queue.fresh[0]):
            return self._announce(queue.fresh.popleft())
        message = queue.take()
        if message is None:
            return None
        message.listed = False
        return self._piece(message, limit)

    def _piece(self, message: OutgoingMessage, limit: int) -> More:
        """Return the message's next bytes, and put it back in the queue if more may go."""
        start = message.offset
        room = min(message.upto, message.source.end) - start
        data = message.source.read(start, min(limit, room))
        message.offset = start + len(data)
        message.high = max(message.high, message.offset)
        if message.offset == message.size:
            message.phase = _Phase.SENT
        else:
            self._list(message, first=True)
        return More(message.id, start, data)

    def _may_announce(self, message: OutgoingMessage) -> bool:
        if message.phase is _Phase.AGAIN:
            return True  # It holds its place in the window from before the link was lost.
        if self._next_id - self.floor >= MAX_ID_SPAN:
            return False
        return self._window.fits(message.lane, message.size, eager=message.eager)

    def _announce(self, message: OutgoingMessage) -> Begin:
        if message.id < 0:
            message.id, self._next_id = self._next_id, self._next_id + 1
            self._open[message.id] = message
            self._window.enter(message.lane, message.size, eager=message.eager)
        again, message.again = message.again, True
        message.phase = _Phase.ANNOUNCED
        message.source.allow(READ_AHEAD)
        if message.eager and (not again or not message.size):
            message.upto = message.size
            self._flow(message)
        return Begin(message.id, message.size, message.eager, message.header, message.stream, again)

    def _flow(self, message: OutgoingMessage) -> None:
        if message.offset == message.size:
            message.phase = _Phase.SENT
        else:
            message.phase = _Phase.FLOWING
            self._list(message)

    def _list(self, message: OutgoingMessage, *, first: bool = False) -> None:
        """Queue a flowing message for its lane's turns, if there is something that may go."""
        if not message.listed and message.offset < min(message.upto, message.source.end):
            message.listed = True
            self._lanes[message.lane].list(message, first=first)

    def _withdraw(self, message: OutgoingMessage) -> None:
        """Take a message that has ended out of the queues: the peer may settle it before all of it has gone."""
        queue = self._lanes[message.lane]
        for waiting in (queue.fresh, queue.eager, queue.large):
            if message in waiting:
                waiting.remove(message)
        if message.id in queue.cancels:
            queue.cancels.remove(message.id)


def _plausible(message: OutgoingMessage, grant: Grant) -> bool:
    """Whether an honest peer can say this of this message now; of one that was given up it is only known what was sent."""
    if not grant.have <= message.high or not grant.have <= grant.upto <= message.size:
        return False
    if message.cancelled or message.phase is _Phase.ANNOUNCED:
        return True
    grows = grant.have >= message.have and grant.upto >= message.upto
    return message.phase in (_Phase.FLOWING, _Phase.SENT) and grows and not message.eager


def _begin_again(message: OutgoingMessage, *, new_session: bool) -> None:
    message.phase, message.listed, message.offset, message.upto = _Phase.AGAIN, False, 0, 0
    if new_session:
        message.again, message.high, message.have = False, 0, 0


def _gone(message: OutgoingMessage) -> str:
    return f"the peer lost the stream after {message.have} of {message.size} bytes, and its beginning is gone: send it anew"
