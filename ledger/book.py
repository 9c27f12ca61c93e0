"""Double-entry book-keeping: money moves in pairs, and everything sums to zero. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NewType

from ledger.errors import AmountError, UnbalancedError
from ledger.money import Amount, amount, show

Account = NewType("Account", str)
"""The name of an account, as ``escrow:7Kq`` or ``node:9xQ``."""


@dataclass(frozen=True)
class Posting:
    """One line of the book: ``change`` smallest units, positive into the account, negative out of it."""

    account: Account
    change: int


def transfer(source: Account, target: Account, moved: Amount) -> tuple[Posting, Posting]:
    """Move money: what leaves one account enters the other.

    Raises:
        AmountError: the amount is zero or no amount, or both accounts are the same.
    """
    if amount(moved) == 0:
        raise AmountError(f"nothing moves from {source} to {target}: leave an empty transfer out")
    if source == target:
        raise AmountError(f"{show(moved)} would move from {source} to itself: leave it out")
    return Posting(source, -moved), Posting(target, moved)


def balances(postings: Iterable[Posting]) -> dict[Account, int]:
    """Balance of every account that occurs."""
    sums: defaultdict[Account, int] = defaultdict(int)
    for posting in postings:
        sums[posting.account] += posting.change
    return dict(sums)


def check_zero(postings: Iterable[Posting]) -> None:
    """Check that nothing appeared or vanished.

    Raises:
        UnbalancedError: the postings do not sum to zero; says by how much.
    """
    lines = list(postings)
    rest = sum(line.change for line in lines)
    if rest:
        raise UnbalancedError(f"{len(lines)} postings sum to {show(rest)}, not 0: one side of a transfer is missing")
