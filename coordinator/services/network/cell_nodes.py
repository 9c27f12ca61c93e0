"""Nodes that go where they are lacked, among the cells of a network; and what other cells have decided of nodes.

::

    a job lacks nodes -> it plans with those of other cells, too, and claims them (claims) -> its cell tells
    -> the cell that has them lets them go, once nobody has them there -> they connect anew, and are led to the job's cell

So a node is given to a job by the one process that has its connection, and no table of free nodes is needed. A node that is to go
is given nothing for a turn, in which whatever was under way with it ends; then its connection ends, and its agent comes back at
once. Beside that idle nodes even out, so that a job finds some wherever it begins (``domain.cells``).
"""

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from coordinator.client.text import money
from coordinator.domain import cells as rules
from coordinator.domain.cells import CellState, IdleNode
from coordinator.services.core.context import Context
from coordinator.services.core.leases import Leases
from coordinator.services.network.far_nodes import FarNode
from coordinator.services.network.nodes import Nodes, NodeSession
from coordinator.services.network.standings import StoredStandings

TURN_S = 1.0
LOOK_TURNS = 2  # What is stored is looked at with every so many turns.
COME_BACK = "another part of this network needs this computer: it comes back at once"

LOG = logging.getLogger(__name__)


class ArrayNeeds(Protocol):
    """How many nodes arrays could use, and how many they have; ``ArrayStaffing`` knows it."""

    def needs(self) -> Mapping[str, tuple[int, int]]:
        """Of each array here."""

    def hear(self, needs: Mapping[str, tuple[int, int]]) -> None:
        """Of each array of another cell."""


def _none() -> int:
    return 0


