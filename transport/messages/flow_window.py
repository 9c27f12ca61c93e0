"""How many messages, and how many bytes of them, may be open towards one peer: both sides keep the same account.

Every lane has an account of its own, so that bulk that waits for the line never keeps a control message from being announced.
"""

from dataclasses import dataclass

from transport.messages.lanes import Lane
from transport.messages.limits import PeerLimits


@dataclass(slots=True)
class _Account:
    """The open messages of one lane."""

    eager_bytes: int = 0
    eager_count: int = 0
    large_count: int = 0


class FlowWindow:
    """The open messages of one direction."""

    def __init__(self, limits: PeerLimits) -> None:
        """Start empty."""
        self._limits = limits
        self.clear()

    def clear(self) -> None:
        """Forget all messages."""
        self._accounts = {lane: _Account() for lane in Lane}

    def fits(self, lane: Lane, size: int, *, eager: bool) -> bool:
        """Whether one more message of ``size`` bytes may be open on a lane."""
        limits, account = self._limits, self._accounts[lane]
        if not eager:
            return account.large_count < limits.large_count
        return account.eager_count < limits.eager_count and account.eager_bytes + size <= limits.eager_window

    def enter(self, lane: Lane, size: int, *, eager: bool) -> None:
        """A message is announced."""
        self._count(self._accounts[lane], size, eager, 1)

    def leave(self, lane: Lane, size: int, *, eager: bool) -> None:
        """A message is settled."""
        self._count(self._accounts[lane], size, eager, -1)

    @staticmethod
    def _count(account: _Account, size: int, eager: bool, sign: int) -> None:
        if eager:
            account.eager_bytes += sign * size
            account.eager_count += sign
        else:
            account.large_count += sign
