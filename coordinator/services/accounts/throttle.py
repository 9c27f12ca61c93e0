"""Token buckets by key, for as many keys as memory is meant to hold; the one that was used least recently is forgotten first."""

from collections import OrderedDict

from common.clock import Clock

MAX_KEYS = 50_000  # Some 10 MB.


class Throttle:
    """``rate`` tokens a second, ``burst`` at most, for each key."""

    def __init__(self, clock: Clock, rate: float, burst: float, max_keys: int = MAX_KEYS) -> None:
        self._clock = clock
        self._rate = rate
        self._burst = burst
        self._max_keys = max_keys
        self._held: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str, tokens: float = 1.0) -> float:
        """Take tokens; 0.0 if there were enough, otherwise nothing is taken and the seconds until there will be."""
        now = self._clock.now()
        left, at = self._held.pop(key, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._rate)
        enough = left >= tokens
        self._held[key] = (left - tokens if enough else left, now)
        if len(self._held) > self._max_keys:
            self._held.popitem(last=False)
        return 0.0 if enough else (tokens - left) / self._rate

    def spend(self, key: str, tokens: float) -> None:
        """Take tokens that were used already, more than there are if need be: who owes some gets none until they are earned."""
        if self.take(key, tokens):
            left, at = self._held[key]
            self._held[key] = (left - tokens, at)

    def forgive(self, key: str) -> None:
        """Let a key begin anew."""
        self._held.pop(key, None)

    def __len__(self) -> int:
        return len(self._held)
