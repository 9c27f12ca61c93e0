"""How each kind of record is kept: its key, its order, which fields are plain columns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from coordinator.domain.account import Account
from coordinator.domain.accusations import AccusedAnswer
from coordinator.domain.arrays.votes import ElementCourse
from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import Job
from coordinator.domain.lease import Lease
from coordinator.store.records import (
    ChallengeRecord,
    CommitRecord,
    CredentialRecord,
    CreditRecord,
    DeliveryRecord,
    DisputeRecord,
    EventRecord,
    FileRecord,
    InvitationRecord,
    KeyRecord,
    LogRecord,
    MachineDay,
    MetricRecord,
    NodeRecord,
    NoticeRecord,
    NoticeSettings,
    OutboxRecord,
    OutputRecord,
    ReplayRecord,
    RoundRecord,
    RunRecord,
    SessionRecord,
    TrailRecord,
    WithdrawalRecord,
)


@dataclass(frozen=True)
class RecordKind:
    """``numbered``: ``id`` is given by the store. ``nested``: fields kept as JSON text.

    ``kept``: the same rows are read again and again as they are: of so many of them it is kept what they were read as.
    ``steady``: nested fields that stay as they are while others change, of which that is kept by their text.
    """

    name: str
    key: tuple[str, ...]
    order: tuple[str, ...]
    nested: frozenset[str] = frozenset()
    unique: str | None = None
    numbered: bool = False
    kept: int = 0
    steady: frozenset[str] = frozenset()

    def key_of(self, record: msgspec.Struct) -> tuple[object, ...]:
        """The record's key."""
        return tuple(getattr(record, field) for field in self.key)

    def place_of(self, record: msgspec.Struct) -> tuple[Any, ...]:
        """Where the record stands in the order of its kind."""
        return tuple(getattr(record, field) for field in self.order)


KINDS: Mapping[type[msgspec.Struct], RecordKind] = {
    Job: RecordKind(
        "jobs",
        ("id",),
        ("created", "id"),
        frozenset({"spec", "quote", "config", "files", "pace", "agreement", "preference", "evaluated", "owners"}),
        steady=frozenset({"spec", "quote", "config", "files"}),
        # Those that ended last, by each list and page of jobs and of the market: some 5 kB each, 300 of them at a time.
        kept=1_024,
    ),
    RunRecord: RecordKind("runs", ("job",), ("job",), frozenset({"run"})),
    Lease: RecordKind("leases", ("id",), ("granted", "fence", "id"), frozenset({"traffic"})),
    RoundRecord: RecordKind(
        "rounds",
        ("job", "epoch", "number"),
        ("number", "epoch"),
        frozenset({"plan", "contributors", "parameters", "beacon", "agreement", "preference"}),
    ),
    CommitRecord: RecordKind(
        "commits",
        ("job", "epoch", "round", "stage", "replica"),
        ("round", "epoch", "replica", "stage"),
        frozenset({"outer"}),
    ),
    Audit: RecordKind(
        "audits",
        ("id",),
        ("round", "id"),
        frozenset({"plan", "tried", "owners", "verdicts", "outer", "sides", "apart"}),
        # Read by each report of their job: some 5 kB each, of which a job has a hundred that wait, seldom more.
        kept=1_024,
    ),
    DisputeRecord: RecordKind("disputes", ("id",), ("began", "id"), frozenset({"dispute"})),
    OutboxRecord: RecordKind("outbox", ("id",), ("id",), frozenset({"payload"}), unique="key", numbered=True),
    WithdrawalRecord: RecordKind("withdrawals", ("signature",), ("created", "signature")),
    EventRecord: RecordKind("events", ("id",), ("id",), numbered=True),
    LogRecord: RecordKind("logs", ("id",), ("id",), numbered=True),
    NoticeSettings: RecordKind(
        "notice_settings", ("account_id",), ("account_id",), frozenset({"webhook_kinds", "mail_kinds"})
    ),
    OutputRecord: RecordKind("outputs", ("job",), ("created", "job"), frozenset({"sent"})),
    NoticeRecord: RecordKind("notices", ("id",), ("id",), numbered=True),
    MetricRecord: RecordKind("metrics", ("id",), ("id",), numbered=True),
    ReplayRecord: RecordKind("replays", ("account_id", "key"), ("created", "account_id", "key")),
    # Read by each list and page of nodes: some 2 kB each.
    NodeRecord: RecordKind("nodes", ("address",), ("since", "address"), frozenset({"profile"}), kept=4_096),
    MachineDay: RecordKind("machine_days", ("node", "day"), ("day", "node")),
    CreditRecord: RecordKind("credit", ("node", "account_id", "watched"), ("node", "account_id", "watched")),
    Account: RecordKind("accounts", ("id",), ("created", "id"), unique="key"),
    SessionRecord: RecordKind("sessions", ("id",), ("created", "id")),
    KeyRecord: RecordKind("api_keys", ("id",), ("created", "id"), frozenset({"scopes"})),
    InvitationRecord: RecordKind("invitations", ("id",), ("created", "id"), unique="digest"),
    CredentialRecord: RecordKind("credentials", ("id",), ("created", "id")),
    ChallengeRecord: RecordKind("challenges", ("id",), ("created", "id")),
    TrailRecord: RecordKind("trail", ("id",), ("id",), numbered=True),
    DeliveryRecord: RecordKind("deliveries", ("lease", "artifact"), ("created", "lease", "artifact")),
    ElementCourse: RecordKind("elements", ("job", "index"), ("settled", "index", "job"), frozenset({"tries"})),
    AccusedAnswer: RecordKind("accused_answers", ("id",), ("began", "id"), frozenset({"witnesses"})),
    FileRecord: RecordKind("files", ("account_id", "artifact"), ("created", "artifact")),
}


def job_of(kind: type[msgspec.Struct]) -> str | None:
    """The field that names the job to which a record belongs; None: it belongs to none, or to several."""
    return "id" if kind is Job else "job" if "job" in kind.__struct_fields__ else None
