"""What clients see of escrows, stakes and transactions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from solders.pubkey import Pubkey

from ledger.money import MAX_AMOUNT, ZERO, Amount
from ledger.program.codes import BASIS_POINTS, Consent
from ledger.program.layout import DisputeAccount, EscrowAccount, EscrowStatus, Ruling, StakeAccount


@dataclass(frozen=True)
class PreparedTransaction:
    """A signed transaction that was not sent yet.

    Store ``signature`` before sending: after a crash it tells whether the transaction happened. Never sign
    the same thing anew before ``outcome`` said ``expired`` or ``failed``.

    Attributes:
        last_valid_block_height: after it the transaction is not processed; with a nonce the slot at which that was read.
        nonce: address of the nonce account that it carries; empty where it carries a blockhash.
        step: what it prepares the ground for; empty where it is the thing itself.
        table: address of the lookup table that the step makes or uses.
        made: payees to whom the step gives a token account.
    """

    signature: str
    wire: bytes
    last_valid_block_height: int
    nonce: str = ""
    step: str = ""
    table: str = ""
    made: tuple[str, ...] = ()


@dataclass(frozen=True)
class Asked:
    """What a coordinator asks of an escrow: no earlier ``deadline``, no less of the others, and just these consents."""

    deadline: int
    cap: Amount
    amount: Amount
    max_payees: int
    consent: Consent = Consent.ADMIT | Consent.END


@dataclass(frozen=True)
class EscrowState:
    """A job's escrow. Always ``deposited = paid + refunded + balance``.

    Attributes:
        ended: refunded once, so it takes no deposits any more.
        closed: its vault is gone and its rent returned; the totals stay.
        paid_to: what each token account of the table was paid so far, in the table's order.
        cap: the most that is ever paid in sum.
        committed: sum of the cumulative earnings promised in ``period`` under ``earnings_root`` (32 bytes).
        listed, peaks: length of the list of payees, and the peaks of its Merkle tree, largest first.
        consent: what the coordinator may do alone.
        accepted: the coordinator has found the terms that it asked for, and the program too.
        lent: entries of the table whose rent the coordinator lent; the close gives it back.
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
    cap: Amount = MAX_AMOUNT
    committed: Amount = ZERO
    period: int = 0
    earnings_root: bytes = bytes(32)
    listed: int = 0
    peaks: tuple[bytes, ...] = ()
    consent: Consent = Consent.ADMIT | Consent.END
    accepted: bool = False
    lent: int = 0


@dataclass(frozen=True)
class StakeState:
    """A node's stake. Always ``deposited = slashed + withdrawn + balance``. Times are Unix seconds.

    Attributes:
        next_coordinator, move_at: whom the node asked for as its coordinator, and from when on it may have it.
        challenger_bps: the part of a slash that the challenger gets.
        requested: the node may take so much once its cool-down has passed; it does not stand behind the node's word.
        disputes: how many wait for a verdict; until then the stake stays, but no longer than ``hold`` seconds after
            ``unlock_at`` (0: an account from before there was that bound).
    """

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
    next_coordinator: str | None = None
    move_at: int = 0
    challenger_bps: int = 0
    opened_at: int = 0
    disputes: int = 0
    hold: int = 0

    def slashable(self, now: float) -> Amount:
        """What may be slashed at this time without exceeding the window's share."""
        if now >= self.window_start + self.window:
            return Amount(self.balance * self.slash_bps // BASIS_POINTS)
        whole = max(self.window_base, self.balance + self.window_slashed)
        left = whole * self.slash_bps // BASIS_POINTS - self.window_slashed
        return Amount(max(0, min(left, self.balance)))


@dataclass(frozen=True)
class DisputeState:
    """A challenger's bond against a node over one audit.

    Attributes:
        audit: 32 bytes that name the audit; ``evidence``: digest of what the verdict rests on, None before it.
        balance: what its vault still holds; the bond until the verdict.
    """

    address: str
    ruling: Ruling
    challenger: str
    node: str
    coordinator: str
    audit: bytes
    evidence: bytes | None
    bond: Amount
    balance: Amount
    deadline: int


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
        ended=account.status != EscrowStatus.OPEN,
        closed=account.status == EscrowStatus.CLOSED,
        max_payees=account.capacity,
        paid_to={str(payee): Amount(paid) for payee, paid in account.payees.items()},
        cap=Amount(account.cap),
        committed=Amount(account.committed),
        period=account.period,
        earnings_root=account.earnings_root,
        listed=account.count,
        peaks=account.peaks,
        consent=account.consent,
        accepted=account.accepted,
        lent=account.lent,
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
        requested=Amount(min(account.requested, balance)),
        unlock_at=account.unlock_at,
        cooldown=account.cooldown,
        slash_bps=account.slash_bps,
        window=account.window,
        window_start=account.window_start,
        window_base=Amount(account.window_base),
        window_slashed=Amount(account.window_slashed),
        next_coordinator=str(account.next_coordinator) if account.move_at else None,
        move_at=account.move_at,
        challenger_bps=account.challenger_bps,
        opened_at=account.opened_at,
        disputes=account.disputes,
        hold=account.hold,
    )


def dispute_state(address: Pubkey, account: DisputeAccount, balance: int) -> DisputeState:
    """Combine a dispute account with what its vault holds."""
    return DisputeState(
        address=str(address),
        ruling=account.ruling,
        challenger=str(account.challenger),
        node=str(account.node),
        coordinator=str(account.coordinator),
        audit=account.audit,
        evidence=account.evidence if any(account.evidence) else None,
        bond=Amount(account.bond),
        balance=Amount(balance),
        deadline=account.deadline,
    )
