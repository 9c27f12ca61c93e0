"""Node and coordinator, over the WebSocket ``/api/v1/node`` (binary frames, MessagePack).

    coordinator                 node
      Challenge           ->
                          <-    Hello       signed over the challenge: the node is its key
      Welcome / Refused   ->                heartbeat period, lease time, ICE servers, a token for artifacts; where the node
                                            asked for it, signed: the coordinator is the key of the node's invitation
      Assign              ->
                          <-    Report(seq) wraps a ``task`` report; kept by the node until Acknowledged
      Acknowledged(seq)   ->
      Command             ->                wraps a ``task`` command; commands are idempotent
                          <-    Heartbeat   renews (lease, fence) pairs, never a node
      Beat                ->                which leases live on, which are gone, when to beat next
      IceServers          ->                relays and STUN servers from now on, for each peer the best relay first
                          <-    NetworkReport  (wire.network) the node's line and links, lossy
      Promised            ->                what can be claimed from the ledger, with its proof
      Unanswered          ->                it did not show what was drawn of its work; before any later lease
      KeepRecords         ->                a job's newest records, sealed: kept for a coordinator that loses them
      ListRecords         ->                a restored coordinator asks what is kept for it ...
                          <-    RecordsKept
      ReturnRecords       ->                ... and has what it lacks returned
                          <-    RecordsReturned
      Signal             <->    Signal      sealed by the peers; the coordinator only passes it on
      PrivateOffer        ->                (wire.private) somebody wants to talk with the node's model ...
                          <-    PrivateAnswer
                          <-    PrivateCounts  ... and has signed how much was said

After a reconnect the node names its leases in ``Hello`` and sends again every report that was not acknowledged; the coordinator
sends again every command that has not had its effect. Both sides may therefore see a message twice.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from common.untrusted_text import Told, Untrusted
from protocol.federated.federations import FederationTold, FederationWish
from protocol.ids import (
    Count,
    Digest,
    Fence,
    InvitationCode,
    JobId,
    LeaseId,
    LongText,
    Mark,
    NodeAddress,
    ReplicaIndex,
    ShortText,
    StageIndex,
    TraceParent,
)
from protocol.job.job import JobSpec
from protocol.network import MAX_PEERS_MEASURED, MAX_RELAYS, NetworkReport
from protocol.private.sessions import PrivateAnswer, PrivateCounts, PrivateOffer
from protocol.rest.api import JobStateName
from protocol.task import Plan, TaskCommand, TaskReport

PROTOCOL = 1
# What is signed: a node's greeting, and a coordinator's proof that it holds the key of an invitation.
HELLO_CONTEXT, WELCOME_CONTEXT = "cottage-hello", "cottage-welcome"
CARD_CONTEXT = "cottage-card"  # A computer's word that another key is one of its cards.
MAX_ACCOUNTS = 32  # Jobs whose end a node may have missed, the newest.
MAX_RECORDS = 192 << 10  # Of a job with 64 seats, sealed, some 60 KB; a frame that a node sends has 256 at most.
RECORDS_EVERY = 4  # Each entry has the rounds of the last eight.
MAX_ENTRIES = 2_048  # Named in one message; a node keeps no more.
MAX_LEASES = 64  # A node with eight GPUs holds eight leases; audits and spares leave the rest.
MAX_ENVELOPE = 128 * 1024  # An SDP of 64 KB, signed.
MAX_ICE_SERVERS = MAX_RELAYS  # A node uses one relay and one STUN server of them; the rest stand by.
SandboxKind = Literal["docker", "kubernetes", "process"]
"""How jobs are kept apart from the owner's files and network: ``desktop.agent.sandbox``."""


