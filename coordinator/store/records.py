"""Records that exist only because they are stored; ``domain.job.Job``, ``domain.lease.Lease`` and
``domain.audits.trust.Audit`` are stored as they are. Amounts in millionths of the token, times in Unix seconds.
"""

from typing import Literal

import msgspec

from common.untrusted_text import Told, Untrusted
from coordinator.domain.account import Scope
from coordinator.domain.audits.dispute import Dispute
from coordinator.domain.audits.sampling import Beacon
from coordinator.domain.rounds.run import Run
from protocol.audit import OuterRecord
from protocol.ids import Digest, NodeAddress
from protocol.node import NodeProfile, Unpaid
from protocol.rest.api import Agreement, NoticeKind
from protocol.task import Plan, PreferenceScore


class RunRecord(msgspec.Struct, frozen=True):
    """The course of a job, whole: a restart continues from it."""

    job: str
    run: Run
    version: int = 0


class RoundRecord(msgspec.Struct, frozen=True):
    """A round that was begun.

    Attributes:
        parameters: of each stage after it, as most members reported them; empty unless it is complete.
        seed: the audit draw's; empty until ``beacon`` has a block.
        beacon: where the draw comes from; None: nothing is drawn of it.
        rate_step: where the learning rate's schedule stood at ``first_step``; None: there too.
        concluded: its audits are over and its shares verified.
        agreement: whose word ``validation_loss`` is; None: nobody measured it.
        preference: beside it, where pairs of answers are compared.
        released: as in ``Run``, with this round.
    """

    job: str
    epoch: int
    number: int
    state: Literal["training", "applying", "complete", "void"]
    plan: Plan
    first_step: int
    steps: int
    total_steps: int
    started: float
    contributors: tuple[int, ...] = ()
    parameters: tuple[Digest, ...] = ()
    ended: float | None = None
    tokens: int = 0
    pot: int = 0
    train_loss: float | None = None
    validation_loss: float | None = None
    seed: str = ""
    concluded: bool = False
    rate_step: int | None = None
    beacon: Beacon | None = None
    agreement: Agreement | None = None
    preference: PreferenceScore | None = None
    released: int = 0
    version: int = 0


class CommitRecord(msgspec.Struct, frozen=True):
    """One member's commitment of a complete or void round.

    Attributes:
        anchor: the agreed parameters that it began with; None where only its checkpoint says what they were.
        carried, local: what it commits to carry into the next round, and what it had carried into this one.
        outer, parameters: what it says of the outer step, and of the parameters that came of it; None: nothing yet when the
            round ended.
        why: it is void or rejected, and so never paid.
        look: probability in millionths that one of the operator's auditors looks at it; 0: only other nodes audit it.
        settlement: the outbox row that pays it.
        promised: the outbox row that made it claimable from the ledger; from then on nobody can take it back.
    """

    job: str
    epoch: int
    round: int
    stage: int
    replica: int
    lease: str
    node: NodeAddress
    payout: NodeAddress
    root: Digest
    leaves: int
    pseudo_gradient: Digest
    tokens: int
    operations: int
    drawable: bool
    state: Literal["pending", "verified", "rejected", "void"]
    amount: int
    anchor: Digest | None = None
    settlement: int | None = None
    carried: Digest | None = None
    local: Digest | None = None
    promised: int | None = None
    outer: OuterRecord | None = None
    parameters: Digest | None = None
    look: int = 0
    why: Unpaid | Literal[""] = ""
    version: int = 0

    @property
    def bound(self) -> bool:
        """Whether its payee has the amount, or can have it without asking anybody: it can no longer be void."""
        return self.settlement is not None or self.promised is not None


class DisputeRecord(msgspec.Struct, frozen=True):
    """A dispute, whole: what either side said is the evidence.

    Attributes:
        id: of the audit that it is about.
    """

    id: str
    job: str
    over: bool
    dispute: Dispute
    began: float
    ended: float | None = None
    version: int = 0


OutboxState = Literal["queued", "sent", "confirmed", "failed"]
OutboxKind = Literal["fund", "accept", "event", "settle", "promise", "refund", "slash", "verdict", "table"]
OPEN_ROWS: tuple[OutboxState, ...] = ("queued", "sent")
MONEY_ROWS: tuple[OutboxKind, ...] = ("settle", "promise", "refund", "fund", "accept")


