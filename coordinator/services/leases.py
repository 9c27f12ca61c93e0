"""The terms of live leases, in memory: renewed by heartbeats, ended by the reaper.

The database says which leases live; only their remaining time is kept here. After a restart everybody gets a full term,
and while the whole process stands still (a suspended machine, a loop that is held up) no term runs out: it heard nobody. Who
loses its connection and is not back in less than half of a term has died, unless most are cut off together: then it is not they.
"""

from collections.abc import Iterable

from coordinator.domain import lease as rules
from coordinator.domain.lease import Lease, Term
from coordinator.services.context import Context
from transport.wire.node import HeldLease

CUT_SHARE = 0.4  # Of a term: a process whose connection broke off is back by then (its agent tries within a second), or is dead.
LONGEST_LOOK = 0.25  # Of a term. Looks are many times as frequent; a longer pause between two says that nobody looked.


class Leases:
    """Which node holds what until when."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._live: dict[str, Lease] = {}
        self._terms: dict[str, Term] = {}
        self._cut: dict[str, float] = {}
        self._mostly_cut = 0.0
        self._looked = context.clock.now()
        self._attended = 0.0
        self._lenient = 0.0

    async def recover(self) -> None:
        """Read the live leases of an earlier process, or of this one before the store was away, and give each a full term."""
        async with self._context.store.transaction() as tx:
            found = await tx.find(Lease, ("state", "in", ("starting", "ready")))
            self._live, self._terms = {}, {}
            for lease in found:
                self.remember(lease)

    def remember(self, lease: Lease) -> None:
        """Take over a stored lease: a new one gets its term, an ended one loses it."""
        if lease.state == "ended":
            self._live.pop(lease.id, None)
            self._terms.pop(lease.id, None)
            return
        if lease.id not in self._terms:
            expires = self._now() + self._context.config.lease_seconds
            self._terms[lease.id] = Term(lease.node, lease.fence, expires)
        self._live[lease.id] = lease

    def get(self, lease: str) -> Lease | None:
        """The live lease of this id."""
        return self._live.get(lease)

    def of_node(self, node: str) -> tuple[Lease, ...]:
        """Live leases of a node."""
        return tuple(lease for lease in self._live.values() if lease.node == node)

    def seated(self) -> tuple[Lease, ...]:
        """Live leases that have a seat; spares have none."""
        return tuple(lease for lease in self._live.values() if lease.seat)

    def busy(self) -> frozenset[str]:
        """Nodes that hold anything."""
        return frozenset(lease.node for lease in self._live.values())

    def renew(self, node: str, held: Iterable[HeldLease]) -> tuple[str, ...]:
        """Renew what the node names; returns what is not its (any more)."""
        now, seconds = self._now(), self._context.config.lease_seconds
        renewed, gone = rules.renew(self._terms, node, held, now, seconds)
        self._terms.update(renewed)
        return gone

    def cut(self, node: str) -> None:
        """The connection of a node broke off."""
        if self.of_node(node):
            self._cut[node] = self._now()

    def came(self, node: str) -> None:
        """A node has a connection."""
        self._cut.pop(node, None)

    def was_cut(self, node: str) -> float | None:
        """For how long a node has had no connection; None: it has one."""
        return self._now() - self._cut[node] if node in self._cut else None

    def expired(self) -> tuple[str, ...]:
        """Leases whose time is over, and those of nodes that are cut off and do not come back."""
        now, holders = self._now(), {term.node for term in self._terms.values()}
        self._cut = {node: at for node, at in self._cut.items() if node in holders}
        if rules.mostly(self._cut, holders):
            self._mostly_cut = now
        seconds = CUT_SHARE * self._context.config.lease_seconds
        return rules.expired(self._terms, now, rules.not_back(self._cut, holders, self._mostly_cut, now, seconds))

    def expire(self, leases: Iterable[str]) -> None:
        """Let the reaper end these at its next turn."""
        for lease in leases:
            if lease in self._terms:
                term = self._terms[lease]
                self._terms[lease] = Term(term.node, term.fence, self._now())

    def back(self) -> bool:
        """Whether this process stood still and has not been back for as long: what was sent to it meanwhile is on its way."""
        self._now()
        return self._looked < self._lenient

    def share_a_job(self, one: str, other: str) -> bool:
        """Whether two nodes are in the plan of one job."""
        jobs = {lease.job for lease in self._live.values() if lease.node == one and lease.seat}
        return any(lease.job in jobs for lease in self._live.values() if lease.node == other and lease.seat)

    def _now(self) -> float:
        """Seconds for which this process has attended to its nodes."""
        now = self._context.clock.now()
        passed, longest = now - self._looked, LONGEST_LOOK * self._context.config.lease_seconds
        if passed > longest:
            self._lenient = max(self._lenient, now + min(passed, self._context.config.audit_seconds))
        self._attended += min(passed, longest)
        self._looked = now
        return self._attended
