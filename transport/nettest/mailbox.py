"""Two machines that share a relay find each other through it: one prints a code, the other is given it.

The inviting side allocates a relayed address and lets packets from its relay's own address in, which is where all of its clients
send from. The code names relay and address, the node, and a token that keeps strangers away. What goes through the mailbox
are sealed envelopes (``transport.peer.signalling``): neither the relay nor a stranger can put itself in between.
"""

import asyncio
import base64
import binascii
import contextlib
import secrets
import struct
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from common.errors import ConnectError
from protocol.codec import MessageError, decode, encode
from protocol.ids import Mark, NodeAddress
from protocol.node import MAX_ENVELOPE
from transport.ice.turn_client import RelayWay, allocate, relays
from transport.nettest.errors import NettestError
from transport.nettest.target import Target
from transport.relay.message import Address

TOKEN_BYTES = 12
PART_BYTES = 1000  # Fits every path, channel header and all.
MAX_PARTS = MAX_ENVELOPE // PART_BYTES + 1
MAX_PARTIAL = 8  # Messages of which parts are missing.
MAX_TAKEN = 64  # Messages remembered, so that a repetition is not taken twice.
REPEAT_S = 0.3
GIVE_UP_S = 15.0
OPEN_S = 5.0
MAX_CODE = 1000  # Characters.

_HEAD = struct.Struct(f"!{TOKEN_BYTES}sBIHH")
_PART, _ACK = 0, 1


class MeetingPoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the other side must know: the relay's name, where its mailbox is, who waits there, and the token."""

    relay: Mark
    host: Mark
    port: Annotated[int, Meta(gt=0, lt=65536)]
    node: NodeAddress
    token: Annotated[bytes, Meta(min_length=TOKEN_BYTES, max_length=TOKEN_BYTES)]

    def code(self) -> str:
        """One line to pass on."""
        return base64.urlsafe_b64encode(encode(self)).decode().rstrip("=")

    @classmethod
    def read(cls, code: str) -> "MeetingPoint":
        """The meeting point of a line.

        Raises:
            NettestError: it is none.
        """
        try:
            text = code.strip()[:MAX_CODE]
            point: MeetingPoint = decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), MeetingPoint)
        except (MessageError, binascii.Error, ValueError) as error:
            raise NettestError(f"{code[:40]!r} is no such code: copy the whole line that --listen prints") from error
        return point


class Mailbox(asyncio.DatagramProtocol):
    """Small messages in parts, each repeated until it is acknowledged; ``opened`` makes one."""

    def __init__(self, token: bytes, on_message: Callable[[bytes], None]) -> None:
        self.other: Address | None = None
        self._token = token
        self._on_message = on_message
        self._transport: Any = None
        self._next = secrets.randbits(31)
        self._waiting: dict[tuple[int, int], asyncio.Event] = {}
        self._partial: OrderedDict[int, dict[int, bytes]] = OrderedDict()
        self._taken: OrderedDict[int, None] = OrderedDict()

    @property
    def address(self) -> Address:
        """Where the other side writes to."""
        host, port = self._transport.get_extra_info("sockname")[:2]
        return host, port

    def connection_made(self, transport: Any) -> None:
        """Called by aioice."""
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by aioice; whoever waits gives up in time."""

    def close(self) -> None:
        """Give the relayed address back."""
        self._transport.close()

    def admit(self) -> None:
        """Let the relay's own address in, by writing to oneself."""
        self._transport.sendto(bytes(_HEAD.size), self.address)

    async def send(self, message: bytes) -> None:
        """Carry one message to the other side.

        Raises:
            NettestError: it is not acknowledged within ``GIVE_UP_S``.
        """
        number = self._next = (self._next + 1) % 2**32
        parts = [message[at : at + PART_BYTES] for at in range(0, len(message), PART_BYTES)] or [b""]
        try:
            async with asyncio.timeout(GIVE_UP_S):
                await asyncio.gather(*(self._carry(number, k, len(parts), part) for k, part in enumerate(parts)))
        except TimeoutError:
            raise NettestError("the other side does not answer through the relay") from None

    def datagram_received(self, data: bytes, addr: Address) -> None:
        """Called by aioice; strangers and malformed packets are ignored."""
        if len(data) < _HEAD.size:
            return
        token, kind, number, k, parts = _HEAD.unpack_from(data)
        if not secrets.compare_digest(token, self._token) or not k < parts <= MAX_PARTS:
            return
        if kind == _ACK:
            acknowledged = self._waiting.get((number, k))
            if acknowledged is not None:
                acknowledged.set()
            return
        if self.other is None:
            self.other = addr
        if kind == _PART and addr == self.other:
            self._transport.sendto(_HEAD.pack(token, _ACK, number, k, parts), addr)
            self._take(number, k, parts, data[_HEAD.size :])

    async def _carry(self, number: int, k: int, parts: int, part: bytes) -> None:
        acknowledged = self._waiting[number, k] = asyncio.Event()
        try:
            while not acknowledged.is_set():
                if self.other is not None:
                    self._transport.sendto(_HEAD.pack(self._token, _PART, number, k, parts) + part, self.other)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(REPEAT_S):
                        await acknowledged.wait()
        finally:
            del self._waiting[number, k]

    def _take(self, number: int, k: int, parts: int, part: bytes) -> None:
        if number in self._taken:
            return
        have = self._partial.setdefault(number, {})
        have[k] = part
        if len(self._partial) > MAX_PARTIAL:
            self._partial.popitem(last=False)
        if len(have) < parts:
            return
        self._partial.pop(number, None)
        self._taken[number] = None
        if len(self._taken) > MAX_TAKEN:
            self._taken.popitem(last=False)
        self._on_message(b"".join(have[k] for k in sorted(have)))


@contextlib.asynccontextmanager
async def opened(target: Target, token: bytes, on_message: Callable[[bytes], None]) -> AsyncIterator[Mailbox]:
    """A mailbox at a relay, by UDP, or else by TCP or TLS.

    Raises:
        NettestError: the relay gives none.
    """

    def mailbox() -> Any:  # Not ICE's own protocol, for which the relay's client is written, but all that it asks for.
        return Mailbox(token, on_message)

    try:
        async with asyncio.timeout(OPEN_S):
            allocation = await allocate(relays(target.servers)[0], mailbox, standby=False, first=RelayWay.UDP)
    except (ConnectError, TimeoutError) as error:
        complaint = str(error) or f"no answer within {OPEN_S:.0f} s"
        raise NettestError(f"the relay {target.name} gives no address: {complaint}") from error
    own: Any = allocation.protocol
    try:
        yield own
    finally:
        own.close()
