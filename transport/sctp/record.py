"""What is remembered of a fragment that has been sent. Pure."""

import enum
from typing import NamedTuple

from transport.sctp.schedule import Outgoing


class State(enum.Enum):
    """Where a fragment is."""

    INFLIGHT = enum.auto()
    LOST = enum.auto()
    ACKED = enum.auto()
    ABANDONED = enum.auto()


INFLIGHT, LOST, ACKED, ABANDONED = State.INFLIGHT, State.LOST, State.ACKED, State.ABANDONED  # A name is found quicker.


class Departure(NamedTuple):
    """When fragments left, and the sender's state at that time: what a delivery rate is computed from.

    Source: draft-ietf-ccwg-bbr, "Delivery Rate Samples".
    """

    at: float
    delivered: int
    delivered_at: float
    first_sent_at: float
    app_limited: bool


class Record:
    """One fragment that has been sent at least once.

    Attributes:
        message, start, end, flags, tsn: what it is: bytes ``start`` to ``end`` of the message.
        size: bytes on the wire, headers included.
        departure: when it was sent last; fragments that left together share it.
        state, sends: where it is, and how often it was sent.
    """

    __slots__ = ("departure", "end", "flags", "message", "sends", "size", "start", "state", "tsn")

    def __init__(
        self, message: Outgoing, start: int, end: int, flags: int, tsn: int, size: int, departure: Departure
    ) -> None:
        """A fragment that leaves for the first time."""
        self.message = message
        self.start = start
        self.end = end
        self.flags = flags
        self.tsn = tsn
        self.size = size
        self.departure = departure
        self.state = INFLIGHT
        self.sends = 1
