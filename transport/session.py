"""Everything between this node and one peer across the links that come and go.

::

                 something to send, an offer, or a request
        idle  ------------------------------------------->  connecting
          ^                                                   |     |  fails: wait (backoff), unless the peer signals
          |  nothing to send                                  |     v
          +----------------------------- up  <----------------+   connecting again
                       dies: rewind the outbox
"""

import asyncio
import contextlib
import logging
import random
from collections import deque
from dataclasses import dataclass, field

from transport.clock import backoff
from transport.context import PeerContext
from transport.errors import MalformedFrameError, PeerNotAllowedError, PeerUnreachableError, TransportError
from transport.framing import Frame, check_message, checksum
from transport.inbox import Delivery, Inbox
from transport.lane import Lane
from transport.link import Link
from transport.negotiation import Negotiation, SupersededError
from transport.outbox import Outbox, Outgoing
from transport.rtc import RtcConnection
from transport.signalling import Opened, SignalBody
from transport.stats import LinkState, LinkStats

LOG = logging.getLogger(__name__)

CHECKSUM_INLINE = 4 << 20  # Under a millisecond; a longer checksum runs beside the event loop.
FAILED_HANDLER = "the handler failed"


@dataclass
class _Inflow:
    """Complete messages of one lane, waiting for the handler; the windows of the inbox bound them."""

    waiting: deque[Delivery] = field(default_factory=deque)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)


