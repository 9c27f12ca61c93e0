"""Audits and disputes: a committed step is opened, re-run by somebody else, and where they differ, played down to one operation.

An *opening* (an artifact) holds all that a segment of a round takes: its state before, the payloads that it received, its
leaves with their proofs. Whoever has it can re-run the segment; so in a dispute both sides answer the same questions from the
same bytes, whenever they are asked, and nobody has to keep anything else.

    coordinator               prover and challenger alike
      BisectQuery(AskState)     ->  StateAnswer       what the segment has come to after a step; ``chain`` binds all before
      BisectQuery(AskTrace)     ->  TraceAnswer       root over the operations of the first step that differs
      BisectQuery(AskOperation) ->  OperationAnswer   one operation's record and its proof; ``before`` binds all before
      BisectQuery(AskInputs)    ->  InputsAnswer      an artifact with the operation's inputs: ``python -m trainer judge``

States: the two sides agree on what a segment begins with, so the first step whose ``chain`` differs begins with the same state on
both. Operations: the largest index whose ``before`` is equal on both names the first operation that differs, and all that it read
was written by operations that they agree on. Each search takes at most ceil(log2 n) questions to each side.

The two records of that operation then say what to do. They differ in ``writes`` only: the operation is judged from its inputs,
which either side can show. They differ in the digest of a piece: the record of the operation that wrote it must bear each side
out. They differ in name, arguments or regions: ``python -m trainer judge --record`` re-runs the step up to there. A side whose
records do not form a chain (``chain(record.before, record)`` is ``before`` of the next one) has lost; where both sides show
different records at ``p`` and equal ``before`` at a later ``i``, a search between them finds where one side's chain breaks.
"""

import hashlib
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from common.untrusted_text import Told, Untrusted
from protocol.ids import (
    AuditId,
    Count,
    Digest,
    FiniteLoss,
    LongText,
    Mark,
    ReplicaIndex,
    RoundIndex,
    ShortText,
    StageIndex,
    StepIndex,
)
from protocol.plan import MAX_REPLICAS, Plan

KEPT_ROUNDS = 2  # An audit is drawn when its round is complete, while the next one is already running.
MAX_AUDIT_BYTES = 256 << 20  # States and payloads of the kept rounds; beyond it, fewer states and more re-running.
MAX_KEPT_RECORD = 64 << 30  # A round's record on an agent's disk, most of it what a replica carries over.
MAX_LEAF_BYTES = 256 << 10  # 1280 + 512 digests of 64 characters, and what is beside them.
MAX_RECORD_BYTES = 512 << 10  # An optimizer's operation over a stage of 8,000 tensors reads as many pieces.
MAX_OPERATIONS = 1 << 22  # A step of 256 micro-batches through 64 layers has about a million.

Proof = Annotated[tuple[Annotated[bytes, Meta(min_length=32, max_length=32)], ...], Meta(max_length=32)]
"""The path of ``protocol.merkle.MerkleProof``."""

# --- leaves -------------------------------------------------------------------------------------------------------------


class StepLeaf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One committed step. ``step`` is the job's global index; ``received`` and ``sent`` are in ``Position`` order.

    ``before``, ``after``: state at the ends of a segment of ``TrainingSpec.commit_every`` steps, ``None`` inside one. ``job``:
    digest of all that the coordinator decides: hyper-parameters, order of samples, seeds. ``anchor``: digest of the anchor that
    the round began with; ``local``: of what the replica carried into it beside (``None``: the method carries nothing). On the
    round's last leaf: ``pseudo_gradient``, and ``carried``: ``local`` of the next round if this one's contribution counts. On
    the leaf after which the pseudo-gradient was made: ``pseudo_gradient``.
    """

    step: StepIndex
    env_class: Mark
    samples: Digest
    received: Annotated[tuple[Digest, ...], Meta(max_length=1280)]
    sent: Annotated[tuple[Digest, ...], Meta(max_length=512)]
    before: Digest | None
    after: Digest | None
    anchor: Digest
    loss: FiniteLoss | None = None
    pseudo_gradient: Digest | None = None
    local: Digest | None = None
    carried: Digest | None = None
    job: Digest | None = None


class ProvenLeaf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A leaf with its path to the round's root; ``place``: from 0."""

    place: StepIndex
    leaf: StepLeaf
    path: Proof = ()


# --- audits -------------------------------------------------------------------------------------------------------------


class OpenStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="open"):
    """``step`` counts from 0 within the round. ``ending``: show what the segment came to as well, for a ``ReplayAcross``.

    ``anchored``: show the anchor that a lean state is said from; False: whoever runs the step again has it.
    """

    audit: AuditId
    epoch: Count
    round: RoundIndex
    step: StepIndex
    ending: bool = False
    anchored: bool = True


AnchorPlace = Literal["opening", "auditor", "artifact"]
"""Where the anchor is that a lean state is said from: with what is opened, only with who trains the stage too, or stored as an
artifact, since an auditor found something. Its digest is ``ReplayStep.anchor`` in the last two."""


class ReplayStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="replay"):
    """Re-run one step of ``stage``/``replica`` from ``opening`` (an artifact) and compare with what was committed in ``root``.

    ``pseudo_gradient``: what the member committed to beside the root; the round's last leaf must bind the same one. ``anchor``:
    the parameters of the stage that were agreed on in the round before (``RoundApplied.parameters``), which every leaf must
    name; ``None`` where the coordinator does not know what the member began with: in the first round, and from a checkpoint.
    ``carried``: as committed to beside the root. ``local``: what the member committed to in the round before as carried into
    this one; ``None`` where it began afresh, and must show nothing else. ``anchor_in``: see ``AnchorPlace``.
    """

    audit: AuditId
    plan: Plan
    stage: StageIndex
    replica: ReplicaIndex
    round: RoundIndex
    first_step: StepIndex
    step: StepIndex
    total_steps: StepIndex
    root: Digest
    leaves: Count
    pseudo_gradient: Digest
    anchor: Digest | None
    opening: Digest
    carried: Digest | None = None
    local: Digest | None = None
    rate_step: StepIndex | None = None
    anchor_in: AnchorPlace = "opening"

    @property
    def rate_index(self) -> int:
        """Where the learning rate's schedule stood at the step."""
        return self.rate_at(self.step)

    def rate_at(self, step: int) -> int:
        """Where it stood at another step of the round."""
        return (self.first_step if self.rate_step is None else self.rate_step) + step


def loss_tolerance(precision: Literal["fp32", "bf16", "fp16"]) -> float:
    """How far apart losses of honest machines of different environment classes may lie, relative: docs/explanation/trust.md."""
    return 0.0001 if precision == "fp32" else 0.001


class ReplayAcross(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="replay_across"):
    """Re-run a step of another environment class, ``env_class``, and compare what it came to with a tolerance.

    The verdicts are those of a ``ReplayStep``; ``incomparable``: the leaf names a class other than ``env_class``.
    """

    replay: ReplayStep
    env_class: Mark


class ShowLeaf(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="show_leaf"):
    """Show the leaf of a committed step, for an audit of it or of one that a neighbour did; the answer is a ``LeafShown``."""

    audit: AuditId
    epoch: Count
    round: RoundIndex
    step: StepIndex


class LeafShown(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="leaf_shown"):
    """``leaf``: an encoded ``StepLeaf``, with its path to the committed root; ``None``: it is not kept."""

    audit: AuditId
    leaf: Annotated[bytes, Meta(max_length=MAX_LEAF_BYTES)] | None
    path: Proof = ()


class OpeningMade(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="made"):
    """What an audit asks for is made and on its way; the prover needs its records of the step no more. ``StepOpened`` follows.

    ``size``: its bytes, from which it follows how long it may be on its way.
    """

    audit: AuditId
    opening: Digest
    size: Count = 0


class StepOpened(Told, frozen=True, forbid_unknown_fields=True, tag="opened"):
    audit: AuditId
    opening: Digest | None
    reason: ShortText = Untrusted("")


class AuditReport(Told, frozen=True, forbid_unknown_fields=True, tag="audit"):
    """``mismatch``: re-execution gave something else than was committed. ``malformed``: the opening does not belong to the
    commitment at all. ``incomparable``: the leaf names another environment class than this auditor's. ``vain``: it matches, and
    what it was computed from left next to nothing to compute. ``proof``: of a mismatch that the leaves themselves show.
    ``anchor``: an artifact, where it was only with the auditor, who found something: others run the step again with it."""

    audit: AuditId
    verdict: Literal["match", "mismatch", "malformed", "incomparable"]
    detail: LongText = Untrusted("")
    operations: Count = 0
    vain: bool = False
    proof: Annotated[tuple[ProvenLeaf, ...], Meta(max_length=2)] = ()
    anchor: Digest | None = None


