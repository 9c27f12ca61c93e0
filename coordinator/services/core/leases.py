"""The terms of live leases, in memory: renewed by heartbeats, ended by the reaper.

The database says which leases live; only their remaining time is kept here. After a restart everybody gets a full term,
and while the whole process stands still (a suspended machine, a loop that is held up) no term runs out: it heard nobody. Who
loses its connection and is not back in less than half of a term has died, unless most are cut off together: then it is not they.

A lease that ran out is *lost* for a while: its holder may come back with its worker and open what was drawn of it (``returns``).
Any other end is final, and so is a return without the worker. Whoever says that its worker died, and that another one is being
made of the records on its disk, has its lease run out at once: it is away until that one is there, and no seat waits for it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from coordinator.domain import lease as rules
from coordinator.domain.audits.trust import Audit
from coordinator.domain.lease import Lease, Term
from coordinator.services.core.context import Context
from coordinator.store.ports import Condition, col
from protocol.node import HeldLease

CUT_SHARE = 0.4  # Of a term: a process whose connection broke off is back by then (its agent tries within a second), or is dead.
LONGEST_LOOK = 0.25  # Of a term. Looks are many times as frequent; a longer pause between two says that nobody looked.


@dataclass
class _Lost:
    """A lease that ran out. ``seen``: when its holder was last here; ``until``: until when that holds without a heartbeat."""

    lease: Lease
    seen: float
    until: float = -inf


class Leases:
    """Which node holds what until when. ``changes``: how often somebody began to hold anything, or ceased to."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._live: dict[str, Lease] = {}
        self._of_job: dict[str, dict[str, Lease]] = {}  # The live ones again, by job, and by node.
        self._of_node: dict[str, dict[str, Lease]] = {}
        self._standing_by: dict[str, Lease] = {}
        self._terms: dict[str, Term] = {}
        self._cut: dict[str, float] = {}
        self._lost: dict[str, _Lost] = {}
        self._lost_of_job: dict[str, dict[str, _Lost]] = {}  # The lost ones again.
        self._lost_of_node: dict[str, dict[str, _Lost]] = {}
        self.changes = 0
        self._restoring: dict[str, str] = {}  # Lease -> node, of those whose worker died and that have its records.
        self._mostly_cut = 0.0
        self._looked = context.clock.now()
        self._attended = 0.0
        self._lenient = 0.0

    async def recover(self) -> None:
        """Read the live leases of an earlier process, or of this one before the store was away, and give each a full term."""
        since = self._context.clock.time() - self._context.config.return_seconds
        ran_out: Condition = col(Lease.end).equals("expired")
        async with self._context.store.transaction() as tx:
            found = await tx.find(Lease, col(Lease.state).in_(("starting", "ready")))
            lost = await tx.find(Lease, col(Lease.state).equals("ended"), ran_out, col(Lease.ended) > since)
            waited = await tx.find(Audit, col(Audit.state).in_(("opening", "showing")))
            names = tuple(sorted({audit.lease for audit in waited if audit.unopened}))
            lost += await tx.find(Lease, col(Lease.id).in_(names), ran_out) if names else []
        before, self._lost = self._lost, {}
        self._live, self._terms = {}, {}
        self._of_job, self._of_node, self._standing_by = {}, {}, {}
        self._lost_of_job, self._lost_of_node = {}, {}
        self.changes += 1
        for lease in (*found, *lost):
            self.remember(lease)
        for kept in [kept for name, kept in before.items() if name in self._lost]:
            self._lose(kept)

    def remember(self, lease: Lease) -> None:
        """Take over a stored lease: a new one gets its term, an ended one loses it."""
        if lease.state == "ended":
            self.changes += self._live.pop(lease.id, None) is not None
            self._standing_by.pop(lease.id, None)
            _remove(self._of_job, lease.job, lease.id)
            _remove(self._of_node, lease.node, lease.id)
            self._terms.pop(lease.id, None)
            if lease.end == "expired" and self._context.config.return_seconds > 0 and lease.id not in self._lost:
                self._lose(_Lost(lease, self._now()))
            return
        self.changes += lease.id not in self._live
        if lease.id not in self._terms:
            expires = self._now() + self._context.config.lease_seconds
            self._terms[lease.id] = Term(lease.node, lease.fence, expires)
        self._live[lease.id] = lease
        self._of_job.setdefault(lease.job, {})[lease.id] = lease
        self._of_node.setdefault(lease.node, {})[lease.id] = lease
        if lease.seat is None:
            self._standing_by[lease.id] = lease

    def get(self, lease: str) -> Lease | None:
        """The live lease of this id."""
        return self._live.get(lease)

    def live(self) -> tuple[Lease, ...]:
        """Everything that anybody holds."""
        return tuple(self._live.values())

    def of_node(self, node: str) -> tuple[Lease, ...]:
        """Live leases of a node."""
        return tuple(self._of_node.get(node, {}).values())

    def of_job(self, job: str) -> tuple[Lease, ...]:
        """Live leases of a job."""
        return tuple(self._of_job.get(job, {}).values())

    def holds(self, node: str) -> bool:
        """Whether a node holds anything, or may come back with it."""
        return self.is_busy(node)

    def died(self, lease: str) -> bool:
        """Whether the holder of a lease has said that its worker died."""
        return lease in self._restoring

    def seated(self) -> tuple[Lease, ...]:
        """Live leases that have a seat; spares have none."""
        return tuple(lease for lease in self._live.values() if lease.seat)

    def standing_by(self) -> tuple[Lease, ...]:
        """Live leases without a seat."""
        return tuple(self._standing_by.values())

    def busy(self) -> frozenset[str]:
        """Nodes that hold anything, or may come back with something of theirs."""
        return frozenset({*self._of_node, *self._lost_of_node})

    def is_busy(self, node: str) -> bool:
        """Whether a node is one of those."""
        return node in self._of_node or node in self._lost_of_node

    def renew(self, node: str, held: Iterable[HeldLease]) -> tuple[str, ...]:
        """Renew what the node names, which is all that it holds; returns what is not its (any more)."""
        now, seconds, named = self._now(), self._context.config.lease_seconds, tuple(held)
        renewed, gone = rules.renew(self._terms, node, [pair for pair in named if pair.worker == "lives"], now, seconds)
        self._terms.update(renewed)
        died = [pair for pair in named if pair.worker != "lives" and self._is_own(node, pair)]
        self._restoring = {lease: by for lease, by in self._restoring.items() if by != node} | {
            pair.lease: node for pair in died
        }
        self.expire(pair.lease for pair in died)
        back = {pair.lease: pair for pair in named if (pair.lease, node, pair.fence) in self._lost_by(node)}
        for lost in tuple(self._lost_of_node.get(node, {}).values()):
            pair = back.get(lost.lease.id)
            if pair is None:
                self.forget(lost.lease.id)  # Its worker is dead, and what it was to open with it.
            elif pair.worker == "restoring":
                lost.until = -inf
            else:
                lost.seen, lost.until = now, now + seconds
        unknown = [pair.lease for pair in named if pair.worker != "lives" and pair not in died]
        return tuple(lease for lease in (*gone, *unknown) if lease not in back)

    def _is_own(self, node: str, pair: HeldLease) -> bool:
        """Whether a node names a lease that it has, or had until it ran out."""
        held = self._live.get(pair.lease)
        live = held is not None and (held.node, held.fence) == (node, pair.fence)
        return live or (pair.lease, node, pair.fence) in self._lost_by(node)

    def _lost_by(self, node: str) -> set[tuple[str, str, int]]:
        lost = [lost.lease for lost in self._lost_of_node.get(node, {}).values()]
        return {(lease.id, lease.node, lease.fence) for lease in lost}

    def _lose(self, lost: _Lost) -> None:
        self._lost[lost.lease.id] = lost
        self._lost_of_job.setdefault(lost.lease.job, {})[lost.lease.id] = lost
        self._lost_of_node.setdefault(lost.lease.node, {})[lost.lease.id] = lost
        self.changes += 1

    # --- lost, and perhaps back -------------------------------------------------------------------------------------------

    def lost(self, job: str) -> tuple[Lease, ...]:
        """Leases of a job that ran out, and whose holders are awaited, or back."""
        return tuple(lost.lease for lost in self._lost_of_job.get(job, {}).values())

    def back_with(self, node: str | None = None) -> tuple[Lease, ...]:
        """Lost leases that their holders, or this one, have come back with."""
        return self._back(self._lost if node is None else self._lost_of_node.get(node, {}))

    def back_in(self, job: str) -> tuple[Lease, ...]:
        """Those of a job."""
        return self._back(self._lost_of_job.get(job, {}))

    def _back(self, some: Mapping[str, _Lost]) -> tuple[Lease, ...]:
        now = self._now()
        return tuple(lost.lease for lost in some.values() if lost.until > now)

    def restoring(self, node: str | None = None) -> tuple[Lease, ...]:
        """Lost leases whose holders, or this one, are here, and make another worker of their records."""
        own = [
            self._lost[lease].lease
            for lease, by in self._restoring.items()
            if lease in self._lost and node in (None, by)
        ]
        return tuple(lease for lease in own if not self.is_back(lease.id))

    def may_return(self, lease: str, ended: Iterable[Lease] = ()) -> bool:
        """Whether a lease is lost and not forgotten; ``ended``: those that have just ended, and are not stored yet."""
        return lease in self._lost or any(held.id == lease and held.end == "expired" for held in ended)

    def is_back(self, lease: str) -> bool:
        """Whether its holder has come back with a lost lease, and is still beating."""
        lost = self._lost.get(lease)
        return lost is not None and lost.until > self._now()

    def returned(self, lease: str) -> Lease | None:
        """The lost lease of this id that its holder is back with."""
        return self._lost[lease].lease if self.is_back(lease) else None

    def forget(self, lease: str) -> None:
        """Nobody is awaited with this lease any more."""
        if (lost := self._lost.pop(lease, None)) is not None:
            _remove(self._lost_of_job, lost.lease.job, lease)
            _remove(self._lost_of_node, lost.lease.node, lease)
            self.changes += 1
        self._restoring.pop(lease, None)

    def forget_all(self, node: str) -> None:
        """A node has left for good."""
        for lease in tuple(self._lost_of_node.get(node, ())):
            self.forget(lease)

    # --- ends -------------------------------------------------------------------------------------------------------------

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
        patience = self._context.config.return_seconds
        for lost in [lost for lost in self._lost.values() if lost.until <= now and now - lost.seen > patience]:
            self.forget(lost.lease.id)
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
        jobs = {lease.job for lease in self.of_node(one) if lease.seat}
        return any(lease.job in jobs for lease in self.of_node(other) if lease.seat)

    def _now(self) -> float:
        """Seconds for which this process has attended to its nodes."""
        now = self._context.clock.now()
        passed, longest = now - self._looked, LONGEST_LOOK * self._context.config.lease_seconds
        if passed > longest:
            self._lenient = max(self._lenient, now + min(passed, self._context.config.audit_seconds))
        self._attended += min(passed, longest)
        self._looked = now
        return self._attended


def _remove(index: dict[str, dict[str, Any]], key: str, lease: str) -> None:
    """Take a lease out of an index; who has none left is not in it."""
    held = index.get(key)
    if held is not None:
        held.pop(lease, None)
        if not held:
            del index[key]
