"""Telling each node which relays to use, for each of its peers: when that changes, and before credentials end."""

from collections import defaultdict
from typing import NamedTuple

from coordinator.domain.lease import Lease
from coordinator.services.core.context import Context
from coordinator.services.core.leases import Leases
from coordinator.services.network.link_telemetry import Links
from coordinator.services.network.nodes import Nodes
from coordinator.services.network.relays import Relays
from protocol.network import MAX_PEERS_MEASURED
from protocol.node import IceServers
from transport.ice.ice import TURN_LIFETIME_S

LOOK_S = 1.0  # A worker needs seconds to start; by then its node knows the relays of its peers.
RENEW_S = TURN_LIFETIME_S / 2

Names = tuple[str, ...]


class _Way(NamedTuple):
    """The relays towards one peer, and the job that pays for them."""

    names: Names
    job: str


class _Told(NamedTuple):
    """What a connection was told last, and when."""

    token: str
    names: Names
    peers: dict[str, _Way]
    at: float


class RelayAssignment:
    """Compares what nodes should know with what they were told."""

    def __init__(self, context: Context, leases: Leases, nodes: Nodes, relays: Relays, links: Links) -> None:
        self._context = context
        self._leases = leases
        self._nodes = nodes
        self._relays = relays
        self._links = links
        self._told: dict[str, _Told] = {}
        self._orders: dict[tuple[str, ...], Names] = {}

    async def watch(self) -> None:
        """Look at everybody now and then, for ever."""
        while True:
            self._links.forget()
            self.look()
            await self._context.clock.sleep(LOOK_S)

    def look(self) -> None:
        """Tell those for whom something has changed, or whose credentials are half way through their life."""
        now = self._context.clock.now()
        talking = self._talking() if self._relays.order() else {}
        told: dict[str, _Told] = {}
        before_this, self._orders = self._orders, {}
        for session in self._nodes.sessions():
            node = session.node
            names = self._order(before_this, node)
            peers = {
                peer: _Way(self._order(before_this, *sorted((node, peer))), job)
                for peer, job in talking.get(node, {}).items()
            }
            before = self._told.get(node)
            if before is None or before.token != session.token:
                before = _Told(session.token, (), {}, now)  # No relay: its Welcome has said that.
            if (names, peers) == (before.names, before.peers) and now - before.at < RENEW_S:
                told[node] = before
                continue
            told[node] = _Told(session.token, names, peers, now)
            session.send(
                IceServers(
                    self._relays.servers(names, node),
                    {peer: self._relays.servers(way.names, node, way.job) for peer, way in peers.items()},
                )
            )
            self._context.metrics.count("ice_servers_sent_total")
        self._told = told

    def _order(self, before: dict[tuple[str, ...], Names], *nodes: str) -> Names:
        """The relays for one node or a pair, worked out once in a look, so that both ends of the pair are told the same."""
        if nodes not in self._orders:
            self._orders[nodes] = self._relays.order(*nodes, before=before.get(nodes, ()))
        return self._orders[nodes]

    def _talking(self) -> dict[str, dict[str, str]]:
        """Node -> the peers that it exchanges messages with, each with the job (the first, where they share several)."""
        seated: dict[str, list[Lease]] = defaultdict(list)
        for lease in self._leases.seated():
            seated[lease.job].append(lease)
        found: dict[str, dict[str, str]] = defaultdict(dict)
        for job, leases in sorted(seated.items()):
            for one in leases:
                for other in leases:
                    if one.node != other.node and _neighbours(one, other) and len(found[one.node]) < MAX_PEERS_MEASURED:
                        found[one.node].setdefault(other.node, job)
        return found


def _neighbours(one: Lease, other: Lease) -> bool:
    """Whether two seats of a job talk: the next stage of the same replica, or the same stage of another."""
    assert one.seat is not None
    assert other.seat is not None
    (stage, replica), (its_stage, its_replica) = one.seat, other.seat
    if replica == its_replica:
        return abs(stage - its_stage) == 1
    return stage == its_stage
