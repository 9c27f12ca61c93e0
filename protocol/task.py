"""Commands to a task and reports from it.

A *task* is one pipeline stage of one replica of a job, held by a node under a lease. Its worker speaks these messages; agent and
coordinator pass them on. A round is named by ``(epoch, round)``: a round that is done again after a loss has a new epoch.

    coordinator            worker (stage s, replica p)
      BeginRound      ->     trains ``steps`` inner steps (in a round of fixed time as many as it can, at most so many) with
                             its pipeline neighbours; sends its pseudo-gradient to the same stage of the other replicas
                      <-   RoundCommit     Merkle root over its steps, digest of its pseudo-gradient
                      <-   RoundHolding    whose pseudo-gradients it holds, by digest (sent again whenever that grows)
      ReduceRound     ->     by shards only, once the contributors are chosen: reduces its shard of theirs, hands the result out
                      <-   RoundHolding    the results that it holds, its own included, by digest
      SumStep         ->     the agent's, of a federated job with secure sums: ``protocol.federated.sums``
                      <-   SumSaid
      ApplyRound      ->     once the contributors are fixed: applies theirs in replica order, as soon as it holds them; by
                             shards the results, which every living member holds
                      <-   RoundApplied    digest of the parameters and of the state kept; the checkpoint where it was asked for
      AbandonRound    ->     the replica lost a member, or is late: stop stepping, keep receiving, wait for ApplyRound
      OpenStep        ->   OpeningMade     from the agent: the answer is made, and on its way
                      <-   StepOpened      everything needed to re-run one committed step
      ShowLeaf        ->   LeafShown       the committed leaf of a step: what the neighbours say is held against each other
      ReplayStep      ->   AuditReport     the auditor's verdict
      ReplayAcross    ->   AuditReport     the same for a step of another environment class, with a tolerance
      OpenOuter, ReplayOuter               the same for the outer step
      BisectQuery     ->   BisectAnswer    a dispute: ``protocol.audit``
      AskModel        ->   ModelSaid       of a job that serves, which has no rounds: a request, and pieces of its answer
      RunElements     ->   ElementsMoved   of an array job, which has no rounds either: ``protocol.job.elements``
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from common.untrusted_text import Told, Untrusted
from protocol.audit import (
    AuditReport,
    BisectAnswer,
    BisectQuery,
    LeafShown,
    OpeningMade,
    OpenOuter,
    OpenStep,
    OuterRecord,
    ReplayAcross,
    ReplayOuter,
    ReplayStep,
    ShardRecord,
    ShowLeaf,
    StepOpened,
    StepWeights,
)
from protocol.federated.sums import SumSaid, SumStep
from protocol.ids import (
    Count,
    Digest,
    FiniteLoss,
    LongText,
    Mark,
    NodeAddress,
    ReplicaIndex,
    RoundIndex,
    ShortText,
    StageIndex,
    StepIndex,
)
from protocol.job.elements import ArrayReady, DropElements, ElementsMoved, RunElements
from protocol.plan import MAX_MEMBERS, MAX_REPLICAS, MAX_STAGES, Layers, Member, Plan
from protocol.serving import MAX_SAID, EngineCommand, EngineReport, SketchKey

__all__ = [
    "MAX_MEMBERS",
    "MAX_REPLICAS",
    "MAX_STAGES",
    "AbandonRound",
    "ApplyRound",
    "ArrayReady",
    "AskModel",
    "AuditReport",
    "AwaitStages",
    "BeginRound",
    "BisectAnswer",
    "BisectQuery",
    "DropElements",
    "ElementsMoved",
    "ExpectPeers",
    "FailureCause",
    "JoinStages",
    "KeptState",
    "Layers",
    "LeafShown",
    "Member",
    "ModelSaid",
    "OpenOuter",
    "OpenStep",
    "OpeningMade",
    "OuterRecord",
    "Plan",
    "Progress",
    "ReduceRound",
    "ReplayAcross",
    "ReplayOuter",
    "ReplayStep",
    "RoundApplied",
    "RoundCommit",
    "RoundHolding",
    "RunElements",
    "ShardRecord",
    "ShowLeaf",
    "StepChallenge",
    "StepOpened",
    "StepWeights",
    "StopTask",
    "SumSaid",
    "SumStep",
    "TaskCommand",
    "TaskFailed",
    "TaskReady",
    "TaskReport",
    "Traffic",
    "Validation",
]

# --- commands -----------------------------------------------------------------------------------------------------------


class KeptState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stage's state that lies with peers: the digest of its manifest (``protocol.state``), and who has it."""

    manifest: Digest
    holders: Annotated[tuple[NodeAddress, ...], Meta(max_length=MAX_REPLICAS)]


