"""DTLS datagrams between two real ICE connections, by the quick way and by the portable one, on IPv4 and IPv6."""

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import aioice
import pytest
from aioice import stun

from tests.transport.conftest import until
from transport.sctp.udp import offload
from transport.sctp.udp.datagram import DatagramPath, PortablePath, SocketPath, open_path
from transport.sctp.udp.offload import DatagramRun

DTLS = 23  # Application data.
LINUX = pytest.mark.skipif(
    not offload.LINUX, reason="segmentation and receive offload, and reading a socket beside asyncio, are Linux's"
)


def datagram(length: int, seed: int = 0) -> bytes:
    """Something that looks like DTLS from outside."""
    return bytes([DTLS]) + random.Random(seed * 65_537 + length).randbytes(length - 1)


def into(batches: list[list[bytes]]) -> Callable[[list[DatagramRun]], None]:
    """Add the datagrams of each reading."""
    return lambda runs: batches.append([datagram for run in runs for datagram in run.each()])


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


async def connect(host: str, **options: Any) -> tuple[aioice.Connection, aioice.Connection]:
    """Two ICE connections through one address of this machine; ``options`` are the first one's."""
    first = aioice.Connection(ice_controlling=True, **options)
    second = aioice.Connection(ice_controlling=False)
    for connection in (first, second):
        only_from(connection, host)
        await connection.gather_candidates()
    for one, other in ((first, second), (second, first)):
        one.remote_username, one.remote_password = other.local_username, other.local_password
        for candidate in other.local_candidates:
            await one.add_remote_candidate(candidate)
        await one.add_remote_candidate(None)
    await asyncio.gather(first.connect(), second.connect())
    return first, second


def only_from(connection: Any, host: str) -> None:
    """aioice leaves loopback out; here it is all there is, where the connection may use more than its relay."""
    gather = connection.get_component_candidates
    here = [] if connection._transport_policy is aioice.TransportPolicy.RELAY else [host]

    async def gather_here(component: int, addresses: list[str], timeout: int = 5) -> Any:
        return await gather(component=component, addresses=here, timeout=timeout)

    connection.get_component_candidates = gather_here


class End:
    """One side: its connection, its path, and what came in."""

    def __init__(self, connection: Any, *, portable: bool) -> None:
        self.connection = connection
        self.portable = portable
        self.batches: list[list[bytes]] = []
        self.too_big: list[int] = []
        self.room = 0
        self.path = self.open()

    @property
    def protocol(self) -> Any:
        return self.connection._nominated[1].protocol

    @property
    def address(self) -> tuple[str, int]:
        """Where the other side must send to."""
        host, port = self.protocol.transport.get_extra_info("sockname")[:2]
        return host, port

    @property
    def received(self) -> list[bytes]:
        return [one for batch in self.batches for one in batch]

    def open(self, on_datagrams: Callable[[list[DatagramRun]], None] | None = None) -> DatagramPath:
        pair = self.connection._nominated[1]
        loop = asyncio.get_running_loop()
        took = on_datagrams or into(self.batches)
        return open_path(
            pair.protocol, pair.remote_addr, loop, took, self.on_room, self.too_big.append, portable=self.portable
        )

    def on_room(self) -> None:
        self.room += 1

    async def check_path(self) -> None:
        """One STUN connectivity check there and back on the path's own socket; fails if it is not answered."""
        pair = self.connection._nominated[1]
        request = self.connection.build_request(pair, nominate=False)
        key = self.connection.remote_password.encode()
        response, _ = await pair.protocol.request(request, pair.remote_addr, integrity_key=key)
        assert response.message_class == stun.Class.RESPONSE


@contextlib.asynccontextmanager
async def ends(host: str, *, portable: bool, **options: Any) -> AsyncIterator[tuple[End, End]]:
    first, second = await connect(host, **options)
    sides = End(first, portable=portable), End(second, portable=portable)
    try:
        yield sides
    finally:
        for side in sides:
            side.path.close()
            await side.connection.close()


