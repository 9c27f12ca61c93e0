"""Amounts of money: integers of the token's smallest unit, never floating point."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NewType, TypeVar

from ledger.errors import AmountError

Amount = NewType("Amount", int)
"""A number of smallest units; 1 token is 10**DECIMALS of them. Between 0 and MAX_AMOUNT."""

DECIMALS = 6  # As USDC, the token that a real cluster would use.
UNIT = 10**DECIMALS
MAX_AMOUNT = Amount(2**64 - 1)  # A token account holds an unsigned 64-bit number.
MAX_TEXT = 40  # Twice the digits of MAX_AMOUNT; longer input is refused before it is read.
ZERO = Amount(0)

_DECIMAL = re.compile(r"([0-9]+)(?:\.([0-9]+))?")
_LARGE = re.compile(rf"[1-9][0-9]{{{MAX_TEXT - 1}}}")
_Key = TypeVar("_Key")


def amount(units: int) -> Amount:
    """Check that ``units`` is an amount.

    Raises:
        AmountError: not an integer, negative, or above MAX_AMOUNT.
    """
    if type(units) is not int:
        raise AmountError(f"{units!r} is no amount: give whole smallest units as an int")
    if not 0 <= units <= MAX_AMOUNT:
        raise AmountError(f"{units} is no amount: it must lie between 0 and {MAX_AMOUNT}")
    return Amount(units)


def parse(text: str) -> Amount:
    """Read a decimal number of tokens exactly: ``"12.5"`` is ``12_500_000``.

    Raises:
        AmountError: not a plain decimal number, more than DECIMALS places, or out of bounds.
    """
    shown = text[:MAX_TEXT]
    match = _DECIMAL.fullmatch(text) if len(text) <= MAX_TEXT else None
    if match is None and _LARGE.fullmatch(shown):
        raise AmountError(f"{shown!r}… is too large: write {show(MAX_AMOUNT)} at most")
    if match is None:
        raise AmountError(f"{shown!r} is no amount: write digits, a point and at most {DECIMALS} decimals, as 12.5")
    whole, fraction = match[1], match[2] or ""
    if len(fraction) > DECIMALS:
        raise AmountError(f"{shown!r} has {len(fraction)} decimals: the token has {DECIMALS}, round it yourself")
    units = int(whole) * UNIT + int(fraction.ljust(DECIMALS, "0"))
    if units > MAX_AMOUNT:
        raise AmountError(f"{shown!r} is too large: write {show(MAX_AMOUNT)} at most")
    return Amount(units)


def show(value: int) -> str:
    """Write an amount, or a difference of amounts, as a decimal number of tokens, without trailing zeros."""
    sign = "-" if value < 0 else ""
    whole, fraction = divmod(abs(value), UNIT)
    digits = f"{fraction:0{DECIMALS}d}".rstrip("0")
    return f"{sign}{whole}.{digits}" if digits else f"{sign}{whole}"


def total(values: Mapping[_Key, Amount]) -> Amount:
    """Sum amounts.

    Raises:
        AmountError: the sum is above MAX_AMOUNT.
    """
    return amount(sum(values.values()))


def split(whole: Amount, weights: Mapping[_Key, int]) -> dict[_Key, Amount]:
    """Split an amount in proportion to integer weights; the parts sum to ``whole`` exactly.

    What rounding down leaves over goes, one unit each, to the largest remainders; ties go to whoever comes
    first in ``weights``, so the caller fixes the order.

    Raises:
        AmountError: no weights, a weight that is negative or no int, or all weights zero.
    """
    for key, weight in weights.items():
        if type(weight) is not int or weight < 0:
            raise AmountError(f"weight {weight!r} of {key!r} is no whole number of at least 0")
    base = sum(weights.values())
    if base == 0:
        raise AmountError(f"{show(whole)} cannot be split by {len(weights)} weights that sum to 0")
    amount(whole)
    parts = {key: divmod(whole * weight, base) for key, weight in weights.items()}
    left = whole - sum(quotient for quotient, _ in parts.values())
    by_remainder = sorted(parts, key=lambda key: -parts[key][1])  # sorted() is stable: ties keep their order
    extra = set(by_remainder[:left])
    return {key: Amount(quotient + (key in extra)) for key, (quotient, _) in parts.items()}
