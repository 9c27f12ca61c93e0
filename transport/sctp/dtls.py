"""DTLS records in batches, through the connection that aiortc has shaken hands with. No cryptography of our own.

pyOpenSSL's public methods cost several exceptions and copies per record. Where its binding has the names that we need, OpenSSL
is called through it directly: many records are sealed into one buffer and taken out at once; several datagrams go in before
their contents are taken out.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from OpenSSL import SSL

from transport.sctp.udp.offload import DatagramRun

MAX_BATCH = 65_000  # Bytes of records per buffer: what one system call takes with segmentation offload.
MAX_PLAIN = 16_384  # RFC 6347, section 4.1: no record holds more.
INPUT_BATCH = 8  # Datagrams given to OpenSSL at once; it reads up to 16 KB at a time, and a cut record would be lost.
MAX_DATAGRAM = 2_000  # Only datagrams below it go in together.
RECORD_HEADER = 13  # DTLS 1.2; a datagram with one whole record can go in together with others.
MAX_OPENED = 256 << 10  # Bytes of packets that lie together before they are handed over: a reading has no more.

# AEAD: nonce 8 and tag 16, or tag 16 alone (RFC 5288, RFC 7905); otherwise IV 16, MAC 32, padding 16.
_OVERHEADS = {"GCM": RECORD_HEADER + 24, "CCM": RECORD_HEADER + 24, "CHACHA20": RECORD_HEADER + 16}
_GREATEST_OVERHEAD = RECORD_HEADER + 64

_NAMES = ("SSL_write", "SSL_read", "BIO_write", "BIO_read", "SSL_get_error", "ERR_clear_error", "SSL_ERROR_ZERO_RETURN")


class DtlsClosedError(ConnectionError):
    """The session cannot seal any more: it was closed by one of the sides, or broke."""


class Records:
    """Seals and opens records of one established session.

    Attributes:
        closed: the peer has said that it will send no more (close_notify).
    """

    closed = False

    def __init__(self, connection: SSL.Connection) -> None:
        """Use an established connection over memory buffers."""
        self._connection = connection

    @property
    def overhead(self) -> int:
        """Bytes that a record adds to its contents, at most."""
        name = self._connection.get_cipher_name() or ""
        return next((cost for cipher, cost in _OVERHEADS.items() if cipher in name), _GREATEST_OVERHEAD)

    @property
    def batching(self) -> bool:
        """Whether several records may be sealed at once: where their lengths can be told from outside."""
        return self._connection.get_protocol_version_name() == "DTLSv1.2"

    def seal(self, packet: bytes) -> None:
        """Encrypt a packet as one record, behind those that nobody has taken yet; at most ``MAX_BATCH`` bytes of records wait.

        Raises:
            DtlsClosedError: nothing can be sent any more.
        """
        try:
            self._connection.send(packet)
        except SSL.Error as error:
            raise DtlsClosedError(f"sealing failed: {error!r}") from error

    def seal_run(self, heads: list[bytes], data: memoryview, size: int) -> None:
        """Encrypt a packet for each head, which goes before its ``size`` bytes of ``data``; errors as of ``seal``.

        Args:
            heads: all of one length, which is at most ``size``.
            data: ``size`` bytes for each of them.
            size: above 0.
        """
        for number, head in enumerate(heads):
            self.seal(head + data[number * size : (number + 1) * size])

    def take(self) -> memoryview:
        """Take out the records that were sealed, one after the other; valid until the next call."""
        try:
            return memoryview(self._connection.bio_read(MAX_BATCH))
        except SSL.Error:  # None are left.
            return memoryview(b"")

    def open(self, runs: list[DatagramRun]) -> list[DatagramRun]:
        """Decrypt what is genuine and new; the rest is left out. Sets ``closed``.

        Returns:
            packets in the order of their records; neighbours of one length lie together.
        """
        packets = []
        for datagram in (datagram for run in runs for datagram in run.each()):
            self._connection.bio_write(datagram)
            try:
                while True:
                    packet = self._connection.recv(MAX_PLAIN)
                    packets.append(DatagramRun(packet, len(packet)))
            except SSL.ZeroReturnError:
                self.closed = True
            except SSL.Error:
                continue
        return packets

    def answers(self) -> bytes:
        """What the session itself has to say after ``open``: alerts, or a repeated last flight of the handshake."""
        try:
            return self._connection.bio_read(MAX_BATCH)
        except SSL.Error:
            return b""


class DirectRecords(Records):
    """The same through pyOpenSSL's own binding."""

    def __init__(self, connection: SSL.Connection) -> None:
        """Use an established connection over memory buffers."""
        super().__init__(connection)
        private: Any = connection
        self._lib: Any = SSL._lib  # type: ignore[attr-defined]
        ffi: Any = SSL._ffi  # type: ignore[attr-defined]
        self._ssl, self._into, self._from = private._ssl, private._into_ssl, private._from_ssl
        self._plain = ffi.new("char[]", MAX_OPENED + MAX_PLAIN)
        self._plain_view = ffi.buffer(self._plain)
        self._opened: list[int] = []  # Lengths of the packets in it.
        self._filled = 0
        self._sealed = ffi.new("char[]", MAX_BATCH)
        self._sealed_view = memoryview(ffi.buffer(self._sealed))
        self._clear = ffi.new("char[]", MAX_BATCH)
        self._clear_view = memoryview(ffi.buffer(self._clear))
        self._places: list[Any] = []  # Pointers into it, ``_apart`` bytes from one to the next.
        self._apart = 0

    def seal(self, packet: bytes) -> None:
        """See Records."""
        if self._lib.SSL_write(self._ssl, packet, len(packet)) <= 0:
            raise self._refused()

    def seal_run(self, heads: list[bytes], data: memoryview, size: int) -> None:
        """See Records. Each head is written over the end of the packet before it, which is sealed by then."""
        clear, ahead = self._clear_view, len(heads[0])
        clear[ahead : ahead + len(heads) * size] = data
        if self._apart != size:
            self._apart = size
            self._places = [self._clear + at for at in range(0, MAX_BATCH, size)]
        write, ssl, whole, at = self._lib.SSL_write, self._ssl, ahead + size, 0
        for head, place in zip(heads, self._places, strict=False):
            clear[at : at + ahead] = head
            if write(ssl, place, whole) <= 0:
                raise self._refused()
            at += size

    def take(self) -> memoryview:
        """See Records."""
        size = self._lib.BIO_read(self._from, self._sealed, MAX_BATCH)
        return self._sealed_view[: max(0, size)]

    def open(self, runs: list[DatagramRun]) -> list[DatagramRun]:
        """See Records."""
        packets: list[DatagramRun] = []
        group: list[bytes] = []
        records = 0
        for piece, count in _pieces(runs):
            if group and (not count or records + count > INPUT_BATCH):
                self._read(b"".join(group), packets)
                group, records = [], 0
            if count:
                group.append(piece)
                records += count
            else:
                self._read(piece, packets)
        if group:
            self._read(b"".join(group), packets)
        self._hand_over(packets)
        return packets

    def answers(self) -> bytes:
        """See Records."""
        size = self._lib.BIO_read(self._from, self._sealed, MAX_BATCH)
        return bytes(self._sealed_view[:size]) if size > 0 else b""

    def _read(self, records: bytes, packets: list[DatagramRun]) -> None:
        """Decrypt some records, behind those that are not handed over yet."""
        self._lib.BIO_write(self._into, records, len(records))
        read, ssl, plain, opened, filled = self._lib.SSL_read, self._ssl, self._plain, self._opened, self._filled
        while (size := read(ssl, plain + filled, MAX_PLAIN)) > 0:
            opened.append(size)
            self._filled = filled = filled + size
            if filled > MAX_OPENED:
                self._hand_over(packets)
                filled = 0
        if self._lib.SSL_get_error(ssl, size) == self._lib.SSL_ERROR_ZERO_RETURN:
            self.closed = True
        self._lib.ERR_clear_error()

    def _hand_over(self, packets: list[DatagramRun]) -> None:
        """Add what was decrypted, neighbours of one length together."""
        start, view = 0, self._plain_view
        for size, alike in groupby(self._opened):
            end = start + size * len(list(alike))
            packets.append(DatagramRun(view[start:end], size))
            start = end
        self._opened.clear()
        self._filled = 0

    def _refused(self) -> DtlsClosedError:
        self._lib.ERR_clear_error()
        return DtlsClosedError("sealing failed: the session was closed")