class BeginRound(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="begin"):
    """``first_step`` is the global index of the round's first inner step, from which the sample order follows.

    ``steps`` 0 only validates: the last command of a job. ``seconds``: the first stage of each replica ends the round after about
    so long, with at least one step and at most ``steps``; None: exactly ``steps``. ``state`` (an artifact) or ``kept`` (from
    peers, asked first) replaces what the worker has: it joins, was late, or the round starts again. ``validate``: this replica
    measures the held-out loss before it steps. ``rate_step``: where the learning rate's schedule stands, None: at ``first_step``.
    ``moments``: of the optimizer at this seat, to be taken with the state; they begin at zero where nobody has them any more.
    ``residue``: of this member's shard (``ShardRecord.after``), which its result is to begin with; None: it begins without.
    ``clip``: of this round's updates, where a federated job has it follow them; None: that of the document.
    """

    plan: Plan
    round: RoundIndex
    first_step: StepIndex
    steps: Annotated[int, Meta(ge=0, le=5000)]
    total_steps: StepIndex
    validate: bool = False
    state: Digest | None = None
    kept: KeptState | None = None
    seconds: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    rate_step: StepIndex | None = None
    moments: KeptState | None = None
    residue: Digest | None = None
    clip: Annotated[float, Meta(gt=0, le=1e9)] | None = None

    @property
    def replaces_state(self) -> bool:
        """Whether the worker's own state is to be forgotten."""
        return self.state is not None or self.kept is not None

    def rate_index(self, step: int) -> int:
        """Where the learning rate's schedule stands at the round's inner step ``step``, counted from 0."""
        return (self.first_step if self.rate_step is None else self.rate_step) + step


class AbandonRound(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="abandon"):
    epoch: Count
    round: RoundIndex


class ReduceRound(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="reduce"):
    """Reduce the shards of these contributors: ``protocol.job.sharding``. A shard has the name of the replica that it is cut for.

    ``turn``: grows whenever the contributors of a round change, which nobody has applied yet. ``reducers``: shard -> replica. Who
    is named for another's shard gets its parts of the contributors anew; of those in ``passed`` (shard -> digest) it passes on
    the result that it holds. ``weights``: see ``StepWeights``.
    """

    epoch: Count
    round: RoundIndex
    turn: Count
    contributors: Annotated[dict[ReplicaIndex, Digest], Meta(max_length=MAX_REPLICAS)]
    reducers: Annotated[dict[ReplicaIndex, ReplicaIndex], Meta(max_length=MAX_REPLICAS)]
    passed: Annotated[dict[ReplicaIndex, Digest], Meta(max_length=MAX_REPLICAS)] = {}
    weights: StepWeights = {}


class ApplyRound(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="apply"):
    """``contributors``: replica -> digest of its pseudo-gradient for this stage. ``checkpoint``: report the new state too.

    ``results``: shard -> digest of what its reducer handed out; none in a mesh. ``weights``: see ``StepWeights``. ``total``: of a
    secure sum, the artifact that all owners' updates came to, which comes along; little-endian uint32.
    """

    epoch: Count
    round: RoundIndex
    contributors: Annotated[dict[ReplicaIndex, Digest], Meta(max_length=MAX_REPLICAS)]
    checkpoint: bool = False
    results: Annotated[dict[ReplicaIndex, Digest], Meta(max_length=MAX_REPLICAS)] = {}
    weights: StepWeights = {}
    total: Digest | None = None


class ExpectPeers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="expect"):
    """Nodes that begin at this stage with the next round: they may link already, and have the weights that the job starts from.

    It takes the place of the one before, and is for the agent alone.
    """

    nodes: Annotated[tuple[NodeAddress, ...], Meta(max_length=MAX_REPLICAS)] = ()


class AskModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="ask_model"):
    """To a node that holds a model, or its first layers (``JobSpec.serve``). Nothing of it is stored, or sent again."""

    body: EngineCommand


