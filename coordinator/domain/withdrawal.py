"""Whether the coordinator pays fee and rent of a withdrawal, decided from what its books and the ledger say.

The order is that of the questions: what costs nothing to know comes first, so that a stranger costs nothing.
"""

import msgspec

from common.untrusted_text import untrusted
from protocol.rest.withdrawals import WithdrawalReason, WithdrawalRefusal

DAY_S = 86_400.0
MAX_A_DAY = 10  # Withdrawals of an owner: more than somebody needs who looks after the money each day.
MAX_OPENED_A_DAY = 3  # Of these, to wallets without an account: 0.006 SOL.
CROWD_S = 3600  # When to come back where everybody's part of a day is used up.
UNDECIDED_S = 90  # A transaction that was signed is executed within a minute, or never.
RESERVE_LAMPORTS = 20_000_000  # Stays for payouts and memos, which go first.

CLUSTER = (
    "ask its operator for `cottage serve --sol-price`, or send the wallet SOL and use `cottage node send --own-sol`"
)
ALONE = "`cottage node send --own-sol` sends it at once where the wallet holds SOL"


class WithdrawalLimits(msgspec.Struct, frozen=True):
    """The operator's. ``priced``: fee and rent can be counted in tokens; the other ones as in ``Config``."""

    lamports_a_day: int
    least: int
    priced: bool


class WithdrawalBooks(msgspec.Struct, frozen=True):
    """What the coordinator knows by itself.

    Attributes:
        earned: what verified work of this owner was worth here; ``fees``: what its withdrawals of a day have cost in tokens.
        waiting: one of its withdrawals is not decided.
        times: when it withdrew within a day, the oldest first; ``opened``: for those that paid for an account.
        lamports: what everybody's withdrawals of a day may have cost.
        now: Unix seconds, like the others.
    """

    earned: int
    waiting: bool
    times: tuple[float, ...]
    opened: tuple[float, ...]
    lamports: int
    now: float
    fees: int = 0


class WithdrawalFacts(msgspec.Struct, frozen=True):
    """What the ledger says of one withdrawal.

    Attributes:
        amount, fee: what would leave the owner's wallet, and what of it would come here; millionths.
        held: what the wallet holds.
        lamports: what it would cost; ``sponsor``: what the coordinator has.
        opens: the target has no account, and one is paid for.
        wallet: the target is a wallet; ``other``: not the owner's.
    """

    amount: int
    fee: int
    held: int
    lamports: int
    sponsor: int
    opens: bool
    wallet: bool
    other: bool


def refused_by_books(limits: WithdrawalLimits, books: WithdrawalBooks) -> WithdrawalRefusal | None:
    """Why nothing is offered to this owner now, whatever the ledger says."""
    if limits.lamports_a_day <= 0:
        return _no("not offered", f"this coordinator pays for no withdrawals: {ALONE}")
    if not limits.priced:
        return _no("no rate", f"this coordinator does not say what a SOL is worth: {CLUSTER}")
    if not books.earned:
        return _no("stranger", "nothing was earned here by this wallet: ask the coordinator that has paid it")
    if books.waiting:
        said = "your last withdrawal is not decided yet: try again in a minute"
        return _no("under way", said, seconds=UNDECIDED_S)
    if len(books.times) >= MAX_A_DAY:
        return _day(books.times[-MAX_A_DAY], books.now, f"{MAX_A_DAY} withdrawals are paid for within a day")
    return None


def refused_by_ledger(
    limits: WithdrawalLimits, books: WithdrawalBooks, facts: WithdrawalFacts
) -> WithdrawalRefusal | None:
    """Why this withdrawal is not offered."""
    if not facts.other:
        return _no("own wallet", "the money is in this wallet already: give another address")
    if not facts.wallet:
        return _no("no wallet", "the address is no wallet, tokens might be lost there: give a wallet's own address")
    if facts.held < facts.amount:
        return _no(
            "holds less", "the wallet holds less: withdraw what it holds, or wait for the next payout", facts.held
        )
    least = facts.fee + max(1, limits.least)
    if facts.amount < least:
        return _no(
            "too little", "the fee would leave too little of it: withdraw more, or wait until more is earned", least
        )
    if facts.fee > books.earned:
        said = "less was earned here by this wallet than this costs: ask the coordinator that has paid it, or choose an address"
        return _no("stranger", f"{said} that has an account", facts.fee)
    if facts.fee + books.fees > books.earned:  # Or whoever has earned next to nothing uses up what everybody has.
        said = "the fees of a day may come to what was earned here, not to more"
        return _day(books.times[0] if books.times else books.now, books.now, said)
    if facts.opens and len(books.opened) >= MAX_OPENED_A_DAY:
        said = f"{MAX_OPENED_A_DAY} new accounts are paid for within a day: choose an address that has one"
        return _day(books.opened[-MAX_OPENED_A_DAY], books.now, said)
    if books.lamports + facts.lamports > limits.lamports_a_day:
        said = f"what this coordinator pays for withdrawals in a day is used up: come back later, or {ALONE}"
        return _no("everybody's day", said, seconds=CROWD_S)
    if facts.sponsor < facts.lamports + RESERVE_LAMPORTS:
        said = f"this coordinator's own wallet has too little SOL: its operator must fill it, or {ALONE}"
        return _no("no sol", said, seconds=CROWD_S)
    return None


def _day(first: float, now: float, said: str) -> WithdrawalRefusal:
    """Refused until the first of those that count is a day old."""
    wait = max(1, round(first + DAY_S - now))
    return _no("your day", f"{said}: come back in {-(-wait // 3600)} hours, or {ALONE}", seconds=wait)


def _no(reason: WithdrawalReason, text: str, amount: int = 0, seconds: int = 0) -> WithdrawalRefusal:
    return WithdrawalRefusal(reason, untrusted(text), amount, seconds)
