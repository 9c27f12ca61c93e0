"""Streams over real links: made, sent and taken at the same time, within bounds, across links that die."""

import asyncio
import hashlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace

import pytest

from common.errors import (
    DeliveryFailedError,
    MessageLimitError,
    MessageRefusedError,
    PeerNotAllowedError,
    PeerUnreachableError,
    StreamBrokenError,
)
from protocol.identity import NodeKey
from tests.transport.conftest import Switchboard, until
from transport.ice.stats import LinkState
from transport.messages.framing import MAX_PAYLOAD
from transport.messages.lanes import Lane
from transport.messages.limits import PeerLimits
from transport.messages.message_source import READ_AHEAD
from transport.messages.stream import IncomingStream
from transport.peer.peer import PeerNet

PIECE = 100_000
QUICK = PeerLimits(close_s=1.0, reach_s=15.0)
NARROW = replace(QUICK, eager_message=10_000, stream_window=200_000)


async def pieces(payload: bytes, made: list[int] | None = None) -> AsyncIterator[memoryview]:
    """Chunks of a payload; ``made`` counts their bytes."""
    for start in range(0, len(payload), PIECE):
        chunk = memoryview(payload)[start : start + PIECE]
        if made is not None:
            made.append(chunk.nbytes)
        yield chunk


@dataclass
class End:
    """A PeerNet with a stream handler."""

    key: NodeKey
    net: PeerNet
    streams: list[tuple[bytes, bytes]] = field(default_factory=list)
    messages: list[tuple[bytes, bytes]] = field(default_factory=list)
    handler: Callable[[IncomingStream], Awaitable[None]] | None = None

    @property
    def memory_held(self) -> int:
        """Bytes reserved for large messages that arrive."""
        return self.net._context.budget.held

    async def take(self, stream: IncomingStream) -> None:
        if self.handler is not None:
            await self.handler(stream)
            return
        digest = hashlib.sha256()
        async for chunk in stream:
            digest.update(chunk)
        self.streams.append((stream.header, digest.digest()))

    async def lose_link(self, peer: str) -> None:
        """The connection dies under the link, without a word to the peer's bookkeeping."""
        session = self.net._sessions[peer]
        assert session._link is not None
        await session._link._connection.close(1.0)


class Exchange:
    """Two ends that signal to each other directly."""

    def __init__(self, limits: PeerLimits, *, streams: bool = True) -> None:
        self.signals = True  # False: nothing that an end says reaches the other.
        self._jobs: set[asyncio.Task[None]] = set()
        keys = sorted((NodeKey.generate(), NodeKey.generate()), key=lambda key: key.address)
        self.ends = tuple(self._end(key, limits, streams=streams) for key in keys)

    def _end(self, key: NodeKey, limits: PeerLimits, *, streams: bool) -> End:
        async def send_signal(recipient: str, envelope: bytes) -> None:
            if not self.signals:
                return
            (other,) = (end for end in self.ends if end.net.address == recipient)
            job = asyncio.ensure_future(other.net.on_signal(key.address, envelope))
            self._jobs.add(job)
            job.add_done_callback(self._jobs.discard)

        async def on_message(peer: str, lane: Lane, header: bytes, payload: memoryview) -> None:
            end.messages.append((header, hashlib.sha256(payload).digest()))

        async def on_stream(stream: IncomingStream) -> None:
            await end.take(stream)

        net = PeerNet(
            key, send_signal, on_message, on_stream=on_stream if streams else None, loopback=True, limits=limits
        )
        end = End(key, net)
        return end

    async def __aenter__(self) -> tuple[End, End]:
        a, b = self.ends
        await a.net.allow({b.net.address})
        await b.net.allow({a.net.address})
        return a, b

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(end.net.aclose() for end in self.ends))
        await asyncio.gather(*self._jobs)
        left = [task for task in asyncio.all_tasks() if "stream" in task.get_name()]
        assert not left, "a stream left tasks behind"


async def test_the_first_chunk_is_handled_before_the_last_is_made() -> None:
    async with Exchange(QUICK) as (a, b):
        handled = asyncio.Event()
        payload = os.urandom(10 * PIECE)

        async def chunks() -> AsyncIterator[bytes]:
            yield payload[:PIECE]
            await handled.wait()  # Never comes, unless the peer handles what it has.
            yield payload[PIECE:]

        async def handler(stream: IncomingStream) -> None:
            assert (stream.peer, stream.lane, stream.header) == (a.net.address, Lane.ACTIVATIONS, b"model")
            assert stream.total == len(payload)
            taken = bytearray()
            async for chunk in stream:
                taken += chunk
                handled.set()
            assert taken == payload
            b.streams.append((stream.header, b"whole"))

        b.handler = handler
        await asyncio.wait_for(a.net.send_stream(b.net.address, Lane.ACTIVATIONS, b"model", len(payload), chunks()), 15)
        assert b.streams == [(b"model", b"whole")]


