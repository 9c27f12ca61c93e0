"""Private sessions of deployments: who talks with whom is arranged here, and what clients have signed is counted.

The words go past the coordinator (``protocol.private``). What it knows of a session is whose it is, when, and how much.
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Protocol

from common.errors import BadSignatureError
from common.untrusted_text import untrusted
from coordinator.domain.job import Job
from coordinator.domain.serving import NodeUsage
from coordinator.errors import ConflictError, GoneError, NotFoundError, TooManyError, UnavailableError
from coordinator.services.core.context import Context
from coordinator.services.network.nodes import Nodes, NodeSession
from coordinator.services.network.relays import Relays
from coordinator.services.serving.homes import Homes
from coordinator.store.ports import col
from protocol.private.sessions import (
    LIFE_S,
    OPEN_S,
    SESSION_TOKENS,
    PrivateAnswer,
    PrivateCounts,
    PrivateOffer,
    PrivateTicket,
    SignedCounts,
)
from protocol.private.signed_counts import check_counts
from protocol.rest.private import NewPrivateSession, PrivateSession

ANSWER_S = 30.0  # For a node to look for its addresses.
LATE_S = 3600.0  # After a session's life its node may be away for so long, and still bring what was signed.
MAX_SESSIONS = 16_384  # That are remembered, some 1 KB each; those that nobody began are forgotten after ``OPEN_S``.
MAX_SESSIONS_EACH = 512  # Of a deployment.

LOG = logging.getLogger(__name__)


@dataclass
class _Session:
    """Of one client and one node. ``home``: the replica's name; ``counted``: the newest that was signed."""

    ticket: PrivateTicket
    node: str
    lease: str
    fence: int
    home: str
    until: float
    answer: asyncio.Future[PrivateAnswer] | None = None
    counted: SignedCounts = field(default_factory=lambda: SignedCounts(0, 0, 0, bytes(64)))


class PrivatePort(Protocol):
    """How clients come to sessions. Raises ``coordinator.errors``."""

    async def open(self, job: str, wanted: NewPrivateSession) -> PrivateSession:
        """Name a node of a deployment that an offer can be made to."""

    async def offer(self, job: str, session: str, envelope: bytes) -> bytes:
        """The node's sealed answer to a sealed offer, which is taken once."""


