"""Counters, quotas and rates: of the relay as a whole and of each user."""

from dataclasses import dataclass, field

from protocol.network import MAX_USERS, RelayUsage

BURST_S = 0.25  # A token bucket holds so many seconds of its rate: a quarter of a second of a sender's start-up passes.
MIN_BURST_BYTES = 256 * 1024  # A few batches of offloaded segments pass at any rate.
MAX_USERS_KEPT = 65536  # Some 20 MB; of those without an allocation the oldest gives way.


class Bucket:
    """A token bucket; rate 0 lets everything pass."""

    __slots__ = ("_at", "_burst", "_left", "_rate")

    def __init__(self, rate: float, burst: float | None = None) -> None:
        """``rate`` a second; ``burst`` at once, by default ``BURST_S`` of the rate in bytes."""
        self._rate = rate
        self._burst = burst if burst is not None else max(MIN_BURST_BYTES, rate * BURST_S)
        self._left = self._burst
        self._at = float("-inf")

    def take(self, amount: float, now: float) -> bool:
        """Take ``amount`` at monotonic time ``now`` if it is there."""
        if not self._rate:
            return True
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < amount:
            return False
        self._left -= amount
        return True


class User:
    """One user: allocations held now, and bytes relayed since the relay's start."""

    __slots__ = ("allocations", "bucket", "bytes_relayed", "bytes_reported", "name")

    def __init__(self, name: str, rate: float) -> None:
        """``rate``: bytes a second, 0 for no limit."""
        self.name = name
        self.allocations = 0
        self.bytes_relayed = 0
        self.bytes_reported = 0
        self.bucket = Bucket(rate)


@dataclass
class Counters:
    """Since the relay's start; bytes and packets are payload, without channel headers.

    Attributes:
        to_peers_bytes: clients to peers.
        to_clients_bytes: peers to clients.
        dropped: packets by reason.
        answers: by STUN method and outcome (``ok`` or the error code).
    """

    to_peers_bytes: int = 0
    to_peers_packets: int = 0
    to_clients_bytes: int = 0
    to_clients_packets: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    answers: dict[tuple[str, str], int] = field(default_factory=dict)

    @property
    def bytes_relayed(self) -> int:
        """Both directions."""
        return self.to_peers_bytes + self.to_clients_bytes

    def drop(self, reason: str, packets: int = 1) -> None:
        """Count packets that went nowhere."""
        self.dropped[reason] = self.dropped.get(reason, 0) + packets

    def answer(self, method: str, outcome: str) -> None:
        """Count an answer."""
        self.answers[method, outcome] = self.answers.get((method, outcome), 0) + 1


class Users:
    """Everybody who holds or held an allocation."""

    def __init__(self, rate: float) -> None:
        """``rate``: bytes a second for one user, 0 for no limit."""
        self._users: dict[str, User] = {}
        self._rate = rate

    def get(self, name: str) -> User:
        """The user of this name, known or new."""
        user = self._users.pop(name, None) or User(name, self._rate)
        self._users[name] = user  # At the end: the order is that of last allocation.
        if len(self._users) > MAX_USERS_KEPT:
            self._forget_one()
        return user

    def limit(self, rate: float) -> None:
        """Give every user this many bytes a second from now on; 0 for no limit."""
        if rate == self._rate:
            return
        self._rate = rate
        for user in self._users.values():
            user.bucket = Bucket(rate)

    def unreported(self) -> tuple[list[User], tuple[RelayUsage, ...]]:
        """Users with more bytes than were last reported, and the report; at most ``MAX_USERS``."""
        news = [user for user in self._users.values() if user.bytes_relayed != user.bytes_reported][:MAX_USERS]
        return news, tuple(RelayUsage(user=user.name, bytes_relayed=user.bytes_relayed) for user in news)

    def _forget_one(self) -> None:
        for name, user in self._users.items():
            if not user.allocations:
                del self._users[name]
                return
