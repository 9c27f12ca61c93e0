"""What a network test has found; it is kept, shown, and told to the coordinator."""

from typing import Annotated

import msgspec
from msgspec import Meta

from common.untrusted_text import Told, Untrusted
from protocol.ids import Count, Mark, NodeAddress, ShortText
from protocol.network import MAX_RELAYS, BytesPerSecond, NatKind, NetworkReport, RelayMeasure, Seconds, Share


class RelayResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The way to one relay.

    ``relay``: the first of its URLs. ``rtt_s``: median round trip, None where it does not answer. ``loss``: share of questions
    that brought no answer, there and back together; 0 over TCP, which repeats them. ``udp``: it answers over UDP; otherwise the
    round trip is that of TCP or TLS. ``stream``: it answers over TCP or TLS.
    """

    relay: Mark
    rtt_s: Seconds | None
    loss: Share
    udp: bool
    stream: bool


class NetTest(Told, frozen=True, forbid_unknown_fields=True):
    """One network test.

    ``at``: unix seconds. ``nat_certain``: all questions about the NAT were answered; otherwise ``nat`` is the strictest kind that
    fits. ``public``: as which address relays see this home; empty where unknown. ``up``, ``down``: payload bytes a second to
    and from ``speed_relay``, None where not measured; then ``note`` says why.
    ``moved``: about how many bytes the rates took.
    """

    at: Annotated[float, Meta(ge=0, le=1e11)]
    seconds: Seconds
    nat: NatKind = "unknown"
    nat_certain: bool = False
    public: Mark = ""
    ipv6: bool = False
    relays: Annotated[tuple[RelayResult, ...], Meta(max_length=MAX_RELAYS)] = ()
    up: BytesPerSecond | None = None
    down: BytesPerSecond | None = None
    speed_relay: Mark = ""
    note: ShortText = Untrusted("")
    moved: Count = 0

    @property
    def reached(self) -> bool:
        """Whether any relay has answered."""
        return any(relay.rtt_s is not None for relay in self.relays)

    def report(self) -> NetworkReport:
        """What the coordinator is told; relays that do not answer are left out."""
        measured = tuple(
            RelayMeasure(relay.relay, relay.rtt_s, relay.loss, relay.udp)
            for relay in self.relays
            if relay.rtt_s is not None
        )
        return NetworkReport(self.nat, self.ipv6, self.up, self.down, measured)


class PeerTest(Told, frozen=True, forbid_unknown_fields=True):
    """The link to one peer; payload bytes a second, None where not measured; then ``note`` says why."""

    peer: NodeAddress
    rtt_s: Seconds
    loss: Share
    up: BytesPerSecond | None = None
    down: BytesPerSecond | None = None
    pair: ShortText = Untrusted("")
    relayed: bool = False
    note: ShortText = Untrusted("")

    def turned(self, peer: str) -> "PeerTest":
        """The same as ``peer``, who has measured it, is seen from the other side."""
        return msgspec.structs.replace(self, peer=peer, up=self.down, down=self.up)
