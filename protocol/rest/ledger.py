"""Resources of the ledger's pages: transactions, totals that balance, and what a node has staked, earned and been audited for.

Amounts are integers, in millionths of the token; times are Unix seconds.
"""

from typing import Literal

import msgspec

from common.untrusted_text import Untrusted, View
from protocol.ids import Count, Digest, JobId, NodeAddress
from protocol.rest.api import AuditView, NodeView

EntryKind = Literal["fund", "accept", "event", "settle", "promise", "refund", "slash", "verdict", "table"]


class LedgerEntry(View, frozen=True):
    """One transaction of the coordinator, or a deposit that it saw. ``id`` grows with time.

    ``payload``: settle, promise: payee -> what it has received, or can claim, of the job in all; slash: node, reason; verdict:
    node, accuser, audit, evidence; event: the memo's text.
    """

    id: int
    job: JobId
    job_name: Untrusted
    kind: EntryKind
    state: Literal["queued", "sent", "confirmed", "failed"]
    amount: int
    signature: str
    time: float
    detail: Untrusted
    payload: dict[str, str | int]


class LedgerTotals(msgspec.Struct, frozen=True):
    """Where the money is. ``deposited``, ``paid`` and ``refunded`` are sums of confirmed transactions; ``held`` is what the jobs'
    own books say is left in escrow. ``difference``: of the two, 0 unless money was lost or made."""

    deposited: int
    paid: int
    refunded: int
    held: int
    slashed: int
    difference: int


class StakeView(View, frozen=True):
    """A stake account as it lies on the ledger: ``deposited = slashed + withdrawn + balance``."""

    address: str
    balance: int
    deposited: int
    slashed: int
    withdrawn: int
    requested: int
    unlock_at: int
    treasury: str


class NodeJob(View, frozen=True):
    """A node's part in one job: ``rounds`` that counted, what of it was verified, paid and rejected.

    ``unpaid``: sentences that say of every share that is not paid why it is not.
    """

    job: JobId
    name: Untrusted
    state: str
    rounds: int
    rejected: int
    verified: int
    paid: int
    unpaid: tuple[str, ...] = ()


class NodeAudit(msgspec.Struct, frozen=True):
    """An audit of the node's own work, or one that the node did."""

    job: JobId
    role: Literal["audited", "auditor"]
    epoch: int
    audit: AuditView


class NodeAccount(View, frozen=True):
    """A node's account with the market. ``stake``: None where it has none, or where the ledger does not answer.

    ``audits``: counts by state, of the node's own work. ``recent``: the last of them, and of those that the node did itself.
    """

    node: NodeView
    reason: Untrusted
    stake: StakeView | None
    jobs: tuple[NodeJob, ...]
    audits: dict[str, int]
    recent: tuple[NodeAudit, ...]
    slashes: tuple[LedgerEntry, ...]
    payouts: tuple[LedgerEntry, ...]


class RestoredPayout(View, frozen=True):
    """What a payee had been paid before a restore, for rounds that the coordinator has no records of any more."""

    payee: NodeAddress
    amount: Count


class RestoreView(View, frozen=True):
    """A restore of the coordinator from a backup. ``payouts``: what no known round accounts for, by payee."""

    time: float
    payouts: tuple[RestoredPayout, ...]


class JobLedger(View, frozen=True):
    """A job's escrow as the ledger has it beside what the coordinator's books say. ``on_chain``: whether the ledger answered.

    ``restores``: oldest first.
    """

    job: JobId
    escrow: str
    submitter: NodeAddress
    coordinator: NodeAddress
    program: str
    mint: str
    rpc: str
    on_chain: bool
    totals: LedgerTotals
    restores: tuple[RestoreView, ...] = ()


class PromisedAmount(msgspec.Struct, frozen=True):
    """What a payee shall have received of the job in all, claimed or paid."""

    payee: NodeAddress
    cumulative: int


class PromiseView(View, frozen=True):
    """The newest promise of a job's earnings: leaves in the order of the tree whose ``root`` the escrow holds.

    A leaf is the payee's token account (32 bytes) and ``cumulative`` (8 bytes, lowest first), hashed as ``ledger.merkle`` does.
    """

    job: JobId
    submitter: NodeAddress
    escrow: str
    root: Digest
    total: int
    signature: str
    time: float
    payees: tuple[PromisedAmount, ...]
