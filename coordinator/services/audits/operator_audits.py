"""The operator's own auditors: which job each of them stands by, while audits there wait for its look.

One holds one lease at a time, as a spare that nobody seats, and stays with a job until another one needs it. Which jobs wait is
kept in memory: after a restart it is known again as soon as each of them was advanced once.
"""

from collections.abc import Sequence

from coordinator.domain.audits import auditors
from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import LIVE
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
REST_S = 20.0  # After it has failed a job, before it tries that one again.


class Looks:
    """Grants the operator's auditors leases, and ends them. Everything on an open desk."""

    def __init__(self, context: Context, desk: JobDesk, nodes: Nodes, leases: Leases) -> None:
        self._context = context
        self._nodes = nodes
        self._leases = leases
        self._oldest: dict[str, float] = {}  # Job -> since when a look is waited for there.
        self._waiting: dict[str, int] = {}  # Job -> looks that are waited for.
        desk.on_stored(self._notice)

    async def attend(self, work: UnitOfWork) -> None:
        """Have auditors stand by while looks are waited for, and let them go where another job has waited longer."""
        own = self._context.config.auditors
        if not own or work.run is None:
            return
        waiting = [audit for audit in work.audits.values() if auditors.awaits_look(audit)]
        held = [lease for lease in work.leases.values() if lease.node in own]
        for lease in [lease for lease in held if self._is_needed_elsewhere(work, lease, waiting)]:
            held.remove(lease)
            work.end(lease.id, "replaced", "another job has waited longer for a look")
        here = {auditor.node: auditor for auditor in self._nodes.auditors()}
        standing = [here[lease.node] for lease in held if lease.node in here]
        enough = {auditor.node: MANY for auditor in standing}  # What each of those who are here can be left with.
        left = [audit for audit in waiting if not _takes(standing, audit, enough)]
        if left:
            chosen = self._choose(left, await self._free(work))
            if chosen is not None:
                work.grant(chosen.node, chosen.owner, None)
                work.note("auditor", f"the operator's machine {chosen.node} comes to look at what was drawn")
        elif not held and not work.run.done and any(lease.end == "inputs" for lease in work.ended):
            free = await self._free(work)
            if free:
                work.grant(free[0].node, free[0].owner, None)
                work.note(
                    "auditor", f"the operator's machine {free[0].node} comes to look at the files that a node blames"
                )

    def gauges(self) -> Gauges:
        """How many looks are waited for, and since when the first of them."""
        now = self._context.clock.time()
        since = min(self._oldest.values(), default=now)
        return {
            ("looks_waiting",): float(sum(self._waiting.values())),
            ("looks_oldest_seconds",): max(0.0, now - since),
        }

    def _is_needed_elsewhere(self, work: UnitOfWork, lease: Lease, waiting: Sequence[Audit]) -> bool:
        """Whether it has nothing to do here while another job waits, or has done enough here and another has waited longer."""
        elsewhere = min((since for job, since in self._oldest.items() if job != work.job.id), default=None)
        if elsewhere is None or any(audit.auditor_lease == lease.id for audit in work.audits.values()):
            return False
        if any(lease.node in (it.dispute.prover, it.dispute.challenger) for it in work.disputes.values()):
            return False
        oldest = min((audit.began for audit in waiting), default=None)
        return oldest is None or (elsewhere < oldest and work.now - lease.granted >= TURN_S)

    async def _free(self, work: UnitOfWork) -> list[Candidate]:
        """Auditors that are here and welcome a lease, hold nothing, and have not failed this job lately."""
        of_job: tuple[Condition, ...] = (col(Lease.job).equals(work.job.id), col(Lease.ended) > work.now - REST_S)
        failed = await work.tx.find(Lease, *of_job, col(Lease.end).in_(tuple(sorted(FAULTS))))
        out = {lease.node for lease in (*failed, *work.ended)} | self._leases.busy()
        out |= {lease.node for lease in work.leases.values()}
        out |= {session.node for session in self._nodes.sessions() if not session.accepting}
        out |= {session.node for session in self._nodes.sessions() if self._nodes.is_draining(session.node)}
        return [auditor for auditor in self._nodes.auditors() if auditor.node not in out]

    def _choose(self, waiting: Sequence[Audit], free: Sequence[Candidate]) -> Candidate | None:
        """For the look that has waited longest: one of the prover's class, else the quickest."""
        oldest = min(waiting, key=lambda audit: (audit.began, audit.id))
        able = [auditor for auditor in free if _could(auditor, oldest)]
        return min(able, key=lambda c: (c.env_class != oldest.env_class, -c.flops, c.node), default=None)

    def _notice(self, work: UnitOfWork) -> None:
        waiting = [audit.began for audit in work.audits.values() if auditors.awaits_look(audit)]
        self._oldest.pop(work.job.id, None)
        self._waiting.pop(work.job.id, None)
        if waiting and work.job.state in LIVE:
            self._oldest[work.job.id] = min(waiting)
            self._waiting[work.job.id] = len(waiting)


def _could(auditor: Candidate, audit: Audit) -> bool:
    return auditors.may_look(auditor.env_class, audit)


def _takes(standing: Sequence[Candidate], audit: Audit, enough: dict[str, int]) -> bool:
    """Whether one of those who are here takes the audit up soon; counts it."""
    able = [auditor.node for auditor in standing if _could(auditor, audit) and enough[auditor.node] > 0]
    if able:
        enough[able[0]] -= 1
    return bool(able)
