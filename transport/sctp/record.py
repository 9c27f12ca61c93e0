"""What is remembered of fragments that have been sent. Pure.

At a gigabit a second 80,000 fragments leave in one, and most arrive together with their neighbours: those that leave for the
first time side by side are one ``Flight``. Only a fragment that is missing, or that leaves alone, has a ``Record`` of its own.
Where each of them is, the sending book keeps.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from transport.sctp.packet import ACK_AT_ONCE
from transport.sctp.schedule import ScheduledMessage

# Where a fragment is; small numbers, for many of them lie in one bytearray.
INFLIGHT, LOST, ACKED, ABANDONED = range(4)


class Departure(NamedTuple):
    """When fragments left, and the sender's state at that time: what a delivery rate is computed from.

    Source: draft-ietf-ccwg-bbr, "Delivery Rate Samples".
    """

    at: float
    delivered: int
    delivered_at: float
    first_sent_at: float
    app_limited: bool


@dataclass(slots=True, eq=False)
class Record:
    """One fragment that has been sent at least once.

    Attributes:
        message, start, end, flags, tsn: what it is: bytes ``start`` to ``end`` of the message.
        payload, size: bytes of the message in it, and on the wire, headers included.
        departure: when it was sent last; fragments that left together share it.
        sends: how often it was sent.
    """

    message: ScheduledMessage
    start: int
    end: int
    flags: int
    tsn: int
    size: int
    departure: Departure
    sends: int = 1
    payload: int = field(init=False)
    count: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Work out what follows from the rest."""
        self.payload = self.end - self.start

    def fragment(self, tsn: int) -> "Record":
        """The one with this TSN."""
        assert tsn == self.tsn
        return self

    def __iter__(self) -> Iterator["Record"]:
        """It alone."""
        yield self

    def ask(self) -> None:
        """Have it ask for an acknowledgement at once (RFC 7053)."""
        self.flags |= ACK_AT_ONCE


@dataclass(slots=True, eq=False)
class Flight:
    """Fragments that left together for the first time: neighbours in one message, all of one length.

    Attributes:
        message, start, tsn: what they are: from byte ``start`` of the message and this TSN on.
        payload, size: of each: bytes of the message, and on the wire, headers included.
        count, flags: how many they are, and the flags of each.
        departure: when they left.
    """

    message: ScheduledMessage
    start: int
    payload: int
    flags: bytearray
    tsn: int
    size: int
    departure: Departure
    count: int = field(init=False)
    sends: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Work out what follows from the rest."""
        self.count = len(self.flags)

    def fragment(self, tsn: int) -> Record:
        """A record of the one with this TSN, as it left."""
        number = tsn - self.tsn
        start = self.start + number * self.payload
        flags = self.flags[number]
        return Record(self.message, start, start + self.payload, flags, tsn, self.size, self.departure)

    def __iter__(self) -> Iterator[Record]:
        """A record of each."""
        return map(self.fragment, range(self.tsn, self.tsn + self.count))

    def ask(self) -> None:
        """Have the last one ask for an acknowledgement at once (RFC 7053)."""
        self.flags[-1] |= ACK_AT_ONCE


Sent = Record | Flight
