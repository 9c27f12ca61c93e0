"""Rates up and down through a relay's speed test (``transport.relay.speed``), as this machine sees them."""

import asyncio
import contextlib
import math
import random
from bisect import bisect_left
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from transport.ice.ice import IceServer
from transport.nettest.errors import SpeedError
from transport.nettest.stream import RelayStream, begin_trial, connect, trusted
from transport.relay.speed import CHUNK, CHUNKS_A_TURN, REPORT, Direction, prefer_bbr

FEW_CONNECTIONS = 4  # Enough for a slow line, where sixteen would get a packet each now and then.
SLOW = 10e6 / 8
# Where nothing is known of a line, many connections begin: what brings less by then than two round trips of 200 ms would, few
# measure anew. Sixteen lose so much to each other in a short queue that a line of 4 Mbit/s seems to have 3.
LOOK_S = 0.5
FEW = SLOW / 2
CONNECTIONS = 16  # At 1 % loss a cubic flow gets 1-2 Mbit/s over 100 ms, and fifty Bindings need not show such a loss.
SETUP_S = 1.2  # Connection, challenge and answer: three round trips, or five with TLS.
GRACE_S = 0.4  # From the first connection that is ready to the beginning without those that are not: two round trips of 200 ms.
TEST_S = 2.1
START_S = 0.8  # Slow start to 1 Gbit/s at 50 ms takes ten round trips.
MAX_RATE = 1.25e10  # 100 Gbit/s; a relay that reports more is not believed.
MIN_MEASURED_S = 0.4  # A relay that ends the test early has measured enough by then.

_NOISE = random.Random(1).randbytes(CHUNK)  # noqa: S311  # Nothing on the way can compress it.


@dataclass
class Trace:
    """How many bytes one connection had carried, and when; seconds of any clock that all connections share."""

    times: list[float] = field(default_factory=list)
    totals: list[int] = field(default_factory=list)

    def add(self, at: float, total: int) -> None:
        """Take the next count."""
        self.times.append(at)
        self.totals.append(total)

    def close(self, at: float) -> None:
        """Nothing more came until then: a flow that stands still is not a short one."""
        if self.times and at > self.times[-1]:
            self.add(at, self.totals[-1])

    def at(self, time: float) -> float:
        """Bytes at a time, between two counts in proportion."""
        after = bisect_left(self.times, time)
        if after == 0:
            return 0.0 if not self.times or time < self.times[0] else float(self.totals[0])
        if after == len(self.times):
            return float(self.totals[-1])
        t0, t1 = self.times[after - 1], self.times[after]
        b0, b1 = self.totals[after - 1], self.totals[after]
        return b0 + (b1 - b0) * (time - t0) / (t1 - t0)


def steady_rate(traces: Sequence[Trace], skip_s: float = START_S) -> float:
    """Bytes a second of all connections together, once the start-up is over.

    Args:
        traces: counts, which honest relays never let fall.
        skip_s: the start-up, from the first count on.
    Raises:
        SpeedError: they cover less than ``MIN_MEASURED_S`` after it.
    """
    counted = [trace for trace in traces if trace.times]
    if not counted:
        raise SpeedError("it carried nothing")
    begin = min(trace.times[0] for trace in counted) + skip_s
    end = max(trace.times[-1] for trace in counted)
    if end - begin < MIN_MEASURED_S:
        raise SpeedError("it ended the test too soon")
    rate = sum(trace.at(end) - trace.at(begin) for trace in counted) / (end - begin)
    return min(max(rate, 0.0), MAX_RATE)


async def measure(server: IceServer, direction: Direction, other_way: float = math.inf) -> float:
    """Bytes a second between this machine and a relay.

    Args:
        server: an entry for TCP or TLS.
        other_way: bytes a second that were found in the other direction, if they were.
    Raises:
        SpeedError: the relay does not measure, or cannot be reached.
    """
    rate = await _trial(server, direction, other_way)
    return rate if rate is not None else await _trial(server, direction, 0.0) or 0.0


async def _trial(server: IceServer, direction: Direction, other_way: float) -> float | None:
    """As ``measure``; None: the line is so slow that as many connections as are used do not fill it evenly."""
    run = _receive if direction is Direction.DOWN else _send
    traces: list[Trace] = []
    streams: list[RelayStream] = []
    loop = asyncio.get_running_loop()
    first = math.inf
    try:
        trust = await asyncio.to_thread(trusted, server)
    except OSError as error:
        raise SpeedError(f"the certificates to trust cannot be read from {server.ca_file!r}: {error}") from error
    async with contextlib.AsyncExitStack() as stack:

        async def begin() -> None:
            nonlocal first
            stream = await stack.enter_async_context(connect(server, trust))
            await begin_trial(stream, server, direction)
            streams.append(stream)
            traces.append(Trace())
            run(stream, traces[-1])
            first = min(first, loop.time())

        await _most([begin() for _ in range(FEW_CONNECTIONS if other_way < SLOW else CONNECTIONS)])
        await _ended(streams, LOOK_S)
        going_on = not all(stream.closed.is_set() for stream in streams)
        carried = sum(trace.totals[-1] for trace in traces if trace.totals)
        # By the time that has passed: connections that wait for each other, or a busy machine, make it up to twice as long.
        if going_on and math.isinf(other_way) and carried < FEW * (loop.time() - first):
            return None
        await _ended(streams, TEST_S - LOOK_S)
        for stream in streams:
            stream.on_bytes = _ignore
    return steady_rate(traces)


async def _ended(streams: Sequence[RelayStream], seconds: float) -> None:
    """Returns when the relay has ended them all, or after so many seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.gather(*(stream.closed.wait() for stream in streams))


async def _most(jobs: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run them until all are done, or ``GRACE_S`` after the first; a lost SYN is sent again after a second only.

    Raises:
        SpeedError: one was refused, or none was done within ``SETUP_S``.
    """
    tasks = [asyncio.create_task(job) for job in jobs]
    try:
        done, waiting = await asyncio.wait(tasks, timeout=SETUP_S, return_when=asyncio.FIRST_COMPLETED)
        if waiting and done:
            done, _ = await asyncio.wait(tasks, timeout=GRACE_S)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if not done:
        raise SpeedError(f"it did not answer within {SETUP_S} s")
    for task in done:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, OSError):
            raise SpeedError(f"it cannot be reached by TCP: {error.strerror or error}") from error
        if error is not None:
            raise error


def _ignore(_: bytes) -> None:
    """The test is over."""


def _receive(stream: RelayStream, trace: Trace) -> None:
    loop, total = asyncio.get_running_loop(), 0

    def take(data: bytes) -> None:
        nonlocal total
        total += len(data)
        trace.add(loop.time(), total)

    trace.add(loop.time(), 0)
    stream.take_over(take)


def _send(stream: RelayStream, trace: Trace) -> None:
    """Fill the connection; what counts is what the relay reports."""
    loop, reports = asyncio.get_running_loop(), bytearray()
    transport = stream.transport
    assert transport is not None
    prefer_bbr(transport)

    def take(data: bytes) -> None:
        reports.extend(data)
        whole = len(reports) // REPORT.size * REPORT.size
        for micros, total in REPORT.iter_unpack(bytes(reports[:whole])):
            if not trace.times or micros / 1e6 > trace.times[-1]:
                trace.add(micros / 1e6, total)
        del reports[:whole]

    def fill() -> None:
        for _ in range(CHUNKS_A_TURN):
            if stream.full or transport.is_closing():
                return
            transport.write(_NOISE)
        if not stream.full:
            loop.call_soon(fill)

    stream.on_room = fill
    stream.take_over(take)
    fill()
