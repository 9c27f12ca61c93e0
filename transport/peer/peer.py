"""``PeerNet``: this node's links to the others.

::

    PeerNet ── PeerSession (one per allowed peer) ── Link (while one is up) ── RtcConnection (aiortc)
                    │                                                               │
        Outbox, Inbox, Negotiation                                          Lane x 3 (data channels)
"""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence

from common.clock import Clock, SystemClock
from common.errors import PeerNotAllowedError, PeerUnreachableError, SignalError
from common.peer_memory import MemoryBudget
from protocol.identity import NodeKey, parse_address
from transport.ice.context import LinkOptions, OnMessage, OnStream, PeerContext, SendSignal
from transport.ice.ice import IceServer
from transport.ice.stats import LinkStats
from transport.messages.lanes import Lane
from transport.messages.limits import PeerLimits
from transport.peer.session import PeerSession
from transport.peer.signalling import MAX_ENVELOPE, EnvelopeReader
from transport.sctp.allowance import Allowance

LOG = logging.getLogger(__name__)

MAX_STRANGERS = 64  # Plans reach the nodes of a job within moments: a peer that was quicker is kept, one envelope each.
MAX_PEER_ORDERS = 128  # Relay orders of single peers: twice the peers that a node may have, for plans that change.


class PeerNet:
    """Links to the nodes that the plan names, made when first needed and made again when lost."""

    def __init__(
        self,
        key: NodeKey,
        send_signal: SendSignal,
        on_message: OnMessage,
        *,
        on_stream: OnStream | None = None,
        ice_servers: Sequence[IceServer] = (),
        clock: Clock | None = None,
        loopback: bool = False,
        limits: PeerLimits | None = None,
        allowance: Allowance | None = None,
        polite: bool = False,
    ) -> None:
        """Prepare; nothing is sent before ``send`` or a peer's signal.

        Args:
            key: this node's key.
            send_signal: carries an envelope to a node through the coordinator; whatever it raises, it is tried again.
            on_message: takes (peer, lane, header, payload). Messages of one lane of one peer come one at a time; the sender's
                ``send`` returns when this has returned. The payload is only valid until then. If it raises, the sender gets
                DeliveryFailedError, with the text of a MessageRefusedError.
            on_stream: takes an ``IncomingStream`` as soon as it begins; several at a time. The sender's ``send_stream`` returns
                when this has returned; what it raises is as above. None: streams are put together and go to ``on_message``.
            ice_servers: STUN and TURN servers; ``set_ice_servers`` renews them.
            clock: time; the machine's own by default.
            loopback: all peers are on this machine: connect through 127.0.0.1 and nothing else.
            limits: bounds; all nodes of a network share them.
            allowance: upload and download limits and a monthly cap for all links together; they can be changed while running.
            polite: yield to the household's own use of the line; ``set_polite`` changes it.
        """
        self._ice_servers = tuple(ice_servers)
        self._peer_ice_servers: OrderedDict[str, tuple[IceServer, ...]] = OrderedDict()
        limits = limits or PeerLimits()
        self._context = PeerContext(
            key=key,
            send_signal=send_signal,
            on_message=on_message,
            on_stream=on_stream,
            ice_servers=self._servers_for,
            clock=clock or SystemClock(),
            limits=limits,
            budget=MemoryBudget(limits.memory_total, limits.memory_per_peer),
            loopback=loopback,
            options=LinkOptions(polite, allowance),
        )
        self._reader = EnvelopeReader(key.address, loopback=loopback)
        self._sessions: dict[str, PeerSession] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._strangers: OrderedDict[str, bytes] = OrderedDict()
        self._refused: Counter[str] = Counter()
        self._closed = False

    @property
    def address(self) -> str:
        """This node's address."""
        return self._context.key.address

    def set_ice_servers(self, servers: Sequence[IceServer]) -> None:
        """Use these servers for links made from now on: credentials of relays expire."""
        self._ice_servers = tuple(servers)

    def set_peer_ice_servers(self, address: str, servers: Sequence[IceServer]) -> None:
        """Use these servers, best first, for links to one peer made from now on; none means those of all peers again.

        The order may come before the plan that names the peer; it is forgotten with the peer.

        Raises:
            BadAddressError: ``address`` is not one.
        """
        parse_address(address)
        self._peer_ice_servers.pop(address, None)
        if servers:
            self._peer_ice_servers[address] = tuple(servers)
        if len(self._peer_ice_servers) > MAX_PEER_ORDERS:
            self._peer_ice_servers.popitem(last=False)

    def _servers_for(self, address: str) -> Sequence[IceServer]:
        return self._peer_ice_servers.get(address, self._ice_servers)

    def set_polite(self, polite: bool) -> None:
        """Yield to the household's own use of the line, or stop doing so, on all links within about a second."""
        self._context.options.polite = polite

    async def allow(self, peers: set[str]) -> None:
        """Let exactly these nodes connect; links to all others are closed and what waits for them fails.

        Raises:
            BadAddressError: one is not an address.
            PeerNotAllowedError: more than ``limits.max_peers``, or this node itself.
        """
        for peer in peers:
            parse_address(peer)
        limit = self._context.limits.max_peers
        if self._closed or len(peers) > limit or self.address in peers:
            raise PeerNotAllowedError(
                f"{len(peers)} peers: at most {limit}, not this node itself, and not after closing"
            )
        dropped = set(self._sessions) - peers
        for peer in peers - set(self._sessions):
            session = PeerSession(self._context, peer)
            self._sessions[peer] = session
            self._tasks[peer] = asyncio.create_task(session.run(), name=f"peer-{peer[:8]}")
            if peer in self._strangers:
                await self.on_signal(peer, self._strangers.pop(peer))
        await self._drop(dropped, "is no longer in the plan")

    async def send(
        self,
        peer: str,
        lane: Lane,
        header: bytes,
        payload: bytes | bytearray | memoryview = b"",
        *,
        timeout: float | None = None,
    ) -> None:
        """Carry one message and return when the peer's handler has taken it, once, whatever happens to links meanwhile.

        Messages of one lane that are sent at the same time may overtake each other; await one to be sure of its place.

        Args:
            lane: which lane, see ``Lane``.
            header: at most 4 KiB.
            payload: at most 2 GiB; must not change until this returns.
            timeout: seconds until giving up; None waits as long as there is a link.
        Raises:
            PeerNotAllowedError: the peer is not, or no longer, in the plan.
            PeerUnreachableError: no link for ``limits.reach_s``, or no acknowledgement within ``timeout``.
            DeliveryFailedError: the peer's handler failed, or the peer has not the memory.
            MessageLimitError: too large.
        """
        await self._session(peer).send(lane, header, payload, timeout)

    async def send_stream(
        self,
        peer: str,
        lane: Lane,
        header: bytes,
        total: int,
        chunks: AsyncIterator[bytes | bytearray | memoryview],
        *,
        timeout: float | None = None,
    ) -> None:
        """Carry one message that is made while it is sent, like ``send``, and return when the peer's handler has taken it.

        The next chunk is asked for while fewer than ``limits.stream_window`` bytes are made and not yet held by the peer; chunks
        that the peer holds are forgotten. So a lost link costs nothing, and a peer that restarts in the middle ends the stream.

        Args:
            lane, header: as for ``send``.
            total: length of all chunks together, at most 2 GiB.
            chunks: of any size; each must not change after it was handed out. Closed at the end if it has ``aclose``.
            timeout: as for ``send``.
        Raises:
            StreamBrokenError: the chunks do not make ``total`` bytes, or the peer lost what is forgotten here.
            Exception: what ``chunks`` raises; the message is cancelled.
            PeerNotAllowedError, PeerUnreachableError, DeliveryFailedError, MessageLimitError: as for ``send``.
        """
        await self._session(peer).send_stream(lane, header, total, chunks, timeout)

    def _session(self, peer: str) -> PeerSession:
        session = self._sessions.get(peer)
        if session is None:
            raise PeerNotAllowedError(f"{peer} is not in the plan of this node: allow it first")
        return session

    async def on_signal(self, sender: str, envelope: bytes) -> None:
        """Take an envelope from the coordinator; one that is refused is logged, counted and forgotten.

        The last one of a node that is not in the plan is kept unread: its plan may have come first.
        """
        session = self._sessions.get(sender)
        try:
            if session is None:
                self._keep_stranger(sender, envelope)
                raise SignalError("stranger", f"{sender[:44]!r} is not in the plan")
            session.on_signal(self._reader.open(sender, envelope, self._context.clock.time()))
        except SignalError as error:
            self._refused[error.reason] += 1
            LOG.warning("from %.44s: %s", sender, error)

    def _keep_stranger(self, sender: str, envelope: bytes) -> None:
        if len(envelope) <= MAX_ENVELOPE:
            self._strangers[sender] = envelope
            self._strangers.move_to_end(sender)
        if len(self._strangers) > MAX_STRANGERS:
            self._strangers.popitem(last=False)

    @property
    def refused(self) -> Mapping[str, int]:
        """How many envelopes were refused, by reason."""
        return self._refused

    def stats(self) -> Mapping[str, LinkStats]:
        """Counters of every allowed peer."""
        return {peer: session.stats for peer, session in self._sessions.items()}

    async def aclose(self) -> None:
        """Close every link; what waits fails with PeerUnreachableError."""
        self._closed = True
        await self._drop(set(self._sessions), "cannot be reached: this node is closing")

    async def _drop(self, peers: set[str], why: str) -> None:
        tasks = [self._tasks.pop(peer) for peer in peers]
        for peer in peers:
            error = PeerUnreachableError if self._closed else PeerNotAllowedError
            self._sessions.pop(peer).close(error(f"{peer} {why}"))
            self._reader.forget(peer)
            self._peer_ice_servers.pop(peer, None)
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                LOG.error("a peer's task had failed", exc_info=result)
