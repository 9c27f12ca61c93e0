"""Resources of the REST interface (JSON), shared by the coordinator's pages, its client and the command line.

Amounts are integers, in millionths of the token; times are Unix seconds.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from common.untrusted_text import Told, Untrusted, View
from protocol.evaluation import EvaluationView
from protocol.ids import ID_PATTERN, Count, Digest, FiniteLoss, JobId, LongText, NodeAddress, ShortText, UploadId
from protocol.job.job import DatasetFormat, JobSpec, ServedWeights
from protocol.rest.arrays import ArrayView
from protocol.rest.federation import FederationState
from protocol.rest.lending import LendingRule
from protocol.task import PreferenceScore

JobStateName = Literal[
    "created", "funded", "planned", "running", "paused", "verifying", "settled", "failed", "cancelled"
]


class Problem(View, frozen=True):
    """Every error of the interface (RFC 9457, ``application/problem+json``).

    ``detail`` names the value and the way out; ``code`` is stable, for programs; ``field`` is the part of the request that it is
    about, where it is about one. ``type`` leads to what the code means, ``instance`` is the path that was asked for.
    """

    code: str
    detail: Untrusted
    field: str = ""
    type: str = "about:blank"
    title: str = ""
    status: int = 0
    instance: str = ""


class NewUpload(Told, frozen=True, forbid_unknown_fields=True):
    length: Annotated[int, Meta(ge=1, le=200 << 30)]
    name: ShortText = Untrusted("")
    purpose: Literal["dataset", "weights", "tokenizer", "image", "input", "inputs"] = "dataset"
    format: DatasetFormat = "auto"
    text_field: Annotated[str, Meta(min_length=1, max_length=100)] = "text"
    sha256: Digest | None = None
    """Of the whole file, where its sender knows it: another one is refused."""
    # ``inputs``: many small inputs in one archive of the form of a result, each called by its SHA-256. They become artifacts of
    # their own, and the archive itself is not kept.


class Upload(msgspec.Struct, frozen=True):
    """``PATCH`` it from ``offset`` on. Once complete it is checked, and ``artifact`` names it.

    ``expires``: an upload that nobody goes on with until then is given up; None once it is complete.
    """

    id: UploadId
    length: int
    offset: int
    artifact: Digest | None = None
    expires: float | None = None


class NewJob(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``submitter``: the wallet that will fund the escrow. ``None``: the coordinator's test wallet (embedded ledger only)."""

    spec: JobSpec
    submitter: NodeAddress | None = None


class Quote(View, frozen=True):
    """What a job would take on this network now. ``limit`` says in words what bounds it, and once nodes are chosen what bounds
    those; ``problems`` what forbids it.

    ``price`` is fixed: it is what is paid if every replica takes part in every round, and never is more paid; ``price_high`` is
    ``price``. A round that lost replicas pays less. Nine of ten jobs should pay ``price_low`` at least, and half of them
    ``price_likely``. What an audit finds wrong is not paid at all, and work that a cancelled job did not do neither.

    ``hours`` of training are likely, from the first round's beginning to the last one's end; nine of ten jobs should take between
    ``hours_low`` and ``hours_high``. ``hours_planned`` is the plan's own sum, which the range is worked out from.

    ``rate`` is the network's price of 10^15 operations; nodes that ask more are not chosen. ``fee_lamports`` is what the ledger
    takes from the submitter; ``reasons`` say where all of it comes from.

    ``weights``: how nodes of a deployment hold the model.
    """

    operations: float
    parameters: int
    tokens: int
    stages: int
    replicas: int
    nodes_available: int
    rounds: int
    hours: float
    price: int
    price_low: int
    price_high: int
    memory_mb_per_stage: tuple[int, ...]
    limit: str
    problems: tuple[str, ...] = ()
    rate: int = 0
    price_likely: int = 0
    fee_lamports: int = 0
    reasons: tuple[str, ...] = ()
    hours_low: float = 0.0
    hours_high: float = 0.0
    hours_planned: float = 0.0
    weights: ServedWeights = "float32"


class Choice(View, frozen=True):
    """Another job that would be cheaper or sooner. ``changes``: fields of the document by path, such as ``training.tokens``."""

    text: str
    changes: dict[str, str | int | float | None]
    quote: Quote


class Funding(View, frozen=True):
    """What the submitter's wallet must do: open the escrow of ``job_key`` with ``amount`` for ``coordinator``.

    ``max_payees``: accounts that the escrow must have room for; the job never pays more. ``missing``: what is still to be
    deposited; where the escrow is open already, raise its cap by as much.
    """

    job_key: str
    amount: int
    deadline: int
    coordinator: NodeAddress
    ledger_url: str
    program: str
    mint: str
    escrow: str = ""
    max_payees: int = 64
    missing: int = 0