class JoinStages(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="join_stages"):
    """To each node of a replica that several hold together: who they are from now on. Answers under way are over, and what is of
    an earlier epoch is dropped. ``key``: of this node's sketches alone, or a neighbour could send what they do not see."""

    plan: Plan
    key: SketchKey = b""


class AwaitStages(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="await_stages"):
    """To each ready node of a replica that several hold together, while one of the others is not there: it answers nothing.

    It is for the agent alone, and holds until the next ``JoinStages``.
    """


class StopTask(Told, frozen=True, forbid_unknown_fields=True, tag="stop"):
    """The task is over; the agent ends the worker and gives the lease back."""

    reason: ShortText = Untrusted("")


TaskCommand = (
    BeginRound
    | AbandonRound
    | ReduceRound
    | SumStep
    | ApplyRound
    | OpenStep
    | ShowLeaf
    | ReplayStep
    | ReplayAcross
    | OpenOuter
    | ReplayOuter
    | BisectQuery
    | ExpectPeers
    | AskModel
    | JoinStages
    | AwaitStages
    | RunElements
    | DropElements
    | StopTask
)


# --- reports ------------------------------------------------------------------------------------------------------------


class TaskReady(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="ready"):
    """The worker has built its stage. ``env_class`` names what must be equal for bit-exact replay."""

    env_class: Mark
    parameters: Count


class Progress(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="progress"):
    """After each inner step; lossy: only the newest matters. ``loss`` is known on the last stage only."""

    epoch: Count
    round: RoundIndex
    step: StepIndex
    tokens: Count
    loss: FiniteLoss | None = None


class RoundCommit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="commit"):
    """``leaves``: inner steps that were done, the same on all stages of a replica. ``operations``: floating-point operations of
    them (6 x the stage's parameters x tokens).

    ``carried``: digest of what the replica carries into the next round if this one's contribution counts (error feedback,
    parameters between their exchanges); the last leaf binds it. ``busy``: seconds of the round's steps without waiting for
    payloads; 0: not told. ``left_out``: steps whose gradients overflowed in half floats, and that changed nothing.
    ``unclipped``: where the clip follows the updates, 1 of an update within the clip, else 0, plus noise. ``heldout``: the loss
    of an owner's data that is held back, as ``HeldoutLoss.nats`` has it, plus noise. In a secure sum both are parts of that.
    """

    epoch: Count
    round: RoundIndex
    root: Digest
    leaves: Count
    pseudo_gradient: Digest
    tokens: Count
    operations: Count
    loss: FiniteLoss | None = None
    carried: Digest | None = None
    busy: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    left_out: Count = 0
    unclipped: Annotated[float, Meta(ge=-1e6, le=1e6)] | None = None
    heldout: Annotated[float, Meta(ge=-1e6, le=1e6)] | None = None


class RoundHolding(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="holding"):
    """Replica -> digest of the pseudo-gradient held of it, this worker's own included; by shards, of which it holds its shard.

    ``taken``: of other shards that it was named for, the replicas whose parts it holds. ``results``: shard -> digest of the
    result held, in turn ``turn``; ``reduced``: of those that it came to itself, which is its word for good. By shards each
    report has what is new.
    """

    epoch: Count
    round: RoundIndex
    held: Annotated[dict[ReplicaIndex, Digest], Meta(max_length=MAX_REPLICAS)]
    taken: Annotated[
        dict[ReplicaIndex, Annotated[tuple[ReplicaIndex, ...], Meta(max_length=MAX_REPLICAS)]],
        Meta(max_length=MAX_REPLICAS),
    ] = {}
    turn: Count = 0
    results: Annotated[dict[ReplicaIndex, Digest], Meta(max_length=MAX_REPLICAS)] = {}
    reduced: Annotated[dict[ReplicaIndex, Digest], Meta(max_length=MAX_REPLICAS)] = {}


class RoundApplied(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="applied"):
    """``parameters``: digest of the stage's new parameters, equal on all replicas. ``checkpoint``: artifact, where asked for.
    ``kept``: manifest of the new state, which the agent keeps for its peers; ``moments``: that of this seat's optimizer.
    ``outer``: what the outer step did, equal on all replicas."""

    epoch: Count
    round: RoundIndex
    parameters: Digest
    checkpoint: Digest | None = None
    kept: Digest | None = None
    moments: Digest | None = None
    outer: OuterRecord | None = None