class NodeProfile(Told, frozen=True, forbid_unknown_fields=True):
    """What a machine can do, measured by its agent in the same sandbox that jobs run in.

    ``floor``: the least that its owner lets it work for, in millionths of the token for 10^15 operations.
    ``auditor``: it only looks at others' work, for the coordinator's operator, and takes no seat.
    ``beside_mb``: main memory that jobs may take beside a graphics card, whose memory is ``memory_mb``.
    ``containers``: it runs containers of images that its owner accepts (``protocol.job.elements``); others get no array job.
    ``computer``: the node that this one is a further card of, as that one has signed (``Hello.vouched``); None: it is its own.
    """

    name: ShortText
    device: ShortText
    kind: Literal["cpu", "cuda"]
    memory_mb: Annotated[int, Meta(ge=1, le=10**8)]
    flops: Annotated[float, Meta(ge=0, le=1e18)]
    env_class: Mark
    sandbox: SandboxKind
    agent_version: Mark = ""
    floor: Annotated[int, Meta(ge=0, le=10**12)] = 0
    auditor: bool = False
    beside_mb: Annotated[int, Meta(ge=1, le=10**8)] | None = None
    containers: bool = False
    computer: NodeAddress | None = None


WorkerKind = Literal["lives", "restoring", "restored"]


class HeldLease(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """``worker``: of whoever has the lease. ``restoring``: it died, and another one is being made of the records on the disk, to
    show what is drawn of the rounds before; ``restored``: it is here, and does nothing else."""

    lease: LeaseId
    fence: Fence
    worker: WorkerKind = "lives"


# --- node to coordinator ------------------------------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="hello"):
    """``signature``: by the node key over context "cottage-hello" and (challenge nonce, coordinator host as in the Challenge).

    ``nonce``: 32 bytes that nobody could foresee, for the coordinator to sign; empty: it need not say who it is.
    ``invitation``: the code of one that lets this node in, where it has one. ``traces``: it sends spans somewhere, and wants
    to know what its commands are part of. ``vouched``: the signature of ``profile.computer`` over this node's address, by
    context "cottage-card".
    """

    protocol: Annotated[int, Meta(ge=1, le=10_000)]
    node: NodeAddress
    payout: NodeAddress
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]
    profile: NodeProfile
    leases: Annotated[tuple[HeldLease, ...], Meta(max_length=MAX_LEASES)] = ()
    nonce: Annotated[bytes, Meta(max_length=32)] = b""
    invitation: InvitationCode = ""
    traces: bool = False
    vouched: Annotated[bytes, Meta(max_length=64)] = b""


class Heartbeat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="heartbeat"):
    """``accepting``: new leases are welcome; a node whose owner finishes keeps what it has and takes no more."""

    leases: Annotated[tuple[HeldLease, ...], Meta(max_length=MAX_LEASES)]
    accepting: bool = True


class Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="report"):
    """``seq`` 0: lossy (Progress, Traffic), never acknowledged. Otherwise grows by one for each report of a lease."""

    lease: LeaseId
    fence: Fence
    seq: Count
    body: TaskReport
    trace: TraceParent = ""


class Signal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="signal"):
    """``peer``: from the node, whom it is for; from the coordinator, whom it is from."""

    peer: NodeAddress
    envelope: Annotated[bytes, Meta(max_length=MAX_ENVELOPE)]


class Goodbye(Told, frozen=True, forbid_unknown_fields=True, tag="goodbye"):
    """The node leaves: its leases end now, not when they expire."""

    reason: ShortText = Untrusted("")


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="claim"):
    """The node asks for what it has earned so far, though that be little; answered by what the ledger then shows."""


class Accounts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="accounts"):
    """The node asks how its work in these jobs stands; answered by a ``JobEarned`` for each in which it had a lease."""

    jobs: Annotated[tuple[JobId, ...], Meta(max_length=MAX_ACCOUNTS)]


class RecordsEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Records of a job that a node keeps: those after ``rounds`` complete rounds, of which the last was of this epoch."""

    job: JobId
    epoch: Count
    rounds: Count

    @property
    def stands(self) -> tuple[int, int]:
        """What is later is greater, also where rounds are done again."""
        return self.epoch, self.rounds


class RecordsKept(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="records_kept"):
    """What a node keeps for its coordinator: the answer to ``ListRecords``."""

    entries: Annotated[tuple[RecordsEntry, ...], Meta(max_length=MAX_ENTRIES)]


class RecordsReturned(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="records_returned"):
    """The answer to ``ReturnRecords``; ``data`` is empty where they are not here any more."""

    entry: RecordsEntry
    data: Annotated[bytes, Meta(max_length=MAX_RECORDS)] = b""


NodeMessage = (
    Hello
    | Heartbeat
    | Report
    | Signal
    | Goodbye
    | NetworkReport
    | Claim
    | Accounts
    | RecordsKept
    | RecordsReturned
    | PrivateAnswer
    | PrivateCounts
    | FederationWish
)


# --- coordinator to node ------------------------------------------------------------------------------------------------


class Challenge(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="challenge"):
    nonce: Annotated[bytes, Meta(min_length=32, max_length=32)]
    host: Mark


class OfferedIceServer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One server; a relay is named by the first of its URLs (``RelayMeasure.relay``)."""

    urls: Annotated[tuple[Mark, ...], Meta(min_length=1, max_length=8)]
    username: Mark = ""
    credential: Mark = ""


class LedgerInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the money is kept, so that a node can look for itself."""

    url: Mark
    program: Mark
    mint: Mark
    coordinator: NodeAddress


class Welcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="welcome"):
    """``token`` authorises artifact transfers (Authorization: Bearer) until the WebSocket closes.

    ``proof``: by the coordinator's key over context "cottage-welcome" and (the Hello's nonce, the node's address, the host that
    the coordinator is known by); empty where the Hello has no nonce.
    """

    token: Annotated[str, Meta(min_length=16, max_length=200)]
    heartbeat_seconds: Annotated[float, Meta(gt=0, le=600)]
    lease_seconds: Annotated[float, Meta(gt=0, le=3600)]
    ice_servers: Annotated[tuple[OfferedIceServer, ...], Meta(max_length=MAX_ICE_SERVERS)]
    ledger: LedgerInfo | None
    min_stake: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    proof: Annotated[bytes, Meta(max_length=64)] = b""


class IceServers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="ice_servers"):
    """Which servers to use for links made from now on: ``peers`` for the nodes named there, ``servers`` for all others.

    Replaces what was said before. Both ends of a pair are given the same relay first. Credentials are good for twice as long as
    it takes until they are sent again.
    """

    servers: Annotated[tuple[OfferedIceServer, ...], Meta(max_length=MAX_ICE_SERVERS)]
    peers: Annotated[
        dict[NodeAddress, Annotated[tuple[OfferedIceServer, ...], Meta(max_length=MAX_ICE_SERVERS)]],
        Meta(max_length=MAX_PEERS_MEASURED),
    ] = {}


class Refused(Told, frozen=True, forbid_unknown_fields=True, tag="refused"):
    """``retry_seconds`` None: do not come back without a change by the owner."""

    reason: LongText
    retry_seconds: Annotated[float, Meta(ge=0, le=86_400)] | None = None


class Assign(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="assign"):
    """Hold this lease: start a worker for the job. ``stage`` None: a spare, which audits and waits.

    ``files``: name -> artifact, laid into the worker's folder: ``train.bin`` and ``heldout.bin`` (token ids,
    little-endian uint32), ``tokenizer.json``, ``config.json``, and ``weights.json`` where the job starts from weights: a
    ``protocol.models.weights.WeightIndex``, of which the node lays out its own stage's part.
    """

    lease: LeaseId
    fence: Fence
    job: JobId
    spec: JobSpec
    stage: StageIndex | None
    replica: ReplicaIndex | None
    plan: Plan
    files: Annotated[dict[Mark, Digest], Meta(max_length=32)]


class Command(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="command"):
    lease: LeaseId
    fence: Fence
    body: TaskCommand
    trace: TraceParent = ""


class Acknowledged(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="acknowledged"):
    """Every report of this lease up to and including ``seq`` is stored: who has a restored worker goes on from there."""

    lease: LeaseId
    seq: Count


class Beat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="beat"):
    """``gone``: leases that are no longer the node's; it ends their workers at once."""

    next_seconds: Annotated[float, Meta(gt=0, le=600)]
    gone: Annotated[tuple[LeaseId, ...], Meta(max_length=MAX_LEASES)] = ()


