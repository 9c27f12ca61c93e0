"""Messages over a channel: cut and joined, bounded, and a reader that takes nothing is cut off."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec
import pytest

from common.clock import SystemClock
from common.errors import MalformedFrameError, PeerUnreachableError
from desktop.agent.jobs.private_talk import MAX_UNTOLD, PrivateTalk, SessionOverError
from protocol.identity import NodeKey
from protocol.private.sessions import FRAME_BYTES, PrivateTicket
from protocol.serving import GenerateCommand, TextReport
from tests.coordinator.serving.talking_homes import RepeatingModel
from tests.support.clock import VirtualClock
from transport.messages.lanes import Lane
from transport.private.channel import HIGH_BYTES, MAX_WAITING, SLOW_S, PrivateChannel
from transport.private.meeting import MeetingClient, MeetingNode, Surroundings

LARGEST = 100_000
AROUND = Surroundings((), SystemClock(), loopback=True)


class FullLane:
    """A lane whose other side takes nothing once ``buffered`` is full."""

    def __init__(self) -> None:
        self.buffered, self.low = 0, 0
        self.sent: list[bytes] = []

    def send(self, frame: bytes) -> None:
        self.buffered += len(frame)
        self.sent.append(frame)

    def attach(self, on_frame: Any, on_low: Any) -> None:
        self.on_frame, self.on_low = on_frame, on_low

    def detach(self) -> None: ...


class Line:
    """A connection with such a lane."""

    def __init__(self) -> None:
        self.lane = FullLane()
        self.lanes = {Lane.CONTROL: self.lane}

    async def lost(self) -> None:
        await asyncio.Event().wait()

    async def close(self, _limit_s: float) -> None: ...


@contextlib.asynccontextmanager
async def channel_of(line: Line, clock: VirtualClock) -> AsyncIterator[PrivateChannel]:
    channel = PrivateChannel(cast(Any, line), clock, LARGEST)
    yield channel
    await channel.aclose()


@pytest.mark.parametrize("size", [0, 1, FRAME_BYTES - 1, FRAME_BYTES, 5 * FRAME_BYTES, 900_000])
async def test_messages_of_every_size_arrive_whole_over_webrtc(size: int) -> None:
    client, node = NodeKey.generate(), NodeKey.generate()
    ticket = PrivateTicket("ab" * 16, "cd" * 16, client.address, 1000, int(AROUND.clock.time()) + 60)
    here, there = MeetingClient(client, ticket.session, node.address, AROUND), MeetingNode(node, ticket, AROUND)
    answer = await there.answer(await here.offer())
    one, other = await asyncio.gather(here.accept(answer), there.opened())
    for sender, receiver in ((one, other), (other, one)):
        message = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        receiving = asyncio.create_task(receiver.receive())
        await sender.send(message)
        assert await receiving == message
    await one.aclose()
    with pytest.raises(PeerUnreachableError):
        await other.receive()
    await other.aclose()


async def test_a_reader_that_takes_nothing_is_cut_off() -> None:
    clock = VirtualClock()
    async with channel_of(line := Line(), clock) as channel:
        sending = asyncio.create_task(channel.send(b"x" * 2 * HIGH_BYTES))
        await clock.advance(SLOW_S - 1)
        assert not sending.done()
        assert line.lane.buffered <= HIGH_BYTES + FRAME_BYTES
        line.lane.buffered = 0
        line.lane.on_low()
        await clock.advance(0.1)
        assert not sending.done() or sending.exception() is None
        await sending
        line.lane.buffered = 2 * HIGH_BYTES
        late = asyncio.create_task(channel.send(b"x"))
        await clock.advance(SLOW_S + 1)
        with pytest.raises(PeerUnreachableError, match="taken nothing"):
            await late


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([b""], "none of this protocol"),
        ([b"\2x"], "none of this protocol"),
        ([b"\1" + b"x" * FRAME_BYTES], "none of this protocol"),
        ([b"\0" + b"x" * (FRAME_BYTES - 1)] * 7, "more than"),
        ([b"\0"] * 100, "more than"),
        ([b"\1x"] * (MAX_WAITING + 1), "messages wait"),
    ],
)
async def test_frames_of_strangers_are_bounded(frames: list[bytes], why: str) -> None:
    async with channel_of(line := Line(), VirtualClock()) as channel:
        for frame in frames:
            line.lane.on_frame(frame)
        for _ in range(sum(frame == b"\1x" for frame in frames[:MAX_WAITING])):
            await channel.receive()
        with pytest.raises(MalformedFrameError, match=why):
            await channel.receive()


async def test_a_client_that_lets_answers_wait_ends_its_session() -> None:
    clock, key, node = VirtualClock(), NodeKey.generate(), NodeKey.generate()
    ticket = PrivateTicket("ab" * 16, "cd" * 16, key.address, 1000, 0)
    async with channel_of(line := Line(), clock) as channel:
        line.lane.buffered = 2 * HIGH_BYTES
        model = RepeatingModel()
        talk = PrivateTalk(ticket, node.address, channel, model, clock, lambda _: None)
        running = asyncio.create_task(talk.run())
        await clock.advance(0.1)
        line.lane.on_frame(b"\1" + msgspec.json.encode(GenerateCommand("1", "long")))
        await clock.advance(0.1)
        [asked] = model.asked
        for _ in range(MAX_UNTOLD // 100_000 + 1):
            talk._put(TextReport("1", "x" * 100_000))
        await clock.advance(0.1)
        with pytest.raises(SessionOverError) as over:
            await running
        assert over.value.code == "slow"
        assert asked.id.startswith("private:")
