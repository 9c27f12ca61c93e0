"""Whose message is sent next. Pure.

Level 0 is strict: its messages go before all others, in turn between its streams. The other levels share what is left by weight
(start-time fair queueing over whole messages: fragments of one SCTP message may not be mixed with another's).
"""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

URGENT = 0
DEFAULT_LEVEL = 1
# By level; the first is not used, and the lowest still gets a ninth of the line, so nobody starves.
WEIGHTS = (1, 8, 2, 1)


@dataclass(slots=True, eq=False)
class ScheduledMessage:
    """A message to send, and how far it is sent.

    Attributes:
        owner: whoever is told that bytes have left the queue; None for nobody.
        stream, protocol, data, ordered: as on the wire.
        max_retransmits: how often a fragment may be sent again; None is without end.
        expires_at: when it is no longer worth sending; None is never.
        sequence: number within its ordered stream, given with the first fragment.
        first_tsn, sent, released: TSN of the first fragment, bytes put into packets, and bytes that ``owner`` has been told of.
        abandoned: given up (RFC 3758).
    """

    owner: Hashable
    stream: int
    protocol: int
    data: bytes
    ordered: bool
    max_retransmits: int | None = None
    expires_at: float | None = None
    sequence: int = 0
    first_tsn: int = -1
    sent: int = 0
    released: int = 0
    abandoned: bool = False
    urgent: bool = False


@dataclass(slots=True, eq=False)
class _Queue:
    level: int
    finish: float = 0.0
    messages: deque[ScheduledMessage] = field(default_factory=deque)


class StreamSchedule:
    """Messages that wait, per stream."""

    def __init__(self) -> None:
        """Begin without messages."""
        self._queues: dict[int, _Queue] = {}
        self._levels: dict[int, int] = {}
        self._urgent: deque[_Queue] = deque()
        self._weighted: list[_Queue] = []
        self._virtual = 0.0

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._urgent or self._weighted)

    @property
    def urgent(self) -> bool:
        """Whether something of level 0 waits."""
        return bool(self._urgent)

    def waits(self, stream: int) -> bool:
        """Whether messages of a stream wait."""
        return stream in self._queues

    def set_level(self, stream: int, level: int) -> None:
        """Give a stream's later messages a level; those that wait keep theirs.

        Raises:
            ValueError: there is no such level.
        """
        if not 0 <= level < len(WEIGHTS):
            raise ValueError(f"level {level} of stream {stream}: levels go from 0 to {len(WEIGHTS) - 1}")
        self._levels[stream] = level

    def add(self, message: ScheduledMessage) -> None:
        """Put a message at the end of its stream's queue."""
        queue = self._queues.get(message.stream)
        if queue is None:
            queue = self._queues[message.stream] = _Queue(self._levels.get(message.stream, DEFAULT_LEVEL))
            queue.finish = self._virtual
            (self._urgent if queue.level == URGENT else self._weighted).append(queue)
        queue.messages.append(message)

    def take(self) -> ScheduledMessage | None:
        """Take out the message that is due."""
        if self._urgent:
            queue = self._urgent.popleft()
            message = queue.messages.popleft()
            message.urgent = True
            if queue.messages:
                self._urgent.append(queue)
            else:
                del self._queues[message.stream]
            return message
        if not self._weighted:
            return None
        queue = min(self._weighted, key=_finish) if len(self._weighted) > 1 else self._weighted[0]
        message = queue.messages.popleft()
        self._virtual = queue.finish
        queue.finish += len(message.data) / WEIGHTS[queue.level]
        if not queue.messages:
            self._weighted.remove(queue)
            del self._queues[message.stream]
        return message

    def drop(self, stream: int) -> list[ScheduledMessage]:
        """Take out everything that waits in a stream."""
        queue = self._queues.pop(stream, None)
        if queue is None:
            return []
        if queue.level == URGENT:
            self._urgent.remove(queue)
        else:
            self._weighted.remove(queue)
        return list(queue.messages)


def _finish(queue: _Queue) -> float:
    return queue.finish
