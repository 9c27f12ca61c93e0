"""What is published about a round, so that anybody can check it without asking.

The coordinator writes two Merkle roots a round into memos on the ledger: one over its *commitments* before audits are drawn, one
over its *outcome* once they are over. The leaves are the records below, each as the JSON that this module makes of it (fields
in their order, no spaces), which is also how the interface serves them; the tree is ``protocol.merkle``'s.

Amounts are integers, in millionths of the token.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from protocol.ids import AuditId, Count, Digest, JobId, NodeAddress, ReplicaIndex, RoundIndex, StageIndex, StepIndex
from protocol.merkle import merkle_root

RootOf = Literal["commitments", "outcome"]


class CommitmentLeaf(msgspec.Struct, frozen=True, tag="commitment", omit_defaults=True):
    """One member's commitment. ``leaves``: its steps. ``rate``: probability in millionths that one of them is drawn, fixed before
    the draw was known; None where it did not count, so that nothing of it can be drawn. ``outer``: ``audit.outer_claim`` of the
    round's outer step; None where it had said nothing of it when the round ended."""

    stage: StageIndex
    replica: ReplicaIndex
    node: NodeAddress
    payout: NodeAddress
    root: Digest
    leaves: Count
    pseudo_gradient: Digest
    tokens: Count
    operations: Count
    rate: Count | None
    outer: Digest | None = None


class DrawnStep(msgspec.Struct, frozen=True):
    """A step that the draw picked, by its place in the committed tree; the place after the last one is the round's outer step.
    ``twice``: two auditors have to find it right."""

    stage: StageIndex
    replica: ReplicaIndex
    step: StepIndex
    twice: bool


class DrawLeaf(msgspec.Struct, frozen=True, tag="draw"):
    """The draw. ``slot`` and ``block``: the first block of the ledger after slot ``after``, in which the commitments' root was
    written; ``seed`` follows from it and from them, ``steps`` from the seed and the rates."""

    after: Count
    slot: Count
    block: str
    seed: Digest
    steps: tuple[DrawnStep, ...]


ACROSS = " across classes"
"""How the verdict of an auditor ends that is of another environment class: it compared with a tolerance, and proves nothing."""


class AuditVerdict(msgspec.Struct, frozen=True):
    """What one auditor found: ``match``, ``mismatch``, ``malformed`` or ``incomparable``, with ``ACROSS`` where that is so."""

    auditor: NodeAddress
    verdict: str


class AuditLeaf(msgspec.Struct, frozen=True, tag="audit"):
    """One audit and how it ended. ``blame``: why it failed, empty where it did not."""

    audit: AuditId
    stage: StageIndex
    replica: ReplicaIndex
    node: NodeAddress
    step: StepIndex
    state: str
    blame: str
    verdicts: tuple[AuditVerdict, ...]


class ShareLeaf(msgspec.Struct, frozen=True, tag="share"):
    """What a member's part of the round is worth; only ``verified`` ones are paid."""

    stage: StageIndex
    replica: ReplicaIndex
    node: NodeAddress
    payout: NodeAddress
    state: Literal["pending", "verified", "rejected", "void"]
    amount: Count


class TermsLeaf(msgspec.Struct, frozen=True, tag="terms", omit_defaults=True):
    """What was to be done and what it is worth: ``pot`` is split over those who counted, by operations.

    ``least``: steps that are drawn whatever the rates say. ``twice``: how often one goes to two auditors, in millionths.
    ``releases``: of a job with a privacy budget, rounds that were begun until then, this one and those that failed included.
    """

    first_step: Count
    steps: Count
    tokens: Count
    pot: Count
    least: Count
    twice: Count
    releases: Count = 0


Leaf = CommitmentLeaf | TermsLeaf | DrawLeaf | AuditLeaf | ShareLeaf


class RootMemo(msgspec.Struct, frozen=True):
    """A root that the coordinator wrote on the ledger, or is about to. ``signature``: of the transaction, empty until signed."""

    what: RootOf
    root: Digest
    leaves: Count
    signature: str
    state: Literal["queued", "sent", "confirmed", "failed"]


class RoundEvidence(msgspec.Struct, frozen=True):
    """Everything that is published about one complete round. ``memos``: of the roots of just these records."""

    job: JobId
    epoch: Count
    round: RoundIndex
    started: float
    ended: float | None
    concluded: bool
    terms: TermsLeaf
    commitments: tuple[CommitmentLeaf, ...]
    draw: DrawLeaf | None
    audits: tuple[AuditLeaf, ...]
    shares: tuple[ShareLeaf, ...]
    memos: tuple[RootMemo, ...] = ()


def leaves_of(evidence: RoundEvidence, what: RootOf) -> tuple[Leaf, ...]:
    """The leaves of one root, in their order."""
    if what == "commitments":
        return (evidence.terms, *evidence.commitments)
    draw = () if evidence.draw is None else (evidence.draw,)
    return (*draw, *evidence.audits, *evidence.shares)


def leaf_bytes(leaf: Leaf) -> bytes:
    """The bytes that are hashed."""
    return msgspec.json.encode(leaf)


def root_of(leaves: Sequence[Leaf]) -> str:
    """The Merkle root over the leaves, in hexadecimal."""
    return merkle_root(map(leaf_bytes, leaves)).hex()