@pytest.fixture(params=["127.0.0.1", "::1"])
def host(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["quick", "portable"])
def portable(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
async def sides(host: str, portable: bool) -> AsyncIterator[tuple[End, End]]:
    async with ends(host, portable=portable) as both:
        yield both


async def test_every_datagram_of_a_buffer_arrives_as_it_was_and_in_order(sides: tuple[End, End]) -> None:
    one, other = sides
    expected: list[bytes] = []
    for number, (segment, total) in enumerate(
        [(1440, 1440 * 45), (1440, 1440 * 3 + 17), (500, 499), (64, 6400), (20, 60)]
    ):
        buffer = b"".join(datagram(min(segment, total - i), number) for i in range(0, total, segment))
        await until(lambda: one.path.writable)  # Windows' event loop takes 64 KB at once.
        one.path.send(memoryview(buffer), segment)
        expected += cut(buffer, segment)
    await until(lambda: len(other.received) == len(expected))
    assert other.received == expected


async def test_both_directions_work_at_once(sides: tuple[End, End]) -> None:
    for number in range(20):
        for side in sides:
            side.path.send(b"".join(datagram(1200, number * 8 + i) for i in range(8)), 1200)
            side.path.send_one(datagram(77, number))
        await until(lambda n=number: all(len(side.received) == 9 * (n + 1) for side in sides))  # type: ignore[misc]
    assert sides[0].received == sides[1].received


@LINUX
async def test_the_quick_way_is_told_by_its_name_and_hands_over_bursts(host: str) -> None:
    async with ends(host, portable=False) as (one, other):
        assert isinstance(one.path, SocketPath)
        assert one.path.offload == "gso+gro"
        one.path.send(b"".join(datagram(1000, i) for i in range(60)), 1000)
        await until(lambda: len(other.received) == 60)
        assert len(other.batches) <= 3


@LINUX
@pytest.mark.parametrize(
    ("rest_s", "sent", "dense", "rests"),
    [
        (0.0, 5, True, False),
        (0.001, 5, True, True),
        (0.001, 5, False, False),  # A lone packet of a short way waits for nobody.
        (0.002, 1, False, True),
        (0.002, 60, True, False),  # This many are worth the wake-up.
    ],
)
async def test_packets_that_come_densely_gather_before_they_are_read(
    monkeypatch: pytest.MonkeyPatch, rest_s: float, sent: int, dense: bool, rests: bool
) -> None:
    monkeypatch.setattr("transport.sctp.udp.datagram.DENSE", 1e-9 if dense else 1e9)
    async with ends("127.0.0.1", portable=False) as (one, other):
        assert isinstance(other.path, SocketPath)
        rested: list[bool] = []
        take = into(other.batches)

        def took(runs: list[DatagramRun]) -> None:
            take(runs)
            asyncio.get_running_loop().call_soon(lambda: rested.append(path._resting is not None))

        path = other.open(took)
        assert isinstance(path, SocketPath)
        path.rest_s = rest_s
        buffer = b"".join(datagram(1000, i) for i in range(sent))
        one.path.send(buffer, 1000)
        await until(lambda: len(rested) == 1)
        assert rested == [rests]
        one.path.send(buffer, 1000)  # While it rests, or not: everything is read, in order.
        await until(lambda: other.received == cut(buffer, 1000) * 2)
        await until(lambda: path._resting is None)
        path.close()


async def test_the_portable_way_is_told_by_its_name(host: str) -> None:
    async with ends(host, portable=True) as (one, _):
        assert isinstance(one.path, PortablePath)
        assert one.path.offload == "portable"


async def test_overhead_and_greatest_payload_are_those_of_the_family(sides: tuple[End, End], host: str) -> None:
    for side in sides:
        assert side.path.overhead == (48 if ":" in host else 28)
        assert side.path.max_payload == min(side.path.interface_mtu, 65_535) - side.path.overhead
    if offload.LINUX:
        assert sides[0].path.interface_mtu >= 65_535


async def test_connectivity_checks_are_answered_while_datagrams_stream(sides: tuple[End, End]) -> None:
    buffer = b"".join(datagram(1440, i) for i in range(32))
    for _ in range(10):
        sides[0].path.send(buffer, 1440)
        sides[1].path.send(buffer, 1440)
        await asyncio.gather(*(side.check_path() for side in sides))
    await until(lambda: all(len(side.received) == 320 for side in sides))


async def test_consent_stays_fresh(host: str, portable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aioice.ice.CONSENT_INTERVAL", 0.02)
    monkeypatch.setattr("aioice.ice.CONSENT_FAILURES", 2)
    async with ends(host, portable=portable) as (one, other):
        asked = 0

        def count(message: Any, address: Any, protocol: Any, take: Any = other.connection.request_received) -> None:
            nonlocal asked
            asked += 1
            take(message, address, protocol)

        other.connection.request_received = count
        sent = 0
        while asked < 10:
            one.path.send(datagram(1440) * 4, 1440)
            sent += 4
            await until(lambda n=sent: len(other.received) == n)  # type: ignore[misc]
        assert one.connection._nominated, "consent was lost"
        assert other.connection._nominated, "consent was lost"


async def test_what_is_not_dtls_goes_to_the_connection(sides: tuple[End, End]) -> None:
    media = bytes([128]) + bytes(50)
    await sides[0].connection.send(media)
    assert await asyncio.wait_for(sides[1].connection.recv(), 5) == media
    assert not sides[1].received


async def test_empty_datagrams_and_noise_from_strangers_do_no_harm(sides: tuple[End, End], host: str) -> None:
    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    chance = random.Random(7)
    with socket.socket(family, socket.SOCK_DGRAM) as stranger:
        for number in range(300):
            noise = chance.randbytes(chance.choice([0, 1, 2, 3, 19, 20, 40]))
            # Not DTLS, which would be handed on to be rejected there.
            stranger.sendto(bytes([number % 20]) + noise if noise else b"", sides[1].address)
            await asyncio.sleep(0)
    sides[0].path.send_one(datagram(100))
    await until(lambda: sides[1].received == [datagram(100)])
    queue = sides[1].connection._queue
    assert all(queue.get_nowait()[0] for _ in range(queue.qsize())), "an empty datagram would end aiortc's DTLS"
    assert not failures


@LINUX  # Elsewhere the ICE stack takes all datagrams first.
async def test_a_datagram_that_makes_the_ice_stack_fail_costs_only_itself(host: str) -> None:
    async with ends(host, portable=False) as (one, other):
        failures: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context))

        def fail(_data: bytes, _address: Any) -> None:
            raise IndexError("a hostile STUN message")

        other.protocol.datagram_received = fail
        one.path.send_one(datagram(90, 1))
        one.protocol.transport.sendto(b"\x00\x01" + bytes(88), other.address)
        one.path.send_one(datagram(90, 2))
        await until(lambda: len(other.received) == 2 and len(failures) == 1)