class PrivateSessions:
    """Implements ``PrivatePort``, and hears what nodes say of sessions."""

    def __init__(self, context: Context, nodes: Nodes, homes: Homes, relays: Relays) -> None:
        self._context, self._nodes, self._homes, self._relays = context, nodes, homes, relays
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    async def open(self, job: str, wanted: NewPrivateSession) -> PrivateSession:
        """Name a node, and grant the session's client so many tokens.

        Raises:
            NotFoundError: it is no deployment. ConflictError: it is at rest or over, or none of its other nodes answers.
            UnavailableError: no node holds the model yet. TooManyError: too many sessions were begun just now.
        """
        self._context.check_own(job)
        async with self._context.store.transaction() as tx:
            found = await tx.find(Job, col(Job.id).equals(job))
        if not found or found[0].spec.serve is None:
            raise NotFoundError(f"job {job} is no deployment: only those have private sessions", "job")
        self._forget(job)
        home = self._homes.for_session(found[0], frozenset(wanted.avoid), wanted.node)
        session = self._nodes.session(home.lease.node)
        if session is None:
            raise UnavailableError("the node has just left: ask again")
        now = self._context.clock.time()
        ticket = PrivateTicket(self._context.entropy(16).hex(), job, wanted.client, SESSION_TOKENS, int(now) + OPEN_S)
        until = self._context.clock.now() + OPEN_S
        lease, beside = home.lease, tuple(seat.node for seat in home.seats[1:])
        self._sessions[ticket.session] = _Session(ticket, lease.node, lease.id, lease.fence, home.name, until)
        self._context.metrics.count("private_sessions_total")
        return PrivateSession(
            ticket.session,
            lease.node,
            session.profile.name,
            self._relays.servers(self._relays.order(lease.node), wanted.client, job),
            ticket.tokens,
            ticket.expires,
            len(home.seats),
            beside,
            tuple(untrusted("") if (one := self._nodes.session(node)) is None else one.profile.name for node in beside),
        )

    async def offer(self, job: str, session: str, envelope: bytes) -> bytes:
        """Carry an offer to the session's node, and its answer back; neither can be read here, or changed unseen.

        Raises:
            NotFoundError: there is no such session of this deployment. ConflictError: an offer was made in it before.
            GoneError: its time is over. UnavailableError: the node says nothing, or why it does not talk.
        """
        known = self._sessions.get(session)
        if known is None or known.ticket.job != job:
            raise NotFoundError(f"deployment {job} has no private session {session[:40]!r}: ask for one", "session")
        if known.answer is not None:
            raise ConflictError("an offer was made in this session before: ask for another session", "session")
        if self._context.clock.time() > known.ticket.expires:
            raise GoneError(f"the session was to begin within {OPEN_S} s: ask for another one")
        node = self._nodes.session(known.node)
        if node is None:
            raise UnavailableError("the node has left: ask for another session")
        known.answer = asyncio.get_running_loop().create_future()
        known.until = self._context.clock.now() + LIFE_S + LATE_S
        node.send(PrivateOffer(known.lease, known.fence, known.ticket, envelope))
        try:
            async with self._context.clock.timeout(ANSWER_S):
                answer = await asyncio.shield(known.answer)
        except TimeoutError:
            raise UnavailableError(f"the node has said nothing for {ANSWER_S:g} s: ask for another session") from None
        if not answer.envelope:
            raise ConflictError(f"the node does not talk: {answer.reason}", "session")
        return answer.envelope

    # --- what nodes say -------------------------------------------------------------------------------------------------

    def answered(self, session: NodeSession, message: PrivateAnswer) -> None:
        """A node's answer to an offer."""
        known = self._sessions.get(message.session)
        if known is None or known.node != session.node or known.answer is None or known.answer.done():
            self._context.metrics.count("reports_stale_total")
            return
        known.answer.set_result(message)

    def counted(self, session: NodeSession, message: PrivateCounts) -> None:
        """What a client has signed for: its growth counts as that of ordinary answers does."""
        known, counts = self._sessions.get(message.session), message.counts
        if known is None or known.node != session.node:
            self._context.metrics.count("reports_stale_total")
            return
        try:
            check_counts(counts, known.ticket.client, known.ticket.session, known.node)
        except BadSignatureError as error:
            self._context.metrics.count("private_counts_refused_total")
            LOG.warning("node %s says counts that nobody signed: %s", session.node, error)
            return
        before = known.counted
        if not counts.follows(before) or counts.prompt + counts.tokens > 2 * known.ticket.tokens:
            self._context.metrics.count("reports_stale_total")
            return
        usage = NodeUsage(counts.answers - before.answers, counts.prompt - before.prompt, counts.tokens - before.tokens)
        if usage == NodeUsage():
            return
        known.counted = counts
        leaf = hashlib.sha256(counts.signature).digest()
        if not self._homes.add_private(known.ticket.job, known.home, known.lease, usage, leaf):
            self._context.metrics.count("private_counts_refused_total")
            LOG.warning("node %s brings counts of a replica that is paid off", session.node)

    def _forget(self, job: str) -> None:
        """Make room.

        Raises:
            TooManyError: there is none.
        """
        now = self._context.clock.now()
        for name in [name for name, one in self._sessions.items() if one.until < now]:
            del self._sessions[name]
        own = sum(one.ticket.job == job for one in self._sessions.values())
        if own >= MAX_SESSIONS_EACH or len(self._sessions) >= MAX_SESSIONS:
            raise TooManyError(f"{own} private sessions of this deployment are remembered already", float(OPEN_S))
