"""Audits: drawn once a round is complete, opened by the prover, re-run by somebody else, and what follows from the verdict.

Everything here happens on an open desk (``Work``). Commitments and rates are stored when the round ends; the draw waits for the
first block of the ledger after that (``beacons``), so neither can depend on it, and everybody can repeat it.
"""

import hashlib
from collections.abc import Mapping

import msgspec

from coordinator.domain import auditors, due, trust
from coordinator.domain.job import JobState
from coordinator.domain.lease import Lease
from coordinator.domain.trust import Audit, Auditor
from coordinator.services.boundaries import Boundaries
from coordinator.services.context import Context
from coordinator.services.deadlines import Deadlines
from coordinator.services.disputes import Disputes, evidence_digest
from coordinator.services.drawing import auditor_of
from coordinator.services.evidence import correct_outcomes, place_of, seal_outcome
from coordinator.services.nodes import Nodes
from coordinator.services.work import Work
from coordinator.store.ports import Where
from coordinator.store.records import CommitRecord, NodeRecord, OutboxRecord, RoundRecord
from transport.wire.task import AuditReport, BisectAnswer, LeafShown, OpeningMade, StepOpened

_DISTANT = "is too far from what a machine of another class came to; that proves nothing, and only raises its rate"
_OUTCOMES: Mapping[str, str] = {"passed": "passed", "failed": "failed", "void": "came to nothing"}
# Workers keep the records of two rounds: the next may begin, the one after must wait for openings to be made.
OPENING_LAG = 2
# Openings that are made wait for nobody's records, only for a line. A lie that they show is taken out again as long as a stored
# state from before it is remembered (16, of every fourth round): half of that. A round sends a twelfth of an opening at the
# least, so a home's upload brings it long before.
SHOWING_LAG = 32


