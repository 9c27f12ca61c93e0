"""What one token is worth in a currency of everyday life, as somebody says: ``0.92 EUR``."""

from typing import Annotated

import msgspec
from msgspec import Meta

CURRENCY = r"^[A-Z]{3}$"  # ISO 4217.
MILLION = 10**6
MAX_WORTH = MILLION * MILLION


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
