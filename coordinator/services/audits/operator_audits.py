"""The operator's own auditors: which job each of them stands by, while audits there wait for its look.

One holds one lease at a time, as a spare that nobody seats, and stays with a job until another one needs it. Where looks never
run out it is given no more of them once its turn is over and older ones wait elsewhere, and goes when those that it has are done.
Which jobs wait is kept in memory: after a restart it is known again as soon as each of them was advanced once.
"""

from collections.abc import Mapping, Sequence

from coordinator.domain.audits import auditors
from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import LIVE, RESTING
from coordinator.domain.lease import FAULTS, Lease
from coordinator.domain.placement import Candidate
from coordinator.metrics import Gauges
from coordinator.services.core.context import Context
from coordinator.services.core.leases import Leases
from coordinator.services.core.unit_of_work import JobDesk, UnitOfWork
from coordinator.services.network.nodes import Nodes
from coordinator.store.ports import Condition, col

TURN_S = 60.0  # With a job, before it leaves looks there for older ones elsewhere: a worker takes long to start.
MANY = 4  # Looks that wait for one auditor before another one that is free comes to help.
REST_S = 20.0  # After it has failed a job, or left it for another one, before it comes to that one again.


class Looks:
    """Grants the operator's auditors leases, and ends them. Everything on an open desk."""

    def __init__(self, context: Context, desk: JobDesk, nodes: Nodes, leases: Leases) -> None:
        self._context = context
        self._nodes = nodes
        self._leases = leases
        self._waiting: dict[str, tuple[Audit, ...]] = {}  # Job -> looks that are waited for there, the oldest first.
        # Those of them that no auditor who stands by there takes up soon.
        self._unmet: dict[str, tuple[Audit, ...]] = {}
        desk.on_stored(self._notice)

    async def attend(self, work: UnitOfWork) -> frozenset[str]:
        """Have auditors stand by while looks are waited for, and let them go where another job has waited longer.

        Returns:
            leases of those that go once they are done with what they have: they are given nothing more.
        """
        own = self._context.config.auditors
        if not own or work.run is None:
            return frozenset()
        waiting = _waiting(work)
        held = [lease for lease in work.leases.values() if lease.node in own]
        leaving = [lease for lease in held if self._is_needed_elsewhere(work, lease, waiting)]
        for lease in [lease for lease in leaving if not _is_at_work(work, lease)]:
            work.end(lease.id, "replaced", "another job has waited longer for a look")
        left = self._left([lease for lease in held if lease not in leaving], waiting)
        if left:
            chosen = self._choose(left, await self._free(work))
            if chosen is not None:
                work.grant(chosen.node, chosen.owner, None)
                work.note("auditor", f"the operator's machine {chosen.node} comes to look at what was drawn")
        elif len(held) == len(leaving) and not work.run.done and any(lease.end == "inputs" for lease in work.ended):
            free = await self._free(work)
            if free:
                work.grant(free[0].node, free[0].owner, None)
                work.note(
                    "auditor", f"the operator's machine {free[0].node} comes to look at the files that a node blames"
                )
        return frozenset(lease.id for lease in leaving)

    def unmet(self) -> int:
        """How many looks are waited for that no auditor who stands by takes up soon."""
        return sum(map(len, self._unmet.values()))

    def gauges(self) -> Gauges:
        """How many looks are waited for, and since when the first of them."""
        now = self._context.clock.time()
        since = min((waiting[0].began for waiting in self._waiting.values()), default=now)
        return {
            ("looks_waiting",): float(sum(map(len, self._waiting.values()))),
            ("looks_oldest_seconds",): max(0.0, now - since),
        }

    def _is_needed_elsewhere(self, work: UnitOfWork, lease: Lease, waiting: Sequence[Audit]) -> bool:
        """Whether another job needs it while nothing waits for it here, or it has done enough here and that has waited longer."""
        others = [audit for job, unmet in self._unmet.items() if job != work.job.id for audit in unmet]
        env_class = _class_of(lease, self._nodes.known_auditors())
        elsewhere = min((audit.began for audit in others if _could(env_class, audit)), default=None)
        oldest = min((audit.began for audit in waiting if _could(env_class, audit)), default=None)
        if elsewhere is None or oldest is None:
            return elsewhere is not None
        return elsewhere < oldest and work.now - lease.granted >= TURN_S

    def _left(self, held: Sequence[Lease], waiting: Sequence[Audit]) -> list[Audit]:
        """Looks that wait, and that none of those who stand by takes up soon."""
        here = self._nodes.auditors()
        present = {auditor.node for auditor in here}
        standing = {lease.id: _class_of(lease, here) for lease in held if lease.node in present}
        enough = dict.fromkeys(standing, MANY)  # What each of them can be left with.
        return [audit for audit in waiting if not _takes(standing, audit, enough)]

    async def _free(self, work: UnitOfWork) -> list[Candidate]:
        """Auditors that are here and welcome a lease, hold nothing, and have neither failed nor left this job lately.

        Who has just left is free before the job that needs it is advanced: it would be taken back.
        """
        of_job: tuple[Condition, ...] = (col(Lease.job).equals(work.job.id), col(Lease.ended) > work.now - REST_S)
        gone = await work.tx.find(Lease, *of_job, col(Lease.end).in_(("replaced", *sorted(FAULTS))))
        out = {lease.node for lease in (*gone, *work.ended, *work.leases.values())}
        return [one for one in self._nodes.auditors() if one.node not in out and self._welcomes(one.node)]

    def _welcomes(self, node: str) -> bool:
        session = self._nodes.session(node)
        free = not self._leases.is_busy(node) and not self._nodes.is_draining(node)
        return free and session is not None and session.accepting

    def _choose(self, waiting: Sequence[Audit], free: Sequence[Candidate]) -> Candidate | None:
        """For the look that has waited longest: one of the prover's class, else the quickest."""
        oldest = min(waiting, key=lambda audit: (audit.began, audit.id))
        able = [auditor for auditor in free if _could(auditor.env_class, oldest)]
        return min(able, key=lambda c: (c.env_class != oldest.env_class, -c.flops, c.node), default=None)

    def _notice(self, work: UnitOfWork) -> None:
        job, waiting = work.job, _waiting(work)
        self._waiting.pop(job.id, None)
        self._unmet.pop(job.id, None)
        if waiting and job.state in LIVE - RESTING:
            own = self._context.config.auditors
            self._waiting[job.id] = tuple(waiting)
            self._unmet[job.id] = tuple(self._left([one for one in work.leases.values() if one.node in own], waiting))


def _waiting(work: UnitOfWork) -> list[Audit]:
    """Looks that an auditor could begin with now, the oldest first."""
    found = [one for one in work.audits.values() if auditors.awaits_look(one) and one.id not in work.disputes]
    return sorted(found, key=lambda audit: (audit.began, audit.id))


def _is_at_work(work: UnitOfWork, lease: Lease) -> bool:
    sides = {node for one in work.disputes.values() for node in (one.dispute.prover, one.dispute.challenger)}
    return lease.node in sides or any(audit.auditor_lease == lease.id for audit in work.audits.values())


def _could(env_class: str, audit: Audit) -> bool:
    return auditors.may_look(env_class, audit)


def _class_of(lease: Lease, known: Sequence[Candidate]) -> str:
    """The environment class that a lease computes as; until its worker is ready, as its machine does."""
    return lease.env_class or next((one.env_class for one in known if one.node == lease.node), "")


def _takes(standing: Mapping[str, str], audit: Audit, enough: dict[str, int]) -> bool:
    """Whether one of the leases of those who are here takes the audit up soon, by its class; counts it."""
    able = [lease for lease, env_class in standing.items() if _could(env_class, audit) and enough[lease] > 0]
    if able:
        enough[able[0]] -= 1
    return bool(able)