class JobNode(View, frozen=True):
    """A node's part in a job. ``verified`` and ``paid`` in millionths; ``rounds`` committed and counted."""

    node: NodeAddress
    name: Untrusted
    device: Untrusted
    stage: int | None
    replica: int | None
    state: Literal["starting", "ready", "training", "waiting", "spare", "auditor", "lost", "rejected", "done"]
    rounds: int
    steps: int
    tokens: int
    operations: int
    audits_passed: int
    audits_failed: int
    verified: int
    paid: int
    bytes_sent: int


class Agreement(msgspec.Struct, frozen=True):
    """Whose word a held-out loss is.

    ``same``: computers of different owners that came to it, bit for bit; ``near``: of another kind, within the tolerance between
    kinds; ``of``: that reported. 1 of 1 is one computer's word; ``same`` 0: they contradict each other, and there is no loss.
    """

    same: int
    near: int
    of: int


class RoundView(msgspec.Struct, frozen=True):
    """A round. ``agreement``: whose word ``validation_loss`` is; ``preference``: beside it, where pairs are compared."""

    round: int
    epoch: int
    state: Literal["training", "applying", "complete"]
    tokens: int
    train_loss: float | None
    validation_loss: float | None
    contributors: tuple[int, ...]
    started: float
    ended: float | None
    agreement: Agreement | None = None
    preference: PreferenceScore | None = None


class AuditView(View, frozen=True):
    """An audit. ``blame``: why it failed; ``gone``: the node left before it opened the step, which proves no lie.

    ``deadline``: until when the node has to open the step, in Unix seconds; null once it is here. ``away``: since when the
    node's line is away; the deadline moves out by as long.
    """

    audit: str
    round: int
    step: int
    stage: int
    replica: int
    node: NodeAddress
    auditor: NodeAddress | None
    state: Literal["drawn", "opening", "showing", "replaying", "passed", "failed", "void"]
    detail: Untrusted
    blame: Literal[
        "", "gone", "refused", "misstated", "unconfirmed", "wrong", "blind", "distant", "unlooked", "vain"
    ] = ""
    deadline: float | None = None
    away: float | None = None


class CommitView(View, frozen=True):
    """A commitment: ``drawable`` says that the round's audit draw could have picked it; ``amount`` what it brought.

    ``signature``: of the confirmed ledger transaction that paid it; empty until then.
    """

    round: int
    epoch: int
    stage: int
    replica: int
    node: NodeAddress
    root: Digest
    leaves: int
    tokens: int
    operations: int
    drawable: bool
    state: Literal["pending", "verified", "rejected", "void"]
    amount: int
    signature: str = ""


class Receipt(View, frozen=True):
    """One ledger transaction of the job; ``id`` as in the ledger's list."""

    kind: Literal["fund", "accept", "event", "settle", "promise", "refund", "slash", "verdict", "table"]
    signature: str
    state: Literal["queued", "sent", "confirmed", "failed"]
    amount: int
    time: float
    detail: Untrusted
    id: int = 0


class JobEvent(View, frozen=True):
    id: int
    time: float
    kind: str
    text: Untrusted


class Metric(msgspec.Struct, frozen=True):
    """A point of the loss curves: after ``tokens`` tokens in all."""

    round: int
    step: int
    tokens: int
    kind: Literal["train", "validation"]
    loss: FiniteLoss
    time: float


class ServingView(msgspec.Struct, frozen=True):
    """How a job's model is served. Prices in millionths of the token, fixed when the job was made.

    Attributes:
        ready: replicas that answer, each of so many nodes as it has ``stages``. ``loading``: nodes that are about to.
        answering: answers under way. ``waiting``: requests that wait for a node.
        answers, tokens, prompt_tokens: so far, of nodes.
        checked: answers that were drawn again, ``wrong`` of them not as the model says them.
        per_million: a million tokens of answers. ``per_million_prompt``: of prompts. ``per_hour``: an hour of a ready node.
    """

    ready: int
    loading: int
    answering: int
    waiting: int
    answers: int
    tokens: int
    prompt_tokens: int
    checked: int
    wrong: int
    per_million: int
    per_million_prompt: int
    per_hour: int
    stages: int = 1