async def test_what_has_come_and_was_not_handed_on_goes_back_with_the_path(sides: tuple[End, End]) -> None:
    _, other = sides
    await asyncio.sleep(0)
    last = datagram(39)
    other.connection.data_received(last, 1)
    other.path.close()
    await asyncio.sleep(0)
    assert not other.received
    assert other.connection._queue.get_nowait() == (last, 1)


async def test_closing_gives_reading_back_to_the_ice_stack(sides: tuple[End, End]) -> None:
    one, other = sides
    one.path.send_one(datagram(50, 1))
    await until(lambda: len(other.received) == 1)
    other.path.close()
    other.path.close()
    buffer = b"".join(datagram(60, i) for i in range(30))
    one.path.send(buffer, 60)
    assert [await asyncio.wait_for(other.connection.recv(), 5) for _ in range(30)] == cut(buffer, 60)
    await asyncio.gather(one.check_path(), other.check_path())
    assert len(other.received) == 1


@LINUX
async def test_closing_restores_the_socket_options(host: str) -> None:
    async with ends(host, portable=False) as (one, _):
        end = one.protocol.transport._sock
        level, option, value = offload.DONT_FRAGMENT["linux", end.family]
        assert end.getsockopt(level, option) == value
        assert end.getsockopt(offload.SOL_UDP, offload.UDP_GRO) == 1
        one.path.let_fragment(True)
        assert end.getsockopt(level, option) == 0
        one.path.let_fragment(False)
        assert end.getsockopt(level, option) == value
        one.path.close()
        assert end.getsockopt(level, option) != value
        assert end.getsockopt(offload.SOL_UDP, offload.UDP_GRO) == 0


