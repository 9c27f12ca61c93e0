"""What leaves: put into packets, sealed, and handed on together as far as lengths allow.

One system call takes many datagrams where all are equally long and the last is perhaps shorter (``transport.sctp.udp.offload``).
"""

import logging
from collections.abc import Callable

from transport.sctp.dtls import DtlsClosedError, Records, first_length
from transport.sctp.packet import COMMON_HEADER, DATA_HEADER, Framer
from transport.sctp.record import Flight, Record

LOG = logging.getLogger(__name__)

Send = Callable[[memoryview, int, int], None]
"""Takes sealed datagrams one after the other, the length of each but the last, which may be shorter, and how many there are."""


class Batches:
    """Packets of one association on their way out.

    Attributes:
        most: how many may go together.
    """

    def __init__(self, framer: Framer, records: Records, send: Send, on_closed: Callable[[], None]) -> None:
        """Begin with none; ``on_closed`` is called when the session seals no more."""
        self.most = 1
        self._framer, self._records = framer, records
        self._send, self._on_closed = send, on_closed
        self._count = 0
        self._length = 0
        self._ended = False

    def add(self, packet: bytes) -> None:
        """Let a packet leave with the next ``flush`` at the latest."""
        length = len(packet)
        self._room(length)
        try:
            self._records.seal(packet)
        except DtlsClosedError as error:
            self._closed(error)
        else:
            self._joined(1, length)

    def add_flight(self, flight: Flight) -> None:
        """The same for the packets of a flight."""
        if self._framer.checksums:
            for record in flight:
                self.add(self.packet(record))
            return
        message, size, number = flight.message, flight.payload, 0
        length, data = COMMON_HEADER + DATA_HEADER + size, memoryview(message.data)
        while number < flight.count:
            flags = flight.flags[number : number + self._room(length)]
            heads = self._framer.heads(
                flight.tsn + number, message.stream, message.sequence, message.protocol, flags, size
            )
            start = flight.start + number * size
            number += len(flags)
            try:
                self._records.seal_run(heads, data[start : start + len(flags) * size], size)
            except DtlsClosedError as error:
                self._closed(error)
                return
            self._joined(len(flags), length)

    def flush(self) -> None:
        """Hand on what has been added."""
        if not self._count:
            return
        count, self._count, self._ended = self._count, 0, False
        sealed = self._records.take()
        segment = first_length(sealed) if count > 1 else len(sealed)
        if segment:
            self._send(sealed, segment, count)

    def packet(self, record: Record) -> bytes:
        """The packet with one fragment."""
        message = record.message
        payload = message.data[record.start : record.end]
        return self._framer.data(record.tsn, message.stream, message.sequence, message.protocol, record.flags, payload)

    def _room(self, length: int) -> int:
        """How many packets of this length may join those that wait; these leave if none may."""
        if self._count and (self._ended or length > self._length or self._count >= self.most):
            self.flush()
        if not self._count:
            self._length = length
        return 1 if length < self._length else self.most - self._count

    def _joined(self, count: int, length: int) -> None:
        self._count += count
        self._ended = length < self._length

    def _closed(self, error: DtlsClosedError) -> None:
        LOG.debug("nothing is sent any more: %s", error)
        self._on_closed()
