"""Relays and the measured network: relay and coordinator over HTTP, and what a node tells of its line.

A relay announces itself and then tells its load every few seconds (``POST /api/v1/relays/announce``, body a ``RelayEnvelope`` in
JSON); the coordinator answers with a ``RelayOrder``. The relay is its key: the operator allows its address with
``cottage serve --relay ADDRESS``.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from common.untrusted_text import Told, Untrusted
from protocol.ids import Count, Mark, NodeAddress, ShortText

MAX_PEERS_MEASURED = 64  # As many as a node may have (PeerLimits.max_peers).
MAX_RELAYS = 16
ASSUMED_UP = 625e3  # Bytes a second of a line that was not measured: 5 Mbit/s, as slow cable and DSL have.
ASSUMED_DOWN = 1250e3
MAX_USERS = 4096  # Users named in one announcement; the rest follow in the next.

Seconds = Annotated[float, Meta(ge=0, le=3600)]
BytesPerSecond = Annotated[float, Meta(ge=0, le=1e12)]
Share = Annotated[float, Meta(ge=0, le=1)]

NatKind = Literal["none", "full cone", "address cone", "port cone", "symmetric", "no udp", "unknown"]


class RelayUsage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes relayed for one user since the relay's start; ``user`` is ``NODE`` or ``NODE-JOB`` as in the TURN user name."""

    user: Mark
    bytes_relayed: Count


class RelayReport(Told, frozen=True, forbid_unknown_fields=True):
    """What a relay tells.

    ``urls``: where nodes reach it, ``turn:HOST:PORT?transport=udp|tcp`` and ``turns:HOST:PORT?transport=tcp``; the same host
    and UDP port answer STUN. ``secret``: from which TURN credentials are made (``transport.ice.ice.turn_credentials``); it
    travels
    over TLS or loopback only. ``started``: unix seconds; counters count from there. ``sent``: unix seconds, within a minute
    of the coordinator's clock and greater than in any earlier report, so that a report cannot be replayed.
    """

    relay: NodeAddress
    sent: Annotated[float, Meta(ge=0, le=1e11)]
    started: Annotated[float, Meta(ge=0, le=1e11)]
    urls: Annotated[tuple[Mark, ...], Meta(min_length=1, max_length=8)]
    secret: Annotated[str, Meta(min_length=16, max_length=128)]
    region: ShortText = Untrusted("")
    allocations: Count = 0
    allocations_max: Count = 0
    bytes_relayed: Count = 0
    packets_dropped: Count = 0
    rate: BytesPerSecond = 0.0
    usage: Annotated[tuple[RelayUsage, ...], Meta(max_length=MAX_USERS)] = ()


class RelayEnvelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``report``: a ``RelayReport`` in JSON; ``signature``: by the relay's key over context "cottage-relay" and those bytes."""

    report: Annotated[bytes, Meta(min_length=2, max_length=1 << 20)]
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]


class RelayOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When to report next, and how many bytes a second one user may relay (0: no limit of the coordinator)."""

    next_seconds: Annotated[float, Meta(gt=0, le=600)]
    user_rate: BytesPerSecond = 0.0


class RelayQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node asks for credentials at every relay, to measure them (``POST /api/v1/relays/credentials``; answer: ``IceServers``).

    ``sent``: unix seconds, within a minute of the coordinator's clock. ``signature``: by the node key over context
    "cottage-relays", the host that was asked, as in ``Host``, and ``sent`` as 8 bytes, big-endian IEEE 754.
    """

    node: NodeAddress
    sent: Annotated[float, Meta(ge=0, le=1e11)]
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]


class RelayMeasure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The way from a node to a relay; ``relay`` is the first of its URLs."""

    relay: Mark
    rtt_s: Seconds
    loss: Share
    udp: bool


class PeerMeasure(Told, frozen=True, forbid_unknown_fields=True):
    """The link from a node to a peer as it is now; rates are payload bytes a second, 0 where nothing was sent."""

    peer: NodeAddress
    pair: ShortText
    rtt_s: Seconds
    loss: Share
    send_rate: BytesPerSecond
    receive_rate: BytesPerSecond
    queue_s: Seconds = 0.0
    retransmitted: Count = 0
    bytes_sent: Count = 0
    bytes_received: Count = 0


class NetworkReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="network_report"):
    """A node's line and links; from the last ``cottage nettest`` of the agent and from its live links. None: not measured."""

    nat: NatKind = "unknown"
    ipv6: bool = False
    up: BytesPerSecond | None = None
    down: BytesPerSecond | None = None
    relays: Annotated[tuple[RelayMeasure, ...], Meta(max_length=MAX_RELAYS)] = ()
    peers: Annotated[tuple[PeerMeasure, ...], Meta(max_length=MAX_PEERS_MEASURED)] = ()