class Verification:
    """Draws, drives and concludes the audits of a job."""

    def __init__(
        self, context: Context, nodes: Nodes, disputes: Disputes, boundaries: Boundaries, deadlines: Deadlines
    ) -> None:
        self._context = context
        self._deadlines = deadlines
        self._nodes = nodes
        self._disputes = disputes
        self._boundaries = boundaries

    def opened(self, work: Work, lease: str, report: OpeningMade | StepOpened) -> None:
        """The prover answered, or has made its answer and sends it."""
        audit = work.audits.get(report.audit)
        if audit is None or audit.lease != lease:
            return
        if isinstance(report, OpeningMade):
            work.audits[audit.id] = due.sending(trust.made(audit, report), report.size, work.now)
        else:
            deadline = work.now + self._context.config.audit_patience_seconds
            work.audits[audit.id] = trust.opened(audit, report, deadline)

    def shown(self, work: Work, lease: str, report: LeafShown) -> None:
        """The prover, or a neighbour, showed its leaf."""
        self._boundaries.shown(work, lease, report)

    def judged(self, work: Work, lease: str, report: AuditReport) -> None:
        """An auditor answered."""
        audit = work.audits.get(report.audit)
        if audit is not None and audit.auditor_lease == lease and audit.auditor is not None:
            deadline = work.now + self._context.config.audit_patience_seconds
            after = work.audits[audit.id] = trust.judged(audit, audit.auditor, report, deadline)
            if (
                report.verdict == "mismatch"
                and audit.outer is None
                and not after.over
                and len(trust.against(after)) == 1
            ):
                self._disputes.open(work, after, audit.auditor)

    def bisected(self, work: Work, lease: str, answer: BisectAnswer) -> None:
        """A side of a dispute answered."""
        self._disputes.answered(work, lease, answer)

    def extend(self, work: Work) -> None:
        """Give every open audit its full time again: nobody could answer while the coordinator was away."""
        deadline = work.now + self._context.config.audit_seconds
        for audit in list(work.audits.values()):
            work.audits[audit.id] = msgspec.structs.replace(audit, asked=work.now, deadline=deadline)
        self._disputes.extend(work)

    def may_begin(self, work: Work, number: int) -> bool:
        """Whether beginning round ``number`` leaves provers the records that they still have, or may have, to open.

        Rounds that are done again come after all that is still to be opened of the same numbers.
        """
        awaited = [audit.round for audit in work.audits.values() if audit.state == "opening"]
        coming = [audit.round for audit in work.audits.values() if audit.state == "showing"]
        undrawn = [] if work.run is None else [drawn for _, drawn in work.run.undrawn]
        kept = all(number - OPENING_LAG < other < number for other in awaited + undrawn)
        return kept and all(number - SHOWING_LAG < other < number for other in coming)

    def settled(self, work: Work) -> bool:
        """Whether every round so far has been looked at as far as it will be: nothing can turn out to be forged any more."""
        undrawn = () if work.run is None else work.run.undrawn
        return not undrawn and all(audit.canary for audit in work.audits.values())

    async def conclude_all(self, work: Work) -> bool:
        """Verify what can be before a job rests, and give tests of auditors up; whether nothing is left open."""
        if not self.settled(work):
            return False
        for audit in list(work.audits.values()):
            work.audits[audit.id] = msgspec.structs.replace(audit, state="void", detail="the job pauses or stops")
        work.rounds_ended = True
        await self.advance(work)
        where: tuple[Where, ...] = (("job", "=", work.job.id), ("state", "=", "complete"), ("concluded", "=", False))
        return not work.audits and not await work.tx.find(RoundRecord, *where, limit=1)

    async def advance(self, work: Work) -> None:
        """Bring every open audit as far as it goes now, then conclude rounds whose audits are over."""
        self._disputes.advance(work)
        await self._boundaries.advance(work)
        for audit in list(work.audits.values()):
            waits = audit.over or audit.id in work.disputes
            work.audits[audit.id] = audit if waits else self._step(work, audit)
        await self._punish_accusers(work)
        await _remember_tampering(work)
        for audit in [a for a in work.audits.values() if a.over]:
            await (self._follow_canary if audit.canary else self._follow)(work, audit)
        if work.rounds_ended or work.job.state is JobState.VERIFYING:
            await self._conclude(work)

    async def give_up(self, work: Work) -> None:
        """The job ends early: findings against a prover stand, other open audits are void."""
        for audit in list(work.audits.values()):
            if not audit.over:
                void = msgspec.structs.replace(audit, state="void", detail="the job ended before the audit did")
                work.audits[audit.id] = trust.overdue(audit) if trust.against(audit) else void
        if work.run is not None:
            work.change_run(undrawn=())
        self._disputes.drop(work, "the job ended before the dispute did")
        work.rounds_ended = True
        await self.advance(work)

    def _step(self, work: Work, audit: Audit) -> Audit:
        config = self._context.config
        if audit.canary and work.job.state is JobState.VERIFYING:
            return msgspec.structs.replace(audit, state="void", detail="the job ended")  # Nobody is kept for a test.
        audit = self._deadlines.look(work, audit)
        if audit.unopened and audit.lease not in work.leases:
            return trust.prover_gone(audit)
        if audit.auditor is not None and (
            audit.auditor_lease not in work.leases or self._nodes.late(audit.auditor, audit.deadline, work.now)
        ):
            audit = trust.auditor_gone(audit, work.now + config.audit_patience_seconds)
        if audit.state == "replaying" and audit.auditor is None:
            auditor = auditors.choose_auditor(audit, self._auditors(work))
            if auditor is not None:
                assigned = trust.assigned(audit, auditor, work.now + config.audit_seconds)
                return self._deadlines.look(work, due.asked(assigned, work.now))
        if auditors.awaits_look(audit):
            return audit  # The operator's auditor is away, or busy with others: that is nobody's silence.
        if audit.state == "opening" and not audit.unopened:
            return audit  # Leaves are waited for.
        asked = audit.node if audit.unopened else audit.auditor
        late = work.now > audit.deadline if asked is None else self._nodes.late(asked, audit.deadline, work.now)
        if late and audit.unopened and self._nodes.session(audit.node) is None:
            # Silence is that of somebody who is here: this one may have spoken unheard.
            return trust.prover_gone(audit)
        return trust.overdue(audit) if late else audit

    def _auditors(self, work: Work) -> list[Auditor]:
        return [
            auditor_of(lease, self._context.config.auditors)
            for lease in work.leases.values()
            if lease.state == "ready" and self._nodes.session(lease.node) is not None
        ]

    async def _follow_canary(self, work: Work, canary: Audit) -> None:
        """Send an auditor away that found a forged step right."""
        if canary.blame == "blind":
            self._context.metrics.count("canaries_caught_total")
            blind = canary.verdicts[-1].auditor
            await self._ban(work, blind, canary, "it found a forged step right", slash=False)
            await self._look_again(work, blind)
        work.conclude(canary)

    async def _look_again(self, work: Work, blind: str) -> None:
        """Have others re-run what an auditor approved that does not look; what it approved may be paid already."""
        deadline = work.now + self._context.config.audit_patience_seconds
        for passed in await work.tx.find(Audit, ("job", "=", work.job.id), ("state", "=", "passed")):
            audit = trust.again(passed, blind, deadline)
            if audit is not None:
                work.audits[audit.id] = audit
                work.change(audits=work.job.audits + 1)
                work.note("audit", f"round {audit.round + 1}: {audit.place} is looked at again")

    async def _follow(self, work: Work, audit: Audit) -> None:
        """Draw the consequences of an audit that has just ended."""
        self._context.metrics.count(f"audits_{audit.state}_total")
        place = f"the audit of round {audit.round + 1}, {audit.place},"
        self._context.metrics.count("audits_distant_total", audit.blame == "distant")
        outcome = _DISTANT if audit.blame == "distant" else _OUTCOMES[audit.state]
        work.note("audit", f"{place} {outcome}" + (f": {audit.detail}" if audit.detail else ""))
        await _remember(work, audit)
        own: tuple[Where, ...] = (("job", "=", work.job.id), ("node", "=", audit.node), ("canary", "=", False))
        earlier = await work.tx.find(Audit, *own, ("state", "=", "failed"))
        match trust.consequence(audit, [other for other in earlier if other.id != audit.id]):
            case "forfeit":
                await self._forfeit(work, audit)
            case "expel":
                await self._ban(work, audit.node, audit, audit.detail or audit.blame, slash=False)
            case "ban":
                await self._ban(work, audit.node, audit, audit.detail or audit.blame, slash=True)
                if audit.blame == "wrong" and await _is_in_the_model(work, audit):
                    work.forged.append((audit.epoch, audit.round))
            case "none":
                pass
        if audit.state == "failed" and audit.blame in trust.EVASIONS:
            await _remember_evasion(work, audit)
        if audit.state == "passed" and not audit.across:
            await self._boundaries.judge(work, audit)
        work.conclude(audit)

    async def _forfeit(self, work: Work, audit: Audit) -> None:
        where: tuple[Where, ...] = (("job", "=", work.job.id), ("epoch", "=", audit.epoch), ("round", "=", audit.round))
        for commit in await work.tx.find(CommitRecord, *where, ("lease", "=", audit.lease)):
            await _reject(work, commit)
        if audit.lease in work.leases:
            work.end(audit.lease, "failed", f"audit of round {audit.round + 1}: {audit.detail}")

    async def _punish_accusers(self, work: Work) -> None:
        """Whoever was proven to accuse falsely loses what a prover loses whose lie is proven."""
        accusers, work.false_accusers = work.false_accusers, []
        for node, audit, detail in accusers:
            await self._ban(work, node, work.audits[audit], f"false accusation: {detail}", slash=True)

    async def _ban(self, work: Work, node: str, audit: Audit, why: str, slash: bool) -> None:
        """Unpaid work of the job is void, the stake may be slashed, the node leaves everything that it holds."""
        for commit in await work.tx.find(CommitRecord, ("job", "=", work.job.id), ("node", "=", node)):
            if not commit.bound:
                await _reject(work, commit)
        reason = f"audit {audit.id}: {why}"
        for lease in [lease for lease in work.leases.values() if lease.node == node]:
            work.end(lease.id, "rejected", reason)
        work.note("rejected", f"node {node}: {reason}; its unpaid work of this job is void")
        record = await work.tx.get(NodeRecord, node)
        if record.banned:
            return  # Another audit of the same node came to the same end: one lie costs its stake once.
        await work.tx.update(msgspec.structs.replace(record, banned=True, reason=reason))
        work.expelled.append(node)
        if slash and record.stake > 0:
            dispute = next((record for record in work.ended_disputes if record.id == audit.id), None)
            proof = (
                hashlib.sha256(msgspec.json.encode(audit)).hexdigest() if dispute is None else evidence_digest(dispute)
            )
            payload: dict[str, str | int] = {"node": node, "reason": proof}
            if node == audit.node and audit.accuser is not None:
                payload |= {"accuser": audit.accuser, "audit": place_of(audit).bytes.hex()}
            elif dispute is not None and node == dispute.dispute.prover:
                payload |= {"accuser": dispute.dispute.challenger, "audit": audit.id}
            if audit.challenger is not None and node == audit.node:
                payload["challenger"] = (await work.tx.get(NodeRecord, audit.challenger)).payout
            key = f"slash:{audit.id}:{node}" if node != audit.node else f"slash:{audit.id}"
            detail = f"{node}: {reason}"[:500]
            work.queue(OutboxRecord(key, work.job.id, "slash", payload, work.now, detail=detail))

    async def _conclude(self, work: Work) -> None:
        """Verify the shares of complete rounds whose audits are over."""
        open_rounds = {(audit.epoch, audit.round) for audit in work.audits.values() if not audit.canary}
        open_rounds |= set(work.run.undrawn if work.run is not None else ())
        waiting: tuple[Where, ...] = (("job", "=", work.job.id), ("state", "=", "complete"), ("concluded", "=", False))
        for record in await work.tx.find(RoundRecord, *waiting):
            if (record.epoch, record.number) in open_rounds:
                continue
            where: tuple[Where, ...] = (
                ("job", "=", work.job.id),
                ("epoch", "=", record.epoch),
                ("round", "=", record.number),
            )
            for commit in await work.tx.find(CommitRecord, *where, ("state", "=", "pending")):
                await work.tx.update(msgspec.structs.replace(commit, state="verified"))
                work.change(verified=work.job.verified + commit.amount)
            await seal_outcome(work, await work.tx.update(msgspec.structs.replace(record, concluded=True)))
        await correct_outcomes(work)


