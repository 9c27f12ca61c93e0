"""What follows for a node from what audits found: its share, its standing, its place, its stake. Everything on an open desk."""

import hashlib
from collections.abc import Sequence
from typing import assert_never

import msgspec

from common.untrusted_text import untrusted
from coordinator.domain.audits import penalty, trust
from coordinator.domain.audits.trust import Audit
from coordinator.domain.lease import Lease, LeaseEnd
from coordinator.services.audits import credit
from coordinator.services.audits.disputes import evidence_digest, outcome
from coordinator.services.audits.evidence import place_of
from coordinator.services.core.context import Context
from coordinator.services.core.domain_events import (
    AccusedFalsely,
    AuditEvaded,
    NodeExpelled,
    OutcomeChanged,
    RoundForged,
    SandboxTampered,
)
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.services.network.nodes import BY_OPERATOR
from coordinator.store.ports import Condition, col
from coordinator.store.records import CommitRecord, NodeRecord, OutboxRecord, RoundRecord
from protocol.node import Unpaid


class Penalties:
    """Draws the consequences."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def follow(self, work: UnitOfWork, audit: Audit) -> None:
        """Of an audit that has just ended."""
        if penalty.falls(audit):
            await self._fall(work, audit)
        own: tuple[Condition, ...] = (
            col(Audit.job).equals(work.job.id),
            col(Audit.node).equals(audit.node),
            col(Audit.canary).equals(False),
        )
        earlier: Sequence[Audit] = []
        if audit.state == "failed" or audit.blame == "unlooked":  # Others cost nothing, whatever was before.
            earlier = await work.tx.find(Audit, *own, col(Audit.state).in_(("failed", "void")))
        cost = penalty.consequence(audit, [other for other in earlier if other.id != audit.id])
        if cost == "unseat" and penalty.deadly(audit) and not await self._others_are_looked_at(work, audit):
            cost = "share"  # The operator's machines may not be able to run this stage at all.
        match cost:
            case "share":
                await self._unpaid(work, audit)
            case "forfeit":
                await self._unpaid(work, audit)
                self._end(work, audit, "failed")
            case "unseat":
                await self._unpaid(work, audit)
                self._end(work, audit, "rejected")
            case "expel" | "ban":
                await self.ban(work, audit.node, audit, audit.detail or audit.blame, slash=cost == "ban")
            case "none":
                pass
            case _:
                assert_never(cost)
        if audit.blame == "wrong":
            await self._of_a_lie(work, audit)
        if audit.state == "failed" and audit.blame in penalty.EVASIONS:
            await _remember_evasion(work, audit)
        for node in trust.contradicted(audit):
            await credit.lose(work, node, everywhere=False)

    async def _others_are_looked_at(self, work: UnitOfWork, audit: Audit) -> bool:
        """Whether the operator's machines have looked at what other nodes of the stage opened in the job."""
        of_stage: tuple[Condition, ...] = (col(Audit.job).equals(work.job.id), col(Audit.stage).equals(audit.stage))
        others = [
            a for a in await work.tx.find(Audit, *of_stage, col(Audit.state).equals("passed")) if a.node != audit.node
        ]
        return any(verdict.own for other in others if other.outer is None for verdict in other.verdicts)

    async def of_accusers(self, work: UnitOfWork) -> None:
        """Whoever was proven to accuse falsely loses what a prover loses whose lie is proven; of its own the operator is told."""
        for false in work.take(AccusedFalsely):
            node, detail = false.node, false.detail
            if node in self._context.config.auditors:
                work.count("looks_wrong_total")
                work.note(
                    "audit", f"the operator's machine {node} was wrong, which its operator should look into: {detail}"
                )
            else:
                await self.ban(work, node, work.audits[false.audit], f"false accusation: {detail}", slash=True)

    async def of_tampering(self, work: UnitOfWork) -> None:
        """A node whose agent saw a hand in a job's sandbox is looked at as after a failed audit, and repeated it costs stake."""
        for lease in [reached.lease for reached in work.take(SandboxTampered)]:
            await work.hold_shared()
            record = await work.tx.get(NodeRecord, lease.node)
            share = penalty.tampering_costs(record.tampered, lease.granted, work.now)
            if share and record.stake > 0:
                _take(work, "tampered", lease, record.tampered, share, "somebody reached into a job there again")
            faults = record.faults + 1
            await work.tx.update(msgspec.structs.replace(record, faults=faults, tampered=work.now))
            await credit.lose(work, lease.node, everywhere=True)

    async def of_blindness(self, work: UnitOfWork, node: str, audit: Audit, why: str) -> None:
        """Send an auditor away that does not look, and have others re-run what it alone approved; that may be paid already."""
        await self.ban(work, node, audit, why, slash=False)
        deadline = work.now + self._context.config.audit_patience_seconds
        for passed in await work.tx.find(Audit, col(Audit.job).equals(work.job.id), col(Audit.state).equals("passed")):
            again = trust.again(passed, node, deadline)
            if again is not None:
                work.audits[again.id] = again
                work.change(audits=work.job.audits + 1)
                work.note("audit", f"round {again.round + 1}: {again.place} is looked at again")

    async def ban(self, work: UnitOfWork, node: str, audit: Audit, why: str, slash: bool) -> None:
        """Unpaid work of the job is void, the stake may be slashed, the node leaves everything that it holds."""
        for commit in await work.tx.find(
            CommitRecord, col(CommitRecord.job).equals(work.job.id), col(CommitRecord.node).equals(node)
        ):
            await reject(work, commit, "expelled")
        reason = f"audit {audit.id}: {why}"
        for lease in [lease for lease in work.leases.values() if lease.node == node]:
            work.end(lease.id, "rejected", reason)
        work.note("rejected", f"node {node}: {reason}; its unpaid work of this job is void")
        record = await send_away(work, node, reason)
        if record is not None and slash and record.stake > 0:
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
            work.queue(OutboxRecord(key, work.job.id, "slash", payload, work.now, detail=untrusted(detail)))

    async def _fall(self, work: UnitOfWork, audit: Audit) -> None:
        """The prover's standing is gone; what it did later, and nobody has looked at, was drawn as of somebody it is not."""
        await work.hold_shared()
        record = await work.tx.get(NodeRecord, audit.node)
        faults = record.faults + (audit.blame not in ("unconfirmed", "gone", "unlooked", "vain"))
        await work.tx.update(msgspec.structs.replace(record, faults=faults))
        lied = audit.blame in ("wrong", *penalty.EVASIONS)
        await credit.lose(work, audit.node, everywhere=lied)
        unsure = await credit.unsure(work, audit)
        for commit in unsure:
            await reject(work, commit, "unlooked")
        if unsure:
            what = "a later share" if len(unsure) == 1 else f"{len(unsure)} later shares"
            work.note("rejected", f"node {audit.node}: {what}, of work that nobody has looked at, will not be paid")

    async def _of_a_lie(self, work: UnitOfWork, audit: Audit) -> None:
        """The job goes back before it; who found it right has not looked, if it was proven or the operator's machine saw it."""
        if await _is_in_the_model(work, audit):
            work.record(RoundForged(audit.epoch, audit.round))
        disputes = [record.dispute for record in work.ended_disputes if record.id == audit.id]
        proven = any(outcome(dispute) == "guilty" for dispute in disputes)
        if proven or any(verdict.own and not verdict.afar for verdict in trust.against(audit)):
            for verdict in audit.verdicts:
                if verdict.verdict == "match" and not (verdict.own or verdict.afar):
                    await self.of_blindness(work, verdict.auditor, audit, "it found right what was forged")

    async def _unpaid(self, work: UnitOfWork, audit: Audit) -> None:
        where: tuple[Condition, ...] = (
            col(CommitRecord.job).equals(work.job.id),
            col(CommitRecord.epoch).equals(audit.epoch),
            col(CommitRecord.round).equals(audit.round),
        )
        for commit in await work.tx.find(CommitRecord, *where, col(CommitRecord.lease).equals(audit.lease)):
            await reject(work, commit, why_of(audit))

    def _end(self, work: UnitOfWork, audit: Audit, how: LeaseEnd) -> None:
        if audit.lease in work.leases:
            work.end(audit.lease, how, f"audit of round {audit.round + 1}: {audit.detail}")


