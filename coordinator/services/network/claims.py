"""Nodes that jobs wait for: arrays, which can make do with fewer, take none of them, and give back those that they have.

A job that trains or serves needs all of its seats at once. Where free nodes are too few for it, it plans with those that arrays
could spare, too, and with those that only stand by for another job, and claims the nodes of that plan. An array keeps as many
owners as an element needs: what came first goes on, and what came later begins. A claim that is not renewed lapses.
"""

from collections.abc import Callable, Collection, Iterable, Iterator

from common.clock import Clock
from coordinator.domain.lease import Lease
from coordinator.services.core.leases import Leases

CLAIM_S = 5.0  # Between two plans with what others hold: they cost as much as those with free nodes.
LAPSE_S = 30.0
LOOKERS = 2  # Owners in a job, so that each one's work is looked at by another.


def could_go(spare: Lease, of_job: Iterable[Lease], auditors: Collection[str]) -> bool:
    """Whether a job's work can be looked at without this node: by the operator's ``auditors``, or since two owners are left."""
    return bool(auditors) or len({one.payout for one in of_job if one.id != spare.id}) >= LOOKERS


def spares(leases: Leases, auditors: Collection[str]) -> Iterator[Lease]:
    """Those that jobs could do without; ``auditors`` stand by to look, and take no seat."""
    for lease in leases.standing_by():
        if lease.node not in auditors and could_go(lease, leases.of_job(lease.job), auditors):
            yield lease


class Claims:
    """Of all jobs. ``standing_by``: leases of nodes that stand by for a job, and would take a seat of it."""

    def __init__(self, clock: Clock, standing_by: Callable[[], Iterable[Lease]] = tuple) -> None:
        self._clock, self._standing_by = clock, standing_by
        self._spare: dict[str, frozenset[str]] = {}
        self._claimed: dict[str, tuple[frozenset[str], float]] = {}

    def lends(self, array: str, nodes: Collection[str] | None) -> None:
        """Nodes that an array holds and could give back; None: it is over."""
        self._spare.pop(array, None)
        if nodes is not None:
            self._spare[array] = frozenset(nodes)

    @property
    def crowded(self) -> bool:
        """Whether an array is at work, so that no node is to stand by idly: what is missing somewhere comes from the array."""
        return bool(self._spare)

    def is_due(self, job: str) -> bool:
        """Whether a job that waits should plan with these again."""
        if self._clock.now() - self._claimed.get(job, ((), float("-inf")))[1] < CLAIM_S:
            return False
        return bool(self._spare) or any(lease.job != job for lease in self._standing_by())

    def spare(self, job: str) -> frozenset[str]:
        """Nodes that arrays could give back, or that stand by for other jobs, and no other job has claimed."""
        lent = {node for nodes in self._spare.values() for node in nodes}
        lent |= {lease.node for lease in self._standing_by() if lease.job != job}
        return frozenset(lent - self.claimed(job))

    def share(self, nodes: int) -> int:
        """How many of so many nodes a job may have where arrays want them as well: as many as each of these."""
        return nodes // (len(self._spare) + max(1, len(self._claimed)))

    def claim(self, job: str, nodes: Collection[str]) -> None:
        """A job waits for these; none: for no longer."""
        self._claimed[job] = (frozenset(nodes), self._clock.now())

    def renew(self, job: str, there: Collection[str]) -> bool:
        """Go on waiting for the same nodes, if all of them are ``there``; whether they are."""
        known, _ = self._claimed.get(job, (frozenset[str](), 0.0))
        if not known or not known <= set(there):
            return False
        self.claim(job, known)
        return True

    def claimed(self, but: str = "") -> frozenset[str]:
        """All nodes that jobs wait for, ``but`` this one."""
        self._claimed = {job: one for job, one in self._claimed.items() if self._clock.now() - one[1] < LAPSE_S}
        return frozenset(node for job, (nodes, _) in self._claimed.items() if job != but for node in nodes)

    def drop(self, job: str) -> None:
        """A job waits for nothing any more."""
        self._claimed.pop(job, None)
