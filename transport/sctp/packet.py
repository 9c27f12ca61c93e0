"""SCTP packets as bytes: DATA, SACK, FORWARD-TSN and what surrounds them. Pure.

Whatever comes from the peer is checked for its bounds here; behind these functions lengths can be relied on.
Under DTLS, which finds every changed bit, two ends may agree to leave checksums out: they are zero then.
Sources: RFC 9260 (SCTP), RFC 3758 (FORWARD-TSN), RFC 4820 (PAD), RFC 7053 (the I bit), RFC 9653 (zero checksums).
"""

from collections.abc import Iterable
from itertools import pairwise
from struct import Struct, pack, unpack, unpack_from
from typing import NamedTuple

from google_crc32c import extend, value

DATA = 0
INIT = 1
SACK = 3
HEARTBEAT = 4
HEARTBEAT_ACK = 5
ABORT = 6
LAST_KNOWN = 14  # Of the kinds without the top bit; after an unknown one of them the packet is not read on.
PAD = 132
ARRIVAL = 0xB8  # Our own: see ``arrival_chunk``.
FORWARD_TSN = 192

LAST_FRAGMENT = 0x01
FIRST_FRAGMENT = 0x02
UNORDERED = 0x04
ACK_AT_ONCE = 0x08

PROTOCOL_VIOLATION = 13
MAX_REASON = 200  # Bytes of the text in an ABORT.

COMMON_HEADER = 12
CHUNK_HEADER = 4
DATA_HEADER = 16
SACK_HEADER = 16
ARRIVAL_LENGTH = 16
LEAST_RUN = 4  # Fewer packets are read as quickly one by one.
# Parameter of INIT and INIT ACK: packets over DTLS need none (RFC 9653, section 4).
ZERO_CHECKSUM = (0x8001, b"\0\0\0\x01")
MAX_MICROS = (1 << 53) - 1  # Exact as a float; 285 years.
TSN_MODULO = 1 << 32
TSN_MASK = TSN_MODULO - 1
HALF_TSN = 1 << 31

# Bytes of a body before its parameters or causes, by kind: INIT, INIT ACK, HEARTBEAT, its ACK, ABORT, ERROR, RE-CONFIG.
_BEFORE_PARAMETERS = {1: 16, 2: 16, 4: 0, 5: 0, 6: 0, 9: 0, 130: 0}
_NO_CHECKSUM = b"\0\0\0\0"
_CHECKSUM_AT = 8
_PADDING = (b"", b"\0\0\0", b"\0\0", b"\0")  # Indexed by length modulo four.
_PORTS_AND_TAG = Struct("!HHL").pack
_CHECKSUM = Struct("<L").pack
_DATA_HEAD = Struct("!BBHLHHL").pack
_SACK_HEAD = Struct("!BBHLLHH").pack
_CHUNK_HEAD = Struct("!BBH").pack
_ARRIVAL = Struct("!BBHLQ").pack
_TAG = Struct("!L").unpack_from
_LITTLE = Struct("<L").unpack_from
_LENGTH = Struct("!H").unpack_from
_LONE_DATA = Struct("!LLLBBHLHHL").unpack_from
_WHOLE_HEAD = Struct("!12sBBHLHHL").pack
_FLAGS_AT, _LENGTH_AT, _TSN_AT, _STREAM_AT = 13, 14, 16, 20
_HEADERS = COMMON_HEADER + DATA_HEADER
# Bytes that a run has in common.
_ALIKE = (*range(_FLAGS_AT), *range(_LENGTH_AT, _TSN_AT), *range(_STREAM_AT, _HEADERS))
_DATA_NUMBERS = Struct("!LHHL").unpack_from
_CAUSE_HEAD = Struct("!HH").pack


class MalformedPacketError(ValueError):
    """The bytes are no SCTP packet, or a chunk's length lies."""


class Sack(NamedTuple):
    """A selective acknowledgement.

    Attributes:
        cumulative: last TSN received without a gap, 32 bits.
        window: bytes that the receiver has room for.
        gaps: ranges received beyond it, as (first, last) offsets from ``cumulative``, as the peer sent them.
        duplicates: TSNs received more than once, 32 bits each.
    """

    cumulative: int
    window: int
    gaps: tuple[tuple[int, int], ...]
    duplicates: tuple[int, ...]


