"""The private sessions of a node: each is offered by the coordinator, which then hears of signed counts only."""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Sequence

from common.clock import Clock
from common.errors import TransportError
from common.untrusted_text import untrusted
from desktop.agent.base.log import LOG, printable
from desktop.agent.errors import NotConnectedError
from desktop.agent.jobs.private_talk import PrivateTalk, SessionOverError
from desktop.agent.jobs.tasks import HeldTask
from protocol.codec import MessageError
from protocol.identity import NodeKey
from protocol.private.sessions import PrivateAnswer, PrivateCounts, PrivateOffer, SignedCounts
from transport.ice.context import LinkOptions
from transport.ice.ice import IceServer
from transport.ice.network_profile import Reach
from transport.private.channel import PrivateChannel
from transport.private.meeting import MeetingNode, Surroundings

MAX_SESSIONS = 32  # At a time; a model answers sixteen requests together.
MAX_SEEN = 4096  # Sessions that were offered, each of which is taken once; tickets are good for a minute.
MAX_RECEIPTS = 64  # Sessions whose newest counts are sent again after a reconnect.
COUNTS_S = 1.0  # Between two counts of a session: a coordinator takes fifty messages a second from a node.


class PrivateDoor:
    """Of all leases of a node."""

    def __init__(
        self,
        key: NodeKey,
        clock: Clock,
        loopback: bool,
        options: LinkOptions,
        send: Callable[[PrivateAnswer | PrivateCounts], Awaitable[None]],
        spawn: Callable[[Coroutine[None, None, None], str], "asyncio.Task[None]"],
    ) -> None:
        """``send`` raises NotConnectedError; ``spawn`` starts what ends with its owner."""
        self._key, self._clock, self._loopback, self.options = key, clock, loopback, options
        self._send, self._spawn = send, spawn
        self._servers: tuple[IceServer, ...] = ()
        self._reach = Reach()
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._receipts: OrderedDict[str, SignedCounts] = OrderedDict()
        self._talks: dict[str, tuple[str, PrivateTalk]] = {}  # Lease and talk, by session.
        self._places = 0
        self._due: set[str] = set()  # Sessions whose newest counts are still to be sent.
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def sessions(self) -> int:
        """How many are open, or being opened."""
        return self._places

    def use(self, servers: Sequence[IceServer]) -> None:
        """Use these servers from now on."""
        self._servers = tuple(servers)

    async def send_again(self) -> None:
        """After a reconnect: counts are sums, so the same may come again."""
        for session, counts in list(self._receipts.items()):
            await self._send(PrivateCounts(session, counts))

    def offered(self, offer: PrivateOffer, task: HeldTask | None) -> None:
        """Somebody wants to talk. ``task``: of the offer's lease; None: it is not held."""
        self._begin(self._session(offer, task))

    def end(self, lease: str) -> None:
        """The lease is over, and with it its sessions."""
        for held, talk in self._talks.values():
            if held == lease:
                talk.end()

    async def aclose(self) -> None:
        """End all of them, and say what was signed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for session in tuple(self._due):
            if (counts := self._receipts.get(session)) is not None:
                await self._answer(PrivateCounts(session, counts))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = self._spawn(work, "private")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _session(self, offer: PrivateOffer, task: HeldTask | None) -> None:
        session = offer.ticket.session
        why = self._why_not(offer, task)
        if why or task is None:
            await self._answer(PrivateAnswer(session, reason=untrusted(why)))
            return
        self._places += 1
        try:
            channel = await self._met(offer)
            if channel is not None:
                await self._talk(offer, task, channel)
        except Exception:  # noqa: BLE001 - aiortc raises what it likes, and one session must not end the agent.
            LOG.exception("a private session failed")
        finally:
            self._places -= 1

    def _why_not(self, offer: PrivateOffer, task: HeldTask | None) -> str:
        ticket = offer.ticket
        if ticket.session in self._seen:
            return "this session was offered before: each is taken once"
        self._seen[ticket.session] = None
        if len(self._seen) > MAX_SEEN:
            self._seen.popitem(last=False)
        if task is None or task.assign.fence != offer.fence or not task.talks:
            return "this node holds no model under that lease, or not yet"
        if ticket.job != task.assign.job:
            return "the session is of another deployment than the lease"
        return f"this node has {MAX_SESSIONS} sessions already" if self._places >= MAX_SESSIONS else ""

    async def _met(self, offer: PrivateOffer) -> PrivateChannel | None:
        """The channel to the client; None: it has not come to one, and the client was told what it could be told."""
        around = Surroundings(self._servers, self._clock, self._loopback, self._reach, self.options)
        node = MeetingNode(self._key, offer.ticket, around)
        try:
            await self._answer(PrivateAnswer(offer.ticket.session, await node.answer(offer.envelope)))
            return await node.opened()
        except (TransportError, OSError) as error:
            LOG.info("no private session: %s", printable(str(error)))
            await node.aclose()
            await self._answer(PrivateAnswer(offer.ticket.session, reason=untrusted(str(error))))
            return None
        except BaseException:
            await node.aclose()
            raise

    async def _talk(self, offer: PrivateOffer, task: HeldTask, channel: PrivateChannel) -> None:
        session = offer.ticket.session
        talk = PrivateTalk(
            offer.ticket, self._key.address, channel, task, self._clock, lambda counts: self._signed(session, counts)
        )
        self._talks[session] = (offer.lease, talk)
        LOG.info("a private session begins (%s)", channel.pair)
        try:
            await talk.run()
        except SessionOverError as error:
            LOG.info("a private session ends: %s", error)
            with contextlib.suppress(TransportError):
                await talk.refuse(error.code, str(error))
        except (TransportError, MessageError, OSError) as error:
            LOG.info("a private session ends: %s", type(error).__name__)  # Its text may have the client's words.
        finally:
            del self._talks[session]
            await channel.aclose()

    def _signed(self, session: str, counts: SignedCounts) -> None:
        self._receipts[session] = counts
        self._receipts.move_to_end(session)
        if len(self._receipts) > MAX_RECEIPTS:
            self._receipts.popitem(last=False)
        if session not in self._due:
            self._due.add(session)
            self._begin(self._tell_counts(session))

    async def _tell_counts(self, session: str) -> None:
        """Say the newest counts of a session, in a while."""
        await self._clock.sleep(COUNTS_S)
        self._due.discard(session)
        if (counts := self._receipts.get(session)) is not None:
            await self._answer(PrivateCounts(session, counts))

    async def _answer(self, message: PrivateAnswer | PrivateCounts) -> None:
        with contextlib.suppress(NotConnectedError):
            await self._send(message)
