"""Nodes that jobs wait for: arrays, which can make do with fewer, take none of them, and give back those that they have.

A job that trains or serves needs all of its seats at once. Where free nodes are too few for it, it plans with those that arrays
could spare, too, and claims the nodes of that plan. An array keeps as many owners as an element needs: what came first goes on,
and what came later begins. A claim that is not renewed lapses.
"""

from collections.abc import Collection

from common.clock import Clock

CLAIM_S = 5.0  # Between two plans with what others hold: they cost as much as those with free nodes.
LAPSE_S = 30.0


class Claims:
    """Of all jobs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
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
        return bool(self._spare) and self._clock.now() - self._claimed.get(job, ((), float("-inf")))[1] >= CLAIM_S

    def spare(self, job: str) -> frozenset[str]:
        """Nodes that arrays could give back, and no other job has claimed."""
        others = self._of(job)
        return frozenset(node for nodes in self._spare.values() for node in nodes) - others

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

    def claimed(self) -> frozenset[str]:
        """All nodes that jobs wait for."""
        self._claimed = {job: one for job, one in self._claimed.items() if self._clock.now() - one[1] < LAPSE_S}
        return self._of("")

    def drop(self, job: str) -> None:
        """A job waits for nothing any more."""
        self._claimed.pop(job, None)

    def _of(self, but: str) -> frozenset[str]:
        found = (
            nodes for job, (nodes, since) in self._claimed.items() if job != but and self._clock.now() - since < LAPSE_S
        )
        return frozenset(node for nodes in found for node in nodes)
