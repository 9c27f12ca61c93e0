"""DTLS datagrams through a real TURN relay, reached over UDP, TCP and TLS."""

import asyncio
import contextlib
import ipaddress
import ssl
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aioice
import pytest

from tests.testbed.relay import make_certificate
from tests.transport.conftest import until
from tests.transport.sctp.test_datagram import DTLS, LINUX, End, cut, datagram, ends
from transport.ice.ice import turn_credentials
from transport.relay.options import RelayOptions
from transport.relay.server import RelayServer
from transport.sctp.udp import offload
from transport.sctp.udp.datagram import STREAM_QUEUE, PortablePath, SocketPath, _channel_payload

SECRET = "shared with the coordinator only"
PEER = "127.0.0.1"  # aioice asks relays for IPv4 addresses only.
WAYS = ["udp", "udp-portable", "tcp", "tls"]


@contextlib.asynccontextmanager
async def relayed(way: str, host: str, folder: Path) -> AsyncIterator[tuple[End, End]]:
    """One end that reaches the peer only through the relay at ``host``, and a peer on IPv4 without a relay."""
    certificate, key = folder / "relay.pem", folder / "relay.key"
    make_certificate([host], certificate, key)
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(certificate, key)
    options = RelayOptions(
        SECRET,
        (PEER,) if host == PEER else (PEER, host),
        port=0,
        nat_port=None,
        tls_port=0,
        tls=server_side,
        min_port=0,
        max_port=0,
        allowed=(ipaddress.ip_network(PEER),),
    )
    async with RelayServer(options) as relay:
        username, password = turn_credentials(SECRET, "node", time.time())
        trust: Any = ssl.create_default_context(cafile=str(certificate)) if way == "tls" else False
        async with ends(
            PEER,
            portable=way == "udp-portable",
            turn_server=(relay.tls_addresses if way == "tls" else relay.addresses)[-1],
            turn_username=username,
            turn_password=password,
            turn_ssl=trust,
            turn_transport="udp" if way.startswith("udp") else "tcp",
            transport_policy=aioice.TransportPolicy.RELAY,
        ) as both:
            yield both


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["127.0.0.1", "::1"])
async def sides(
    request: pytest.FixtureRequest, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[End, End]]:
    # The peer's first check meets a relay that has no permission yet.
    monkeypatch.setattr("aioice.stun.RETRY_RTO", 0.05)
    async with relayed(way, request.param, tmp_path) as both:
        yield both


async def test_buffers_cross_the_relay_in_both_directions_as_they_were(sides: tuple[End, End], way: str) -> None:
    one, other = sides
    assert one.connection._nominated[1].local_candidate.type == "relay"
    expected: list[bytes] = []
    for number, (segment, total) in enumerate([(1400, 1400 * 40), (1400, 1400 * 2 + 9), (201, 2010), (77, 77)]):
        buffer = b"".join(datagram(min(segment, total - i), number) for i in range(0, total, segment))
        for side in sides:
            side.path.send(buffer, segment)
        expected += cut(buffer, segment)
        await until(lambda: all(len(side.received) == len(expected) for side in sides))  # noqa: B023
    assert one.received == expected
    assert other.received == expected
    assert isinstance(one.path, SocketPath if way == "udp" else PortablePath)


async def test_the_headers_of_the_relay_count_as_overhead(sides: tuple[End, End], way: str) -> None:
    one, other = sides
    six = ":" in one.path._route.hop[0]
    assert other.path.overhead == 28
    assert one.path.truthful
    assert (one.path.interface_mtu == 1500) == (way in ("tcp", "tls") or not offload.LINUX)
    assert one.path.overhead == (40 if six else 20) + (8 if way.startswith("udp") else 32) + 4


async def test_connectivity_checks_cross_the_relay_while_datagrams_stream(sides: tuple[End, End]) -> None:
    buffer = b"".join(datagram(1100, i) for i in range(16))
    for _ in range(5):
        for side in sides:
            side.path.send(buffer, 1100)
        await asyncio.gather(*(side.check_path() for side in sides))
    await until(lambda: all(len(side.received) == 80 for side in sides))


async def test_before_the_channel_is_bound_datagrams_go_by_way_of_the_ice_stack(sides: tuple[End, End]) -> None:
    one, other = sides
    inner = one.path._route.flow
    number = inner.peer_to_channel.pop(one.path._route.peer)
    inner.channel_number = number  # aioice numbers on: the same number for the same peer is what RFC 8656 allows.
    one.path.send(datagram(300, 1) + datagram(300, 2), 300)
    await until(lambda: sorted(other.received) == sorted([datagram(300, 1), datagram(300, 2)]))
    assert inner.peer_to_channel[one.path._route.peer] == number
    one.path.send_one(datagram(300, 3))
    await until(lambda: other.received[-1] == datagram(300, 3))


@pytest.mark.parametrize("way", ["tcp", "tls"], indirect=True)
async def test_a_full_stream_is_told_loses_what_does_not_fit_and_tells_of_room(sides: tuple[End, End]) -> None:
    one, other = sides
    sent = 0
    while one.path.writable:
        one.path.send(b"".join(datagram(1400, sent + i) for i in range(40)), 1400)
        sent += 40
        assert sent < 100_000, "the queue before the relay has no end"
    assert one.room == 0
    queued = one.path._route.transport.get_write_buffer_size()
    one.path.send(datagram(1400) * 40, 1400)
    assert one.path._route.transport.get_write_buffer_size() == queued <= STREAM_QUEUE + 40 * 1408
    await until(lambda: one.path.writable)
    assert one.room == 1
    await until(lambda: one.path._route.transport.get_write_buffer_size() == 0)
    before = len(other.received)
    one.path.send_one(datagram(50))
    await until(lambda: len(other.received) > before and other.received[-1] == datagram(50))


@LINUX
@pytest.mark.parametrize("way", ["udp"], indirect=True)
async def test_closing_leaves_the_relayed_way_to_the_ice_stack(sides: tuple[End, End]) -> None:
    one, other = sides
    one.path.close()
    other.path.send_one(datagram(60, 1))
    assert await asyncio.wait_for(one.connection.recv(), 5) == datagram(60, 1)
    await one.check_path()
    await one.connection.send(datagram(60, 2))
    await until(lambda: other.received == [datagram(60, 2)])


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x40\x00\x00",
        b"\x40\x00\x00\x04",
        b"\x40\x00\x00\x00" + bytes([DTLS]),
        b"\x40\x01\x00\x01" + bytes([DTLS]),
        b"\x40\x00\x00\x05" + bytes([DTLS] * 4),
        b"\x40\x00\xff\xff" + bytes([DTLS] * 100),
        b"\x40\x00\x00\x02\x00\x01",
    ],
)
def test_a_channel_message_that_lies_or_is_another_channels_is_not_taken(message: bytes) -> None:
    assert _channel_payload(message, 0x4000) is None


def test_padding_after_a_channel_message_is_cut_off() -> None:
    assert _channel_payload(struct.pack("!HH", 0x4000, 5) + bytes([DTLS] * 5) + bytes(3), 0x4000) == bytes([DTLS] * 5)
