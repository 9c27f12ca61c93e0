"""What is published about each round, and the two roots of it that go onto the ledger.

``seal_commitments`` runs in the transaction that stores a round's commitments, ``seal_outcome`` in the one that concludes it or
takes a share back later, so that what the ledger is told and what the database holds cannot come apart.
"""

from collections.abc import Iterable, Sequence

import msgspec

from common.untrusted_text import untrusted
from coordinator.domain.audits.sampling import Beacon
from coordinator.domain.audits.trust import Audit
from coordinator.services.core.domain_events import OutcomeChanged
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.store.ports import Transaction, col
from coordinator.store.records import CommitRecord, OutboxRecord, RoundRecord
from ledger import events as ledger_events
from ledger.addresses import StepPlace
from protocol.audit import outer_claim
from protocol.evidence import (
    ACROSS,
    AuditLeaf,
    AuditVerdict,
    CommitmentLeaf,
    DrawLeaf,
    DrawnStep,
    RootMemo,
    RootOf,
    RoundEvidence,
    ShareLeaf,
    TermsLeaf,
    leaves_of,
    root_of,
)
from protocol.ids import Digest


def evidence_of(record: RoundRecord, commits: Sequence[CommitRecord], audits: Iterable[Audit]) -> RoundEvidence:
    """A complete round as it is published. Orders do not depend on the store's: the roots bind them."""
    beacon = record.beacon or Beacon(least=0)
    ordered = sorted(commits, key=lambda commit: (commit.replica, commit.stage))
    rates = dict(zip((c.lease for c in ordered if c.drawable), beacon.rates, strict=False))
    # Some are asked for after the end.
    shown = [a for a in audits if not a.canary and (a.over or not record.concluded)]
    held = sorted(shown, key=lambda a: (a.replica, a.stage, a.step, a.id))
    return RoundEvidence(
        job=record.job,
        epoch=record.epoch,
        round=record.number,
        started=record.started,
        ended=record.ended,
        concluded=record.concluded,
        terms=_terms(record, beacon),
        commitments=tuple(_commitment(commit, rates.get(commit.lease)) for commit in ordered),
        draw=_draw(record, [audit for audit in held if audit.seed == record.seed]),
        audits=tuple(_audit(audit) for audit in held),
        shares=tuple(ShareLeaf(c.stage, c.replica, c.node, c.payout, c.state, c.amount) for c in ordered),
    )


async def read_evidence(tx: Transaction, record: RoundRecord) -> RoundEvidence:
    """A complete round from the store, with what the ledger was told about it."""
    found = evidence_of(record, await _commits(tx, record), await _audits(tx, record))
    whats: tuple[RootOf, ...] = ("commitments", "outcome") if record.concluded else ("commitments",)
    memos: list[RootMemo] = []
    for what in whats:
        leaves = leaves_of(found, what)
        root = root_of(leaves)
        rows = await tx.find(OutboxRecord, col(OutboxRecord.key).equals(_key(found, what, root)))
        memos += [RootMemo(what, root, len(leaves), row.signature, row.state) for row in rows]
    return msgspec.structs.replace(found, memos=tuple(memos))


def seal_commitments(work: UnitOfWork, record: RoundRecord, commits: Sequence[CommitRecord]) -> None:
    """Tell the ledger what everybody committed to and at what rates it may be drawn; before anything of the round is drawn."""
    _queue(work, evidence_of(record, commits, ()), "commitments")


async def seal_of(tx: Transaction, record: RoundRecord) -> OutboxRecord | None:
    """The row that tells the ledger what the round's members committed to."""
    found = evidence_of(record, await _commits(tx, record), ())
    key = _key(found, "commitments", root_of(leaves_of(found, "commitments")))
    rows = await tx.find(OutboxRecord, col(OutboxRecord.key).equals(key), limit=1)
    return rows[0] if rows else None


