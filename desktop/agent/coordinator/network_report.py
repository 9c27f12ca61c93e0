"""What the agent tells the coordinator of its line and its links, and which relays it was given."""

from collections.abc import Mapping, Sequence

import msgspec

from common.errors import IceConfigError
from common.untrusted_text import untrusted
from desktop.agent.base.log import LOG, printable
from protocol.network import MAX_PEERS_MEASURED, NetworkReport, PeerMeasure
from protocol.node import OfferedIceServer
from transport.ice.ice import IceServer
from transport.ice.stats import LinkState, LinkStats

UDP_BYTES = 28  # IPv4 and UDP headers, on every datagram.
MAX_PAIR = 200  # Characters, as the wire takes them.
MAX_S = 3600.0  # Greatest time that the wire takes; a link that is slower is as good as dead.


def report(line: NetworkReport | None, links: Mapping[str, LinkStats]) -> NetworkReport:
    """The message for the coordinator.

    Args:
        line: what the last network test measured (NAT, up and down, relays); None before the first.
        links: counters of every peer; only links that are up are told.
    """
    up = [(peer, link) for peer, link in sorted(links.items()) if link.state is LinkState.UP]
    measures = tuple(_measure(peer, link) for peer, link in up[:MAX_PEERS_MEASURED])
    return msgspec.structs.replace(line or NetworkReport(), peers=measures)


def usable(offered: Sequence[OfferedIceServer]) -> tuple[IceServer, ...]:
    """The servers that can be used; a bad one is logged and left out."""
    servers = []
    for server in offered:
        for url in server.urls:
            try:
                servers.append(IceServer(url, server.username, server.credential))
            except IceConfigError as error:
                LOG.warning("an ICE server of the coordinator cannot be used: %s", printable(str(error)))
    return tuple(servers)


def wire_bytes(link: LinkStats) -> tuple[int, int]:
    """What a link has cost the line since the peer was allowed, headers included: bytes sent, bytes received."""
    return (
        link.wire_sent + UDP_BYTES * link.packets_sent,
        link.wire_received + UDP_BYTES * link.packets_received,
    )


def _measure(peer: str, link: LinkStats) -> PeerMeasure:
    sent, received = wire_bytes(link)
    return PeerMeasure(
        peer=peer,
        pair=untrusted(link.pair, MAX_PAIR),
        rtt_s=min(max(link.rtt_s or 0.0, 0.0), MAX_S),
        loss=min(max(link.loss, 0.0), 1.0),
        send_rate=max(link.send_rate, 0.0),
        receive_rate=max(link.receive_rate, 0.0),
        queue_s=min(max(link.queue_s, 0.0), MAX_S),
        retransmitted=link.retransmitted,
        bytes_sent=sent,
        bytes_received=received,
    )
