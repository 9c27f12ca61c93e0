"""What there is to check: the ledger's side and the coordinator's side of one job."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ledger.history import LedgerEvent
from ledger.states import EscrowState
from protocol.disputes import DisputeEvidence
from protocol.evidence import RootOf, RoundEvidence
from protocol.job.job import JobSpec
from protocol.rest.federation import PrivacySpent
from protocol.rest.ledger import RestoreView

Verdict = Literal["pass", "fail", "note"]


@dataclass(frozen=True)
class ProofFinding:
    """One check. ``note``: nothing untrue, but something that the ledger alone cannot show."""

    check: str
    subject: str
    verdict: Verdict
    detail: str
    used: str


@dataclass(frozen=True)
class OnLedger:
    """A job as the ledger has it.

    Attributes:
        url: the endpoint that was asked.
        events: oldest first.
        blocks: slot -> slot and hash of the first block after it, for the slots that draws name.
    """

    url: str
    escrow: EscrowState
    events: Sequence[LedgerEvent]
    blocks: Mapping[int, tuple[int, str] | None]

    @property
    def coordinator(self) -> str:
        """Whose memos count: as the escrow names it."""
        return self.escrow.coordinator

    def total(self, kind: str) -> int:
        """Sum of the amounts of the market program's events of one kind."""
        return sum(int(event.fields["amount"]) for event in self.events if event.kind == kind and not event.author)

    def roots(self, what: RootOf) -> Iterator[LedgerEvent]:
        """Roots that the coordinator wrote, oldest first."""
        for event in self.events:
            if event.kind == "rooted" and event.author == self.coordinator and event.fields["what"] == what:
                yield event


@dataclass(frozen=True)
class Published:
    """A job as its coordinator tells it.

    Attributes:
        price, tokens_total: what the whole training is worth, and what it reads.
        spec: the job document.
        over, early: whether it has ended, so that all of its money must have moved; and whether before its time.
        wallets: payee -> its token account, for the payees of the evidence.
        restores: of the coordinator from backups, oldest first, as it tells of them.
        privacy: what a federated job says that its budget was charged with; None: it has none.
        rate: of a deployment, whose rounds are periods of answers, the price of 10^15 operations; None: it trains.
    """

    url: str
    job: str
    submitter: str
    price: int
    tokens_total: int
    spec: JobSpec
    over: bool
    early: bool
    rounds: Sequence[RoundEvidence]
    disputes: Sequence[DisputeEvidence]
    wallets: Mapping[str, str]
    rate: int | None = None
    privacy: PrivacySpent | None = None
    restores: Sequence[RestoreView] = ()


@dataclass(frozen=True)
class Case:
    """Both sides. ``published``: None where only the ledger is asked."""

    ledger: OnLedger
    published: Published | None
