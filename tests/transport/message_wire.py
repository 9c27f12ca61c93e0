"""An outbox and an inbox joined by queues that a test moves frame by frame: every order, and every cut, can be played."""

import random
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from common.errors import StreamBrokenError
from common.peer_memory import MemoryBudget
from transport.messages.flow_window import FlowWindow
from transport.messages.framing import Ack, Begin, Cancel, Fail, Frame, Grant, More, decode, encode
from transport.messages.inbox import MessageInbox, ReceivedMessage
from transport.messages.lanes import Lane
from transport.messages.limits import PeerLimits
from transport.messages.message_source import Chunks
from transport.messages.outbox import MessageOutbox, OutgoingMessage
from transport.messages.stream import IncomingStream

_T = TypeVar("_T")

LIMITS = PeerLimits(
    eager_message=40_000,
    eager_window=100_000,
    eager_count=4,
    large_count=3,
    memory_per_peer=150_000,
    memory_total=200_000,
    stream_window=30_000,
)
SESSION = b"s" * 16
FRAME = 8192


def content(index: int, size: int) -> bytes:
    """The payload of message ``index``."""
    return random.Random(index).randbytes(size)


def poll(work: Coroutine[Any, Any, _T]) -> tuple[bool, _T | None]:
    """Run a coroutine as far as it goes without waiting: whether it ended, and with what."""
    try:
        work.send(None)
    except StopIteration as end:
        return True, end.value
    work.close()
    return False, None


@dataclass
class Producer:
    """Chunks of a stream that are made when a test says so."""

    message: OutgoingMessage
    source: Chunks
    payload: bytes
    piece: int
    made: int = 0

    @property
    def has_room(self) -> bool:
        return poll(self.source.room())[0]


@dataclass
class Reader:
    """What a stream handler has of its stream."""

    stream: IncomingStream
    taken: bytearray = field(default_factory=bytearray)


