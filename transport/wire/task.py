"""Commands to a task and reports from it.

A *task* is one pipeline stage of one replica of a job, held by a node under a lease. Its worker speaks these messages; agent and
coordinator pass them on. A round is named by ``(epoch, round)``: a round that is done again after a loss has a new epoch.

    coordinator            worker (stage s, replica p)
      BeginRound      ->     trains ``steps`` inner steps (in a round of fixed time as many as it can, at most so many) with
                             its pipeline neighbours; sends its pseudo-gradient to the same stage of the other replicas
                      <-   RoundCommit     Merkle root over its steps, digest of its pseudo-gradient
                      <-   RoundHolding    whose pseudo-gradients it holds, by digest (sent again whenever that grows)
      ApplyRound      ->     once the contributors are fixed: applies theirs in replica order, as soon as it holds them
                      <-   RoundApplied    digest of the parameters and of the state kept; the checkpoint where it was asked for
      AbandonRound    ->     the replica lost a member, or is late: stop stepping, keep receiving, wait for ApplyRound
      OpenStep        ->   StepOpened      everything needed to re-run one committed step
      ReplayStep      ->   AuditReport     the auditor's verdict
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from transport.wire.ids import (
    AuditId,
    Count,
    Digest,
    FiniteLoss,
    LongText,
    NodeAddress,
    ReplicaIndex,
    RoundIndex,
    ShortText,
    StageIndex,
    StepIndex,
)

MAX_STAGES = 64  # A pipeline of more has a bubble longer than its work on any micro-batch count we allow.
MAX_REPLICAS = 256
MAX_MEMBERS = 4096


class Layers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Decoder layers ``first <= i < last``; stage 0 has the embedding too, the last stage the norm and the head."""

    first: Annotated[int, Meta(ge=0, le=10_000)]
    last: Annotated[int, Meta(ge=0, le=10_000)]


class Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    stage: StageIndex
    replica: ReplicaIndex
    node: NodeAddress


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who does what in a round. ``layers[s]`` belongs to stage ``s``. Replica numbers need not be contiguous."""

    epoch: Count
    layers: Annotated[tuple[Layers, ...], Meta(min_length=1, max_length=MAX_STAGES)]
    members: Annotated[tuple[Member, ...], Meta(max_length=MAX_MEMBERS)]

    def node_of(self, stage: int, replica: int) -> str | None:
        """The node at this place, or ``None`` where the plan has nobody."""
        return next((m.node for m in self.members if m.stage == stage and m.replica == replica), None)

    def replicas(self) -> tuple[int, ...]:
        """The replicas of this plan, in order."""
        return tuple(sorted({m.replica for m in self.members}))


# --- commands -----------------------------------------------------------------------------------------------------------


class KeptState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stage's state that lies with peers: the digest of its manifest (``transport.wire.state``), and who has it."""

    manifest: Digest
    holders: Annotated[tuple[NodeAddress, ...], Meta(max_length=MAX_REPLICAS)]


class BeginRound(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="begin"):
    """``first_step`` is the global index of the round's first inner step, from which the sample order follows.

    ``steps`` 0 only validates: the last command of a job. ``seconds``: the first stage of each replica ends the round after about
    so long, with at least one step and at most ``steps``; None: exactly ``steps``. ``state`` (an artifact) or ``kept`` (from
    peers, asked first) replaces what the worker has: it joins, was late, or the round starts again. ``validate``: this replica
    measures the held-out loss before it steps. ``rate_step``: where the learning rate's schedule stands, None: at ``first_step``.
    ``moments``: of the optimizer at this seat, to be taken with the state; they begin at zero where nobody has them any more.
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


class ApplyRound(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="apply"):
    """``contributors``: replica -> digest of its pseudo-gradient for this stage. ``checkpoint``: report the new state too."""

    epoch: Count
    round: RoundIndex
    contributors: Annotated[dict[ReplicaIndex, Digest], Meta(max_length=MAX_REPLICAS)]
    checkpoint: bool = False


class OpenStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="open"):
    """``step`` counts from 0 within the round."""

    audit: AuditId
    epoch: Count
    round: RoundIndex
    step: StepIndex


class ReplayStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="replay"):
    """Re-run one step of ``stage``/``replica`` from ``opening`` (an artifact) and compare with what was committed in ``root``.

    ``pseudo_gradient``: what the member committed to beside the root; the round's last leaf must bind the same one. ``anchor``:
    the parameters of the stage that were agreed on in the round before (``RoundApplied.parameters``), which every leaf must
    name; ``None`` where the coordinator does not know what the member began with: in the first round, and from a checkpoint.
    ``carried``: as committed to beside the root. ``local``: what the member committed to in the round before as carried into
    this one; ``None`` where it began afresh, and must show nothing else.
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

    @property
    def rate_index(self) -> int:
        """Where the learning rate's schedule stood at the step."""
        return (self.first_step if self.rate_step is None else self.rate_step) + self.step


class StopTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="stop"):
    """The task is over; the agent ends the worker and gives the lease back."""

    reason: ShortText = ""


TaskCommand = BeginRound | AbandonRound | ApplyRound | OpenStep | ReplayStep | StopTask


# --- reports ------------------------------------------------------------------------------------------------------------


class TaskReady(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="ready"):
    """The worker has built its stage. ``env_class`` names what must be equal for bit-exact replay."""

    env_class: ShortText
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
    parameters between their exchanges); the last leaf binds it.
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


class RoundHolding(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="holding"):
    """Replica -> digest of the pseudo-gradient held of it, this worker's own included."""

    epoch: Count
    round: RoundIndex
    held: Annotated[dict[ReplicaIndex, Digest], Meta(max_length=MAX_REPLICAS)]


class RoundApplied(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="applied"):
    """``parameters``: digest of the stage's new parameters, equal on all replicas. ``checkpoint``: artifact, where asked for.
    ``kept``: manifest of the new state, which the agent keeps for its peers; ``moments``: that of this seat's optimizer."""

    epoch: Count
    round: RoundIndex
    parameters: Digest
    checkpoint: Digest | None = None
    kept: Digest | None = None
    moments: Digest | None = None


class Validation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="validation"):
    """Mean cross-entropy (nats a token) over the held-out set with the parameters that round ``round`` begins with."""

    epoch: Count
    round: RoundIndex
    loss: FiniteLoss
    tokens: Count


class StepOpened(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="opened"):
    audit: AuditId
    opening: Digest | None
    reason: ShortText = ""


class AuditReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="audit"):
    """``mismatch``: re-execution gave something else than was committed. ``malformed``: the opening does not belong to the
    commitment at all. ``incomparable``: the leaf names another environment class than this auditor's."""

    audit: AuditId
    verdict: Literal["match", "mismatch", "malformed", "incomparable"]
    detail: LongText = ""
    operations: Count = 0


class TaskFailed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="failed"):
    """The worker cannot go on: it ran out of memory, its input is unusable, its process died."""

    reason: LongText


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


TaskReport = (
    TaskReady
    | Progress
    | RoundCommit
    | RoundHolding
    | RoundApplied
    | Validation
    | StepOpened
    | AuditReport
    | TaskFailed
    | Traffic
)
