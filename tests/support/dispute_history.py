"""What the ledger's logs tell of a dispute."""

from ledger.addresses import parse_address
from ledger.client import Ledger, LedgerEvent
from ledger.history import read_history


async def dispute_history(ledger: Ledger, challenger: str, audit: bytes) -> list[LedgerEvent]:
    """What the market program did with a dispute, oldest first; also after it was closed."""
    dispute = ledger._market.dispute(parse_address(challenger), audit)
    return await read_history(ledger._connection, ledger._market.program, dispute, frozenset())
