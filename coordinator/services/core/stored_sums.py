"""Sums over all jobs and all ledger rows that cost the same however many have ended: what does not change is summed once.

One coordinator at a time changes records, and whoever takes over begins with nothing folded. Both are read within a
transaction, while nobody else has one.
"""

import math
from collections import Counter

from coordinator.domain.job import LIVE, Job, JobState
from coordinator.store.ports import Column, Condition, Scalar, Transaction, col
from coordinator.store.records import OPEN_ROWS, OutboxRecord

DAY_S = 86_400.0
_ENDED = tuple(state for state in JobState if state not in LIVE)
Sums = dict[Scalar, tuple[int, int]]
"""How many there are, and what their field sums to."""


class JobSums:
    """Jobs by state. Those that ended more than a day ago are folded, until one of them changes, or for a day."""

    def __init__(self) -> None:
        self._until = -math.inf
        self._folded: dict[str, Sums] = {}

    def changed(self, job: Job) -> None:
        """A job is about to be stored that was so before."""
        if job.ended is not None and job.ended < self._until:
            self.forget()

    def forget(self) -> None:
        """Anything may have changed."""
        self._folded.clear()

    async def by_state(self, tx: Transaction, now: float, field: Column[int]) -> Sums:
        """State -> number of jobs, and the sum of ``field``."""
        if now - self._until > 2 * DAY_S:
            self._until = now - DAY_S
            self.forget()
        by, state, ended = (col(Job.state),), col(Job.state), col(Job.ended)
        found = Counter[Scalar](), Counter[Scalar]()
        if field.field not in self._folded:
            before: Condition = ended < self._until
            old = await tx.sums(Job, field, by, state.in_(_ENDED), before)
            self._folded[field.field] = {state: figures for (state,), figures in old.items()}
        since: Condition = ended > math.nextafter(self._until, -math.inf)
        rest = [await tx.sums(Job, field, by, state.equals(one), since) for one in _ENDED]
        rest.append(await tx.sums(Job, field, by, state.in_(tuple(LIVE))))
        parts = [self._folded[field.field], *({state: f for (state,), f in part.items()} for part in rest)]
        for part in parts:
            for key, (number, amount) in part.items():
                found[0][key] += number
                found[1][key] += amount
        return {key: (number, found[1][key]) for key, number in found[0].items()}


class ConfirmedSums:
    """What confirmed rows moved, by kind. Rows before the oldest open one are folded."""

    def __init__(self) -> None:
        self._next: int | None = None
        self._folded: Counter[str] = Counter()

    async def by_kind(self, tx: Transaction) -> Counter[str]:
        """Kind -> amount."""
        number, state = col(OutboxRecord.id), col(OutboxRecord.state)
        found = await tx.find(OutboxRecord, state.in_(OPEN_ROWS), limit=1)
        found = found or await tx.find(OutboxRecord, newest=True, limit=1)
        if not found:
            return Counter()
        oldest = found[0].id
        tail = await self._sums(tx, number > oldest - 1)
        if self._next is None:
            self._folded = Counter(await self._all(tx))
            self._folded.subtract(tail)
        elif oldest > self._next:
            self._folded.update(await self._sums(tx, number > self._next - 1, number < oldest))
        self._next = oldest
        return Counter({kind: self._folded[kind] + tail[kind] for kind in {*self._folded, *tail}})

    async def _all(self, tx: Transaction) -> dict[str, int]:
        where: Condition = col(OutboxRecord.state).equals("confirmed")
        moved = await tx.sums(OutboxRecord, col(OutboxRecord.amount), (col(OutboxRecord.kind),), where)
        return {str(kind): amount for (kind,), (_, amount) in moved.items()}

    async def _sums(self, tx: Transaction, *where: Condition) -> Counter[str]:
        """Of a range of numbers, which is short; SQLite would sum it from an index of all rows."""
        found: Counter[str] = Counter()
        for row in await tx.find(OutboxRecord, *where):
            found[row.kind] += row.amount * (row.state == "confirmed")
        return found
