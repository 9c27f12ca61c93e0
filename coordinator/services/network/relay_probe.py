"""Asking a relay whether it is there, over the network that nodes use too."""

import asyncio
import secrets

from common.clock import Clock
from protocol.stun import TRANSACTION_BYTES, StunError, decode_binding, encode_binding
from transport.ice.ice import parse_ice

PROBE_S = 2.0  # No relay of use is farther away.
RESEND_S = 0.5  # One lost datagram is not the relay's fault (RFC 8489, section 6.2.1).


async def probe(url: str, clock: Clock) -> float | None:
    """Round trip to a relay in seconds, or None where it does not answer within ``PROBE_S``.

    A relay for UDP is asked for a STUN Binding; of one for TCP or TLS it counts that it takes the connection.

    Args:
        url: ``turn:HOST:PORT?transport=udp|tcp`` or ``turns:HOST:PORT``, already checked.
    """
    where = parse_ice(url)
    ask = _binding if where.udp else _connect
    try:
        async with clock.timeout(PROBE_S):
            return await ask(where.host, where.port, clock)
    except (OSError, TimeoutError):
        return None


async def _connect(host: str, port: int, clock: Clock) -> float:
    begun = clock.now()
    _, writer = await asyncio.open_connection(host, port)
    writer.close()
    return clock.now() - begun


async def _binding(host: str, port: int, clock: Clock) -> float:
    loop = asyncio.get_running_loop()
    asker = _Asker(clock)
    transport, _ = await loop.create_datagram_endpoint(lambda: asker, remote_addr=(host, port))
    try:
        while True:
            transport.sendto(asker.ask())
            try:
                async with clock.timeout(RESEND_S):
                    return await asyncio.shield(asker.answered)
            except TimeoutError:
                continue
    finally:
        asker.answered.cancel()
        transport.close()


class _Asker(asyncio.DatagramProtocol):
    """Knows which questions are open, and when each was asked."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asked: dict[bytes, float] = {}
        self.answered: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def ask(self) -> bytes:
        transaction = secrets.token_bytes(TRANSACTION_BYTES)
        self._asked[transaction] = self._clock.now()
        return encode_binding(transaction)

    def datagram_received(self, data: bytes, addr: object) -> None:
        asked = self._asked.get(data[8:20])
        if asked is None or self.answered.done():
            return
        try:
            decode_binding(data, data[8:20])
        except StunError:
            return  # Anybody can send such a thing: the relay's own answer may still come.
        self.answered.set_result(self._clock.now() - asked)

    def error_received(self, exc: Exception) -> None:
        """The port is closed now; it may open before the time is over."""
