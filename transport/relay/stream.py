"""Clients whose UDP is blocked: STUN messages and ChannelData over TCP, plain or with TLS (RFC 8656 sections 3.1 and 12.5)."""

import asyncio
import struct
from collections.abc import Callable, Sequence

from transport.relay.allocation import Allocation
from transport.relay.desk import RelayDesk
from transport.relay.errors import RequestRefusedError
from transport.relay.message import Address
from transport.relay.speed import Trial

# A connection without an allocation: time for two round trips of a request and its repetition on any line.
IDLE_S = 30.0
MAX_WAITING = 1 << 20  # Bytes that a slow client lets pile up before its packets are dropped, as a full router would.
HEADER = 20  # STUN; ChannelData has 4.


class RelayConnection(asyncio.Protocol):
    """One connection; it is its client's 5-tuple, so the allocation ends with it."""

    def __init__(
        self,
        desk: RelayDesk,
        now: Callable[[], float],
        opened: Callable[["RelayConnection"], bool],
        closed: Callable[["RelayConnection"], None],
    ) -> None:
        """Wait for a connection.

        Args:
            opened: whether there is room for one more.
            closed: called once for each that was opened.
        """
        self.address: Address = ("", 0)
        self.allocation: Allocation | None = None
        self._desk = desk
        self._now = now
        self._opened = opened
        self._closed = closed
        self._buffer = bytearray()
        self._idle: asyncio.TimerHandle | None = None
        self._trial: Trial | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, or refuse where there are too many."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.address = transport.get_extra_info("peername", ("", 0))[:2]
        self._admitted = self._opened(self)
        if not self._admitted:
            transport.abort()
            return
        transport.set_write_buffer_limits(MAX_WAITING)
        self._await_allocation()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the allocation."""
        self._stop_waiting()
        if self.allocation is not None:
            self._desk.release(self.allocation)
        if self._trial is not None:
            self._trial.end()
        if self._admitted:
            self._closed(self)

    def data_received(self, data: bytes) -> None:
        """Cut the stream into messages; bytes that begin none end the connection."""
        if self._trial is not None:
            self._trial.received(len(data))
            return
        self._buffer += data
        self._cut()
        self._begin_trial()

    def _cut(self) -> None:
        position = 0
        while (length := self._next(position)) > 0 and position + length <= len(self._buffer):
            self._take(bytes(self._buffer[position : position + length]))
            position += length
        if length < 0:
            self.abort()
            return
        del self._buffer[:position]

    def pause_writing(self) -> None:
        """Called by asyncio: more waits to be sent than is allowed."""
        if self._trial is not None:
            self._trial.full(True)

    def resume_writing(self) -> None:
        """Called by asyncio: it has become less."""
        if self._trial is not None:
            self._trial.full(False)

    def write(self, data: bytes) -> None:
        """Send one STUN message."""
        if self._transport.get_write_buffer_size() <= MAX_WAITING:
            self._transport.write(data)

    def write_channel(self, number: int, datagrams: Sequence[memoryview]) -> int:
        """Send ChannelData, padded to four bytes; 0 where the client is too slow."""
        if self._transport.is_closing() or self._transport.get_write_buffer_size() > MAX_WAITING:
            return 0
        parts: list[bytes | memoryview] = []
        for datagram in datagrams:
            parts += (struct.pack("!HH", number, len(datagram)), datagram, bytes(-len(datagram) % 4))
        self._transport.write(b"".join(parts))
        return len(datagrams)

    def released(self) -> None:
        """Its allocation has ended: it may make another soon."""
        self._await_allocation()

    def changed(self, change: int) -> "RelayConnection | None":
        """A connection has no other way."""
        return None if change else self

    def measure(self, trial: Trial) -> None:
        """Carry nothing but a speed test from the next message on."""
        if self._trial is not None or self._transport.is_closing():
            trial.end()
            raise RequestRefusedError(400, "Bad Request")
        self._trial = trial

    def origin(self) -> Sequence[Address]:
        """Over TCP there is nothing to tell about NAT kinds."""
        return ()

    def abort(self) -> None:
        """End the connection at once."""
        self._buffer.clear()
        self._transport.abort()

    def _next(self, position: int) -> int:
        """Length of the message at ``position``; 0 if that is not known yet, -1 if there is none."""
        if len(self._buffer) < position + 4:
            return 0
        kind: int
        length: int
        kind, length = struct.unpack_from("!HH", self._buffer, position)
        if kind >> 14 == 0 and length % 4 == 0:
            return HEADER + length
        return 4 + length + (-length % 4) if kind >> 12 == 4 else -1

    def _take(self, data: bytes) -> None:
        if data[0] & 0xC0 == 0:
            self._desk.handle(data, self)
        elif self.allocation is not None:
            self.allocation.from_client(memoryview(data), len(data), self._now())

    def _await_allocation(self) -> None:
        if not self._transport.is_closing():
            self._stop_waiting()
            self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._end_if_idle)

    def _begin_trial(self) -> None:
        if self._trial is not None:
            self._stop_waiting()
            self._buffer.clear()
            self._trial.begin(self._transport)

    def _stop_waiting(self) -> None:
        if self._idle is not None:
            self._idle.cancel()

    def _end_if_idle(self) -> None:
        if self.allocation is None:
            self._transport.abort()