class DataRun(NamedTuple):
    """DATA chunks of one stream with consecutive TSNs.

    Attributes:
        tsn: of the first, 32 bits.
        stream, sequence, protocol: of all.
        flags: one byte for each.
        payloads: of each, all of one length.
    """

    tsn: int
    stream: int
    sequence: int
    protocol: int
    flags: bytes
    payloads: list[bytes]


class Framer:
    """Builds whole packets for one association.

    Attributes:
        checksums: see ``__init__``.
    """

    def __init__(self, source_port: int, destination_port: int, tag: int, *, checksums: bool = True) -> None:
        """Prepare the common header.

        Args:
            source_port, destination_port: as on the wire.
            tag: the verification tag that the peer chose.
            checksums: False leaves them out, for a peer that has said that it needs none.
        """
        self._head = _PORTS_AND_TAG(source_port, destination_port, tag)
        self._blank = self._head + _NO_CHECKSUM
        self.checksums = checksums

    def heads(
        self, tsn: int, stream: int, sequence: int, protocol: int, flags: Iterable[int], size: int
    ) -> list[bytes]:
        """Build all but the payload of packets that carry ``size`` bytes each, without checksums.

        Args:
            tsn: of the first, and the others count on; may be wider than 32 bits.
            stream, sequence, protocol: of all.
            flags: of each.
            size: a multiple of four.
        """
        blank, length = self._blank, DATA_HEADER + size
        return [
            _WHOLE_HEAD(blank, DATA, flag, length, number & TSN_MASK, stream, sequence, protocol)
            for number, flag in enumerate(flags, tsn)
        ]

    def data(self, tsn: int, stream: int, sequence: int, protocol: int, flags: int, payload: bytes) -> bytes:
        """Build a packet with one DATA chunk; ``tsn`` may be wider than 32 bits."""
        size = len(payload)
        head = _DATA_HEAD(DATA, flags, DATA_HEADER + size, tsn & TSN_MASK, stream, sequence, protocol)
        if size & 3:
            payload += _PADDING[size & 3]
        if not self.checksums:
            return b"".join((self._blank, head, payload))
        checksum: int = extend(value(self._blank + head), payload)
        return b"".join((self._head, _CHECKSUM(checksum), head, payload))

    def packet(self, *chunks: bytes) -> bytes:
        """Build a packet of whole, padded chunks."""
        body = b"".join(chunks)
        if not self.checksums:
            return self._blank + body
        checksum: int = extend(value(self._blank), body)
        return b"".join((self._head, _CHECKSUM(checksum), body))


def chunk(kind: int, flags: int, body: bytes) -> bytes:
    """Build one chunk, padded to four bytes."""
    return _CHUNK_HEAD(kind, flags, CHUNK_HEADER + len(body)) + body + _PADDING[len(body) & 3]


def sack_chunk(sack: Sack) -> bytes:
    """Build a SACK chunk."""
    numbers = [offset & 0xFFFF for gap in sack.gaps for offset in gap]
    length = SACK_HEADER + 4 * (len(sack.gaps) + len(sack.duplicates))
    head = _SACK_HEAD(SACK, 0, length, sack.cumulative, sack.window, len(sack.gaps), len(sack.duplicates))
    return head + Struct(f"!{len(numbers)}H{len(sack.duplicates)}L").pack(*numbers, *sack.duplicates)


def arrival_chunk(tsn: int, seconds: float) -> bytes:
    """Build a chunk of our own that says when a TSN (32 bits) arrived, in seconds of any clock.

    Its kind begins with the bits 10: who does not know it skips it in silence (RFC 9260, section 3.2).
    """
    return _ARRIVAL(ARRIVAL, 0, ARRIVAL_LENGTH, tsn, int(seconds * 1e6) & MAX_MICROS)


