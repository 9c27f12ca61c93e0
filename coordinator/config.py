"""Settings of a coordinator; ``cli`` fills them in. Every default suits one PC with a handful of nodes."""

from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Literal

from common.token_worth import TokenWorth
from coordinator.domain.audits.rate import FLOOR
from coordinator.domain.rounds.run import EVALUATORS
from protocol.ids import NodeAddress
from protocol.rest.lending import LendingRule


@dataclass(frozen=True)
class OfferedTasks:
    """Tasks of lm-evaluation-harness. ``names``: in the order in which they are offered; ``folders``: of the operator's own."""

    names: tuple[str, ...] = ()
    folders: tuple[Path, ...] = ()


@dataclass(frozen=True)
class RetentionPolicy:
    """For how many days files stay. ``job_files``: of a job that was paid for, after its end; ``uploads``: after they came."""

    job_files: int = 30  # A submitter has looked at a job by then, and doubted it, or not.
    uploads: int = 30


@dataclass(frozen=True)
class TurnRelay:
    """A relay that does not report, such as a coturn run elsewhere.

    Attributes:
        urls: the ways to it; the first names it and is probed.
        secret: its ``static-auth-secret``, from which credentials are made.
    """

    urls: tuple[str, ...]
    secret: str = field(repr=False)


@dataclass(frozen=True)
class MailConfig:
    """The SMTP server that notices go through.

    Attributes:
        public_url: where people reach the coordinator's pages; empty: mails have no links.
        seconds: for the whole conversation with the server.
    """

    host: str
    port: int
    sender: str
    security: Literal["starttls", "tls", "none"] = "starttls"
    user: str = ""
    password: str = field(default="", repr=False)
    public_url: str = ""
    seconds: float = 30.0


@dataclass(frozen=True)
class IdentityConfig:
    """The organisation's identity provider, by which people sign in (OpenID Connect).

    Attributes:
        issuer: its name and address, character for character as it says it itself.
        client: how it calls this coordinator.
        secret: by which this coordinator proves that; empty: it has none, and PKCE has to do.
    """

    issuer: str
    client: str
    secret: str = field(default="", repr=False)


