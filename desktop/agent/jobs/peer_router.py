"""Which payload belongs to which worker here, and to which node there."""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from typing import Protocol

from common.clock import Clock, backoff
from common.errors import MessageLimitError, TransportError
from desktop.agent.base.log import LOG
from desktop.agent.coordinator.network_report import wire_bytes
from desktop.agent.jobs.state_replication import States
from desktop.agent.jobs.weight_exchange import WeightExchange
from desktop.agent.jobs.weights import StageWeights
from desktop.agent.jobs.worker_bridge import WorkerBridge, WorkerBusyError
from protocol.codec import MessageError, decode, encode
from protocol.state import PREFIX as STATES_PREFIX
from protocol.weight_sharing import PREFIX as WEIGHTS_PREFIX
from protocol.worker import PeerHeader, PeerSend
from transport.ice.stats import LinkStats
from transport.messages.lanes import Lane
from transport.nettest.peer import PREFIX, PeerTests

RETRY_MAX_S = 3.0  # The links reconnect by themselves; a peer that was only busy is ready again soon.

_LANES = {
    "activation": Lane.ACTIVATIONS,
    "gradient": Lane.ACTIVATIONS,
    "validation": Lane.ACTIVATIONS,
    "exchange": Lane.ACTIVATIONS,
    "end": Lane.ACTIVATIONS,
    "offer": Lane.ACTIVATIONS,
    "pass": Lane.ACTIVATIONS,
    "drawn": Lane.ACTIVATIONS,
    "pseudo_gradient": Lane.BULK,
    "shard": Lane.BULK,
    "result": Lane.BULK,
}


class PeerNetwork(Protocol):
    """What is used of ``transport.peer.peer.PeerNet``."""

    async def allow(self, peers: set[str]) -> None:
        """Only these may connect."""

    async def send(self, peer: str, lane: Lane, header: bytes, payload: bytes | bytearray | memoryview = b"") -> None:
        """Return once the peer has taken the message."""

    def stats(self) -> Mapping[str, LinkStats]:
        """Counters of each peer."""


