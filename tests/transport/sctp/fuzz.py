"""Packets near enough to what is due to get far: the right tag, mostly a right checksum, wrong in the details."""

import random
import struct
from collections.abc import Callable

from google_crc32c import value

from transport.sctp import packet as wire
from transport.sctp.packet import TSN_MASK, Framer, Sack

RECONFIG, ERROR, INIT_ACK, SHUTDOWN, COOKIE_ECHO, COOKIE_ACK = 130, 9, 2, 7, 10, 11
RESET, ADD, RESPONSE = 13, 17, 16  # Parameters of RE-CONFIG.
NOISE = 1 << 16


class Fuzzer:
    """Makes one packet after the other, all from one seed.

    ``ending`` is the share of packets that are allowed to end an association: ABORT, SHUTDOWN, acknowledgements of what was
    never sent, DATA without data.
    """

    def __init__(self, seed: int, framer: Framer, *, ending: float = 0.02) -> None:
        self._chance = random.Random(seed)
        self._framer = framer
        self._ending = ending
        self._noise = self._chance.randbytes(NOISE)
        common = [self._data] * 8 + [self._sack] * 3 + [self._forward, self._reconfig, self._heartbeat, self._any]
        self._chunks: list[Callable[[], bytes]] = common
        self._received = self._sent = 0

    def packet(self, received: int, sent: int) -> bytes:
        """A packet for a peer that has ``received`` everything up to this TSN and will send ``sent`` next."""
        chance = self._chance
        self._received, self._sent = received, sent
        count = 1 if chance.random() < 0.7 else chance.randrange(2, 6)
        packet = self._framer.packet(*(chance.choice(self._chunks)() for _ in range(count)))
        return self._spoil(packet) if chance.random() < 0.4 else packet

    def run(self, received: int, count: int) -> list[bytes]:
        """DATA packets of one stream, length and order; one in ten differs from that in something."""
        chance = self._chance
        first, size, stream, flags = self._near(received + 1), 4 * chance.randrange(1, 20), chance.randrange(4), 4
        packets = []
        for number in range(count):
            tsn = first + number
            if chance.random() < 0.1:
                tsn, stream = self._near(tsn), chance.randrange(4)
            if chance.random() < 0.2:
                flags = chance.choice((0, 1, 2, 3, 4, 5, 6, 7, 12))
            head = struct.pack("!LHHL", tsn & TSN_MASK, stream, 0, 53)
            packet = bytearray(self._framer.packet(wire.chunk(wire.DATA, flags, head + self._noise[:size])))
            packet[8:12] = bytes(4)
            packets.append(bytes(packet) if chance.random() < 0.9 else self._spoil(bytes(packet)))
        return packets

    def _bytes(self, most: int) -> bytes:
        size = int(self._chance.random() * most)
        start = int(self._chance.random() * (NOISE - size))
        return self._noise[start : start + size]

    def _near(self, number: int) -> int:
        """Something around a TSN, seldom anything at all."""
        way = self._chance.random()
        if way < 0.5:
            return number
        if way < 0.97:
            return number + self._chance.randrange(-4, 60)
        return number + self._chance.choice((1 << 31, (1 << 31) - 1, 0xFFFF, 0x10000, self._chance.getrandbits(32)))

    def _data(self) -> bytes:
        chance = self._chance
        payload = self._bytes(60 if chance.random() < 0.8 else 1200)
        if not payload and chance.random() > self._ending:
            payload = b"\0"
        stream = chance.randrange(4) if chance.random() < 0.9 else chance.getrandbits(16)
        sequence = chance.randrange(6) if chance.random() < 0.9 else chance.getrandbits(16)
        protocol = chance.choice((50, 51, 53, 56, 57, 0, 99))
        tsn = self._near(self._received + 1) & TSN_MASK
        flags = chance.choice((3, 3, 7, 2, 1, 0, 4, 15, 255))
        return wire.chunk(wire.DATA, flags, struct.pack("!LHHL", tsn, stream, sequence, protocol) + payload)

    def _sack(self) -> bytes:
        chance = self._chance
        last = self._sent - 1
        cumulative = last - chance.randrange(80)
        if chance.random() < self._ending:
            cumulative = self._near(last)
        room = max(1, last - cumulative)
        count = chance.randrange(4) if chance.random() < 0.95 else chance.randrange(250)
        gaps = tuple((1 + chance.randrange(room), 1 + chance.randrange(room)) for _ in range(count))
        doubles = tuple(chance.getrandbits(32) for _ in range(chance.randrange(3)))
        window = chance.choice((0, 1, 1 << 16, 1 << 20, (1 << 32) - 1))
        return wire.sack_chunk(Sack(cumulative & TSN_MASK, window, gaps, doubles))

    def _forward(self) -> bytes:
        chance = self._chance
        streams = [(chance.randrange(5), chance.getrandbits(16)) for _ in range(chance.randrange(4))]
        return wire.forward_chunk(self._near(self._received) & TSN_MASK, streams)

    def _reconfig(self) -> bytes:
        chance = self._chance
        kind = chance.choice((RESET, RESET, ADD, RESPONSE, chance.getrandbits(16)))
        numbers = struct.pack(
            "!LLL", chance.getrandbits(32), chance.getrandbits(3), self._near(self._received) & TSN_MASK
        )
        body = (numbers + self._bytes(40))[: chance.randrange(40)]
        length = 4 + len(body) if chance.random() < 0.9 else chance.getrandbits(16)
        return wire.chunk(RECONFIG, 0, struct.pack("!HH", kind, length) + body)

    def _heartbeat(self) -> bytes:
        return wire.chunk(self._chance.choice((wire.HEARTBEAT, wire.HEARTBEAT_ACK, wire.PAD)), 0, self._bytes(100))

    def _any(self) -> bytes:
        chance = self._chance
        kinds = [wire.INIT, INIT_ACK, ERROR, COOKIE_ECHO, COOKIE_ACK, 14, 63, 64, 127, 128, 191, 193, 255]
        if chance.random() < self._ending:
            kinds = [wire.ABORT, SHUTDOWN, 8]
        return wire.chunk(chance.choice(kinds), chance.getrandbits(8), self._bytes(60))

    def _spoil(self, packet: bytes) -> bytes:
        """Change some bytes or the length; the checksum is made right again, but for one packet in twenty."""
        chance = self._chance
        spoilt = bytearray(packet)
        for _ in range(chance.randrange(1, 4)):
            if len(spoilt) <= wire.COMMON_HEADER + wire.CHUNK_HEADER:
                break
            way, place = chance.random(), chance.randrange(wire.COMMON_HEADER, len(spoilt))
            if way < 0.5:
                spoilt[place] ^= 1 << chance.randrange(8)
            elif way < 0.7:
                spoilt[place] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
            elif way < 0.8:
                del spoilt[place:]
            elif way < 0.9:
                spoilt[14:16] = chance.choice((b"\0\0", b"\0\3", b"\0\4", b"\xff\xff", spoilt[14:16]))
            else:
                spoilt += self._bytes(30)
        if chance.random() < 0.95:
            spoilt[8:12] = bytes(4)
            spoilt[8:12] = struct.pack("<L", value(bytes(spoilt)))
        return bytes(spoilt)
