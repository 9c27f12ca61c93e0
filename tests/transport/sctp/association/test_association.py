"""Our data path against itself and against stock aiortc, over real sockets, DTLS and ICE."""

import asyncio
import functools
import random
from typing import Any

import pytest
from aiortc import RTCPeerConnection, rtcsctptransport
from aiortc.rtcsctptransport import CookieAckChunk, CookieEchoChunk, DataChunk

from common import clock
from tests.support.wait import HANGS_S
from tests.transport.sctp.pairs import joined, until
from transport.sctp.allowance import Allowance
from transport.sctp.association import FastSctpTransport
from transport.sctp.connection import FastPeerConnection

PAIRS = [
    pytest.param(FastPeerConnection, FastPeerConnection, id="ours-ours"),
    pytest.param(FastPeerConnection, RTCPeerConnection, id="ours-stock"),
    pytest.param(RTCPeerConnection, FastPeerConnection, id="stock-ours"),
]
both_ways = pytest.mark.parametrize(("offerer", "answerer"), PAIRS)


def messages(count: int, most: int, seed: int = 1) -> list[bytes]:
    chance = random.Random(seed)
    return [chance.randbytes(chance.choice((1, 2, 3, 1000, 1160, 1161, 5000, most))) for _ in range(count)]


@both_ways
async def test_messages_of_all_sizes_arrive_byte_identical_and_in_order(offerer: Any, answerer: Any) -> None:
    up, down = messages(60, 60_000), messages(60, 60_000, seed=2)
    async with joined(offerer, answerer) as (one, two):
        await asyncio.gather(one.send_all(up), two.send_all(down))
        await until(lambda: len(one.received) == len(down) and len(two.received) == len(up), 20)
        assert two.received == up
        assert one.received == down


@pytest.mark.parametrize(
    ("offerer", "answerer", "bare"),
    [(*pair.values, pair.id == "ours-ours") for pair in PAIRS],
    ids=[pair.id for pair in PAIRS],
)
async def test_checksums_are_left_out_where_both_ends_say_so(offerer: Any, answerer: Any, bare: bool) -> None:
    packets: list[bytes] = []
    async with joined(offerer, answerer) as (one, two):
        ours = one if isinstance(one.connection, FastPeerConnection) else two
        records = ours.sctp._data._records
        seal, seal_run = records.seal, records.seal_run
        records.seal = lambda packet: (packets.append(packet), seal(packet))[1]
        records.seal_run = lambda heads, data, size: (packets.extend(heads), seal_run(heads, data, size))[1]
        await asyncio.gather(one.send_all([b"x" * 3000]), two.send_all([b"y" * 3000]))
        await until(lambda: bool(one.received and two.received))
        assert packets
        assert {packet[8:12] == bytes(4) for packet in packets} == {bare}


