"""The relay's speed test: how many bytes a second a home's line carries, to the relay and from it.

A client over TCP or TLS sends an Allocate request with SPEED-TEST instead of REQUESTED-TRANSPORT, signed like every other; a
relay that does not offer the test answers 420, as the protocol has it. After the success answer the connection carries nothing
but the test::

    down   relay -> client   bytes without meaning, as fast as the connection takes them
    up     client -> relay   the same; back come reports of 16 bytes: microseconds of the relay's clock, bytes received so far

TCP over a few connections, not trains of UDP packets: trains overrate lines whose shapers let bursts pass, cost Python a core at
1 Gbit/s, and would need a congestion control of their own before a stranger may ask for them. The port and the password are those
that relay, so nothing more has to be opened or handed out. Nothing is sent before a TCP handshake and a signature, so no forged
address draws traffic to a victim; volume, time and number are bounded for each user and for all.
"""

import asyncio
import contextlib
import random
import socket
import struct
from collections import OrderedDict
from collections.abc import Callable
from enum import IntEnum

from transport.relay.errors import RequestRefusedError
from transport.relay.options import Quota
from transport.relay.usage import Bucket

TRIAL_S = 4.0  # A client measures for two seconds; who has not ended by then is ended.
HOUR_S = 3600.0
CHUNK = 64 * 1024
CHUNKS_A_TURN = 4  # 256 KB, some 100 us: then those who relay have their turn.
REPORT_S = 0.05
WAIT_S = 0.005  # Until the relay's own rate is looked at again.
MAX_ACCOUNTS = 16384  # Users remembered, some 10 MB; the one that has been away longest gives way.
REPORT = struct.Struct("!QQ")

_NOISE = random.Random(0).randbytes(CHUNK)  # noqa: S311  # Nothing on the way can compress it.


class Direction(IntEnum):
    """What SPEED-TEST holds."""

    DOWN = 1
    UP = 2


class SpeedShare:
    """What one user has left of its share."""

    __slots__ = ("begun", "running", "volume")

    def __init__(self, quota: Quota) -> None:
        self.volume = Bucket(quota.speed_hour_bytes / HOUR_S, quota.speed_hour_bytes)
        self.begun = Bucket(quota.speed_hour_streams / HOUR_S, quota.speed_hour_streams)
        self.running = 0


class SpeedTests:
    """All speed tests of one relay.

    Attributes:
        moved: payload bytes by direction since the start.
    """

    def __init__(self, quota: Quota, bucket: Bucket, now: Callable[[], float]) -> None:
        """Share the ``bucket`` of all that is relayed: the operator's limit holds for both together."""
        self.moved = dict.fromkeys(Direction, 0)
        self._quota = quota
        self._bucket = bucket
        self._now = now
        self._rate = Bucket(quota.speed_rate)
        self._volume = Bucket(quota.speed_total_hour_bytes / HOUR_S, quota.speed_total_hour_bytes)
        self._accounts: OrderedDict[str, SpeedShare] = OrderedDict()
        self._running = 0

    @property
    def offered(self) -> bool:
        """Whether this relay measures at all."""
        return self._quota.speed_streams > 0

    def open(self, user: str, wanted: int) -> "Trial":
        """Grant one connection's part of a test.

        Args:
            user: ``NODE`` or ``NODE-JOB``; a node's jobs share what is the node's.
            wanted: a ``Direction``.
        Raises:
            RefusedError: 400, no direction; 486, the user has had its share; 508, others are measuring.
        """
        try:
            direction = Direction(wanted)
        except ValueError:
            raise RequestRefusedError(400, "Bad Request") from None
        account = self._account(user.partition("-")[0])
        if account.running >= self._quota.speed_streams_per_user or not account.begun.take(1, self._now()):
            raise RequestRefusedError(486, "Speed Test Quota Reached")
        if self._running >= self._quota.speed_streams:
            raise RequestRefusedError(508, "Insufficient Capacity")
        account.running += 1
        self._running += 1
        return Trial(direction, self, account)

    def pay(self, trial: "Trial", size: int) -> bool | None:
        """Count bytes; False where a rate of the relay says to wait, None where the test is over."""
        now = self._now()
        if not self._rate.take(size, now) or not self._bucket.take(size, now):
            return False
        if not trial.account.volume.take(size, now) or not self._volume.take(size, now):
            return None
        self.moved[trial.direction] += size
        return True

    def close(self, account: SpeedShare) -> None:
        """One connection's part has ended."""
        account.running -= 1
        self._running -= 1

    def now(self) -> float:
        """Monotonic seconds."""
        return self._now()

    def _account(self, name: str) -> SpeedShare:
        account = self._accounts.pop(name, None) or SpeedShare(self._quota)
        self._accounts[name] = account
        if len(self._accounts) > MAX_ACCOUNTS:
            idle = next((key for key, value in self._accounts.items() if not value.running), name)
            del self._accounts[idle]
        return account


class Trial:
    """One connection's part of a test; ``begin`` it once the answer is written, ``end`` it with the connection."""

    def __init__(self, direction: Direction, tests: SpeedTests, account: SpeedShare) -> None:
        self.direction = direction
        self.account = account
        self._tests = tests
        self._transport: asyncio.Transport | None = None
        self._next: asyncio.Handle | None = None
        self._limit: asyncio.TimerHandle | None = None
        self._full = False
        self._ended = False
        self._received = 0

    def begin(self, transport: asyncio.Transport) -> None:
        """Take the connection over."""
        self._transport = transport
        loop = asyncio.get_running_loop()
        self._limit = loop.call_later(TRIAL_S, transport.abort)
        prefer_bbr(transport)
        if self.direction is Direction.DOWN:
            self._send()
        else:
            self._report()

    def received(self, size: int) -> None:
        """Count what has come from the client."""
        if self._transport is None or self.direction is Direction.DOWN:
            self._abort()  # It has nothing to say.
            return
        self._received += size
        self._take(size)

    def full(self, is_full: bool) -> None:
        """The connection takes no more for now, or takes more again."""
        self._full = is_full
        if not is_full and self.direction is Direction.DOWN and self._next is None:
            self._send()

    def end(self) -> None:
        """The connection is gone; a second time does nothing."""
        if self._ended:
            return
        self._ended = True
        for handle in (self._next, self._limit):
            if handle is not None:
                handle.cancel()
        self._tests.close(self.account)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _send(self) -> None:
        self._next = None
        if self._transport is None:
            return
        loop = asyncio.get_running_loop()
        for _ in range(CHUNKS_A_TURN):
            if self._full or self._transport.is_closing():
                return
            paid = self._tests.pay(self, CHUNK)
            if paid is None:
                self._abort()
                return
            if not paid:
                self._next = loop.call_later(WAIT_S, self._send)
                return
            self._transport.write(_NOISE)
        if not self._full:
            self._next = loop.call_soon(self._send)

    def _take(self, size: int) -> None:
        if self._transport is None or self._ended:
            return
        paid = self._tests.pay(self, size)
        if paid is None:
            self._abort()
        elif paid:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(WAIT_S, self._take, size)

    def _report(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(REPORT.pack(int(self._tests.now() * 1e6), self._received))
        self._next = asyncio.get_running_loop().call_later(REPORT_S, self._report)


def prefer_bbr(transport: asyncio.Transport) -> None:
    """Let a connection's sender follow the rate instead of the losses, where Linux lets this user choose so.

    A line that loses one packet in a hundred carries a tenth of its rate over stock TCP, and nearly all of it over the data path
    that the links use.
    """
    connection = transport.get_extra_info("socket")
    if connection is not None and hasattr(socket, "TCP_CONGESTION"):
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
