"""Counters of what went over the links to one peer."""

from dataclasses import dataclass, field
from enum import StrEnum

from transport.messages.lanes import Lane


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
        rtt_s: the last round trip measured on the control lane, in seconds.
        min_rtt_s: the path's round trip without queues, in seconds; None before it is known.
        queue_s: how much of the round trip is queues, in seconds.
        loss: share in [0, 1] of the packets sent in about the last ten seconds that had to be sent again.
        retransmitted: packets sent again.
        send_rate, receive_rate: payload bytes a second, over about the last second.
        mtu: greatest IP packet in bytes that the path is known to carry; 0 before it is known.
        pair: kinds of the ICE candidates in use, local and remote, such as ``host/srflx`` or ``relay/host``.
        relayed: a relay carries the link.
        links: how many links have come up.
        path_changes: how often a link went on over other addresses.
        resumed: messages to the peer that went on, after a new link, from what the peer held already.
        wire_sent: bytes in DTLS datagrams, refreshed about once a second; 28 (IPv4) or 48 (IPv6) per packet come on top.
        packets_sent: datagrams.
    """

    state: LinkState = LinkState.IDLE
    rtt_s: float | None = None
    min_rtt_s: float | None = None
    queue_s: float = 0.0
    loss: float = 0.0
    retransmitted: int = 0
    send_rate: float = 0.0
    receive_rate: float = 0.0
    mtu: int = 0
    pair: str = ""
    relayed: bool = False
    links: int = 0
    path_changes: int = 0
    resumed: int = 0
    wire_sent: int = 0
    wire_received: int = 0
    packets_sent: int = 0
    packets_received: int = 0
    lanes: dict[Lane, LaneStats] = field(default_factory=lambda: {lane: LaneStats() for lane in Lane})
