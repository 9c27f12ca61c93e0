"""How fast transfers with the coordinator may go: what peers wait for comes first, and the owner's limits are kept.

An opened step may be tens of megabytes. Over HTTP the kernel's TCP would take half of a home's upload for it and fill the
router's queue, and every micro-batch of the pipeline would wait in there. So it leaves at a pace that follows the queue which
the links to peers measure: quicker while that is short, slower while it is not (the idea of LEDBAT, RFC 6817, with the links'
round trips for its one-way delays). While no link carries anything, nobody is in the way.

What everybody waits for, a round's state, is urgent: it takes what the owner allows at once, and the others wait for it.

A transfer has a time by which it must be there, so it never leaves more slowly than that needs. Several at once need the sum of
that: two openings of one round are due at once, too. What this takes beyond the owner's limit is charged to the links.
"""

import math
from collections.abc import AsyncIterator, Callable, Mapping

from common.clock import Clock
from desktop.agent.base.payloads import Payload, pieces_of
from transport.ice.stats import LinkStats
from transport.sctp.allowance import Allowance

PIECE = 16 << 10  # 6 ms of a line of 20 Mbit/s,
PIECE_S = 1.0  # and no more than so many seconds of what the owner allows: a transfer that waits for longer seems dead.
LEAST_PIECE = 256
DUE_S = 60.0  # Half of the time that a coordinator gives for opening a step.
LOOK_S = 0.1  # Between two looks at the links: about two round trips.
BUSY_RATE = 2_000.0  # Bytes a second of a link beyond signs of life.
FIRST_RATE = 256e3  # Bytes a second beside links, before more is known: a line of 10 Mbit/s has as much to spare.
LEAST_RATE = 16e3
MOST_RATE = 125e6  # 1 Gbit/s.
QUEUE_LEAST_S, QUEUE_SHARE = 0.008, 0.30  # Links hold a queue of up to 22 % of a round trip by themselves.
FASTER, SLOWER = 1.1, 0.7
USED_SHARE = 0.7  # A rate that is not used does not grow.


class TransferPacing:
    """The pace of one agent's transfers, all together."""

    def __init__(self, clock: Clock, allowance: Allowance, links: Callable[[], Mapping[str, LinkStats]]) -> None:
        """Take the owner's limits, and whom to ask for the links' figures."""
        self._clock = clock
        self._allowance = allowance
        self._links = links
        self._rate = math.inf
        self._looked = -math.inf
        self._gone = 0
        self._free_at = -math.inf
        self._urgent = 0
        self._least = 0.0  # Bytes a second that all transfers together need to be there in time.

    async def pieces(self, payload: Payload, urgent: bool = False) -> AsyncIterator[bytes]:
        """The payload, each piece when it may leave; ``urgent``: others wait for it, so it does not give way.

        Raises:
            OSError: it cannot be read any more.
        """
        least = 0.0 if urgent else payload.size / DUE_S
        self._urgent += urgent
        self._least += least
        try:
            async for read in pieces_of(payload):
                begin = 0
                while begin < len(read):
                    piece = read[begin : begin + self._piece()]
                    begin += len(piece)
                    await self._leave(len(piece), urgent)
                    yield piece
        finally:
            self._urgent -= urgent
            self._least -= least

    async def arrived(self, size: int) -> None:
        """Count what has come, and wait before reading on where the owner limits that."""
        allowance, now = self._allowance, self._clock.now()
        allowance.on_received(self, size, now)
        if allowance.download is not None:
            share = allowance.download_window(self, 1.0)
            assert share is not None
            await self._clock.sleep(size / share)

    def _piece(self) -> int:
        limit = self._allowance.upload
        return PIECE if limit is None else min(PIECE, max(LEAST_PIECE, int(limit * PIECE_S)))

    async def _leave(self, size: int, urgent: bool) -> None:
        now = self._clock.now()
        if now - self._looked >= LOOK_S:
            self._look(now)
        limit = math.inf if self._allowance.upload is None else self._allowance.upload
        beside = math.inf if urgent else LEAST_RATE if self._urgent else self._rate
        rate = max(min(beside, limit), 0.0 if urgent else self._least)
        begin = now if rate == math.inf else max(now, self._free_at)
        self._free_at = begin + size / rate
        self._gone += size
        self._allowance.charge_upload(size, now)
        if begin > now:
            await self._clock.sleep(begin - now)

    def _look(self, now: float) -> None:
        """Follow the queue that the busy links see."""
        used, self._gone = self._gone / (now - self._looked), 0
        self._looked = now
        queues = [_excess(link) for link in self._links().values() if link.send_rate + link.receive_rate > BUSY_RATE]
        if not queues:
            self._rate = math.inf
        elif self._rate == math.inf:
            self._rate = FIRST_RATE
        elif max(queues) > 0:
            self._rate = max(LEAST_RATE, self._rate * SLOWER)
        elif used > USED_SHARE * self._rate:
            self._rate = min(MOST_RATE, self._rate * FASTER)


def _excess(link: LinkStats) -> float:
    """Seconds of queue beyond what links hold by themselves."""
    return link.queue_s - max(QUEUE_LEAST_S, QUEUE_SHARE * (link.min_rtt_s or 0.0))