async def test_what_comes_without_a_checksum_before_the_handshake_is_over_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One end is established before the other, whose last packets of the handshake are lost, and sends at once."""
    monkeypatch.setattr(rtcsctptransport, "SCTP_RTO_INITIAL", 0.3)
    early: list[bytes] = []
    lost: set[type] = set()
    take = FastSctpTransport._on_early_data

    def note(self: FastSctpTransport, chunk: DataChunk) -> None:
        early.append(chunk.user_data)
        take(self, chunk)

    monkeypatch.setattr(FastSctpTransport, "_on_early_data", note)

    def prepare(connection: RTCPeerConnection) -> None:
        connection.createDataChannel("early")
        if connection.remoteDescription is not None:
            connection.sctp._send_chunk = functools.partial(send, connection.sctp._send_chunk)  # type: ignore[union-attr]

    async def send(go_on: Any, chunk: Any) -> None:
        if isinstance(chunk, CookieAckChunk | CookieEchoChunk) and type(chunk) not in lost:
            lost.add(type(chunk))
        else:
            await go_on(chunk)

    async with joined(prepare=prepare) as (one, two):
        await one.send_all([b"a" * 3000])
        await until(lambda: two.received == [b"a" * 3000])
    assert lost == {CookieAckChunk, CookieEchoChunk}
    assert early


async def test_a_clock_that_stands_still_between_two_looks_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context))
    fine = clock.instant
    monkeypatch.setattr(clock, "instant", lambda: fine() // 0.0156 * 0.0156)  # As Windows' coarse one.
    up, down = messages(60, 60_000), messages(60, 60_000, seed=2)
    async with joined() as (one, two):
        await asyncio.gather(one.send_all(up), two.send_all(down))
        await until(lambda: len(one.received) == len(down) and len(two.received) == len(up), 20)
        assert (two.received, one.received) == (up, down)
    assert not failures


@both_ways
async def test_texts_and_empty_messages_keep_their_kind(offerer: Any, answerer: Any) -> None:
    sent: list[bytes | str] = ["", b"", "Grüße", b"\0", "a" * 5000]
    async with joined(offerer, answerer) as (one, two):
        for message in sent:
            one.channel.send(message)
            two.channel.send(message)
        await until(lambda: len(two.received) == len(one.received) == len(sent))
        assert one.received == two.received == sent


@both_ways
async def test_the_greatest_message_that_was_agreed_on_passes_and_a_greater_one_is_refused(
    offerer: Any, answerer: Any
) -> None:
    greatest = random.Random(3).randbytes(262_144)
    async with joined(offerer, answerer) as (one, two):
        one.channel.send(greatest)
        two.channel.send(greatest)
        await until(lambda: len(two.received) == len(one.received) == 1, 20)
        assert one.received == two.received == [greatest]
        with pytest.raises(ValueError, match="262145 bytes"):
            one.channel.send(greatest + b"!")


@both_ways
async def test_unordered_messages_all_arrive(offerer: Any, answerer: Any) -> None:
    sent = messages(50, 30_000)
    async with joined(offerer, answerer, ordered=False) as (one, two):
        await one.send_all(sent)
        await until(lambda: len(two.received) == len(sent), 20)
        assert sorted(two.received) == sorted(sent)  # type: ignore[type-var]


@both_ways
async def test_closing_a_channel_closes_the_other_side_after_what_was_sent(offerer: Any, answerer: Any) -> None:
    sent = messages(20, 60_000)
    async with joined(offerer, answerer) as (one, two):
        for message in sent:
            one.channel.send(message)
        one.channel.close()
        await until(lambda: two.channel.readyState == one.channel.readyState == "closed", 20)
        assert two.received == sent


@both_ways
async def test_a_stream_can_be_used_again_after_its_channel_was_closed(offerer: Any, answerer: Any) -> None:
    async with joined(offerer, answerer) as (one, two):
        one.channel.send(b"first")
        await until(lambda: len(two.received) == 1)
        number = one.channel.id
        one.channel.close()
        await until(lambda: two.channel.readyState == one.channel.readyState == "closed", 20)
        opened = asyncio.get_running_loop().create_future()
        two.connection.once("datachannel", opened.set_result)
        again = one.connection.createDataChannel("again", id=number)
        async with asyncio.timeout(HANGS_S):
            other = await opened
        got: list[bytes] = []
        other.on("message", got.append)
        await until(lambda: again.readyState == "open")
        again.send(b"second")
        again.send(b"third")
        await until(lambda: len(got) == 2)
        assert got == [b"second", b"third"]
        assert other.id == number


@both_ways
async def test_channels_opened_before_the_handshake_and_later_all_work(offerer: Any, answerer: Any) -> None:
    async with joined(offerer, answerer) as (one, two):
        channels: list[Any] = []
        two.connection.on("datachannel", channels.append)
        mine = [one.connection.createDataChannel(f"later {n}", protocol="p") for n in range(5)]
        await until(lambda: len(channels) == 5 and all(channel.readyState == "open" for channel in mine))
        assert {channel.label for channel in channels} == {channel.label for channel in mine}
        assert {channel.protocol for channel in channels} == {"p"}


@both_ways
async def test_closing_the_connection_is_noticed_by_the_other_side(offerer: Any, answerer: Any) -> None:
    async with joined(offerer, answerer) as (one, two):
        await one.connection.close()
        await until(lambda: two.channel.readyState == "closed" and two.connection.connectionState == "closed")


async def test_buffered_amount_falls_to_zero_and_tells_of_the_threshold_once() -> None:
    async with joined() as (one, two):
        told: list[int] = []
        one.channel.bufferedAmountLowThreshold = 100_000
        one.channel.on("bufferedamountlow", lambda: told.append(one.channel.bufferedAmount))
        for _ in range(10):
            one.channel.send(bytes(60_000))
        assert one.channel.bufferedAmount == 600_000
        await until(lambda: len(two.received) == 10)
        assert one.channel.bufferedAmount == 0
        assert len(told) == 1
        assert told[0] <= 100_000


async def test_a_failing_handler_of_the_application_does_not_stop_the_association() -> None:
    async with joined() as (one, two):
        complaints: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))

        def broken(message: object) -> None:
            raise RuntimeError("the application's own")

        two.channel.on("message", broken)
        one.channel.send(b"a")
        one.channel.send(b"b")
        await until(lambda: len(complaints) == 2)
        assert two.received == [b"a", b"b"]
        assert one.sctp.state == "connected"


async def test_the_counters_of_dtls_and_the_figures_of_the_path_follow_the_traffic() -> None:
    async with joined() as (one, two):
        await one.send_all([bytes(50_000)] * 20)
        await until(lambda: len(two.received) == 20)
        stats = two.sctp.path_stats()
        assert stats.bytes_received > 1_000_000
        assert abs(one.sctp.path_stats().bytes_sent - stats.bytes_received) < 1000  # The last of the handshake.
        [report] = two.sctp.transport._get_stats().values()
        assert report.bytesReceived > 1_000_000
        assert report.packetsReceived >= stats.packets_received
        assert one.sctp.path_stats().rtt_s is not None


async def test_the_portable_way_carries_the_same_messages() -> None:
    def portable(connection: Any) -> None:
        if connection.sctp is not None:
            connection.sctp.portable = True

    sent = messages(40, 60_000)
    async with joined(prepare=portable) as (one, two):
        await one.send_all(sent)
        await until(lambda: len(two.received) == len(sent), 20)
        assert two.received == sent
        assert one.sctp.path_stats().offload == "portable"


@both_ways
async def test_the_greatest_packet_of_the_path_is_found(offerer: Any, answerer: Any) -> None:
    async with joined(offerer, answerer) as ends:
        for end in ends:
            if isinstance(end.connection, FastPeerConnection):
                await until(lambda end=end: end.sctp.path_stats().mtu == 1500)  # type: ignore[misc]
        await ends[0].send_all([bytes(60_000)] * 5)
        await until(lambda: len(ends[1].received) == 5)


async def test_what_was_cut_for_a_larger_path_still_arrives_after_the_mtu_has_shrunk() -> None:
    async with joined() as (one, two):
        data = one.sctp._data
        await until(lambda: one.sctp.path_stats().mtu == 1500)
        send = data._path.send
        data._path.send = lambda buffer, segment: None  # The line swallows everything for a moment.
        one.channel.send(bytes(50_000))
        await until(lambda: data.sender.outstanding)
        data._path.send = send
        data.set_mtu(1200)
        fragmented: list[bool] = []
        let = data._path.let_fragment
        data._path.let_fragment = lambda allowed: (fragmented.append(allowed), let(allowed))
        await until(lambda: len(two.received) == 1)
        assert fragmented[:2] == [True, False]
        assert one.sctp.path_stats().packets_retransmitted > 0


async def test_levels_and_politeness_can_be_set_before_and_while_the_connection_is_up() -> None:
    def prepare(connection: Any) -> None:
        if connection.sctp is not None:
            connection.sctp.set_priority(0, 0)
            connection.sctp.polite = True

    async with joined(prepare=prepare) as (one, _):
        assert one.sctp._data.controller.polite
        one.sctp.polite = False
        assert not one.sctp._data.controller.polite
        with pytest.raises(ValueError, match="level 9"):
            one.sctp.set_priority(3, 9)
        assert 4096 <= one.sctp.frame_bytes + 1200 <= 65536 + 1200
        assert one.sctp.frame_bytes % one.sctp._data._payload == 0


async def test_the_limits_of_the_process_hold_up_and_count_the_upload() -> None:
    allowance = Allowance(upload=1_000_000)
    async with joined() as (one, two):
        one.sctp.set_allowance(allowance)
        allowance.set_month("2026-01")
        for _ in range(5):
            one.channel.send(bytes(60_000))
        started = asyncio.get_running_loop().time()
        await until(lambda: len(two.received) == 5)
        took = asyncio.get_running_loop().time() - started
        assert took > 0.25  # 300 KB at 1 MB/s, of which 20 KB may go at once.
        assert allowance.usage.used > 300_000
        one.sctp.set_allowance(None)
        await one.send_all([bytes(60_000)] * 50)
        await until(lambda: len(two.received) == 55)


async def test_a_download_limit_narrows_the_window_that_the_peer_sees() -> None:
    async with joined() as (one, two):
        two.sctp.set_allowance(Allowance(download=1_000_000))
        one.channel.send(bytes(60_000))
        await until(lambda: len(two.received) == 1)
        one.channel.send(bytes(60_000))
        await until(lambda: len(two.received) == 2)
        assert one.sctp._data.sender._peer_window < 100_000
