"""The relay as a whole: its sockets, its timer, its beginning and end."""

import asyncio
import ipaddress
import struct
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType

import ifaddr

from common.clock import Clock, SystemClock
from transport.relay.allocation import Allocation
from transport.relay.datagrams import Buffer, DatagramSocket
from transport.relay.desk import RelayDesk
from transport.relay.errors import ListenError, RequestRefusedError
from transport.relay.message import Address
from transport.relay.options import RelayOptions
from transport.relay.speed import Trial
from transport.relay.stream import RelayConnection
from transport.relay.usage import Users

SOCKET_BYTES = 4 << 20  # All clients share it: 32 ms at 1 Gbit/s.
REAP_S = 5.0  # An allocation that ended answers 437 at once; its port is free after so long.
TLS_HANDSHAKE_S = 10.0
PAIR_TRIES = 10  # A port that is free for TCP is free for UDP nearly always.
CHANGE_IP = 4  # RFC 5780 section 7.2
CHANGE_PORT = 2


class UdpClient:
    """A client by its UDP address."""

    __slots__ = ("_listener", "address", "allocation")

    def __init__(self, listener: "UdpListener", address: Address) -> None:
        self._listener = listener
        self.address = address
        self.allocation: Allocation | None = None

    def write(self, data: bytes) -> None:
        """Send one STUN message."""
        self._listener.socket.send([data], 1, self.address)

    def write_channel(self, number: int, datagrams: Sequence[memoryview]) -> int:
        """Send ChannelData, all equally long but the last, which may be shorter; how many of them could leave."""
        header = struct.pack("!HH", number, len(datagrams[0]))
        parts: list[Buffer] = [part for datagram in datagrams for part in (header, datagram)]
        parts[-2] = struct.pack("!HH", number, len(datagrams[-1]))
        return self._listener.socket.send(parts, 2, self.address)

    def released(self) -> None:
        """Its allocation has ended."""
        self._listener.forget(self.address)

    def changed(self, change: int) -> "UdpClient | None":
        """The way by another of the relay's sockets."""
        other = self._listener.changed(change)
        return UdpClient(other, self.address) if other is not None else None

    def measure(self, trial: Trial) -> None:
        """Refuse: a UDP address may be forged."""
        trial.end()
        raise RequestRefusedError(400, "Speed Tests Need TCP")

    def origin(self) -> Sequence[Address]:
        """The relay's address here, and the one with other IP address and port where there is one."""
        return self._listener.origin()


class UdpListener:
    """One UDP port that clients send to.

    Attributes:
        others: listeners by what differs from this one: address, port, or both (CHANGE-REQUEST).
    """

    def __init__(self, desk: RelayDesk, clock: Clock, socket: DatagramSocket, public_ip: str, *, relays: bool) -> None:
        """``relays``: not only Binding requests are answered."""
        self.socket = socket
        self.public: Address = (public_ip, socket.address[1])
        self.others: dict[int, UdpListener] = {}
        self._desk = desk
        self._clock = clock
        self._clients: dict[Address, UdpClient] = {}
        self._relays = relays

    def readable(self) -> None:
        """Take what has arrived."""
        now = self._clock.now()
        for data, size, address in self.socket.receive():
            client = self._clients.get(address)
            others: Sequence[memoryview]
            if client is not None and client.allocation is not None:
                others = client.allocation.from_client(data, size, now)
            else:
                others = [data[start : start + size] for start in range(0, len(data), size)]
            for datagram in others:
                self._control(bytes(datagram), address)

    def forget(self, address: Address) -> None:
        """A client has no allocation any more."""
        self._clients.pop(address, None)

    def changed(self, change: int) -> "UdpListener | None":
        """The listener with another address or port; None where there is none."""
        return self.others.get(change & (CHANGE_IP | CHANGE_PORT)) if change else self

    def origin(self) -> Sequence[Address]:
        """This address, and the one to try for NAT kinds where there is one."""
        other = self.others.get(CHANGE_IP | CHANGE_PORT) or self.others.get(CHANGE_PORT)
        return (self.public, other.public) if other is not None else (self.public,)

    def _control(self, data: bytes, address: Address) -> None:
        if not self._relays and data[:2] != b"\x00\x01":
            self._desk.counters.drop("malformed")
            return
        client = self._clients.get(address) or UdpClient(self, address)
        self._desk.handle(data, client)
        if client.allocation is not None:
            self._clients[address] = client


