"""What the web layer may ask for. ``JobService`` and ``NetworkService`` implement these; tests may bring their own."""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from coordinator.domain.account import LOCAL_ACCOUNT
from coordinator.domain.job import JobAction
from coordinator.domain.serving import ModelPoint
from protocol.disputes import DisputeDetail, DisputeView
from protocol.evidence import RoundEvidence
from protocol.ids import Digest, NodeAddress
from protocol.job.job import JobSpec, ModelSpec, TokenizerSpec
from protocol.network import RelayEnvelope, RelayOrder, RelayQuestion
from protocol.node import IceServers
from protocol.rest import api, ledger, market
from protocol.rest.records import AuditRecords
from protocol.rest.withdrawals import (
    SentWithdrawal,
    SignedWithdrawal,
    WithdrawalAnswer,
    WithdrawalRequest,
    WithdrawalTerms,
)
from protocol.serving import AnswerReport, AskCommand

LogLevel = Literal["debug", "info", "warning", "error"]

MAX_ROWS = 5_000  # In one answer.


@dataclass(frozen=True)
class ListWindow:
    """A part of a list: ``limit`` items behind the place ``after`` in its order (None: from its beginning)."""

    after: tuple[Any, ...] | None
    limit: int


class JobsPort(Protocol):
    """Everything about jobs. Raises ``coordinator.errors``.

    Lists of a job begin with the oldest. Without a window they are what a page shows: the newest 5,000.
    """

    async def quote(self, spec: JobSpec, account_id: str = LOCAL_ACCOUNT) -> api.Quote:
        """Price and plan on the network as it is; problems are in the quote, not raised."""

    async def check_owner(self, job: str, account_id: str) -> None:
        """NotFoundError unless the job is there and the account's; the web layer asks before anything else."""

    async def check_files(self, account_id: str, wanted: Iterable[tuple[str, Digest]]) -> None:
        """NotFoundError unless every digest, given with its field, is a file that the account uploaded."""

    async def file_name(self, account_id: str, artifact: Digest) -> str:
        """What the account calls a file that it uploaded; empty where it has given it no name."""

    async def choices(self, spec: JobSpec) -> Sequence[api.Choice]:
        """Other jobs that would be cheaper or sooner, each quoted."""

    async def tokenizer(self, model: ModelSpec) -> TokenizerSpec:
        """That of the job's model that ``model`` starts from."""

    async def check_funds(self, new: api.NewJob) -> None:
        """FundsError unless the wallet that would fund the job holds its budget."""

    async def create(self, new: api.NewJob, account_id: str = LOCAL_ACCOUNT, job: str | None = None) -> api.JobView:
        """Checked at the door (document, config, dataset, size of the network); refused whole or stored whole.

        Args:
            job: the id that it is to have; where the account has a job of this id already, that is the answer.
        """

    async def funding(self, job: str) -> api.Funding: ...

    async def fund(self, job: str) -> api.JobView:
        """Look on the ledger for the escrow; with the test wallet, open it first. Idempotent."""

    async def cancel(self, job: str) -> api.JobView: ...

    async def ask(self, job: str, action: JobAction) -> api.JobView:
        """Pause, resume, or stop and keep the model; asking for what is so already changes nothing."""

    async def add_budget(self, job: str, amount: int) -> api.JobView:
        """Raise the cap by ``amount`` millionths."""

    async def is_shared(self, job: str) -> bool:
        """Whether everybody may look at it; False where there is none."""

    async def share(self, job: str, shared: bool) -> api.JobView:
        """Let everybody look at the job, or its owner only."""

    async def get(self, job: str) -> api.JobView: ...

    async def list(
        self, limit: int, before: float | tuple[float, str] | None, account_id: str = LOCAL_ACCOUNT
    ) -> Sequence[api.JobView]:
        """The account's jobs, newest first. ``before``: only those created before this time, or behind the job (created, id)."""

    async def list_shared(self, limit: int, before: float | None) -> Sequence[api.JobView]:
        """Jobs that everybody may look at, newest first."""

    async def nodes(self, job: str) -> Sequence[api.JobNode]: ...

    async def rounds(self, job: str, window: ListWindow | None = None) -> Sequence[api.RoundView]: ...

    async def commits(self, job: str, window: ListWindow | None = None) -> Sequence[api.CommitView]: ...

    async def audits(self, job: str, window: ListWindow | None = None) -> Sequence[api.AuditView]: ...

    async def receipts(self, job: str, window: ListWindow | None = None) -> Sequence[api.Receipt]: ...

    async def metrics(self, job: str, after: int, limit: int = MAX_ROWS) -> Sequence[api.Metric]: ...

    async def events(self, job: str, after: int, limit: int = MAX_ROWS) -> Sequence[api.JobEvent]: ...

    async def mark(self, job: str) -> tuple[int, int]:
        """How many points there are, and the id of the last event; 0 where there is none."""

    def changes(self, job: str | None) -> AsyncIterator[str]:
        """Yields a job id whenever that job (or, for ``None``, any job or node) changed; coalesced, never unbounded."""


