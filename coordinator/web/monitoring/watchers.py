"""Who watches a coordinator gets its metrics while the database is away, too: it knows the keys, and its absence is the news."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from common.clock import Clock
from coordinator.domain.account import Principal, Scope
from coordinator.errors import StoreAwayError, UnauthorisedError

METRICS: Final = "/metrics"
KEPT_S = 3600.0  # A key that is revoked while the database is away opens the metrics for no longer.
ANSWER_S = 3.0  # Prometheus waits 10 s, of which looking takes 5.
MAX_KEPT = 64


class Watchers:
    """Keys with the scope ``operate`` that have opened the metrics lately, by their SHA-256."""

    def __init__(self, clock: Clock, by_key: Callable[[str], Awaitable[Principal]]) -> None:
        self._clock = clock
        self._by_key = by_key
        self._known: OrderedDict[bytes, tuple[float, Principal]] = OrderedDict()

    async def by_key(self, token: str) -> Principal:
        """Who a key stands for.

        Raises:
            UnauthorisedError: it is not valid.
            StoreAwayError: the database does not answer, and the key was not seen within ``KEPT_S``.
        """
        name, now = hashlib.sha256(token.encode(errors="surrogateescape")).digest(), self._clock.now()
        since, known = self._known.get(name, (0.0, None))
        if now - since >= KEPT_S:
            known = None
        try:
            async with asyncio.timeout(None if known is None else ANSWER_S):
                who = await self._by_key(token)
        except UnauthorisedError:
            self._known.pop(name, None)
            raise
        except (StoreAwayError, TimeoutError):
            if known is None:
                raise
            return known
        if Scope.OPERATE in who.scopes:
            self._known[name] = (now, who)
            self._known.move_to_end(name)
            if len(self._known) > MAX_KEPT:
                self._known.popitem(last=False)
        return who
