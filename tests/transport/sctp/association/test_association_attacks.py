"""A peer that has shaken hands and then breaks the rules, and strangers who write to our port: over real sockets and DTLS."""

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.transport.sctp.pairs import End, joined, until
from transport.sctp import packet as wire
from transport.sctp.association import MAX_CHANNELS
from transport.sctp.datapath import DataPath
from transport.sctp.packet import FIRST_FRAGMENT, TSN_MASK, Sack


@pytest.fixture
async def complaints() -> AsyncIterator[list[dict[str, Any]]]:
    """What callbacks and tasks of the event loop raised: nothing, whatever the peer does."""
    found: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: found.append(context))
    yield found
    assert found == []


def data_path(end: End) -> DataPath:
    path = end.sctp._data
    assert isinstance(path, DataPath)
    return path


def inject(end: End, *chunks: bytes) -> None:
    """Send a packet of the peer's own making through its DTLS session."""
    path = data_path(end)
    path._batches.add(path._framer.packet(*chunks))
    path._batches.flush()


def data(tsn: int, flags: int, payload: bytes, stream: int = 9) -> bytes:
    return wire.chunk(wire.DATA, flags, struct.pack("!LHHL", tsn & TSN_MASK, stream, 0, 53) + payload)


async def aborted(end: End, reason: str) -> None:
    """The association has ended with a reason that names what the peer did."""
    await until(lambda: end.sctp.fault != "")
    assert reason in end.sctp.fault
    assert end.sctp.state == "closed"
    assert end.channel.readyState == "closed"


async def still_works(one: End, two: End) -> None:
    before = len(two.received)
    one.channel.send(b"still here")
    await until(lambda: len(two.received) == before + 1)


async def test_acknowledging_what_was_never_sent_ends_the_association_on_both_sides(complaints: Any) -> None:
    async with joined() as (one, two):
        sent = data_path(one).sender.next_tsn
        inject(two, wire.sack_chunk(Sack((sent + 1000) & TSN_MASK, 1 << 20, (), ())))
        await aborted(one, "never sent")
        await until(lambda: two.channel.readyState == "closed")


async def test_a_message_without_end_ends_the_association(complaints: Any) -> None:
    async with joined() as (one, two):
        tsn = data_path(two).sender.next_tsn
        for n in range(270):
            inject(two, data(tsn + n, FIRST_FRAGMENT if n == 0 else 0, bytes(1000)))
        await aborted(one, "unfinished message")


async def test_data_without_data_ends_the_association(complaints: Any) -> None:
    async with joined() as (one, two):
        inject(two, data(data_path(two).sender.next_tsn, 3, b""))
        await aborted(one, "without data")


async def test_opening_more_channels_than_anybody_needs_ends_the_association(complaints: Any) -> None:
    async with joined() as (one, two):
        for stream in range(2, MAX_CHANNELS + 10):
            request = struct.pack("!BBHLHH", 3, 0, 0, 0, 1, 0) + b"x"
            body = struct.pack("!LHHL", data_path(two).sender.next_tsn + stream - 2 & TSN_MASK, stream, 0, 50)
            inject(two, wire.chunk(wire.DATA, 3, body + request))
        await aborted(one, f"more than {MAX_CHANNELS} data channels")
        await until(lambda: two.channel.readyState == "closed")  # It was told.


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param([b"\x00\x03\x00\x02"], id="a length below the header"),
        pytest.param([b"\x03\x00\xff\xff" + bytes(12)], id="a length beyond the packet"),
        pytest.param([wire.chunk(wire.SACK, 0, struct.pack("!LLHH", 1, 1, 65535, 65535))], id="absurd counts"),
        pytest.param([wire.chunk(wire.SACK, 0, b"\0")], id="a short acknowledgement"),
        pytest.param([wire.chunk(wire.FORWARD_TSN, 0, b"\0\0\0")], id="a short FORWARD-TSN"),
        pytest.param([wire.chunk(wire.INIT, 0, bytes(3))], id="a short INIT"),
        pytest.param([wire.chunk(2, 0, bytes(3))], id="a short INIT ACK"),
        pytest.param([wire.chunk(10, 0, bytes(24))], id="a forged cookie"),
        pytest.param([wire.chunk(130, 0, b"\0\x0d\0\x05\1")], id="a short RE-CONFIG"),
        pytest.param([wire.chunk(130, 0, b"\0\x10\0\x0c" + bytes(8))], id="an answer to no RE-CONFIG"),
        pytest.param([wire.chunk(130, 0, b"\0\x0d\0\0")], id="a RE-CONFIG parameter of no length"),
        pytest.param([wire.chunk(wire.HEARTBEAT_ACK, 0, bytes(20))], id="an answer to no probe"),
        pytest.param([wire.chunk(63, 0, b"?")], id="an unknown kind"),
        pytest.param([wire.chunk(200, 0, b"?")], id="an unknown kind to be skipped"),
    ],
)
async def test_chunks_that_lie_are_left_out(chunks: list[bytes], complaints: Any) -> None:
    async with joined() as (one, two):
        inject(two, *chunks)
        await still_works(two, one)
        await still_works(one, two)
        assert one.sctp.fault == ""


