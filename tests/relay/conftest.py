"""Relays on loopback, ours and coturn, and clients for them: aioice's own, and one that sends whatever a test wants."""

import asyncio
import contextlib
import ipaddress
import secrets
import shutil
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from aioice import stun, turn
from aioice.stun import Class, Method

from common.clock import SystemClock
from tests.support.addresses import free_port
from tests.testbed.relay import make_certificate
from transport.ice.ice import turn_credentials
from transport.relay import coturn, message
from transport.relay.message import Address, Attribute
from transport.relay.options import RelayOptions
from transport.relay.server import RelayServer

SECRET = "shared with the coordinator"
REALM = "cottage"
LIMIT_S = 10.0
LOST_S = 4.0
LOOPBACK = (ipaddress.ip_network("127.0.0.1/32"), ipaddress.ip_network("::1/128"))
UDP_TRANSPORT = (Attribute.REQUESTED_TRANSPORT, bytes([17, 0, 0, 0]))


def relay_options(**changes: Any) -> RelayOptions:
    """A relay on loopback, any free ports, that may relay to loopback."""
    usual: dict[str, Any] = {"port": 0, "nat_port": 0, "min_port": 0, "max_port": 0, "allowed": LOOPBACK}
    return RelayOptions(**{"secret": SECRET, **usual, **changes})


def credentials(user: str = "node", lifetime_s: int = 3600, secret: str = SECRET) -> tuple[str, str]:
    return turn_credentials(secret, user, time.time(), lifetime_s)


def has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")


async def until(condition: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    """Return once ``condition`` holds; TimeoutError says that it never did."""
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.002)


class Inbox(asyncio.DatagramProtocol):
    """What has arrived, with its sender."""

    def __init__(self) -> None:
        self.items: list[tuple[bytes, Address]] = []
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        pass

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.items.append((data, addr[:2]))

    async def next(self) -> tuple[bytes, Address]:
        await until(lambda: bool(self.items))
        return self.items.pop(0)


@contextlib.asynccontextmanager
async def peer(ip: str = "127.0.0.1") -> AsyncIterator[tuple[Inbox, Address]]:
    """A UDP port that is nobody's client."""
    transport, inbox = await asyncio.get_running_loop().create_datagram_endpoint(Inbox, local_addr=(ip, 0))
    try:
        yield inbox, transport.get_extra_info("sockname")[:2]
    finally:
        transport.close()


@contextlib.asynccontextmanager
async def relayed(
    server: Address, way: str = "udp", tls: Any = None, user: str = "node", secret: str = SECRET
) -> AsyncIterator[tuple[Inbox, turn.TurnTransport]]:
    """aioice's client with an allocation."""
    username, password = credentials(user, secret=secret)
    async with asyncio.timeout(LIMIT_S):
        transport, inbox = await turn.create_turn_endpoint(
            Inbox, server, username, password, transport=way, **({"ssl": tls} if tls else {})
        )
    try:
        yield inbox, transport
    finally:
        transport.close()
        inner = transport._TurnTransport__inner_protocol
        await until(inner.transport.is_closing)


