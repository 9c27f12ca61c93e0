"""A link that is up: it moves frames between the bookkeeping and the lanes, waits for the wire, and notices a dead peer."""

import asyncio
import functools
from collections import deque

from transport.clock import Clock
from transport.errors import ConnectError, LinkError, MalformedFrameError
from transport.framing import (
    Ack,
    Begin,
    Cancel,
    Fail,
    Frame,
    Grant,
    More,
    Ping,
    Pong,
    decode,
    encode,
)
from transport.inbox import Inbox
from transport.lane import Lane
from transport.limits import PeerLimits
from transport.outbox import Outbox
from transport.rtc import RtcConnection, WireCounters
from transport.stats import LinkStats

MAX_REPLIES = 4096  # Twice what an honest peer can have open; beyond it the peer asks without listening to answers.


class Link:
    """Runs one connection until it dies."""

    def __init__(
        self,
        connection: RtcConnection,
        outbox: Outbox,
        inbox: Inbox,
        stats: LinkStats,
        clock: Clock,
        limits: PeerLimits,
    ) -> None:
        """Take an opened connection; the link owns it from now on."""
        self._connection = connection
        self._outbox = outbox
        self._inbox = inbox
        self._stats = stats
        self._clock = clock
        self._limits = limits
        self._replies: deque[Frame] = deque()
        self._wake = asyncio.Event()
        self._fault: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ping_seq = 0
        self._ping_at = 0.0
        self._counted = WireCounters(0, 0, 0, 0)

    def wake(self) -> None:
        """Tell the link that there is something to send."""
        self._wake.set()

    def reply(self, frame: Frame) -> None:
        """Send a steering frame before any message bytes."""
        self._replies.append(frame)
        if len(self._replies) > MAX_REPLIES:
            self._fail(MalformedFrameError(f"the peer has {MAX_REPLIES} answers waiting and does not read them"))
        self._wake.set()

    async def run(self) -> None:
        """Serve the link until it dies.

        Raises:
            LinkError: always, with the reason; MalformedFrameError if the peer broke the rules.
        """
        for lane in Lane:
            self._connection.lanes[lane].attach(functools.partial(self._received, lane), self._wake.set)
        jobs = [
            asyncio.create_task(self._pump(), name="link-pump"),
            asyncio.create_task(self._watch(), name="link-watch"),
            asyncio.create_task(self._connection.lost(), name="link-lost"),
        ]
        try:
            await asyncio.wait([*jobs, self._fault], return_when=asyncio.FIRST_COMPLETED)
            for job in (self._fault, *jobs):
                if job.done():
                    job.result()
            raise ConnectError("the connection was closed or cut")
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
            if not self._fault.cancel():
                self._fault.exception()  # Marks it as seen, should something else have ended the link.

    def _fail(self, error: LinkError) -> None:
        if not self._fault.done():
            self._fault.set_exception(error)

    async def _pump(self) -> None:
        lanes = self._connection.lanes
        while True:
            self._wake.clear()
            if sum(lane.buffered for lane in lanes.values()) > self._limits.buffered_high:
                await self._wake.wait()
                continue
            entry = (Lane.CONTROL, self._replies.popleft()) if self._replies else self._outbox.next_frame()
            if entry is None:
                await self._wake.wait()
                continue
            lane, frame = entry
            self._send(lane, frame)

    def _send(self, lane: Lane, frame: Frame) -> None:
        data = encode(frame)
        self._connection.lanes[lane].send(data)
        counters = self._stats.lanes[lane]
        counters.framed_sent += len(data)
        if isinstance(frame, More):
            counters.payload_sent += len(frame.data)
        elif isinstance(frame, Begin):
            counters.messages_sent += 1

    def _received(self, lane: Lane, data: bytes) -> None:
        counters = self._stats.lanes[lane]
        counters.framed_received += len(data)
        if self._fault.done():
            return
        try:
            frame = decode(data)
            self._take(lane, frame)
        except MalformedFrameError as error:
            self._fail(error)
            return
        if isinstance(frame, More):
            counters.payload_received += len(frame.data)
        elif isinstance(frame, Begin):
            counters.messages_received += 1

    def _take(self, lane: Lane, frame: Frame) -> None:
        match frame:
            case More():
                self._inbox.on_more(lane, frame)
            case Begin():
                self._inbox.on_begin(lane, frame)
            case Cancel():
                self._inbox.on_cancel(frame)
            case Grant() | Ack() | Fail() | Ping() | Pong() if lane is not Lane.CONTROL:
                raise MalformedFrameError(f"a steering frame came on the {lane.name} lane")
            case Grant():
                self._outbox.on_grant(frame)
                self._wake.set()
            case Ack() | Fail():
                self._outbox.on_settled(frame)
                self._wake.set()
            case Ping():
                self._inbox.on_floor(frame.floor)
                self.reply(Pong(frame.seq))
            case Pong():
                if frame.seq == self._ping_seq:
                    self._stats.rtt_s = self._clock.now() - self._ping_at

    async def _watch(self) -> None:
        """Ping, and count the ticks in which nothing came from the peer.

        Ticks are counted, not seconds: when this process itself was held up for long, what the peer sent meanwhile is read before
        the next tick. Packets are counted, not frames: a lossy line may hold up frames for seconds while it brings packets.
        """
        limits = self._limits
        silent = stalled = progress = 0
        while (silent + 1) * limits.ping_s <= limits.silent_s:
            self._ping()
            await self._clock.sleep(limits.ping_s)
            silent = 0 if self._count() else silent + 1
            waiting = self._inbox.awaits_bytes and self._inbox.progress == progress
            stalled = stalled + 1 if waiting else 0
            progress = self._inbox.progress
            if self._connection.fragments > limits.fragments:
                raise MalformedFrameError(f"{self._connection.fragments} bytes of unfinished SCTP messages")
            if stalled * limits.ping_s > limits.stall_s:
                raise MalformedFrameError(
                    f"the peer has announced a message and sent nothing of it for {limits.stall_s} s"
                )
        raise ConnectError(f"the peer has been silent for {silent * limits.ping_s:.1f} s")

    def _ping(self) -> None:
        self._ping_seq = (self._ping_seq + 1) % 2**32
        self._ping_at = self._clock.now()
        self.reply(Ping(self._ping_seq, self._outbox.floor))

    def _count(self) -> int:
        """Bring the counters up to date; returns how many packets have come since the last time."""
        now, before, stats = self._connection.counters(), self._counted, self._stats
        stats.wire_sent += now.bytes_sent - before.bytes_sent
        stats.wire_received += now.bytes_received - before.bytes_received
        stats.packets_sent += now.packets_sent - before.packets_sent
        stats.packets_received += now.packets_received - before.packets_received
        self._counted = now
        return now.packets_received - before.packets_received