@dataclass
class Wire:
    """Both sides of one direction. The control lane and the answers keep their order.

    Attributes:
        chance: draws which frame of an unordered lane arrives next; None: the first.
    """

    limits: PeerLimits = LIMITS
    streams: bool = True
    chance: random.Random | None = None
    budget: MemoryBudget = field(default_factory=lambda: MemoryBudget(LIMITS.memory_total, LIMITS.memory_per_peer))

    def __post_init__(self) -> None:
        self.outbox = MessageOutbox(self.limits)
        self.delivered: deque[ReceivedMessage] = deque()
        self.readers: list[Reader] = []
        self.opened: list[bytes] = []
        self.producers: list[Producer] = []
        self.answers: deque[Frame] = deque()
        self.lanes: dict[Lane, deque[Frame]] = {lane: deque() for lane in Lane}
        self.seen: list[tuple[bytes, bytes]] = []
        self.inbox = self._fresh_inbox()
        self.inbox.start_link(SESSION, self.outbox.floor)

    def _fresh_inbox(self) -> MessageInbox:
        return MessageInbox(
            self.limits,
            self.budget,
            self.delivered.append,
            self.answers.append,
            open_stream=self._open_stream if self.streams else None,
        )

    def _open_stream(self, stream: IncomingStream) -> None:
        self.opened.append(stream.header)
        self.readers.append(Reader(stream))

    # --- the sender -----------------------------------------------------------------------------------------------------

    def put(self, payload: bytes, lane: Lane = Lane.BULK, header: bytes = b"") -> OutgoingMessage:
        return self.outbox.put(lane, header, memoryview(payload))

    def put_stream(self, payload: bytes, lane: Lane = Lane.BULK, header: bytes = b"", piece: int = 5000) -> Producer:
        source = Chunks(len(payload), self.limits.stream_window)
        message = self.outbox.put_stream(lane, header, source, len(payload))
        self.producers.append(Producer(message, source, payload, piece))
        return self.producers[-1]

    def feed_one(self, producer: Producer) -> bool:
        message = producer.message
        if message.done.done() or producer.made == len(producer.payload) or not producer.has_room:
            return False
        chunk = producer.payload[producer.made : producer.made + producer.piece]
        producer.source.feed(chunk)
        producer.made += len(chunk)
        self.outbox.fed(message)
        return True

    def send_one(self, frame_bytes: int = FRAME) -> bool:
        entry = self.outbox.next_frame(frame_bytes)
        if entry is not None:
            self.lanes[entry[0]].append(entry[1])
        return entry is not None

    def answer_one(self) -> bool:
        if not self.answers:
            return False
        frame = decode(encode(self.answers.popleft()))
        if isinstance(frame, Grant):
            self.outbox.on_grant(frame)
        else:
            assert isinstance(frame, Ack | Fail)
            self.outbox.on_settled(frame)
        return True

    # --- the receiver ---------------------------------------------------------------------------------------------------

    def receive_one(self, lane: Lane) -> bool:
        if not self.lanes[lane]:
            return False
        if self.chance is not None and not lane.ordered:
            self.lanes[lane].rotate(-self.chance.randrange(len(self.lanes[lane])))
        frame = decode(encode(self.lanes[lane].popleft()))
        if isinstance(frame, More):
            self.inbox.on_more(lane, frame)
        elif isinstance(frame, Begin):
            self.inbox.on_begin(lane, frame)
        else:
            assert isinstance(frame, Cancel)
            self.inbox.on_cancel(frame)
        return True

    def handle_one(self, failure: str | None = None) -> bool:
        if not self.delivered:
            return False
        delivery = self.delivered.popleft()
        self.seen.append((delivery.header, bytes(delivery.payload)))
        self.inbox.finished(delivery, failure)
        return True

    def read_one(self, reader: Reader) -> bool:
        """Let a stream's handler go on to its next chunk; at the end, or when the stream broke, it returns."""
        stream = reader.stream
        try:
            ended, chunk = poll(stream.__anext__())
        except (StopAsyncIteration, StreamBrokenError) as end:
            self.readers.remove(reader)
            broken = isinstance(end, StreamBrokenError)
            if not broken:
                self.seen.append((stream.header, bytes(reader.taken)))
            self.inbox.finished(stream, "the stream broke" if broken else None)
            return True
        reader.taken += chunk or b""
        return ended

    def leave(self, reader: Reader, failure: str | None = None) -> None:
        """A stream's handler needs no more of it."""
        self.readers.remove(reader)
        self.inbox.finished(reader.stream, failure)

    # --- both -----------------------------------------------------------------------------------------------------------

    def cut(self, *, restarted: bool = False, expired: bool = False) -> None:
        """The link is lost and a new one comes up.

        Args:
            restarted: the receiver has forgotten everything.
            expired: the new one came too late for what was partial.
        """
        floor = self.outbox.floor  # goes in the envelope, before the bookkeeping starts again
        self.answers.clear()
        for lane in self.lanes.values():
            lane.clear()
        self.inbox.end_link()
        if expired:
            self.inbox.drop_partial()
        if restarted:
            self._restart()
        self.outbox.rewind(new_session=restarted)
        self.inbox.start_link(SESSION, floor)

    def _restart(self) -> None:
        self.inbox.start_link(b"of a process that is dead", 1)
        for delivery in self.delivered:
            self.inbox.finished(delivery, None)
        for reader in self.readers:
            self.inbox.finished(reader.stream, None)
        self.delivered.clear()
        self.readers.clear()
        self.answers.clear()
        self.inbox = self._fresh_inbox()

    def step(self) -> bool:
        """Move one of everything; False if nothing moved."""
        moved = self.send_one()
        for lane in Lane:
            moved |= self.receive_one(lane)
        for producer in self.producers:
            moved |= self.feed_one(producer)
        for reader in list(self.readers):
            moved |= self.read_one(reader)
        moved |= self.handle_one()
        moved |= self.answer_one()
        return moved

    def run_dry(self) -> list[bytes]:
        """Move everything until nothing moves; returns the payloads that reached a handler meanwhile."""
        before = len(self.seen)
        while self.step():
            pass
        return [payload for _, payload in self.seen[before:]]

    def is_empty(self) -> bool:
        """Whether neither side remembers anything of a message."""
        outbox, inbox = self.outbox, self.inbox
        nothing_open = not outbox.wanted and not list(outbox.pending) and outbox.floor == outbox._next_id
        nothing_here = not (inbox._partial or inbox._busy or inbox._settled or inbox.awaits_bytes)
        nothing_early = not (inbox._early or inbox._early_bytes or inbox._pieces)
        unused = FlowWindow(outbox._limits)._accounts
        no_account = outbox._window._accounts == unused == inbox._window._accounts
        return nothing_open and nothing_here and nothing_early and self.budget.held == 0 and no_account
