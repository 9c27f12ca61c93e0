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
import functools
import logging
import random
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from dataclasses import dataclass, field

from common.clock import backoff
from common.errors import (
    MalformedFrameError,
    MessageRefusedError,
    PeerNotAllowedError,
    PeerUnreachableError,
    TransportError,
)
from transport.ice.context import PeerContext
from transport.ice.rtc import RtcConnection
from transport.ice.stats import LinkState, LinkStats
from transport.messages.framing import Frame, check_message
from transport.messages.inbox import MessageInbox, ReceivedMessage
from transport.messages.lanes import Lane
from transport.messages.message_source import Chunks
from transport.messages.outbox import MessageOutbox, OutgoingMessage
from transport.messages.stream import IncomingStream
from transport.peer.link import PeerLink
from transport.peer.negotiation import Negotiation, SupersededError
from transport.peer.signalling import Opened, SignalBody

LOG = logging.getLogger(__name__)

FAILED_HANDLER = "the handler failed"
RETIRE_S = 2.0  # A connection that is left for a better one: the peer may move over a moment later.
SHORT_LIFE_S = 1.0  # A link that dies sooner has not solved what ended the last one: the next try waits.


@dataclass
class _Inflow:
    """Complete messages of one lane, waiting for the handler; the windows of the inbox bound them."""

    waiting: deque[ReceivedMessage] = field(default_factory=deque)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)