class JobView(View, frozen=True):
    """``bytes_*`` as in ``task.Traffic``, summed over the nodes. ``model``: artifact of the model archive once there is one.

    ``sentence`` says where the job stands; ``queue_position`` counts from 1 among jobs that wait for nodes. ``wish``: what
    happens once the round in flight is safe, or, of an end before its time, once what was done is looked at.
    ``ready_likely``, between ``ready_low`` and ``ready_high``, is when the training
    will be done, from the rounds that were measured; None is not known. ``eta_seconds``: the likely time left at the last round's
    end. ``cost``: of all work so far, ``cost_projected``: of all of it in the end, ``cap``: never more than this, as long as
    nothing is added. ``checkpoint``: rounds that are in the newest one, 0 without one. ``agreement``: whose word
    ``validation_loss`` is; ``preference``: beside it, where pairs of answers are compared.
    ``evaluation``: what the document's tasks came to; they are run once the job is settled. ``serving``: of a job that answers.
    ``array``: of one that runs containers. ``federation``: of one whose data stays at its owners.
    """

    id: JobId
    name: Untrusted
    state: JobStateName
    reason: Untrusted
    spec: JobSpec
    submitter: NodeAddress
    created: float
    ended: float | None
    quote: Quote
    rounds_total: int
    rounds_done: int
    tokens_done: int
    tokens_total: int
    tokens_per_second: float
    train_loss: float | None
    validation_loss: float | None
    first_validation_loss: float | None
    escrow: int
    paid: int
    refunded: int
    bytes_sent: int
    bytes_naive: int
    bytes_artifacts: int
    audits: int
    model: Digest | None
    eta_seconds: float | None
    sentence: Untrusted = Untrusted("")
    queue_position: int | None = None
    wish: Literal["", "pause", "stop", "cancel", "fail"] = ""
    ready_likely: float | None = None
    ready_low: float | None = None
    ready_high: float | None = None
    cost: int = 0
    cost_projected: int = 0
    cap: int = 0
    checkpoint: int = 0
    shared: bool = False
    agreement: Agreement | None = None
    preference: PreferenceScore | None = None
    evaluation: EvaluationView | None = None
    serving: ServingView | None = None
    array: ArrayView | None = None
    federation: FederationState | None = None


class CheckpointPart(msgspec.Struct, frozen=True):
    """One stage's file of a checkpoint: safetensors, ``bytes`` long."""

    stage: int
    sha256: Digest
    bytes: int


class CheckpointView(msgspec.Struct, frozen=True):
    """The model after ``round`` rounds. ``step``: the next inner step; ``tokens``: that it was trained on.

    ``verified``: the audits of all rounds in it are over. ``validation_loss`` where it was measured. ``model``: artifact of its
    model folder, once somebody has asked for that.
    """

    round: int
    step: int
    tokens: int
    time: float
    train_loss: float | None
    validation_loss: float | None
    verified: bool
    bytes: int
    parts: tuple[CheckpointPart, ...]
    model: Digest | None = None


MAX_PROMPT = 8_000
MAX_TRIAL_TOKENS = 512


class TrialRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Text for a model to continue. ``temperature`` 0 takes the likeliest token; the same ``seed`` gives the same text.

    ``chat``: the text is what somebody says to the model, in its own chat template, and what comes is its answer. ``start``: the
    model that the job started from answers, to be held beside.
    """

    prompt: Annotated[str, Meta(min_length=1, max_length=MAX_PROMPT)]
    tokens: Annotated[int, Meta(ge=1, le=MAX_TRIAL_TOKENS)] = 100
    temperature: Annotated[float, Meta(ge=0, le=5)] = 0.8
    top_k: Annotated[int, Meta(ge=1, le=1000)] = 40
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0
    chat: bool = False
    start: bool = False


class LogLine(View, frozen=True):
    """A line of a job's log. ``node``: the name of the node whose worker wrote it, empty for the coordinator's own."""

    id: int
    time: float
    level: Literal["debug", "info", "warning", "error"]
    text: Untrusted
    node: Untrusted
    stage: int | None
    replica: int | None


class RunCurve(msgspec.Struct, frozen=True):
    """One of several runs that are compared: the job as it is, and its loss curves, thinned to a few hundred points."""

    job: "JobView"
    train: tuple[Metric, ...]
    validation: tuple[Metric, ...]


NoticeKind = Literal["budget", "paused", "done", "failed", "test", "confirm"]
JobNotice = Literal["budget", "paused", "done", "failed"]
"""What a submitter may be told of: four fifths of the budget are spent; the job is paused, done, or has failed."""


class NewNotices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where to tell what. An empty ``webhook`` or ``mail`` is switched off; a new mail address must be confirmed first."""

    webhook: Annotated[str, Meta(max_length=500, pattern=r"^(https?://[^\s/?#]+[^\s]*)?$")] = ""
    webhook_kinds: Annotated[tuple[JobNotice, ...], Meta(max_length=4)] = ("budget", "paused", "done", "failed")
    mail: Annotated[str, Meta(max_length=254, pattern=r"^([^\s@<>,;:\"]+@[^\s@<>,;:\"]+)?$")] = ""
    mail_kinds: Annotated[tuple[JobNotice, ...], Meta(max_length=4)] = ("budget", "paused", "done", "failed")


