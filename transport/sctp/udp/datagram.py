"""How DTLS datagrams meet the system: one interface, the quick way where the system has it, a portable one elsewhere.

``open_path`` takes over the DTLS datagrams of a nominated pair. aioice keeps the sockets and everything else that arrives
on them: connectivity checks, consent, TURN. ``close`` gives back what was taken.

Datagrams are lost here as on any full queue: what does not fit is not kept, and SCTP repairs it.
"""

import asyncio
import contextlib
import errno
import logging
import socket
import struct
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, ref

from common import clock
from transport.sctp.congestion.pacing import DENSE, LEAST_BURST_S
from transport.sctp.udp import offload, proactor
from transport.sctp.udp.offload import Address, DatagramRun
from transport.sctp.udp.route import CHANNEL_HEADER, UdpRoute, find_route

LOG = logging.getLogger(__name__)

FIRST_DTLS, LAST_DTLS = 20, 63  # The first byte tells the protocols on one port apart (RFC 7983, section 7).
STREAM_QUEUE = 128 << 10  # Unsent bytes before a TCP or TLS relay: 10 ms at 100 Mbit/s; more is only delay.
COMPONENT = 1  # Of ICE: data channels have one.
MANY = 48  # Datagrams of one reading that make it worth its wake-up.
ROOM_RETRY_S = 0.01  # Where not even a descriptor to wait on is left: look again.

Buffer = bytes | bytearray | memoryview
OnDatagrams = Callable[[list[DatagramRun]], None]

if sys.platform == "win32":
    proactor.mend()

_OWNERS: WeakKeyDictionary[Any, "ref[DatagramPath]"] = WeakKeyDictionary()


class DatagramPath(ABC):
    """The way of the DTLS datagrams of one nominated pair.

    Attributes:
        writable: False after the system's queue was full, until ``on_writable`` is called.
        overhead: bytes of IP, UDP (or TCP) and ChannelData headers around each datagram.
        interface_mtu: greatest IP packet that the first leg's interface takes.
        rest_s: while datagrams come a few at a time, wait for so many seconds before the next reading; 0: never. Saves most of
            the wake-ups of a line at 20 to 1,000 Mbit/s; the shortest, ``LEAST_BURST_S``, only while they come densely.
    """

    def __init__(
        self,
        route: UdpRoute,
        loop: asyncio.AbstractEventLoop,
        on_datagrams: OnDatagrams,
        on_writable: Callable[[], None] | None,
        on_too_big: Callable[[int], None] | None,
    ) -> None:
        """Take over; see ``open_path``."""
        self.writable = True
        self.overhead = route.overhead
        self.interface_mtu = route.interface_mtu()
        self._route = route
        self._loop = loop
        self._on_datagrams = on_datagrams
        self.rest_s = 0.0
        self._on_writable = on_writable
        self._on_too_big = on_too_big
        self._closed = False
        self._batch: list[DatagramRun] = []
        self._hook = self._data_received
        self._original: Callable[[bytes, int], None] = route.receiver.data_received
        route.receiver.data_received = self._hook
        end = route.transport.get_extra_info("socket")
        self._fragments: int | None = None
        if end is not None:
            offload.widen_buffers(end)
            self._fragments = None if route.stream else offload.forbid_fragments(end)

    @property
    @abstractmethod
    def offload(self) -> str:
        """How packets meet the system: "gso+gro", "gso", "gro", "batched" or "portable"."""

    @property
    def max_payload(self) -> int:
        """Longest datagram that the first leg's interface takes."""
        return min(self.interface_mtu, offload.MAX_RECEIVE) - self.overhead

    @property
    def truthful(self) -> bool:
        """Whether the path's MTU can be probed: packets carry the don't-fragment bit, or TCP cuts the first leg to size."""
        return self._route.stream or self._fragments is not None

    def let_fragment(self, allowed: bool) -> None:
        """Let routers cut packets for now, or no longer.

        When the path's MTU has fallen, a chunk that has its number already cannot be cut any more: only IP can (RFC 9260,
        section 6.9). Nothing happens where ``truthful`` is False.
        """
        end = self._route.transport.get_extra_info("socket")
        if self._fragments is None or self._closed or self._route.transport.is_closing():
            return
        if allowed:
            offload.allow_fragments(end)
        else:
            offload.forbid_fragments(end)

    @abstractmethod
    def send(self, buffer: Buffer, segment: int) -> None:
        """Send datagrams of ``segment`` bytes each, one after the other in ``buffer``; the last may be shorter.

        Never raises for what the network does: what cannot be sent is lost. ``segment`` must be above 0.
        """

    def send_one(self, datagram: Buffer) -> None:
        """Send one datagram, as ``send`` does."""
        self.send(datagram, max(1, len(datagram)))

    def close(self) -> None:
        """Give everything back to aioice, with what has come and was not handed on; nothing is called any more."""
        if self._closed:
            return
        self._closed = True
        receiver = self._route.receiver
        if receiver.data_received is self._hook:
            receiver.data_received = self._original
        transport = self._route.transport
        if _owner(transport) is self:
            del _OWNERS[transport]
        end = transport.get_extra_info("socket")
        if not transport.is_closing() and end is not None and self._fragments is not None:
            offload.allow_fragments(end, self._fragments)
        batch, self._batch = self._batch, []
        for run in batch:  # The end of the DTLS session, perhaps, right behind the association's.
            for data in run.each():
                self._original(data, COMPONENT)

    def _data_received(self, data: bytes, component: int) -> None:
        """In aioice's place: DTLS from any of the connection's sockets waits for the end of the loop's iteration."""
        if self._closed:
            self._original(data, component)
        elif not data:
            return  # An empty datagram, which anybody may send, ends aiortc's DTLS task with an IndexError.
        elif FIRST_DTLS <= data[0] <= LAST_DTLS:
            if not self._batch:
                self._loop.call_soon(self._deliver)
            self._batch.append(DatagramRun(data, len(data)))
        else:
            self._original(data, component)

    def _deliver(self) -> None:
        batch, self._batch = self._batch, []
        if batch:  # Empty where the path was closed meanwhile, or a reading took it along.
            self._on_datagrams(batch)

    def _full(self) -> None:
        self.writable = False

    def _room(self) -> None:
        if not self._closed and not self.writable:
            self.writable = True
            if self._on_writable is not None:
                self._on_writable()

    def _failed(self, error: OSError, segment: int) -> None:
        """A datagram was refused: lost, and told to whom it concerns."""
        if error.errno == errno.EMSGSIZE:
            if self._on_too_big is not None:
                self._on_too_big(segment + self.overhead)
        elif error.errno != errno.ENOBUFS:  # The interface's queue is full (macOS): a loss like any other.
            self._route.flow.error_received(error)


