"""Where datagrams go once ICE has chosen a pair: straight to the peer, or through a TURN relay over UDP, TCP or TLS.

The only place here that knows how aioice keeps its protocols and transports.
"""

from dataclasses import dataclass
from typing import Any

from transport.sctp.udp.offload import DEFAULT_MTU, Address, interface_mtu

IPV4_HEADER = 20
IPV6_HEADER = 40
UDP_HEADER = 8
TCP_HEADER = 32  # With the timestamps that Linux, macOS and most others send.
CHANNEL_HEADER = 4  # RFC 8656, section 12.4.


@dataclass(frozen=True, slots=True)
class UdpRoute:
    """The way of one nominated pair.

    Attributes:
        receiver: the aioice connection that the pair belongs to.
        flow: the protocol whose transport meets the system: the pair's own, or the TURN client's.
        relay: aioice's TURN transport, None on a direct way.
        peer: the peer's address as the pair has it.
        stream: TCP or TLS to the relay.
    """

    receiver: Any
    flow: Any
    relay: Any
    peer: Address
    stream: bool

    @property
    def transport(self) -> Any:
        """The asyncio transport under everything."""
        return self.flow.transport

    @property
    def channel(self) -> int | None:
        """Number of the TURN channel to the peer; None before it is bound and on a direct way."""
        number: int | None = self.flow.peer_to_channel.get(self.peer) if self.relay is not None else None
        return number

    @property
    def destination(self) -> Address | None:
        """Where the socket must send to; None where it is connected."""
        return None if self.relay is not None else self.peer

    @property
    def hop(self) -> Address:
        """Where packets go first: the peer or the relay."""
        if self.relay is None:
            return self.peer
        address: Address | None = self.transport.get_extra_info("peername")
        return address or self.flow.server

    @property
    def overhead(self) -> int:
        """Bytes of IP, UDP or TCP, and ChannelData headers around each DTLS datagram on the first leg.

        A stream carries several datagrams in one segment, or parts of one: there the figure is the most it can be.
        """
        below = IPV6_HEADER if ":" in self.hop[0] else IPV4_HEADER
        below += TCP_HEADER if self.stream else UDP_HEADER
        return below + (CHANNEL_HEADER if self.relay is not None else 0)

    def interface_mtu(self) -> int:
        """Greatest IP packet of the first leg's interface, in bytes. On a stream TCP cuts as it must: the usual 1,500."""
        return DEFAULT_MTU if self.stream else interface_mtu(self.hop)


def find_route(protocol: Any, remote: Address) -> UdpRoute:
    """Read the way off aioice's objects.

    Args:
        protocol: aioice's protocol of the nominated pair.
        remote: the pair's remote address.
    """
    remote = (remote[0], remote[1])
    inner = getattr(protocol.transport, "_TurnTransport__inner_protocol", None)
    if inner is None:
        return UdpRoute(protocol.receiver, protocol, None, remote, stream=False)
    return UdpRoute(protocol.receiver, inner, protocol.transport, remote, stream=not hasattr(inner.transport, "sendto"))
