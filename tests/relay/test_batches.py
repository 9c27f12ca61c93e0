"""Many datagrams in one system call, and one by one: the same bytes arrive."""

import asyncio
import hashlib
import os
import random
import socket
import struct
import time

import pytest

from tests.relay.conftest import asker, code, relay_options, relayed, until
from transport.relay.allocation import Allocation
from transport.relay.datagrams import DatagramSocket
from transport.relay.errors import ListenError
from transport.relay.server import RelayServer

UDP_SEGMENT = 103


def digest(items: list[bytes]) -> str:
    total = hashlib.sha256()
    for item in items:
        total.update(len(item).to_bytes(4, "big") + item)
    return total.hexdigest()


def taken(end: socket.socket, count: int) -> list[bytes]:
    """``count`` datagrams, or fewer if no more come within the socket's time limit."""
    return [end.recv(65535) for _ in range(count)]


def bound(limit_s: float = 5.0) -> socket.socket:
    end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    end.bind(("127.0.0.1", 0))
    end.settimeout(limit_s)
    return end


@pytest.mark.parametrize("offload", [True, False], ids=["offloaded", "portable"])
@pytest.mark.parametrize("size", [1, 999, 1200, 1472])
async def test_a_burst_arrives_bit_identical_and_in_order(offload: bool, size: int) -> None:
    chance = random.Random(size)
    async with RelayServer(relay_options(offload=offload)) as server, asker(server.addresses[0]) as client:
        mine = (await client.allocate()).attributes["XOR-RELAYED-ADDRESS"]
        with bound() as friend:
            assert code(await client.bind(0x4123, friend.getsockname())) == 0
            payloads = [chance.randbytes(size) for _ in range(40)] + [chance.randbytes(max(1, size // 3))]
            frames = [struct.pack("!HH", 0x4123, len(data)) + data for data in payloads]
            _burst(client.inbox.transport.get_extra_info("socket").fileno(), frames, server.addresses[0])
            got = await asyncio.to_thread(taken, friend, len(payloads))
            assert digest(got) == digest(payloads)
            _burst(friend.fileno(), payloads, mine)
            await until(lambda: len(client.inbox.items) == len(frames))
            assert digest([data for data, _ in client.inbox.items]) == digest(frames)
        assert not server.desk.counters.dropped


def _burst(descriptor: int, datagrams: list[bytes], to: tuple[str, int]) -> None:
    """Send as one buffer where the system can, so that they arrive coalesced."""
    with socket.socket(fileno=os.dup(descriptor)) as end:
        try:
            extra = [(socket.SOL_UDP, UDP_SEGMENT, struct.pack("=H", len(datagrams[0])))]
            end.sendmsg([b"".join(datagrams)], extra, 0, to)
        except (OSError, AttributeError):
            for datagram in datagrams:
                end.sendto(datagram, to)


async def test_frames_of_many_lengths_and_channels_in_one_batch_reach_their_peers(relay: RelayServer) -> None:
    """What a batch holds is cut at every change of peer and length; requests among the frames are answered."""
    chance = random.Random(4)
    async with asker(relay.addresses[0]) as client:
        await client.allocate()
        allocation: Allocation = next(iter(relay.desk.allocations.values()))
        with bound() as one, bound() as two:
            for number, end in ((0x4000, one), (0x4001, two)):
                assert code(await client.bind(number, end.getsockname())) == 0
            expected: dict[int, list[bytes]] = {0x4000: [], 0x4001: []}
            batch, size = b"", 200
            for _ in range(60):
                number, data = chance.choice((0x4000, 0x4001)), chance.randbytes(chance.randrange(size - 3))
                expected[number].append(data)
                batch += (struct.pack("!HH", number, len(data)) + data).ljust(size, b"\0")
            stray = struct.pack("!HH", 0x4002, 10).ljust(size, b"x")
            too_long = struct.pack("!HH", 0x4000, 197).ljust(size, b"x")
            request = b"\0\1".ljust(size, b"r")
            left = allocation.from_client(
                memoryview(batch + stray + request + too_long + b"\x40"), size, time.monotonic()
            )
            assert [bytes(item) for item in left] == [request]
            assert relay.desk.counters.dropped == {"no channel": 3}
            for number, end in ((0x4000, one), (0x4001, two)):
                assert digest(await asyncio.to_thread(taken, end, len(expected[number]))) == digest(expected[number])


async def test_a_megabyte_of_datagrams_crosses_two_allocations_over_tcp(relay: RelayServer) -> None:
    chance = random.Random(9)
    async with relayed(relay.addresses[0], "tcp") as (_, one), relayed(relay.addresses[0], "tcp") as (right, other):
        other.sendto(b"opens the way", one.get_extra_info("sockname"))
        await until(lambda: bool(relay.desk.counters.dropped))
        payloads = [chance.randbytes(chance.randrange(1, 1400)) for _ in range(1500)]
        for payload in payloads:
            one.sendto(payload, other.get_extra_info("sockname"))
        await until(lambda: len(right.items) == len(payloads))
        assert digest([data for data, _ in right.items]) == digest(payloads)


async def test_a_tcp_client_that_does_not_read_loses_packets_and_the_relay_stays_small(relay: RelayServer) -> None:
    async with relayed(relay.addresses[0], "tcp", user="slow") as (_, slow), asker(relay.addresses[0]) as sender:
        here = (await sender.allocate()).attributes["XOR-RELAYED-ADDRESS"]
        there = slow.get_extra_info("sockname")
        slow.sendto(b"opens the way", here)
        await sender.bind(0x4000, there)
        await until(lambda: relay.desk.counters.to_peers_packets == 1)
        reader = slow._TurnTransport__inner_protocol.transport
        reader.pause_reading()
        frame = b"\x40\x00\x05\x00" + bytes(1280)
        for _ in range(20_000):
            sender.send(frame)
            if relay.desk.counters.dropped.get("buffer"):
                break
            await asyncio.sleep(0)
        assert relay.desk.counters.dropped["buffer"]
        waiting = [stream._transport.get_write_buffer_size() for stream in relay._connections]
        assert max(waiting) < 2 << 20
        reader.resume_reading()


def test_a_port_that_is_taken_is_named_in_the_error() -> None:
    first = DatagramSocket(("127.0.0.1", 0), 1 << 16)
    with pytest.raises(ListenError, match=f"UDP port {first.address[1]} of 127.0.0.1"):
        DatagramSocket(first.address, 1 << 16)
    first.close()


def test_datagrams_above_the_path_are_refused_one_by_one_and_counted() -> None:
    end, friend = DatagramSocket(("127.0.0.1", 0), 1 << 20), bound()
    with friend:
        whole = [bytes(60_000), bytes(70_000), b"small"]
        assert end.send(whole, 1, friend.getsockname()) == 2
        assert [len(item) for item in taken(friend, 2)] == [60_000, 5]
    end.close()