class OutputsPort(Protocol):
    """What a job leaves: checkpoints, a log, a model to try, opened steps. Raises ``coordinator.errors``."""

    async def checkpoints(self, job: str) -> Sequence[api.CheckpointView]:
        """Newest first."""

    async def part(self, job: str, round_: int, stage: int) -> str:
        """The artifact of one stage's file of a checkpoint."""

    async def records(self, job: str, audit: str) -> AuditRecords:
        """What an audited step was opened with."""

    async def record(self, job: str, audit: str, name: str) -> str:
        """The artifact of a file of those records."""

    async def folder(self, job: str, round_: int | None = None) -> str:
        """The artifact of a checkpoint's model folder; None: the newest."""

    async def model(self, job: str) -> str:
        """The artifact of the newest model as a whole: an adapter is merged into what it adapts."""

    async def output(self, job: str) -> api.OutputView:
        """The bucket that the job's model goes to; NotFoundError where none is named."""

    async def set_output(self, job: str, account_id: str, wanted: api.NewOutput) -> api.OutputView:
        """Name it, or another one."""

    async def remove_output(self, job: str) -> None:
        """Send nothing more, and forget its key."""

    def generate(self, job: str, round_: int | None, request: api.TrialRequest) -> AsyncIterator[Mapping[str, Any]]:
        """Pieces of text from a checkpoint."""

    def complete(self, job: str, point: ModelPoint, command: AskCommand) -> AsyncIterator[AnswerReport]:
        """An answer, or embeddings, of one of a job's models; for programs."""

    async def log(
        self, job: str, after: int, before: int | None, search: str, level: LogLevel, limit: int
    ) -> Sequence[api.LogLine]:
        """A page of the log: after an id, or the newest before one."""


class NoticesPort(Protocol):
    """What an account is told of its jobs, and where. Raises ``coordinator.errors``."""

    async def get(self, account_id: str) -> api.NoticesView: ...

    async def put(self, account_id: str, wanted: api.NewNotices) -> api.NoticesView: ...

    async def confirm(self, account_id: str, token: str) -> api.NoticesView:
        """Believe that the mail address is the account's, which was sent ``token``."""

    async def rotate(self, account_id: str) -> api.NoticesView:
        """Another secret for webhooks."""

    async def test(self, account_id: str) -> int:
        """Queue a test on every channel that is on; how many."""

    async def deliveries(self, account_id: str, limit: int, before: int | None = None) -> Sequence[api.Delivery]:
        """What was sent, newest first; ``before``: only those with a smaller id."""


class LedgerPort(Protocol):
    """What the ledger's pages show: transactions, audits, totals, each round's evidence. Raises ``coordinator.errors``."""

    async def entries(
        self, kinds: Sequence[str], job: str | None, before: int | None, limit: int
    ) -> Sequence[ledger.LedgerEntry]:
        """Transactions, newest first; ``kinds`` empty: of every kind; ``before``: only those with a smaller id."""

    async def audits(
        self, state: str | None, job: str | None, offset: int, limit: int, after: tuple[int, str] | None = None
    ) -> Sequence[ledger.NodeAudit]:
        """Audits, those of the latest rounds first; ``after``: only those behind the audit (round, id)."""

    async def totals(self) -> ledger.LedgerTotals: ...

    async def job(self, job: str) -> ledger.JobLedger:
        """A job's escrow, as the ledger has it now."""

    async def node(self, node: str) -> ledger.NodeAccount: ...

    async def disputes(
        self, job: str | None, offset: int, limit: int, after: tuple[float, str] | None = None
    ) -> Sequence[DisputeView]:
        """Disputes, newest first."""

    async def dispute(self, audit: str) -> DisputeDetail:
        """A dispute, with all that was said once it is over."""

    async def promise(self, job: str) -> ledger.PromiseView:
        """The newest promise of earnings of a job; NotFoundError where there is none."""

    async def evidence(self, job: str, number: int) -> Sequence[RoundEvidence]:
        """What is published about a round, for each time that it was completed: once, unless it was lost and done again."""


class NetworkPort(Protocol):
    """Nodes and relays: what the network page shows, and how relays come into it. Raises ``coordinator.errors``."""

    async def view(self) -> api.NetworkView: ...

    async def nodes(self) -> Sequence[api.NodeView]: ...

    async def relays(self) -> Sequence[api.RelayView]: ...

    async def announce_relay(self, envelope: RelayEnvelope) -> RelayOrder:
        """Believe a relay that the operator has allowed; refuse everybody else."""

    async def relay_credentials(self, question: RelayQuestion, host: str) -> IceServers:
        """Every relay that lives, with credentials for the node that has signed the question to ``host``."""


class WithdrawalPort(Protocol):
    """How lenders' earnings leave wallets without SOL."""

    async def terms(self) -> WithdrawalTerms: ...

    async def offer(self, asked: WithdrawalRequest, address: str) -> WithdrawalAnswer:
        """What it costs now, or why it is refused; ``address``: where the question comes from."""

    async def take(self, signed: SignedWithdrawal, address: str) -> SentWithdrawal:
        """Sign and send what its owner has signed, or say why not."""


class ArtifactAccessPort(Protocol):
    """What nodes may read and store. Raises ``coordinator.errors``."""

    async def check_read(self, node: NodeAddress, artifact: Digest) -> None:
        """Refuse an artifact that the node was not told of under a lease, as if it were not here."""

    def storing(
        self, node: NodeAddress, lease: str, answers: str, artifact: Digest, size: int, address: str
    ) -> AbstractAsyncContextManager[None]:
        """Inside, the node may store the artifact that it was asked for; GoneError where it was not."""


class MarketPort(Protocol):
    """Price, demand, regions, earnings and health: what the market's pages show. Raises ``coordinator.errors``."""

    async def regions(self, nodes: Collection[str] | None = None) -> Sequence[market.Region]:
        """Where machines are that are here now; ``nodes``: only these."""

    async def links(self, nodes: Collection[str]) -> Sequence[market.Link]:
        """Links that live now between these nodes."""

    async def now(self) -> market.Market: ...

    async def earnings(self, address: str) -> market.Earnings:
        """What was earned for a wallet, or by a node's own key; InvalidError where this is no address."""

    async def health(self) -> market.Health: ...
