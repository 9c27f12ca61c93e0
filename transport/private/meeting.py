"""How client and node come together: one sealed offer, one sealed answer, and a certificate that must be the signed one."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from common.clock import Clock
from common.errors import PeerUnreachableError, SignalError
from protocol.identity import NodeKey
from protocol.private.sessions import PrivateTicket
from protocol.serving import MAX_LINE
from transport.ice.context import LinkOptions
from transport.ice.ice import IceServer
from transport.ice.network_profile import Reach
from transport.ice.rtc import RtcConnection
from transport.peer.signalling import EnvelopeReader, Opened, SignalKind, seal
from transport.private.channel import CLOSE_S, PrivateChannel

CONNECT_S = 30.0
MAX_REQUEST = 1 << 20  # Bytes of what a client says at once.


@dataclass(frozen=True)
class Surroundings:
    """What connections of one machine share: see ``RtcConnection``."""

    servers: Sequence[IceServer]
    clock: Clock
    loopback: bool = False
    reach: Reach = field(default_factory=Reach)
    options: LinkOptions = field(default_factory=LinkOptions)

    def connection(self) -> RtcConnection:
        """One that has not begun."""
        return RtcConnection(self.servers, loopback=self.loopback, reach=self.reach, options=self.options)


class MeetingNode:
    """The node's side of one session."""

    def __init__(self, key: NodeKey, ticket: PrivateTicket, around: Surroundings) -> None:
        self._key, self._ticket, self._around = key, ticket, around
        self._connection: RtcConnection | None = None
        self._fingerprint = b""

    async def answer(self, envelope: bytes) -> bytes:
        """The sealed answer to the client's sealed offer.

        Raises:
            SignalError: ``ticket``: it is not of the ticket's session, or too late; else as ``EnvelopeReader.open``.
            ConnectError: the offer cannot be used.
        """
        now = self._around.clock.time()
        if now > self._ticket.expires:
            raise SignalError("ticket", "the session's time to begin is over: ask for another one")
        opened = EnvelopeReader(self._key.address, loopback=self._around.loopback).open(
            self._ticket.client, envelope, now
        )
        offer = _of_session(opened, self._ticket.session, SignalKind.OFFER)
        assert offer.description is not None
        self._connection = self._around.connection()
        self._fingerprint = offer.body.fingerprint
        answered = await self._connection.answer(offer.description)
        return seal(
            self._key,
            SignalKind.ANSWER,
            self._ticket.client,
            session=bytes.fromhex(self._ticket.session),
            now=now,
            floor=1,
            reply_to=offer.body.nonce,
            description=answered,
        )

    async def opened(self) -> PrivateChannel:
        """The channel, once it is open; raises PeerUnreachableError, ConnectError."""
        assert self._connection is not None
        return await _open(self._connection, self._fingerprint, self._around.clock, MAX_REQUEST)

    async def aclose(self) -> None:
        """End what was begun; a channel that was opened is its holder's."""
        if self._connection is not None:
            await self._connection.close(CLOSE_S)


class MeetingClient:
    """The client's side of one session, with a node that it knows by its key."""

    def __init__(self, key: NodeKey, session: str, node: str, around: Surroundings) -> None:
        """``key``: made for this session alone."""
        self._key, self._session, self._node, self._around = key, session, node, around
        self._connection = around.connection()
        self._nonce = b""

    async def offer(self) -> bytes:
        """The sealed offer; raises ConnectError."""
        description = await self._connection.offer()
        sealed = seal(
            self._key,
            SignalKind.OFFER,
            self._node,
            session=bytes.fromhex(self._session),
            now=self._around.clock.time(),
            floor=1,
            description=description,
            nonce=(nonce := NodeKey.generate().seed[:16]),
        )
        self._nonce = nonce
        return sealed

    async def accept(self, envelope: bytes) -> PrivateChannel:
        """The channel, once it is open.

        Raises:
            SignalError: the envelope is not the node's answer to this offer.
            ConnectError, PeerUnreachableError: the node cannot be reached, or another one has answered.
        """
        reader = EnvelopeReader(self._key.address, loopback=self._around.loopback)
        opened = reader.open(self._node, envelope, self._around.clock.time())
        answer = _of_session(opened, self._session, SignalKind.ANSWER)
        if answer.body.reply_to != self._nonce:
            raise SignalError("ticket", "it answers another offer")
        assert answer.description is not None
        await self._connection.accept(answer.description)
        return await _open(self._connection, answer.body.fingerprint, self._around.clock, MAX_LINE)

    async def aclose(self) -> None:
        """End what was begun; a channel that was opened is its holder's."""
        await self._connection.close(CLOSE_S)


def _of_session(opened: Opened, session: str, kind: SignalKind) -> Opened:
    if opened.body.session != bytes.fromhex(session) or opened.body.kind is not kind:
        raise SignalError("ticket", f"it is no {kind.value} of session {session}")
    return opened


async def _open(connection: RtcConnection, fingerprint: bytes, clock: Clock, largest: int) -> PrivateChannel:
    try:
        async with clock.timeout(CONNECT_S):
            await connection.opened(fingerprint)
    except TimeoutError:
        raise PeerUnreachableError(f"no connection within {CONNECT_S:g} s: no network path leads there") from None
    return PrivateChannel(connection, clock, largest)