def read_arrival(packet: bytes, start: int, end: int) -> tuple[int, float]:
    """Read the body of such a chunk: the TSN, 32 bits, and the seconds.

    Raises:
        MalformedPacketError: it is shorter or longer.
    """
    if end - start != ARRIVAL_LENGTH - CHUNK_HEADER:
        raise MalformedPacketError(f"an arrival of {end - start} bytes: {ARRIVAL_LENGTH - CHUNK_HEADER} are right")
    tsn, micros = unpack_from("!LQ", packet, start)
    return tsn, (micros & MAX_MICROS) / 1e6


def forward_chunk(point: int, streams: list[tuple[int, int]]) -> bytes:
    """Build a FORWARD-TSN chunk: everything up to ``point`` is abandoned or received (RFC 3758, section 3.2)."""
    numbers = [number for stream in streams for number in stream]
    return chunk(FORWARD_TSN, 0, Struct(f"!L{len(numbers)}H").pack(point & TSN_MASK, *numbers))


def abort_chunk(reason: str) -> bytes:
    """Build an ABORT chunk that tells of a protocol violation (RFC 9260, section 3.3.10.13)."""
    text = reason.encode()[:MAX_REASON]
    return chunk(ABORT, 0, _CAUSE_HEAD(PROTOCOL_VIOLATION, CHUNK_HEADER + len(text)) + text)


def verify(packet: bytes, tag: int) -> bool:
    """Whether a packet has at least one chunk, carries our verification tag, and its checksum holds or is left out."""
    if len(packet) < COMMON_HEADER + CHUNK_HEADER:
        return False
    theirs: int = _TAG(packet, 4)[0]
    checksum: int = _LITTLE(packet, _CHECKSUM_AT)[0]
    return theirs == tag and (checksum == 0 or checksum == _checksum(packet))


def with_checksum(packet: bytes) -> bytes:
    """The packet with a checksum if it came without, for a reader that knows only RFC 9260."""
    if packet[_CHECKSUM_AT:COMMON_HEADER] != _NO_CHECKSUM:
        return packet
    return packet[:_CHECKSUM_AT] + _CHECKSUM(_checksum(packet)) + packet[COMMON_HEADER:]


def _checksum(packet: bytes) -> int:
    found: int = extend(value(packet[:_CHECKSUM_AT] + _NO_CHECKSUM), packet[COMMON_HEADER:])
    return found


def lone_data(packet: bytes, tag: int) -> tuple[int, int, int, int, int, bytes] | None:
    """Read a packet whose only chunk is DATA, as nearly always: quicker than ``verify`` and ``split``, which see to all others.

    Returns:
        TSN, stream, sequence, protocol, flags and payload; None for any other packet.
    """
    size = len(packet)
    if size <= COMMON_HEADER + DATA_HEADER:
        return None
    _, theirs, checksum, kind, flags, length, tsn, stream, sequence, protocol = _LONE_DATA(packet)
    if (
        kind != DATA
        or theirs != tag
        or (length + 3) & ~3 != size - COMMON_HEADER
        or (checksum and not verify(packet, tag))
    ):
        return None
    return tsn, stream, sequence, protocol, flags, packet[COMMON_HEADER + DATA_HEADER : COMMON_HEADER + length]


def data_runs(packets: bytes, size: int, tag: int) -> list[DataRun] | None:
    """Read packets of one length that all have nothing but a DATA chunk of one stream, without checksums or padding.

    It looks at all packets at once: 0.3 us for each where ``lone_data`` takes 2 us.

    Args:
        packets: one after the other; whole ones only.
        size: length of each.
        tag: our verification tag.
    Returns:
        their chunks, cut where TSNs are not consecutive; None where any packet is another one, or there are too few to gain.
    """
    count = len(packets) // size
    if count < LEAST_RUN or size <= _HEADERS:
        return None
    _, theirs, checksum, kind, _, length, first, stream, sequence, protocol = _LONE_DATA(packets)
    if kind != DATA or theirs != tag or checksum or length != size - COMMON_HEADER or len(packets) != count * size:
        return None
    for at in _ALIKE:
        if packets[at::size] != packets[at : at + 1] * count:
            return None
    numbers = bytearray(4 * count)
    for byte in range(4):
        numbers[byte::4] = packets[_TSN_AT + byte :: size]
    flags = packets[_FLAGS_AT::size]
    payloads = [packets[at : at + size - _HEADERS] for at in range(_HEADERS, len(packets), size)]
    if first + count < TSN_MODULO and numbers == pack(f"!{count}L", *range(first, first + count)):
        return [DataRun(first, stream, sequence, protocol, flags, payloads)]
    tsns = unpack(f"!{count}L", numbers)
    cuts = [0, *(at for at in range(1, count) if tsns[at] != (tsns[at - 1] + 1) & TSN_MASK), count]
    return [
        DataRun(tsns[begin], stream, sequence, protocol, flags[begin:end], payloads[begin:end])
        for begin, end in pairwise(cuts)
    ]


