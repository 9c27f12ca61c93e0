"""What one token is worth in a currency of everyday life, as somebody says: ``0.92 EUR``."""

import re
from typing import Annotated

import msgspec
from msgspec import Meta

CURRENCY = r"^[A-Z]{3}$"  # ISO 4217.
MILLION = 10**6
MAX_WORTH = MILLION * MILLION


class WorthError(ValueError):
    """This does not say what a token is worth."""


class TokenWorth(msgspec.Struct, frozen=True):
    """``millionths`` of ``currency`` (ISO 4217) for one token."""

    currency: Annotated[str, Meta(pattern=CURRENCY)]
    millionths: Annotated[int, Meta(gt=0, le=MAX_WORTH)]

    def in_currency(self, units: int) -> int:
        """Millionths of the currency for millionths of the token, rounded down."""
        worth: int = units * self.millionths // MILLION
        return worth

    def in_tokens(self, millionths: int) -> int:
        """Millionths of the token for millionths of the currency, rounded up."""
        tokens: int = -(-millionths * MILLION // self.millionths)
        return tokens


def parse_worth(text: str) -> TokenWorth:
    """Read an amount and a currency.

    Raises:
        WorthError: it is not both, or out of bounds; the text says how it is written.
    """
    found = re.fullmatch(r"([0-9]{1,7})(?:\.([0-9]{1,6}))? ([A-Z]{3})", text.strip().upper())
    if found is None:
        raise WorthError(f"{text[:40]!r} is not what a token is worth: write an amount and a currency, as 0.92 EUR")
    millionths = int(found[1]) * MILLION + int((found[2] or "").ljust(6, "0"))
    if not 0 < millionths <= MAX_WORTH:
        raise WorthError(f"{text[:40]!r} is not what a token is worth: more than nothing, at most a million")
    return TokenWorth(found[3], millionths)
