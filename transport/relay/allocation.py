"""One client's relayed address: its socket, whom it may talk to, and the packets in both directions (RFC 8656 sections 9-12)."""

import random
import struct
from collections.abc import Sequence
from typing import Protocol

from aioice.stun import Class, Method

from transport.relay import message
from transport.relay.credentials import RelayGrant
from transport.relay.datagrams import DatagramSocket
from transport.relay.errors import ListenError, RequestRefusedError
from transport.relay.message import Address, Attribute
from transport.relay.speed import Trial
from transport.relay.usage import Bucket, Counters, User

PERMISSION_S = 300.0  # RFC 8656 section 9.
CHANNEL_S = 600.0  # RFC 8656 section 12. aioice renews after 500 s and counts on the permission lasting as long.
CHANNEL_REST_S = 300.0  # RFC 8656 section 12: a number or peer is not bound anew until stray packets are gone.
CHANNELS = range(0x4000, 0x5000)
SOCKET_BYTES = 1 << 20  # 8 ms at 1 Gbit/s, while the event loop serves others; taken only while packets wait.
PORT_TRIES = 64  # With half of the ports taken, 64 random tries fail once in 10^19.


class ClientPath(Protocol):
    """The way to a client: a UDP address, or a connection.

    Attributes:
        address: where its packets come from.
        allocation: what it holds.
    """

    address: Address
    allocation: "Allocation | None"

    def write(self, data: bytes) -> None:
        """Send one STUN message."""

    def write_channel(self, number: int, datagrams: Sequence[memoryview]) -> int:
        """Send ChannelData, all equally long but the last, which may be shorter; how many of them could leave."""

    def released(self) -> None:
        """Its allocation has ended."""

    def changed(self, change: int) -> "ClientPath | None":
        """The way by another address or port of the relay (CHANGE-REQUEST, RFC 5780); None where there is none."""

    def measure(self, trial: Trial) -> None:
        """Begin a speed test once the answer is written.

        Raises:
            RefusedError: 400, not on this way.
        """

    def origin(self) -> Sequence[Address]:
        """The relay's address on this way, and the one with other IP address and port where there is one."""


class Shared(Protocol):
    """What an allocation needs of its relay."""

    counters: Counters
    bucket: Bucket

    def relayed_at(self, address: Address) -> "Allocation | None":
        """This relay's own allocation with such a relayed address."""

    def closed(self, ip: str) -> bool:
        """Whether nothing but relayed addresses may be reached at this IP address: it is the relay's own."""


class Channel:
    """A number of two bytes that stands for a peer."""

    __slots__ = ("expires", "number", "peer")

    def __init__(self, number: int, peer: Address) -> None:
        self.number = number
        self.peer = peer
        self.expires = 0.0


