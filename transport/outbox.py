"""What this node has for one peer, until the peer has acknowledged it. Pure bookkeeping: no socket, no clock.

Each message is *queued* (no id yet), *announced* (BEGIN sent), *flowing* (bytes may go) or *sent* (all bytes gone); ACK or FAIL
ends it. When a link is lost, every announced message starts again from BEGIN with the same id, and the receiver drops what it
already has. A message that its caller has given up after BEGIN stays as a tombstone until the peer confirms, so that both sides
always agree about what occupies the window.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from transport.errors import DeliveryFailedError, MalformedFrameError
from transport.framing import CHUNK, Ack, Begin, Cancel, Fail, Frame, More
from transport.lane import WEIGHTS, Lane
from transport.limits import PeerLimits

MAX_ID_SPAN = 65_536  # Ids between the oldest open message and the newest: bounds what the receiver must remember.


class _Phase(Enum):
    QUEUED = auto()
    ANNOUNCED = auto()
    FLOWING = auto()
    SENT = auto()


@dataclass(eq=False)
class Outgoing:
    """One message on its way. ``done`` ends with None, or with the error that the caller of ``send`` sees."""

    lane: Lane
    header: bytes
    payload: memoryview
    crc: int
    eager: bool
    done: asyncio.Future[None]
    size: int
    id: int = -1
    offset: int = 0
    phase: _Phase = _Phase.QUEUED
    cancelled: bool = False


@dataclass
class _LaneQueue:
    fresh: deque[Outgoing] = field(default_factory=deque)
    flowing: deque[Outgoing] = field(default_factory=deque)
    cancels: deque[Outgoing] = field(default_factory=deque)
    credit: int = 0


class Outbox:
    """All messages for one peer."""

    def __init__(self, limits: PeerLimits) -> None:
        """Start empty."""
        self._limits = limits
        self._lanes = {lane: _LaneQueue() for lane in Lane}
        self._open: dict[int, Outgoing] = {}
        self._next_id = 1
        self._eager_bytes = 0
        self._eager_count = 0
        self._large_count = 0

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
    def pending(self) -> Iterator[Outgoing]:
        """Every message whose caller still waits."""
        for lane in self._lanes.values():
            yield from (message for message in lane.fresh if message.phase is _Phase.QUEUED)
        yield from (message for message in self._open.values() if not message.cancelled)

    def put(self, lane: Lane, header: bytes, payload: memoryview, crc: int) -> Outgoing:
        """Queue a message; ``payload`` must not change until its ``done`` is."""
        message = Outgoing(
            lane=lane,
            header=header,
            payload=payload,
            crc=crc,
            eager=payload.nbytes <= self._limits.eager_message,
            done=asyncio.get_running_loop().create_future(),
            size=payload.nbytes,
        )
        self._lanes[lane].fresh.append(message)
        return message

    def cancel(self, message: Outgoing) -> None:
        """Give up a message: forget it if the peer never heard of it, else tell the peer."""
        if not message.cancelled:
            self._withdraw(message)
            message.cancelled = True
            message.payload = memoryview(b"")
            if message.id in self._open:
                self._lanes[message.lane].cancels.append(message)
        if not message.done.done():
            message.done.cancel()

    def next_frame(self) -> tuple[Lane, Frame] | None:
        """Return the frame to send next, or None while nothing may be sent.

        Lanes take turns by weight, messages of a lane chunk by chunk.
        """
        for _ in range(2):
            for lane, queue in self._lanes.items():
                if queue.credit <= 0:
                    continue
                frame = self._frame_of(queue)
                if frame is not None:
                    queue.credit -= 1
                    return lane, frame
            for lane, queue in self._lanes.items():
                queue.credit = WEIGHTS[lane]
        return None

    def on_grant(self, ident: int) -> None:
        """Let a large message flow; one that was settled or cancelled meanwhile stays where it is.

        Raises:
            MalformedFrameError: the peer grants what was never announced, or needs no grant.
        """
        message = self._open.get(ident)
        if ident >= self._next_id or (message is not None and message.eager):
            raise MalformedFrameError(f"the peer grants message {ident}, which does not wait for it")
        if message is not None and not message.cancelled and message.phase is _Phase.ANNOUNCED:
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
        self._vacate(message)
        self._withdraw(message)
        if message.done.done():
            return
        if isinstance(frame, Fail):
            message.done.set_exception(DeliveryFailedError(f"the peer could not take the message: {frame.reason}"))
        else:
            message.done.set_result(None)

    def rewind(self, *, new_session: bool) -> None:
        """Make everything open start again over a new link; to a restarted peer, cancelled messages are no more."""
        for queue in self._lanes.values():
            queue.flowing.clear()
            queue.cancels.clear()
            queue.fresh = deque(message for message in queue.fresh if message.phase is _Phase.QUEUED)
        again: dict[Lane, list[Outgoing]] = {lane: [] for lane in Lane}
        for message in list(self._open.values()):
            if message.cancelled and new_session:
                del self._open[message.id]
                self._vacate(message)
            elif message.cancelled:
                self._lanes[message.lane].cancels.append(message)
            else:
                message.phase, message.offset = _Phase.ANNOUNCED, 0
                again[message.lane].append(message)
        for lane, messages in again.items():
            self._lanes[lane].fresh.extendleft(reversed(messages))

    def fail_all(self, error: Exception) -> None:
        """End every waiting message with ``error``."""
        for message in list(self.pending):
            if not message.done.done():
                message.done.set_exception(error)
            self.cancel(message)

    def _frame_of(self, queue: _LaneQueue) -> Frame | None:
        if queue.cancels:
            return Cancel(queue.cancels.popleft().id)
        if queue.fresh and self._may_announce(queue.fresh[0]):
            return self._announce(queue.fresh.popleft())
        if not queue.flowing:
            return None
        message = queue.flowing.popleft()
        chunk = message.payload[message.offset : message.offset + CHUNK]
        frame = More(message.id, message.offset, chunk)
        message.offset += chunk.nbytes
        if message.offset < message.size:
            queue.flowing.append(message)
        else:
            message.phase = _Phase.SENT
        return frame

    def _may_announce(self, message: Outgoing) -> bool:
        if message.phase is _Phase.ANNOUNCED:
            return True  # It holds its place in the window from before the link was lost.
        if self._next_id - self.floor >= MAX_ID_SPAN:
            return False
        if not message.eager:
            return self._large_count < self._limits.large_count
        room = self._eager_bytes + message.size <= self._limits.eager_window
        return room and self._eager_count < self._limits.eager_count

    def _announce(self, message: Outgoing) -> Begin:
        if message.phase is _Phase.QUEUED:
            message.id, self._next_id = self._next_id, self._next_id + 1
            self._open[message.id] = message
            self._occupy(message, 1)
        message.phase = _Phase.ANNOUNCED
        if message.eager:
            self._flow(message)
        return Begin(message.id, message.size, message.crc, message.eager, message.header)

    def _flow(self, message: Outgoing) -> None:
        if message.size:
            message.phase = _Phase.FLOWING
            self._lanes[message.lane].flowing.append(message)
        else:
            message.phase = _Phase.SENT

    def _occupy(self, message: Outgoing, sign: int) -> None:
        if message.eager:
            self._eager_bytes += sign * message.size
            self._eager_count += sign
        else:
            self._large_count += sign

    def _vacate(self, message: Outgoing) -> None:
        self._occupy(message, -1)

    def _withdraw(self, message: Outgoing) -> None:
        """Take a settled message out of the queues: the peer may settle it before all of it has gone."""
        queue = self._lanes[message.lane]
        for waiting in (queue.fresh, queue.flowing, queue.cancels):
            if message in waiting:
                waiting.remove(message)
