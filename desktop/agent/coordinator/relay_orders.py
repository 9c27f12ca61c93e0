"""Which relays links take: what the coordinator says, for each peer the best first."""

from common.errors import BadAddressError
from desktop.agent.base.log import LOG, printable
from desktop.agent.coordinator.network_report import usable
from protocol.node import IceServers
from transport.peer.peer import PeerNet


class RelayOrders:
    """Keeps to the newest order."""

    def __init__(self) -> None:
        """None has come."""
        self._ordered: set[str] = set()

    def follow(self, network: PeerNet, offered: IceServers) -> None:
        """Use these relays for links made from now on; for each peer the best first, which the peer uses too."""
        network.set_ice_servers(usable(offered.servers))
        for peer in self._ordered - offered.peers.keys():
            network.set_peer_ice_servers(peer, ())
        self._ordered = set()
        for peer, servers in offered.peers.items():
            try:
                network.set_peer_ice_servers(peer, usable(servers))
            except BadAddressError as error:
                LOG.warning("the coordinator names a peer that is none: %s", printable(str(error)))
                continue
            self._ordered.add(peer)
