"""Compares what neighbours committed to about the payloads between them, and has both steps audited where they differ.

Everything on an open desk. ``domain.audits.boundary`` decides; an audit waits for the leaves while records of its round
are kept, so they are still there when a neighbour's step has to be opened too. The opening itself may arrive later.
"""

from coordinator.domain.audits import boundary, trust
from coordinator.domain.audits.trust import Audit
from coordinator.domain.rounds.run import training_of
from coordinator.services.audits.sampling import AuditSampling
from coordinator.services.core.context import Context
from coordinator.services.core.leases import Leases
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.services.network.nodes import Nodes
from coordinator.store.ports import Condition, col
from protocol.audit import KEPT_ROUNDS
from protocol.task import LeafShown


class Boundaries:
    """The comparisons of a job."""

    def __init__(self, context: Context, nodes: Nodes, leases: Leases, drawing: AuditSampling) -> None:
        self._context = context
        self._nodes = nodes
        self._leases = leases
        self._drawing = drawing

    def shown(self, work: UnitOfWork, lease: str, report: LeafShown) -> None:
        """Somebody showed a leaf."""
        audit = work.audits.get(report.audit)
        if audit is not None:
            work.audits[audit.id] = boundary.shown(audit, lease, report)

    async def advance(self, work: UnitOfWork) -> None:
        """Compare wherever everybody has shown its leaf, or time is up."""
        for waiting in [audit for audit in work.audits.values() if audit.state == "opening"]:
            own = {waiting.lease} if self._leases.may_return(waiting.lease, work.ended) else set()
            audit = work.audits[waiting.id] = boundary.present(waiting, {*work.leases, *own})
            holders = {lease.id: lease.node for lease in work.leases.values()} | {audit.lease: audit.node}
            awaited = [holders[side.lease] for side in audit.sides if side.awaited]
            answered = audit.opening is not None or audit.made is not None
            # Leaves are small: nobody waits for them as long as for an opening.
            deadline = min(audit.deadline, audit.asked + self._context.config.audit_seconds)
            if not answered or not all(self._nodes.late(node, deadline, work.now) for node in awaited):
                continue
            # Whose lease has run out may have lost its line, too: it is not silent.
            here = [lease.id for lease in work.leases.values() if self._nodes.session(lease.node) is not None]
            await self._compare(work, boundary.overdue(boundary.present(audit, here)))

    async def _compare(self, work: UnitOfWork, audit: Audit) -> None:
        training = training_of(work.run, work.job.spec.training)
        audit, doubtful = boundary.compared(audit, training)
        deadline = work.now + self._context.config.audit_patience_seconds
        work.audits[audit.id] = trust.compared(audit, deadline)
        work.count("boundaries_apart_total", len(audit.apart))
        for side in doubtful:
            what = "says otherwise what crossed" if side.seat in audit.apart else "shows no leaf about what crossed"
            seat = f"stage {side.stage} of replica {side.replica}"
            work.note("audit", f"round {audit.round + 1}: {seat} {what} between it and {audit.place}")
            if work.run is not None and audit.round >= work.run.done - KEPT_ROUNDS:
                # Later, as where a prover was away, nobody has its records.
                await self._drawing.beside(work, audit, side)

    async def judge(self, work: UnitOfWork, audit: Audit) -> None:
        """Say so where an audit that has just passed and one beside it leave nobody to blame."""
        where: tuple[Condition, ...] = (
            col(Audit.job).equals(audit.job),
            col(Audit.epoch).equals(audit.epoch),
            col(Audit.round).equals(audit.round),
        )
        stored = await work.tx.find(Audit, *where, col(Audit.step).equals(audit.step), col(Audit.canary).equals(False))
        newer = [a for a in work.concluded if (a.epoch, a.round, a.step) == (audit.epoch, audit.round, audit.step)]
        others = {one.id: one for one in [*stored, *newer] if one.id != audit.id}
        for other in boundary.undecided(audit, others.values()):
            work.count("boundaries_undecided_total")
            work.note(
                "audit",
                f"round {audit.round + 1}: {audit.place} of node {audit.node} and stage {other.stage} of replica "
                f"{other.replica} of node {other.node} both gave what they had committed to, and differ about what crossed "
                "between them: it was changed on its way, or one of the two says what was not; nobody is blamed",
            )
