"""What has been measured of the network: each node's line, its way to each relay, its links to its peers.

The scheduler's matrices. They come from the nodes themselves, so where both ends of a link have told, the worse figure counts:
nobody looks better by a claim of its own than the other end says.
"""

from collections.abc import Iterator
from typing import TypeVar

import msgspec

from protocol.ids import NodeAddress
from protocol.network import MAX_PEERS_MEASURED, NetworkReport, PeerMeasure

T = TypeVar("T")

STALE_S = 3600.0  # A home line hardly changes within the hour; a node that has moved reports anew.
MAX_KEPT = 4 * MAX_PEERS_MEASURED  # Relays, and peers, of one node: those of several plans; the newest stay.
MAX_NODES = 20_000  # Who reports; as many as connect to one process.
LIVE_S = 90.0  # Three reports: a link that was not named for so long is closed.


class Line(msgspec.Struct, frozen=True):
    """A node's own line; bytes a second, None where it was not measured."""

    up: float | None
    down: float | None
    nat: str
    ipv6: bool


class _Told(msgspec.Struct):
    """A node's last report, and what earlier ones told of relays and peers: when, and what."""

    line: Line
    at: float
    relays: dict[str, tuple[float, float]]
    peers: dict[NodeAddress, tuple[float, PeerMeasure]]


class NetworkMap:
    """The newest figure of everything; times in seconds of one monotonic clock, handed in."""

    def __init__(self) -> None:
        """Know nothing."""
        self._told: dict[NodeAddress, _Told] = {}

    def learn(self, node: NodeAddress, report: NetworkReport, now: float) -> None:
        """Take a report; a figure that it leaves out keeps its last value."""
        old = self._told.pop(node, None)
        if len(self._told) >= MAX_NODES:
            del self._told[next(iter(self._told))]  # Who has been silent longest: everybody is put in anew here.
        before = old.line if old else Line(None, None, "unknown", False)
        line = Line(
            before.up if report.up is None else report.up,
            before.down if report.down is None else report.down,
            before.nat if report.nat == "unknown" else report.nat,
            report.ipv6 or before.ipv6,
        )
        told = _Told(line, now, dict(old.relays) if old else {}, dict(old.peers) if old else {})
        told.relays |= {measure.relay: (now, measure.rtt_s) for measure in report.relays}
        told.peers |= {measure.peer: (now, measure) for measure in report.peers if measure.peer != node}
        self._told[node] = told
        self._prune(told, now)

    def drop(self, node: NodeAddress) -> None:
        """Let go of what a node has told."""
        self._told.pop(node, None)

    def forget(self, now: float) -> None:
        """Let go of what is older than ``STALE_S``."""
        for node, told in list(self._told.items()):
            self._prune(told, now)
            if told.at < now - STALE_S:
                del self._told[node]

    def line(self, node: NodeAddress) -> Line | None:
        """A node's line, where it has told."""
        told = self._told.get(node)
        return told.line if told else None

    def leg(self, node: NodeAddress, relay: str) -> float | None:
        """Round trip from a node to a relay, named by the first of its URLs."""
        told = self._told.get(node)
        measured = told.relays.get(relay) if told else None
        return measured[1] if measured else None

    def nearest(self, node: NodeAddress) -> str | None:
        """The relay with the shortest way to a node; None where it has measured none."""
        told = self._told.get(node)
        return min(((leg[1], relay) for relay, leg in told.relays.items()), default=(0.0, None))[1] if told else None

    def rtt(self, one: NodeAddress, other: NodeAddress) -> float | None:
        """Round trip between two nodes: as their link has it, else the shortest way by a relay that both have measured."""
        ends = self._ends(one, other)
        if ends:
            return max(end.rtt_s for end in ends)
        if one not in self._told or other not in self._told:
            return None
        legs, others = self._told[one].relays, self._told[other].relays
        return min((legs[relay][1] + others[relay][1] for relay in legs if relay in others), default=None)

    def loss(self, one: NodeAddress, other: NodeAddress) -> float:
        """Share of packets lost between two nodes; 0 where nobody has told."""
        return max((end.loss for end in self._ends(one, other)), default=0.0)

    def links(self, now: float) -> Iterator[tuple[NodeAddress, PeerMeasure]]:
        """Links that live now: who told, and what."""
        for node, told in self._told.items():
            for at, measure in told.peers.values():
                if at >= max(now - LIVE_S, told.at):
                    yield node, measure

    def _ends(self, one: NodeAddress, other: NodeAddress) -> list[PeerMeasure]:
        found = []
        for node, peer in ((one, other), (other, one)):
            told = self._told.get(node)
            if told is not None and peer in told.peers:
                found.append(told.peers[peer][1])
        return [measure for measure in found if measure.rtt_s > 0]  # 0: the link is too young to know.

    def _prune(self, told: _Told, now: float) -> None:
        oldest = now - STALE_S
        told.relays = _newest(told.relays, oldest)
        told.peers = _newest(told.peers, oldest)


def _newest(entries: dict[str, tuple[float, T]], oldest: float) -> dict[str, tuple[float, T]]:
    """The entries since ``oldest``, ``MAX_KEPT`` at most."""
    kept = sorted((item for item in entries.items() if item[1][0] >= oldest), key=lambda item: -item[1][0])
    return dict(kept[:MAX_KEPT])
