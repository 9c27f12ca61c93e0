"""Counters of what went over the links to one peer."""

from dataclasses import dataclass, field
from enum import StrEnum

from transport.lane import Lane


class LinkState(StrEnum):
    """Where a link stands."""

    IDLE = "idle"
    CONNECTING = "connecting"
    UP = "up"


@dataclass
class LaneStats:
    """One lane; bytes.

    Attributes:
        payload_sent: of chunks handed to the lane, repeats after a lost link included.
        framed_sent: payload, headers and steering frames: what the lane was given.
    """

    messages_sent: int = 0
    messages_received: int = 0
    payload_sent: int = 0
    payload_received: int = 0
    framed_sent: int = 0
    framed_received: int = 0


@dataclass
class LinkStats:
    """All links to one peer since it was allowed.

    Attributes:
        wire_sent: bytes in DTLS datagrams, refreshed about once a second; 28 (IPv4) or 48 (IPv6) per packet come on top.
        packets_sent: datagrams.
        rtt_s: the last round trip measured on the control lane, in seconds.
        pair: kinds of the ICE candidates in use, local and remote, such as ``host/srflx`` or ``relay/host``.
        links: how many links have come up.
    """

    state: LinkState = LinkState.IDLE
    rtt_s: float | None = None
    pair: str = ""
    links: int = 0
    wire_sent: int = 0
    wire_received: int = 0
    packets_sent: int = 0
    packets_received: int = 0
    lanes: dict[Lane, LaneStats] = field(default_factory=lambda: {lane: LaneStats() for lane in Lane})