async def _is_in_the_model(work: Work, audit: Audit) -> bool:
    """Whether what was forged is in the states since: a step always is, an outer step where the others went on from it."""
    if audit.outer is None:
        return True
    record = await work.tx.get(RoundRecord, audit.job, audit.epoch, audit.round)
    return record.parameters[audit.stage] == audit.outer.parameters


async def _remember(work: Work, audit: Audit) -> None:
    """What the audit says of the prover's conduct, for its next rates. Leaving is no fault; a lone accusation is no proof."""
    if (audit.state == "void" and audit.blame != "distant") or audit.blame == "gone":
        return
    record = await work.tx.get(NodeRecord, audit.node)
    if audit.state == "passed" and audit.across:
        record = msgspec.structs.replace(record, afar=record.afar + 1)
    elif audit.state == "passed":
        record = msgspec.structs.replace(record, passed=record.passed + 1)
    else:
        faults = record.faults + (audit.blame != "unconfirmed")
        record = msgspec.structs.replace(record, passed=0, afar=0, faults=faults)
    await work.tx.update(record)


async def _remember_tampering(work: Work) -> None:
    """A node whose agent saw a hand in a job's sandbox is looked at as after a failed audit, and repeated it costs stake."""
    leases, work.tampered = work.tampered, []
    for lease in leases:
        record = await work.tx.get(NodeRecord, lease.node)
        share = trust.tampering_costs(record.tampered, lease.granted, work.now)
        if share and record.stake > 0:
            _take(work, "tampered", lease, record.tampered, share, "somebody reached into a job there again")
        faults = record.faults + 1
        await work.tx.update(msgspec.structs.replace(record, passed=0, afar=0, faults=faults, tampered=work.now))


