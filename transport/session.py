"""Everything between this node and one peer across the links that come and go.

::

                 something to send, an offer, or a request
        idle  ------------------------------------------->  connecting
          ^                                                   |     |  fails: wait (backoff), unless the peer signals
          |  nothing to send                                  |     v
          +----------------------------- up  <----------------+   connecting again
                       dies: rewind the outbox

The node with the smaller address makes every offer; the other asks for one. A newer signal from the peer always wins over what is
under way, so a restarted peer is connected to at once.
"""

import asyncio
import contextlib
import logging
import random
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, assert_never

from transport.budget import MemoryBudget
from transport.clock import Clock, backoff
from transport.errors import (
    ConnectError,
    LinkError,
    MalformedFrameError,
    PeerNotAllowedError,
    PeerUnreachableError,
    SignalError,
    TransportError,
)
from transport.framing import Frame, check_message, checksum
from transport.ice import IceServer
from transport.identity import NodeKey
from transport.inbox import Delivery, Inbox
from transport.lane import Lane
from transport.limits import PeerLimits
from transport.link import Link
from transport.outbox import Outbox, Outgoing
from transport.rtc import RtcConnection
from transport.sdp import Description
from transport.signalling import Opened, SignalBody, SignalKind, seal
from transport.stats import LinkState, LinkStats

LOG = logging.getLogger(__name__)

CHECKSUM_INLINE = 4 << 20  # Under a millisecond; a longer checksum runs beside the event loop.
FAILED_HANDLER = "the handler failed"

SendSignal = Callable[[str, bytes], Awaitable[None]]
OnMessage = Callable[[str, Lane, bytes, memoryview], Awaitable[None]]

_T = TypeVar("_T")


@dataclass
class _Inflow:
    """Complete messages of one lane, waiting for the handler; the windows of the inbox bound them."""

    waiting: deque[Delivery] = field(default_factory=deque)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)


class _SupersededError(LinkError):
    """A newer signal from the peer makes what is under way pointless."""


class PeerContext:
    """What the sessions of one node share."""

    def __init__(
        self,
        key: NodeKey,
        send_signal: SendSignal,
        on_message: OnMessage,
        ice_servers: Callable[[], Sequence[IceServer]],
        clock: Clock,
        limits: PeerLimits,
        *,
        loopback: bool,
    ) -> None:
        """Take the node's parts."""
        self.key = key
        self.send_signal = send_signal
        self.on_message = on_message
        self.ice_servers = ice_servers
        self.clock = clock
        self.limits = limits
        self.loopback = loopback
        self.budget = MemoryBudget(limits.memory_total, limits.memory_per_peer)