class PeerSession:
    """This node's side of its dealings with one peer."""

    def __init__(self, context: PeerContext, address: str) -> None:
        """Prepare; ``run`` does the work."""
        self._context = context
        self._address = address
        self._stats = LinkStats()
        self._outbox = MessageOutbox(context.limits)
        self._inbox = MessageInbox(
            context.limits,
            context.budget,
            self._deliver,
            self._reply,
            peer=address,
            open_stream=self._open_stream if context.on_stream is not None else None,
        )
        self._link: PeerLink | None = None
        self._negotiation = Negotiation(context, address, lambda: self._outbox.floor)
        self._work = asyncio.Event()
        self._link_changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._up_since = self._down_since = context.clock.now()
        self._places = asyncio.Semaphore(context.limits.waiting_sends)
        self._inflow = {lane: _Inflow() for lane in Lane}

    @property
    def stats(self) -> LinkStats:
        """Counters over all links."""
        self._stats.resumed = self._outbox.resumed
        return self._stats

    async def send(
        self, lane: Lane, header: bytes, payload: bytes | bytearray | memoryview, timeout: float | None
    ) -> None:
        """See ``PeerNet.send``."""
        view = memoryview(payload).cast("B")
        check_message(header, view.nbytes)
        async with self._place(view.nbytes, timeout):
            await self._settled(self._outbox.put(lane, header, view))

    async def send_stream(
        self,
        lane: Lane,
        header: bytes,
        total: int,
        chunks: AsyncIterator[bytes | bytearray | memoryview],
        timeout: float | None,
    ) -> None:
        """See ``PeerNet.send_stream``."""
        async with _closing(chunks):
            check_message(header, total)
            async with self._place(total, timeout):
                source = Chunks(total, self._context.limits.stream_window)
                message = self._outbox.put_stream(lane, header, source, total)
                producer = asyncio.create_task(self._produce(message, source, chunks), name="stream-producer")
                producer.add_done_callback(functools.partial(self._produced, message))
                try:
                    await self._settled(message)
                finally:
                    producer.cancel()
                    await asyncio.gather(producer, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def _place(self, size: int, timeout: float | None) -> AsyncIterator[None]:
        try:
            async with self._context.clock.timeout(timeout), self._places:
                yield
        except TimeoutError:
            raise PeerUnreachableError(
                f"{self._address} did not acknowledge {size} bytes within {timeout} s (link {self._stats.state})"
            ) from None

    async def _produce(
        self, message: OutgoingMessage, source: Chunks, chunks: AsyncIterator[bytes | bytearray | memoryview]
    ) -> None:
        """Feed a stream while there is room for more of it."""
        while True:
            await source.room()
            try:
                chunk = await anext(chunks)
            except StopAsyncIteration:
                source.finish()
                return
            source.feed(chunk)
            self._outbox.fed(message)
            self._wake_link()

    def _produced(self, message: OutgoingMessage, producer: asyncio.Task[None]) -> None:
        """Whatever the caller's chunks raise is for the caller of ``send_stream``."""
        error = None if producer.cancelled() else producer.exception()
        if error is not None:
            self._outbox.break_off(message, error)
            self._wake_link()

    async def _settled(self, message: OutgoingMessage) -> None:
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
        try:
            async with asyncio.TaskGroup() as group:
                for lane in Lane:
                    group.create_task(self._hand_over(self._inflow[lane]), name=f"deliver-{lane.name}")
                group.create_task(self._keep_linked(), name="keep-linked")
                group.create_task(self._forget_partial(), name="forget-partial")
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self, error: PeerNotAllowedError | PeerUnreachableError) -> None:
        """Fail everything that still waits; ``run`` is cancelled by its owner."""
        self._outbox.fail_all(error)
        self._inbox.drop_partial()
        for inflow in self._inflow.values():
            for delivery in inflow.waiting:
                self._inbox.finished(delivery, "the node closed")
            inflow.waiting.clear()

    async def _keep_linked(self) -> None:
        """Connect while there is need: at once after a link that held was lost, else after a growing pause."""
        failures = 0
        while True:
            if not (self._outbox.wanted or self._inbox.awaits_link or self._negotiation.asked):
                self._work.clear()
                await self._work.wait()
                continue
            links = self._stats.links
            broke_rules = False
            try:
                await self._one_link()
            except SupersededError:
                failures = 0
                continue
            except MalformedFrameError as error:
                broke_rules = True
                self._inbox.drop_partial()
                LOG.warning("%s broke the rules, its link is closed: %s", self._address, error)
            except (TransportError, OSError, TimeoutError) as error:
                LOG.info("no link to %s: %s", self._address, str(error) or type(error).__name__)
            except Exception:  # aiortc and send_signal raise what they like, and one failure must not end the session
                LOG.exception("no link to %s", self._address)
            finally:
                self._stats.state = LinkState.IDLE
            if self._stats.links == links:
                failures += 1
            elif broke_rules or self._down_since - self._up_since < SHORT_LIFE_S:
                failures = 1
            else:
                failures = 0
                continue
            await self._pause(backoff(failures, random.random))

    async def _forget_partial(self) -> None:
        """Keep what has arrived of messages for a while after a link is lost, not for ever."""
        while True:
            if self._link is not None or not self._inbox.awaits_link:
                self._link_changed.clear()
                await self._link_changed.wait()
                continue
            self._link_changed.clear()
            try:
                async with self._context.clock.timeout(self._context.limits.resume_s):
                    await self._link_changed.wait()
            except TimeoutError:
                self._inbox.drop_partial()

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
            while True:
                await self._serve(connection, body)
                self._retire(connection)
                connection, body = self._negotiation.claim_upgrade()
                self._stats.path_changes += 1
                LOG.info("the link to %s leaves its relay", self._address)
        finally:
            await connection.close(self._context.limits.close_s)
            await self._negotiation.upgrade.discard()

    def _retire(self, connection: RtcConnection) -> None:
        """Close a connection in a while: the peer may move over to the better one a moment later."""

        async def retire() -> None:
            try:
                await self._context.clock.sleep(RETIRE_S)
            finally:
                await connection.close(self._context.limits.close_s)

        self._keep(asyncio.create_task(retire(), name="retire-link"))

    def _keep(self, task: asyncio.Task[None]) -> None:
        """Have ``run`` end the task if it has not ended by then."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: RtcConnection, body: SignalBody) -> None:
        """Serve the link until it dies, which raises, or there is a better connection."""
        self._outbox.rewind(new_session=body.session != self._inbox.session)
        self._inbox.start_link(body.session, body.floor)
        link = PeerLink(connection, self._outbox, self._inbox, self._stats, self._context.clock, self._context.limits)
        self._link = link
        self._link_changed.set()
        self._up_since = self._context.clock.now()
        self._stats.links += 1
        self._stats.state, self._stats.pair = LinkState.UP, connection.pair
        self._stats.relayed = connection.relayed
        LOG.info("link to %s is up (%s)", self._address, connection.pair)
        try:
            await self._negotiation.unless_superseded(self._until_better(link))
        finally:
            self._link = None
            self._link_changed.set()
            self._down_since = self._context.clock.now()
            self._inbox.end_link()

    async def _until_better(self, link: PeerLink) -> None:
        jobs = (
            asyncio.create_task(link.run(), name="link"),
            asyncio.create_task(self._negotiation.upgrade.better(relayed=self._stats.relayed), name="look-for-direct"),
        )
        try:
            await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
            for job in jobs:
                if job.done():
                    job.result()
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    def _wake_link(self) -> None:
        if self._link is not None:
            self._link.wake()

    def _reply(self, frame: Frame) -> None:
        if self._link is not None:
            self._link.reply(frame)

    def _deliver(self, delivery: ReceivedMessage) -> None:
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

    def _open_stream(self, stream: IncomingStream) -> None:
        self._keep(asyncio.create_task(self._run_stream(stream), name=f"stream-{stream.lane.name}"))

    async def _run_stream(self, stream: IncomingStream) -> None:
        assert self._context.on_stream is not None
        failure: str | None = "the node closed"
        try:
            failure = await self._outcome(self._context.on_stream(stream), stream.lane)
        finally:
            self._inbox.finished(stream, failure)

    async def _handle(self, delivery: ReceivedMessage) -> str | None:
        payload = delivery.payload
        handling = self._context.on_message(self._address, delivery.lane, delivery.header, payload)
        return await self._outcome(handling, delivery.lane)

    async def _outcome(self, handling: Awaitable[None], lane: Lane) -> str | None:
        """Wait for a handler; returns what to tell the sender of its failure."""
        try:
            await handling
        except MessageRefusedError as error:
            LOG.info("a %s message from %s is refused: %s", lane.name, self._address, error)
            return str(error)
        except Exception:  # the handler is the caller's; its failure is logged here and told to the sender
            LOG.exception("the handler of a %s message from %s failed", lane.name, self._address)
            return FAILED_HANDLER
        return None


@contextlib.asynccontextmanager
async def _closing(chunks: AsyncIterator[object]) -> AsyncIterator[None]:
    """Close what makes chunks, as soon as nobody asks for more, if it can be closed."""
    try:
        yield
    finally:
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()
