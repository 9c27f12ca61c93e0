"""Somebody on the way, a relay for instance, who records, repeats, changes and invents datagrams: over real sockets and DTLS."""

import asyncio
import random
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

import aioice.ice
import pytest
from aiortc import RTCConfiguration, RTCSessionDescription

from tests.support.wait import HANGS_S
from tests.transport.sctp.pairs import End, until
from transport.sctp.connection import FastPeerConnection

FIRST_DTLS, LAST_DTLS = 20, 63
DATA_RECORD = 23
SECRET = b"nobody but the two ends may know"

Way = tuple[str, int]


class OnTheWay(asyncio.DatagramProtocol):
    """One of the two sockets of whoever carries the datagrams."""

    def __init__(self, carry: Callable[[bytes], None]) -> None:
        self._carry = carry
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: Way) -> None:
        self._carry(data)


class Carrier:
    """Carries datagrams between two ends that know each other only by its addresses; ``tamper`` says what arrives for each.

    Attributes:
        log: the DTLS datagrams towards the second end, as they were sent.
    """

    def __init__(self) -> None:
        self.tamper: Callable[[bytes], list[bytes]] = lambda data: [data]
        self.log: list[bytes] = []
        self.first: Way = ("", 0)
        self.second: Way = ("", 0)
        self._facing_first, self._facing_second = OnTheWay(self._to_second), OnTheWay(self._to_first)

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for protocol in (self._facing_first, self._facing_second):
            await loop.create_datagram_endpoint(lambda protocol=protocol: protocol, ("127.0.0.1", 0))  # type: ignore[misc]

    def close(self) -> None:
        for protocol in (self._facing_first, self._facing_second):
            protocol.transport.close()

    def readdressed(self, description: RTCSessionDescription, *, first: bool) -> RTCSessionDescription:
        """A description in which the carrier's address stands for the end's own."""
        [(ip, port)] = re.findall(r"a=candidate:\S+ 1 udp \d+ ([\d.]+) (\d+) typ host", description.sdp)
        if first:
            self.first = (ip, int(port))
        else:
            self.second = (ip, int(port))
        own = (self._facing_second if first else self._facing_first).transport.get_extra_info("sockname")[1]
        return RTCSessionDescription(description.sdp.replace(f" {port} typ host", f" {own} typ host"), description.type)

    def _to_second(self, data: bytes) -> None:
        if FIRST_DTLS <= data[0] <= LAST_DTLS:
            self.log.append(data)
        for each in self.tamper(data):
            self._facing_second.transport.sendto(each, self.second)

    def _to_first(self, data: bytes) -> None:
        for each in self.tamper(data):
            self._facing_first.transport.sendto(each, self.first)


@asynccontextmanager
async def carried() -> AsyncIterator[tuple[Carrier, End, End]]:
    """Two ends joined by an open channel, with a carrier between them; nothing may be raised anywhere."""
    raised: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: raised.append(context))
    carrier, (first, second) = Carrier(), (FastPeerConnection(RTCConfiguration(iceServers=[])) for _ in range(2))
    await carrier.listen()
    opened = asyncio.get_running_loop().create_future()
    second.once("datachannel", opened.set_result)
    one = End(first, first.createDataChannel("test"))
    try:
        with patch.object(aioice.ice, "get_host_addresses", lambda **families: ["127.0.0.1"]):
            await first.setLocalDescription(await first.createOffer())
            await second.setRemoteDescription(carrier.readdressed(first.localDescription, first=True))
            await second.setLocalDescription(await second.createAnswer())
            await first.setRemoteDescription(carrier.readdressed(second.localDescription, first=False))
        async with asyncio.timeout(HANGS_S):
            two = End(second, await opened)
        for end in (one, two):
            end.channel.on("message", end.received.append)
        await until(lambda: one.channel.readyState == "open")
        yield carrier, one, two
        assert one.sctp.fault == two.sctp.fault == ""
        assert not raised
    finally:
        await asyncio.gather(first.close(), second.close())
        carrier.close()


def is_data(datagram: bytes) -> bool:
    return datagram[0] == DATA_RECORD


def flipped(chance: random.Random, datagram: bytes) -> bytes:
    spoilt = bytearray(datagram)
    spoilt[chance.randrange(len(spoilt))] ^= 1 << chance.randrange(8)
    return bytes(spoilt)


async def both_ways(one: End, two: End, count: int, seed: int) -> None:
    """Random messages each way; every one must arrive once, identical and in order."""
    chance = random.Random(seed)
    up, down = ([chance.randbytes(chance.randrange(1, 20_000)) for _ in range(count)] for _ in range(2))
    for end in (one, two):
        end.received.clear()
    await asyncio.gather(one.send_all(up), two.send_all(down))
    await until(lambda: len(two.received) >= count and len(one.received) >= count, 30)
    assert two.received == up
    assert one.received == down