# --- the outer step -----------------------------------------------------------------------------------------------------


StepWeights = Annotated[dict[ReplicaIndex, Annotated[int, Meta(ge=1, le=5000)]], Meta(max_length=MAX_REPLICAS)]
"""Replica -> inner steps that it committed to, by which its update weighs; none where all have done as many."""


def step_weights(steps: Mapping[int, int]) -> dict[int, int]:
    """``StepWeights`` of the contributors to a round."""
    return dict(steps) if len({*steps.values()}) > 1 else {}


class ShardRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a reducer did with a shard: the digest of its ``result``, and of its residue ``before`` and ``after`` it.

    The residue is what the codec of a result loses, which its reducer adds to the next; None: there is none.
    """

    shard: ReplicaIndex
    result: Digest
    before: Digest | None = None
    after: Digest | None = None


class OuterRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an outer step did, equal on all replicas of a stage; what came in is in ``ApplyRound.contributors``.

    ``before``, ``after``: digests of anchor and outer momentum; ``after`` of a round is ``before`` of the next. ``left_out``:
    replicas whose pseudo-gradient was decoded, and refused by the checks that the job asks for (``trainer.outer.checks``).
    ``results``: as in ``ApplyRound``. ``reduced``: shards that this very member reduced, so not equal on all.
    """

    before: Digest
    after: Digest
    left_out: Annotated[tuple[ReplicaIndex, ...], Meta(max_length=MAX_REPLICAS)] = ()
    results: Annotated[dict[ReplicaIndex, Digest], Meta(max_length=MAX_REPLICAS)] = {}
    reduced: Annotated[tuple[ShardRecord, ...], Meta(max_length=MAX_REPLICAS)] = ()


def outer_claim(record: OuterRecord, parameters: str) -> Digest:
    """One digest for all that a member says of the step that all members of its stage make: equal ones say the same."""
    spelled = f"{record.before} {record.after} {list(record.left_out)} {parameters}"
    if record.results:
        spelled += "".join(f" {shard}:{digest}" for shard, digest in sorted(record.results.items()))
    return hashlib.sha256(spelled.encode()).hexdigest()


class OpenOuter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="open_outer"):
    """Show the outer step of a round: its state before and the pseudo-gradients; by shards the results, and what came in of the
    shards that this member reduced. The answer is a ``StepOpened``."""

    audit: AuditId
    epoch: Count
    round: RoundIndex


class ReplayOuter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="replay_outer"):
    """Re-run an outer step from ``opening`` and compare with ``record``; the answer is an ``AuditReport``.

    ``contributors``, ``weights``: as in ``ApplyRound``. ``parameters``: as reported in ``RoundApplied``.
    """

    audit: AuditId
    plan: Plan
    stage: StageIndex
    round: RoundIndex
    contributors: Annotated[dict[ReplicaIndex, Digest], Meta(max_length=MAX_REPLICAS)]
    record: OuterRecord
    parameters: Digest
    opening: Digest
    weights: StepWeights = {}


# --- leaves and records -------------------------------------------------------------------------------------------------


class MemoryRegion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor's place in memory; ``start`` in bytes, ``stride`` in values. Equal ``memory``: the same allocation.

    ``dtype`` "bytes": no tensor but bytes, of length ``shape[0]``.
    """

    memory: Count
    start: Count
    dtype: Annotated[str, Meta(pattern=r"^[a-z0-9_]{1,20}$")]
    shape: Annotated[tuple[Count, ...], Meta(max_length=16)]
    stride: Annotated[tuple[Count, ...], Meta(max_length=16)]


class Piece(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Bytes ``start`` and on of what is read are bytes ``offset`` and on of what ``operation`` wrote as its ``output``-th.

    ``digest``: SHA-256 of all of that output, as in the ``Write`` there: so a record with its inputs can be judged by itself.
    """

    start: Count
    length: Count
    operation: Count
    output: Annotated[int, Meta(ge=0, lt=1 << 16)]
    offset: Count
    digest: Annotated[bytes, Meta(min_length=32, max_length=32)]


