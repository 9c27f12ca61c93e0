"""The link to a peer: round trips of the control lane, and both rates by a short bulk transfer, over the live ``PeerNet``.

All messages have headers that begin with ``PREFIX``; whoever takes the peer's messages hands those to ``PeerTests.on_message``::

    echo      control   nothing but its acknowledgement: one round trip
    load      bulk      to be counted and thrown away; only taken after a request
    receive   control   "I am going to send load": taken or refused
    send      control   "send me load"
    result    control   what the asking side has found
"""

import asyncio
import contextlib
import statistics
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Protocol

from common.clock import Clock
from common.errors import MessageRefusedError, PeerError
from common.untrusted_text import untrusted
from protocol.codec import MessageError, decode_json, encode_json
from transport.ice.stats import LinkStats
from transport.messages.lanes import Lane
from transport.nettest.errors import NettestError, SpeedError
from transport.nettest.result import PeerTest
from transport.nettest.speed import Trace, steady_rate

PREFIX = b"cottage-nettest/"
ECHO, LOAD, RECEIVE, SEND, RESULT = (PREFIX + word for word in (b"echo", b"load", b"receive", b"send", b"result"))
ECHOES = 10
ECHO_S = 15.0  # The first one waits for the link to come up.
LOAD_S = 2.0
START_S, START_ROUND_TRIPS, LATEST_START_S = 0.6, 5.0, 1.3
LATE_S = 1.0  # What is still on its way when the sender has stopped.
BOTH_WAYS_S = LOAD_S + 3 * LATE_S  # From a test's first request to its second.
AGAIN_S = 600.0  # A peer may ask for a test once in so long: it costs both lines two seconds.
IDLE_RATE = 20_000.0  # Bytes a second: keeping a link up takes less, work takes more.
MIN_MESSAGE, MAX_MESSAGE = 16 * 1024, 256 * 1024
MESSAGE_S = 0.03  # A message takes about so long, so that slow lines are counted finely and fast ones cheaply.
FIRST_BYTES = 64 * 1024  # Half a second of 1 Mbit/s.
MOST_BYTES = 8 << 20  # Half of what a peer takes unasked (PeerLimits.eager_window): 1 Gbit/s at 65 ms.
AHEAD_S, AHEAD_ROUND_TRIPS = 0.3, 4.0  # So much is on its way, whichever is more: then each round trip may double it.
MAX_BYTES = 512 << 20  # 2 Gbit/s for two seconds.
MAX_REMEMBERED = 256


class TestedNetwork(Protocol):
    """What is used of ``transport.peer.peer.PeerNet``."""

    async def send(
        self, peer: str, lane: Lane, header: bytes, payload: bytes | memoryview = b"", *, timeout: float | None = None
    ) -> None:
        """Return once the peer has taken the message."""

    def stats(self) -> Mapping[str, LinkStats]:
        """Counters of each peer."""


