"""From a relayed link to a direct one, while the relayed one carries on.

A way that was closed when two homes met may be open a minute later: a firewall's mapping has gone, a laptop has come home, the
first packets were lost. The side that makes offers tries again now and then, with a second connection that knows no relay::

    offering side                    the other
              ---- UPGRADE ---->
              <---- ANSWER -----
              ==== WebRTC ====      without relays, both compare the certificate with the signed fingerprint

Once it is open the link moves over, as after a loss but without one: what had not arrived is announced again.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable

from common.errors import ConnectError, TransportError
from transport.ice.context import PeerContext
from transport.ice.rtc import RtcConnection
from transport.ice.sdp import Description
from transport.peer.signalling import Opened, SignalBody, SignalKind

LOG = logging.getLogger(__name__)

MOST_PAUSE_S = 900.0  # A try costs some kilobytes; what did not work for an hour is not worth more.
CONNECT_S = 6.0  # Without relays, ICE has found a way by then or there is none.

Say = Callable[[SignalKind, Description | None, bytes, bytes], Awaitable[None]]
"""Seals and sends an envelope: kind, description, its nonce, the nonce that it answers."""


class DirectUpgrade:
    """This node's part in looking for a direct way to one peer."""

    def __init__(self, context: PeerContext, peer: str, say: Say, *, offers_here: bool) -> None:
        """Prepare; ``better`` does the work while a link is up."""
        self._context = context
        self._peer = peer
        self._say = say
        self._offers_here = offers_here
        self._nonce = b""
        self._answer: asyncio.Future[Opened] | None = None
        self._offer: Opened | None = None
        self._offered = asyncio.Event()
        self._found: tuple[RtcConnection, SignalBody, bytes] | None = None

    def take_offer(self, opened: Opened) -> None:
        """The peer proposes a direct connection; without a link that could move over it is forgotten."""
        self._offer = opened
        self._offered.set()

    def take_answer(self, opened: Opened) -> bool:
        """Whether it answers this side's proposal."""
        waiting = self._answer
        if waiting is None or waiting.done() or opened.body.reply_to != self._nonce:
            return False
        waiting.set_result(opened)
        return True

    def claim(self) -> tuple[RtcConnection, SignalBody, bytes]:
        """Hand over what ``better`` has found; the caller closes it.

        Returns:
            the open connection, the peer's envelope and the nonce of the offer.
        """
        assert self._found is not None, "better has returned"
        found, self._found = self._found, None
        return found

    async def discard(self) -> None:
        """Close what was found and nobody has claimed."""
        if self._found is not None:
            await self.claim()[0].close(self._context.limits.close_s)

    async def better(self, *, relayed: bool) -> None:
        """Return once a direct connection is open, never where there is none; ``claim`` or ``discard`` must follow.

        Args:
            relayed: the link goes through a relay.
        """
        self._offer = None
        self._offered.clear()
        pause = self._context.limits.upgrade_s
        while True:
            if not self._offers_here:
                await self._offered.wait()
            elif relayed:
                await self._context.clock.sleep(pause)
                pause = min(2 * pause, MOST_PAUSE_S)
            else:
                await asyncio.Event().wait()
            try:
                await self._try()
                return
            except (TransportError, OSError, TimeoutError) as error:
                LOG.info("no direct way to %s: %s", self._peer, str(error) or type(error).__name__)
            except Exception:  # aiortc and send_signal raise what they like, and the relayed link goes on
                LOG.exception("no direct way to %s", self._peer)

    async def _try(self) -> None:
        context = self._context
        connection = RtcConnection(
            context.ice_servers(self._peer),
            loopback=context.loopback,
            reach=context.reach,
            options=context.options,
            relayed=False,
        )
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(connection.close, context.limits.close_s)
            opened, nonce = await (self._propose(connection) if self._offers_here else self._agree(connection))
            assert opened.description is not None
            async with context.clock.timeout(CONNECT_S):
                if self._offers_here:
                    await connection.accept(opened.description)
                await connection.opened(opened.description.fingerprint)
            if connection.relayed:
                raise ConnectError("the peer proposes a relay where a direct way was wanted")
            self._found = connection, opened.body, nonce
            stack.pop_all()

    async def _propose(self, connection: RtcConnection) -> tuple[Opened, bytes]:
        self._nonce = secrets.token_bytes(16)
        self._answer = answer = asyncio.get_running_loop().create_future()
        await self._say(SignalKind.UPGRADE, await connection.offer(), self._nonce, b"")
        async with self._context.clock.timeout(self._context.limits.answer_s):
            return await answer, self._nonce

    async def _agree(self, connection: RtcConnection) -> tuple[Opened, bytes]:
        offer, self._offer = self._offer, None
        self._offered.clear()
        if offer is None or offer.description is None:
            raise ConnectError("woken without a proposal")
        answer = await connection.answer(offer.description)
        await self._say(SignalKind.ANSWER, answer, secrets.token_bytes(16), offer.body.nonce)
        return offer, offer.body.nonce
