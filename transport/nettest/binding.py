"""One UDP socket that asks STUN servers how they see it (RFC 8489 section 6.2.1, RFC 5780 section 7)."""

import asyncio
import contextlib
import secrets
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import cast

from aioice import stun
from aioice.stun import Class, Method

from transport.relay import message
from transport.relay.errors import MalformedMessageError
from transport.relay.message import Address, Attribute, StunMessage
from transport.sctp.udp import proactor

CHANGE_IP = 4  # RFC 5780 section 7.2
CHANGE_PORT = 2
RESEND_S = 0.25  # Half of RFC 8489's first timer: a home's way to a relay is short, and the whole test is.
# What arrives is read only where it answers a question of ours.
ANY = {False: "0.0.0.0", True: "::"}  # noqa: S104
if sys.platform == "win32":
    proactor.mend()

MAX_PENDING = 4096  # Questions without an answer; those of one test are some hundred.


@dataclass(frozen=True)
class Answer:
    """What came back.

    Attributes:
        mapped: how the server sees this socket; None where it refuses to answer as asked.
        other: where else the server listens (OTHER-ADDRESS).
        source: from where the answer came.
        at: seconds of the event loop's clock.
    """

    mapped: Address | None
    other: Address | None
    source: Address
    at: float


class Binder(asyncio.DatagramProtocol):
    """The socket; ``binder`` opens one.

    Attributes:
        address: where it is bound.
    """

    def __init__(self) -> None:
        self.address: Address = ("", 0)
        self._transport: asyncio.DatagramTransport | None = None
        self._pending: dict[bytes, asyncio.Future[Answer]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast(asyncio.DatagramTransport, transport)  # By kind: CPython 3.11 does not derive it so.
        self.address = transport.get_extra_info("sockname")[:2]

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """Called by asyncio; what is no answer to a question of ours is ignored."""
        with contextlib.suppress(MalformedMessageError, ValueError):
            answer = message.parse(data)
            waiting = self._pending.pop(answer.transaction, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(_read(answer, addr[:2], asyncio.get_running_loop().time()))

    def error_received(self, exc: Exception) -> None:
        """An ICMP error of some earlier datagram: no answer comes, and that says it all."""

    def ask_once(self, server: Address, change: int = 0) -> asyncio.Future[Answer]:
        """Send one Binding request; the future stays open where nothing comes back.

        Args:
            change: ``CHANGE_IP`` and ``CHANGE_PORT``: from where the server is to answer.
        """
        transaction = secrets.token_bytes(12)
        waiting = self._expect(transaction)
        self._send(transaction, server, change)
        return waiting

    async def ask(self, server: Address, seconds: float, change: int = 0) -> Answer | None:
        """Ask again and again within ``seconds``; None where nothing comes back."""
        transaction = secrets.token_bytes(12)
        waiting = self._expect(transaction)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not waiting.done() and (left := deadline - loop.time()) > 0:
            self._send(transaction, server, change)
            await asyncio.wait([waiting], timeout=min(RESEND_S, left))
        self._pending.pop(transaction, None)
        return waiting.result() if waiting.done() else None

    def close(self) -> None:
        """Let go of the port."""
        self._pending.clear()
        if self._transport is not None:
            self._transport.close()

    def _expect(self, transaction: bytes) -> asyncio.Future[Answer]:
        if len(self._pending) >= MAX_PENDING:
            self._pending.pop(next(iter(self._pending)))
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._pending[transaction] = waiting
        return waiting

    def _send(self, transaction: bytes, server: Address, change: int) -> None:
        attributes = [(Attribute.CHANGE_REQUEST, message.uint32(change))] if change else []
        assert self._transport is not None
        self._transport.sendto(message.encode(Method.BINDING, Class.REQUEST, transaction, attributes), server)


@contextlib.asynccontextmanager
async def binder(*, ipv6: bool) -> AsyncIterator[Binder]:
    """A socket on any free port.

    Raises:
        OSError: the system has no such family.
    """
    family = socket.AF_INET6 if ipv6 else socket.AF_INET
    own = Binder()
    await asyncio.get_running_loop().create_datagram_endpoint(lambda: own, local_addr=(ANY[ipv6], 0), family=family)
    try:
        yield own
    finally:
        own.close()


def _read(answer: StunMessage, source: Address, at: float) -> Answer:
    """Raises ValueError for an address that is none."""
    mapped, other = answer.get(Attribute.XOR_MAPPED_ADDRESS), answer.get(Attribute.OTHER_ADDRESS)
    refused = answer.kind is not Class.RESPONSE or mapped is None
    return Answer(
        None if refused or mapped is None else stun.unpack_xor_address(mapped, answer.transaction),
        None if other is None else stun.unpack_address(other),
        source,
        at,
    )
