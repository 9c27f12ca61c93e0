"""How each kind of record is kept: its key, its order, which fields are plain columns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from coordinator.domain.account import Account
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
    KeyRecord,
    LogRecord,
    MetricRecord,
    NodeRecord,
    NoticeRecord,
    NoticeSettings,
    OutboxRecord,
    ReplayRecord,
    RoundRecord,
    RunRecord,
    SessionRecord,
    TrailRecord,
)


@dataclass(frozen=True)
class Kind:
    """``numbered``: ``id`` is given by the store. ``nested``: fields kept as JSON text."""

    name: str
    key: tuple[str, ...]
    order: tuple[str, ...]
    nested: frozenset[str] = frozenset()
    unique: str | None = None
    numbered: bool = False

    def key_of(self, record: msgspec.Struct) -> tuple[object, ...]:
        """The record's key."""
        return tuple(getattr(record, field) for field in self.key)

    def place_of(self, record: msgspec.Struct) -> tuple[Any, ...]:
        """Where the record stands in the order of its kind."""
        return tuple(getattr(record, field) for field in self.order)


KINDS: Mapping[type[msgspec.Struct], Kind] = {
    Job: Kind("jobs", ("id",), ("created", "id"), frozenset({"spec", "quote", "config", "files", "pace", "agreement"})),
    RunRecord: Kind("runs", ("job",), ("job",), frozenset({"run"})),
    Lease: Kind("leases", ("id",), ("granted", "fence", "id"), frozenset({"traffic"})),
    RoundRecord: Kind(
        "rounds",
        ("job", "epoch", "number"),
        ("number", "epoch"),
        frozenset({"plan", "contributors", "parameters", "beacon", "agreement"}),
    ),
    CommitRecord: Kind(
        "commits",
        ("job", "epoch", "round", "stage", "replica"),
        ("round", "epoch", "replica", "stage"),
        frozenset({"outer"}),
    ),
    Audit: Kind(
        "audits",
        ("id",),
        ("round", "id"),
        frozenset({"plan", "tried", "owners", "verdicts", "outer", "sides", "apart"}),
    ),
    DisputeRecord: Kind("disputes", ("id",), ("began", "id"), frozenset({"dispute"})),
    OutboxRecord: Kind("outbox", ("id",), ("id",), frozenset({"payload"}), unique="key", numbered=True),
    EventRecord: Kind("events", ("id",), ("id",), numbered=True),
    LogRecord: Kind("logs", ("id",), ("id",), numbered=True),
    NoticeSettings: Kind(
        "notice_settings", ("account_id",), ("account_id",), frozenset({"webhook_kinds", "mail_kinds"})
    ),
    NoticeRecord: Kind("notices", ("id",), ("id",), numbered=True),
    MetricRecord: Kind("metrics", ("id",), ("id",), numbered=True),
    ReplayRecord: Kind("replays", ("account_id", "key"), ("created", "account_id", "key")),
    NodeRecord: Kind("nodes", ("address",), ("since", "address"), frozenset({"profile"})),
    CreditRecord: Kind("credit", ("node", "account_id", "watched"), ("node", "account_id", "watched")),
    Account: Kind("accounts", ("id",), ("created", "id"), unique="key"),
    SessionRecord: Kind("sessions", ("id",), ("created", "id")),
    KeyRecord: Kind("api_keys", ("id",), ("created", "id"), frozenset({"scopes"})),
    CredentialRecord: Kind("credentials", ("id",), ("created", "id")),
    ChallengeRecord: Kind("challenges", ("id",), ("created", "id")),
    TrailRecord: Kind("trail", ("id",), ("id",), numbered=True),
    DeliveryRecord: Kind("deliveries", ("lease", "artifact"), ("created", "lease", "artifact")),
    FileRecord: Kind("files", ("account_id", "artifact"), ("created", "artifact")),
}
