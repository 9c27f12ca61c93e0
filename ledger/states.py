"""What clients see of escrows, stakes and transactions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from solders.pubkey import Pubkey

from ledger.money import Amount
from ledger.program.interface import BASIS_POINTS
from ledger.program.layout import EscrowAccount, StakeAccount, Status


@dataclass(frozen=True)
class PreparedTransaction:
    """A signed transaction that was not sent yet.

    Store ``signature`` before sending: after a crash it tells whether the transaction happened. Never sign
    the same thing anew before ``outcome`` said ``expired`` or ``failed``.
    """

    signature: str
    wire: bytes
    last_valid_block_height: int


@dataclass(frozen=True)
class EscrowState:
    """A job's escrow. Always ``deposited = paid + refunded + balance``.

    Attributes:
        ended: refunded once, so it takes no deposits any more.
        closed: its vault is gone and its rent returned; the totals stay.
        paid_to: what each token account was paid so far.
    """

    address: str
    submitter: str
    coordinator: str
    job: bytes
    deposited: Amount
    paid: Amount
    refunded: Amount
    balance: Amount
    deadline: int
    ended: bool
    closed: bool
    max_payees: int
    paid_to: Mapping[str, Amount]


@dataclass(frozen=True)
class StakeState:
    """A node's stake. Always ``deposited = slashed + withdrawn + balance``. Times are Unix seconds."""

    address: str
    node: str
    coordinator: str
    treasury: str
    balance: Amount
    deposited: Amount
    slashed: Amount
    withdrawn: Amount
    requested: Amount
    unlock_at: int
    cooldown: int
    slash_bps: int
    window: int
    window_start: int
    window_base: Amount
    window_slashed: Amount

    def slashable(self, now: float) -> Amount:
        """What may be slashed at this time without exceeding the window's share."""
        if now >= self.window_start + self.window:
            return Amount(self.balance * self.slash_bps // BASIS_POINTS)
        left = self.window_base * self.slash_bps // BASIS_POINTS - self.window_slashed
        return Amount(max(0, min(left, self.balance)))


def escrow_state(address: Pubkey, account: EscrowAccount, balance: int) -> EscrowState:
    """Combine an escrow account with what its vault holds.

    Tokens that somebody sent straight to the vault count as deposited, as the program counts them at its
    next instruction.
    """
    return EscrowState(
        address=str(address),
        submitter=str(account.submitter),
        coordinator=str(account.coordinator),
        job=account.job,
        deposited=Amount(account.paid + account.refunded + balance),
        paid=Amount(account.paid),
        refunded=Amount(account.refunded),
        balance=Amount(balance),
        deadline=account.deadline,
        ended=account.status != Status.OPEN,
        closed=account.status == Status.CLOSED,
        max_payees=account.capacity,
        paid_to={str(payee): Amount(paid) for payee, paid in account.payees.items()},
    )


def stake_state(address: Pubkey, account: StakeAccount, balance: int) -> StakeState:
    """Combine a stake account with what its vault holds."""
    return StakeState(
        address=str(address),
        node=str(account.node),
        coordinator=str(account.coordinator),
        treasury=str(account.treasury),
        balance=Amount(balance),
        deposited=Amount(account.slashed + account.withdrawn + balance),
        slashed=Amount(account.slashed),
        withdrawn=Amount(account.withdrawn),
        requested=Amount(account.requested),
        unlock_at=account.unlock_at,
        cooldown=account.cooldown,
        slash_bps=account.slash_bps,
        window=account.window,
        window_start=account.window_start,
        window_base=Amount(account.window_base),
        window_slashed=Amount(account.window_slashed),
    )
