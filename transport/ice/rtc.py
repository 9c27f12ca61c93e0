"""One WebRTC connection over aiortc: the only module that knows aiortc.

Traps met here: aioice never offers loopback addresses (``candidates`` gathers instead), and takes the first pair that answers, be
it a relay (``checks`` chooses instead); aiortc offers three fingerprints for one certificate; ``close`` can wait for ever;
``bufferedAmount`` grows without bound, so ``link`` waits for it to fall.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aioice.candidate import Candidate
from aiortc import InvalidStateError, RTCConfiguration, RTCDataChannel, RTCSessionDescription
from cryptography.hazmat.primitives.hashes import SHA256

from common.clock import within
from common.errors import ConnectError
from transport.ice.addresses import host_addresses, local_addresses, source_for
from transport.ice.candidate_checks import CandidateChecks
from transport.ice.candidates import LOOPBACK_ADDRESSES, Gatherer
from transport.ice.context import LinkOptions
from transport.ice.ice import IceServer
from transport.ice.network_profile import Reach
from transport.ice.path_probe import PathProbe
from transport.ice.sdp import Description, drop_other_fingerprints, read_description
from transport.messages.lanes import Lane
from transport.sctp.association import FastSctpTransport
from transport.sctp.congestion.control import PathStats
from transport.sctp.connection import FastPeerConnection

LOG = logging.getLogger(__name__)

MAX_EARLY_FRAMES = 1024  # The eager window in frames: the most that an honest peer sends unasked.
PRIORITIES = {Lane.CONTROL: 0, Lane.ACTIVATIONS: 1, Lane.BULK: 2}  # Control first; the others by weight.


class RtcLane:
    """A lane over one data channel."""

    def __init__(self, channel: RTCDataChannel) -> None:
        """Wrap a channel."""
        self._channel = channel
        self._on_frame: Callable[[bytes], None] | None = None
        self._early: list[bytes] = []
        channel.on("message", self._received)

    @property
    def buffered(self) -> int:
        """Bytes handed over and not yet given to SCTP."""
        return self._channel.bufferedAmount

    @property
    def low(self) -> int:
        """Level in bytes at which ``on_low`` is told; 0 at first."""
        return int(self._channel.bufferedAmountLowThreshold)

    @low.setter
    def low(self, low: int) -> None:
        self._channel.bufferedAmountLowThreshold = low

    @property
    def is_open(self) -> bool:
        """Whether frames may be sent."""
        return self._channel.readyState == "open"

    def send(self, frame: bytes) -> None:
        """Queue one frame.

        Raises:
            ConnectError: the channel is not open.
        """
        try:
            self._channel.send(frame)
        except InvalidStateError:
            raise ConnectError(f"the data channel is {self._channel.readyState}") from None

    def attach(self, on_frame: Callable[[bytes], None], on_low: Callable[[], None]) -> None:
        """Hand received frames to ``on_frame`` and tell ``on_low`` when ``buffered`` has fallen."""
        self._channel.on("bufferedamountlow", on_low)
        self._on_frame = on_frame
        early, self._early = self._early, []
        for frame in early:
            on_frame(frame)

    def detach(self) -> None:
        """Forget whatever still arrives: the link has ended, or goes on over another connection."""
        self._on_frame = _forget

    def _received(self, data: bytes | str) -> None:
        """The peer's side may be up first: what it sends before ``attach`` is kept. Text is no frame, as is b""."""
        frame = data if isinstance(data, bytes) else b""
        if self._on_frame is not None:
            self._on_frame(frame)
        elif len(self._early) < MAX_EARLY_FRAMES:
            self._early.append(frame)
        else:
            self._channel.close()


def _forget(_frame: bytes) -> None:
    """Take no notice."""


@dataclass(frozen=True)
class WireCounters:
    """Bytes and packets at the DTLS layer."""

    bytes_sent: int
    bytes_received: int
    packets_sent: int
    packets_received: int


