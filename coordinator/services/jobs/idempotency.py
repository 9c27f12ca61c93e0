"""What was answered to changing requests, so that one that is repeated gets the same answer and changes nothing again.

``Idempotency-Key`` as in draft-ietf-httpapi-idempotency-key-header-07, with two choices of our own. Only what succeeded is kept:
a refusal has changed nothing, so the same key may try again. And a key is given an id before its request is carried out, which
becomes the id of what the request makes: if the coordinator dies between making it and keeping the answer, the repeated request
finds what there is instead of making it twice.
"""

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import msgspec

from common.clock import Clock
from coordinator.errors import ConflictError, InProgressError, KeyReusedError, NotFoundError
from coordinator.services.accounts.budgets import ANSWERS, Budgets
from coordinator.store.ports import Store, col
from coordinator.store.records import ReplayRecord

KEEP_S = 86_400.0  # Nobody repeats a request after a day.
CLEAN_S = 600.0
CLEAN_ROWS = 1_000
ROW_BYTES = 512  # Of a key without its answer.
# An answer that is longer is not kept; the longest, a job with its whole config, has one megabyte.
MAX_KEPT_BYTES: Final = 2 << 20


class Turn:
    """One request with its key."""

    def __init__(self, record: ReplayRecord) -> None:
        self.record = record
        self.answer: ReplayRecord | None = None

    @property
    def over(self) -> bool:
        """It was answered already; ``record`` has how."""
        return self.record.status != 0

    def keep(self, status: int, location: str, body: bytes) -> None:
        """Keep this answer when the turn ends."""
        if len(body) <= MAX_KEPT_BYTES:
            self.answer = msgspec.structs.replace(self.record, status=status, location=location, body=body)


class IdempotentAnswers:
    """Answers by account and key. Requests under way are known to this process only: whoever may be asked for one is one process,
    of a job that is to be made that of the cell which has named it (``new_id``)."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        budgets: Budgets | None = None,
        new_id: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        """``new_id``: names what requests make."""
        self._new_id = new_id
        self._budgets = budgets or Budgets(store, clock)
        self._store = store
        self._clock = clock
        self._under_way: set[tuple[str, str]] = set()
        self._cleaned = 0.0

    @asynccontextmanager
    async def turn(self, account_id: str, key: str, fingerprint: str) -> AsyncIterator[Turn]:
        """Carry a request out inside, unless it is kept; an answer that the body sets is kept.

        Raises:
            InProgressError: the same request is being carried out.
            KeyReusedError: the key was that of another request.
            TooManyError: of the account more is kept already than there is room for.
        """
        await self._budgets.take(ANSWERS, account_id, ROW_BYTES)
        mine = (account_id, key)
        if mine in self._under_way:
            raise InProgressError("this request is being carried out: wait, then send it again", "Idempotency-Key")
        self._under_way.add(mine)
        try:
            try:
                turn = Turn(await self._begin(account_id, key, fingerprint))
            except ConflictError:  # Another cell has begun the same request at this moment: how, it says now.
                turn = Turn(await self._begin(account_id, key, fingerprint))
            yield turn
            if turn.answer is not None:
                async with self._store.transaction() as tx:
                    await tx.update(turn.answer)
                await self._budgets.used(ANSWERS, account_id, len(turn.answer.body))
        finally:
            self._under_way.discard(mine)

    async def _begin(self, account_id: str, key: str, fingerprint: str) -> ReplayRecord:
        now = self._clock.time()
        async with self._store.transaction() as tx:
            if now - self._cleaned > CLEAN_S:
                self._cleaned = now
                for old in await tx.find(ReplayRecord, col(ReplayRecord.created) < now - KEEP_S, limit=CLEAN_ROWS):
                    with suppress(NotFoundError):  # Another cell has forgotten it just now.
                        await tx.delete(old)
            found = await tx.find(
                ReplayRecord, col(ReplayRecord.account_id).equals(account_id), col(ReplayRecord.key).equals(key)
            )
            if found and found[0].created < now - KEEP_S:
                with suppress(NotFoundError):
                    await tx.delete(found.pop())
            if not found:
                fresh = ReplayRecord(account_id, key, fingerprint, self._new_id(), now)
                return await tx.insert(fresh)
        if found[0].fingerprint != fingerprint:
            raise KeyReusedError("this key was that of another request: make a new key", "Idempotency-Key")
        return found[0]
