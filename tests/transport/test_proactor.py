"""UDP on Windows' event loop: closing ends, and an error costs one datagram. A test says when an operation ends, and how."""

import asyncio
from asyncio import proactor_events
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.wait import HANGS_S
from transport.sctp.udp.proactor import DatagramTransport, mend

PEER = ("127.0.0.1", 9)


class Overlapped:
    """The proactor's part: each operation is a future that the test settles."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, asyncio.Future[int]]] = []
        self.reading: list[asyncio.Future[Any]] = []

    def sendto(self, _end: Any, data: bytes, addr: Any) -> "asyncio.Future[int]":
        assert addr in (PEER, ("fe80::1", 9, 0, 0))
        self.sent.append((data, asyncio.get_running_loop().create_future()))
        return self.sent[-1][1]

    def recvfrom(self, _end: Any, _size: int) -> "asyncio.Future[Any]":
        self.reading.append(asyncio.get_running_loop().create_future())
        return self.reading[-1]


class Socket:
    """What a transport asks of its socket."""

    closed = False
    family = type = 2

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 1

    def getpeername(self) -> tuple[str, int]:
        raise OSError("not connected")

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self.closed = True


class Taken(asyncio.DatagramProtocol):
    """What the transport tells."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.errors: list[Exception] = []
        self.lost = 0
        self.flow: list[str] = []

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.received.append(data)

    def error_received(self, exc: Exception) -> None:
        self.errors.append(exc)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost += 1

    def pause_writing(self) -> None:
        self.flow.append("pause")

    def resume_writing(self) -> None:
        self.flow.append("resume")


class Loop:
    """The running loop, with a proactor."""

    def __init__(self, proactor: Overlapped) -> None:
        self._proactor = proactor

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio.get_running_loop(), name)


async def made(kind: Any = DatagramTransport) -> tuple[Any, Overlapped, Taken]:
    system, taken = Overlapped(), Taken()
    transport = kind(Loop(system), Socket(), taken)
    await turns()
    assert len(system.reading) == 1
    return transport, system, taken


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Any) -> None:
    async with asyncio.timeout(HANGS_S):
        while not condition():
            await asyncio.sleep(0.001)


async def test_closing_sends_what_is_queued_and_ends() -> None:
    transport, system, taken = await made()
    transport.sendto(b"one", PEER)
    transport.sendto(b"two", PEER)
    transport.close()
    transport.close()
    transport.sendto(b"too late", PEER)
    assert system.reading[0].cancelled()
    system.sent[0][1].set_result(3)
    await turns()
    assert taken.lost == 0, "one datagram is still on its way"
    system.sent[1][1].set_result(3)
    await turns()
    assert [data for data, _ in system.sent] == [b"one", b"two"]
    assert taken.lost == 1
    assert transport._sock is None


async def test_closing_with_nothing_queued_ends_at_once() -> None:
    transport, system, taken = await made()
    transport.close()
    await turns()
    assert taken.lost == 1
    assert len(system.reading) == 1


async def test_an_address_of_ipv6_is_completed() -> None:
    transport, system, _ = await made()
    transport.sendto(b"two parts", ("fe80::1", 9))
    assert len(system.sent) == 1
    transport.abort()
    await turns()


@pytest.mark.parametrize("error", [ConnectionResetError(10054, "reset"), OSError(10065, "no route")])
async def test_what_cannot_be_sent_costs_itself_only(error: OSError) -> None:
    transport, system, taken = await made()
    transport.set_write_buffer_limits(high=4)
    for data in (b"lost", b"kept", b"last"):
        transport.sendto(data, PEER)
    assert taken.flow == ["pause"]
    system.sent[0][1].set_exception(error)
    await until(lambda: len(system.sent) == 2)
    system.sent[1][1].set_result(4)
    await until(lambda: len(system.sent) == 3)
    system.sent[2][1].set_exception(error)
    await turns()
    assert taken.errors == [error, error]
    assert taken.flow == ["pause", "resume"]
    transport.sendto(b"after", PEER)
    assert system.sent[-1][0] == b"after"
    transport.close()
    system.sent[-1][1].set_exception(error)
    await turns()
    assert taken.lost == 1


async def test_a_reading_that_failed_is_followed_by_others() -> None:
    transport, system, taken = await made()
    for number in range(3):
        system.reading[-1].set_exception(ConnectionResetError(10054, "a closed port"))
        await until(lambda n=number: len(system.reading) == n + 2)
    system.reading[-1].set_result((b"an answer", PEER))
    await turns()
    assert taken.received == [b"an answer"]
    assert len(taken.errors) == 3
    assert len(system.reading) == 5
    transport.abort()
    await turns()
    assert taken.lost == 1


@pytest.fixture
def stock() -> Iterator[Any]:
    """The class that asyncio takes; put back afterwards."""
    module: Any = proactor_events
    kind = module._ProactorDatagramTransport
    yield kind
    module._ProactorDatagramTransport = kind


async def test_loops_make_these_once_it_is_mended(stock: Any) -> None:
    mend()
    module: Any = proactor_events
    assert module._ProactorDatagramTransport is DatagramTransport
    assert issubclass(DatagramTransport, stock)
