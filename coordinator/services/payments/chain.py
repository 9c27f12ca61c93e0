"""What the coordinator wants of the ledger. ``LedgerChain`` is the ledger itself; tests bring one that loses answers."""

import logging
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal, Protocol

from coordinator.domain.cells import WHOLE, Cell
from ledger import events
from ledger.addresses import subject_bytes
from ledger.client import DisputeState, Ledger, PreparedTransaction, PromisedEarnings, StakeState, job_bytes
from ledger.errors import LedgerError
from ledger.money import Amount
from ledger.states import Asked, EscrowState

Outcome = Literal["pending", "confirmed", "failed", "expired"]

NONCES = 24  # 16 jobs' money moves at a time, and a nonce that was used rests for a block. Their rent is 0.035 SOL.
NONCES_EACH = 8  # Of a cell, where jobs are parted in more than three: each has a part of its own.


@dataclass(frozen=True)
class Deposit:
    """Money that came into an escrow: ``amount`` in millionths, ``time`` in Unix seconds."""

    signature: str
    amount: int
    time: float


LOG = logging.getLogger(__name__)


class ChainPort(Protocol):
    """The ledger as services see it: jobs by their id, the coordinator's key already in hand. Raises ``ledger.errors``."""

    url: str
    program: str
    mint: str

    async def balance(self, owner: str) -> int: ...

    async def escrow(self, submitter: str, job: str) -> EscrowState | None: ...

    def escrow_address(self, submitter: str, job: str) -> str: ...

    async def deposits(self, submitter: str, job: str) -> Sequence[Deposit]:
        """What came into a job's escrow, oldest first, as far as the ledger remembers."""

    async def stake(self, node: str) -> StakeState | None: ...

    async def stakes_of(self, nodes: Sequence[str]) -> Mapping[str, StakeState | None]:
        """Those of many nodes in few requests."""

    async def received(self, submitter: str, job: str, payees: Collection[str]) -> Mapping[str, int]:
        """What each of these payees has received from a job's escrow, in blocks that can never be undone."""

    async def written(self, submitter: str, job: str) -> Mapping[str, str]:
        """The lifecycle events that the coordinator has written of a job -> signature."""

    async def prepare_fund(self, job: str, amount: int, deadline: int) -> PreparedTransaction:
        """Open a job's escrow from the test wallet."""

    async def prepare_acceptance(
        self, submitter: str, job: str, asked: Asked, note: str, nonce: str = ""
    ) -> PreparedTransaction:
        """Have the program compare an escrow with what was asked for; ``note``: the memo that goes with it."""

    async def prepare_deposit(self, job: str, total: int) -> PreparedTransaction | None:
        """Bring what the test wallet has deposited for a job to ``total`` in all; None where it has as much already."""

    async def nonces(self, cell: Cell = WHOLE) -> Sequence[str]:
        """Addresses of the coordinator's nonce accounts that are a cell's alone, which are created where they are missing."""

    async def prepare_settlement(
        self,
        submitter: str,
        job: str,
        payouts: Mapping[str, int],
        nonce: str = "",
        tables: Sequence[str] = (),
        had: AbstractSet[str] = frozenset(),
    ) -> PreparedTransaction | None:
        """What comes next on the way to these cumulative amounts, maybe a ``step`` only; None where all have them for good.

        ``had``: payees who have had a token account; who has closed it is left out.
        """

    async def left_out(self, submitter: str, job: str, payouts: Mapping[str, int]) -> AbstractSet[str]:
        """Those of these payees who have not received as much, in blocks that can never be undone."""

    async def prepare_promise(
        self, submitter: str, job: str, cumulative: Mapping[str, int], nonce: str = ""
    ) -> PreparedTransaction | None:
        """What comes next on the way to making these amounts claimable, maybe a ``step`` only; None where they are for good."""

    def promise(self, cumulative: Mapping[str, int]) -> PromisedEarnings:
        """Root, sum and proofs of a promise."""

    async def prepare_end_of_table(self, table: str, nonce: str = "") -> PreparedTransaction | None:
        """What comes next on the way to a lookup table's end; None where it is gone."""

    async def prepare_refund(self, submitter: str, job: str, nonce: str = "") -> PreparedTransaction: ...

    async def prepare_memo(self, text: str, submitter: str, job: str) -> PreparedTransaction: ...

    async def prepare_slash(
        self, node: str, amount: int, reason: bytes, nonce: str = "", challenger: str | None = None
    ) -> PreparedTransaction:
        """Take stake; ``challenger``: the wallet of who brought it up, which gets its part."""

    async def dispute(self, challenger: str, audit: str) -> DisputeState | None:
        """Somebody's dispute over an audit or a committed step (``ledger.addresses.subject_bytes``); None where there is none."""

    async def waiting_disputes(self) -> Sequence[DisputeState]:
        """Disputes that wait for the coordinator's verdict, the most urgent first."""

    async def prepare_verdict(
        self, challenger: str, audit: str, evidence: bytes, *, upheld: bool, slash: int = 0, nonce: str = ""
    ) -> PreparedTransaction:
        """Decide a dispute; with ``slash`` units the accused loses them in the same transaction."""

    async def slot(self) -> int: ...

    async def slot_of(self, signature: str) -> int | None:
        """Slot of the block that holds a confirmed transaction; None where the endpoint does not know it."""

    async def block_after(self, slot: int) -> tuple[int, str] | None:
        """Slot and hash of the first final block after ``slot``; None while there is none."""

    async def submit(self, prepared: PreparedTransaction) -> None: ...

    async def outcome(self, signature: str, last_height: int) -> Outcome: ...

    async def outcome_of(self, prepared: PreparedTransaction) -> Outcome:
        """The same of a transaction that carries a nonce."""