def first_length(records: memoryview) -> int:
    """Length of the first of some DTLS 1.2 records, header included."""
    return (records[11] << 8 | records[12]) + RECORD_HEADER


def _pieces(runs: Iterable[DatagramRun]) -> Iterator[tuple[bytes, int]]:
    """Cut runs into what may go in at once, with how many whole records that is: 0 for what must go in alone."""
    for run in runs:
        data, size = run
        if _are_records(run):
            for start in range(0, len(data), INPUT_BATCH * size):
                piece = DatagramRun(data[start : start + INPUT_BATCH * size], size)
                yield piece.data, piece.datagrams
        elif len(data) <= size:
            yield data, 0
        else:
            yield from _pieces(DatagramRun(datagram, len(datagram)) for datagram in run.each())


def _are_records(run: DatagramRun) -> bool:
    """Whether each datagram is a whole DTLS 1.2 record and nothing else: only such cannot spoil what goes in behind it."""
    data, size = run
    count, rest = divmod(len(data), size)
    if not RECORD_HEADER < size <= MAX_DATAGRAM or (rest and not _are_records(DatagramRun(data[-rest:], rest))):
        return False
    high, low = divmod(size - RECORD_HEADER, 256)
    end = count * size
    return (
        data[1:end:size] == b"\xfe" * count
        and data[11:end:size] == bytes((high,)) * count
        and data[12:end:size] == bytes((low,)) * count
    )


def open_records(connection: SSL.Connection) -> Records:
    """The quickest way that this pyOpenSSL offers."""
    lib = getattr(SSL, "_lib", None)
    private = all(hasattr(connection, name) for name in ("_ssl", "_into_ssl", "_from_ssl"))
    if private and hasattr(SSL, "_ffi") and all(hasattr(lib, name) for name in _NAMES):
        return DirectRecords(connection)
    return Records(connection)
