"""Domain events: what a unit of work has brought about that others follow up, in the same transaction or once it is stored.

Who causes one records it (``UnitOfWork.record``). Who follows it up takes it within the transaction (``UnitOfWork.take``), or
subscribes a handler that runs after the commit (``JobDesk.on``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordinator.domain.lease import Lease
from coordinator.domain.serving import CountedPeriod
from protocol.node import Promised


@dataclass(frozen=True)
class DomainEvent:
    """Something that happened to a job or its nodes."""


@dataclass(frozen=True)
class SeatsMoveNext(DomainEvent):
    """Somebody changes seats as soon as its steps are opened: the next round waits."""


@dataclass(frozen=True)
class SharesMayBeDue(DomainEvent):
    """A round was completed or an audit concluded."""


@dataclass(frozen=True)
class OutcomeChanged(DomainEvent):
    """A share was taken back or an audit ended: what the ledger was told of that round may be no longer true."""

    epoch: int
    round: int


@dataclass(frozen=True)
class RoundForged(DomainEvent):
    """A lie about a round was proven whose update is in every state since."""

    epoch: int
    round: int


@dataclass(frozen=True)
class AccusedFalsely(DomainEvent):
    """A node was proven to accuse falsely in an audit; ``detail`` says how."""

    node: str
    audit: str
    detail: str


@dataclass(frozen=True)
class SandboxTampered(DomainEvent):
    """Somebody reached into the sandbox of a lease."""

    lease: Lease


@dataclass(frozen=True)
class AuditEvaded(DomainEvent):
    """A node did not show what was drawn of it."""

    node: str


@dataclass(frozen=True)
class StandingChanged(DomainEvent):
    """So many rounds of a node's work were verified since its last fault."""

    node: str
    rounds: int


@dataclass(frozen=True)
class NodeExpelled(DomainEvent):
    """A node was banned."""

    node: str


@dataclass(frozen=True)
class PeriodCounted(DomainEvent):
    """What these nodes answered was stored as a period of pay."""

    counted: Sequence[CountedPeriod]


@dataclass(frozen=True)
class LedgerRowQueued(DomainEvent):
    """The outbox has something new for the ledger."""


@dataclass(frozen=True)
class PaymentConfirmed(DomainEvent):
    """The ledger has confirmed a payment of the job."""


@dataclass(frozen=True)
class SharesPromised(DomainEvent):
    """What has just been promised on the ledger, by payee."""

    promised: Mapping[str, Promised]