class LedgerChain:
    """``ChainPort`` over ``ledger.client``.

    Args:
        url: where nodes and submitters find the ledger.
        seed: the coordinator's key, 32 bytes.
        test_seed: the test wallet's key, 32 bytes.
    """

    def __init__(self, ledger: Ledger, url: str, seed: bytes, test_seed: bytes, coordinator: str) -> None:
        self._ledger = ledger
        self._payouts = ledger.payouts(seed)
        self._seed = seed
        self._test_seed = test_seed
        self._coordinator = coordinator
        self.url = url
        self.program = ledger.program
        self.mint = ledger.mint

    async def balance(self, owner: str) -> int:
        """Tokens of a wallet."""
        return await self._ledger.balance(owner)

    async def escrow(self, submitter: str, job: str) -> EscrowState | None:
        """A job's escrow in blocks that can never be undone, or None."""
        return await self._ledger.escrow(submitter, job_bytes(job), final=True)

    def escrow_address(self, submitter: str, job: str) -> str:
        """Where a job's escrow is, or will be."""
        return self._ledger.escrow_address(submitter, job_bytes(job))

    async def deposits(self, submitter: str, job: str) -> Sequence[Deposit]:
        """What came into a job's escrow; nothing where the history cannot be read, which must not keep a job from starting."""
        try:
            events = await self._ledger.history(submitter, job_bytes(job))
        except LedgerError as error:
            LOG.warning("the deposits of job %s cannot be read: %s", job, error)
            return ()
        return [Deposit(e.signature, e.fields["amount"], e.time) for e in events if e.kind == "deposited"]

    async def received(self, submitter: str, job: str, payees: Collection[str]) -> Mapping[str, int]:
        """By the program's own table."""
        return await self._ledger.received(submitter, job_bytes(job), payees)

    async def written(self, submitter: str, job: str) -> Mapping[str, str]:
        """From the ledger's history."""
        found = await self._ledger.history(submitter, job_bytes(job))
        return {events.text_of(e.kind, e.fields): e.signature for e in found if e.author == self._coordinator}

    async def stake(self, node: str) -> StakeState | None:
        """A node's stake, or None."""
        return await self._ledger.stake(node)

    async def stakes_of(self, nodes: Sequence[str]) -> Mapping[str, StakeState | None]:
        """Stakes of many nodes."""
        return await self._ledger.stakes(nodes)

    async def prepare_fund(self, job: str, amount: int, deadline: int) -> PreparedTransaction:
        """Open a job's escrow from the test wallet."""
        return await self._ledger.prepare_escrow(
            self._test_seed, job_bytes(job), self._coordinator, Amount(amount), deadline
        )

    async def prepare_acceptance(
        self, submitter: str, job: str, asked: Asked, note: str, nonce: str = ""
    ) -> PreparedTransaction:
        """Accept a job's escrow."""
        return await self._ledger.prepare_acceptance(self._seed, submitter, job_bytes(job), asked, note, nonce)

    async def prepare_deposit(self, job: str, total: int) -> PreparedTransaction | None:
        """Add to a job's escrow from the test wallet."""
        return await self._ledger.prepare_deposit(self._test_seed, job_bytes(job), Amount(total))

    async def nonces(self, cell: Cell = WHOLE) -> Sequence[str]:
        """One for each payment that may be on its way, and some that rest."""
        return await self._payouts.nonces(max(NONCES, NONCES_EACH * cell.of), cell.number, cell.of)

    async def prepare_settlement(
        self,
        submitter: str,
        job: str,
        payouts: Mapping[str, int],
        nonce: str = "",
        tables: Sequence[str] = (),
        had: AbstractSet[str] = frozenset(),
    ) -> PreparedTransaction | None:
        """Pay cumulative amounts."""
        return await self._payouts.prepare(submitter, job_bytes(job), _amounts(payouts), nonce, tables, had)

    async def left_out(self, submitter: str, job: str, payouts: Mapping[str, int]) -> AbstractSet[str]:
        """Those who were not paid."""
        return await self._payouts.left_out(submitter, job_bytes(job), _amounts(payouts))

    async def prepare_promise(
        self, submitter: str, job: str, cumulative: Mapping[str, int], nonce: str = ""
    ) -> PreparedTransaction | None:
        """Promise cumulative amounts."""
        return await self._payouts.prepare_promise(submitter, job_bytes(job), _amounts(cumulative), nonce)

    def promise(self, cumulative: Mapping[str, int]) -> PromisedEarnings:
        """Root, sum and proofs of a promise."""
        return self._ledger.earnings(_amounts(cumulative))

    async def prepare_end_of_table(self, table: str, nonce: str = "") -> PreparedTransaction | None:
        """Give a lookup table back."""
        return await self._payouts.prepare_end_of_table(table, nonce)

    async def prepare_refund(self, submitter: str, job: str, nonce: str = "") -> PreparedTransaction:
        """Return what is left."""
        return await self._ledger.prepare_refund(self._seed, submitter, job_bytes(job), nonce=nonce)

    async def prepare_memo(self, text: str, submitter: str, job: str) -> PreparedTransaction:
        """Write an event."""
        return await self._ledger.prepare_memo(self._seed, text, submitter, job_bytes(job))

    async def prepare_slash(
        self, node: str, amount: int, reason: bytes, nonce: str = "", challenger: str | None = None
    ) -> PreparedTransaction:
        """Take stake."""
        return await self._ledger.prepare_slash(self._seed, node, Amount(amount), reason, challenger, nonce)

    async def dispute(self, challenger: str, audit: str) -> DisputeState | None:
        """A dispute over an audit."""
        return await self._ledger.dispute(challenger, subject_bytes(audit))

    async def waiting_disputes(self) -> Sequence[DisputeState]:
        """Disputes that wait for a verdict."""
        return await self._ledger.waiting_disputes(self._coordinator)

    async def prepare_verdict(
        self, challenger: str, audit: str, evidence: bytes, *, upheld: bool, slash: int = 0, nonce: str = ""
    ) -> PreparedTransaction:
        """Decide a dispute."""
        return await self._ledger.prepare_verdict(
            self._seed, challenger, subject_bytes(audit), evidence, upheld=upheld, slash=Amount(slash), nonce=nonce
        )

    async def slot(self) -> int:
        """The newest slot."""
        return await self._ledger.slot()

    async def slot_of(self, signature: str) -> int | None:
        """Where a transaction is."""
        return await self._ledger.slot_of(signature)

    async def block_after(self, slot: int) -> tuple[int, str] | None:
        """The first final block after a slot."""
        return await self._ledger.block_after(slot)

    async def submit(self, prepared: PreparedTransaction) -> None:
        """Send; as often as one likes."""
        await self._ledger.submit(prepared)

    async def outcome(self, signature: str, last_height: int) -> Outcome:
        """What became of a transaction."""
        return await self._ledger.outcome(signature, last_height)

    async def outcome_of(self, prepared: PreparedTransaction) -> Outcome:
        """What became of a transaction with a nonce."""
        return await self._ledger.outcome_of(prepared)


def _amounts(totals: Mapping[str, int]) -> dict[str, Amount]:
    return {payee: Amount(total) for payee, total in totals.items()}
