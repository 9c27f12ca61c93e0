"""Double entry: nothing appears, nothing vanishes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.book import Account, Posting, balances, check_zero, transfer
from ledger.errors import AmountError, UnbalancedError
from ledger.money import Amount

ESCROW, NODE = Account("escrow:7Kq"), Account("node:9xQ")


def test_what_leaves_one_account_enters_the_other() -> None:
    assert transfer(ESCROW, NODE, Amount(5)) == (Posting(ESCROW, -5), Posting(NODE, 5))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(1, 2**64 - 1)), max_size=50))
def test_any_sequence_of_transfers_sums_to_zero(moves: list[tuple[int, int, int]]) -> None:
    lines = [
        line
        for source, target, units in moves
        if source != target
        for line in transfer(Account(str(source)), Account(str(target)), Amount(units))
    ]
    check_zero(lines)
    assert sum(balances(lines).values()) == 0


def test_a_missing_side_is_named_with_its_amount() -> None:
    with pytest.raises(UnbalancedError, match=r"3 postings sum to -0\.000007"):
        check_zero([*transfer(ESCROW, NODE, Amount(5)), Posting(ESCROW, -7)])


@pytest.mark.parametrize(("target", "units"), [(NODE, 0), (NODE, -1), (NODE, 2**64), (ESCROW, 1)])
def test_empty_negative_oversized_and_circular_transfers_are_refused(target: Account, units: int) -> None:
    with pytest.raises(AmountError):
        transfer(ESCROW, target, Amount(units))
