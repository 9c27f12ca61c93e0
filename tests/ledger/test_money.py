"""Amounts: exact, bounded, and split without losing a unit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import AmountError
from ledger.money import MAX_AMOUNT, Amount, amount, parse, show, split, total

amounts = st.integers(0, MAX_AMOUNT).map(Amount)


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("0", 0),
        ("12.5", 12_500_000),
        ("0.000001", 1),
        ("007.10", 7_100_000),
        ("18446744073709.551615", MAX_AMOUNT),
        ("1.000000", 1_000_000),
    ],
)
def test_decimals_are_read_exactly(text: str, units: int) -> None:
    assert parse(text) == units


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "1.",
        ".5",
        "-1",
        "+1",
        "1e6",
        "0x10",
        "1_000",
        "1,5",
        " 1",
        "1 ",
        "1\n",
        "٣",
        "1.0000001",
        "nan",
        "Infinity",
        "18446744073709.551616",
        "9" * 41,
        "1." + "0" * 39,
    ],
)
def test_what_is_no_amount_is_refused_and_named(text: str) -> None:
    with pytest.raises(AmountError) as refusal:
        parse(text)
    assert text[:30].strip() in str(refusal.value)


@pytest.mark.parametrize("text", ["18446744073709.551616", "1000000000000000", "9" * 40, "9" * 500])
def test_a_number_that_is_too_large_is_called_that(text: str) -> None:
    with pytest.raises(AmountError, match=r"is too large: write 18446744073709\.551615 at most"):
        parse(text)


@pytest.mark.parametrize("units", [-1, MAX_AMOUNT + 1, True, 1.0, "1"])
def test_only_whole_units_within_bounds_are_amounts(units: int) -> None:
    with pytest.raises(AmountError, match="no amount"):
        amount(units)


@given(amounts)
def test_what_is_shown_reads_back(value: Amount) -> None:
    assert parse(show(value)) == value


def test_differences_are_shown_with_their_sign() -> None:
    assert (show(-1_500_000), show(-1), show(0)) == ("-1.5", "-0.000001", "0")


@given(amounts, st.lists(st.integers(0, 2**70), min_size=1, max_size=30).filter(any))
def test_the_parts_of_a_split_sum_to_the_whole(whole: Amount, weights: list[int]) -> None:
    parts = split(whole, dict(enumerate(weights)))
    assert sum(parts.values()) == whole
    base = sum(weights)
    for index, weight in enumerate(weights):
        assert abs(parts[index] * base - whole * weight) < base  # less than one unit from the exact share


@given(amounts, st.dictionaries(st.text(max_size=3), st.integers(1, 100), min_size=1))
def test_a_weight_of_zero_gets_nothing(whole: Amount, weights: dict[str, int]) -> None:
    assert split(whole, {**weights, "nobody": 0})["nobody"] == 0


def test_ties_go_to_whoever_comes_first() -> None:
    assert split(Amount(5), {"a": 1, "b": 1, "c": 1}) == {"a": 2, "b": 2, "c": 1}


@pytest.mark.parametrize("weights", [{}, {"a": 0}, {"a": -1, "b": 2}, {"a": 1.5}, {"a": True}])
def test_impossible_weights_are_refused(weights: dict[str, int]) -> None:
    with pytest.raises(AmountError):
        split(Amount(1), weights)


def test_a_total_beyond_the_bounds_is_refused() -> None:
    assert total({"a": Amount(1), "b": Amount(2)}) == 3
    with pytest.raises(AmountError, match=str(MAX_AMOUNT + 1)):
        total({"a": MAX_AMOUNT, "b": Amount(1)})
