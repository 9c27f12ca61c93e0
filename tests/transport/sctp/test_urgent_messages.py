"""What is urgent overtakes bulk that fills the window, and goes twice on a line that loses."""

from typing import Any

from aiortc import RTCPeerConnection

from common import clock
from tests.transport.sctp.pairs import joined, until
from transport.sctp.datapath import LOSSY_S


def data_path(end: Any) -> Any:
    return end.sctp._data


def urgent_stream_nine(connection: RTCPeerConnection) -> None:
    assert connection.sctp is not None
    connection.sctp.set_priority(9, 0)  # type: ignore[attr-defined]


async def test_an_urgent_message_overtakes_bulk_that_fills_the_window() -> None:
    async with joined(prepare=urgent_stream_nine) as (one, two):
        urgent = one.connection.createDataChannel("urgent", negotiated=True, id=9)
        arrived: list[bytes] = []
        two.connection.createDataChannel("urgent", negotiated=True, id=9).on("message", arrived.append)
        path = data_path(one)
        data_path(two)._send_sack = lambda: None  # Nothing that was sent leaves the window any more.
        for _ in range(400):
            one.channel.send(bytes(50_000))
        await until(lambda: path.sender.inflight >= path.controller.window)
        urgent.send(b"now")
        await until(lambda: arrived == [b"now"])
        assert len(two.received) < 400


async def test_small_urgent_messages_go_twice_on_a_line_that_loses() -> None:
    async with joined(prepare=urgent_stream_nine) as (one, two):
        urgent = one.connection.createDataChannel("urgent", negotiated=True, id=9)
        arrived: list[bytes] = []
        two.connection.createDataChannel("urgent", negotiated=True, id=9).on("message", arrived.append)
        path, other = data_path(one), data_path(two)
        path._lossy_until = clock.instant() + LOSSY_S
        seal, dropped = path._records.seal, []

        def lose_the_first(packet: bytes) -> None:
            seal(packet)
            if b"small" in packet and not dropped:
                dropped.append(packet)
                path._records.take()

        path._records.seal = lose_the_first
        before = path.sender.retransmitted
        urgent.send(b"small")
        await until(lambda: arrived == [b"small"])
        assert dropped
        assert path.sender.retransmitted == before  # The copy came first.
        await until(lambda: not path.sender.outstanding)
        assert other.receiver.held == 0


async def test_a_copy_is_no_sign_of_reordering() -> None:
    async with joined(prepare=urgent_stream_nine) as (one, two):
        urgent = one.connection.createDataChannel("urgent", negotiated=True, id=9)
        path, other = data_path(one), data_path(two)
        path._lossy_until = clock.instant() + LOSSY_S
        data_path(two)._send_sack, send_sack = lambda: None, data_path(two)._send_sack
        urgent.send(b"twice")
        await until(lambda: other.receiver.duplicates == 1)
        send_sack()
        await until(lambda: not path.sender.outstanding)
        assert not path.sender._rack.reorders


async def test_nothing_goes_twice_on_a_line_that_loses_nothing_nor_what_is_not_urgent() -> None:
    async with joined(prepare=urgent_stream_nine) as (one, two):
        path = data_path(one)
        path._lossy_until = clock.instant() + LOSSY_S
        one.channel.send(b"not urgent")
        await until(lambda: two.received == [b"not urgent"])
        path._lossy_until = 0.0
        one.connection.createDataChannel("urgent", negotiated=True, id=9).send(b"urgent")
        await until(lambda: not path.sender.outstanding)
        doubles = data_path(two).receiver.duplicates
        assert doubles == 0