class RelayServer:
    """A running TURN and STUN server.

    ::

        async with RelayServer(RelayOptions(secret)) as relay:
            print(relay.addresses)

    Attributes:
        desk: counters, users and allocations.
        addresses: where it relays, as clients see it; the first is the main one.
        tls_addresses: where it does so over TLS.
    """

    def __init__(self, options: RelayOptions, clock: Clock | None = None) -> None:
        """Nothing begins before ``start``."""
        self.options = options
        self.addresses: list[Address] = []
        self.tls_addresses: list[Address] = []
        self._clock = clock or SystemClock()
        own = {str(ip.ip if ip.is_IPv4 else ip.ip[0]) for adapter in ifaddr.get_adapters() for ip in adapter.ips}
        self.desk = RelayDesk(options, self._clock, own, self._watch, self._unwatch)
        self.started = self._clock.time()
        self._listeners: list[UdpListener] = []
        self._servers: list[asyncio.Server] = []
        self._streams: Counter[str] = Counter()
        self._connections: set[RelayConnection] = set()
        self._reaper: asyncio.Task[None] | None = None

    @property
    def users(self) -> Users:
        """Who relays, and how much."""
        return self.desk.users

    @property
    def allocations(self) -> int:
        """Relayed addresses in use."""
        return len(self.desk.allocations)

    @property
    def allocations_max(self) -> int:
        """The most of them."""
        return self.options.quota.allocations

    @property
    def connections(self) -> int:
        """Clients over TCP and TLS."""
        return len(self._connections)

    @property
    def bytes_relayed(self) -> int:
        """Payload in both directions since the start."""
        return self.desk.counters.bytes_relayed

    @property
    def packets_dropped(self) -> int:
        """Packets that went nowhere since the start."""
        return sum(self.desk.counters.dropped.values())

    async def start(self) -> None:
        """Open every port.

        Raises:
            ListenError: one of them cannot be used; then none stays open.
        """
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.aclose)
            for ip in self.options.listen:
                await self._open(ip)
            _pair(self._listeners)
            loop = asyncio.get_running_loop()
            for listener in self._listeners:
                loop.add_reader(listener.socket.fileno(), listener.readable)
            self._reaper = asyncio.create_task(self._reap(), name="relay-reaper")
            stack.pop_all()

    async def aclose(self) -> None:
        """End every allocation and close every port; a second time does nothing."""
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.wait([self._reaper])
            self._reaper = None
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            loop.remove_reader(listener.socket.fileno())
            listener.socket.close()
        self._listeners.clear()
        for server in self._servers:
            server.close()
        for allocation in list(self.desk.allocations.values()):
            self.desk.release(allocation)
        for stream in list(self._connections):
            stream.abort()
        await asyncio.gather(*(server.wait_closed() for server in self._servers))
        self._servers.clear()

    async def __aenter__(self) -> "RelayServer":
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _open(self, ip: str) -> None:
        options, public = self.options, self.options.public(ip)
        server, socket = await self._open_pair(ip)
        self._servers.append(server)
        self._listeners.append(UdpListener(self.desk, self._clock, socket, public, relays=True))
        self.addresses.append((public, socket.address[1]))
        if options.nat_port is not None:
            extra = DatagramSocket((ip, options.nat_port), SOCKET_BYTES, offload=False)
            self._listeners.append(UdpListener(self.desk, self._clock, extra, public, relays=False))
        if options.tls_port is not None:
            secure = await self._listen(ip, options.tls_port, tls=True)
            self._servers.append(secure)
            self.tls_addresses.append((public, secure.sockets[0].getsockname()[1]))

    async def _open_pair(self, ip: str) -> tuple[asyncio.Server, DatagramSocket]:
        """TCP and UDP with the same number; a free one for port 0 may need a few tries."""
        for tries_left in reversed(range(PAIR_TRIES)):
            server = await self._listen(ip, self.options.port, tls=False)
            port = server.sockets[0].getsockname()[1]
            try:
                return server, DatagramSocket((ip, port), SOCKET_BYTES, offload=self.options.offload)
            except ListenError:
                server.close()
                if self.options.port or not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")

    async def _listen(self, ip: str, port: int, *, tls: bool) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        try:
            return await loop.create_server(
                lambda: RelayConnection(self.desk, self._clock.now, self._admit, self._leave),
                ip,
                port,
                ssl=self.options.tls if tls else None,
                ssl_handshake_timeout=TLS_HANDSHAKE_S if tls else None,
            )
        except OSError as error:
            raise ListenError(f"cannot use TCP port {port} of {ip}: {error.strerror}") from error

    def _admit(self, stream: RelayConnection) -> bool:
        quota, ip = self.options.quota, stream.address[0]
        if len(self._connections) >= quota.streams or self._streams[ip] >= quota.streams_per_address:
            self.desk.counters.drop("connections")
            return False
        self._connections.add(stream)
        self._streams[ip] += 1
        return True

    def _leave(self, stream: RelayConnection) -> None:
        self._connections.discard(stream)
        self._streams[stream.address[0]] -= 1
        self._streams += Counter()  # Drops zeros.

    def _watch(self, allocation: Allocation) -> None:
        asyncio.get_running_loop().add_reader(
            allocation.socket.fileno(), lambda: allocation.from_peers(self._clock.now())
        )

    def _unwatch(self, allocation: Allocation) -> None:
        asyncio.get_running_loop().remove_reader(allocation.socket.fileno())

    async def _reap(self) -> None:
        while True:
            await self._clock.sleep(REAP_S)
            self.desk.release_expired()


def _pair(listeners: Sequence[UdpListener]) -> None:
    """Tell each listener which others differ from it in address, port or both; only likes of one family and reach are paired."""
    for one in listeners:
        for other in listeners:
            kind = (CHANGE_IP if one.public[0] != other.public[0] else 0) | (
                CHANGE_PORT if one.public[1] != other.public[1] else 0
            )
            if kind and _reach(one) == _reach(other):
                one.others.setdefault(kind, other)


def _reach(listener: UdpListener) -> tuple[int, bool, bool]:
    ip = ipaddress.ip_address(listener.public[0])
    return ip.version, ip.is_loopback, ip.is_private