async def test_a_new_path_on_the_same_socket_takes_over_and_closing_the_old_one_changes_nothing(
    sides: tuple[End, End],
) -> None:
    one, other = sides
    old = other.path
    later: list[list[bytes]] = []
    new = other.open(into(later))
    one.path.send_one(datagram(30, 1))
    await until(lambda: later == [[datagram(30, 1)]])
    old.close()
    one.path.send_one(datagram(30, 2))
    await until(lambda: later == [[datagram(30, 1)], [datagram(30, 2)]])
    new.close()
    one.path.send_one(datagram(30, 3))
    assert await asyncio.wait_for(other.connection.recv(), 5) == datagram(30, 3)
    assert not other.received


async def test_datagrams_on_another_socket_of_the_connection_are_handed_over_too(sides: tuple[End, End]) -> None:
    _, other = sides
    other.connection.data_received(datagram(30, 1), 1)
    other.connection.data_received(datagram(30, 2), 1)
    await until(lambda: other.batches == [[datagram(30, 1), datagram(30, 2)]])


@pytest.mark.parametrize("oldest_first", [True, False])
async def test_paths_on_two_sockets_of_a_connection_may_be_closed_in_any_order(
    sides: tuple[End, End], host: str, portable: bool, oldest_first: bool
) -> None:
    _, other = sides
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(
        lambda: aioice.ice.StunProtocol(other.connection), local_addr=(host, 0)
    )
    later: list[list[bytes]] = []
    paths = [other.path, open_path(protocol, (host, 9), loop, into(later), portable=portable)]
    other.connection.data_received(datagram(20, 1), 1)
    await until(lambda: later == [[datagram(20, 1)]])
    paths.pop(0 if oldest_first else 1).close()
    other.connection.data_received(datagram(20, 2), 1)
    await until(lambda: (later if oldest_first else other.batches)[-1:] == [[datagram(20, 2)]])
    paths.pop().close()
    other.connection.data_received(datagram(20, 3), 1)
    assert await asyncio.wait_for(other.connection.recv(), 5) == datagram(20, 3)
    transport.close()


async def test_a_path_whose_socket_was_closed_neither_sends_nor_fails(sides: tuple[End, End]) -> None:
    one, other = sides
    await one.connection.close()
    one.path.send(datagram(1440) * 3, 1440)
    one.path.send_one(datagram(20))
    one.path.let_fragment(True)
    one.path.close()
    assert not other.received


async def test_a_datagram_above_the_interface_mtu_is_told_and_the_next_one_goes(sides: tuple[End, End]) -> None:
    one, other = sides
    size = 65_520 if not offload.LINUX else one.path.interface_mtu - one.path.overhead + 10
    one.path.send_one(datagram(size))
    one.path.send_one(datagram(99))
    await until(lambda: other.received == [datagram(99)])
    assert one.too_big == [size + one.path.overhead]


@LINUX
@pytest.mark.parametrize(("host", "level", "option"), [("127.0.0.1", 1, 11), ("::1", 17, 101)])
async def test_refused_segmentation_is_given_up_without_losing_a_datagram(host: str, level: int, option: int) -> None:
    async with ends(host, portable=False) as (one, other):
        # Linux refuses to segment without checksums (SO_NO_CHECK, UDP_NO_CHECK6_TX), with the errors of poor network cards.
        one.protocol.transport._sock.setsockopt(level, option, 1)
        if ":" in host:
            other.protocol.transport._sock.setsockopt(17, 102, 1)  # UDP_NO_CHECK6_RX: take them nevertheless.
        buffer = b"".join(datagram(700, i) for i in range(10))
        one.path.send(buffer, 700)
        await until(lambda: other.received == cut(buffer, 700))
        assert one.path.offload == "gro"
        one.path.send(buffer, 700)
        await until(lambda: other.received == cut(buffer, 700) * 2)


async def test_the_receiver_may_close_the_path_while_it_takes_a_batch(sides: tuple[End, End]) -> None:
    one, other = sides
    taken: list[list[DatagramRun]] = []

    def take(batch: list[DatagramRun]) -> None:
        taken.append(batch)
        path.close()

    path = other.open(take)
    one.path.send_one(datagram(40, 1))
    await until(lambda: len(taken) == 1)
    one.path.send_one(datagram(40, 2))
    assert await asyncio.wait_for(other.connection.recv(), 5) == datagram(40, 2)
    assert taken == [[DatagramRun(datagram(40, 1), 40)]]
