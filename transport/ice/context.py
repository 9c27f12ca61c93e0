"""What the sessions of one node share."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from common.clock import Clock
from common.peer_memory import MemoryBudget
from protocol.identity import NodeKey
from transport.ice.ice import IceServer
from transport.ice.network_profile import Reach
from transport.messages.lanes import Lane
from transport.messages.limits import PeerLimits
from transport.messages.stream import IncomingStream
from transport.sctp.allowance import Allowance

SendSignal = Callable[[str, bytes], Awaitable[None]]
"""Carries an envelope (second) to a node (first) through the coordinator."""

OnMessage = Callable[[str, Lane, bytes, memoryview], Awaitable[None]]
"""Takes peer, lane, header and payload of a message."""

OnStream = Callable[[IncomingStream], Awaitable[None]]
"""Takes a stream at its beginning; returns when it is done with it."""


@dataclass
class LinkOptions:
    """What links take over as soon as it changes.

    Attributes:
        polite: yield to the other traffic of the household.
        allowance: how much of the line all links together may use; its limits change from within. None: no limit.
    """

    polite: bool = False
    allowance: Allowance | None = None


@dataclass(frozen=True)
class PeerContext:
    """Key, ways out (STUN and TURN servers for a peer), clock and limits of a node; ``PeerNet`` explains them."""

    key: NodeKey
    send_signal: SendSignal
    on_message: OnMessage
    on_stream: OnStream | None
    ice_servers: Callable[[str], Sequence[IceServer]]
    clock: Clock
    limits: PeerLimits
    budget: MemoryBudget
    loopback: bool
    options: LinkOptions
    reach: Reach = field(default_factory=Reach)
