"""From signed envelopes to an open connection.

The node with the smaller address makes every offer; the other asks for one::

    smaller                          larger
              <---- REQUEST ----     (when it has something to send and no offer)
              ----- OFFER ----->
              <---- ANSWER -----
              ===== WebRTC =====     both compare the certificate with the signed fingerprint

A newer offer or request of the peer wins over what is under way, so a restarted peer is connected to at once. A request that was
sent before the present link came up is told by the offer that it names, and ignored.
"""

import asyncio
import contextlib
import math
import secrets
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, assert_never

from common.errors import ConnectError, LinkError, SignalError
from transport.ice.context import PeerContext
from transport.ice.rtc import RtcConnection
from transport.ice.sdp import Description
from transport.peer.direct_upgrade import DirectUpgrade
from transport.peer.signalling import Opened, SignalBody, SignalKind, seal

REQUEST_AGAIN_S = 1.5  # An offer takes half a second, with a relay by TCP one.
OFFER_ON_ITS_WAY_S = 1.0  # A request that comes later has not crossed the offer: the offer is lost.

_T = TypeVar("_T")


class SupersededError(LinkError):
    """A newer signal from the peer makes what is under way pointless."""


class Negotiation:
    """This node's part in agreeing with one peer on links, one at a time."""

    def __init__(self, context: PeerContext, peer: str, floor: Callable[[], int]) -> None:
        """Take the peer's address and what tells below which id every message to it is settled."""
        self._context = context
        self._peer = peer
        self._floor = floor
        self._offers_here = context.key.address < peer
        self._session = secrets.token_bytes(16)
        self._peer_session = b""
        self._nonce = b""
        self._offer: Opened | None = None
        self._answer: asyncio.Future[Opened] | None = None
        self._offered_at = 0.0
        self._requested = False
        self._signalled = asyncio.Event()
        self._upgrade = DirectUpgrade(context, peer, self._say, offers_here=self._offers_here)

    @property
    def asked(self) -> bool:
        """Whether the peer wants a link."""
        return self._offer is not None or self._requested

    def take(self, opened: Opened, *, busy: bool) -> None:
        """Take a checked envelope.

        Args:
            busy: a link is up or under way.
        Raises:
            SignalError: ``role``: it is not the sender's part to send it.
        """
        body = opened.body
        restarted = self._peer_session not in (b"", body.session)
        self._peer_session = body.session
        if (body.kind in (SignalKind.OFFER, SignalKind.UPGRADE)) is self._offers_here:
            raise SignalError("role", f"{self._peer} has the wrong part to send an {body.kind.value}")
        match body.kind:
            case SignalKind.OFFER:
                self._offer = opened
                self._signalled.set()
            case SignalKind.UPGRADE:
                self._upgrade.take_offer(opened)
            case SignalKind.ANSWER if self._upgrade.take_answer(opened):
                pass
            case SignalKind.ANSWER:
                waiting = self._answer
                if waiting is not None and not waiting.done() and body.reply_to == self._nonce:
                    waiting.set_result(opened)
            case SignalKind.REQUEST:
                if restarted or not busy or body.reply_to == self._nonce or self._offer_is_lost():
                    self._requested = True
                    self._signalled.set()
            case _:
                assert_never(body.kind)

    def _offer_is_lost(self) -> bool:
        """Whether the peer must have had the present offer by now, though it asks for one."""
        waiting = self._answer is not None and not self._answer.done()
        return waiting and self._context.clock.now() > self._offered_at + OFFER_ON_ITS_WAY_S

    async def signalled(self) -> None:
        """Return once the peer has signalled and nobody has acted on it yet, or this machine may have got another address."""
        with self._context.reach.watch.subscribe() as moved:
            jobs = [asyncio.create_task(event.wait()) for event in (self._signalled, moved)]
            try:
                await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for job in jobs:
                    job.cancel()
                await asyncio.gather(*jobs, return_exceptions=True)

    async def connect(self) -> tuple[RtcConnection, SignalBody]:
        """Open a connection to the peer; the caller closes it.

        Returns:
            the connection, and the peer's offer or answer.
        Raises:
            SupersededError: the peer has signalled anew.
            ConnectError: no connection came up.
            TimeoutError: the peer did not answer, or ICE found no path in time.
        """
        context = self._context
        servers = context.ice_servers(self._peer)
        connection = RtcConnection(servers, loopback=context.loopback, reach=context.reach, options=context.options)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(connection.close, context.limits.close_s)
            if self._offers_here:
                self._requested = False
                self._signalled.clear()
                work = self._make_offer(connection)
            else:
                work = self._answer_to(connection, await self._offer_while_gathering(connection))
            body = await self.unless_superseded(work)
            stack.pop_all()
        return connection, body

    @property
    def upgrade(self) -> DirectUpgrade:
        """The search for a direct way beside a relayed link."""
        return self._upgrade

    def claim_upgrade(self) -> tuple[RtcConnection, SignalBody]:
        """Take the direct connection that was found; the caller closes it."""
        connection, body, self._nonce = self._upgrade.claim()
        return connection, body

    async def _offer_while_gathering(self, connection: RtcConnection) -> Opened:
        """Wait for the peer's offer and gather candidates meanwhile: after a loss each round trip counts.

        Raises:
            ConnectError: no offer, or no address of our own.
            TimeoutError: the peer made none in time.
        """
        jobs = asyncio.ensure_future(self._next_offer()), asyncio.ensure_future(connection.gather())
        try:
            offer, _ = await asyncio.gather(*jobs)
            return offer
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    async def unless_superseded(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Do ``work`` unless the peer signals anew.

        Raises:
            SupersededError: it did.
        """
        task = asyncio.create_task(work)
        signal = asyncio.create_task(self._signalled.wait())
        try:
            await asyncio.wait((task, signal), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise SupersededError("the peer has signalled anew")
        finally:
            for job in (task, signal):
                job.cancel()
            await asyncio.gather(task, signal, return_exceptions=True)

    async def _make_offer(self, connection: RtcConnection) -> SignalBody:
        limits, clock = self._context.limits, self._context.clock
        self._nonce = secrets.token_bytes(16)
        self._answer = answer = asyncio.get_running_loop().create_future()
        self._offered_at = math.inf
        description = await connection.offer()
        self._offered_at = clock.now()
        await self._send(SignalKind.OFFER, description, nonce=self._nonce)
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
            async with self._context.clock.timeout(self._context.limits.answer_s):
                await self._ask_for_offer()
        self._signalled.clear()
        offer, self._offer = self._offer, None
        if offer is None:
            raise ConnectError("woken without an offer")
        return offer

    async def _ask_for_offer(self) -> None:
        """Request an offer, again and again: the coordinator may lose a request, or the offer that answers it."""
        while not self._signalled.is_set():
            await self._send(SignalKind.REQUEST, None, reply_to=self._nonce)
            with contextlib.suppress(TimeoutError):
                async with self._context.clock.timeout(REQUEST_AGAIN_S):
                    await self._signalled.wait()

    async def _answer_to(self, connection: RtcConnection, offer: Opened) -> SignalBody:
        assert offer.description is not None
        self._nonce = offer.body.nonce
        await self._send(SignalKind.ANSWER, await connection.answer(offer.description), reply_to=self._nonce)
        async with self._context.clock.timeout(self._context.limits.connect_s):
            await connection.opened(offer.description.fingerprint)
        return offer.body

    async def _say(self, kind: SignalKind, description: Description | None, nonce: bytes, reply_to: bytes) -> None:
        await self._send(kind, description, reply_to=reply_to, nonce=nonce)

    async def _send(
        self, kind: SignalKind, description: Description | None, *, reply_to: bytes = b"", nonce: bytes | None = None
    ) -> None:
        context = self._context
        envelope = seal(
            context.key,
            kind,
            self._peer,
            session=self._session,
            now=context.clock.time(),
            floor=self._floor(),
            reply_to=reply_to,
            description=description,
            nonce=nonce,
        )
        await context.send_signal(self._peer, envelope)