class PeerSession:
    """This node's side of its dealings with one peer."""

    def __init__(self, context: PeerContext, address: str) -> None:
        """Prepare; ``run`` does the work."""
        self._context = context
        self._address = address
        self._stats = LinkStats()
        self._outbox = Outbox(context.limits)
        self._inbox = Inbox(context.limits, context.budget, self._deliver, self._reply)
        self._link: Link | None = None
        self._negotiation = Negotiation(context, address, lambda: self._outbox.floor)
        self._work = asyncio.Event()
        self._down_since = context.clock.now()
        self._places = asyncio.Semaphore(context.limits.waiting_sends)
        self._inflow = {lane: _Inflow() for lane in Lane}

    @property
    def stats(self) -> LinkStats:
        """Counters over all links."""
        return self._stats

    async def send(
        self, lane: Lane, header: bytes, payload: bytes | bytearray | memoryview, timeout: float | None
    ) -> None:
        """See ``PeerNet.send``."""
        view = memoryview(payload).cast("B")
        check_message(header, view.nbytes)
        try:
            async with self._context.clock.timeout(timeout), self._places:
                crc = (
                    checksum(header, view)
                    if view.nbytes <= CHECKSUM_INLINE
                    else await asyncio.to_thread(checksum, header, view)
                )
                await self._settled(self._outbox.put(lane, header, view, crc))
        except TimeoutError:
            raise PeerUnreachableError(
                f"{self._address} did not acknowledge {view.nbytes} bytes within {timeout} s (link {self._stats.state})"
            ) from None

    async def _settled(self, message: Outgoing) -> None:
        asked = self._context.clock.now()
        self._work.set()
        self._wake_link()
        reach = self._context.limits.reach_s
        try:
            while True:
                since = max(asked, self._down_since) if self._link is None else self._context.clock.now()
                left = since + reach - self._context.clock.now()
                if left <= 0:
                    raise PeerUnreachableError(
                        f"no link to {self._address} for {reach:.0f} s: is it running and in the plan?"
                    )
                try:
                    async with self._context.clock.timeout(left):
                        await asyncio.shield(message.done)
                        return
                except TimeoutError:
                    continue
        finally:
            if not message.done.done() or message.done.cancelled():
                self._outbox.cancel(message)
                self._wake_link()

    def on_signal(self, opened: Opened) -> None:
        """Take a checked envelope of the peer.

        Raises:
            SignalError: ``role``: it is not this side's part to get it.
        """
        self._negotiation.take(opened, busy=self._stats.state is not LinkState.IDLE)
        self._work.set()

    async def run(self) -> None:
        """Keep the peer connected while there is need, and hand over what arrives, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for lane in Lane:
                group.create_task(self._hand_over(self._inflow[lane]), name=f"deliver-{lane.name}")
            group.create_task(self._keep_linked(), name="keep-linked")

    def close(self, error: PeerNotAllowedError | PeerUnreachableError) -> None:
        """Fail everything that still waits; ``run`` is cancelled by its owner."""
        self._outbox.fail_all(error)
        self._inbox.drop_partial()
        for inflow in self._inflow.values():
            for delivery in inflow.waiting:
                self._inbox.finished(delivery, "the node closed")
            inflow.waiting.clear()

    async def _keep_linked(self) -> None:
        failures = 0
        while True:
            if not (self._outbox.wanted or self._negotiation.asked):
                self._work.clear()
                await self._work.wait()
                continue
            links = self._stats.links
            try:
                await self._one_link()
            except SupersededError:
                failures = 0
                continue
            except MalformedFrameError as error:
                LOG.warning("%s broke the rules, its link is closed: %s", self._address, error)
            except (TransportError, OSError, TimeoutError) as error:
                LOG.info("no link to %s: %s", self._address, str(error) or type(error).__name__)
            except Exception:  # aiortc and send_signal raise what they like, and one failure must not end the session
                LOG.exception("no link to %s", self._address)
            finally:
                self._stats.state = LinkState.IDLE
            failures = failures + 1 if self._stats.links == links else 1
            await self._pause(backoff(failures, random.random))

    async def _pause(self, seconds: float) -> None:
        """Wait, but not longer than until the peer signals."""
        with contextlib.suppress(TimeoutError):
            async with self._context.clock.timeout(seconds):
                await self._negotiation.signalled()

    async def _one_link(self) -> None:
        """Connect, serve the link until it dies.

        Raises:
            TransportError, OSError, TimeoutError: always, with the reason.
        """
        self._stats.state = LinkState.CONNECTING
        connection, body = await self._negotiation.connect()
        try:
            await self._serve(connection, body)
        finally:
            await connection.close(self._context.limits.close_s)

    async def _serve(self, connection: RtcConnection, body: SignalBody) -> None:
        self._outbox.rewind(new_session=body.session != self._inbox.session)
        self._inbox.start_link(body.session, body.floor)
        link = Link(connection, self._outbox, self._inbox, self._stats, self._context.clock, self._context.limits)
        self._link = link
        self._stats.links += 1
        self._stats.state, self._stats.pair = LinkState.UP, connection.pair
        LOG.info("link to %s is up (%s)", self._address, connection.pair)
        try:
            await self._negotiation.unless_superseded(link.run())
        finally:
            self._link = None
            self._down_since = self._context.clock.now()
            self._inbox.drop_partial()

    def _wake_link(self) -> None:
        if self._link is not None:
            self._link.wake()

    def _reply(self, frame: Frame) -> None:
        if self._link is not None:
            self._link.reply(frame)

    def _deliver(self, delivery: Delivery) -> None:
        inflow = self._inflow[delivery.lane]
        inflow.waiting.append(delivery)
        inflow.arrived.set()

    async def _hand_over(self, inflow: _Inflow) -> None:
        """Give one lane's messages to the handler, one at a time, in the order in which they became complete."""
        while True:
            while not inflow.waiting:
                inflow.arrived.clear()
                await inflow.arrived.wait()
            delivery = inflow.waiting.popleft()
            failure = None
            if self._inbox.is_current(delivery):
                failure = await self._handle(delivery)
            self._inbox.finished(delivery, failure)

    async def _handle(self, delivery: Delivery) -> str | None:
        try:
            await self._context.on_message(self._address, delivery.lane, delivery.header, delivery.payload)
        except Exception:  # the handler is the caller's; its failure is logged here and told to the sender
            LOG.exception("the handler of a %s message from %s failed", delivery.lane.name, self._address)
            return FAILED_HANDLER
        return None
