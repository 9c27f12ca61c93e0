"""A link that is up: it moves frames between the bookkeeping and the lanes, waits for the wire, and notices a dead peer."""

import asyncio
import functools
from collections import deque

from common.clock import Clock
from common.errors import ConnectError, LinkError, MalformedFrameError
from transport.ice.link_metrics import Figures
from transport.ice.liveness import Liveness
from transport.ice.rtc import RtcConnection, WireCounters
from transport.ice.stats import LinkStats
from transport.messages.framing import Ack, Begin, Cancel, Fail, Frame, Grant, More, Ping, Pong, decode, encode
from transport.messages.inbox import MessageInbox
from transport.messages.lanes import Lane
from transport.messages.limits import PeerLimits
from transport.messages.outbox import MessageOutbox

LATE = 2.0  # Of a tick's length: this machine has more to do than it can.
BELOW_S = 0.004  # Of the line: what is more urgent, or cancelled, waits no longer; waking up takes under a millisecond.
MIN_BELOW = 16 << 10  # A slow line: more than one frame.
MAX_REPLIES = 4096  # Twice what an honest peer can have open; beyond it the peer asks without listening to answers.


class PeerLink:
    """Runs one connection until it dies."""

    def __init__(
        self,
        connection: RtcConnection,
        outbox: MessageOutbox,
        inbox: MessageInbox,
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
        self._answers = 0
        self._figures = Figures(stats)

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
            asyncio.create_task(self._stay(), name="link-stay"),
        ]
        try:
            await asyncio.wait([*jobs, self._fault], return_when=asyncio.FIRST_COMPLETED)
            for job in (self._fault, *jobs):
                if job.done():
                    job.result()
            if self._connection.fault:
                raise MalformedFrameError(f"the peer broke the rules of SCTP: {self._connection.fault}")
            raise ConnectError("the connection was closed or cut")
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
            for lane in Lane:
                self._connection.lanes[lane].detach()
            if not self._fault.cancel():
                self._fault.exception()  # Marks it as seen, should something else have ended the link.

    def _fail(self, error: LinkError) -> None:
        if not self._fault.done():
            self._fault.set_exception(error)

    async def _pump(self) -> None:
        lanes = self._connection.lanes
        while True:
            self._wake.clear()
            room = min(max(int(self._connection.line_rate * BELOW_S), MIN_BELOW), self._limits.buffered_high)
            full = sum(lane.buffered for lane in lanes.values()) > room
            if full:
                for lane in lanes.values():
                    lane.low = max(0, room) // (len(lanes) + 1)  # Below the room together, so that one of them is told.
            entry = self._next_frame(only_control=full) if lanes[Lane.CONTROL].buffered <= room else None
            if entry is None:
                await self._wake.wait()
                continue
            self._send(*entry)

    def _next_frame(self, *, only_control: bool) -> tuple[Lane, Frame] | None:
        """What to send next. What steers, and the control lane, need no room that bulk leaves: SCTP lets them overtake it."""
        if self._replies:
            return Lane.CONTROL, self._replies.popleft()
        return self._outbox.next_frame(self._connection.frame_bytes, only_control=only_control)

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
        """Keep the counters, look after the peer's manners, and give the path up when it carries nothing any more.

        Raises:
            ConnectError: the path is lost.
            MalformedFrameError: the peer floods, or announces what it does not send.
        """
        limits, connection = self._limits, self._connection
        liveness = Liveness(limits.ping_s, limits.probe_s, limits.silent_s)
        stalled_s, progress = 0.0, 0
        connection.probe()
        while True:
            interval, began = liveness.interval, self._clock.now()
            await self._clock.sleep(interval)
            late = self._clock.now() - began > LATE * interval
            tick = liveness.tick(self._count(), late=late)
            if connection.moved or tick.lost:
                raise self._lost(connection.moved or f"{liveness.probes} probes went unanswered")
            if tick.ping:
                self._ping()
            if tick.probe:
                connection.probe()
            waiting = self._inbox.awaits_bytes and self._inbox.progress == progress
            stalled_s = stalled_s + interval if waiting else 0.0
            progress = self._inbox.progress
            self._check_manners(stalled_s)

    def _check_manners(self, stalled_s: float) -> None:
        limits = self._limits
        if self._connection.fragments > limits.fragments:
            raise MalformedFrameError(f"{self._connection.fragments} bytes of unfinished SCTP messages")
        if stalled_s > limits.stall_s:
            raise MalformedFrameError(f"the peer has announced a message and sent nothing of it for {limits.stall_s} s")

    async def _stay(self) -> None:
        """Give the path up as soon as this machine's end of it is gone.

        Raises:
            ConnectError: it is.
        """
        raise self._lost(await self._connection.displaced())

    def _lost(self, why: str) -> ConnectError:
        self._stats.path_changes += 1
        return ConnectError(f"the path is lost: {why}")

    def _ping(self) -> None:
        self._ping_seq = (self._ping_seq + 1) % 2**32
        self._ping_at = self._clock.now()
        self.reply(Ping(self._ping_seq, self._outbox.floor))

    def _count(self) -> int:
        """Bring the counters up to date; returns how many packets and answers have come since the last time.

        Packets are counted, not frames: a lossy line may hold up frames for seconds while it brings packets.
        """
        now, before, stats = self._connection.counters(), self._counted, self._stats
        answers, self._answers = self._connection.answers - self._answers, self._connection.answers
        stats.wire_sent += now.bytes_sent - before.bytes_sent
        stats.wire_received += now.bytes_received - before.bytes_received
        stats.packets_sent += now.packets_sent - before.packets_sent
        stats.packets_received += now.packets_received - before.packets_received
        self._counted = now
        self._figures.update(self._connection.path(), self._clock.now())
        self._connection.refresh()
        return now.packets_received - before.packets_received + answers
