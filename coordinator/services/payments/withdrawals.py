"""Pays fee and rent of its lenders' withdrawals and takes them out of the amount, in the same transaction.

Nothing is kept between the offer and the signature: what comes back is worked out anew, with the prices and accounts of then. So
who waits until an account is gone, or changes anything, has signed something else than what would be offered now.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Literal, Protocol, TypeVar

import msgspec

from common.untrusted_text import untrusted
from coordinator.domain import pricing
from coordinator.domain.withdrawal import (
    DAY_S,
    MAX_A_DAY,
    WithdrawalBooks,
    WithdrawalFacts,
    WithdrawalLimits,
    refused_by_books,
    refused_by_ledger,
)
from coordinator.errors import ConflictError
from coordinator.services.accounts.throttle import Throttle
from coordinator.services.core.context import Context
from coordinator.services.payments.chain import Outcome
from coordinator.store.ports import Transaction, col
from coordinator.store.records import CommitRecord, NodeRecord, WithdrawalRecord
from ledger.client import Ledger
from ledger.errors import (
    AlteredTransactionError,
    AmountError,
    LedgerError,
    TransactionExpiredError,
    TransactionFailedError,
)
from ledger.money import Amount
from ledger.sponsored import SponsoredTransfer
from ledger.states import PreparedTransaction
from ledger.transfers import Receiver, TransferCost
from protocol.node import LedgerInfo
from protocol.rest.withdrawals import (
    SentWithdrawal,
    SignedWithdrawal,
    WithdrawalAnswer,
    WithdrawalOffer,
    WithdrawalReason,
    WithdrawalRefusal,
    WithdrawalRequest,
    WithdrawalTerms,
)

POLL_S = 2.0
MAX_FOLLOWED = 100  # At a time, the oldest first.
KEPT_S = 30 * 86_400.0
ASKS, ASK_S = 30.0, 5.0  # Offers and signatures of an address: at once, and then one in so many seconds.
ALL_ASKS, ALL_ASK_S = 600.0, 0.2  # Of everybody; each asks the ledger's endpoint some questions.
MAX_ADDRESSES = 50_000
AGAIN_S = 10
COST_S, COST_KEPT_S = 2.0, 600.0

LOG = logging.getLogger(__name__)
_Answer = TypeVar("_Answer", WithdrawalAnswer, SentWithdrawal)


class Sponsor(Protocol):
    """What paying for others' withdrawals takes of the ledger. Raises ``ledger.errors``."""

    info: LedgerInfo

    async def lamports(self) -> int:
        """What the coordinator has."""

    async def held(self, owner: str) -> int:
        """Tokens of a wallet."""

    async def receiver(self, target: str) -> Receiver: ...

    async def cost(self) -> TransferCost: ...

    async def open_account(self) -> None:
        """See that costs can come in."""

    async def draft(self, transfer: SponsoredTransfer) -> bytes: ...

    def check_owner(self, transfer: SponsoredTransfer, signed: bytes) -> None:
        """Raises AlteredTransactionError where it is another transfer, or not signed by its owner."""

    async def complete(self, transfer: SponsoredTransfer, signed: bytes) -> PreparedTransaction: ...

    async def submit(self, prepared: PreparedTransaction) -> None: ...

    async def outcome(self, signature: str, last_height: int) -> Outcome: ...


class LedgerSponsor:
    """``Sponsor`` over ``ledger.client``, with the coordinator's key in hand."""

    def __init__(self, ledger: Ledger, url: str, seed: bytes, coordinator: str) -> None:
        self._ledger = ledger
        self._seed = seed
        self.info = LedgerInfo(url, ledger.program, ledger.mint, coordinator)

    async def lamports(self) -> int:
        """What the coordinator has."""
        return await self._ledger.lamports(self.info.coordinator)

    async def held(self, owner: str) -> int:
        """Tokens of a wallet."""
        return await self._ledger.balance(owner)

    async def receiver(self, target: str) -> Receiver:
        """Whether tokens can go there."""
        return await self._ledger.receiver(target)

    async def cost(self) -> TransferCost:
        """Fee, and the rent of an account."""
        return await self._ledger.sponsored_cost()

    async def open_account(self) -> None:
        """Make the coordinator's own account, where there is none."""
        await self._ledger.open_account(self._seed)

    async def draft(self, transfer: SponsoredTransfer) -> bytes:
        """For the owner to sign."""
        return await self._ledger.draft_sponsored(transfer)

    def check_owner(self, transfer: SponsoredTransfer, signed: bytes) -> None:
        """See that it is this transfer, signed by its owner."""
        self._ledger.check_owner(transfer, signed)

    async def complete(self, transfer: SponsoredTransfer, signed: bytes) -> PreparedTransaction:
        """Sign what the owner has signed."""
        return await self._ledger.complete_sponsored(self._seed, transfer, signed)

    async def submit(self, prepared: PreparedTransaction) -> None:
        """Send; as often as one likes."""
        await self._ledger.submit(prepared)

    async def outcome(self, signature: str, last_height: int) -> Outcome:
        """What became of it."""
        return await self._ledger.outcome(signature, last_height)


