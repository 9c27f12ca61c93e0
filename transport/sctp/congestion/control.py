"""What the data path tells a congestion controller, what the controller answers, and the figures of a path.

Times in seconds of one monotonic clock, sizes in bytes as they are on the wire (IP and UDP headers included), rates in bytes a
second. A controller holds no clock and no chance of its own, so a simulation can run it.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol


class AckSample(NamedTuple):
    """What one acknowledgement told.

    Attributes:
        now: when it came.
        rtt: the newest round trip that is not ambiguous (sent once), without the peer's own delay where that is known.
        delivery_rate: bytes a second delivered between the sending and the acknowledgement of the newest packet
            (draft-ietf-ccwg-bbr, "Delivery Rate Samples"); None where nothing new was acknowledged.
        app_limited: the sample was taken while there was too little to send, so the rate is a lower bound.
        acked: bytes newly acknowledged.
        lost: bytes newly held to be lost.
        inflight: bytes on their way after this acknowledgement.
        forward: when a packet arrived by the peer's clock less when it was sent by ours, in seconds: only differences mean
            something. None where the peer does not tell.
        ends_burst: the newest packet was the last of those that left together, or ended a message: it waited for the others.
        round_ended: a packet sent after the last round's end has been acknowledged: a round trip is over.
    """

    now: float
    rtt: float | None
    delivery_rate: float | None
    app_limited: bool
    acked: int
    lost: int
    inflight: int
    round_ended: bool
    forward: float | None = None
    ends_burst: bool = True


class Controller(Protocol):
    """Decides how fast an association sends.

    Attributes:
        fine: whether the sender has a timer that is fine enough to send packet by packet.
        one_by_one: whether packets should leave so now.
    """

    fine: bool
    one_by_one: bool

    @property
    def pacing_rate(self) -> float:
        """Bytes a second at which packets may leave."""

    @property
    def window(self) -> int:
        """Bytes that may be on their way."""

    @property
    def min_rtt(self) -> float | None:
        """The path's round trip without queues, in seconds, as far as it is known."""

    @property
    def bandwidth(self) -> float:
        """The bottleneck's rate for this flow as estimated, bytes a second; 0 before the first sample."""

    def on_ack(self, sample: AckSample) -> None:
        """Learn from an acknowledgement."""

    def on_timeout(self, now: float) -> None:
        """Nothing was acknowledged for a retransmission timeout."""

    def on_restart(self, now: float) -> None:
        """The first packet after an idle time is about to leave."""

    def on_path_change(self, now: float) -> None:
        """The packets take another way from now on: what was learnt of the old one is void."""


@dataclass(frozen=True, slots=True)
class PathStats:
    """Figures of one association.

    Attributes:
        rtt_s, min_rtt_s: smoothed round trip and the smallest of the last ten seconds; None before the first.
        queue_s: how much of the round trip is queues: smoothed minus smallest.
        send_rate, receive_rate: bytes of payload a second, over about the last second.
        pacing_rate: what the controller allows, bytes a second.
        packets_sent, packets_received, packets_retransmitted, packets_lost: since the start; lost is as the sender saw it.
        bytes_sent, bytes_received: on the wire since the start, IP and UDP headers included.
        bytes_inflight: on their way now.
        mtu: greatest IP packet that the path is known to carry.
        offload: "gso+gro", "gso", "gro", "batched" or "portable": how packets meet the system.
    """

    rtt_s: float | None
    min_rtt_s: float | None
    queue_s: float
    send_rate: float
    receive_rate: float
    pacing_rate: float
    packets_sent: int
    packets_received: int
    packets_retransmitted: int
    packets_lost: int
    bytes_sent: int
    bytes_received: int
    bytes_inflight: int
    mtu: int
    offload: str