class NodeExchange:
    """Of one cell with the others. ``run`` it where there are several."""

    def __init__(
        self,
        context: Context,
        nodes: Nodes,
        leases: Leases,
        arrays: ArrayNeeds,
        tell: Callable[[CellState], None],
        states: Callable[[], Mapping[int, CellState]],
        looks: Callable[[], int] = _none,
        stay: Collection[str] = frozenset(),
    ) -> None:
        """Nothing is told yet.

        Args:
            tell: lets the other cells know. ``states``: what they told within seconds.
            looks: how many looks wait for an auditor of the operator's.
            stay: auditors that run beside this coordinator, and know no other one.
        """
        self._context, self._nodes, self._leases, self._arrays = context, nodes, leases, arrays
        self._tell_others, self._states, self._looks, self._stay = tell, states, looks, stay
        self._aside: list[NodeSession] = []
        self._came = 0  # Connections that others have been told of.
        self._otherwise: dict[int, str] = {}  # Cells that let nodes in otherwise, and how, as the log has been told.

    async def run(self) -> None:
        """For ever."""
        while True:
            for turn in range(LOOK_TURNS):
                self.turn()
                if turn == 0:
                    await self.follow()
                await self._context.clock.sleep(TURN_S)

    def turn(self) -> None:
        """Hear what others lack, let nodes go, and tell how this cell does."""
        number = self._context.cell.number
        others = {other: state for other, state in self._states().items() if other != number}
        claims = {job: nodes for state in others.values() for job, nodes in state.claims.items()}
        self._nodes.claims.hear(claims)
        self._arrays.hear({job: need for state in others.values() for job, need in state.arrays.items()})
        self._compare(others)
        self._part()
        own_jobs = self._nodes.claims.kept_from(lambda job: not self._context.cell.has(job))
        idle = [session for session in self._nodes.idle() if session.node not in own_jobs]
        own = self._state(idle)
        self._set_aside(idle, own, others)
        self._tell_others(own)
        self._announce()

    def _compare(self, others: Mapping[int, CellState]) -> None:
        """Say once who lets nodes in otherwise: to the operator they are one network."""
        own = self._lets_in()
        otherwise = {cell: state.lets_in for cell, state in others.items() if state.lets_in not in ("", own)}
        said = "cell %d lets in %s, and this one %s: give all coordinators the same --who-may-lend and --min-stake"
        for cell, rule in otherwise.items():
            if self._otherwise.get(cell) != rule:
                LOG.warning(said, cell + 1, rule, own)
        self._otherwise = otherwise

    def _lets_in(self) -> str:
        config = self._context.config
        return f"{config.who_may_lend} with a stake of {money(config.min_stake)}"

    async def follow(self) -> None:
        """Act upon what other cells have decided of nodes, as if it had been decided here."""
        before, now = await self._nodes.standings.look()
        for node in sorted(now.banned.keys() - before.banned.keys()):
            self._nodes.know(node, now.records[node].profile.computer)
            self._nodes.ban(node, now.banned[node])
            self._leases.expire(lease.id for lease in self._leases.of_node(node))
        for node in before.banned.keys() - now.banned.keys():
            self._nodes.unban(node)
        for node in now.draining - before.draining:
            self._nodes.drain(node)
        for node in before.draining - now.draining:
            self._nodes.undrain(node)
        for node in sorted(now.evaded):
            if now.evaded[node] > self._nodes.standings.evaded.get(node, 0.0):
                self._nodes.unanswered(node, now.evaded[node])
                self._nodes.stands(node, now.records[node].rounds)
        for node in _changed(before, now):
            self._context.bus.publish(node)

    def _state(self, idle: Collection[NodeSession]) -> CellState:
        claims, sessions = self._nodes.claims, self._nodes.sessions()
        here = {session.node for session in sessions}
        called = claims.called
        return CellState(
            wanted=claims.wanted(here),
            idle=sum(session.node not in called for session in idle),
            nodes=sum(not session.operator for session in sessions),
            claims=rules.named(claims.away(here)),
            wishes=tuple(sorted(claims.wishes() - here)[: rules.MAX_NAMED]),
            arrays=self._arrays.needs(),
            auditors=len(self._nodes.auditors()),
            looks=self._looks(),
            lets_in=self._lets_in(),
        )

    def _set_aside(self, idle: Collection[NodeSession], own: CellState, others: Mapping[int, CellState]) -> None:
        """Give those nothing more that go with the next turn."""
        now = self._context.clock.time()
        free = {session.node: session for session in idle}
        resting = [IdleNode(node, now - session.began) for node, session in free.items()]
        going = [free[node] for node in rules.leaving(resting, self._nodes.claims.called, own, others)]
        if rules.may_part(own, others):
            going += self._auditors(now)[:1]
        for session in going:
            session.leaving = True
        self._aside += going

    def _auditors(self, now: float) -> list[NodeSession]:
        """Those of the operator's that could go."""
        named = {auditor.node for auditor in self._nodes.auditors()} - set(self._stay)
        here = [session for node in sorted(named) if (session := self._nodes.session(node)) is not None]
        free = [one for one in here if one.accepting and not self._leases.is_busy(one.node)]
        return [session for session in free if now - session.began >= rules.STAY_S]

    def _part(self) -> None:
        """Let those go that were set aside, and still hold nothing."""
        aside, self._aside = self._aside, []
        for session in aside:
            session.leaving = False
            if self._nodes.session(session.node) is session and not self._leases.is_busy(session.node):
                session.close(COME_BACK)
                self._nodes.leave(session)
                self._context.metrics.count("nodes_let_go_total")

    def _announce(self) -> None:
        """Tell other cells who has come, so that nobody is in two."""
        new = [session for session in self._nodes.sessions() if session.place > self._came]
        if new:
            self._came = max(session.place for session in new)
            self._nodes.elsewhere.beside.came([session.node for session in new])


def _changed(before: StoredStandings, now: StoredStandings) -> set[str]:
    """Nodes of which people see something else."""
    banned = before.banned.keys() ^ now.banned.keys()
    return {*banned, *(before.draining ^ now.draining)}


def told(nodes: Nodes, leases: Leases, theirs: Callable[[str], bool]) -> list[FarNode]:
    """The nodes of this cell, as another one is told of them. ``theirs``: whether a job is of that one."""
    idle = {session.node for session in nodes.idle()}
    could_go = (idle | nodes.claims.loose()) - nodes.claims.kept_from(theirs)
    found = []
    for session in nodes.sessions():
        node = session.node
        lends = nodes.lends(session) and not nodes.is_draining(node)
        free, busy = lends and node in could_go, leases.is_busy(node)
        found.append(FarNode(nodes.candidate(session), lends, free, busy, session.profile.containers))
    return found
