"""One rule for a store that is away for a while: who needs it waits and begins anew, and nothing that came in is lost.

Loops begin anew from what is stored, as after a restart. What a node reports waits in its connection, which goes on beating: no
lease runs out because the database was restarted. Any other fault ends what it befell, as ever.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from common.clock import Clock
from coordinator.errors import ReplacedError, StoreAwayError
from coordinator.metrics import Metrics

FIRST_PAUSE = 0.25
MAX_PAUSE = 5.0

T = TypeVar("T")
Act = Callable[[], Awaitable[T]]

LOG = logging.getLogger(__name__)


class Patience:
    """Shared by everything that can wait, so that an outage is told once, and its end too."""

    def __init__(self, clock: Clock, metrics: Metrics) -> None:
        self._clock = clock
        self._metrics = metrics
        self._since: float | None = None

    async def forever(self, name: str, loop: Act[None], back: Act[None] | None = None) -> None:
        """Run a loop that never ends, and begin it anew after the store, or the disk beside it, was away.

        Args:
            back: done first whenever it begins anew.
        """
        pause = 0.0
        while True:
            began = self._clock.now()
            try:
                if pause and back is not None:
                    await back()
                    self._over()
                await loop()
                return
            except (StoreAwayError, OSError, BaseExceptionGroup) as error:
                cause = _passing(error, (StoreAwayError, OSError))
                if cause is None:
                    raise
                pause = _longer(pause if self._clock.now() - began < MAX_PAUSE else 0.0)
                self._away(name, cause)
            await self._clock.sleep(pause)

    async def once(self, name: str, act: Act[T], wanted: Callable[[], bool]) -> T:
        """Do something that may be done again as if it had not been tried, as soon as the store lets it be done.

        Raises:
            StoreAwayError: it is not ``wanted`` any more.
        """
        pause = 0.0
        while True:
            try:
                return await act()
            except (StoreAwayError, BaseExceptionGroup) as error:
                cause = _passing(error, (StoreAwayError,))
                if cause is None or not wanted():
                    raise
                pause = _longer(pause)
                self._away(name, cause)
            await self._clock.sleep(pause)

    def _away(self, name: str, cause: Exception) -> None:
        self._metrics.count("store_away_total")
        if self._since is None:
            self._since = self._clock.now()
            if isinstance(cause, ReplacedError):
                LOG.info("another coordinator has taken over, as %s has found: this one changes nothing any more", name)
                return
            said = cause.cause if isinstance(cause, StoreAwayError) else cause
            LOG.error("%s cannot reach what is stored (%s): everything waits until that is mended", name, said)

    def _over(self) -> None:
        if self._since is not None:
            LOG.warning("what is stored can be reached again, after %.0f s", self._clock.now() - self._since)
            self._since = None


def _longer(pause: float) -> float:
    return min(MAX_PAUSE, pause * 2) or FIRST_PAUSE


def _passing(error: BaseException, kinds: tuple[type[Exception], ...]) -> Exception | None:
    """What will pass by itself, where that is all that is wrong."""
    if isinstance(error, BaseExceptionGroup):
        causes = [_passing(one, kinds) for one in error.exceptions]
        return causes[0] if all(causes) else None
    return error if isinstance(error, kinds) else None
