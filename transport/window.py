"""How many messages, and how many bytes of them, may be open towards one peer: both sides keep the same account."""

from transport.limits import PeerLimits


class Window:
    """The open messages of one direction."""

    def __init__(self, limits: PeerLimits) -> None:
        """Start empty."""
        self._limits = limits
        self.clear()

    def clear(self) -> None:
        """Forget all messages."""
        self._eager_bytes = 0
        self._eager_count = 0
        self._large_count = 0

    def fits(self, size: int, *, eager: bool) -> bool:
        """Whether one more message of ``size`` bytes may be open."""
        limits = self._limits
        if not eager:
            return self._large_count < limits.large_count
        return self._eager_count < limits.eager_count and self._eager_bytes + size <= limits.eager_window

    def enter(self, size: int, *, eager: bool) -> None:
        """A message is announced."""
        self._count(size, eager, 1)

    def leave(self, size: int, *, eager: bool) -> None:
        """A message is settled."""
        self._count(size, eager, -1)

    def _count(self, size: int, eager: bool, sign: int) -> None:
        if eager:
            self._eager_bytes += sign * size
            self._eager_count += sign
        else:
            self._large_count += sign
