"""Looks for a job's first plan, and not again for what was looked for in vain: a search of many nodes holds everybody up."""

from collections.abc import Collection, Sequence

from coordinator.domain import placement
from coordinator.domain.job import Job
from coordinator.domain.placement import Candidate, NoPlacementError, Placement
from coordinator.services.network.link_telemetry import Links
from protocol.models.model import ModelShape


class PlanSearch:
    """Of all jobs that wait. What decides whether there is a plan is who is free, and who of the operator's could look at it."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._asked: dict[str, int] = {}  # Of each job, a hash of what it was looked for with last.
        self._in_vain: set[str] = set()
        self._unseen: set[str] = set()  # Those of them whose plan nobody could look at.

    def find(
        self,
        job: Job,
        shape: ModelShape,
        free: Sequence[Candidate],
        replicas: Sequence[int],
        auditors: Collection[Candidate],
        *,
        claiming: bool = False,
    ) -> Placement | None:
        """The plan with the first of these numbers of replicas for which there is one; None also where that is known already.

        ``claiming``: with what others could give back, which is remembered apart.
        """
        key, asked = _key(job.id, claiming), hash((frozenset(free), tuple(replicas), frozenset(auditors)))
        if key in self._in_vain and self._asked.get(key) == asked:
            return None
        self._forget(key)
        self._asked[key] = asked
        for number in replicas:
            try:
                return placement.choose(shape, job.spec.training, free, job.quote.stages, number, self._links.map)
            except NoPlacementError:
                continue
        self._in_vain.add(key)
        return None

    def unseen(self, job: str, *, claiming: bool = False) -> None:
        """Nobody could look at the plan that was found last."""
        self._in_vain.add(_key(job, claiming))
        self._unseen.add(_key(job, claiming))

    def is_unseen(self, job: str) -> bool:
        """Whether that is why there was none the last time."""
        return job in self._unseen

    def forget(self, job: str) -> None:
        """It has a plan, or needs none."""
        for claiming in (False, True):
            self._forget(_key(job, claiming))

    def _forget(self, key: str) -> None:
        self._asked.pop(key, None)
        self._in_vain.discard(key)
        self._unseen.discard(key)


def _key(job: str, claiming: bool) -> str:
    return f"{job} claiming" if claiming else job