async def test_who_carries_the_datagrams_sees_no_plaintext() -> None:
    async with carried() as (carrier, one, two):
        one.channel.send(SECRET * 200)
        await until(lambda: two.received == [SECRET * 200])
        assert sum(map(len, carrier.log)) > len(SECRET) * 200
        assert not any(SECRET[:8] in datagram for datagram in carrier.log)


async def test_a_carrier_that_changes_bits_only_loses_packets() -> None:
    chance = random.Random(1)
    async with carried() as (carrier, one, two):
        carrier.tamper = lambda data: [flipped(chance, data) if is_data(data) and chance.random() < 0.03 else data]
        await both_ways(one, two, 60, 1)
        assert one.sctp.path_stats().packets_retransmitted > 0


async def test_a_forgery_before_each_genuine_datagram_changes_nothing() -> None:
    chance = random.Random(2)
    async with carried() as (carrier, one, two):
        carrier.tamper = lambda data: [flipped(chance, data), data] if is_data(data) else [data]
        await both_ways(one, two, 60, 2)


async def test_records_cut_joined_and_renumbered_on_the_way_change_nothing() -> None:
    chance = random.Random(3)

    def tamper(data: bytes) -> list[bytes]:
        if not is_data(data):
            return [data]
        cut, renumbered = data[: chance.randrange(1, len(data))], data[:3] + chance.randbytes(8) + data[11:]
        return [cut, renumbered, data, data + cut]

    async with carried() as (carrier, one, two):
        carrier.tamper = tamper
        await both_ways(one, two, 40, 3)


async def test_datagrams_out_of_order_and_many_times_over_arrive_once() -> None:
    chance = random.Random(4)
    held: list[bytes] = []

    def tamper(data: bytes) -> list[bytes]:
        if not is_data(data):
            return [data]
        held.extend([data] * chance.randrange(1, 4))
        chance.shuffle(held)
        out = held[: chance.randrange(len(held) + 1)]
        del held[: len(out)]
        return out

    async with carried() as (carrier, one, two):
        carrier.tamper = tamper
        await both_ways(one, two, 40, 4)


@pytest.mark.parametrize("source", ["the same way", "another socket"])
async def test_a_recording_played_again_delivers_nothing(source: str) -> None:
    async with carried() as (carrier, one, two):
        await both_ways(one, two, 30, 5)
        recording, delivered = list(carrier.log), list(two.received)
        duplicates = two.sctp._data.receiver.duplicates
        target, seen = carrier.second, two.sctp.path_stats().packets_received
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            out = stranger.sendto if source == "another socket" else carrier._facing_second.transport.sendto
            for number, datagram in enumerate(recording):
                out(datagram, target)
                if number % 50 == 0:
                    await asyncio.sleep(0)
        await until(lambda: two.sctp.path_stats().packets_received >= seen + len(recording) * 0.8)
        assert two.received == delivered
        assert two.sctp._data.receiver.duplicates == duplicates  # DTLS knows them; SCTP does not get to see them.
        await both_ways(one, two, 5, 6)


async def test_a_recording_of_one_connection_means_nothing_to_another() -> None:
    async with carried() as (old, one, _):
        one.channel.send(SECRET)
        await until(lambda: any(is_data(datagram) for datagram in old.log))
        recording = [datagram for datagram in old.log if is_data(datagram)]
    async with carried() as (new, one, two):
        for datagram in recording * 20:
            new._facing_second.transport.sendto(datagram, new.second)
        await both_ways(one, two, 5, 7)


@pytest.mark.parametrize("number", [0, 1, 5, 2**40])
@pytest.mark.parametrize("epoch", [0, 1, 2])
async def test_nobody_on_the_way_can_end_or_restart_the_session(epoch: int, number: int) -> None:
    """Alerts and handshake messages in the clear, with every epoch and number that might be let in."""
    async with carried() as (carrier, one, two):
        hello = b"\1\0\0\x2c\0\0\0\0\0\0\0\x2c\xfe\xfd" + bytes(42)
        for kind, body in ((21, b"\1\0"), (21, b"\2\x28"), (21, b"\2\0"), (22, hello), (22, bytes(12)), (20, b"\1")):
            record = bytes([kind, 0xFE, 0xFD]) + epoch.to_bytes(2, "big") + number.to_bytes(6, "big")
            record += len(body).to_bytes(2, "big") + body
            carrier._facing_second.transport.sendto(record, carrier.second)
            carrier._facing_first.transport.sendto(record, carrier.first)
        await both_ways(one, two, 5, 8)