class OutboxRecord(Told, frozen=True):
    """Something the ledger must be told. ``key`` makes it happen once; signature and wire are stored before sending.

    Attributes:
        payload: settle, promise: payee -> cumulative amount; slash: node, reason, challenger, accuser, and bps, of the stake
            at most (without it, all that the cap allows); verdict: node, accuser, audit, evidence; event: the memo's text;
            accept: the same, and the terms that were asked for; table: its address.
        amount: what this row moves, beyond what earlier rows moved.
        nonce: the nonce account of the signed transaction, and of every one that takes its place.
        step: what the signed transaction prepares; empty where it is the thing itself.
        lookup: the address lookup table that it makes or uses.
    """

    key: str
    job: str
    kind: OutboxKind
    payload: dict[str, str | int]
    created: float
    amount: int = 0
    detail: Untrusted = Untrusted("")
    state: OutboxState = "queued"
    signature: str = ""
    wire: bytes = b""
    last_height: int = 0
    attempts: int = 0
    nonce: str = ""
    step: str = ""
    lookup: str = ""
    id: int = 0
    version: int = 0


class WithdrawalRecord(msgspec.Struct, frozen=True):
    """A withdrawal whose fee and rent the coordinator pays; kept before it is sent.

    Attributes:
        signature: the sponsor's, by which the ledger knows it; ``wire``: the signed transaction.
        amount: what leaves the owner's wallet; ``fee``: what of it comes here.
        lamports: what it costs here at the most.
        last_height: block height after which it cannot be executed.
        state: ``refused``: the ledger has found, before it sent it on, that it would fail; it is not sent again.
    """

    signature: str
    owner: NodeAddress
    target: NodeAddress
    amount: int
    fee: int
    lamports: int
    wire: bytes
    last_height: int
    created: float
    state: Literal["sent", "refused", "confirmed", "failed", "expired"] = "sent"
    version: int = 0


class EventRecord(Told, frozen=True):
    """A line of a job's timeline."""

    job: str
    time: float
    kind: str
    text: Untrusted
    id: int = 0


class MetricRecord(msgspec.Struct, frozen=True):
    """A point of a loss curve."""

    job: str
    round: int
    step: int
    tokens: int
    kind: Literal["train", "validation"]
    loss: float
    time: float
    id: int = 0


class LogRecord(Told, frozen=True):
    """A line of a job's log: the coordinator's own (``node`` empty), or what a worker wrote."""

    job: str
    time: float
    level: Literal["debug", "info", "warning", "error"]
    text: Untrusted
    node: str = ""
    stage: int | None = None
    replica: int | None = None
    id: int = 0


class NoticeSettings(msgspec.Struct, frozen=True):
    """What an account is told of its jobs, and where.

    Attributes:
        secret: signs its webhooks. ``token``: was sent to ``mail``, and comes back to confirm it.
    """

    account_id: str
    secret: str
    webhook: str = ""
    webhook_kinds: tuple[NoticeKind, ...] = ()
    mail: str = ""
    mail_kinds: tuple[NoticeKind, ...] = ()
    confirmed: bool = False
    token: str = ""
    version: int = 0


class OutputRecord(Told, frozen=True):
    """A bucket that a job's model goes to.

    Attributes:
        secret: empty once nothing more is sent. ``due``: when it is looked at next; ``answer``: the last refusal.
        sent: names of objects that have arrived.
    """

    job: str
    account_id: str
    url: str
    endpoint: str
    region: str
    key: str
    secret: str
    checkpoints: bool
    created: float
    due: float
    state: Literal["waiting", "sent", "failed"] = "waiting"
    sent: tuple[str, ...] = ()
    attempts: int = 0
    answer: Untrusted = Untrusted("")
    version: int = 0


class NoticeRecord(Told, frozen=True):
    """One notice on one channel. ``body``: JSON, as a webhook gets it; ``due``: when it is tried next; ``answer``: the last."""

    account_id: str
    job: str
    kind: NoticeKind
    channel: Literal["webhook", "mail"]
    target: str
    body: str
    created: float
    due: float
    state: Literal["waiting", "sent", "failed"] = "waiting"
    attempts: int = 0
    answer: Untrusted = Untrusted("")
    id: int = 0
    version: int = 0


class NodeRecord(Told, frozen=True):
    """A node that has been here.

    Attributes:
        rounds: of its work that were verified since its last fault. ``faults``: as in ``domain.audits.rate.NodeStanding``.
        tampered: when its agent last told that somebody reached into a job there; 0: never.
        evaded: when it last did not show what was drawn of it; 0: never.
        draining: its seats go to others as these come, and it gets no new one.
    """

    address: NodeAddress
    payout: NodeAddress
    profile: NodeProfile
    since: float
    seen: float
    banned: bool = False
    reason: Untrusted = Untrusted("")
    stake: int = 0
    earned: int = 0
    rounds: int = 0
    faults: int = 0
    tampered: float = 0.0
    evaded: float = 0.0
    draining: bool = False
    version: int = 0


