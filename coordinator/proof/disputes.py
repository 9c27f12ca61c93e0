"""Disputes, played again from what both sides said: the one place that knows how a published dispute is checked."""

from collections.abc import Iterator

from coordinator.domain.audits import dispute as rules
from coordinator.domain.audits.dispute import Dispute
from coordinator.proof import restores
from coordinator.proof.case import OnLedger, ProofFinding, Published
from protocol.disputes import DisputeEvidence, digest_of


def check(chain: OnLedger, said: Published) -> Iterator[ProofFinding]:
    """Every dispute is published as the ledger was told, ends as its answers make it end, and fits its audit."""
    ruled = {
        str(event.fields["audit"]): event
        for event in chain.events
        if event.kind == "ruled" and event.author == chain.coordinator
    }
    published = {one.audit: one for one in said.disputes}
    hidden = sorted(set(ruled) - set(published))
    lost = [audit for audit in hidden if restores.is_lost(ruled[audit], said)]
    for audit in lost:
        detail = "the record of this dispute was lost before a restore, so it cannot be checked any more"
        yield ProofFinding(restores.RESTORE, f"audit {audit}", "note", detail, "ruled memos")
    hidden = [audit for audit in hidden if audit not in lost]
    if hidden:
        yield ProofFinding(
            "dispute", f"audit {hidden[0]}", "fail", "it is on the ledger and not published", "ruled memos"
        )
        return
    for audit, evidence in sorted(published.items()):
        event, subject = ruled.get(audit), f"audit {audit}"
        if event is None:
            yield ProofFinding("dispute", subject, "fail", "the ledger was told of no such dispute", "ruled memos")
            return
        digest, used = digest_of(evidence), f"memo {event.signature}"
        told = (digest, evidence.winner or "nobody", evidence.prover, evidence.challenger)
        if told != tuple(event.fields[name] for name in ("evidence", "winner", "node", "challenger")):
            yield ProofFinding(
                "dispute", subject, "fail", f"the ledger has another end or evidence than {digest[:16]}…", used
            )
            return
        yield _played(evidence, subject)
        yield _fits(said, evidence, subject)


def played(evidence: DisputeEvidence) -> Dispute:
    """The dispute again, from its first question to its end."""
    dispute = Dispute(evidence.audit, evidence.prover, evidence.challenger, evidence.replay, evidence.first, 0.0)
    for one in evidence.said:
        dispute = rules.answered(dispute, one.side, one.answer, 0.0)
    match evidence.why:
        case "silence":
            return rules.overdue(dispute)
        case "operation":
            return rules.ruled(dispute, evidence.winner, evidence.detail)
        case "unresolved" if dispute.phase == "judging":
            return rules.ruled(dispute, None, evidence.detail)
        case "unresolved":
            return rules.dropped(dispute, evidence.detail)
        case _:
            return dispute


def _played(evidence: DisputeEvidence, subject: str) -> ProofFinding:
    again = played(evidence)
    came = (again.winner, again.why, again.step, again.index, again.questions)
    said = (evidence.winner, evidence.why, evidence.step, evidence.index, evidence.questions)
    taken = len(again.log) == len(evidence.said)
    used = f"{len(evidence.said)} answers"
    if came != said or not taken or not again.over:
        detail = (
            f"its answers end for {again.winner or 'nobody'} ({again.why or again.phase}), and that is not what is said"
        )
        return ProofFinding("dispute", subject, "fail", detail, used)
    how = f"after {again.questions} questions for {again.winner or 'nobody'}: {again.why}"
    if evidence.why == "operation":
        how += f", operation {again.index} of step {again.step}"
    return ProofFinding("dispute", subject, "pass", how, used)


def _fits(said: Published, evidence: DisputeEvidence, subject: str) -> ProofFinding:
    """Who was proven to lie in a dispute has not passed the audit, and who was cleared by one has not failed it."""
    place = (evidence.replay.plan.epoch, evidence.replay.round)
    audits = [
        a for one in said.rounds if (one.epoch, one.round) == place for a in one.audits if a.audit == evidence.audit
    ]
    if not audits:
        return ProofFinding(
            "dispute audit", subject, "note", "its round publishes no such audit (yet)", "round evidence"
        )
    wrong = {"challenger": "passed", "prover": "failed"}.get(evidence.winner or "")
    holds = audits[0].state != wrong and audits[0].node == evidence.prover
    detail = f"the audit {audits[0].state}, the dispute ended for {evidence.winner or 'nobody'}"
    return ProofFinding("dispute audit", subject, "pass" if holds else "fail", detail, "round evidence")