async def _remember_evasion(work: Work, audit: Audit) -> None:
    """A node evaded an audit: its owner is told, and a repetition costs stake."""
    record = await work.tx.get(NodeRecord, audit.node)
    (lease,) = await work.tx.find(Lease, ("id", "=", audit.lease))
    share = trust.evasion_costs(record.evaded, lease.granted, work.now)
    if share is None:
        return
    if share and record.stake > 0:
        what = "names another class than it had said to be of" if audit.blame == "misstated" else "was not shown"
        _take(work, "evaded", lease, record.evaded, share, f"what was drawn of it {what}, again")
    work.unanswered.append(audit.node)
    await work.tx.update(msgspec.structs.replace(record, evaded=work.now))


def _take(work: Work, how: str, lease: Lease, before: float, share: int, what: str) -> None:
    """Queue a slash of ``share`` ten-thousandths of a node's stake for what has happened again."""
    told = {"node": lease.node, "lease": lease.id, "before": before, "now": work.now}
    reason = hashlib.sha256(msgspec.json.encode(told, order="sorted")).hexdigest()
    payload: dict[str, str | int] = {"node": lease.node, "reason": reason, "bps": share}
    detail = f"{lease.node}: {what}, lease {lease.id}: {share / 100:g} % of its stake"
    work.queue(OutboxRecord(f"{how}:{lease.id}", work.job.id, "slash", payload, work.now, detail=detail))
    work.note("rejected", f"node {lease.node}: {what}: {share / 100:g} % of its stake")


async def _reject(work: Work, commit: CommitRecord) -> None:
    if commit.state == "verified":
        work.change(verified=work.job.verified - commit.amount)
    if commit.state in ("pending", "verified"):
        await work.tx.update(msgspec.structs.replace(commit, state="rejected", amount=0))
        work.reopened.add((commit.epoch, commit.round))