class SocketPath(DatagramPath):
    """Reads and writes the UDP socket itself, beside asyncio's transport; for selector event loops on Unix."""

    def __init__(self, end: socket.socket, route: UdpRoute, *arguments: Any) -> None:
        """Take over reading from ``end``, the socket of the route's transport."""
        super().__init__(route, *arguments)
        self._end = end
        self._descriptor = end.fileno()
        self._waiting: socket.socket | None = None
        self._resting: asyncio.TimerHandle | None = None
        self._sender = offload.UdpSender(end, route.destination, segmenting=offload.can_segment(end))
        self._coalescing = offload.coalesce(end, True)
        self._read_at = clock.instant()
        _replace_reader(self._loop, self._descriptor, self._readable)

    @property
    def offload(self) -> str:
        """See DatagramPath; "batched": many datagrams a wake-up, each with its own system call."""
        names = [name for name, on in (("gso", self._sender.segmenting), ("gro", self._coalescing)) if on]
        return "+".join(names) or "batched"

    def send(self, buffer: Buffer, segment: int) -> None:
        """See DatagramPath."""
        route = self._route
        channel = route.channel if route.relay is not None else None
        if route.relay is not None and channel is None:
            _through_relay(route, buffer, segment)
            return
        try:
            self._sender.send(buffer, segment, channel)
        except BlockingIOError:
            self._full()
        except OSError as error:
            self._refused(error, segment)

    def close(self) -> None:
        """See DatagramPath. Bursts that the kernel has already joined are lost."""
        if self._closed:
            return
        super().close()
        self._stop_waiting()
        if self._resting is not None:
            self._resting.cancel()
        transport = self._route.transport
        if not transport.is_closing():
            offload.coalesce(self._end, False)
            _replace_reader(self._loop, self._descriptor, transport._read_ready)

    def _refused(self, error: OSError, segment: int) -> None:
        if self._route.transport.is_closing():
            LOG.debug("a datagram met a closed socket: %s", error)
        else:
            self._failed(error, segment)

    def _full(self) -> None:
        """Wait for room on a second descriptor: asyncio may be waiting on the first for its own datagrams."""
        super()._full()
        if self._waiting is not None or self._closed:
            return
        try:
            self._waiting = self._end.dup()
        except OSError as error:
            LOG.debug("no descriptor to wait for room on: %s", error)
            self._loop.call_later(ROOM_RETRY_S, self._room)
        else:
            self._loop.add_writer(self._waiting, self._room)

    def _room(self) -> None:
        self._stop_waiting()
        super()._room()

    def _stop_waiting(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._loop.remove_writer(waiting)
            waiting.close()

    def _readable(self) -> None:
        """Read; where packets come one by one, let the next ones gather before they are read."""
        before, self._read_at = self._read_at, clock.instant()
        count = self._read()
        least = 1 if self.rest_s > LEAST_BURST_S else max(1.0, DENSE * (self._read_at - before))
        resting, self._resting = self._resting is not None, None
        if self._closed or self._route.transport.is_closing():
            return
        if self.rest_s and least <= count < MANY:
            if not resting:
                _replace_reader(self._loop, self._descriptor, None)
            self._resting = self._loop.call_later(self.rest_s, self._readable)
        elif resting:
            _replace_reader(self._loop, self._descriptor, self._readable)

    def _read(self) -> int:
        """Read a burst, and hand on the DTLS datagrams in it together and everything else one by one; returns how many."""
        if self._route.transport.is_closing():
            return 0
        batch, self._batch = self._batch, []
        try:
            for data, size, address in offload.receive(self._end):
                self._sort(data, size, address, batch)
        except OSError as error:
            self._refused(error, 0)
        if batch and not self._closed:
            self._on_datagrams(batch)
        return sum(run.datagrams for run in batch)

    def _sort(self, data: bytes, size: int, address: Address, batch: list[DatagramRun]) -> None:
        relayed = self._route.relay is not None
        channel = self._route.channel
        firsts = data[::size]
        if not relayed and firsts and min(firsts) >= FIRST_DTLS and max(firsts) <= LAST_DTLS:
            batch.append(DatagramRun(data, size))
            return
        for datagram in DatagramRun(data, size).each():  # None for an empty one: see _data_received.
            if not relayed and FIRST_DTLS <= datagram[0] <= LAST_DTLS:
                batch.append(DatagramRun(datagram, len(datagram)))
            elif relayed and (payload := _channel_payload(datagram, channel)):
                batch.append(DatagramRun(payload, len(payload)))
            else:
                # Each in its own callback: whatever a hostile datagram makes of aioice, it does that to no other's.
                self._loop.call_soon(self._route.flow.datagram_received, datagram, address)


class PortablePath(DatagramPath):
    """Uses asyncio's transports only: any event loop, any system, and relays reached over TCP or TLS."""

    def __init__(self, route: UdpRoute, *arguments: Any) -> None:
        """Take over; asyncio tells of full queues."""
        super().__init__(route, *arguments)
        if route.stream:
            route.transport.set_write_buffer_limits(high=STREAM_QUEUE)
        self._flow_control = {"pause_writing": self._full, "resume_writing": self._room}
        for name, told in self._flow_control.items():
            setattr(route.flow, name, told)

    @property
    def offload(self) -> str:
        """Always "portable"."""
        return "portable"

    def send(self, buffer: Buffer, segment: int) -> None:
        """See DatagramPath."""
        route, transport = self._route, self._route.transport
        if not self.writable or transport.is_closing():
            return
        channel = route.channel
        if route.relay is not None and channel is None:
            _through_relay(route, buffer, segment)
            return
        view = memoryview(buffer)
        datagrams = [view[i : i + segment] for i in range(0, len(view), segment)]
        if channel is not None and route.stream:
            transport.write(b"".join(_stream_message(datagram, channel) for datagram in datagrams))
        else:
            for datagram in datagrams:
                self._send_datagram(datagram, channel)

    def _send_datagram(self, datagram: memoryview, channel: int | None) -> None:
        if len(datagram) + self.overhead > self.interface_mtu:
            # asyncio would tell the protocol of EMSGSIZE, not the sender.
            self._failed(OSError(errno.EMSGSIZE, "longer than the interface takes"), len(datagram))
        elif channel is not None:
            self._route.transport.sendto(struct.pack("!HH", channel, len(datagram)) + datagram)
        else:
            self._route.transport.sendto(datagram, self._route.destination)

    def close(self) -> None:
        """See DatagramPath."""
        if self._closed:
            return
        super().close()
        flow = self._route.flow
        for name, told in self._flow_control.items():
            if flow.__dict__.get(name) == told:
                delattr(flow, name)


def _replace_reader(loop: Any, descriptor: int, reader: Callable[[], None] | None) -> None:
    """Let ``reader``, or nobody, read in the place of whoever does; asyncio refuses a transport's socket in public."""
    loop._remove_reader(descriptor)
    if reader is not None:
        loop._add_reader(descriptor, reader)


def _channel_payload(datagram: bytes, channel: int | None) -> bytes | None:
    """The DTLS datagram in a ChannelData message from the peer; None for anything else."""
    if len(datagram) <= CHANNEL_HEADER or not FIRST_DTLS <= datagram[CHANNEL_HEADER] <= LAST_DTLS:
        return None
    number, length = struct.unpack_from("!HH", datagram)
    if number != channel or not 0 < length <= len(datagram) - CHANNEL_HEADER:
        return None
    return datagram[CHANNEL_HEADER : CHANNEL_HEADER + length]


def _stream_message(datagram: memoryview, channel: int) -> bytes:
    """ChannelData as it goes over a stream: padded to four bytes (RFC 8656, section 12.5)."""
    return b"".join((struct.pack("!HH", channel, len(datagram)), datagram, bytes(-len(datagram) % 4)))


def _through_relay(route: UdpRoute, buffer: Buffer, segment: int) -> None:
    """Let aioice send, and bind the channel by that."""
    view = memoryview(buffer)
    for start in range(0, len(view), segment):
        route.relay.sendto(bytes(view[start : start + segment]), route.peer)


def open_path(
    protocol: Any,
    remote_addr: Address,
    loop: asyncio.AbstractEventLoop,
    on_datagrams: OnDatagrams,
    on_writable: Callable[[], None] | None = None,
    on_too_big: Callable[[int], None] | None = None,
    *,
    portable: bool = False,
) -> DatagramPath:
    """Take over the DTLS datagrams of a nominated pair. A path that was open on the same socket is closed.

    Args:
        protocol: aioice's protocol object of the pair, directly over UDP or through a TURN relay.
        remote_addr: the pair's remote address.
        loop: the running event loop.
        on_datagrams: called with every DTLS datagram of one reading, from whichever of the connection's sockets.
        on_writable: called when there is room again after ``writable`` was False.
        on_too_big: called with the size in bytes of an IP packet that the local interface would not take.
        portable: leave the quick way out, for tests and for systems where it misbehaves.
    """
    route = find_route(protocol, remote_addr)
    previous = _owner(route.transport)
    if previous is not None:
        previous.close()
    end = None if portable else _own_socket(route, loop)
    arguments = (loop, on_datagrams, on_writable, on_too_big)
    path = PortablePath(route, *arguments) if end is None else SocketPath(end, route, *arguments)
    with contextlib.suppress(TypeError):  # A transport that cannot be referred to weakly has no second path either.
        _OWNERS[route.transport] = ref(path)
    return path


def _owner(transport: Any) -> DatagramPath | None:
    """The open path on a transport."""
    known = _OWNERS.get(transport)
    return known() if known is not None else None


def _own_socket(route: UdpRoute, loop: asyncio.AbstractEventLoop) -> socket.socket | None:
    """The UDP socket under asyncio's transport where its reader can be replaced: selector loops on Unix, no uvloop."""
    end = getattr(route.transport, "_sock", None)
    ours = isinstance(end, socket.socket) and end.type == socket.SOCK_DGRAM and hasattr(end, "recvmsg")
    return end if ours and hasattr(loop, "_remove_reader") and hasattr(route.transport, "_read_ready") else None
