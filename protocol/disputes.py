"""What is published about a dispute, so that anybody can play it again: every answer of both sides, as they came.

The coordinator writes the SHA-256 of a dispute's evidence into a memo on the ledger (``ruled``) when it ends, and a slash or a
verdict that follows names the same digest. While a dispute runs nothing of it is shown: a side could wait for the other's answer.
"""

import hashlib
from typing import Literal

import msgspec

from common.untrusted_text import View
from protocol.audit import BisectAnswer, ReplayStep
from protocol.ids import AuditId, Count, Digest, JobId, NodeAddress, RoundIndex, StepIndex

Side = Literal["prover", "challenger"]


class SaidAnswer(msgspec.Struct, frozen=True):
    """One answer of one side."""

    side: Side
    answer: BisectAnswer


class DisputeEvidence(msgspec.Struct, frozen=True):
    """A dispute that is over, whole. The same answers lead to the same end (``coordinator.domain.audits.dispute``).

    ``first``: of the disputed segment, within the round. ``step``, ``index``: what the search ended at. ``winner``: None where
    nobody could tell. ``why``: ``operation`` where the coordinator ran the one that was left; ``silence``, ``malformed``,
    ``contradiction`` and ``agreement`` follow from the answers; ``unresolved`` where a side left.
    """

    audit: AuditId
    job: JobId
    prover: NodeAddress
    challenger: NodeAddress
    first: StepIndex
    replay: ReplayStep
    said: tuple[SaidAnswer, ...]
    step: StepIndex
    index: Count
    questions: Count
    winner: Side | None
    why: str
    detail: str


class DisputeView(View, frozen=True):
    """A dispute at a glance. ``digest``: of its evidence, once it is over. ``memo``: the transaction that wrote it."""

    audit: AuditId
    job: JobId
    round: RoundIndex
    stage: int
    replica: int
    prover: NodeAddress
    challenger: NodeAddress
    over: bool
    winner: Side | None
    why: str
    detail: str
    step: StepIndex
    index: Count
    questions: Count
    began: float
    ended: float | None
    digest: Digest | None = None
    memo: str = ""


class DisputeDetail(msgspec.Struct, frozen=True):
    """A dispute and, once it is over, all that was said."""

    view: DisputeView
    evidence: DisputeEvidence | None


def digest_of(evidence: DisputeEvidence) -> Digest:
    """The digest that the ledger holds: SHA-256 of the evidence as JSON, fields in their order, no spaces."""
    return hashlib.sha256(msgspec.json.encode(evidence)).hexdigest()