class PeerTests:
    """Tests links, and lets peers do so."""

    def __init__(self, network: TestedNetwork, clock: Clock, may_load: Callable[[], str]) -> None:
        """Take the node's links.

        Args:
            may_load: why the line must not be filled now, by this side or for a peer; empty where it may.
        """
        self._network = network
        self._clock = clock
        self._may_load = may_load
        self._asked: OrderedDict[str, float] = OrderedDict()
        self._arriving: dict[str, tuple[float, Trace]] = {}
        self._sending: dict[str, asyncio.Task[None]] = {}
        self.results: asyncio.Queue[PeerTest] = asyncio.Queue(1)

    async def measure(self, peer: str, *, speed: bool = True) -> PeerTest:
        """Test the link to an allowed peer; it comes up where it is down.

        Raises:
            NettestError: the peer is not reached, or knows no such test.
        """
        try:
            rtt = await self._round_trip(peer)
            why_not = self._why_not(peer) if speed else "the rates were not asked for"
            up = down = None
            if not why_not:
                try:
                    up, down = await self._up(peer), await self._down(peer)
                except SpeedError as error:
                    why_not = str(error)
        except PeerError as error:
            raise NettestError(f"the peer {peer} cannot be tested: {error}") from error
        stats = self._network.stats()[peer]
        return PeerTest(
            peer,
            rtt,
            min(max(stats.loss, 0.0), 1.0),
            up,
            down,
            untrusted(stats.pair),
            stats.relayed,
            untrusted(why_not),
        )

    async def tell(self, peer: str, test: PeerTest) -> None:
        """Let the peer know what was found; raises PeerError where it cannot be told."""
        await self._network.send(peer, Lane.CONTROL, RESULT, encode_json(test), timeout=ECHO_S)

    async def on_message(self, peer: str, lane: Lane, header: bytes, payload: bytes | memoryview) -> None:
        """Take a message whose header begins with ``PREFIX``.

        Raises:
            MessageRefusedError: it is not welcome.
        """
        now = self._clock.now()
        match header:
            case b"cottage-nettest/echo" if not payload:
                return
            case b"cottage-nettest/load" if lane is Lane.BULK:
                self._take_load(peer, len(payload), now)
            case b"cottage-nettest/receive":
                self._admit(peer, now)
                self._expect(peer, now)
            case b"cottage-nettest/send":
                self._admit(peer, now)
                self._send_load(peer)
            case b"cottage-nettest/result":
                self._take_result(peer, bytes(payload))
            case _:
                raise MessageRefusedError("no such test here")

    async def aclose(self) -> None:
        """Stop sending load."""
        tasks = list(self._sending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _why_not(self, peer: str) -> str:
        stats = self._network.stats()[peer]
        if max(stats.send_rate, stats.receive_rate) > IDLE_RATE:
            return "the link is at work: rates are measured when it is idle"
        return self._may_load()

    def _admit(self, peer: str, now: float) -> None:
        """Let a peer fill the line: once in ``AGAIN_S``, and the other way soon after."""
        passed = now - self._asked.get(peer, float("-inf"))
        fresh = passed <= BOTH_WAYS_S
        why_not = self._may_load() if fresh else self._why_not(peer)
        if why_not:
            raise MessageRefusedError(why_not)
        if not fresh and passed < AGAIN_S:
            raise MessageRefusedError(f"tested {passed:.0f} s ago: once in {AGAIN_S:.0f} s is enough")
        if not fresh:
            self._asked[peer] = now
            self._asked.move_to_end(peer)
            if len(self._asked) > MAX_REMEMBERED:
                self._asked.popitem(last=False)

    async def _round_trip(self, peer: str) -> float:
        rtts = []
        for _ in range(ECHOES + 1):
            began = self._clock.now()
            await self._network.send(peer, Lane.CONTROL, ECHO, timeout=ECHO_S)
            rtts.append(self._clock.now() - began)
        return statistics.median(rtts[1:])

    async def _up(self, peer: str) -> float:
        await self._request(peer, RECEIVE)
        return await self._load(peer)

    async def _down(self, peer: str) -> float:
        trace = self._expect(peer, self._clock.now())
        try:
            await self._request(peer, SEND)
            await self._clock.sleep(LOAD_S + LATE_S / 2)
        finally:
            self._arriving.pop(peer, None)
        if trace.totals[-1]:
            trace.close(trace.times[0] + LOAD_S)
        return steady_rate([trace], self._start_up(peer))

    async def _request(self, peer: str, header: bytes) -> None:
        """Raises SpeedError where the peer refuses."""
        try:
            await self._network.send(peer, Lane.CONTROL, header, timeout=ECHO_S)
        except PeerError as error:
            raise SpeedError(f"the peer does not measure rates now: {error}") from error

    async def _load(self, peer: str) -> float:
        """Fill the link for ``LOAD_S``; bytes a second that the peer has acknowledged.

        Raises:
            SpeedError: too little was acknowledged to tell, or the link broke.
        """
        flow = _Flow(self._network, self._clock, peer)
        try:
            async with self._clock.timeout(LOAD_S):
                await flow.run()
        except TimeoutError:
            flow.trace.close(flow.trace.times[0] + LOAD_S)
            return steady_rate([flow.trace], self._start_up(peer))
        if flow.broken:
            raise SpeedError(f"the link broke: {flow.broken}")
        return steady_rate([flow.trace], self._start_up(peer))

    def _start_up(self, peer: str) -> float:
        """Seconds until the rate is steady: far peers take longer."""
        rtt = self._network.stats()[peer].rtt_s or 0.0
        return min(LATEST_START_S, START_S + START_ROUND_TRIPS * rtt)

    def _send_load(self, peer: str) -> None:
        if peer in self._sending:
            raise MessageRefusedError("load is on its way already")

        async def send() -> None:
            with contextlib.suppress(SpeedError):  # Who has asked for it finds out by itself.
                await self._load(peer)

        self._sending[peer] = task = asyncio.create_task(send(), name=f"nettest-load-{peer[:8]}")
        task.add_done_callback(lambda _: self._sending.pop(peer))

    def _expect(self, peer: str, now: float) -> Trace:
        trace = Trace()
        trace.add(now, 0)
        self._arriving[peer] = now, trace
        return trace

    def _take_load(self, peer: str, size: int, now: float) -> None:
        began, trace = self._arriving.get(peer, (float("-inf"), Trace()))
        if now - began > LOAD_S + 2 * LATE_S or trace.totals[-1] > MAX_BYTES:
            self._arriving.pop(peer, None)
            raise MessageRefusedError("no test is under way")
        trace.add(now, trace.totals[-1] + size)

    def _take_result(self, peer: str, payload: bytes) -> None:
        try:
            test: PeerTest = decode_json(payload, PeerTest)
        except MessageError as error:
            raise MessageRefusedError("malformed result") from error
        if not self.results.full():
            self.results.put_nowait(test.turned(peer))


class _Flow:
    """Messages of load, as many on their way as keep the link full, and no more: what waits would only delay the count."""

    def __init__(self, network: TestedNetwork, clock: Clock, peer: str) -> None:
        self.trace = Trace()
        self.broken = ""
        self._network = network
        self._clock = clock
        self._peer = peer
        self._ahead_s = max(AHEAD_S, AHEAD_ROUND_TRIPS * (network.stats()[peer].rtt_s or 0.0))
        self._noise = memoryview(bytes(MAX_MESSAGE))  # DTLS makes it noise.
        self._acknowledged = self._waiting = 0

    async def run(self) -> None:
        """Send until cancelled or ``MAX_BYTES``; a message that is cancelled stops at once."""
        self.trace.add(self._clock.now(), 0)
        self._acked = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            while self._acknowledged < MAX_BYTES and not self.broken:
                rate = self._rate()
                size = int(min(MAX_MESSAGE, max(MIN_MESSAGE, rate * MESSAGE_S)))
                ahead = min(MOST_BYTES, max(FIRST_BYTES, rate * self._ahead_s))
                while self._waiting < ahead:
                    self._waiting += size
                    group.create_task(self._carry(size))
                self._acked.clear()
                await self._acked.wait()

    async def _carry(self, size: int) -> None:
        try:
            await self._network.send(self._peer, Lane.BULK, LOAD, self._noise[:size])
        except PeerError as error:
            self.broken = str(error)
        else:
            self._acknowledged += size
            self.trace.add(self._clock.now(), self._acknowledged)
        self._waiting -= size
        self._acked.set()

    def _rate(self) -> float:
        """Bytes a second of late."""
        now = self._clock.now()
        since = max(self.trace.times[0], now - self._ahead_s)
        return (self._acknowledged - self.trace.at(since)) / max(now - since, MESSAGE_S)
