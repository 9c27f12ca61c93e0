"""A peer that has shaken hands like any other and then sends whatever a test wants, over real DTLS and sockets."""

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from struct import unpack_from
from typing import Any

from aiortc import RTCPeerConnection

from tests.transport.sctp.pairs import End, joined, until
from transport.sctp import packet as wire
from transport.sctp.connection import FastPeerConnection
from transport.sctp.packet import FIRST_FRAGMENT, LAST_FRAGMENT, TSN_MASK, Framer, Sack

BINARY = 53
WHOLE = FIRST_FRAGMENT | LAST_FRAGMENT
BURST = 64  # Packets sent before the victim gets its turn: what a socket's buffer surely takes.


class Attacker:
    """Stock aiortc up to the open channel; from then on it only does what it is told.

    Attributes:
        packets: what the victim has sent since.
        tsn: the next TSN that the victim expects.
    """

    def __init__(self, attacker: End, victim: End) -> None:
        """Silence the attacker's own SCTP."""
        self.victim = victim
        self.packets: list[bytes] = []
        self._sctp: Any = attacker.sctp
        self._sctp._t3_cancel()
        self._sctp._handle_data = self._take  # As an attribute of the object, it goes before the method.
        self._framer = Framer(5000, 5000, self._sctp._remote_verification_tag)
        self.tag: int = self._sctp._remote_verification_tag
        self.stream: int = attacker.channel.id or 0
        self.sequence: int = self._sctp._outbound_stream_seq.get(self.stream, 0)
        self.tsn: int = self._sctp._local_tsn

    async def send(self, *chunks: bytes) -> None:
        """Send one packet with a right checksum."""
        await self.send_raw(self._framer.packet(*chunks))

    async def send_raw(self, packet: bytes) -> None:
        """Send any bytes as an SCTP packet."""
        await self._sctp.transport._send_data(packet)

    async def send_all(self, packets: list[bytes]) -> None:
        """Send many, each as it is, at a pace that the victim's socket can follow."""
        for start in range(0, len(packets), BURST):
            for packet in packets[start : start + BURST]:
                await self.send_raw(packet)
            await self.settle()

    async def settle(self) -> None:
        """Wait until the victim has read everything that was sent: it answers heartbeats in their turn."""
        if not self.alive:
            return
        mark = self.victim.sctp.path_stats().packets_received
        await self.send(wire.chunk(wire.HEARTBEAT, 0, b"\0\1\0\6ok"))
        await until(lambda: self.victim.sctp.path_stats().packets_received > mark or not self.alive)

    @property
    def alive(self) -> bool:
        """Whether the victim still has the association."""
        return bool(self.victim.sctp.state == "connected")

    def data(self, ahead: int = 0, flags: int = WHOLE, payload: bytes = b"x", **other: int) -> bytes:
        """A packet with one DATA chunk; its TSN is ``ahead`` of what is due."""
        stream, sequence = other.get("stream", self.stream), other.get("sequence", self.sequence)
        tsn = (self.tsn + ahead) & TSN_MASK
        return self._framer.data(tsn, stream, sequence, other.get("protocol", BINARY), flags, payload)

    def sack(self, cumulative: int, *gaps: tuple[int, int], window: int = 1 << 20) -> bytes:
        """A packet with a SACK."""
        return self._framer.packet(wire.sack_chunk(Sack(cumulative & TSN_MASK, window, gaps, ())))

    def told(self, kind: int) -> list[bytes]:
        """The bodies of all chunks of a kind that the victim has sent."""
        return [packet[start:end] for packet in self.packets for k, _, start, end in wire.split(packet) if k == kind]

    def tsns(self) -> list[int]:
        """The TSNs of the victim's DATA chunks, in the order in which they came."""
        return [unpack_from("!L", body)[0] for body in self.told(wire.DATA)]

    async def check_good_messages_pass(self) -> None:
        """What an honest peer would say and hear now."""
        assert self.alive, self.victim.sctp.fault
        self.tsn = (self.victim.sctp._data.receiver.cumulative + 1) & TSN_MASK
        text = f"good {self.tsn}".encode()
        for ahead in range(2):  # What waits in a gap may be in the way of the first.
            await self.send_raw(self.data(ahead, flags=WHOLE | wire.UNORDERED, payload=text))
        await until(lambda: text in self.victim.received)

    async def check_it_ended(self, reason: str) -> None:
        """The victim has ended the association, says why, and has told the attacker."""
        await until(lambda: not self.alive and self.victim.channel.readyState == "closed")
        assert reason in self.victim.sctp.fault
        await until(lambda: bool(self.told(wire.ABORT)))
        assert reason[:100].encode() in self.told(wire.ABORT)[0]

    async def _take(self, packet: bytes) -> None:
        self.packets.append(packet)


@asynccontextmanager
async def attacked(**channel: Any) -> AsyncIterator[Attacker]:
    """A victim with our data path, and its attacker, joined by an open channel; fails if anything of the victim's raised."""
    raised: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: raised.append(context))
    async with joined(RTCPeerConnection, FastPeerConnection, **channel) as (one, two):
        await until(lambda: not one.sctp._sent_queue and not two.sctp._data.sender.outstanding)
        yield Attacker(one, two)
    assert not raised


@contextmanager
def flat_memory(most: int) -> Iterator[None]:
    """Fail if more than ``most`` bytes are kept at the end than at the beginning."""
    gc.collect()
    tracemalloc.start()
    try:
        yield
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0]
        assert kept <= most, f"{kept} bytes are kept, at most {most} were to be"
    finally:
        tracemalloc.stop()