class MachineDay(msgspec.Struct, frozen=True):
    """What a machine offered and what it was paid for within one day (UTC).

    Attributes:
        day: days since 1970.
        seconds: that it was here. ``gigaflop``: 10^9 operations that it could have done then, at the speed that it says.
        earned: of its work, as it was paid, in millionths of the token.
    """

    node: NodeAddress
    day: int
    seconds: int = 0
    gigaflop: int = 0
    earned: int = 0
    version: int = 0


class CreditRecord(msgspec.Struct, frozen=True):
    """What a node's verified work for one account was worth since its last fault, in millionths of the token.

    By account, since anybody can pay their own node for work that means nothing. What nodes alone have audited (``watched``
    False) says nothing where the operator's auditors look.

    Attributes:
        exact: some of it was found right bit for bit.
    """

    node: NodeAddress
    account_id: str
    watched: bool
    amount: int = 0
    exact: bool = False
    version: int = 0


class SessionRecord(Told, frozen=True):
    """A browser that is signed in.

    Attributes:
        id: SHA-256 of the cookie, in hexadecimal: who reads the table cannot sign in with it.
        method: password, wallet, passkey or identity.
        agent: what the browser calls itself.
    """

    id: str
    account_id: str
    method: str
    created: float
    seen: float
    address: str = ""
    agent: Untrusted = Untrusted("")
    version: int = 0


class KeyRecord(Told, frozen=True):
    """An API key. ``digest``: SHA-256 of the secret part, in hexadecimal; ``revoked``: when, if it was."""

    id: str
    account_id: str
    name: Untrusted
    digest: str
    scopes: tuple[Scope, ...]
    created: float
    expires: float | None = None
    used: float | None = None
    revoked: float | None = None
    version: int = 0


class InvitationRecord(Told, frozen=True):
    """An invitation to lend: one machine uses it, once.

    Attributes:
        digest: SHA-256 of its code, in hexadecimal: who reads the table cannot use it.
        account_id: who made it; ``owner``: whose machines it is for, empty where the network's operator invites.
        node: that has used it; None: it is open, or ended unused at ``expires``.
        withdrawn: when, if it was: then that node may lend no more.
    """

    id: str
    digest: str
    account_id: str
    owner: str
    note: Untrusted
    created: float
    expires: float
    node: NodeAddress | None = None
    used: float | None = None
    withdrawn: float | None = None
    version: int = 0


class CredentialRecord(msgspec.Struct, frozen=True):
    """What signs an account in, beside its password.

    Attributes:
        id: of a wallet its address, of a passkey what the authenticator calls it, of an identity the SHA-256 of issuer and
            subject.
        public_key: what proves it; of an identity its issuer, which vouches in a key's place.
        used: when it signed somebody in last.
    """

    id: str
    account_id: str
    kind: Literal["wallet", "passkey", "identity"]
    name: str
    public_key: bytes
    created: float
    sign_count: int = 0
    used: float | None = None
    version: int = 0


ChallengeKind = Literal["wallet", "passkey", "new-passkey", "identity", "new-identity"]


class ChallengeRecord(msgspec.Struct, frozen=True):
    """What somebody who signs in has to sign, once. ``id``: SHA-256 of the nonce; ``text``: what depends on its kind."""

    id: str
    kind: ChallengeKind
    account_id: str
    text: str
    created: float
    version: int = 0


class TrailRecord(msgspec.Struct, frozen=True):
    """Who did what: never changed; of an account the newest lines are kept (``budgets.MAX_TRAIL``).

    Attributes:
        account_id: whose trail it is in; ``actor``: the account that did it.
        via: ``session``, or the API key's id, or how somebody tried to sign in.
        address: where the request came from.
    """

    account_id: str
    time: float
    actor: str
    via: str
    action: str
    subject: str = ""
    address: str = ""
    id: int = 0


class FileRecord(Told, frozen=True):
    """An uploaded file: an artifact that an account may use in its jobs."""

    account_id: str
    artifact: Digest
    purpose: Literal["dataset", "weights", "tokenizer", "image", "input"]
    name: Untrusted
    length: int
    created: float
    version: int = 0


class DeliveryRecord(msgspec.Struct, frozen=True):
    """An artifact that a node has stored under a lease: ``kind`` in words, ``size`` in bytes."""

    lease: str
    artifact: Digest
    job: str
    node: NodeAddress
    kind: str
    size: int
    created: float
    version: int = 0


class ReplayRecord(msgspec.Struct, frozen=True):
    """A changing request with its idempotency key, and how it was answered.

    Attributes:
        fingerprint: SHA-256 over method, path and body.
        resource: the id that what the request makes gets.
        status: of the answer; 0: it was not answered with success yet.
    """

    account_id: str
    key: str
    fingerprint: str
    resource: str
    created: float
    status: int = 0
    location: str = ""
    body: bytes = b""
    version: int = 0