class RtcConnection:
    """One connection from its offer or answer to its end."""

    def __init__(
        self,
        servers: Sequence[IceServer],
        *,
        loopback: bool,
        reach: Reach | None = None,
        options: LinkOptions | None = None,
        relayed: bool = True,
    ) -> None:
        """Prepare; nothing is sent before ``gather``, ``offer`` or ``answer``.

        Args:
            servers: STUN servers and TURN relays, the best relay for this peer first.
            loopback: connect through 127.0.0.1 only: all nodes on one machine, even without a network.
            reach: what is known of the network around; the connections of one node share it.
            options: what may change while the connection is up.
            relayed: a relay will do; without, relays are only asked for this node's address.
        """
        self._pc = FastPeerConnection(RTCConfiguration(iceServers=[]))
        self._servers = () if loopback else tuple(servers)
        self._reach = reach or Reach()
        self._options = options or LinkOptions()
        self._loopback = loopback
        self._relayed = relayed
        self._probe: PathProbe | None = None
        self._changed = asyncio.Event()
        self._intruded = False
        self._lanes: dict[Lane, RtcLane] = {}
        self._pc.on("connectionstatechange", self._changed.set)
        self._pc.on("datachannel", self._on_foreign_channel)
        self._open_channels()
        self._sctp.set_allowance(self._options.allowance)
        self.refresh()

    @property
    def lanes(self) -> Mapping[Lane, RtcLane]:
        """The lanes, open or not."""
        return self._lanes

    @property
    def failed(self) -> bool:
        """Whether the connection is beyond use."""
        lost = any(lane._channel.readyState in ("closing", "closed") for lane in self._lanes.values())
        return lost or self._intruded or self._pc.connectionState in ("failed", "closed")

    @property
    def pair(self) -> str:
        """Kinds of the nominated candidates, local and remote; empty before there is one."""
        nominated = self._nominated()
        return f"{nominated.local_candidate.type}/{nominated.remote_candidate.type}" if nominated else ""

    @property
    def relayed(self) -> bool:
        """Whether a relay carries the connection."""
        return "relay" in self.pair

    @property
    def fragments(self) -> int:
        """Bytes received of SCTP messages that are not complete.

        While a packet is missing this is 0: what came behind it waits through no fault of the peer's, within the receive window.
        """
        receiver = self._sctp._receiver
        return receiver.held if receiver is not None and receiver.gapless else 0

    @property
    def fault(self) -> str:
        """How the peer broke the rules of SCTP, which ended the connection; empty while it keeps them."""
        return self._sctp.fault

    @property
    def frame_bytes(self) -> int:
        """A good size for frames now, in bytes: about two milliseconds of the line."""
        return self._sctp.frame_bytes

    @property
    def polite(self) -> bool:
        """Whether to yield to everybody else on the line."""
        return self._sctp.polite

    @polite.setter
    def polite(self, polite: bool) -> None:
        if polite != self._sctp.polite:
            self._sctp.polite = polite

    def refresh(self) -> None:
        """Take over the options, which may have changed."""
        self.polite = self._options.polite

    @property
    def line_rate(self) -> float:
        """What the path carries of ours, as far as it is known, in bytes a second; 0 before the connection is up."""
        data = self._sctp._data
        return (data.controller.bandwidth or data.controller.pacing_rate) if data is not None else 0.0

    def path(self) -> PathStats:
        """The path's figures; zeros before the connection is up."""
        return self._sctp.path_stats()

    async def gather(self) -> None:
        """Gather candidates, once; ``offer`` and ``answer`` do it where it has not been done.

        Raises:
            ConnectError: this machine has no address at which it could be reached.
        """
        await self._sctp.transport.transport.iceGatherer.gather()

    async def offer(self) -> Description:
        """Gather candidates and return the local offer.

        Raises:
            ConnectError: this machine has no address at which it could be reached.
        """
        await self.gather()
        await self._pc.setLocalDescription(await self._pc.createOffer())
        return self._local()

    async def answer(self, offer: Description) -> Description:
        """Take the remote offer, gather candidates and return the local answer.

        Raises:
            ConnectError: the description does not fit.
        """
        await self.gather()
        await self._remote(offer, "offer")
        await self._pc.setLocalDescription(await self._pc.createAnswer())
        return self._local()

    async def accept(self, answer: Description) -> None:
        """Take the remote answer.

        Raises:
            ConnectError: the description does not fit.
        """
        await self._remote(answer, "answer")

    async def opened(self, fingerprint: bytes) -> None:
        """Wait until every lane is open and the other side has shown the certificate that its node signed for.

        Args:
            fingerprint: SHA-256 of the certificate, from the signed envelope.
        Raises:
            ConnectError: the connection failed or somebody else answered.
        """
        for lane in self._lanes.values():
            lane._channel.on("open", self._changed.set)
            lane._channel.on("close", self._changed.set)
        while not all(lane.is_open for lane in self._lanes.values()):
            if self.failed:
                raise ConnectError(
                    f"no connection came about ({self._pc.connectionState}): no path, or another certificate"
                )
            self._changed.clear()
            await self._changed.wait()
        self._check_certificate(fingerprint)

    def counters(self) -> WireCounters:
        """Read the DTLS layer's counters; aiortc's ``getStats`` leaves out connections without media."""
        for report in self._sctp.transport._get_stats().values():
            if report.type == "transport":
                return WireCounters(report.bytesSent, report.bytesReceived, report.packetsSent, report.packetsReceived)
        return WireCounters(0, 0, 0, 0)

    def probe(self) -> None:
        """Ask the path for a sign of life; the answer is counted in ``answers``."""
        if self._probe is None and self._nominated() is not None:
            self._probe = PathProbe(self._ice_connection())
        if self._probe is not None:
            self._probe.send()

    @property
    def answers(self) -> int:
        """Probes answered over the path as it was when the first one was sent."""
        return self._probe.answers if self._probe is not None else 0

    @property
    def moved(self) -> str:
        """Why the path is another one than it was; empty while it is the same."""
        return self._probe.moved if self._probe is not None else ""

    async def displaced(self) -> str:
        """Return, with the reason, when this end of the path has gone or the system would send another way.

        A link that did not take the system's own way from the start ends only with its address.

        Raises:
            ConnectError: there is no path.
        """
        base, remote = self._ends()
        usual = source_for(remote) == base
        with self._reach.watch.subscribe() as changed:
            while True:
                if base not in LOOPBACK_ADDRESSES and base not in {one.text for one in local_addresses()}:
                    self._reach.relays.forget()
                    return f"this machine has lost the address {base}"
                source = source_for(remote)
                if usual and source not in ("", base):
                    return f"the way to {remote} leads from {source} now, no more from {base}"
                await changed.wait()
                changed.clear()

    async def lost(self) -> None:
        """Return when the connection is beyond use."""
        while not self.failed:
            self._changed.clear()
            await self._changed.wait()

    async def close(self, limit_s: float) -> None:
        """End the connection: in order within ``limit_s`` seconds, else without a word to the peer within as many more."""
        if self._probe is not None:
            self._probe.stop()
        closing = asyncio.ensure_future(self._pc.close())
        try:
            await within(limit_s, closing)
        except TimeoutError:
            LOG.info("a connection did not end in order within %.1f s: it is cut off", limit_s)
        finally:
            if closing.cancelled() or closing.exception() is not None:
                await self._cut_off(limit_s)
            self._changed.set()

    async def _cut_off(self, limit_s: float) -> None:
        """Give up the sockets of a connection whose orderly end was broken off: aiortc would keep them for ever."""
        with suppress(TimeoutError):
            await within(limit_s, asyncio.gather(self._sctp.transport.stop(), self._ice_connection().close()))

    def _open_channels(self) -> None:
        for lane in Lane:
            channel = self._pc.createDataChannel(lane.name.lower(), ordered=lane.ordered, negotiated=True, id=int(lane))
            self._lanes[lane] = RtcLane(channel)
            self._sctp.set_priority(int(lane), PRIORITIES[lane])
        connection = self._ice_connection()
        checks = CandidateChecks(connection)
        checks.install()

        async def gather(component: int, addresses: list[str], timeout: int = 5) -> list[Candidate]:
            """Stands in for aioice's own: one component, and addresses of our choice."""
            del component, addresses, timeout
            gatherer = Gatherer(connection, self._servers, self._reach.relays, relayed=self._relayed)
            found = await gatherer.gather(LOOPBACK_ADDRESSES if self._loopback else host_addresses())
            checks.udp_blocked = gatherer.udp_blocked
            if not found:
                raise ConnectError("this machine has no network address: is it connected?")
            return found

        connection.get_component_candidates = gather

    def _ends(self) -> tuple[str, str]:
        """The addresses between which this node's packets go at first: its own, and the peer's or the relay's."""
        pair = self._nominated()
        if pair is None:
            raise ConnectError("the connection has no path any more")
        transport = pair.protocol.transport
        inner = getattr(transport, "_TurnTransport__inner_protocol", None)
        if inner is None:
            return str(transport.get_extra_info("sockname")[0]), str(pair.remote_addr[0])
        ends = inner.transport.get_extra_info("sockname"), inner.transport.get_extra_info("peername")
        return str(ends[0][0]), str(ends[1][0])

    @property
    def _sctp(self) -> FastSctpTransport:
        assert self._pc.sctp is not None, "made with the first channel"
        return self._pc.sctp

    def _ice_connection(self) -> Any:
        """aioice's connection: aiortc gives no other way to the nominated pair or the addresses to gather."""
        return self._sctp.transport.transport._connection

    def _nominated(self) -> Any:
        """aioice's nominated pair, None before there is one and after the end."""
        return self._ice_connection()._nominated.get(1)

    def _local(self) -> Description:
        text = drop_other_fingerprints(self._pc.localDescription.sdp)
        return read_description(text, loopback=self._loopback)

    async def _remote(self, description: Description, kind: str) -> None:
        try:
            await self._pc.setRemoteDescription(RTCSessionDescription(description.text, kind))
        except (ValueError, InvalidStateError) as error:
            raise ConnectError(f"the peer's {kind} cannot be used: {error}") from error

    def _check_certificate(self, fingerprint: bytes) -> None:
        """aiortc has compared the certificate with the description; this compares it with what the node key signed."""
        session = self._sctp.transport._ssl
        certificate = session.get_peer_certificate(as_cryptography=True) if session is not None else None
        if certificate is None or certificate.fingerprint(SHA256()) != fingerprint:
            raise ConnectError("the other side shows another certificate than its node signed for")

    def _on_foreign_channel(self, channel: RTCDataChannel) -> None:
        LOG.warning("the peer opens a data channel %r that nobody agreed on", channel.label[:40])
        self._intruded = True
        self._changed.set()