class WithdrawalService:
    """Offers, signs, sends and follows. ``sponsor`` None: where there is no ledger to pay on, nothing is offered."""

    def __init__(self, context: Context, sponsor: Sponsor | None) -> None:
        config, clock = context.config, context.clock
        self._context = context
        self._sponsor = sponsor
        priced = config.sol_price > 0 or config.ledger_program is None
        budget = config.withdrawal_lamports if sponsor is not None else 0
        self._limits = WithdrawalLimits(budget, config.least_withdrawal, priced)
        self._asks = Throttle(clock, 1 / ASK_S, ASKS, MAX_ADDRESSES)
        self._all_asks = Throttle(clock, 1 / ALL_ASK_S, ALL_ASKS, 1)
        self._one_by_one = asyncio.Lock()
        self._has_account = False
        self._cost, self._cost_until = TransferCost(0, 0), 0.0

    # --- what is asked --------------------------------------------------------------------------------------------------

    async def terms(self) -> WithdrawalTerms:
        """What withdrawing costs here."""
        limits, price = self._limits, self._context.config.sol_price
        used = await self._lamports_of_a_day()
        cost = await self._usual_cost()
        return WithdrawalTerms(
            offered=limits.lamports_a_day > 0 and limits.priced,
            sol_price=price,
            least=limits.least,
            fee=pricing.in_tokens(cost.fee, price),
            account=pricing.in_tokens(cost.total, price) - pricing.in_tokens(cost.fee, price),
            a_day=MAX_A_DAY,
            lamports_a_day=limits.lamports_a_day,
            lamports_left=max(0, limits.lamports_a_day - used),
            ledger=None if self._sponsor is None else self._sponsor.info,
        )

    async def _usual_cost(self) -> TransferCost:
        """As it was within ten minutes, for a page, which must not wait for a ledger that is away."""
        now = self._context.clock.now()
        if self._sponsor is not None and now >= self._cost_until:
            try:
                async with asyncio.timeout(COST_S):
                    self._cost, self._cost_until = await self._sponsor.cost(), now + COST_KEPT_S
            except (LedgerError, TimeoutError) as error:
                LOG.warning("what a withdrawal costs is not known now: %s", error)
        return self._cost

    async def offer(self, asked: WithdrawalRequest, address: str) -> WithdrawalAnswer:
        """What a withdrawal costs now, with the transaction for its owner to sign.

        Args:
            address: where the question comes from.
        """
        return await self._answered(address, lambda no: WithdrawalAnswer(refused=no), lambda: self._offer(asked))

    async def take(self, signed: SignedWithdrawal, address: str) -> SentWithdrawal:
        """Sign what its owner has signed, if it is what would be offered now, and send it."""
        return await self._answered(address, lambda no: SentWithdrawal(refused=no), lambda: self._take(signed))

    async def _answered(
        self, address: str, refusing: Callable[[WithdrawalRefusal], _Answer], act: Callable[[], Awaitable[_Answer]]
    ) -> _Answer:
        wait = self._asks.take(address)
        if wait:
            answer = refusing(_too_often(wait))
        else:
            try:
                answer = await act()
            except LedgerError as error:
                LOG.warning("a withdrawal waits for the ledger: %s", error)
                said = "the ledger does not answer now: nothing was sent, try again in a moment"
                answer = refusing(_refusal("ledger away", said, seconds=AGAIN_S))
        if answer.refused is not None:
            self._context.metrics.count("withdrawals_refused_total")
        return answer

    async def _offer(self, asked: WithdrawalRequest) -> WithdrawalAnswer:
        found = await self._agree(asked)
        if isinstance(found, WithdrawalRefusal):
            return WithdrawalAnswer(refused=found)
        sponsor, transfer, _ = found
        draft = await sponsor.draft(transfer)
        return WithdrawalAnswer(WithdrawalOffer(transfer.arrives, transfer.costs, transfer.opens, draft))

    async def _take(self, signed: SignedWithdrawal) -> SentWithdrawal:
        try:
            self._check_signed(signed)
        except (AlteredTransactionError, AmountError) as error:
            # Anybody can send that: it holds nobody up, and asks the ledger nothing.
            return SentWithdrawal(refused=_altered(error))
        async with self._one_by_one:  # Two of one owner must not both find that none is under way.
            found = await self._agree(signed.request, signed=True)
            if isinstance(found, WithdrawalRefusal):
                return SentWithdrawal(refused=found)
            sponsor, transfer, lamports = found
            if (signed.arrives, signed.fee, signed.opens) != (transfer.arrives, transfer.costs, transfer.opens):
                said = "it costs something else now: look at the new fee, and send it again"
                return SentWithdrawal(refused=_refusal("changed", said, transfer.costs))
            try:
                prepared = await sponsor.complete(transfer, signed.transaction)
            except AlteredTransactionError as error:
                return SentWithdrawal(refused=_altered(error))
            except TransactionExpiredError as error:
                return SentWithdrawal(refused=_refusal("expired", str(error)))
            try:
                record = await self._keep(signed, transfer, prepared, lamports)
            except ConflictError:  # The same signature under the same bytes: it has been taken already.
                return SentWithdrawal(prepared.signature, prepared.wire)
        return await self._send(sponsor, record, prepared)

    def _check_signed(self, signed: SignedWithdrawal) -> None:
        """Raises AlteredTransactionError, AmountError where it is not what it says, signed by its owner."""
        if self._sponsor is not None:
            asked, sponsor = signed.request, self._sponsor.info.coordinator
            arrives, costs = Amount(signed.arrives), Amount(signed.fee)
            transfer = SponsoredTransfer(sponsor, asked.owner, asked.target, arrives, costs, signed.opens)
            self._sponsor.check_owner(transfer, signed.transaction)

    async def _agree(
        self, asked: WithdrawalRequest, *, signed: bool = False
    ) -> tuple[Sponsor, SponsoredTransfer, int] | WithdrawalRefusal:
        """What would be offered now, and the lamports that it takes; or why nothing is. ``signed``: by its owner."""
        books = await self._books(asked.owner)
        no = refused_by_books(self._limits, books)
        if no is not None or self._sponsor is None:
            return no or _refusal("not offered", "this coordinator has no ledger to pay on")
        # Only now, and not of what its owner has signed: or strangers' questions would use up what all may ask.
        if not signed and (wait := self._all_asks.take("")):
            return _too_often(wait)
        sponsor, price = self._sponsor, self._context.config.sol_price
        receiver, cost = await sponsor.receiver(asked.target), await sponsor.cost()
        opens = receiver == "none"
        lamports = cost.total if opens else cost.fee
        fee = pricing.in_tokens(lamports, price)
        facts = WithdrawalFacts(
            asked.amount,
            fee,
            await sponsor.held(asked.owner),
            lamports,
            await sponsor.lamports(),
            opens,
            wallet=receiver != "no wallet",
            other=asked.owner not in (asked.target, sponsor.info.coordinator),
        )
        if (no := refused_by_ledger(self._limits, books, facts)) is not None:
            return no
        if fee and not self._has_account:
            await sponsor.open_account()
            self._has_account = True
        arrives, costs = Amount(asked.amount - fee), Amount(fee)
        transfer = SponsoredTransfer(sponsor.info.coordinator, asked.owner, asked.target, arrives, costs, opens)
        return sponsor, transfer, lamports

    # --- what the books say ---------------------------------------------------------------------------------------------

    async def _books(self, owner: str) -> WithdrawalBooks:
        now = self._context.clock.time()
        async with self._context.store.transaction() as tx:
            mine = await tx.find(
                WithdrawalRecord,
                col(WithdrawalRecord.owner).equals(owner),
                col(WithdrawalRecord.created) > now - DAY_S,
            )
            earned = await _earned(tx, owner)
        paid = [one for one in mine if one.state != "expired"]
        fee = pricing.SIGNATURE_LAMPORTS * 2
        return WithdrawalBooks(
            earned,
            any(one.state in ("sent", "refused") for one in mine),
            tuple(one.created for one in paid),
            tuple(one.created for one in paid if one.lamports > fee),
            await self._lamports_of_a_day(),
            now,
            sum(one.fee for one in paid),
        )

    async def _lamports_of_a_day(self) -> int:
        since = self._context.clock.time() - DAY_S
        async with self._context.store.transaction() as tx:
            sums = await tx.sums(
                WithdrawalRecord,
                col(WithdrawalRecord.lamports),
                (col(WithdrawalRecord.state),),
                col(WithdrawalRecord.created) > since,
            )
        return sum(total for (state,), (_, total) in sums.items() if state != "expired")

    async def _keep(
        self, signed: SignedWithdrawal, transfer: SponsoredTransfer, prepared: PreparedTransaction, lamports: int
    ) -> WithdrawalRecord:
        """Store what is about to be sent: whoever comes after a crash sends it, or sees what became of it."""
        record = WithdrawalRecord(
            prepared.signature,
            transfer.owner,
            transfer.target,
            signed.request.amount,
            transfer.costs,
            lamports,
            prepared.wire,
            prepared.last_valid_block_height,
            self._context.clock.time(),
        )
        async with self._context.store.transaction() as tx:
            return await tx.insert(record)

    # --- what is on its way ---------------------------------------------------------------------------------------------

    async def _send(self, sponsor: Sponsor, record: WithdrawalRecord, prepared: PreparedTransaction) -> SentWithdrawal:
        self._context.metrics.count("withdrawals_total")
        try:
            await sponsor.submit(prepared)
        except TransactionFailedError as error:
            await self._decided(record, "refused")
            said = (
                f"the ledger would refuse it ({error.reason}): look at what the wallet holds, and try again in a minute"
            )
            return SentWithdrawal(refused=_refusal("failed", said, seconds=60))
        except LedgerError as error:
            LOG.warning("withdrawal %s is sent again: %s", record.signature, error)
        return SentWithdrawal(prepared.signature, prepared.wire)

    async def run(self) -> None:
        """Follow for ever what is on its way."""
        while True:
            await self.follow()
            await self._context.clock.sleep(POLL_S)

    async def follow(self) -> None:
        """Look once at each that is not decided; send it again where it has not arrived."""
        if self._sponsor is None:
            return
        async with self._context.store.transaction() as tx:
            open_ones = await tx.find(
                WithdrawalRecord, col(WithdrawalRecord.state).in_(("sent", "refused")), limit=MAX_FOLLOWED
            )
            old = self._context.clock.time() - KEPT_S
            await tx.forget(
                WithdrawalRecord,
                col(WithdrawalRecord.created) < old,
                col(WithdrawalRecord.state).in_(("confirmed", "failed", "expired")),
            )
        for record in open_ones:
            try:
                outcome = await self._sponsor.outcome(record.signature, record.last_height)
                if outcome != "pending":
                    await self._decided(record, outcome)
                elif record.state == "sent":
                    prepared = PreparedTransaction(record.signature, record.wire, record.last_height)
                    await self._sponsor.submit(prepared)
            except LedgerError as error:
                LOG.info("withdrawal %s is not decided: %s", record.signature, error)

    async def _decided(self, record: WithdrawalRecord, state: Outcome | Literal["refused"]) -> None:
        try:
            async with self._context.store.transaction() as tx:
                await tx.update(msgspec.structs.replace(record, state=state))
        except ConflictError:
            return  # Another coordinator has seen it, too.
        LOG.info("withdrawal %s of %d millionths is %s", record.signature, record.amount, state)


async def _earned(tx: Transaction, owner: str) -> int:
    """What verified work was worth that is paid to this wallet, or was paid to the node whose key it is.

    Not what a node has earned that says by now to be paid there: it may say that of any number of wallets.
    """
    of_wallet = col(CommitRecord.payout).equals(owner), col(CommitRecord.state).equals("verified")
    sums = await tx.sums(CommitRecord, col(CommitRecord.amount), (col(CommitRecord.payout),), *of_wallet)
    node = await tx.find(NodeRecord, col(NodeRecord.address).equals(owner))
    return max([total for _, total in sums.values()] + [record.earned for record in node], default=0)


def _too_often(wait: float) -> WithdrawalRefusal:
    said = "withdrawals are asked for too often: wait a little"
    return _refusal("too often", said, seconds=max(1, round(wait)))


def _altered(error: LedgerError) -> WithdrawalRefusal:
    return _refusal("altered", f"{error}: ask for an offer, and sign just that")


def _refusal(reason: WithdrawalReason, text: str, amount: int = 0, seconds: int = 0) -> WithdrawalRefusal:
    return WithdrawalRefusal(reason, untrusted(text), amount, seconds)