Unpaid = Literal[
    "late",
    "again",
    "ended",
    "gone",
    "refused",
    "misstated",
    "unconfirmed",
    "wrong",
    "distant",
    "unlooked",
    "vain",
    "pipeline",
    "expelled",
    "unopened",
]
"""Why a share is never paid.

``late``: its replica was not whole when the round was decided; ``again``: the round had lost too much and was done again;
``ended``: the job ended in the middle of the round; ``unlooked``: the job ended before somebody had looked; ``pipeline``:
another member's part of it was false, or never seen, and the node's standing was too little to answer for its own; ``expelled``:
the node was sent away; ``unopened``: of a federated job, whose data nobody else may see; the others are what its audit found
(``coordinator.domain.audits.trust``).
"""

Due = Literal["unaudited", "looking", "saving", "paying", "promised"]
"""What a share waits for: its audit; a look by the operator's machine at what was drawn of its node; to be worth the ledger's
fee; the ledger, which is asked; its payee, who can claim it."""

ShareState = Literal["paid", "stuck"] | Due | Unpaid
"""``stuck``: the ledger has refused to pay it for good, which the coordinator's operator has to look into."""

SeatState = Literal["held", "spare", "stopped", "expired", "failed", "stalled", "replaced", "rejected", "left"]
"""How a node's last lease of a job stands, or how it ended; ``spare``: it never had a seat."""


class Tally(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many shares of a node in a job stand so, and what they are worth, in millionths of the token."""

    state: ShareState
    shares: Count
    amount: Count = 0


class JobEarned(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="earned"):
    """What a job has brought this node so far, in millionths of the token, and why no more.

    Told whenever it changes, and when the node asks (``Accounts``). ``state``: the job's; ``tallies``: all shares of the node.
    """

    job: JobId
    verified: Count
    paid: Count
    signature: Mark = ""
    state: JobStateName | None = None
    seat: SeatState | None = None
    tallies: Annotated[tuple[Tally, ...], Meta(max_length=32)] = ()


class Promised(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="promised"):
    """What a payee can claim of a job from the ledger, though the coordinator be gone: its leaf under the escrow's ``root``.

    ``cumulative``: what it shall have received in all, in millionths of the token. ``index``, ``count``, ``path``: the proof.
    """

    job: JobId
    submitter: NodeAddress
    payee: NodeAddress
    cumulative: Count
    root: Digest
    index: Count
    count: Annotated[int, Meta(ge=1, lt=2**32)]
    path: Annotated[tuple[Annotated[bytes, Meta(min_length=32, max_length=32)], ...], Meta(max_length=32)]


class Unanswered(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="unanswered"):
    """The node did not show what was drawn of its work, or could not: its owner must know what another time costs.

    Sent at once and again after each ``Welcome`` for EVASION_AGAIN_S: whoever works under a lease that was granted later has been
    told before, since messages keep their order. ``at``: when, in Unix seconds, the same each time.
    """

    at: Annotated[float, Meta(gt=0, lt=1e12)]


class KeepRecords(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="keep_records"):
    """Keep a job's records for the coordinator, which may lose its own: sealed with its key, so nobody else reads or makes them.

    They replace those of the same entry. Of earlier ones every ``RECORDS_EVERY``-th is worth keeping.
    """

    entry: RecordsEntry
    data: Annotated[bytes, Meta(min_length=1, max_length=MAX_RECORDS)]


class ListRecords(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="list_records"):
    """Say what you keep: this coordinator was restored from a backup. It is answered by ``RecordsKept``."""


class ReturnRecords(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="return_records"):
    """Return one entry; it is answered by ``RecordsReturned``."""

    entry: RecordsEntry


RecordsMessage = KeepRecords | ListRecords | ReturnRecords
TaskMessage = (
    Assign
    | Command
    | Acknowledged
    | Beat
    | JobEarned
    | Promised
    | Signal
    | IceServers
    | Unanswered
    | RecordsMessage
    | PrivateOffer
    | FederationTold
)
"""What a node's jobs hear, once it is in."""
CoordinatorMessage = Challenge | Welcome | Refused | TaskMessage
