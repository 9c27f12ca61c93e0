"""A ledger, a workshop and nodes that keep the rules of the real ones in memory, and can be told to fail."""

import dataclasses
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Literal

from solders.pubkey import Pubkey

from coordinator.domain.cells import WHOLE, Cell
from coordinator.domain.job import Job
from coordinator.services.artifacts.artifacts import ArtifactStock
from coordinator.services.artifacts.deliveries import Deliveries
from coordinator.services.artifacts.models import Prepared
from coordinator.services.payments.chain import Deposit, Outcome
from coordinator.store.ports import Transaction
from coordinator.store.records import RoundRecord
from ledger.addresses import audit_bytes
from ledger.errors import LedgerUnavailableError, NoEscrowError, TransactionExpiredError
from ledger.money import Amount
from ledger.program.interface import MarketAddresses
from ledger.program.layout import Ruling
from ledger.promises import PromisedEarnings, earnings_of
from ledger.states import Asked, DisputeState, EscrowState, PreparedTransaction, StakeState
from protocol.identity import NodeKey
from protocol.job.job import DatasetSpec, JobSpec, ModelSpec, ParallelSpec, TokenizerSpec, TrainingSpec
from protocol.models.model import resolve
from protocol.models.weights import WEIGHT_INDEX
from protocol.node import NodeProfile
from protocol.serving import MODEL_ARCHIVE, SMALL_ARCHIVE
from protocol.task import (
    OuterRecord,
)
from tests.coordinator.fake_shards import ShardPost
from tests.coordinator.rerun import Committed
from tests.coordinator.rerun import digest as digest

COORDINATOR_KEY = NodeKey(b"c" * 32)
COORDINATOR = COORDINATOR_KEY.address
WALLET = NodeKey(b"w" * 32).address
BUDGET = 10_000_000


DATASET = digest("dataset")
MARKET = MarketAddresses(Pubkey.from_bytes(b"p" * 32), Pubkey.from_bytes(b"m" * 32))


def spec(stages: int | None = 2, replicas: int | None = 2, **training: int) -> JobSpec:
    """A small job: four rounds of two steps."""
    return JobSpec(
        name="a small job",
        model=ModelSpec(preset="tiny-llama"),
        dataset=DatasetSpec(DATASET),
        budget=BUDGET,
        tokenizer=TokenizerSpec("bytes"),
        training=TrainingSpec(
            tokens=training.get("tokens", 4096),
            sequence=32,
            batch=8,
            micro_batches=2,
            inner_steps=training.get("inner_steps", 2),
            commit_every=1,
        ),
        parallel=ParallelSpec(stages, replicas),
    )


def profile(name: str, flops: float = 1e9, env_class: str = "cpu") -> NodeProfile:
    """An ordinary machine."""
    return NodeProfile(name, "CPU", "cpu", 8_000, flops, env_class, "process")


class FakeModels:
    """Prepares nothing and assembles nothing; remembers what was asked."""

    def __init__(self) -> None:
        self.assembled: list[tuple[str, ...]] = []

    async def prepare(self, spec: JobSpec, name: str = "", called: Mapping[str, str] | None = None) -> Prepared:
        names = ("train.bin", "heldout.bin", "tokenizer.json", "config.json")
        return Prepared({name: digest(name) for name in names}, resolve(spec.model, 259))

    async def assemble(
        self, job: Job, checkpoints: Sequence[str], rounds: Sequence[RoundRecord], data: str = ""
    ) -> str:
        self.assembled.append(tuple(checkpoints))
        return digest("model", job.id)

    async def start(self, spec: JobSpec, files: Mapping[str, str]) -> str:
        return digest("start", files["config.json"])

    async def published(self, spec: JobSpec, config: Mapping[str, object]) -> Prepared:
        return Prepared({MODEL_ARCHIVE: digest("published"), "config.json": digest("config")}, dict(config))

    async def template_fault(self, tokenizer: TokenizerSpec) -> str:
        return ""

    async def stage_files(self, archive: str) -> dict[str, str]:
        return {name: digest(name, archive) for name in (SMALL_ARCHIVE, WEIGHT_INDEX)}

    async def merge(self, job: Job, adapter: str) -> str:
        return digest("merged", job.id)