@pytest.mark.parametrize("streams", [True, False], ids=["handled", "put together"])
@pytest.mark.parametrize("size", [0, 1, PIECE, 3_000_001])
async def test_a_stream_arrives_as_it_was(streams: bool, size: int) -> None:
    async with Exchange(NARROW, streams=streams) as (a, b):
        payload = os.urandom(size)
        await a.net.send_stream(b.net.address, Lane.BULK, b"s", size, pieces(payload))
        assert (b.streams if streams else b.messages) == [(b"s", hashlib.sha256(payload).digest())]
        assert b.memory_held == 0


async def test_a_handler_that_stops_stops_the_producer() -> None:
    async with Exchange(NARROW) as (a, b):
        go_on = asyncio.Event()
        began = asyncio.Event()

        async def handler(stream: IncomingStream) -> None:
            async for _ in stream:
                began.set()
                await go_on.wait()

        b.handler = handler
        made: list[int] = []
        total = 60 * PIECE
        sending = asyncio.create_task(
            a.net.send_stream(b.net.address, Lane.BULK, b"", total, pieces(bytes(total), made))
        )
        await asyncio.wait_for(began.wait(), 10)
        lane = b.net.stats()[a.net.address].lanes[Lane.BULK]
        await until(lambda: lane.payload_received == NARROW.stream_window)
        for _ in range(20):  # Meanwhile the other lanes go on.
            await a.net.send(b.net.address, Lane.CONTROL, b"tick")
        assert sum(made) <= NARROW.stream_window + PIECE
        assert lane.payload_received == NARROW.stream_window
        assert b.memory_held == NARROW.stream_window
        go_on.set()
        await asyncio.wait_for(sending, 15)
        assert sum(made) == total
        assert b.memory_held == 0


async def test_nothing_is_made_for_a_peer_that_is_not_there() -> None:
    limits = replace(QUICK, reach_s=0.5)
    async with Exchange(limits) as (a, _):
        absent = NodeKey.generate().address
        await a.net.allow({absent})
        made: list[int] = []
        with pytest.raises(PeerUnreachableError, match="no link"):
            await a.net.send_stream(absent, Lane.BULK, b"", 100 * PIECE, pieces(bytes(100 * PIECE), made))
        assert made == []


async def test_little_is_made_before_the_peer_has_memory() -> None:
    window = 2 << 20
    limits = replace(QUICK, stream_window=window, memory_per_peer=window, memory_total=window)
    async with Exchange(limits) as (a, b):
        taken, go_on = asyncio.Event(), asyncio.Event()

        async def handler(stream: IncomingStream) -> None:
            taken.set()
            await go_on.wait()
            async for _ in stream:
                pass

        b.handler = handler
        total = 50 * PIECE
        made: list[int] = []
        first = asyncio.create_task(a.net.send_stream(b.net.address, Lane.BULK, b"", total, pieces(bytes(total))))
        await asyncio.wait_for(taken.wait(), 10)
        second = asyncio.create_task(
            a.net.send_stream(b.net.address, Lane.BULK, b"", total, pieces(bytes(total), made))
        )
        await until(lambda: sum(made) >= READ_AHEAD)
        for _ in range(20):
            await a.net.send(b.net.address, Lane.CONTROL, b"tick")
        assert sum(made) <= READ_AHEAD + PIECE
        go_on.set()
        await asyncio.wait_for(asyncio.gather(first, second), 20)
        assert sum(made) == total


async def test_a_handler_may_refuse_a_stream_with_a_reason() -> None:
    async with Exchange(QUICK) as (a, b):

        async def handler(stream: IncomingStream) -> None:
            raise MessageRefusedError("round 7 is over")

        b.handler = handler
        total = 300 * PIECE
        made: list[int] = []
        with pytest.raises(DeliveryFailedError, match="round 7 is over"):
            await a.net.send_stream(b.net.address, Lane.BULK, b"", total, pieces(bytes(total), made))
        assert sum(made) <= QUICK.stream_window + PIECE
        await a.net.send(b.net.address, Lane.BULK, b"the link lives on", bytes(100_000))
        assert a.net.stats()[b.net.address].links == 1


async def test_a_failing_stream_handler_is_told_to_the_sender_without_its_secrets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Exchange(QUICK) as (a, b):

        async def handler(stream: IncomingStream) -> None:
            await anext(stream)
            raise RuntimeError("secret inside")

        b.handler = handler
        with caplog.at_level(logging.ERROR), pytest.raises(DeliveryFailedError, match="the handler failed"):
            await a.net.send_stream(b.net.address, Lane.BULK, b"", 9 * PIECE, pieces(bytes(9 * PIECE)))
        assert "secret inside" in caplog.text