def read_data(packet: bytes, flags: int, start: int, end: int) -> tuple[int, int, int, int, int, bytes]:
    """Read the body of a DATA chunk among others; returns the same as ``lone_data``.

    Raises:
        MalformedPacketError: it is shorter than its header.
    """
    body = start + DATA_HEADER - CHUNK_HEADER
    if end < body:
        raise MalformedPacketError(f"a DATA chunk of {end - start + CHUNK_HEADER} bytes: its header has {DATA_HEADER}")
    tsn, stream, sequence, protocol = _DATA_NUMBERS(packet, start)
    return tsn, stream, sequence, protocol, flags, packet[body:end]


def split(packet: bytes) -> list[tuple[int, int, int, int]]:
    """Cut a packet into its chunks.

    Returns:
        (kind, flags, start of the body, end of the body) of each.
    Raises:
        MalformedPacketError: a chunk ends outside the packet or is shorter than its header.
    """
    found = []
    position, size = COMMON_HEADER, len(packet)
    while position + CHUNK_HEADER <= size:
        kind, flags, length = unpack_from("!BBH", packet, position)
        end = position + length
        if length < CHUNK_HEADER or end > size:
            raise MalformedPacketError(f"chunk {kind} claims {length} bytes, {size - position} are left in the packet")
        found.append((kind, flags, position + CHUNK_HEADER, end))
        position = (end + 3) & ~3
    return found


def parameters_hold(packet: bytes, kind: int, start: int, end: int) -> bool:
    """Whether the parameters in a chunk's body end where it ends; one of no length would keep aiortc's reader for ever."""
    start += _BEFORE_PARAMETERS.get(kind, end - start)
    while start + 4 <= end:
        length = _LENGTH(packet, start + 2)[0]
        if length < 4 or start + length > end:
            return False
        start += (length + 3) & ~3
    return True


def read_sack(packet: bytes, start: int, end: int) -> Sack:
    """Read the body of a SACK chunk.

    Raises:
        MalformedPacketError: it is shorter than the counts in it say.
    """
    if end - start < SACK_HEADER - CHUNK_HEADER:
        raise MalformedPacketError(f"a SACK of {end - start} bytes: at least {SACK_HEADER - CHUNK_HEADER} are needed")
    cumulative, window, gaps, duplicates = unpack_from("!LLHH", packet, start)
    start += SACK_HEADER - CHUNK_HEADER
    if start + 4 * (gaps + duplicates) > end:
        raise MalformedPacketError(f"a SACK claims {gaps} gaps and {duplicates} duplicates in {end - start} bytes")
    offsets = unpack_from(f"!{2 * gaps}H", packet, start)
    doubles = unpack_from(f"!{duplicates}L", packet, start + 4 * gaps) if duplicates else ()
    return Sack(cumulative, window, tuple(zip(offsets[::2], offsets[1::2], strict=True)), doubles)


def read_forward(packet: bytes, start: int, end: int) -> tuple[int, list[tuple[int, int]]]:
    """Read the body of a FORWARD-TSN chunk.

    Returns:
        the new cumulative TSN, 32 bits, and (stream, sequence number) pairs.
    Raises:
        MalformedPacketError: it is too short or no whole number of pairs.
    """
    if end - start < 4 or (end - start) % 4:
        raise MalformedPacketError(f"a FORWARD-TSN of {end - start} bytes")
    numbers = unpack_from(f"!{(end - start - 4) // 2}H", packet, start + 4)
    return unpack_from("!L", packet, start)[0], list(zip(numbers[::2], numbers[1::2], strict=True))
