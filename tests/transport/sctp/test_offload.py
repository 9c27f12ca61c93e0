"""Bursts of datagrams through real sockets, and what a real interface says to them in a network namespace."""

import asyncio
import contextlib
import ctypes
import errno
import os
import random
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.testbed import namespaces
from tests.transport.conftest import until
from transport.sctp.udp import offload
from transport.sctp.udp.datagram import DatagramPath, open_path
from transport.sctp.udp.offload import Address, UdpSender, receive

LINUX = pytest.mark.skipif(not offload.LINUX, reason="segmentation and receive offload are Linux's")
NOT_HERE = namespaces.missing()
ROOT = pytest.mark.skipif(bool(NOT_HERE), reason=NOT_HERE or "namespaces can be made")
CLONE_NEWNET = 0x40000000
NEIGHBOUR = "10.91.0.2"


@contextlib.contextmanager
def sockets(host: str = "127.0.0.1", *, connected: bool = False) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A socket to send with and one to receive with."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sender, socket.socket(family, socket.SOCK_DGRAM) as receiver:
        for end in (sender, receiver):
            end.bind((host, 0))
            end.setblocking(False)
            offload.widen_buffers(end)
        if connected:
            sender.connect(receiver.getsockname())
        yield sender, receiver


def everything(receiver: socket.socket) -> list[bytes]:
    """What waits at a socket, cut into datagrams; loopback delivers before the call that sends returns."""
    found: list[bytes] = []
    while batch := list(receive(receiver)):
        found += [data[i : i + size] for data, size, _ in batch for i in range(0, max(1, len(data)), size)]
    return found


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


@given(
    host=st.sampled_from(["127.0.0.1", "::1"]),
    segment=st.integers(1, 1500),
    length=st.integers(1, 120_000),
    segmenting=st.booleans(),
    coalescing=st.booleans(),
    connected=st.booleans(),
    channel=st.none() | st.integers(0x4000, 0x4FFF),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_buffer_arrives_as_the_datagrams_that_it_was_cut_into(
    host: str, segment: int, length: int, segmenting: bool, coalescing: bool, connected: bool, channel: int | None
) -> None:
    length = min(length, 600 * segment)
    buffer = random.Random(length).randbytes(length)
    with sockets(host, connected=connected) as (sender, receiver):
        if coalescing:
            offload.coalesce(receiver, True)
        destination = None if connected else receiver.getsockname()[:2]
        out = UdpSender(sender, destination, segmenting=segmenting and offload.can_segment(sender))
        received = []
        for piece in cut(buffer, segment * 100):
            out.send(memoryview(piece), segment, channel)
            received += everything(receiver)
        expected = cut(buffer, segment)
        if channel is not None:
            expected = [struct.pack("!HH", channel, len(part)) + part for part in expected]
        assert received == expected
        assert out.segmenting == (segmenting and offload.can_segment(sender))


@pytest.mark.parametrize("segment", [1, 500, 1023, 1440, 9000])
@pytest.mark.parametrize("channel", [None, 0x4000])
def test_a_buffer_beyond_what_one_call_takes_goes_in_several(segment: int, channel: int | None) -> None:
    with sockets() as (sender, receiver):
        out = UdpSender(sender, receiver.getsockname(), segmenting=offload.can_segment(sender))
        out.send(bytes(segment * 130), segment, channel)
        assert [len(one) for one in everything(receiver)] == [segment + (4 if channel else 0)] * 130
        assert out.segmenting == offload.can_segment(sender)


@LINUX
def test_segmentation_saves_system_calls() -> None:
    with sockets() as (sender, receiver):
        offload.coalesce(receiver, True)
        UdpSender(sender, receiver.getsockname(), segmenting=True).send(bytes(1000 * 60), 1000)
        assert [(len(data), size) for data, size, _ in receive(receiver)] == [(60_000, 1000)]


def test_one_wake_up_reads_no_more_than_its_share() -> None:
    with sockets() as (sender, receiver):
        for _ in range(offload.MAX_READS + 5):
            sender.sendto(b"x", receiver.getsockname())
        assert len(list(receive(receiver))) == offload.MAX_READS
        assert len(list(receive(receiver))) == 5
        for _ in range(12):
            sender.sendto(bytes(60_000), receiver.getsockname())
        assert len(list(receive(receiver))) == -(-offload.MAX_READ_BYTES // 60_000)


def test_the_answer_of_a_closed_port_is_not_mistaken_for_a_failure_to_send() -> None:
    with sockets(connected=True) as (sender, receiver):
        receiver.close()
        out = UdpSender(sender, None, segmenting=False)
        for _ in range(5):
            out.send_one(b"anyone there?")
        with pytest.raises(ConnectionRefusedError):
            list(receive(sender))


def test_a_datagram_that_no_interface_takes_is_refused_by_its_name() -> None:
    with sockets() as (sender, receiver):
        out = UdpSender(sender, receiver.getsockname(), segmenting=offload.can_segment(sender))
        with pytest.raises(OSError) as told:
            out.send_one(bytes(65_530))
        assert told.value.errno == errno.EMSGSIZE
        out.send(bytes(3000), 1000)
        assert len(everything(receiver)) == 3


def test_the_interface_towards_an_unreachable_address_is_taken_for_ethernet() -> None:
    assert offload.interface_mtu(("not an address", 1)) == offload.DEFAULT_MTU


@LINUX
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_loopback_interface_takes_great_packets(host: str) -> None:
    assert offload.interface_mtu((host, 9)) >= 65_535


class Island:
    """A socket in a network namespace of its own, on an interface whose neighbour does not answer until it is made known.

    The namespace is a thread's and goes with the socket: nothing has a name, nothing is left behind.
    """

    def __init__(self, mtu: int) -> None:
        self._commands: list[Callable[[], None]] = []
        self._wake = threading.Semaphore(0)
        self._done = threading.Semaphore(0)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._live, args=(mtu,), daemon=True)
        self._thread.start()
        self._finish()

    def ip(self, command: str) -> None:
        """Run one command of ``ip`` in the namespace."""
        self._commands.append(lambda: self._ip(command))
        self._wake.release()
        self._finish()

    def close(self) -> None:
        self._wake.release()
        self._thread.join(10)
        self.socket.close()

    def interface_mtu(self, remote: Address) -> int:
        """What ``offload.interface_mtu`` says in the namespace."""
        answers: list[int] = []
        self._commands.append(lambda: answers.append(offload.interface_mtu(remote)))
        self._wake.release()
        self._finish()
        return answers[0]

    def _finish(self) -> None:
        assert self._done.acquire(timeout=10)
        if self._error is not None:
            raise self._error

    @staticmethod
    def _ip(command: str) -> None:
        subprocess.run(["ip", *command.split()], check=True, capture_output=True)

    def _live(self, mtu: int) -> None:
        try:
            if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "no network namespace of one's own")
            for command in (
                "link set lo up",
                f"link add out mtu {mtu} type veth peer name away",
                "link set out up",
                "link set away up",
                "addr add 10.91.0.1/24 dev out",
            ):
                self._ip(command)
            self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self.socket.setblocking(False)
            self.socket.bind(("10.91.0.1", 0))
        except (OSError, subprocess.SubprocessError) as error:
            self._error = error
        self._done.release()
        while self._error is None and self._wake.acquire() and self._commands:
            try:
                self._commands.pop(0)()
            except (OSError, subprocess.SubprocessError) as error:
                self._error = error
            self._done.release()