@dataclass(frozen=True)
class Config:
    """Times in seconds, amounts in millionths of the token.

    Attributes:
        data: folder of the database, the key, artifacts and uploads.
        cells: parts that jobs are carried in, each by one of the coordinators of a PostgreSQL database (``domain.cells``).
        store: a bucket for artifacts, as s3://BUCKET/PREFIX; None: they lie in the data folder.
        store_gigabytes: that the bucket may hold; what an account may have here is a share of it.
        store_cache_gigabytes: of the bucket's artifacts that stay in the data folder too, while nobody works on them.
        ledger_program, ledger_mint: None asks the ledger, which only the embedded one answers.
        retention: for how long files stay that nothing at work needs (``services.artifacts.retention``).
        test_wallet: the coordinator funds jobs without a submitter from a wallet of its own (embedded ledger only).
        open: no sign-in: whoever reaches the port is the built-in account; only on a loopback address.
        sign_up: strangers may make accounts; whom the identity provider vouches for is none.
        reachable_at: where other coordinators reach this one; None: where it listens, as the database sees it. With several cells
            its machine alone counts.
        public_url: where browsers find the coordinator; wallets and passkeys sign for it, and the identity provider leads back.
        identity: the identity provider that people may sign in through; None: there is none.
        own_auditor: one auditor runs beside the coordinator, where PyTorch is installed (``coordinator.ownauditor``).
        no_auditor: why none does.
        behind_proxy: a reverse proxy is in front, whose X-Forwarded-For and X-Forwarded-Proto are believed.
        lease_seconds: a node that is silent for as long has left.
        start_seconds: a worker that is not ready by then is given up (download, sandbox, building the stage).
        start_grace_seconds: a whole replica waits as long for the others before the first round, and an unfilled plan for nodes.
        stall_seconds: a round in which nothing at all is heard for as long is unblocked by force.
        who_may_lend: whose machines are let in and given work; the operator's own auditors always are.
        lenders: a file with the list of who may (``domain.lenders``), looked at again while this runs; None: there is no list.
        auditors: the operator's own machines that only audit (``cottage auditor``): they get no seats, need no stake, and their
            looks make strangers' work payable. None: a network of people who know each other, who audit each other.
        unwatched: strangers may also do work that none of these could run again; then other nodes decide what is paid of it.
        audits_per_round: steps re-run after each round at the least; nodes' own rates may ask for more.
        audit_floor: rate of audits of the most trusted node, in millionths of its rounds.
        audit_twice: audits that two auditors have to agree on, in millionths.
        canaries: audits that passed after which another auditor is given the same step made false, in millionths.
        disputes: a finding against a prover is played down to one operation before anybody loses stake.
        audit_seconds: for opening a step, and for re-running it, at the least: see ``domain.audits.answer_time``.
        audit_patience_seconds: for an auditor to be found.
        return_seconds: for which the time of an audit stands still, in sum, while its prover is away; 0: who is lost has left.
        store_every: rounds between two states of a job that are stored here; its nodes keep the newest for each other.
        settle_every: rounds between two settlements.
        sol_price: of one SOL, by which a payout is worth its fee or waits, and at which a withdrawal pays fee and rent;
            0: fees are nothing, as on the embedded ledger. On a cluster no withdrawal is offered without it.
        token_worth: of one token in a currency, for people to read; nothing is reckoned by it. None: nothing is said.
        withdrawal_lamports: that a day's withdrawals of everybody may take for fees and rent; 0: none is offered.
        least_withdrawal: what must arrive of one.
        spares: nodes held ready beside a job's seats, where there are enough.
        validations: between the first and the last.
        evaluators: replicas of different owners that measure the held-out loss; 1: it is one computer's word.
        stun: URLs of STUN servers beside the relays, which answer STUN too.
        relays: addresses of the relays that may announce themselves.
        webhook_networks: that webhooks, and models for submitters' buckets, may go to beside the public Internet.
        evaluation: tasks that finished models may be tried with; ``evaluation_seconds``: for all tasks of one model.
        relay_user_rate: bytes a second that those relays carry for one node in one job; 0: as many as they will.
    """

    data: Path
    ledger_url: str
    ledger_program: str | None = None
    ledger_mint: str | None = None
    host: str = "127.0.0.1"
    port: int = 8470
    reachable_at: str | None = None
    database_url: str | None = None
    cells: int = 1
    store: str | None = None
    store_gigabytes: int = 1_000
    store_cache_gigabytes: int = 20
    retention: RetentionPolicy = RetentionPolicy()
    test_wallet: bool = True
    open: bool = False
    sign_up: bool = True
    public_url: str | None = None
    identity: IdentityConfig | None = None
    own_auditor: bool = False
    no_auditor: str = ""
    behind_proxy: bool = False
    lease_seconds: float = 10.0
    heartbeat_seconds: float = 2.0
    tick_seconds: float = 0.5
    start_seconds: float = 300.0
    start_grace_seconds: float = 15.0
    stall_seconds: float = 120.0
    who_may_lend: LendingRule = "everybody"
    lenders: Path | None = None
    auditors: frozenset[NodeAddress] = frozenset()
    unwatched: bool = False
    audits_per_round: int = 1
    audit_floor: int = FLOOR
    audit_twice: int = 100_000  # One in ten: an auditor that colludes does not know which.
    canaries: int = 50_000
    disputes: bool = True
    audit_seconds: float = 120.0
    audit_patience_seconds: float = 15.0
    return_seconds: float = 600.0
    store_every: int = 4  # A state is 8 or 4 bytes a parameter: in every round it would be more than all updates.
    settle_every: int = 4
    spares: int = 2
    validations: int = 4
    evaluators: int = EVALUATORS
    price_per_petaflop: int = 2_000
    minimum_price: int = 1_000_000
    sol_price: int = 0
    token_worth: TokenWorth | None = None
    # Half a SOL: 240 new token accounts a day, or 50,000 withdrawals to old ones.
    withdrawal_lamports: int = 500_000_000
    least_withdrawal: int = 1_000
    min_stake: int = 0
    stun: tuple[str, ...] = ()
    turn: tuple[TurnRelay, ...] = ()
    relays: frozenset[str] = frozenset()
    relay_user_rate: float = 0.0
    mail: MailConfig | None = None
    webhook_networks: tuple[IPv4Network | IPv6Network, ...] = ()
    prepare_seconds: float = 900.0
    prepare_memory_mb: int = 8_192
    evaluation: OfferedTasks = OfferedTasks()
    evaluation_seconds: float = 3_600.0

    @property
    def database(self) -> str:
        """URL of the database: the one that was given, or SQLite in the data folder."""
        return self.database_url or f"sqlite+aiosqlite:///{self.data / 'coordinator.db'}"
