"""Who is here: connections of nodes, checked at the door, and what each has been told.

A node is its key. Of two connections with one key the newest wins; a key that changes hands twice within a minute is in use on
two machines, and the next one is refused for a minute.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from common.errors import IdentityError
from common.untrusted_text import untrusted
from coordinator.domain.audits.rate import TRUST
from coordinator.domain.lease import Lease
from coordinator.domain.placement import Candidate
from coordinator.errors import ForbiddenError
from coordinator.services.core.context import Context
from coordinator.services.core.leases import Leases
from coordinator.services.core.trace_parts import trace_of
from coordinator.services.network.admission import FLIP_S, Crowd, CrowdedError, KeyFlips
from coordinator.services.network.arrivals import Arrivals, KeptNode
from coordinator.services.network.claims import Claims, spares
from coordinator.services.network.far_nodes import Elsewhere, NobodyBeside, NodesBeside
from coordinator.services.network.lenders import LOOK_S, Lenders
from coordinator.services.network.speeds import NodeSpeeds
from coordinator.services.network.standings import NodeStandings
from coordinator.services.network.welcomes import Welcomes
from coordinator.services.payments.chain import ChainPort
from coordinator.store.records import NodeRecord
from protocol import identity
from protocol.codec import encode
from protocol.node import (
    CARD_CONTEXT,
    HELLO_CONTEXT,
    PROTOCOL,
    Assign,
    Beat,
    Command,
    CoordinatorMessage,
    Hello,
    JobEarned,
    NodeProfile,
    OfferedIceServer,
    Refused,
    Unanswered,
)
from protocol.task import EVASION_AGAIN_S, StopTask, TaskCommand

MAX_CARDS = 16  # Of one computer.
RETRY_SOON = 5.0  # Where the database is away, which it is for seconds.
UNNAMED_RETRY = 30.0  # An auditor waits for its operator, who has to start the coordinator again.
AWAY_S = 30 * 86_400.0  # An auditor of the operator's that was here no longer ago is expected back.
MAX_ACCOUNTS_KEPT = 200  # Of one connection, so that it is not told twice what it knows.
DRAINS, MAY_NOT_LEND = "the operator drains it", "it may not lend here any more"
TAKEN_OVER = "another connection with this key has taken over"
BY_OPERATOR = "by this network's operator: "  # How the stored reason of such a ban begins; audits' begin otherwise.
FOUND_FALSE = "an audit found that its work was not what it had committed to"
NOT_ADMITTED_S = (
    60.0  # Whoever is put on the list meanwhile, or invited, is let in soon; one greeting a minute is little.
)
ASK_AGAIN_S = 900.0  # An operator may let a node in again; then it comes back without a hand at the machine.
MAX_NODES_ONLINE = 20_000  # Beyond it one process answers heartbeats late; see docs/how-to/operate.md for several.


def candidate_of(node: str, payout: str, profile: NodeProfile, flops: float | None = None) -> Candidate:
    """A node as somebody who may be given work; ``flops``: operations a second, where not as it says."""
    return Candidate(
        node,
        payout,
        profile.memory_mb,
        profile.flops if flops is None else flops,
        profile.env_class,
        profile.floor,
        card=profile.kind == "cuda",
        beside_mb=profile.beside_mb,
    )


def why_banned(record: NodeRecord) -> str:
    """As the owner of a banned node is told."""
    return record.reason if record.reason.startswith(BY_OPERATOR) else FOUND_FALSE


class NodeRefusedError(Exception):
    """A connection is not taken. ``retry_seconds`` None: not without a change by the owner."""

    def __init__(self, reason: str, retry_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_seconds = retry_seconds


class NodeSession:
    """One connection of a node. ``send`` never waits; ``close`` ends the connection with a reason.

    Attributes:
        began: when it was opened, in Unix seconds. ``address``: where it comes from; empty: not said. ``place``: by age.
        rounds: of its work that were verified since its last fault.
        operator: it is one of the operator's own auditors: it needs no stake, and never gets a seat.
        begun: its leases have been looked up since it came. ``traces``: it wants to know what commands are part of.
        unhandled: messages of the node that have arrived and wait for their turn here.
        stake: what of it can be taken, as last seen (``stakes``); ``stake_known``: it was seen since the node came.
        leaving: it is about to go to another cell.
    """

    def __init__(
        self, hello: Hello, token: str, send: Callable[[CoordinatorMessage], None], close: Callable[[str], None]
    ) -> None:
        self.node = hello.node
        self.payout = hello.payout
        self.profile = hello.profile
        self.token = token
        self.stake = 0
        self.stake_known = False
        self.began, self.place = 0.0, 0
        self.address = ""
        self.rounds = 0
        self.begun = asyncio.Event()
        self.operator = False
        self._accepting, self.leaving = True, False
        self.traces = hello.traces
        self.unhandled = 0
        self.send = send
        self.close = close
        self._accounts: dict[str, JobEarned] = {}
        self._said: dict[str, Sequence[TaskCommand]] = {}  # All that held when it was told last.
        self._told: dict[str, set[bytes]] = {held.lease: set() for held in hello.leases}

    @property
    def accepting(self) -> bool:
        """Whether new leases are welcome."""
        return self._accepting and not self.leaving

    @accepting.setter
    def accepting(self, accepting: bool) -> None:
        self._accepting = accepting

    def knows(self, lease: str) -> bool:
        """Whether the node was assigned this lease, on this connection or before."""
        return lease in self._told

    def assign(self, message: Assign) -> None:
        """Hand over a lease."""
        self._told[message.lease] = set()
        self._said.pop(message.lease, None)
        self.send(message)

    def tell(self, lease: Lease, commands: Sequence[TaskCommand]) -> None:
        """Send the commands that this connection has not carried yet, in order."""
        if self._said.get(lease.id) == commands:
            return
        told = self._told.setdefault(lease.id, set())
        fresh: set[bytes] = set()
        for command in commands:
            digest = hashlib.sha256(encode(command)).digest()
            fresh.add(digest)
            if digest not in told:
                self.send(Command(lease.id, lease.fence, command, trace_of(lease.job, command) if self.traces else ""))
        self._told[lease.id] = fresh  # What no longer applies need not be remembered.
        self._said[lease.id] = commands

    def account(self, earned: JobEarned) -> None:
        """Tell the node how its work in a job stands, where it does not know that already."""
        if self._accounts.get(earned.job) != earned:
            self._accounts.pop(earned.job, None)
            self._accounts[earned.job] = earned
            if len(self._accounts) > MAX_ACCOUNTS_KEPT:
                del self._accounts[next(iter(self._accounts))]
            self.send(earned)

    def stop(self, lease: Lease, reason: str) -> None:
        """End a task."""
        self._said.pop(lease.id, None)
        if self._told.pop(lease.id, None) is not None:
            self.send(Command(lease.id, lease.fence, StopTask(untrusted(reason))))


class Nodes:
    """The nodes that are connected now, and the record of all that ever were."""

    def __init__(
        self,
        context: Context,
        leases: Leases,
        chain: ChainPort,
        coordinator: str,
        ice_servers: Callable[[str], tuple[OfferedIceServer, ...]],
        key: identity.NodeKey | None = None,
        beside: NodesBeside | None = None,
    ) -> None:
        """``key``: the coordinator's own, by which it proves who it is to nodes that ask; None: it proves nothing.

        ``beside``: nodes of other cells, where there are any.
        """
        self._context = context
        self.lenders = Lenders(context)
        self.standings = NodeStandings(context, why_banned)
        self._sessions: dict[str, NodeSession] = {}
        self.elsewhere = Elsewhere(beside or NobodyBeside(), self._sessions)
        standing_by = partial(spares, leases, context.config.auditors)
        self.claims = Claims(context.clock, standing_by, self.elsewhere.names)
        self._leases = leases
        self._welcomes = Welcomes(context.config, chain, coordinator, ice_servers, key)
        self._tokens: dict[str, str] = {}
        self._flips = KeyFlips(context.clock)
        self._computers: dict[str, str] = {}  # Of further cards: of those that are here, hold something, or are banned.
        self._cards: dict[str, set[str]] = {}  # The same by computers, for greetings: there may be 20,000 nodes.
        self._crowd: Crowd[NodeSession] = Crowd(context.clock, context.cell.of)
        self._arrivals = Arrivals(context, self._crowd, self._is_known)
        self._speeds = NodeSpeeds()
        self._came = 0  # Connections so far.
        self._idle: tuple[tuple[int, int, int], Sequence[NodeSession]] = ((-1, -1, -1), ())

    async def recover(self) -> None:
        """Read who may lend, who is banned or draining, and who has evaded an audit lately."""
        await self.lenders.recover()
        for record in await self.standings.recover(sorted(self._leases.busy())):
            self.know(record.address, record.profile.computer)

    async def enter(
        self,
        hello: Hello,
        nonce: bytes,
        host: str,
        send: Callable[[CoordinatorMessage], None],
        close: Callable[[str], None],
        address: str = "",
    ) -> NodeSession:
        """Check a Hello and open the node's session, with Welcome as its first message.

        Args:
            address: where it comes from; empty: not said, and not counted.
        Raises:
            RefusedError: with the reason for the owner.
        """
        self._check(hello, nonce, host)
        operator = hello.node in self._context.config.auditors
        began = self._context.clock.now()
        try:
            record, known = await self._admit(hello, address)
        finally:
            self._crowd.answered(self._context.clock.now() - began)
        if operator:
            self.standings.own[hello.node] = record
        old = self._sessions.get(hello.node)
        if old is not None:
            self._flips.note(hello.node)
            old.close(TAKEN_OVER)
            self.leave(old)
        session = NodeSession(hello, self._context.cell.token(self._context.entropy(24).hex()), send, close)
        session.stake, session.began = record.stake, self._context.clock.time()
        session.operator, session.rounds = operator, record.rounds
        self._came += 1
        session.place = self._came
        session.stake_known = operator or self._context.config.min_stake == 0
        session.address = address
        self._sessions[hello.node] = session
        self._speeds.shows(hello.node, session.profile.env_class, known=session.rounds >= TRUST)
        strangers = self._crowd.came(session, address, known=known)
        if (idle := next((one for one in strangers if not self._leases.of_node(one.node)), None)) is not None:
            idle.close("many whom nobody knows yet want to come in, most of them from your address: come back later")
            self.leave(idle)
        self._leases.came(hello.node)
        self._tokens[session.token] = hello.node
        self._context.metrics.count("connections_total")
        send(self._welcomes.of(session.token, hello, host, operator))
        evaded = max(record.evaded, self.standings.evaded.get(hello.node, 0.0))
        if evaded > max(0.0, session.began - EVASION_AGAIN_S):
            send(Unanswered(evaded))
        gone = self._leases.renew(hello.node, hello.leases)
        if gone:
            send(Beat(self._context.config.heartbeat_seconds, gone))
        self._context.bus.publish(hello.node)
        return session

    def leave(self, session: NodeSession) -> None:
        """The connection is gone; leases run on until they expire, which is sooner where it does not come back."""
        self._tokens.pop(session.token, None)
        if self._sessions.get(session.node) is session:
            del self._sessions[session.node]
            self._speeds.left(session.node)
            self._crowd.left(session, session.address)
            if session.operator:
                self.standings.left(session.node)
            self._leases.cut(session.node)
            self._context.bus.publish(session.node)

    def is_elsewhere(self, node: str, seconds: float) -> None:
        """A node came into another cell so long ago: of two connections with one key the newest wins, wherever it is."""
        session = self._sessions.get(node)
        if session is not None and self._context.clock.time() - session.began > seconds:
            self._flips.note(node)
            session.close(TAKEN_OVER)
            self.leave(session)

    async def greeting(self, address: str) -> Callable[[], None]:
        """Hold a connection until it has said who it is (``Crowd.greeting``)."""
        return await self._crowd.greeting(address)

    def session(self, node: str) -> NodeSession | None:
        """The node's connection, if it is here."""
        return self._sessions.get(node)

    def sessions(self) -> tuple[NodeSession, ...]:
        """Everybody who is here."""
        return tuple(self._sessions.values())

    def late(self, node: str, deadline: float, now: float) -> bool:
        """Whether a node has let a deadline of an audit pass.

        What has arrived is in time, however long it waits here for its turn, and who has just come back may say again what went
        into a connection that broke. A node that always has more to say, or always comes back, cannot stretch a deadline for
        ever: to twice the time of an audit. Nobody is late while this process has just stood still: it did not listen.
        """
        if now <= deadline or self._leases.back():
            return False
        session, config = self._sessions.get(node), self._context.config
        waits = session is not None and (session.unhandled > 0 or 0 <= now - session.began < config.lease_seconds)
        return now > deadline + (config.audit_seconds if waits else 0.0)

    def authorise(self, token: str) -> str:
        """The node that a token of a Welcome belongs to.

        Raises:
            ForbiddenError: no connection has this token now.
        """
        try:
            return self._tokens[token]
        except KeyError:
            raise ForbiddenError("the token is not valid (any more): it ends with the node's connection") from None

    def candidates(self, also: Sequence[str] = ()) -> list[Candidate]:
        """Nodes that may take a seat: here and free, or free apart from what they hold as ``also``."""
        named = [self._sessions[node] for node in {*also} & self._sessions.keys()]
        free = [session for session in self._free() if session.accepting and session.node not in also]
        every = sorted([*free, *named], key=lambda session: session.place) if named else free
        return [candidate for candidate in self._lent(every) if not self.is_draining(candidate.node)]

    def idle(self) -> list[NodeSession]:
        """Who may be given a seat here and now."""
        free = [session for session in self._free() if session.accepting and self.lends(session)]
        return [session for session in free if not self.is_draining(session.node)]

    def seatable(self) -> list[Candidate]:
        """Those of all cells who may be given seats, once they are free: who drains gets none."""
        here = [candidate for candidate in self.everybody() if not self.is_draining(candidate.node)]
        return [*here, *self.elsewhere.seatable()]

    def everybody(self) -> list[Candidate]:
        """All nodes that are here and lend themselves, busy or not."""
        return self._lent(self._sessions.values())

    def everywhere(self) -> list[Candidate]:
        """The same, and those of other cells that may be given seats."""
        return [*self.everybody(), *self.elsewhere.seatable()]

    def runs_containers(self, node: str) -> bool:
        """Whether a node that is here, or in another cell, runs those."""
        if (session := self._sessions.get(node)) is not None:
            return session.profile.containers
        return (far := self.elsewhere.get(node)) is not None and far.containers

    def known(self, nodes: Iterable[str]) -> dict[str, Candidate]:
        """Those of these nodes that are here and lend themselves."""
        here = [self._sessions[node] for node in nodes if node in self._sessions]
        return {candidate.node: candidate for candidate in self._lent(here)}

    def _free(self) -> Sequence[NodeSession]:
        """Who is here and holds nothing. All jobs that look for spares ask, so it is looked up where somebody came or went."""
        stands = (self._leases.changes, self._came, len(self._sessions))
        if self._idle[0] != stands:
            self._idle = stands, [one for one in self._sessions.values() if not self._leases.is_busy(one.node)]
        return self._idle[1]

    def _lent(self, sessions: Iterable[NodeSession]) -> list[Candidate]:
        return [self.candidate(session) for session in sessions if self.lends(session)]

    def lends(self, session: NodeSession) -> bool:
        """Whether a node may be given work at all: it has the stake, is not banned, and does not only look at others' work."""
        return session.node not in self.standings.banned and self._is_staked(session) and not session.operator

    def short_of_stake(self, node: str) -> bool:
        """Whether a node is here with less than the least stake, as the ledger has said since it came."""
        session = self._sessions.get(node)
        if session is None or session.operator:
            return False
        return session.stake_known and session.stake < self._context.config.min_stake

    def _is_staked(self, session: NodeSession) -> bool:
        return session.stake_known and session.stake >= self._context.config.min_stake

    def speed(self, node: str) -> float | None:
        """Operations a second that a node surely does: those of its last round, or of its benchmark; None: it is not here."""
        session = self._sessions.get(node)
        return None if session is None else self._speeds.sure(node, session.profile.flops)

    def auditors(self) -> list[Candidate]:
        """The operator's own auditors that are here, busy or not."""
        own = self.standings.own  # Few, of many; each job asks.
        here = [self._sessions[node] for node in own if node in self._sessions]
        return [self.candidate(session) for session in here if session.operator]

    def known_auditors(self) -> list[Candidate]:
        """The operator's own auditors that are here or were lately, as they last said to be."""
        since, own = self._context.clock.time() - AWAY_S, self.standings.own
        away = [record for node, record in own.items() if node not in self._sessions and record.seen > since]
        return [*self.auditors(), *(candidate_of(record.address, record.payout, record.profile) for record in away)]

    def candidate(self, session: NodeSession) -> Candidate:
        """A node that is here, as somebody who may be given work."""
        profile, known = session.profile, session.operator or session.rounds >= TRUST
        speed = self._speeds.planned(session.node, profile.flops, profile.env_class, known=known)
        return candidate_of(session.node, session.payout, profile, speed)

    def stands(self, node: str, rounds: int) -> None:
        """So many rounds of a node's work were verified since its last fault; the caller stores it."""
        if node in self._sessions:
            self._sessions[node].rounds = rounds
            self._speeds.shows(node, self._sessions[node].profile.env_class, known=rounds >= TRUST)
            if rounds > 0:
                self._crowd.known(self._sessions[node], self._sessions[node].address)

    def timed(self, node: str, operations: float, busy: float) -> None:
        """Learn from a round how quick a node is; ``operations`` by the coordinator's own arithmetic."""
        session = self._sessions.get(node)
        if session is not None and busy > 0:
            self._speeds.timed(node, session.profile.flops, operations, busy)

    def is_banned(self, node: str) -> bool:
        """Whether the node may not come back."""
        return node in self.standings.banned

    def is_draining(self, node: str) -> bool:
        """Whether the node gets no new seat, and gives those that it has to others as these come."""
        return bool(self.why_draining(node))

    def why_draining(self, node: str) -> str:
        """By an order, or since it may not lend any more; empty: it may have seats."""
        return DRAINS if node in self.standings.draining else MAY_NOT_LEND if self.lenders.why_not(node) else ""

    async def watch_lenders(self) -> None:
        """For ever: part with those who may not lend any more."""
        while True:
            await self.part()
            await self._context.clock.sleep(LOOK_S)

    async def part(self) -> None:
        """See who may lend now; who may not leaves, and is told why, once nothing is awaited of it."""
        await self.lenders.look()
        for session in self.sessions():
            if (why := self.lenders.why_not(session.node)) and not self._leases.holds(session.node):
                session.send(Refused(untrusted(why), NOT_ADMITTED_S))
                session.close(MAY_NOT_LEND)
                self.leave(session)

    def drain(self, node: str) -> None:
        """Give a node no new seat; the caller stores it."""
        self.standings.draining.add(node)

    def undrain(self, node: str) -> None:
        """Let a node have seats again; the caller stores it."""
        self.standings.draining.discard(node)

    def unban(self, node: str) -> None:
        """Let a node come back; the caller stores it."""
        self.standings.banned.pop(node, None)

    def ban(self, node: str, reason: str) -> None:
        """Send a node away, and all cards of its computer, until it is let in again; the caller stores it.

        Args:
            reason: as its owner is told.
        """
        self.standings.banned[node] = reason
        computer = self._computers.get(node, node)
        for one in sorted(self._of_computer(computer)):  # A key of a card costs nothing, so the whole computer goes.
            if (session := self._sessions.get(one)) is not None:
                session.close(f"banned {reason}" if reason.startswith(BY_OPERATOR) else reason)
                self.leave(session)

    def unanswered(self, node: str, at: float) -> None:
        """Tell a node that it has evaded an audit, now and whenever it comes back; the caller stores it."""
        self.standings.evaded[node] = at
        session = self._sessions.get(node)
        if session is not None:
            session.send(Unanswered(at))

    def _check(self, hello: Hello, nonce: bytes, host: str) -> None:
        if hello.protocol != PROTOCOL:
            raise NodeRefusedError(f"protocol {hello.protocol} is not spoken here, only {PROTOCOL}: update the agent")
        try:
            identity.verify(hello.node, hello.signature, HELLO_CONTEXT, nonce, host.encode())
            identity.parse_address(hello.payout)
            if (computer := hello.profile.computer) is not None:
                identity.verify(computer, hello.vouched, CARD_CONTEXT, hello.node.encode())
        except IdentityError as error:
            raise NodeRefusedError(f"the greeting does not hold: {error}") from error
        known = self._computers.get(hello.node)
        if known is not None and hello.profile.computer != known:  # Else a ban to come would miss the rest of it.
            raise NodeRefusedError(
                f"{hello.node} was here as a card of {known}, and stays one: start the agent of that"
            )
        self._check_beside(hello)
        if (banned := self._banned_of(hello)) is not None:
            raise _of_banned(banned, self.standings.banned[banned])
        if hello.profile.auditor and hello.node not in self._context.config.auditors:
            raise NodeRefusedError(
                f"{hello.node} is not named as one of this coordinator's auditors: start it with --auditor {hello.node}",
                UNNAMED_RETRY,
            )
        if len(self._sessions) >= MAX_NODES_ONLINE and hello.node not in self._sessions:
            raise NodeRefusedError(f"{MAX_NODES_ONLINE:,} nodes are connected, which is all that fit", FLIP_S)
        twice = hello.node in self._sessions or self._context.cell.of > 1  # Or elsewhere: ``is_elsewhere``.
        if twice and self._flips.often(hello.node):
            raise NodeRefusedError(
                f"the key of {hello.node} is in use on another machine: give each machine a key of its own",
                FLIP_S,
            )

    def _check_beside(self, hello: Hello) -> None:
        """Nodes of one computer have one owner, and are as many as a computer has cards."""
        computer = hello.profile.computer or hello.node
        beside = [self._sessions[node] for node in self._of_computer(computer) - {hello.node} if node in self._sessions]
        if len(beside) >= MAX_CARDS:
            raise NodeRefusedError(
                f"{MAX_CARDS} cards of the computer {computer} are here, which is all it may lend", FLIP_S
            )
        if any(one.payout != hello.payout for one in beside):
            raise NodeRefusedError(
                f"all cards of the computer {computer} are paid into one wallet: start its agent anew", FLIP_S
            )

    def _banned_of(self, hello: Hello) -> str | None:
        """Who of a node's computer is banned: the node itself, the computer, or a card of it; None: nobody."""
        named = {hello.node, *self._of_computer(hello.profile.computer or hello.node)}
        return min(named & self.standings.banned.keys(), default=None)

    def _of_computer(self, computer: str) -> set[str]:
        """The computer and its further cards, as far as they are known."""
        return {computer, *self._cards.get(computer, ())}

    def know(self, node: str, computer: str | None) -> None:
        """Know which computer a node is a further card of; None: it is one of its own."""
        self.lenders.is_card_of(node, computer)
        if (before := self._computers.pop(node, None)) is not None:
            self._cards[before].discard(node)
            if not self._cards[before]:
                del self._cards[before]
        if computer is not None:
            self._computers[node] = computer
            self._cards.setdefault(computer, set()).add(node)

    async def _admit(self, hello: Hello, address: str) -> KeptNode:
        """What is kept of who may lend, with whether anybody knows it; of who is refused nothing is."""
        learnt = hello.node not in self._computers
        self.know(hello.node, hello.profile.computer)
        try:
            if (why := await self.lenders.enter(hello.node, hello.invitation)) and not self._leases.holds(hello.node):
                raise NodeRefusedError(why, NOT_ADMITTED_S)
            admitted = await self._kept(hello, address)
        except BaseException:
            if learnt and hello.node not in self._sessions:
                self.know(hello.node, None)
            raise
        self.know(hello.node, hello.profile.computer)  # Another greeting of this key may have been refused meanwhile.
        return admitted

    async def _kept(self, hello: Hello, address: str) -> KeptNode:
        try:
            kept = await self._arrivals.kept(hello, address)
        except CrowdedError as crowded:
            raise NodeRefusedError(crowded.reason, crowded.retry_s) from None
        if kept.record.banned:  # By another cell, a moment ago.
            raise _of_banned(hello.node, why_banned(kept.record))
        return kept

    def _is_known(self, node: str, record: NodeRecord | None) -> bool:
        if node in self._context.config.auditors or self._leases.holds(node):
            return True
        least = self._context.config.min_stake
        return record is not None and (record.rounds > 0 or record.earned > 0 or 0 < least <= record.stake)


def _of_banned(node: str, why: str) -> NodeRefusedError:
    """``node``: who is banned; the computer, or another card, of whom this is said."""
    decided = why.startswith(BY_OPERATOR)
    text = f"node {node} is banned{' ' if decided else ': '}{why}"
    return NodeRefusedError(text, ASK_AGAIN_S if decided else None)
