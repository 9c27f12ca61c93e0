"""Hands each job's newest records to some of its nodes, once a round."""

import logging
from collections.abc import Collection

from coordinator.domain.job import LIVE
from coordinator.domain.lease import Lease
from coordinator.errors import StoreAwayError
from coordinator.services.core.context import Context
from coordinator.services.core.leases import Leases
from coordinator.services.core.unit_of_work import JobDesk, UnitOfWork
from coordinator.services.network.nodes import Nodes
from coordinator.services.recovery.job_records import RecordsSeal, ToldRounds, sealed
from protocol.node import KeepRecords

KEEPERS = 3  # Of different owners where there are as many; those that have been in the job the longest.

LOG = logging.getLogger(__name__)


class RecordKeepers:
    """Notices which jobs have moved on; ``hand_out`` is called with each turn of the coordinator's upkeep."""

    def __init__(self, context: Context, desk: JobDesk, leases: Leases, nodes: Nodes, seal: RecordsSeal) -> None:
        self._context, self._leases, self._nodes, self._seal = context, leases, nodes, seal
        self._known: dict[str, tuple[int, str]] = {}
        self._due: set[str] = set()
        self._told: dict[str, ToldRounds] = {}
        desk.on_stored(self._notice)

    async def hand_out(self) -> None:
        """Give the records of jobs that have moved on to their keepers."""
        due, self._due = self._due, set()
        for job in sorted(due):
            keepers = chosen([lease for lease in self._leases.of_job(job) if lease.seat])
            sessions = [session for node in keepers if (session := self._nodes.session(node)) is not None]
            if not sessions:
                continue
            told = self._told.setdefault(job, ToldRounds())
            told.give_to(sessions)
            try:
                async with self._context.store.transaction() as tx:
                    made = await sealed(tx, self._seal, job, told)
            except StoreAwayError:
                self._due |= due
                raise
            except Exception:  # The boundary of one job: without an entry all else goes on.
                LOG.exception("the records of job %s are not handed out", job)
                continue
            if made is None:
                continue
            records, data = made
            for session in sessions:
                session.send(KeepRecords(records.entry, data))

    def _notice(self, work: UnitOfWork) -> None:
        job = work.job
        if job.state not in LIVE or work.run is None:
            self._known.pop(job.id, None)
            self._told.pop(job.id, None)
            return
        stands = (work.run.done, job.state.value)
        if work.run.done and self._known.get(job.id) != stands:
            self._due.add(job.id)
        self._known[job.id] = stands


def chosen(seated: Collection[Lease]) -> tuple[str, ...]:
    """Who keeps a job's records: of different owners first, and those that came first."""
    first: dict[str, str] = {}
    others: list[str] = []
    for lease in sorted(seated, key=lambda lease: lease.fence):
        if lease.payout in first:
            others.append(lease.node)
        else:
            first[lease.payout] = lease.node
    return tuple(dict.fromkeys([*first.values(), *others]))[:KEEPERS]