class FakeArtifacts:
    """Everything that was ever named is there."""

    async def has(self, _digest: str) -> bool:
        return True

    async def size(self, _digest: str) -> int:
        return 1_000

    @asynccontextmanager
    async def files(self, *digests: str) -> AsyncIterator[tuple[Path, ...]]:
        yield (Path(__file__),) * len(digests)

    async def sweep(self, _referred: object, _before: float) -> tuple[int, int]:
        return 0, 0

    async def survey(self, _referred: object, _before: float) -> ArtifactStock:
        return ArtifactStock(3, 3_000)

    def total(self) -> int:
        return 10**12

    def free(self) -> int:
        return 10**11


class AllDelivered(Deliveries):
    """Whatever is named was stored, as in worlds whose nodes move no bytes."""

    async def stored(self, tx: Transaction, lease: str, artifact: str) -> bool:
        return True


@dataclass
class Account:
    """An escrow of the fake ledger."""

    submitter: str
    deposited: int
    deadline: int
    paid: dict[str, int] = field(default_factory=dict)
    promised: dict[str, int] = field(default_factory=dict)
    refunded: int = 0
    ended: bool = False
    accepted: bool = False

    @property
    def balance(self) -> int:
        return self.deposited - sum(self.paid.values()) - self.refunded


class FakeChain:
    """A ledger in memory. ``fault(what)`` may raise, before or after the thing happened, as a network does.

    ``slow()`` says whether a transaction is executed only some blocks after it was sent.
    """

    url, program, mint = "http://ledger.test", "program", "mint"

    def __init__(
        self, fault: Callable[[str], None] = lambda _what: None, slow: Callable[[], bool] = lambda: False
    ) -> None:
        self.fault = fault
        self.slow = slow
        self.wallets = {WALLET: 1_000_000_000}
        self.escrows: dict[str, Account] = {}
        self.stakes: dict[str, int] = {}
        self.requested: dict[str, int] = {}  # Of stakes: what was asked back.
        self.moving: dict[str, str] = {}  # The coordinator that a node has asked for.
        self.disputes: dict[tuple[str, str], DisputeState] = {}
        self.slashed: dict[str, int] = {}
        self.memos: list[str] = []
        self.executed: dict[str, str] = {}
        self.slots: dict[str, int] = {}
        self.signed: list[tuple[str, str]] = []
        self.height = 0
        self.blocks_by_themselves = 1  # 0 where a test moves the height.
        self.sees_paid = False  # What is paid already is found out before it is sent, as the program's client does.
        self._actions: dict[str, Callable[[], None]] = {}
        self._held: dict[str, tuple[int, PreparedTransaction]] = {}
        self._count = 0

    async def balance(self, owner: str) -> int:
        return self.wallets.get(owner, 0)

    async def escrow(self, submitter: str, job: str) -> EscrowState | None:
        self.fault("ask")
        account = self.escrows.get(job)
        if account is None or account.submitter != submitter:
            return None
        return EscrowState(
            address="escrow",
            submitter=submitter,
            coordinator=COORDINATOR,
            job=b"",
            deposited=Amount(account.deposited),
            paid=Amount(sum(account.paid.values())),
            refunded=Amount(account.refunded),
            balance=Amount(account.balance),
            deadline=account.deadline,
            ended=account.ended,
            closed=False,
            max_payees=64,
            paid_to={},
            accepted=account.accepted,
        )

    def escrow_address(self, submitter: str, job: str) -> str:
        return "escrow"

    async def deposits(self, submitter: str, job: str) -> Sequence[Deposit]:
        self.fault("ask")
        return [Deposit(f"deposit-{job}", self.escrows[job].deposited, 1.0)]

    async def received(self, submitter: str, job: str, payees: Collection[str]) -> Mapping[str, int]:
        self.fault("ask")
        return {payee: paid for payee, paid in self.escrows[job].paid.items() if payee in payees and paid}

    async def written(self, submitter: str, job: str) -> Mapping[str, str]:
        self.fault("ask")
        found = {wire.removeprefix("memo "): signature for signature, wire in self.executed.items()}
        return {text: found.get(text, "with the acceptance") for text in self.memos if job in text}

    async def stake(self, node: str) -> StakeState | None:
        if node not in self.stakes:
            return None
        return self._stake(node)

    async def stakes_of(self, nodes: Sequence[str]) -> Mapping[str, StakeState | None]:
        self.fault("ask")
        return {node: self._stake(node) if node in self.stakes else None for node in nodes}

    def _stake(self, node: str) -> StakeState:
        balance = Amount(self.stakes[node])
        return StakeState(
            address="stake",
            node=node,
            coordinator=COORDINATOR,
            treasury="treasury",
            balance=balance,
            deposited=balance,
            slashed=Amount(0),
            withdrawn=Amount(0),
            requested=Amount(self.requested.get(node, 0)),
            unlock_at=0,
            cooldown=0,
            slash_bps=5000,
            window=0,
            window_start=0,
            window_base=balance,
            window_slashed=Amount(0),
            next_coordinator=self.moving.get(node),
            move_at=1 if node in self.moving else 0,
        )

    async def prepare_fund(self, job: str, amount: int, deadline: int) -> PreparedTransaction:
        return self._prepare(f"fund {job}", lambda: self._fund(job, amount, deadline))

    async def prepare_acceptance(
        self, submitter: str, job: str, asked: Asked, note: str, nonce: str = ""
    ) -> PreparedTransaction:
        self._open(job)
        return self._prepare(f"accept {job}", lambda: self._accept(job, asked, note))

    async def prepare_deposit(self, job: str, total: int) -> PreparedTransaction | None:
        missing = total - self._open(job).deposited
        return self._prepare(f"deposit {job} {total}", lambda: self._add(job, missing)) if missing > 0 else None

    async def nonces(self, cell: Cell = WHOLE) -> Sequence[str]:
        return ()

    async def prepare_settlement(
        self,
        submitter: str,
        job: str,
        payouts: Mapping[str, int],
        nonce: str = "",
        tables: Sequence[str] = (),
        had: AbstractSet[str] = frozenset(),
    ) -> PreparedTransaction | None:
        paid = self._open(job).paid
        if self.sees_paid and all(paid.get(payee, 0) >= total for payee, total in payouts.items()):
            return None
        return self._prepare(f"settle {job} {sorted(payouts.items())}", lambda: self._settle(job, dict(payouts)))

    async def left_out(self, submitter: str, job: str, payouts: Mapping[str, int]) -> AbstractSet[str]:
        paid = self.escrows[job].paid
        return {payee for payee, total in payouts.items() if paid.get(payee, 0) < total}

    async def prepare_promise(
        self, submitter: str, job: str, cumulative: Mapping[str, int], nonce: str = ""
    ) -> PreparedTransaction | None:
        self._open(job)
        totals = dict(cumulative)
        return self._prepare(f"promise {job} {sorted(totals.items())}", lambda: self._promise(job, totals))

    def promise(self, cumulative: Mapping[str, int]) -> PromisedEarnings:
        return earnings_of(MARKET, {payee: Amount(total) for payee, total in cumulative.items()})

    async def prepare_end_of_table(self, table: str, nonce: str = "") -> PreparedTransaction | None:
        return None

    async def outcome_of(self, prepared: PreparedTransaction) -> Outcome:
        return await self.outcome(prepared.signature, prepared.last_valid_block_height)

    async def prepare_refund(self, submitter: str, job: str, nonce: str = "") -> PreparedTransaction:
        self._open(job)
        return self._prepare(f"refund {job}", lambda: self._refund(job))

    async def prepare_memo(self, text: str, submitter: str, job: str) -> PreparedTransaction:
        return self._prepare(f"memo {text}", lambda: self.memos.append(text))

    async def prepare_slash(
        self, node: str, amount: int, reason: bytes, nonce: str = "", challenger: str | None = None
    ) -> PreparedTransaction:
        return self._prepare(f"slash {reason.hex()}", lambda: self._slash(node, amount))

    async def dispute(self, challenger: str, audit: str) -> DisputeState | None:
        return self.disputes.get((challenger, audit))

    async def waiting_disputes(self) -> Sequence[DisputeState]:
        return [state for state in self.disputes.values() if state.ruling is Ruling.OPEN]

    async def prepare_verdict(
        self, challenger: str, audit: str, evidence: bytes, *, upheld: bool, slash: int = 0, nonce: str = ""
    ) -> PreparedTransaction:
        what = f"verdict {audit} {'upheld' if upheld else 'rejected'} {slash}"
        return self._prepare(what, lambda: self._decide((challenger, audit), evidence, upheld, slash))

    async def slot(self) -> int:
        self.fault("ask")
        return self.height

    async def slot_of(self, signature: str) -> int | None:
        self.fault("ask")
        return self.slots.get(signature)

    async def block_after(self, slot: int) -> tuple[int, str] | None:
        self.fault("ask")
        if self.height <= slot:
            self.height += self.blocks_by_themselves
        return (slot + 1, digest("block", slot + 1)) if self.height > slot else None

    async def submit(self, prepared: PreparedTransaction) -> None:
        self.fault("before")
        if prepared.signature in self.executed:
            return
        if self.height > prepared.last_valid_block_height:
            raise TransactionExpiredError(prepared.signature)
        if prepared.signature in self._held:
            return
        if self.slow():
            self._held[prepared.signature] = (self.height + 3, prepared)  # Accepted, and executed some blocks later.
            return
        self._execute(prepared)
        self.fault("after")

    async def outcome(self, signature: str, last_height: int) -> Outcome:
        self.fault("ask")
        for due, prepared in list(self._held.values()):
            if self.height >= due:
                del self._held[prepared.signature]
                self._execute(prepared)
        if signature in self.executed:
            return "confirmed"
        return "expired" if self.height > last_height else "pending"

    def pay(self, job: str, amount: int, submitter: str = WALLET) -> None:
        """An outside wallet opens an escrow by itself."""
        self.escrows[job] = Account(submitter, amount, 2**40)

    def _prepare(self, what: str, action: Callable[[], None]) -> PreparedTransaction:
        self.fault("prepare")
        self._count += 1
        self.height += 1
        signature = f"signature-{self._count}"
        self._actions[signature] = action
        self.signed.append((what, signature))
        return PreparedTransaction(signature, what.encode(), self.height + 20)

    def _execute(self, prepared: PreparedTransaction) -> None:
        self.executed[prepared.signature] = prepared.wire.decode()
        self.slots[prepared.signature] = self.height
        self._actions[prepared.signature]()

    def _open(self, job: str) -> Account:
        account = self.escrows.get(job)
        if account is None or account.ended:
            raise NoEscrowError(f"no open escrow for {job}")
        return account

    def _fund(self, job: str, amount: int, deadline: int) -> None:
        assert job not in self.escrows, "an escrow is opened once"
        self.wallets[WALLET] -= amount
        self.escrows[job] = Account(WALLET, amount, deadline)

    def _add(self, job: str, amount: int) -> None:
        self.wallets[WALLET] -= amount
        self._open(job).deposited += amount

    def _accept(self, job: str, asked: Asked, note: str) -> None:
        account = self._open(job)
        assert account.deadline >= asked.deadline, "an escrow ends before it was asked to"
        assert account.deposited >= asked.amount, "an escrow holds less than was asked for"
        account.accepted = True
        self.memos.append(note)

    def _settle(self, job: str, payouts: Mapping[str, int]) -> None:
        account = self._open(job)
        for payee, total in payouts.items():
            more = max(0, total - account.paid.get(payee, 0))
            assert more <= account.balance, "more than the escrow holds"
            account.paid[payee] = account.paid.get(payee, 0) + more
            self.wallets[payee] = self.wallets.get(payee, 0) + more

    def _decide(self, key: tuple[str, str], evidence: bytes, upheld: bool, slash: int) -> None:
        state = self.disputes[key]
        assert state.ruling is Ruling.OPEN, "a dispute is decided once"
        self.disputes[key] = replace(state, ruling=Ruling.UPHELD if upheld else Ruling.REJECTED, evidence=evidence)
        if slash:
            self._slash(state.node, slash)

    def bond(self, challenger: str, node: str, audit: str, deadline: int = 2**40) -> None:
        """Somebody puts a bond against a node's audit."""
        self.disputes[challenger, audit] = DisputeState(
            "dispute",
            Ruling.OPEN,
            challenger,
            node,
            COORDINATOR,
            audit_bytes(audit),
            None,
            Amount(5),
            Amount(5),
            deadline,
        )

    def _promise(self, job: str, totals: Mapping[str, int]) -> None:
        account = self._open(job)
        assert sum(totals.values()) <= account.deposited, "more than the escrow can pay"
        assert all(totals.get(payee, 0) >= before for payee, before in account.promised.items()), "a promise was broken"
        account.promised = dict(totals)

    def _refund(self, job: str) -> None:
        account = self._open(job)
        self.wallets[account.submitter] += account.balance
        account.refunded = account.balance
        account.ended = True

    def _slash(self, node: str, amount: int) -> None:
        self.stakes[node] -= amount
        self.slashed[node] = self.slashed.get(node, 0) + amount


