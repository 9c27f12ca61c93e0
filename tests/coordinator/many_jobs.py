"""A store with many jobs in every state, with leases, work and looks that wait; and one that counts its questions."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import LIVE, Job, JobState
from coordinator.domain.lease import Lease
from coordinator.domain.rounds.run import Base, Run
from coordinator.store.ports import Store, Transaction
from coordinator.store.records import CommitRecord, NodeRecord, RunRecord
from protocol.identity import NodeKey
from protocol.rest.api import Quote
from protocol.task import Layers, Plan, Traffic
from tests.coordinator.fakes import WALLET, digest, profile, spec

QUOTE = Quote(1.0, 1, 1, 2, 2, 4, 20, 1.0, 1_000_000, 500_000, 1_000_000, (), "")
NODES = tuple(NodeKey((900 + number).to_bytes(32, "big")).address for number in range(4))
QUESTIONS = ("find", "get", "sums")


async def fill(store: Store, number: int, states: Sequence[JobState] = tuple(JobState)) -> list[str]:
    """Put ``number`` jobs into ``store``, whose states come by turns; their ids, oldest first."""
    async with store.transaction() as tx:
        for place, node in enumerate(NODES):
            await tx.insert(NodeRecord(node, node, profile(f"node-{place}"), 0.0, 1.0, earned=1000 + place))
        for place in range(number):
            await _insert(tx, place, states[place % len(states)])
    return [f"{place:032x}" for place in range(number)]


async def _insert(tx: Transaction, place: int, state: JobState) -> None:
    job, reason = f"{place:032x}", f"node {NODES[place % 4]} has gone"
    made = Job(job, f"job {place}", state, spec(), WALLET, True, float(place), 2.0, QUOTE, {}, {}, rounds_done=4)
    ended = None if state in LIVE else 2.0
    await tx.insert(msgspec.structs.replace(made, reason=reason, paid=place, shared=True, ended=ended))
    run = Run((Layers(0, 4),), 2, 20, 2, (), base=Base(done=place % 5), checkpoints=(digest(place),) * (place % 2))
    await tx.insert(RunRecord(job, run))
    for seat in range(2 + place % 3):
        traffic = Traffic(0, 0, place, 2 * place, seat)
        lease = Lease(f"{place:028x}{seat:04x}", job, NODES[seat], NODES[seat], 1, 0, seat, 3.0, traffic=traffic)
        await tx.insert(lease)
        for number in range(4):
            await tx.insert(_commit(lease, number, ("pending", "verified", "rejected", "void")[number]))
        await tx.insert(_look(lease, place))


def _commit(lease: Lease, number: int, state: Any) -> CommitRecord:
    made = digest(lease.id, number)
    seat, tokens, amount = lease.replica or 0, 512, 10 ** (number + 1)
    where = (lease.job, 1, number, 0, seat, lease.id, lease.node, lease.payout)
    return CommitRecord(*where, made, 2, made, tokens, 1, True, state, amount)


def _look(lease: Lease, place: int) -> Audit:
    """A step that is run again; of every second seat by the operator."""
    seat, made = lease.replica or 0, digest(lease.id)
    where = (f"{place:024x}{seat:08x}", lease.job, 1, 0, 0, 0, seat, lease.id, lease.node, lease.payout)
    audit = Audit(*where, "class", Plan(1, (Layers(0, 4),), ()), 0, 8, made, 2, made, 9.0)
    return msgspec.structs.replace(audit, state="replaying", look=seat % 2 == 0)


class CountingStore:
    """A store that counts what it is asked, by question and kind of record."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.asked: Counter[str] = Counter()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """A transaction whose questions are counted."""
        async with self._store.transaction() as tx:
            yield _Counting(tx, self.asked)  # type: ignore[misc]

    async def close(self) -> None:
        """Let go of the store."""
        await self._store.close()


class _Counting:
    def __init__(self, tx: Transaction, asked: Counter[str]) -> None:
        self._tx = tx
        self._asked = asked

    def __getattr__(self, name: str) -> Any:
        wrapped = getattr(self._tx, name)
        if name not in QUESTIONS:
            return wrapped

        def counted(kind: type[Any], *more: Any, **named: Any) -> Any:
            self._asked[f"{name} {kind.__name__}"] += 1
            return wrapped(kind, *more, **named)

        return counted