class Allocation:
    """A relayed address and its rules.

    Attributes:
        relayed: as peers see it.
        expires: monotonic seconds.
        transaction: of the request that made it: a repetition is answered alike.
    """

    def __init__(
        self, relay: Shared, client: ClientPath, grant: RelayGrant, user: User, socket: DatagramSocket, relayed: Address
    ) -> None:
        """``socket`` becomes the allocation's own; ``relayed`` is its address as peers see it."""
        self.client = client
        self.grant = grant
        self.user = user
        self.socket = socket
        self.relayed = relayed
        self.expires = 0.0
        self.transaction = b""
        self._relay = relay
        self._permissions: dict[str, float] = {}
        self._channels: dict[int, Channel] = {}
        self._numbers: dict[Address, Channel] = {}

    def permit(self, ips: Sequence[str], now: float, limit: int, seconds: float = PERMISSION_S) -> None:
        """Let packets pass to and from these IP addresses.

        Raises:
            RefusedError: 508, more than ``limit`` of them.
        """
        if len(self._permissions.keys() | set(ips)) > limit:
            self._permissions = {ip: end for ip, end in self._permissions.items() if end > now}
            if len(self._permissions.keys() | set(ips)) > limit:
                raise RequestRefusedError(508, "Too Many Permissions")
        for ip in ips:
            self._permissions[ip] = max(self._permissions.get(ip, 0.0), now + seconds)

    def bind(self, number: int, peer: Address, now: float, limit: int) -> None:
        """Let ``number`` stand for ``peer``.

        Raises:
            RefusedError: 400, the number or the peer is bound otherwise; 508, more than ``limit`` of them.
        """
        channel = self._channels.get(number)
        if channel is None or channel.peer != peer or peer not in self._numbers:
            self._forget_channels(now)
            if number in self._channels or peer in self._numbers:
                raise RequestRefusedError(400, "Channel Bound Otherwise")
            if len(self._channels) >= limit:
                raise RequestRefusedError(508, "Too Many Channels")
            channel = Channel(number, peer)
        self.permit([peer[0]], now, limit, CHANNEL_S)
        self._channels[number] = self._numbers[peer] = channel
        channel.expires = now + CHANNEL_S

    def from_client(self, data: memoryview, size: int, now: float) -> list[memoryview]:
        """Send ChannelData on to the peers; what is none is given back.

        Args:
            data: datagrams of ``size`` bytes, the last may be shorter.
        """
        others: list[memoryview] = []
        run: list[memoryview] = []
        to: Address | None = None
        for start in range(0, len(data), size):
            datagram = data[start : start + size]
            if not 0x40 <= datagram[0] <= 0x4F:
                others.append(datagram)
                continue
            peer, payload = self._open(datagram, now)
            if peer is None:
                self._relay.counters.drop("no channel")
                continue
            if run and (peer != to or not _fits(payload, run)):
                self._send(run, to, now)
                run = []
            to = peer
            run.append(payload)
        self._send(run, to, now)
        return others

    def send(self, payload: memoryview, peer: Address, now: float) -> None:
        """Send one datagram of a SEND indication."""
        if self._permissions.get(peer[0], 0.0) <= now:
            self._relay.counters.drop("no permission")
            return
        self._send([payload], peer, now)

    def from_peers(self, now: float) -> None:
        """Send what has arrived on to the client."""
        for data, size, peer in self.socket.receive():
            datagrams = [data[start : start + size] for start in range(0, len(data), size)] or [data]
            self.deliver(datagrams, peer, now)

    def deliver(self, datagrams: Sequence[memoryview], peer: Address, now: float) -> None:
        """Send datagrams of one peer to the client, all equally long but the last, which may be shorter."""
        counters = self._relay.counters
        if self._permissions.get(peer[0], 0.0) <= now or self.expires <= now:
            counters.drop("no permission", len(datagrams))
            return
        total = sum(map(len, datagrams))
        if not self._pay(total, now):
            counters.drop("rate", len(datagrams))
            return
        channel = self._numbers.get(peer)
        if channel is not None and channel.expires > now:
            taken = self.client.write_channel(channel.number, datagrams)
            if taken < len(datagrams):
                counters.drop("buffer", len(datagrams) - taken)
        else:
            for datagram in datagrams:
                self.client.write(_data_indication(datagram, peer))
        counters.to_clients_bytes += total
        counters.to_clients_packets += len(datagrams)
        self.user.bytes_relayed += total

    def _open(self, datagram: memoryview, now: float) -> tuple[Address | None, memoryview]:
        """Peer and payload of one ChannelData message; no peer where it goes nowhere."""
        if len(datagram) < 4:
            return None, datagram
        number, length = struct.unpack_from("!HH", datagram)
        channel = self._channels.get(number)
        if channel is None or channel.expires <= now or length > len(datagram) - 4:
            return None, datagram
        return channel.peer, datagram[4 : 4 + length]

    def _send(self, run: Sequence[memoryview], peer: Address | None, now: float) -> None:
        """Send datagrams to a peer that has a permission, all equally long but the last, which may be shorter."""
        if peer is None or not run:
            return
        counters = self._relay.counters
        total = sum(map(len, run))
        if self.expires <= now or not self._pay(total, now):
            counters.drop("rate", len(run))
            return
        counters.to_peers_bytes += total
        counters.to_peers_packets += len(run)
        self.user.bytes_relayed += total
        neighbour = self._relay.relayed_at(peer)
        if neighbour is not None:
            neighbour.deliver(run, self.relayed, now)
            return
        if self._relay.closed(peer[0]):
            counters.drop("own address", len(run))
            return
        taken = self.socket.send(run, 1, peer)
        if taken < len(run):
            counters.drop("buffer", len(run) - taken)

    def _pay(self, total: int, now: float) -> bool:
        return self.user.bucket.take(total, now) and self._relay.bucket.take(total, now)

    def _forget_channels(self, now: float) -> None:
        for channel in list(self._channels.values()):
            if channel.expires + CHANNEL_REST_S <= now:
                del self._channels[channel.number]
                del self._numbers[channel.peer]


def _fits(payload: memoryview, run: Sequence[memoryview]) -> bool:
    """Whether the system can send it in one call with the others: equally long, only the last shorter and not empty."""
    return 0 < len(payload) <= len(run[0]) == len(run[-1])


def _data_indication(payload: memoryview, peer: Address) -> bytes:
    transaction = random.randbytes(12)  # noqa: S311  # Nobody answers an indication: the number protects nothing.
    attributes = (
        (Attribute.XOR_PEER_ADDRESS, message.xor_address(peer, transaction)),
        (Attribute.DATA, bytes(payload)),
    )
    return message.encode(Method.DATA, Class.INDICATION, transaction, attributes)


def bind_any(ip: str, low: int, high: int, *, offload: bool) -> DatagramSocket:
    """A socket on a free port between ``low`` and ``high``; on any free port where ``high`` is 0.

    The port is random: who can guess it can spoof the address of a peer.

    Raises:
        ListenError: no port is free.
    """
    if not high:
        return DatagramSocket((ip, 0), SOCKET_BYTES, offload=offload)
    for _ in range(PORT_TRIES):
        port = random.SystemRandom().randint(low, high)
        try:
            return DatagramSocket((ip, port), SOCKET_BYTES, offload=offload)
        except ListenError:
            continue
    raise ListenError(f"no free port of {ip} between {low} and {high} in {PORT_TRIES} tries")