class NoticesView(View, frozen=True):
    """Where an account is told what. ``secret`` verifies a webhook's signature (standardwebhooks.com); ``mails``: whether this
    coordinator can send any."""

    webhook: str
    webhook_kinds: tuple[NoticeKind, ...]
    mail: str
    mail_kinds: tuple[NoticeKind, ...]
    confirmed: bool
    secret: str
    mails: bool


class Confirmation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was mailed to an address, given back to confirm it."""

    token: Annotated[str, Meta(pattern=ID_PATTERN)]


class Delivery(View, frozen=True):
    """One notice on one channel. ``answer``: what the receiver said last; ``due``: when it is tried next, while it waits."""

    id: int
    job: str
    kind: NoticeKind
    channel: Literal["webhook", "mail"]
    target: str
    state: Literal["waiting", "sent", "failed"]
    attempts: int
    answer: Untrusted
    created: float
    due: float


class AddBudget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Millionths to add to a job's budget; from the test wallet, or to be deposited by the wallet that funds the job."""

    amount: Annotated[int, Meta(ge=1, le=2**63 - 1)]


class NewOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A bucket of the submitter's own, which a job's model goes to. ``endpoint``: its server; empty: AWS in that ``region``.
    ``key``, ``secret``: kept until everything has arrived. ``checkpoints``: verified ones go there, too, as they are stored."""

    url: Annotated[str, Meta(max_length=300, pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._=/-]*)?$")]
    key: Annotated[str, Meta(min_length=1, max_length=200)]
    secret: Annotated[str, Meta(min_length=1, max_length=200)]
    endpoint: Annotated[str, Meta(max_length=500, pattern=r"^(https?://[^\s/?#@]+/?)?$")] = ""
    region: Annotated[str, Meta(max_length=40, pattern=r"^[a-z0-9-]+$")] = "us-east-1"
    checkpoints: bool = False


class OutputView(View, frozen=True):
    """Where a job's model goes, and how far that is. ``sent``: objects that have arrived; ``answer``: what the server said last,
    where it refused; ``due``: when it is tried next, while it waits."""

    url: str
    endpoint: str
    region: str
    checkpoints: bool
    state: Literal["waiting", "sent", "failed"]
    sent: tuple[str, ...]
    attempts: int
    answer: Untrusted
    due: float


class Share(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether everybody may look at the job: its page, curves, nodes and receipts, never its data, logs or files."""

    shared: bool


class NodeView(View, frozen=True):
    """A machine. ``auditor``: it lends nothing, and looks at others' work for the operator."""

    node: NodeAddress
    payout: NodeAddress
    name: Untrusted
    device: Untrusted
    kind: Literal["cpu", "cuda"]
    memory_mb: int
    flops: float
    sandbox: str
    online: bool
    busy: bool
    banned: bool
    stake: int
    earned: int
    since: float
    auditor: bool = False


class NetworkView(View, frozen=True):
    nodes_online: int
    nodes_busy: int
    memory_mb: int
    flops: float
    jobs_running: int
    jobs_done: int
    paid_total: Count
    price_per_petaflop: int
    """Millionths of the token for 10^15 floating-point operations."""
    coordinator: NodeAddress
    ledger_url: str
    test_wallet: bool
    notice: LongText = Untrusted("")
    relays_up: int = 0
    evaluation_tasks: tuple[str, ...] = ()
    """That a document's ``evaluation`` may name."""
    who_may_lend: LendingRule = "everybody"
    min_stake: Count = 0
    """That a node must have staked before it is given work."""


class RelayTraffic(View, frozen=True):
    """Bytes that a relay says it has carried for a node. ``job``: its id, or the first half of it where only that is known."""

    node: str
    job: str | None
    bytes_relayed: int


class RelayView(View, frozen=True):
    """A relay, named by the first of its ``urls``.

    ``state``: ``up`` is handed out; ``full`` is handed out after all others; ``unreachable`` does not answer the coordinator's
    probes; ``silent`` has stopped reporting. What a relay does not tell is None: one named with ``--turn`` tells nothing.
    """

    relay: NodeAddress | None
    urls: tuple[str, ...]
    region: Untrusted
    state: Literal["up", "full", "unreachable", "silent"]
    rtt_ms: float | None
    allocations: int | None
    allocations_max: int | None
    rate: float | None
    bytes_relayed: int | None
    packets_dropped: int | None
    started: float | None
    heard: float | None
    traffic: tuple[RelayTraffic, ...] = ()