async def _is_in_the_model(work: UnitOfWork, audit: Audit) -> bool:
    """Whether what was forged is in the states since: a step always is, an outer step where the others went on from it."""
    if audit.outer is None:
        return True
    record = await work.tx.get(RoundRecord, audit.job, audit.epoch, audit.round)
    return record.parameters[audit.stage] == audit.outer.parameters


async def _remember_evasion(work: UnitOfWork, audit: Audit) -> None:
    """A node evaded an audit: its owner is told, and a repetition costs stake."""
    await work.hold_shared()
    record = await work.tx.get(NodeRecord, audit.node)
    (lease,) = await work.tx.find(Lease, col(Lease.id).equals(audit.lease))
    share = penalty.evasion_costs(record.evaded, lease.granted, work.now)
    if share is None:
        return
    if share and record.stake > 0:
        what = "names another class than it had said to be of" if audit.blame == "misstated" else "was not shown"
        _take(work, "evaded", lease, record.evaded, share, f"what was drawn of it {what}, again")
    work.record(AuditEvaded(audit.node))
    await work.tx.update(msgspec.structs.replace(record, evaded=work.now))


def _take(work: UnitOfWork, how: str, lease: Lease, before: float, share: int, what: str) -> None:
    """Queue a slash of ``share`` ten-thousandths of a node's stake for what has happened again."""
    told = {"node": lease.node, "lease": lease.id, "before": before, "now": work.now}
    reason = hashlib.sha256(msgspec.json.encode(told, order="sorted")).hexdigest()
    payload: dict[str, str | int] = {"node": lease.node, "reason": reason, "bps": share}
    detail = f"{lease.node}: {what}, lease {lease.id}: {share / 100:g} % of its stake"
    work.queue(OutboxRecord(f"{how}:{lease.id}", work.job.id, "slash", payload, work.now, detail=untrusted(detail)))
    work.note("rejected", f"node {lease.node}: {what}: {share / 100:g} % of its stake")


async def send_away(work: UnitOfWork, node: str, reason: str) -> NodeRecord | None:
    """A node has no place in the network any more; None: it had none before, and one lie costs its stake once."""
    await work.hold_shared()
    record = await work.tx.get(NodeRecord, node)
    if record.banned and not record.reason.startswith(BY_OPERATOR):
        return None
    await work.tx.update(msgspec.structs.replace(record, banned=True, reason=untrusted(reason)))
    work.record(NodeExpelled(node))
    return record


def why_of(audit: Audit) -> Unpaid:
    """What the share of an audited step is not paid for."""
    blame = audit.blame
    return "expelled" if blame == "" or blame == "blind" else blame


async def reject(work: UnitOfWork, commit: CommitRecord, why: Unpaid) -> None:
    """A share will not be paid: of this job, or one that waits in another job of the account. What is paid stays paid."""
    if commit.bound:
        return
    if commit.state == "verified":
        work.change(verified=work.job.verified - commit.amount)
    if commit.state in ("pending", "verified"):
        await work.tx.update(msgspec.structs.replace(commit, state="rejected", amount=0, why=why))
        if commit.job == work.job.id:
            work.record(OutcomeChanged(commit.epoch, commit.round))