class PeerSession:
    """This node's side of its dealings with one peer."""

    def __init__(self, context: PeerContext, address: str) -> None:
        """Prepare; ``run`` does the work."""
        self._context = context
        self._address = address
        self._offers_here = context.key.address < address
        self._stats = LinkStats()
        self._outbox = Outbox(context.limits)
        self._inbox = Inbox(context.limits, context.budget, self._deliver, self._reply)
        self._link: Link | None = None
        self._nonce = secrets.token_bytes(16)
        self._seen_session = b""
        self._link_nonce = b""
        self._offer: Opened | None = None
        self._answer: asyncio.Future[Opened] | None = None
        self._requested = False
        self._signalled = asyncio.Event()
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
        body = opened.body
        restarted = self._seen_session not in (b"", body.session)
        self._seen_session = body.session
        if (body.kind is SignalKind.OFFER) is self._offers_here:
            raise SignalError("role", f"{self._address} has the wrong part to send an {body.kind.value}")
        match body.kind:
            case SignalKind.OFFER:
                self._offer = opened
                self._interrupt()
            case SignalKind.ANSWER:
                waiting = self._answer
                if waiting is not None and not waiting.done() and body.reply_to == self._link_nonce:
                    waiting.set_result(opened)
            case SignalKind.REQUEST:
                busy = self._stats.state is not LinkState.IDLE
                if restarted or not busy or body.reply_to == self._link_nonce:
                    self._requested = True
                    self._interrupt()
            case _:
                assert_never(body.kind)

    def _interrupt(self) -> None:
        self._signalled.set()
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
            if not (self._outbox.wanted or self._offer or self._requested):
                self._work.clear()
                await self._work.wait()
                continue
            links = self._stats.links
            try:
                await self._one_link()
            except _SupersededError:
                failures = 0
                continue
            except MalformedFrameError as error:
                LOG.warning("%s broke the rules, its link is closed: %s", self._address, error)
            except (TransportError, OSError, TimeoutError) as error:
                LOG.info("no link to %s: %s", self._address, str(error) or type(error).__name__)
            finally:
                self._stats.state = LinkState.IDLE
            failures = failures + 1 if self._stats.links == links else 1
            await self._pause(backoff(failures, random.random))

    async def _pause(self, seconds: float) -> None:
        """Wait, but not longer than until the peer signals."""
        with contextlib.suppress(TimeoutError):
            async with self._context.clock.timeout(seconds):
                await self._signalled.wait()

    async def _one_link(self) -> None:
        """Connect, serve the link until it dies.

        Raises:
            TransportError, OSError, TimeoutError: always, with the reason.
        """
        self._stats.state = LinkState.CONNECTING
        if self._offers_here:
            self._requested = False
            self._signalled.clear()
            connection = self._connection()
            work = self._make_offer(connection)
        else:
            offer = await self._next_offer()
            connection = self._connection()
            work = self._answer_to(connection, offer)
        try:
            body = await self._unless_superseded(work)
            await self._serve(connection, body)
        finally:
            await connection.close(self._context.limits.close_s)

    def _connection(self) -> RtcConnection:
        context = self._context
        return RtcConnection(context.ice_servers(), loopback=context.loopback, low=context.limits.buffered_low)

    async def _make_offer(self, connection: RtcConnection) -> SignalBody:
        limits, clock = self._context.limits, self._context.clock
        self._link_nonce = secrets.token_bytes(16)
        self._answer = answer = asyncio.get_running_loop().create_future()
        description = await connection.offer()
        await self._signal(SignalKind.OFFER, description, nonce=self._link_nonce)
        async with clock.timeout(limits.answer_s):
            opened: Opened = await answer
        async with clock.timeout(limits.connect_s):
            assert opened.description is not None
            await connection.accept(opened.description)
            await connection.opened(opened.description.fingerprint)
        return opened.body

    async def _next_offer(self) -> Opened:
        """Return the peer's offer, asking for one if there is none."""
        if self._offer is None:
            self._signalled.clear()
            await self._signal(SignalKind.REQUEST, None, reply_to=self._link_nonce)
            async with self._context.clock.timeout(self._context.limits.answer_s):
                await self._signalled.wait()
        self._signalled.clear()
        offer, self._offer = self._offer, None
        if offer is None:
            raise ConnectError("woken without an offer")
        return offer

    async def _answer_to(self, connection: RtcConnection, offer: Opened) -> SignalBody:
        assert offer.description is not None
        self._link_nonce = offer.body.nonce
        description = await connection.answer(offer.description)
        await self._signal(SignalKind.ANSWER, description, reply_to=offer.body.nonce)
        async with self._context.clock.timeout(self._context.limits.connect_s):
            await connection.opened(offer.description.fingerprint)
        return offer.body

    async def _signal(
        self, kind: SignalKind, description: Description | None, *, reply_to: bytes = b"", nonce: bytes | None = None
    ) -> None:
        context = self._context
        envelope = seal(
            context.key,
            kind,
            self._address,
            session=self._nonce,
            now=context.clock.time(),
            floor=self._outbox.floor,
            reply_to=reply_to,
            description=description,
            nonce=nonce,
        )
        try:
            await context.send_signal(self._address, envelope)
        except Exception as error:  # the caller's code, whose errors are its own: whatever it was, try again later
            raise ConnectError(f"the {kind.value} could not be sent: {error or type(error).__name__}") from error

    async def _serve(self, connection: RtcConnection, body: SignalBody) -> None:
        self._outbox.rewind(new_session=body.session != self._inbox.session)
        self._inbox.start_link(body.session, body.floor)
        link = Link(connection, self._outbox, self._inbox, self._stats, self._context.clock, self._context.limits)
        self._link = link
        self._stats.links += 1
        self._stats.state, self._stats.pair = LinkState.UP, connection.pair
        LOG.info("link to %s is up (%s)", self._address, connection.pair)
        try:
            await self._unless_superseded(link.run())
        finally:
            self._link = None
            self._down_since = self._context.clock.now()
            self._inbox.drop_partial()

    async def _unless_superseded(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Do ``work`` unless the peer signals anew.

        Raises:
            _SupersededError: it did.
        """
        task = asyncio.create_task(work)
        signal = asyncio.create_task(self._signalled.wait())
        try:
            await asyncio.wait((task, signal), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise _SupersededError("the peer has signalled anew")
        finally:
            for job in (task, signal):
                job.cancel()
            await asyncio.gather(task, signal, return_exceptions=True)

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
