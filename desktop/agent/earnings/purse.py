"""What the stakes of a computer's cards come from. Knows no ledger: an auditor, which has none, loads it too."""

import asyncio
from dataclasses import dataclass, field

from protocol.identity import NodeKey


@dataclass(frozen=True)
class Purse:
    """The wallet of a computer, out of which its cards' stakes come, one after the other (``held``)."""

    key: NodeKey
    held: asyncio.Lock = field(default_factory=asyncio.Lock)