async def test_a_handler_may_return_early_and_the_rest_is_not_sent() -> None:
    async with Exchange(NARROW) as (a, b):

        async def handler(stream: IncomingStream) -> None:
            await anext(stream)

        b.handler = handler
        total = 100 * PIECE
        for _ in range(5):
            await a.net.send_stream(b.net.address, Lane.BULK, b"", total, pieces(bytes(total)))
        assert b.net.stats()[a.net.address].lanes[Lane.BULK].payload_received < total
        assert b.memory_held == 0
        assert a.net.stats()[b.net.address].links == 1


async def test_what_the_producer_raises_is_the_callers_and_the_handler_hears_of_it() -> None:
    async with Exchange(QUICK) as (a, b):
        heard: list[str] = []

        async def chunks() -> AsyncIterator[bytes]:
            yield bytes(PIECE)
            raise ZeroDivisionError("in the encoder")

        async def handler(stream: IncomingStream) -> None:
            try:
                async for _ in stream:
                    pass
            except StreamBrokenError as error:
                heard.append(str(error))
                raise

        b.handler = handler
        with pytest.raises(ZeroDivisionError, match="in the encoder"):
            await a.net.send_stream(b.net.address, Lane.BULK, b"", 9 * PIECE, chunks())
        await a.net.send(b.net.address, Lane.BULK, b"after")
        await until(lambda: b.memory_held == 0)
        assert all("the sender gave it up" in text for text in heard)


@pytest.mark.parametrize(
    ("size", "text"), [(9 * PIECE, "ended after 300000"), (2 * PIECE, "but 200000 were announced")]
)
async def test_chunks_must_make_what_was_announced(size: int, text: str) -> None:
    async with Exchange(QUICK) as (a, b):
        with pytest.raises(StreamBrokenError, match=text):
            await a.net.send_stream(b.net.address, Lane.BULK, b"", size, pieces(bytes(3 * PIECE)))
        await until(lambda: b.memory_held == 0)


async def test_a_cancelled_stream_stops_at_once_and_its_chunks_are_closed() -> None:
    async with Exchange(NARROW) as (a, b):
        broken = asyncio.Event()
        closed = asyncio.Event()

        async def handler(stream: IncomingStream) -> None:
            try:
                async for _ in stream:
                    pass
            except StreamBrokenError:
                broken.set()

        async def endless() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield bytes(PIECE)
            finally:
                closed.set()

        b.handler = handler
        sending = asyncio.create_task(a.net.send_stream(b.net.address, Lane.BULK, b"", MAX_PAYLOAD, endless()))
        lane = a.net.stats()[b.net.address].lanes[Lane.BULK]
        await until(lambda: lane.payload_sent > 5 * PIECE)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        sent = lane.payload_sent
        assert closed.is_set()
        await asyncio.wait_for(broken.wait(), 10)
        await a.net.send(b.net.address, Lane.BULK, b"after")
        assert lane.payload_sent == sent
        await until(lambda: b.memory_held == 0)


async def test_a_stream_has_the_limits_of_a_message() -> None:
    async with Exchange(QUICK) as (a, b):
        with pytest.raises(MessageLimitError, match="several messages"):
            await a.net.send_stream(b.net.address, Lane.BULK, b"", MAX_PAYLOAD + 1, pieces(b""))
        with pytest.raises(PeerNotAllowedError, match="allow it first"):
            await a.net.send_stream(NodeKey.generate().address, Lane.BULK, b"", 0, pieces(b""))

        async def never() -> AsyncIterator[bytes]:
            await asyncio.Event().wait()
            yield b""

        with pytest.raises(PeerUnreachableError, match=r"within 0\.05 s"):
            await a.net.send_stream(b.net.address, Lane.BULK, b"", 5, never(), timeout=0.05)