@pytest.fixture
def island() -> Iterator[Island]:
    made = Island(mtu=1300)
    yield made
    made.close()


class Receiver:
    """As much of an ICE connection as a path meets when nothing is received."""

    def data_received(self, data: bytes, component: int) -> None:
        raise AssertionError("nothing can arrive here")


class Protocol(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.receiver = Receiver()
        self.transport: Any = None
        self.errors: list[Exception] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def error_received(self, exc: Exception) -> None:
        self.errors.append(exc)


class Told:
    """What a path told its owner."""

    def __init__(self) -> None:
        self.room = 0
        self.too_big: list[int] = []

    def writable(self) -> None:
        self.room += 1


async def path_from(island: Island, told: Told) -> tuple[DatagramPath, Protocol]:
    loop = asyncio.get_running_loop()
    _, protocol = await loop.create_datagram_endpoint(Protocol, sock=island.socket)
    path = open_path(protocol, (NEIGHBOUR, 4000), loop, lambda _: None, told.writable, told.too_big.append)
    return path, protocol


@ROOT
@LINUX
async def test_a_full_queue_is_told_and_so_is_the_room_after_it(island: Island) -> None:
    """Packets to a neighbour whose address is being asked for wait in the kernel and fill the socket's buffer."""
    told = Told()
    path, protocol = await path_from(island, told)
    island.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
    before = len(os.listdir("/proc/self/fd"))
    while path.writable:
        path.send(bytes(1000 * 4), 1000)
        path.send_one(bytes(500))
    path.send_one(bytes(500))
    assert told.room == 0
    assert not protocol.errors
    island.ip(f"neigh replace {NEIGHBOUR} lladdr 02:00:00:00:00:02 dev out")
    await until(lambda: path.writable)
    assert told.room == 1
    assert len(os.listdir("/proc/self/fd")) == before
    path.close()
    protocol.transport.close()


@ROOT
@LINUX
async def test_closing_while_the_queue_is_full_tells_nobody_and_leaves_no_descriptor(island: Island) -> None:
    told = Told()
    path, protocol = await path_from(island, told)
    island.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
    before = len(os.listdir("/proc/self/fd"))
    while path.writable:
        path.send_one(bytes(1000))
    path.close()
    assert len(os.listdir("/proc/self/fd")) == before
    island.ip(f"neigh replace {NEIGHBOUR} lladdr 02:00:00:00:00:02 dev out")
    await asyncio.sleep(0)
    assert told.room == 0
    protocol.transport.close()


@ROOT
@LINUX
async def test_segments_above_the_interface_mtu_are_told_and_segmentation_goes_on(island: Island) -> None:
    island.ip(f"neigh replace {NEIGHBOUR} lladdr 02:00:00:00:00:02 dev out")
    told = Told()
    path, protocol = await path_from(island, told)
    path.send(bytes(1280 * 8), 1280)
    path.send_one(bytes(1273))
    assert told.too_big == [1308, 1301]
    path.send(bytes(1272 * 8), 1272)
    path.send_one(bytes(1272))
    assert told.too_big == [1308, 1301]
    assert path.offload == "gso+gro"
    assert path.writable
    assert not protocol.errors
    path.close()
    protocol.transport.close()


@ROOT
@LINUX
def test_the_mtu_of_the_interface_is_read_without_sending_anything(island: Island) -> None:
    assert island.interface_mtu((NEIGHBOUR, 4000)) == 1300


@ROOT
@LINUX
async def test_a_network_that_has_gone_away_is_told_to_the_ice_stack_and_ends_nothing(island: Island) -> None:
    told = Told()
    path, protocol = await path_from(island, told)
    island.ip("link del out")
    path.send(bytes(1000 * 3), 1000)
    path.send_one(bytes(1000))
    assert protocol.errors
    assert all(isinstance(error, OSError) for error in protocol.errors)
    assert path.writable
    path.close()
    protocol.transport.close()
