"""The ledger's door: the market's terms."""

from __future__ import annotations

from ledger.door import Door
from ledger.errors import LedgerAnswerError
from ledger.program.layout import MarketTerms, read_terms


class TermsCalls(Door):
    """What holds for every escrow, stake and dispute of a token."""

    async def terms(self) -> MarketTerms:
        """The market's terms: shares, cool-down, the least bond, the time for a verdict.

        Raises:
            LedgerAnswerError: nobody has set them.
        """
        account = (await self._connection.accounts([self._market.terms()]))[0]
        if account is None or account.owner != self._market.program:
            raise LedgerAnswerError(f"the market of {self._market.mint} has no terms: the deployer sets them")
        return read_terms(account.data)