async def test_streams_and_messages_go_on_where_they_were_when_the_link_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times, in the middle of both; the first try to connect again must not wait."""
    monkeypatch.setattr("transport.peer.session.SHORT_LIFE_S", 0.0)
    monkeypatch.setattr("transport.peer.session.backoff", lambda *_: 3600.0)
    async with Exchange(QUICK) as (a, b):
        streamed, whole = os.urandom(30_000_000), os.urandom(20_000_000)
        lane = b.net.stats()[a.net.address].lanes[Lane.BULK]
        jobs = [
            asyncio.create_task(
                a.net.send_stream(b.net.address, Lane.BULK, b"stream", len(streamed), pieces(streamed))
            ),
            asyncio.create_task(a.net.send(b.net.address, Lane.BULK, b"whole", whole)),
        ]
        for cut in range(3):
            await until(lambda cut=cut: lane.payload_received > (cut + 1) * 5_000_000)  # type: ignore[misc]
            await (a, b)[cut % 2].lose_link((b, a)[cut % 2].net.address)
        await asyncio.wait_for(asyncio.gather(*jobs), 30)
        assert b.streams == [(b"stream", hashlib.sha256(streamed).digest())]
        assert b.messages == [(b"whole", hashlib.sha256(whole).digest())]
        assert lane.payload_received == len(streamed) + len(whole)  # Nothing that had arrived came again.
        stats = a.net.stats()[b.net.address]
        assert stats.links == 4
        assert stats.resumed >= 3
        assert b.memory_held == 0


async def test_what_is_left_of_a_message_is_forgotten_when_no_link_comes() -> None:
    """Until then its receiver too tries to connect: it may be the only one that has noticed the loss."""
    exchange = Exchange(replace(NARROW, resume_s=2.0, reach_s=3600))
    async with exchange as (a, b):
        broken = asyncio.Event()

        async def handler(stream: IncomingStream) -> None:
            try:
                async for _ in stream:
                    pass
            except StreamBrokenError:
                broken.set()
                raise

        async def stalls() -> AsyncIterator[bytes]:
            yield bytes(PIECE)
            await asyncio.Event().wait()

        b.handler = handler
        lane = b.net.stats()[a.net.address].lanes[Lane.BULK]
        sending = asyncio.create_task(a.net.send_stream(b.net.address, Lane.BULK, b"", 9 * PIECE, stalls()))
        await until(lambda: lane.payload_received == PIECE)
        assert b.memory_held > 0
        exchange.signals = False
        await a.lose_link(b.net.address)  # Cut off: one that leaves the plan may still get out that it gives up.
        await until(lambda: b.net.stats()[a.net.address].state is LinkState.CONNECTING, 3)
        assert not broken.is_set()
        await asyncio.wait_for(broken.wait(), 10)
        await until(lambda: b.memory_held == 0)
        await a.net.allow(set())
        with pytest.raises(PeerNotAllowedError):
            await sending


async def test_closing_ends_the_handlers_of_streams() -> None:
    async with Exchange(QUICK) as (a, b):
        ended = asyncio.Event()

        async def handler(stream: IncomingStream) -> None:
            try:
                async for _ in stream:
                    await asyncio.Event().wait()
            finally:
                ended.set()

        b.handler = handler
        sending = asyncio.create_task(
            a.net.send_stream(b.net.address, Lane.BULK, b"", 50 * PIECE, pieces(bytes(50 * PIECE)))
        )
        await until(lambda: b.memory_held > 0)
        lane = b.net.stats()[a.net.address].lanes[Lane.BULK]
        await until(lambda: lane.payload_received > 0)
        await b.net.aclose()
        assert ended.is_set()
        assert b.memory_held == 0
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def test_many_streams_at_once_stay_within_the_memory() -> None:
    limits = replace(NARROW, memory_per_peer=1_000_000, memory_total=1_000_000)
    async with Exchange(limits) as (a, b):
        peak = 0

        async def handler(stream: IncomingStream) -> None:
            nonlocal peak
            digest = hashlib.sha256()
            async for chunk in stream:
                peak = max(peak, b.memory_held)
                digest.update(chunk)
            b.streams.append((stream.header, digest.digest()))

        b.handler = handler
        payloads = [os.urandom(8 * PIECE) for _ in range(12)]
        await asyncio.gather(
            *(
                a.net.send_stream(b.net.address, list(Lane)[i % 3], str(i).encode(), len(payload), pieces(payload))
                for i, payload in enumerate(payloads)
            )
        )
        assert sorted(b.streams) == sorted(
            (str(i).encode(), hashlib.sha256(payload).digest()) for i, payload in enumerate(payloads)
        )
        assert peak <= 1_000_000
        assert b.memory_held == 0


async def test_a_link_that_dies_at_once_is_not_tried_again_at_once(
    switchboard: Switchboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else two nodes with a fault between them would do nothing but connect."""
    pauses: list[int] = []

    def pause(attempt: int, _: object) -> float:
        pauses.append(attempt)
        return 0.01

    monkeypatch.setattr("transport.peer.session.backoff", pause)
    monkeypatch.setattr("transport.peer.session.SHORT_LIFE_S", 3600.0)
    a, b = await switchboard.pair(QUICK)
    await a.net.send(b.address, Lane.CONTROL, b"x")
    link = a.net._sessions[b.address]._link
    assert link is not None
    await link._connection.close(1.0)
    await until(lambda: a.net.stats()[b.address].state is LinkState.IDLE)
    await until(lambda: pauses != [])
    assert pauses[0] == 1
