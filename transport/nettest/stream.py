"""STUN over TCP and TLS to a relay: requests and their answers, and then the bytes of a speed test (RFC 8489 section 6.2.2)."""

import asyncio
import contextlib
import secrets
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Iterable

from aioice.stun import Class, Method
from aioice.turn import make_integrity_key

from transport.ice.ice import IceServer
from transport.nettest.errors import SpeedError
from transport.relay import message
from transport.relay.errors import MalformedMessageError
from transport.relay.message import Attribute, StunMessage
from transport.relay.speed import Direction

HEADER = 20
MAX_ANSWER = 2048  # A challenge takes under 300 bytes.
STALE_NONCE = 438
UNAUTHORIZED = 401
REFUSALS = {
    400: "it does not measure speed",
    420: "it does not measure speed",
    486: "it has measured often enough for you in this hour",
    508: "it measures for others just now: try again in a minute",
}


class RelayStream(asyncio.Protocol):
    """One connection; ``connect`` opens it."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.on_bytes: Callable[[bytes], None] | None = None
        self.on_room: Callable[[], None] | None = None
        self.full = False
        self.closed = asyncio.Event()
        self._buffer = bytearray()
        self._news = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self.closed.set()
        self._news.set()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        if self.on_bytes is not None:
            self.on_bytes(data)
            return
        self._buffer += data
        self._news.set()

    def pause_writing(self) -> None:
        """Called by asyncio."""
        self.full = True

    def resume_writing(self) -> None:
        """Called by asyncio."""
        self.full = False
        if self.on_room is not None:
            self.on_room()

    async def ask(
        self, method: Method, attributes: Iterable[tuple[Attribute, bytes]] = (), key: bytes | None = None
    ) -> StunMessage:
        """Send a request and wait for its answer, for as long as the connection lasts.

        Raises:
            SpeedError: the other end hangs up or speaks no STUN.
        """
        transaction = secrets.token_bytes(12)
        assert self.transport is not None
        self.transport.write(message.encode(method, Class.REQUEST, transaction, attributes, key))
        while (answer := self._next()) is None or answer.transaction != transaction:
            if self.closed.is_set():
                raise SpeedError("it ended the connection")
            if answer is None:
                self._news.clear()
                await self._news.wait()
        return answer

    def take_over(self, on_bytes: Callable[[bytes], None]) -> None:
        """Hand everything that comes from now on, and what has come already, to ``on_bytes``."""
        self.on_bytes = on_bytes
        waiting = bytes(self._buffer)
        self._buffer.clear()
        if waiting:
            on_bytes(waiting)

    def _next(self) -> StunMessage | None:
        if len(self._buffer) < HEADER:
            return None
        length = HEADER + int(struct.unpack_from("!H", self._buffer, 2)[0])
        if length > MAX_ANSWER:
            raise SpeedError("it does not speak STUN")
        if len(self._buffer) < length:
            return None
        data = bytes(self._buffer[:length])
        del self._buffer[:length]
        try:
            return message.parse(data)
        except MalformedMessageError as error:
            raise SpeedError(f"it does not speak STUN: {error}") from error


def trusted(server: IceServer) -> ssl.SSLContext | None:
    """Whom to believe in TLS with this relay; reads some hundred certificates, tens of milliseconds. None: without TLS.

    Raises:
        OSError: the relay's ``ca_file`` cannot be read, or holds no certificate.
    """
    return ssl.create_default_context(cafile=server.ca_file or None) if server.secure else None


@contextlib.asynccontextmanager
async def connect(server: IceServer, trust: ssl.SSLContext | None = None) -> AsyncIterator[RelayStream]:
    """A connection to a relay by TCP or TLS, ended at once on leaving; ``trust`` is what ``trusted`` gave, to read it once.

    Raises:
        OSError: there is no way there, or the certificate does not hold.
    """
    context = trust
    if context is None and server.secure:
        context = await asyncio.to_thread(trusted, server)
    loop = asyncio.get_running_loop()
    transport, stream = await loop.create_connection(RelayStream, server.host, server.port, ssl=context)
    try:
        yield stream
    finally:
        transport.abort()


async def begin_trial(stream: RelayStream, server: IceServer, direction: Direction) -> None:
    """Ask the relay for a speed test on this connection; from its answer on nothing else goes over it.

    Raises:
        SpeedError: it refuses; the text says why.
    """
    wanted = (Attribute.SPEED_TEST, message.uint32(direction))
    answer = await stream.ask(Method.ALLOCATE, [wanted])
    for _ in range(2):  # A nonce that has just ended is replaced once.
        if _code(answer) not in (UNAUTHORIZED, STALE_NONCE):
            break
        realm, nonce = answer.get(Attribute.REALM) or b"", answer.get(Attribute.NONCE) or b""
        key = make_integrity_key(server.username, realm.decode(errors="replace"), server.credential)
        proof = [(Attribute.USERNAME, server.username.encode()), (Attribute.REALM, realm), (Attribute.NONCE, nonce)]
        answer = await stream.ask(Method.ALLOCATE, [wanted, *proof], key)
        if _code(answer) == UNAUTHORIZED:
            raise SpeedError("it does not accept the credentials")
    if answer.kind is not Class.RESPONSE:
        code = _code(answer)
        raise SpeedError(REFUSALS.get(code, f"it answers with error {code}"))


def _code(answer: StunMessage) -> int:
    value = answer.get(Attribute.ERROR_CODE)
    return value[2] * 100 + value[3] if value is not None and len(value) >= 4 else 0