class Peers:
    """The bridges of this node's live leases, and the links to other nodes.

    Attributes:
        address: this node's own.
    """

    def __init__(self, address: str, clock: Clock) -> None:
        """Take this node's own address: what goes there never leaves the process."""
        self.address = address
        self._clock = clock
        self._bridges: dict[str, WorkerBridge] = {}
        self._network: PeerNetwork | None = None
        self._allowed: set[str] = set()
        self._allowing = asyncio.Lock()
        self._wire: dict[str, int] = {}
        self._unshared = 0
        self.tests: PeerTests | None = None
        self.states: States | None = None
        self.weights: WeightExchange | None = None
        self.dropped: Counter[str] = Counter()

    async def connect(self, network: PeerNetwork) -> None:
        """Use ``network`` from now on."""
        self._network = network
        self._allowed = set()
        await self.refresh()

    def add(self, bridge: WorkerBridge) -> None:
        """A lease begins; call ``refresh`` afterwards."""
        self._bridges[bridge.assign.lease] = bridge

    def remove(self, bridge: WorkerBridge) -> None:
        """A lease ends; call ``refresh`` afterwards."""
        if self._bridges.get(bridge.assign.lease) is bridge:
            del self._bridges[bridge.assign.lease]

    async def refresh(self) -> None:
        """Allow exactly the nodes that the plans of the live leases name."""
        async with self._allowing:
            wanted = {self.address}.union(*(bridge.neighbours() for bridge in self._bridges.values()))
            wanted.remove(self.address)
            if self._network is not None and wanted != self._allowed:
                self.share_wire_bytes()  # The counters of a peer go with it.
                self._allowed = wanted
                await self._network.allow(wanted)

    def links(self) -> Mapping[str, LinkStats]:
        """Counters of each peer."""
        return self._network.stats() if self._network else {}

    def weights_for(self, job: str, node: str) -> list[StageWeights] | None:
        """The weights of the leases here of a job that a node is of, or comes to; None: there are none."""
        bridges = [bridge for bridge in self._bridges.values() if bridge.assign.job == job and bridge.plans.names(node)]
        return [bridge.weights for bridge in bridges if bridge.weights is not None] if bridges else None

    # --- out ------------------------------------------------------------------------------------------------------------

    async def send(self, bridge: WorkerBridge, message: PeerSend, payload: bytes) -> None:
        """Carry ``payload`` to its place; return when it is there, or when its epoch is over."""
        assign = bridge.assign
        assert assign.stage is not None  # The bridge refuses a spare's sends.
        assert assign.replica is not None
        header = PeerHeader(assign.job, assign.stage, assign.replica, message.stage, message.replica, message.name)
        failures = 0
        while True:
            node = bridge.plans.node_of(message.name.epoch, message.stage, message.replica)
            if node is None:
                self.dropped["outdated"] += 1
                return
            try:
                await self._try(node, header, payload)
            except MessageLimitError as error:
                LOG.error("a message cannot be sent: %s", error)
                return
            except (TransportError, WorkerBusyError) as error:
                failures += 1
                if failures == 1:
                    LOG.info("%s cannot take a message now, trying again: %s", node, error)
                await self._clock.sleep(min(RETRY_MAX_S, backoff(failures, random.random)))
            else:
                if node != self.address:
                    _count(bridge, message, len(payload))
                return

    async def _try(self, node: str, header: PeerHeader, payload: bytes) -> None:
        if node == self.address:
            await self._deliver(node, header, payload)
        elif self._network is None:
            raise TransportError("there has been no connection to the coordinator yet")
        else:
            lane = _LANES[header.name.kind]
            await self._network.send(node, lane, encode(header), payload)

    async def carry(self, peer: str, lane: Lane, header: bytes, payload: bytes) -> None:
        """Carry one message that is not a worker's; raises TransportError where it does not arrive."""
        if self._network is None:
            raise TransportError("there has been no connection to the coordinator yet")
        await self._network.send(peer, lane, header, payload)

    # --- in -------------------------------------------------------------------------------------------------------------

    async def on_message(self, sender: str, lane: Lane, header: bytes, payload: bytes | memoryview) -> None:
        """A message has come from ``sender``. Returning tells the sender that it is settled.

        Raises:
            WorkerBusyError: it cannot be taken now; the sender tries again.
            MessageRefusedError: a test of the link is not welcome now.
        """
        if header.startswith(PREFIX) and self.tests is not None:
            await self.tests.on_message(sender, lane, header, payload)
            return
        if header.startswith(STATES_PREFIX) and self.states is not None:
            await self.states.on_message(sender, lane, header, payload)
            return
        if header.startswith(WEIGHTS_PREFIX) and self.weights is not None:
            await self.weights.on_message(sender, header, payload)
            return
        try:
            body = decode(header, PeerHeader)
        except MessageError:
            self.dropped["malformed"] += 1
            return
        if lane is not _LANES[body.name.kind]:
            self.dropped["wrong lane"] += 1
            return
        await self._deliver(sender, body, bytes(payload))  # A copy: the network takes its memory back.

    async def _deliver(self, sender: str, header: PeerHeader, payload: bytes) -> None:
        for bridge in self._bridges.values():
            place = (bridge.assign.job, bridge.assign.stage, bridge.assign.replica)
            if place == (header.job, header.to_stage, header.to_replica):
                await bridge.deliver(sender, header, payload)
                return
        raise WorkerBusyError(f"no worker for stage {header.to_stage}, replica {header.to_replica} here (yet)")

    # --- counting -------------------------------------------------------------------------------------------------------

    def share_wire_bytes(self) -> None:
        """Give the bytes put on the wire since the last call to the live leases, in proportion to what each has sent.

        The links are shared, so this is exact where a node holds one lease, and fair where it holds several.
        """
        for peer, link in self.links().items():
            total, _ = wire_bytes(link)
            before = self._wire.get(peer, 0)
            self._unshared += total - before if total >= before else total  # Smaller: the peer was gone meanwhile.
            self._wire[peer] = total
        bridges = [bridge for bridge in self._bridges.values() if bridge.assign.stage is not None]
        sent = [bridge.traffic.activations + bridge.traffic.bulk for bridge in bridges]
        if not bridges or self._unshared == 0:
            return
        whole = sum(sent) or len(sent)
        shares = [self._unshared * (part if sum(sent) else 1) // whole for part in sent]
        shares[0] += self._unshared - sum(shares)
        self._unshared = 0
        for bridge, share in zip(bridges, shares, strict=True):
            bridge.traffic.wire += share


def _count(bridge: WorkerBridge, message: PeerSend, size: int) -> None:
    traffic = bridge.traffic
    traffic.naive += message.naive
    if _LANES[message.name.kind] is Lane.BULK:
        traffic.bulk += size
    else:
        traffic.activations += size