class Asker:
    """A client over UDP that signs and sends any request."""

    def __init__(self, inbox: Inbox, server: Address, user: str) -> None:
        self.username, self.password = credentials(user)
        self.inbox = inbox
        self.nonce = b""
        self._server = server

    @property
    def key(self) -> bytes:
        return turn.make_integrity_key(self.username, REALM, self.password)

    @property
    def address(self) -> Address:
        return self.inbox.transport.get_extra_info("sockname")[:2]

    def send(self, data: bytes) -> None:
        self.inbox.transport.sendto(data, self._server)

    async def raw(self, method: Method, attributes: Iterable[tuple[int, bytes]] = (), **more: Any) -> stun.Message:
        """Ask, unsigned unless ``key`` is given; once more where nothing comes for a while, as UDP may lose (RFC 8489, 6.2.1)."""
        transaction = more.pop("transaction", secrets.token_bytes(12))
        request = message.encode(method, Class.REQUEST, transaction, attributes, more.get("key"))
        self.send(request)
        again = asyncio.get_running_loop().call_later(LOST_S, self.send, request)
        try:
            return await self.answer(transaction)
        finally:
            again.cancel()

    async def answer(self, transaction: bytes) -> stun.Message:
        while True:
            data, _ = await self.inbox.next()
            answer = stun.parse_message(data)
            if answer.transaction_id == transaction and answer.message_class != Class.INDICATION:
                return answer

    async def ask(self, method: Method, *attributes: tuple[int, bytes], **more: Any) -> stun.Message:
        """Ask with credentials, fetching a nonce first."""
        if not self.nonce:
            challenge = await self.raw(Method.ALLOCATE, [UDP_TRANSPORT])
            self.nonce = challenge.attributes["NONCE"]
        return await self.raw(method, [*attributes, *self.signature()], key=self.key, **more)

    def signature(self) -> list[tuple[int, bytes]]:
        return [
            (Attribute.USERNAME, self.username.encode()),
            (Attribute.REALM, REALM.encode()),
            (Attribute.NONCE, self.nonce),
        ]

    async def allocate(self, *attributes: tuple[int, bytes]) -> stun.Message:
        return await self.ask(Method.ALLOCATE, UDP_TRANSPORT, *attributes)

    async def permit(self, *ips: str) -> stun.Message:
        """Ask for permission for these addresses in one request."""
        transaction = secrets.token_bytes(12)
        peers = [(Attribute.XOR_PEER_ADDRESS, message.xor_address((ip, 4000), transaction)) for ip in ips]
        return await self.ask(Method.CREATE_PERMISSION, *peers, transaction=transaction)

    async def bind(self, number: int, target: Address) -> stun.Message:
        transaction = secrets.token_bytes(12)
        return await self.ask(
            Method.CHANNEL_BIND,
            (Attribute.CHANNEL_NUMBER, number.to_bytes(2, "big") + bytes(2)),
            (Attribute.XOR_PEER_ADDRESS, message.xor_address(target, transaction)),
            transaction=transaction,
        )

    def indicate(self, data: bytes, target: Address) -> None:
        transaction = secrets.token_bytes(12)
        attributes = [
            (Attribute.XOR_PEER_ADDRESS, message.xor_address(target, transaction)),
            (Attribute.DATA, data),
        ]
        self.send(message.encode(Method.SEND, Class.INDICATION, transaction, attributes))


@contextlib.asynccontextmanager
async def asker(server: Address, user: str = "node", ip: str = "127.0.0.1") -> AsyncIterator[Asker]:
    async with peer(ip) as (inbox, _):
        yield Asker(inbox, server, user)


def code(answer: stun.Message) -> int:
    """The error code; 0 for success."""
    return answer.error_code or 0


@contextlib.asynccontextmanager
async def any_relay(kind: str, **changes: Any) -> AsyncIterator[Address]:
    """Our relay or coturn with the same options; gives its address."""
    if kind == "ours":
        async with RelayServer(relay_options(**changes)) as server:
            yield server.addresses[0]
        return
    async with coturn_relay(**changes) as (address, _):
        yield address


@contextlib.asynccontextmanager
async def coturn_relay(**changes: Any) -> AsyncIterator[tuple[Address, coturn.CoturnMeter]]:
    """Debian's relay, its address and what its log tells."""
    low = 20000 + secrets.randbelow(200) * 50
    options = relay_options(**{"port": free_port(), "min_port": low, "max_port": low + 49, **changes})
    async with coturn.running(options, SystemClock()) as process:
        reading = asyncio.ensure_future(process.wait())
        try:
            yield (options.listen[0], options.port), process.meter
        finally:
            reading.cancel()
            await asyncio.wait([reading])


needs_coturn = pytest.mark.skipif(shutil.which(coturn.PROGRAM) is None, reason="coturn is not installed")


@pytest.fixture
async def relay() -> AsyncIterator[RelayServer]:
    async with RelayServer(relay_options()) as server:
        yield server


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    make_certificate(["127.0.0.1"], folder / "relay.pem", folder / "relay.key")
    return folder / "relay.pem", folder / "relay.key"
