"""Audits: drawn once a round is complete, opened by the prover, re-run by somebody else, and what follows from the verdict.

Everything here happens in an open ``UnitOfWork``. Commitments and rates are stored when the round ends; the draw waits for the
first block of the ledger after that (``beacons``), so neither can depend on it, and everybody can repeat it.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import msgspec

from coordinator.domain.audits import answer_time, auditors, returning, trust
from coordinator.domain.audits.trust import Audit, AuditorCandidate
from coordinator.domain.job import JobState
from coordinator.services.audits import credit
from coordinator.services.audits.audit_outcomes import Penalties
from coordinator.services.audits.auditor_capacity import LONGEST
from coordinator.services.audits.boundary_checks import Boundaries
from coordinator.services.audits.conclusions import Conclusion
from coordinator.services.audits.deadlines import Deadlines
from coordinator.services.audits.disputes import DisputeService
from coordinator.services.audits.sampling import auditor_of
from coordinator.services.core.context import Context
from coordinator.services.core.domain_events import SharesMayBeDue
from coordinator.services.core.leases import Leases
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.services.network.nodes import Nodes
from coordinator.store.ports import Condition, col
from coordinator.store.records import RoundRecord
from protocol.task import AuditReport, BisectAnswer, LeafShown, OpeningMade, StepOpened

_DISTANT = "is too far from what a machine of another class came to; that proves nothing, and only raises its rate"
_FOUND_FAR = "is too far from what the operator's machine came to: the work is not paid, and its node begins anew"
_OUTCOMES: Mapping[str, str] = {"passed": "passed", "failed": "failed", "void": "came to nothing"}
# Workers keep the records of two rounds: the next may begin, the one after must wait for openings to be made.
OPENING_LAG = 2
# Openings that are made wait for nobody's records, only for a line. A lie that they show is taken out again as long as a stored
# state from before it is remembered (16, of every fourth round): half of that. A round sends a twelfth of an opening at the
# least, so a home's upload brings it long before.
SHOWING_LAG = 32
AT_ONCE = 2  # Looks that one of the operator's auditors has: it fetches the next opening while it runs one again.
REMEMBERED = 100  # Audits of a prover's owner by which the next auditor is chosen: the newest.


class Verification:
    """Draws, drives and concludes the audits of a job."""

    def __init__(
        self,
        context: Context,
        nodes: Nodes,
        leases: Leases,
        disputes: DisputeService,
        boundaries: Boundaries,
        deadlines: Deadlines,
    ) -> None:
        self._context = context
        self._leases = leases
        self._deadlines = deadlines
        self._nodes = nodes
        self._disputes = disputes
        self._boundaries = boundaries
        self._penalties = Penalties(context)
        self._conclusion = Conclusion(context)

    def opened(self, work: UnitOfWork, lease: str, report: OpeningMade | StepOpened) -> None:
        """The prover answered, or has made its answer and sends it."""
        audit = work.audits.get(report.audit)
        if audit is None or audit.lease != lease:
            return
        if isinstance(report, OpeningMade):
            work.audits[audit.id] = answer_time.sending(trust.made(audit, report), report.size, work.now)
        else:
            deadline = work.now + self._context.config.audit_patience_seconds
            work.audits[audit.id] = trust.opened(audit, report, deadline)

    def shown(self, work: UnitOfWork, lease: str, report: LeafShown) -> None:
        """The prover, or a neighbour, showed its leaf."""
        self._boundaries.shown(work, lease, report)

    def judged(self, work: UnitOfWork, lease: str, report: AuditReport) -> None:
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

    def bisected(self, work: UnitOfWork, lease: str, answer: BisectAnswer) -> None:
        """A side of a dispute answered."""
        self._disputes.answered(work, lease, answer)

    def extend(self, work: UnitOfWork) -> None:
        """Give every open audit its full time again: nobody could answer while the coordinator was away."""
        config = self._context.config
        for audit in list(work.audits.values()):
            seconds = config.audit_patience_seconds if auditors.awaits_anybody(audit) else config.audit_seconds
            work.audits[audit.id] = returning.again(audit, work.now, work.now + seconds)
        self._disputes.extend(work)

    def may_begin(self, work: UnitOfWork, number: int) -> bool:
        """Whether beginning round ``number`` leaves provers the records that they still have, or may have, to open.

        Rounds that are done again come after all that is still to be opened of the same numbers. Whose lease has run out begins
        no other round, so what it has to open stays with it. Auditors keep an anchor that only they have as long.
        """
        awaited = [
            a.round
            for a in work.audits.values()
            if (a.state == "opening" and a.lease in work.leases)
            or (a.anchor_in == "auditor" and not a.over and not a.canary)
        ]
        coming = [a.round for a in work.audits.values() if a.unopened and a.round not in awaited]
        undrawn = [] if work.run is None else [drawn for _, drawn in work.run.undrawn]
        looks = sum(auditors.awaits_look(audit) for audit in work.audits.values())
        if looks >= auditors.MOST_LOOKS:
            return False  # Their openings fill the disk.
        kept = all(number - OPENING_LAG < other < number for other in awaited + undrawn)
        return kept and all(number - SHOWING_LAG < other < number for other in coming)

    def lacks_auditors(self, work: UnitOfWork) -> bool:
        """Whether nobody who is in the job could run again what was opened."""
        return any(auditors.awaits_anybody(audit) and not audit.canary for audit in work.audits.values())

    def settled(self, work: UnitOfWork) -> bool:
        """Whether every round so far has been looked at as far as it will be: nothing can turn out to be forged any more."""
        undrawn = () if work.run is None else work.run.undrawn
        return not undrawn and all(audit.canary for audit in work.audits.values())

    async def conclude_all(self, work: UnitOfWork) -> bool:
        """Verify what can be before a job rests, and give tests of auditors up; whether nothing is left open."""
        if not self.settled(work):
            return False
        for audit in list(work.audits.values()):
            work.audits[audit.id] = msgspec.structs.replace(audit, state="void", detail="the job pauses or stops")
        work.record(SharesMayBeDue())
        await self.advance(work)
        where: tuple[Condition, ...] = (
            col(RoundRecord.job).equals(work.job.id),
            col(RoundRecord.state).equals("complete"),
            col(RoundRecord.concluded).equals(False),
        )
        return not work.audits and not await work.tx.find(RoundRecord, *where, limit=1)

    async def advance(self, work: UnitOfWork, leaving: Collection[str] = ()) -> None:
        """Bring every open audit as far as it goes now, then conclude rounds whose audits are over.

        Args:
            leaving: leases of auditors that go once they are done with what they have.
        """
        self._disputes.advance(work)
        await self._boundaries.advance(work)
        replaying = any(audit.state == "replaying" for audit in work.audits.values())
        ready = await self._auditors(work, leaving) if replaying else []
        looking = Counter(audit.auditor_lease for audit in work.audits.values() if audit.looking)
        for audit in sorted(work.audits.values(), key=lambda audit: (audit.looks, audit.began, audit.id)):
            if audit.over or audit.id in work.disputes:
                continue
            looking[audit.auditor_lease] -= audit.looking
            after = work.audits[audit.id] = await self._step(work, audit, ready, looking)
            looking[after.auditor_lease] += after.looking
        await self._penalties.of_accusers(work)
        await self._penalties.of_tampering(work)
        for audit in [a for a in work.audits.values() if a.over]:
            await (self._follow_canary if audit.canary else self._follow)(work, audit)
        await self._conclusion.advance(work)

    async def give_up(self, work: UnitOfWork) -> None:
        """The job ends early: findings against a prover stand, other open audits are void."""
        for audit in list(work.audits.values()):
            if not audit.over:
                work.audits[audit.id] = trust.given_up(audit, "the job ended before the audit did")
        await self._conclusion.give_up(work)
        self._disputes.drop(work, "the job ended before the dispute did")
        work.record(SharesMayBeDue())
        await self.advance(work)

    async def _step(
        self, work: UnitOfWork, audit: Audit, ready: Sequence[AuditorCandidate], looking: Counter[str | None]
    ) -> Audit:
        """One audit. ``looking``: how many looks of others each auditor has."""
        config = self._context.config
        if audit.canary and work.job.state is JobState.VERIFYING:
            return msgspec.structs.replace(audit, state="void", detail="the job ended")  # Nobody is kept for a test.
        audit = self._deadlines.look(work, audit)
        if audit.unopened and (audit := self._attended(work, audit)).over:
            return audit
        if audit.auditor is not None and (
            audit.auditor_lease not in work.leases or self._nodes.late(audit.auditor, audit.deadline, work.now)
        ):
            audit = trust.auditor_gone(audit, work.now + config.audit_patience_seconds)
        if audit.state == "replaying" and audit.auditor is None:
            auditor = await self._choose(work, audit, ready, looking)
            if auditor is not None:
                times = LONGEST if auditor.operator else 1.0  # It does nothing else, and nobody could do it for it.
                assigned = trust.assigned(audit, auditor, work.now + times * config.audit_seconds)
                return self._deadlines.look(work, answer_time.asked(assigned, work.now))
        if auditors.awaits_look(audit):
            return audit  # The operator's auditor is away, or busy with others: that is nobody's silence.
        if audit.state == "opening" and not audit.unopened:
            return audit  # Leaves are waited for.
        asked = audit.node if audit.unopened else audit.auditor
        deadline = returning.due(audit, work.now, config.return_seconds) if audit.unopened else audit.deadline
        late = work.now > deadline if asked is None else self._nodes.late(asked, deadline, work.now)
        if late and audit.unopened and self._nodes.session(audit.node) is None:
            # Silence is that of somebody who is here: this one may have spoken unheard.
            return trust.prover_gone(audit)
        return trust.overdue(audit) if late else audit

    def _attended(self, work: UnitOfWork, audit: Audit) -> Audit:
        """What is still to be opened, after a look at whether its prover is here, or may come back."""
        live, most = audit.lease in work.leases, self._context.config.return_seconds
        if not live and (self._nodes.is_banned(audit.node) or not self._leases.may_return(audit.lease, work.ended)):
            return trust.prover_gone(audit)
        here = self._nodes.session(audit.node) is not None and (live or self._leases.is_back(audit.lease))
        audit = returning.seen(audit, here=here, now=work.now, most=most)
        lost = not live and returning.over(audit, work.now, most) and not self._leases.back()
        return trust.prover_gone(audit) if lost else audit

    async def _choose(
        self, work: UnitOfWork, audit: Audit, ready: Sequence[AuditorCandidate], looking: Counter[str | None]
    ) -> AuditorCandidate | None:
        """Who is asked next, of those who are here; the operator's have few steps at a time, those that wait longest."""
        free = [auditor for auditor in ready if looking[auditor.lease] < AT_ONCE]
        chosen = auditors.choose_auditor(audit, free)
        if chosen is None or chosen.operator:
            return chosen
        of_owner: tuple[Condition, ...] = (col(Audit.job).equals(work.job.id), col(Audit.payout).equals(audit.payout))
        before = await work.tx.find(Audit, *of_owner, newest=True, limit=REMEMBERED)
        return auditors.choose_auditor(audit, free, auditors.shared_history(before, audit.payout))

    async def _auditors(self, work: UnitOfWork, leaving: Collection[str]) -> list[AuditorCandidate]:
        operators = self._context.config.auditors
        here = [
            auditor_of(lease, operators)
            for lease in work.leases.values()
            if lease.state == "ready" and lease.id not in leaving and self._nodes.session(lease.node) is not None
        ]
        known = await credit.of_nodes(work, {auditor.node for auditor in here}) if operators else {}
        return [msgspec.structs.replace(auditor, credit=known.get(auditor.node, 0)) for auditor in here]

    async def _follow_canary(self, work: UnitOfWork, canary: Audit) -> None:
        """Send an auditor away that found a forged step right."""
        if canary.blame == "blind":
            work.count("canaries_caught_total")
            blind = canary.verdicts[-1].auditor
            await self._penalties.of_blindness(work, blind, canary, "it found a forged step right")
        work.conclude(canary)

    async def _follow(self, work: UnitOfWork, audit: Audit) -> None:
        """Draw the consequences of an audit that has just ended."""
        self._count(work, audit)
        place = f"the audit of round {audit.round + 1}, {audit.place},"
        work.note("audit", f"{place} {_outcome(audit)}" + (f": {audit.detail}" if audit.detail else ""))
        await self._penalties.follow(work, audit)
        if audit.state == "passed" and not audit.across:
            await self._boundaries.judge(work, audit)
        work.conclude(audit)

    def _count(self, work: UnitOfWork, audit: Audit) -> None:
        work.count(f"audits_{audit.state}_total")
        work.count("audits_distant_total", audit.blame == "distant")
        own = [verdict for verdict in audit.verdicts if verdict.own]
        if own:
            work.count("looks_total")
            work.count("looks_found_total", audit.state == "failed")
            work.observe("look_wait_seconds", work.now - audit.began)
        work.count("looks_missed_total", audit.blame == "unlooked")


def _outcome(audit: Audit) -> str:
    if audit.blame == "distant":
        return _DISTANT if audit.state == "void" else _FOUND_FAR
    return _OUTCOMES[audit.state]