class Read(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    region: MemoryRegion
    pieces: Annotated[tuple[Piece, ...], Meta(max_length=1 << 16)]


class Write(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``digest``: SHA-256 of all bytes of the region's span after the operation."""

    region: MemoryRegion
    digest: Digest


class OperationRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One operation of a step, a leaf of its trace. ``trainer.operations`` says what the names and arguments are.

    ``before``: ``chain`` of the record before, and ``FIRST`` of the first: equal ones mean that everything before is equal.
    """

    index: Count
    before: Digest
    name: Mark
    module: Mark
    arguments: Annotated[str, Meta(max_length=32_768)]
    reads: Annotated[tuple[Read, ...], Meta(max_length=4096)]
    writes: Annotated[tuple[Write, ...], Meta(max_length=4096)]


def state_interval(steps: int, state_bytes: int, payload_bytes: int, segment: int = 1) -> int:
    """Steps between two kept states such that ``KEPT_ROUNDS`` rounds stay within ``MAX_AUDIT_BYTES``, where one state fits.

    A multiple of ``segment``: openings begin where a segment does.
    """
    room = MAX_AUDIT_BYTES // KEPT_ROUNDS - steps * payload_bytes
    states = max(1, room // max(1, state_bytes))
    return segment * max(1, -(-steps // (states * segment)))


def segment(step: int, every: int, leaves: int) -> tuple[int, int]:
    """First step, and the one after the last, of the segment of a round of ``leaves`` steps that ``step`` lies in.

    Its first leaf says the state before, its last one the state after. ``every``: ``TrainingSpec.commit_every``. A dispute is
    about the whole segment: its ``ReplayStep.step`` is the last step of it, whose ``after`` binds the prover.
    """
    first = step - step % every
    return first, min(first + every, leaves)


def ends_segment(step: int, every: int, leaves: int) -> bool:
    """Whether ``step`` is the last of its segment."""
    return (step + 1) % every == 0 or step + 1 == leaves


FIRST: Digest = hashlib.sha256(b"cottage-trace").hexdigest()


def chain(before: str, leaf: bytes) -> Digest:
    """What stands for ``leaf`` and everything before it."""
    return hashlib.sha256(bytes.fromhex(before) + hashlib.sha256(leaf).digest()).hexdigest()


# --- disputes -----------------------------------------------------------------------------------------------------------


class AskState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="state"):
    """After inner step ``step`` of the round, counted from 0, in the segment that ``ReplayStep.step`` lies in."""

    step: StepIndex


class AskTrace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="trace"):
    step: StepIndex


class AskOperation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="operation"):
    step: StepIndex
    index: Count


class AskInputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="inputs"):
    step: StepIndex
    index: Count


Ask = AskState | AskTrace | AskOperation | AskInputs


class BisectQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="bisect"):
    """A question to one side of a dispute. Each stands by itself, so it can be sent again, to any worker of the job."""

    dispute: AuditId
    replay: ReplayStep
    ask: Ask


class StateAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="state"):
    """What this side says that the segment has come to after a step.

    ``chain`` binds this and everything of the segment before: of the segment's first step, ``chain(leaf.before, ...)``; see
    ``state_chain``. ``leaf``, ``path``: the committed leaf of the step as it was opened, which the prover must agree with.
    """

    chain: Digest
    state: Digest
    sent: Digest
    loss: FiniteLoss | None
    leaf: Annotated[bytes, Meta(max_length=MAX_LEAF_BYTES)]
    path: Proof


class TraceAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="trace"):
    """Root over ``operations`` records. The last one is named ``RESULT``: it holds state, sent and loss as in ``StateAnswer``."""

    root: Digest
    operations: Annotated[int, Meta(ge=1, le=MAX_OPERATIONS)]


class OperationAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="operation"):
    """``record``: an encoded ``OperationRecord``."""

    record: Annotated[bytes, Meta(max_length=MAX_RECORD_BYTES)]
    path: Proof


class InputsAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="inputs"):
    """``artifact``: what ``python -m trainer judge`` takes."""

    artifact: Digest


class NoAnswer(Told, frozen=True, forbid_unknown_fields=True, tag="none"):
    reason: ShortText


class BisectAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="bisected"):
    dispute: AuditId
    ask: Ask
    answer: StateAnswer | TraceAnswer | OperationAnswer | InputsAnswer | NoAnswer


RESULT = "cottage.result"


def sent_digest(sent: tuple[str, ...]) -> Digest:
    """One digest for all payloads that a step sent."""
    return hashlib.sha256("".join(sent).encode()).hexdigest()


def state_chain(before: str, state: str, sent: str, loss: float | None) -> Digest:
    """``StateAnswer.chain``; ``before``: that of the step before, or what the segment's first leaf begins with."""
    spelled = "none" if loss is None else loss.hex()
    return chain(before, f"{state} {sent} {spelled}".encode())