def unavailable(what: str) -> None:
    """A fault: the ledger does not answer."""
    raise LedgerUnavailableError(f"no answer ({what})")


Lie = Literal[
    "root",
    "substitute",
    "anchor",
    "class",
    "skips",
    "but last",
    "one step",
    "stale",
    "copied",
    "zero",
    "nan",
    "scaled",
    "flipped",
    "mute",
    "silent",
    "outer",
    "sent",
    "received",
    "other class",
    "loss",
    "no loss",
    "accuracy",
    "dies measuring",
    "poison",
    "noughts",
    "faint",
    "replays",
    "blames",
    "small",
    "false result",
    "no result",
    "late result",
    "no reduction",
]
FALSE_CONTRIBUTIONS = frozenset({"stale", "copied", "zero", "nan", "scaled", "flipped"})


@dataclass(frozen=True)
class Tree:
    """What the leaves under a root say."""

    gradient: str
    anchor: str
    env_class: str
    forged: bool
    work: Committed
    honest_gradient: str


class Peers:
    """What workers send each other: pseudo-gradients by (job, epoch, round, stage), checkpoints by digest, leaves by root."""

    def __init__(self) -> None:
        self.sent: dict[tuple[str, int, int, int], dict[int, str]] = {}
        self.begun: dict[tuple[str, int, int, int], set[int]] = {}
        self.checkpoints: dict[str, tuple[int, int, str]] = {}
        self.keepers: dict[str, set[str]] = {}
        self.stored: set[str] = set()
        self.moments: dict[str, tuple[int, int, int]] = {}
        self.resumed = 0
        self.compares = False  # Pairs of answers.
        self.anchors: dict[tuple[str, int, int], set[str]] = {}
        self.trees: dict[str, Tree] = {}
        self.openings: dict[str, str] = {}
        self.outers: dict[str, tuple[OuterRecord, str, dict[int, int]]] = {}
        self.shards = ShardPost()
        self.violations: list[str] = []
        self.across = 0
        self.poisoned: set[str] = set()
        self.noughts: set[tuple[int, int, int]] = set()  # Epoch, round and replica.
        self.forged: dict[tuple[str, int, int, int, int], Fraction] = {}  # Of the steps of a seat's round.
        self.worked: set[tuple[object, ...]] = set()  # What came of which samples of which seat is kept by cheats.


class FakeForger:
    """Makes a step of a true tree false."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self.forged: set[str] = set()

    async def forge(self, opening: str, leaves: int, step: int) -> tuple[str, str]:
        root = digest("canary", opening, leaves, step)
        true = self._peers.trees[self._peers.openings[opening]]
        work = dataclasses.replace(true.work, wrong=frozenset({step}))
        self._peers.trees[root] = dataclasses.replace(true, work=work)
        self.forged.add(root)
        return digest("forged", opening), root
