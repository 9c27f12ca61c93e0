"""Nodes that jobs wait for: arrays, which can make do with fewer, take none of them, and give back those that they have.

A job that trains or serves needs all of its seats at once. Where free nodes are too few for it, it plans with those that arrays
could spare, too, and with those that only stand by for another job, and claims the nodes of that plan. An array keeps as many
owners as an element needs: what came first goes on, and what came later begins. A claim that is not renewed lapses.

Where jobs are parted in cells, nodes of other cells that are free there, or could be given back there, are planned with likewise.
What a job claims of these its cell tells the others (``cell_nodes``), which have it as a claim of their own. Where two jobs of
different cells wait for one node, the job whose name comes first goes first: both cells come to that by themselves.
"""

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping

from common.clock import Clock
from coordinator.domain.lease import Lease
from coordinator.services.core.leases import Leases

CLAIM_S = 5.0  # Between two plans with what others hold: they cost as much as those with free nodes.
LAPSE_S = 30.0
SEEKING_S = 10.0  # Since a job last looked for what others could spare, which it does with each look at it.
WAY_S = 5.0  # A node on its way from another cell is in neither: for so long it is waited for all the same.
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
    """Of all jobs. ``standing_by``: leases of nodes that stand by for a job, and would take a seat of it; ``beside``: nodes of
    other cells that could come."""

    def __init__(
        self,
        clock: Clock,
        standing_by: Callable[[], Iterable[Lease]] = tuple,
        beside: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        self._clock, self._standing_by, self._beside = clock, standing_by, beside
        self._spare: dict[str, frozenset[str]] = {}
        self._claimed: dict[str, tuple[frozenset[str], float]] = {}
        self._far: dict[str, frozenset[str]] = {}  # Nodes of each claim that were in other cells when it was made.
        self._missed: dict[str, float] = {}  # Since when some of those were not seen there.
        self._seeking: dict[str, float] = {}
        self._wished: dict[str, dict[str, float]] = {}  # By arrays, and when.
        self._of_others: dict[str, frozenset[str]] = {}

    def lends(self, array: str, nodes: Collection[str] | None) -> None:
        """Nodes that an array holds and could give back; None: it is over."""
        self._spare.pop(array, None)
        if nodes is not None:
            self._spare[array] = frozenset(nodes)
        else:
            self._wished.pop(array, None)

    @property
    def crowded(self) -> bool:
        """Whether an array is at work, so that no node is to stand by idly: what is missing somewhere comes from the array."""
        return bool(self._spare)

    def is_due(self, job: str) -> bool:
        """Whether a job that waits should plan with these again."""
        now = self._seeking[job] = self._clock.now()
        if now - self._claimed.get(job, ((), float("-inf")))[1] < CLAIM_S:
            return False
        others = any(lease.job != job for lease in self._standing_by())
        return bool(self._spare) or others or bool(self._beside())

    def spare(self, job: str) -> frozenset[str]:
        """Nodes that arrays could give back, that stand by for other jobs, or could come from other cells, and no other job has
        claimed."""
        return (self.loose(job) | self._beside()) - self.claimed(job)

    def loose(self, job: str = "") -> frozenset[str]:
        """Those of them that are here."""
        lent = {node for nodes in self._spare.values() for node in nodes}
        return frozenset(lent | {lease.node for lease in self._standing_by() if lease.job != job})

    def share(self, nodes: int) -> int:
        """How many of so many nodes a job may have where arrays want them as well: as many as each of these."""
        return nodes // (len(self._spare) + max(1, len(self._claimed)))

    def claim(self, job: str, nodes: Collection[str]) -> None:
        """A job waits for these; none: for no longer."""
        self._claimed[job] = (frozenset(nodes), self._clock.now())
        self._far[job] = self._beside().intersection(nodes)
        self._missed.pop(job, None)

    def renew(self, job: str, there: Collection[str]) -> bool:
        """Go on waiting for the same nodes, if all of them are ``there``, or were let go for it just now; whether they are."""
        known, _ = self._claimed.get(job, (frozenset[str](), 0.0))
        if not known:
            return False
        now, missing = self._clock.now(), known.difference(there)
        if missing and (missing - self._far.get(job, frozenset()) or now - self._missed.setdefault(job, now) >= WAY_S):
            return False
        if not missing:
            self._missed.pop(job, None)
        self._claimed[job] = (known, now)
        return True

    def claimed(self, but: str = "") -> frozenset[str]:
        """All nodes that jobs wait for, ``but`` this one."""
        return self.kept_from(lambda job: job == but)

    def kept_from(self, theirs: Callable[[str], bool]) -> frozenset[str]:
        """All nodes that jobs wait for which are not ``theirs``."""
        now = self._clock.now()
        self._claimed = {job: one for job, one in self._claimed.items() if now - one[1] < LAPSE_S}
        self._far = {job: nodes for job, nodes in self._far.items() if job in self._claimed}
        self._missed = {job: at for job, at in self._missed.items() if job in self._claimed}
        self._seeking = {job: at for job, at in self._seeking.items() if now - at < SEEKING_S}
        claims = (*((job, nodes) for job, (nodes, _) in self._claimed.items()), *self._of_others.items())
        return frozenset(node for job, nodes in claims if not theirs(job) for node in nodes)

    def drop(self, job: str) -> None:
        """A job waits for nothing any more."""
        for known in (self._claimed, self._far, self._missed, self._seeking):
            known.pop(job, None)

    # --- other cells ------------------------------------------------------------------------------------------------------

    def wish(self, array: str, nodes: Collection[str]) -> None:
        """Nodes of other cells that nobody has, and that an array here could use."""
        now = self._clock.now()
        lately = {node: at for node, at in self._wished.get(array, {}).items() if now - at < WAY_S}
        self._wished[array] = lately | dict.fromkeys(nodes, now)

    def wished(self, array: str) -> frozenset[str]:
        """Those that it has wished for lately: they are here by now, or elsewhere, or on their way."""
        now = self._clock.now()
        return frozenset(node for node, at in self._wished.get(array, {}).items() if now - at < WAY_S)

    def wishes(self) -> frozenset[str]:
        """All of them that no job waits for."""
        return frozenset(node for array in self._wished for node in self.wished(array)) - self.claimed()

    def away(self, here: Container[str]) -> dict[str, frozenset[str]]:
        """Of each job that looks for nodes which it lacks, those that it waits for and that are not ``here``; some has none."""
        self.claimed()
        known = {job: self._claimed[job][0] if job in self._claimed else frozenset[str]() for job in self._seeking}
        return {job: frozenset(node for node in nodes if node not in here) for job, nodes in known.items()}

    def wanted(self, here: Container[str]) -> int:
        """How many nodes are lacked: those that are waited or wished for, and one for each job that finds no plan with any."""
        away = self.away(here)
        lost = sum(job not in self._claimed or not self._claimed[job][0] for job in away)
        return lost + len(frozenset().union(*away.values())) + sum(node not in here for node in self.wishes())

    def hear(self, others: Mapping[str, Collection[str]]) -> None:
        """Let jobs of other cells wait for nodes of this one, from now on those alone, as far as none comes first."""
        self.claimed()
        self._of_others = {}
        taken: set[str] = set()
        for job in sorted(others):
            nodes = frozenset(others[job])
            rivals = [one for one, (claimed, _) in self._claimed.items() if claimed & nodes]
            if taken & nodes or any(one < job for one in rivals):
                continue
            for one in rivals:
                self.claim(one, ())
            self._of_others[job] = nodes
            taken |= nodes

    @property
    def called(self) -> frozenset[str]:
        """Nodes that jobs of other cells wait for."""
        return frozenset(node for nodes in self._of_others.values() for node in nodes)