@pytest.mark.parametrize("seed", range(4))
async def test_random_chunks_end_in_order_or_with_a_reason_and_never_raise(seed: int, complaints: Any) -> None:
    chance = random.Random(seed)
    kinds = [0, 0, 1, 2, 3, 3, 4, 5, 9, 10, 11, 14, 130, 132, 192, 192, 250]
    async with joined() as (one, two):
        for _ in range(500):
            if one.sctp.state == "closed" or two.sctp.state == "closed":
                break
            tsn = data_path(two).receiver.cumulative + chance.randrange(-3, 40) & TSN_MASK
            body = struct.pack("!L", tsn) + chance.randbytes(chance.randrange(40))
            inject(two, wire.chunk(chance.choice(kinds), chance.randrange(16), body))
            if chance.random() < 0.1:
                await asyncio.sleep(0)
        if one.sctp.state != "closed":
            one.channel.send(b"")
        await until(lambda: one.sctp.fault != "" or two.sctp.state == "closed" or two.received == [b""])
        assert data_path(one).receiver.held <= 20 << 20


async def test_a_peer_that_withholds_acknowledgements_gets_little_and_costs_no_memory(complaints: Any) -> None:
    async with joined() as (one, two):
        two_path = data_path(two)
        two_path._send_sack = lambda: None  # type: ignore[method-assign]
        for _ in range(200):
            one.channel.send(bytes(50_000))
        sender = data_path(one).sender
        await until(lambda: sender.timeouts >= 2, 20)
        window = data_path(one).controller.window
        assert sender.inflight <= max(window, 64 << 10) + 1500
        assert one.channel.bufferedAmount > 9_000_000
        assert len(sender._sent) < 5000


async def test_a_window_that_lies_is_not_filled_beyond_the_controllers(complaints: Any) -> None:
    async with joined() as (one, two):
        cumulative = data_path(two).receiver.cumulative
        inject(two, wire.sack_chunk(Sack(cumulative & TSN_MASK, 2**32 - 1, (), ())))
        greatest = 0
        for _ in range(50):
            one.channel.send(bytes(60_000))
        while len(two.received) < 50:
            path = data_path(one)
            greatest = max(greatest, path.sender.inflight - path.controller.window)
            await asyncio.sleep(0)
        assert greatest < 2 << 20


async def test_garbage_and_replayed_datagrams_from_strangers_change_nothing(complaints: Any) -> None:
    chance = random.Random(1)
    async with joined() as (one, two):
        pair = one.sctp._connection()._nominated[1]
        target = (pair.local_addr[0], pair.local_addr[1])
        seen: list[bytes] = []
        path = data_path(two)._path
        assert path is not None
        send = path.send

        def tapped(buffer: Any, segment: int) -> None:
            seen.append(bytes(buffer[:segment]))
            send(buffer, segment)

        path.send = tapped  # type: ignore[method-assign]
        await still_works(two, one)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for n in range(300):
                two.channel.send(b"%d" % n)
                for datagram in (
                    chance.choice(seen),  # A replay,
                    bytes([chance.randrange(20, 64)]) + chance.randbytes(chance.randrange(60)),  # noise,
                    b"\x17\xfe\xfd" + chance.randbytes(8) + b"\xff\xff" + chance.randbytes(30),  # a length that lies,
                    b"\x17\xfe\xfd" + chance.randbytes(8) + b"\x00\x20" + chance.randbytes(32),  # a forged record,
                    b"",
                ):
                    stranger.sendto(datagram, target)
                if n % 10 == 0:
                    await asyncio.sleep(0)
        await until(lambda: len(one.received) == 301, 20)
        assert one.received[1:] == [b"%d" % n for n in range(300)]
        assert one.sctp.fault == ""


async def test_a_flood_of_heartbeats_is_answered_once_each_and_no_larger(complaints: Any) -> None:
    async with joined() as (one, two):
        await still_works(one, two)
        before = one.sctp.path_stats()
        for _ in range(500):
            inject(two, wire.chunk(wire.HEARTBEAT, 0, bytes(500)))
        await still_works(one, two)
        after = one.sctp.path_stats()
        assert after.packets_sent - before.packets_sent <= 500 + 20
        assert after.bytes_sent - before.bytes_sent <= after.bytes_received - before.bytes_received + 5000


async def test_an_abort_of_the_peer_closes_the_channels(complaints: Any) -> None:
    async with joined() as (one, two):
        inject(two, wire.abort_chunk("goodbye"))
        await until(lambda: one.channel.readyState == "closed")
        assert one.sctp.state == "closed"