class PreferenceScore(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a model tells held-out pairs of answers apart. An answer's *reward* is beta times how many nats likelier it has become.

    ``accuracy``: share of the pairs whose chosen answer has the higher reward, equal ones not counted; ``margin``: by how much it
    is higher, on average. What ``trl`` calls ``rewards/accuracies`` and ``rewards/margins``.
    """

    accuracy: Annotated[float, Meta(ge=0, le=1)]
    margin: FiniteLoss


class Validation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="validation"):
    """Mean cross-entropy (nats a token) over the held-out set with the parameters that round ``round`` begins with.

    ``weights``: digest of the last stage's parameters that it was computed from, as ``RoundApplied.parameters``; ``sums``:
    SHA-256 of each micro-batch's sum of losses (float64, little-endian), in order. Replicas of one environment class say the
    same, bit for bit. ``preference``: beside the loss, where pairs of answers are compared.
    """

    epoch: Count
    round: RoundIndex
    loss: FiniteLoss
    tokens: Count
    weights: Digest | None = None
    sums: Digest | None = None
    preference: PreferenceScore | None = None


class StepChallenge(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="challenge"):
    """Somebody doubts a step of a finished round and asks to re-run it; see ``coordinator.domain.audits.trust.refusal``."""

    round: RoundIndex
    stage: StageIndex
    replica: ReplicaIndex
    step: StepIndex


FailureCause = Literal["machine", "memory", "inputs", "numbers"]


class TaskFailed(Told, frozen=True, forbid_unknown_fields=True, tag="failed"):
    """The worker cannot go on: it ran out of memory, its input is unusable, its process died.

    ``tampered``: somebody on its computer reached into its sandbox, as the agent saw and says of its own owner. ``cause``: whose
    fault the worker takes it for: the machine's, that of its memory, which is too little for the stage, that of the job's own
    files, or of its numbers, which grew beyond what a float holds and would on any machine. A worker that a job took over may
    say so, too: it spares its machine.
    """

    reason: LongText
    tampered: bool = False
    cause: FailureCause = "machine"


TAMPER_AGAIN_S = 30 * 86_400.0  # Within this after another time, somebody's hand in a sandbox costs stake, too.
# Of the node's stake, in ten-thousandths: a 25th of what a lie costs, for its agent told it by itself.
TAMPER_BPS = 200
EVASION_AGAIN_S = 30 * 86_400.0  # Within this after another time, not showing what is drawn costs stake, too.
# Of the node's stake: a tenth of what a lie costs, for nobody has seen one; a machine may be broken twice.
EVASION_BPS = 500

MAX_LOG_LINES = 64
MAX_LOG_TEXT = 1000


class WorkerLogLine(Told, frozen=True, forbid_unknown_fields=True):
    """``time``: in Unix seconds, by the worker's clock."""

    time: Annotated[float, Meta(ge=0, lt=1e12)]
    level: Literal["debug", "info", "warning", "error"]
    text: Annotated[Untrusted, Meta(max_length=MAX_LOG_TEXT)]


class WorkerLog(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="log"):
    """Lossy; what a worker has to say to whoever submitted the job. ``dropped``: lines before these that were too many."""

    lines: Annotated[tuple[WorkerLogLine, ...], Meta(max_length=MAX_LOG_LINES)]
    dropped: Count = 0


class Traffic(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="traffic"):
    """Lossy; about every two seconds and at the end of each round. Counted by the agent for this lease since it began.

    Payload bytes that went to peers by lane; all bytes put on the wire to peers; what plain float32 exchange would have
    sent (activations each way as they are, float32 gradients to every other replica at every step); and artifact bytes
    to the coordinator.
    """

    activations: Count
    bulk: Count
    wire: Count
    naive: Count
    artifacts: Count


class ModelSaid(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="model_said"):
    """What a model says to those who ask (``AskModel``), in order; lossy, since whoever waits asks another node."""

    reports: Annotated[tuple[EngineReport, ...], Meta(min_length=1, max_length=MAX_SAID)]


TaskReport = (
    TaskReady
    | Progress
    | RoundCommit
    | RoundHolding
    | SumSaid
    | RoundApplied
    | Validation
    | OpeningMade
    | StepOpened
    | LeafShown
    | AuditReport
    | BisectAnswer
    | StepChallenge
    | TaskFailed
    | Traffic
    | WorkerLog
    | ModelSaid
    | ArrayReady
    | ElementsMoved
)
