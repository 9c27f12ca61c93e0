"""Jobs as their submitters read them; a list of any length takes as many questions to the store as one job."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain

import msgspec

from coordinator.domain.arrays.tally import ArrayTally
from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import Job, JobState
from coordinator.domain.lease import Lease
from coordinator.domain.serving import Served
from coordinator.services.arrays.array_views import with_array
from coordinator.services.core.context import Context
from coordinator.services.core.display_names import names_in, readable
from coordinator.services.serving import serving_views
from coordinator.services.serving.homes import Homes
from coordinator.services.training.pauses import spent_by
from coordinator.services.views import federation_views, resources
from coordinator.services.views.resources import JobResources, TrafficOf
from coordinator.store.ports import Condition, Transaction, col
from coordinator.store.records import RunRecord
from protocol.rest import api

LOOKED_AT = frozenset({JobState.PLANNED, JobState.RUNNING, JobState.VERIFYING})


class JobViews:
    """Makes the views."""

    def __init__(self, context: Context, traffic_of: TrafficOf, homes: Homes) -> None:
        self._context = context
        self._traffic_of = traffic_of
        self._homes = homes

    async def view(self, tx: Transaction, job: Job) -> api.JobView:
        """One job."""
        return (await self.views(tx, [job]))[0]

    async def views(self, tx: Transaction, jobs: Sequence[Job]) -> list[api.JobView]:
        """Jobs in their order."""
        held: dict[str, list[Lease]] = defaultdict(list)
        for lease in await tx.find(Lease, col(Lease.job).in_(tuple(job.id for job in jobs))):
            held[lease.job].append(lease)
        names = await names_in(tx, chain.from_iterable((job.reason, job.quote.limit) for job in jobs))
        standings = await self._standings(tx, jobs)
        if any(job.released for job in jobs):  # The library is read the first time, which takes a second.
            await asyncio.to_thread(lambda: [federation_views.spent(job) for job in jobs])
        return [self._view(job, held[job.id], names, standings[job.id]) for job in jobs]

    def _view(self, job: Job, leases: Sequence[Lease], names: Mapping[str, str], standing: JobResources) -> api.JobView:
        offered = msgspec.structs.replace(job.quote, limit=readable(job.quote.limit, names))
        shown = msgspec.structs.replace(job, quote=offered)
        view = resources.job_view(shown, leases, self._traffic_of, readable(job.reason, names), standing)
        if job.spec.array is not None:
            return with_array(view, job, leases, standing.tally)
        if job.spec.federated is not None:
            state = federation_views.state_of(job, standing.run)
            return msgspec.structs.replace(view, federation=state)
        if job.spec.serve is None:
            return view
        return serving_views.served(view, job, leases, standing.served, standing.stages, self._homes)

    async def _standings(self, tx: Transaction, jobs: Sequence[Job]) -> Mapping[str, JobResources]:
        ids = tuple(job.id for job in jobs)
        places, looks = await _queue(tx, jobs), await _looks(tx, jobs)
        runs = {record.job: record.run for record in await tx.find(RunRecord, col(RunRecord.job).in_(ids))}
        costs, now = await spent_by(tx, ids), self._context.clock.time()
        return {
            job.id: JobResources(
                now,
                costs.get(job.id, 0),
                places.get(job.id),
                runs[job.id].base.done if job.id in runs and runs[job.id].checkpoints else 0,
                looks[job.id],
                runs[job.id].served if job.id in runs else Served(),
                len(runs[job.id].layers) if job.id in runs else job.quote.stages,
                runs[job.id].tally if job.id in runs else ArrayTally(),
                runs.get(job.id),
            )
            for job in jobs
        }


async def _queue(tx: Transaction, jobs: Sequence[Job]) -> Mapping[str, int]:
    """Which of all that wait for nodes each is, from 1."""
    if not any(job.state is JobState.FUNDED for job in jobs):
        return {}
    waiting = await tx.find(Job, col(Job.state).equals(JobState.FUNDED))
    created = [job.created for job in waiting]
    return {job.id: sum(moment < job.created for moment in created) + 1 for job in waiting}


async def _looks(tx: Transaction, jobs: Sequence[Job]) -> Counter[str]:
    """The steps of each that wait for one of the operator's auditors."""
    looked_at = tuple(job.id for job in jobs if job.state in LOOKED_AT)
    if not looked_at:
        return Counter()
    where: tuple[Condition, ...] = (col(Audit.job).in_(looked_at), col(Audit.state).equals("replaying"))
    return Counter(audit.job for audit in await tx.find(Audit, *where, col(Audit.look).equals(True)))