async def seal_outcome(work: UnitOfWork, record: RoundRecord) -> None:
    """Tell the ledger how a concluded round came out, unless it knows just that already."""
    stored = {audit.id: audit for audit in await _audits(work.tx, record)}
    newer = {audit.id: audit for audit in work.concluded if (audit.epoch, audit.round) == (record.epoch, record.number)}
    found = evidence_of(record, await _commits(work.tx, record), (stored | newer).values())
    root = root_of(leaves_of(found, "outcome"))
    if not await work.tx.find(OutboxRecord, col(OutboxRecord.key).equals(_key(found, "outcome", root)), limit=1):
        _queue(work, found, "outcome")


async def correct_outcomes(work: UnitOfWork) -> None:
    """Tell the ledger anew about concluded rounds of which this work has ended audits or taken shares back."""
    for epoch, number in sorted({(changed.epoch, changed.round) for changed in work.take(OutcomeChanged)}):
        record = await work.tx.get(RoundRecord, work.job.id, epoch, number)
        if record.concluded:
            await seal_outcome(work, record)


def _queue(work: UnitOfWork, evidence: RoundEvidence, what: RootOf) -> None:
    leaves = leaves_of(evidence, what)
    root = root_of(leaves)
    event = ledger_events.Rooted(
        job=evidence.job, epoch=evidence.epoch, round=evidence.round, what=what, leaves=len(leaves), root=root
    )
    key, detail = _key(evidence, what, root), f"round {evidence.round + 1}: {what}"
    payload: dict[str, str | int] = {"text": ledger_events.encode(event)}
    if all(row.key != key for row in work.outbox):
        work.queue(OutboxRecord(key, evidence.job, "event", payload, work.now, detail=untrusted(detail)))


def _key(evidence: RoundEvidence, what: RootOf, root: str) -> str:
    return f"{what}:{evidence.epoch}:{evidence.round}:{root[:32]}:{evidence.job}"


async def _commits(tx: Transaction, record: RoundRecord) -> list[CommitRecord]:
    return await tx.find(
        CommitRecord,
        col(CommitRecord.job).equals(record.job),
        col(CommitRecord.epoch).equals(record.epoch),
        col(CommitRecord.round).equals(record.number),
    )


async def _audits(tx: Transaction, record: RoundRecord) -> list[Audit]:
    return await tx.find(
        Audit,
        col(Audit.job).equals(record.job),
        col(Audit.epoch).equals(record.epoch),
        col(Audit.round).equals(record.number),
    )


def _terms(record: RoundRecord, beacon: Beacon) -> TermsLeaf:
    work = record.first_step, record.steps, record.tokens, record.pot
    return TermsLeaf(*work, beacon.least, beacon.twice, record.released)


def _commitment(commit: CommitRecord, rate: int | None) -> CommitmentLeaf:
    return CommitmentLeaf(
        stage=commit.stage,
        replica=commit.replica,
        node=commit.node,
        payout=commit.payout,
        root=commit.root,
        leaves=commit.leaves,
        pseudo_gradient=commit.pseudo_gradient,
        tokens=commit.tokens,
        operations=commit.operations,
        rate=rate,
        outer=outer_claim_of(commit),
    )


def outer_claim_of(commit: CommitRecord) -> Digest | None:
    """What a member says of the outer step, as one digest; None: nothing."""
    if commit.outer is None or commit.parameters is None:
        return None
    return outer_claim(commit.outer, commit.parameters)


def place_of(audit: Audit) -> StepPlace:
    """What an audit looks at, as a bonded dispute on the ledger names it."""
    return StepPlace(audit.job, audit.epoch, audit.round, audit.stage, audit.replica, audit.step)


def _draw(record: RoundRecord, drawn: Sequence[Audit]) -> DrawLeaf | None:
    beacon = record.beacon
    if beacon is None or beacon.after is None or beacon.slot is None:
        return None
    steps = tuple(DrawnStep(audit.stage, audit.replica, audit.step, audit.twice) for audit in drawn)
    return DrawLeaf(beacon.after, beacon.slot, beacon.block, record.seed, steps)


def _audit(audit: Audit) -> AuditLeaf:
    verdicts = tuple(
        AuditVerdict(verdict.auditor, f"{verdict.verdict}{ACROSS if verdict.afar else ''}")
        for verdict in audit.verdicts
    )
    return AuditLeaf(audit.id, audit.stage, audit.replica, audit.node, audit.step, audit.state, audit.blame, verdicts)
