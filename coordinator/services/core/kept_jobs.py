"""Jobs as they are stored, kept in memory between two changes: a report need not read again what the last one has written.

Whatever else changes a job's records is noticed (``store.noticing``), and the job read anew; so is one whose change failed.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence

import msgspec

from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import Job
from coordinator.domain.lease import Lease
from coordinator.errors import NotFoundError
from coordinator.store.kinds import KINDS
from coordinator.store.ports import R, Transaction, col
from coordinator.store.records import DisputeRecord, RunRecord

MAX_KEPT = 1_024  # Some 40 kB each; those that have waited longest are read again.


class KeptJob(msgspec.Struct, frozen=True):
    """All of a job that its desk works with.

    Attributes:
        leases: the live ones. ``audits``, ``disputes``: those that are not over. Each in the order of its kind.
        disputed: open audits of which there is a dispute, or was.
    """

    job: Job
    run: RunRecord | None
    leases: tuple[Lease, ...]
    audits: tuple[Audit, ...]
    disputes: tuple[DisputeRecord, ...]
    disputed: frozenset[str]


class KeptJobs:
    """Those that were worked on last. Without a store that notices what changes, none is kept."""

    def __init__(self, noticed: bool) -> None:
        self._most = MAX_KEPT if noticed else 0
        self._jobs: OrderedDict[str, KeptJob] = OrderedDict()
        self._in_hand: dict[str, bool] = {}  # Whether somebody else has changed something of it meanwhile.

    def begin(self) -> None:
        """A transaction begins: what was in hand before is not kept."""
        self._in_hand.clear()

    async def take(self, tx: Transaction, job: str) -> KeptJob:
        """The job as it is stored; to be given back by ``keep`` once what was made of it is stored, too.

        Raises:
            NotFoundError: there is no such job.
        """
        kept = self._jobs.pop(job, None)
        self._in_hand[job] = False
        return await _read(tx, job) if kept is None else kept

    def keep(self, kept: KeptJob) -> None:
        """It was stored like this just now."""
        if not self._in_hand.pop(kept.job.id, True):
            self._jobs[kept.job.id] = kept
            if len(self._jobs) > self._most:
                self._jobs.popitem(last=False)

    def forget(self, job: str | None) -> None:
        """Somebody else changes something of a job, or of any."""
        if job is None:
            self._jobs.clear()
            self._in_hand = dict.fromkeys(self._in_hand, True)
        else:
            self._jobs.pop(job, None)
            if job in self._in_hand:
                self._in_hand[job] = True


def in_order(records: Collection[R]) -> tuple[R, ...]:
    """Records of one kind as the store has them."""
    return tuple(sorted(records, key=lambda record: KINDS[type(record)].place_of(record)))


async def _read(tx: Transaction, job: str) -> KeptJob:
    try:
        stored = await tx.get(Job, job)
    except NotFoundError:
        raise NotFoundError(f"there is no job {job}: look it up in the list of jobs", field="job") from None
    runs = await tx.find(RunRecord, col(RunRecord.job).equals(job))
    leases = await tx.find(Lease, col(Lease.job).equals(job), col(Lease.state).in_(("starting", "ready")))
    audits = await tx.find(
        Audit, col(Audit.job).equals(job), col(Audit.state).in_(("drawn", "opening", "showing", "replaying"))
    )
    of_job = col(DisputeRecord.job).equals(job)
    disputes = await tx.find(DisputeRecord, of_job, col(DisputeRecord.over).equals(False))
    known: Sequence[DisputeRecord] = []
    if audits:
        known = await tx.find(DisputeRecord, col(DisputeRecord.id).in_(tuple(audit.id for audit in audits)))
    disputed = frozenset(record.id for record in known)
    return KeptJob(stored, runs[0] if runs else None, tuple(leases), tuple(audits), tuple(disputes), disputed)
