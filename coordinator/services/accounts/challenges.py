"""What somebody who signs in has to sign: good once, for some minutes, and no more of them than there is room for."""

import hashlib
from typing import Final

from common.clock import Clock
from coordinator.errors import NotFoundError, TooManyError, UnauthorisedError
from coordinator.services.accounts.budgets import MAX_CHALLENGES
from coordinator.services.accounts.throttle import Throttle
from coordinator.store.ports import Store, col
from coordinator.store.records import ChallengeKind, ChallengeRecord

CHALLENGE_S = 300.0  # To find the wallet's window and to read what it says.
MAX_STALE = 100  # Forgotten with each new challenge, so that the table stays small.
_HINT: Final = "the sign-in is too old or was used already: begin it again"


class Challenges:
    """Over any store; everybody's together have a bound."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._rate = Throttle(clock, MAX_CHALLENGES / 2 / CHALLENGE_S, MAX_CHALLENGES / 2, 1)

    async def keep(self, nonce: str, kind: ChallengeKind, account_id: str, text: str) -> None:
        """Remember a challenge, and forget old ones.

        Raises:
            TooManyError: too many are open.
        """
        if wait := self._rate.take(""):
            raise TooManyError("many people are signing in just now: try again", wait)
        now = self._clock.time()
        async with self._store.transaction() as tx:
            for old in await tx.find(
                ChallengeRecord, col(ChallengeRecord.created) < now - CHALLENGE_S, limit=MAX_STALE
            ):
                await tx.delete(old)
            await tx.insert(ChallengeRecord(_digest(nonce), kind, account_id, text, now))

    async def take(self, nonce: str, kind: ChallengeKind, account_id: str = "") -> str:
        """The text of a challenge, which is then gone.

        Raises:
            UnauthorisedError: there is none of this nonce, kind and account any more.
        """
        async with self._store.transaction() as tx:
            try:
                found = await tx.get(ChallengeRecord, _digest(nonce))
            except NotFoundError as error:
                raise UnauthorisedError(_HINT) from error
            await tx.delete(found)
        if found.kind != kind or found.account_id != account_id or self._clock.time() - found.created > CHALLENGE_S:
            raise UnauthorisedError(_HINT)
        return found.text


def _digest(nonce: str) -> str:
    return hashlib.sha256(nonce.encode()).hexdigest()
