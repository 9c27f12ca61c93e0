"""What lies on the disk for as long as somebody may ask for it, and no longer: what nothing refers to any more is removed.

What refers to an artifact is read from the stored records each time, so nothing is kept, or lost, by a count that went wrong:

=====================================================  =======================================================================
a file that somebody uploaded                          30 days (P), and as long as a job that names it
what was made of it for a job; the states, openings    the job's life and 30 days (P); a day where nobody ever paid for it
and inputs of its disputes that its nodes stored;
results of an array's elements, and what these read
an opening whose audit passed, or came to nothing      7 days at the most
the finished model, its config and tokenizer           as long as the job
a model folder that was made of a checkpoint           a day; it is made again when it is asked for
what a node has just stored, or a tool just made       two hours, within which something comes to refer to it; a day where
                                                       jobs are parted in cells
=====================================================  =======================================================================
P: the operator's policy (``config.RetentionPolicy``). What another one would remove can be seen before it is chosen (``survey``).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable

from coordinator.config import RetentionPolicy
from coordinator.domain.arrays.votes import ElementCourse
from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import LIVE, Job
from coordinator.errors import NotFoundError
from coordinator.services.arrays.open_arrays import elements_of
from coordinator.services.artifacts.artifacts import ArtifactStock, ArtifactStore
from coordinator.services.artifacts.checkpoints import FOLDER_S
from coordinator.services.artifacts.file_ownership import sources
from coordinator.services.audits.credit import OPEN
from coordinator.services.core.context import Context
from coordinator.store.ports import Place, col
from coordinator.store.records import DeliveryRecord, DisputeRecord, FileRecord, RunRecord
from protocol.ids import Digest
from protocol.job.array import ArraySpec

DAY = 86_400.0
UNPAID_S = DAY  # Of a job that was never funded: nobody has worked for it.
PASSED_S = 7 * DAY  # Whoever wants to run a step again that an auditor found right asks within a week.
FRESH_S = 2 * 3600.0
SWEEP_S = 3600.0
FIRST_S = 60.0  # After a start: what a crash has left behind goes soon, and the start is not slowed down.
SHARE = 20  # Of the time, what counting for operators may take: the figures of before are shown for so much longer than it took.
PAGE = 50  # Records read at a time: other work has its turn in between, and does not wait long for it.

LOG = logging.getLogger(__name__)


class Keeping:
    """``folders`` says which model folders of checkpoints are remembered, and made lately."""

    def __init__(self, context: Context, artifacts: ArtifactStore, folders: Callable[[], Iterable[Digest]]) -> None:
        self._context = context
        self._artifacts = artifacts
        self._folders = folders
        self._counting = asyncio.Lock()
        self._counted: tuple[float, ArtifactStock] | None = None
        self._good_until = 0.0

    @property
    def _fresh(self) -> float:
        """For how long everything stays. Model folders of checkpoints are remembered by the cell that has made them, and by no
        other one: where there are several, all stays for as long as those."""
        return FRESH_S if self._context.cell.of == 1 else FOLDER_S

    async def run(self) -> None:
        """Sweep for ever."""
        await self._context.clock.sleep(FIRST_S)
        while True:
            await self.sweep()
            await self._context.clock.sleep(SWEEP_S)

    async def sweep(self) -> int:
        """Remove what nothing refers to; how many bytes that freed."""
        now, began = self._context.clock.time(), self._context.clock.now()
        referred = await self._referred(now, self._context.config.retention)
        files, freed = await self._artifacts.sweep(referred, now - self._fresh)
        if self._counted is not None:  # Somebody looks at it: else a bucket would be listed for nobody.
            await self._count(now, began, referred)
        if files:
            LOG.info("%d artifacts that nothing refers to are removed: %s bytes", files, f"{freed:,}")
        self._context.metrics.count("artifacts_removed_total", files)
        return freed

    async def survey(self, policy: RetentionPolicy) -> tuple[float, ArtifactStock]:
        """What there is, and what a sweep would remove now; nothing is changed. First: when it was counted.

        Args:
            policy: as if it were this one.

        Counting asks as much of store and disk as a sweep, so it is not done again at once where that takes long.
        """
        async with self._counting:
            now, began = self._context.clock.time(), self._context.clock.now()
            if policy != self._context.config.retention:
                referred = await self._referred(now, policy, forget=False)
                return now, await self._artifacts.survey(referred, now - self._fresh)
            if self._counted is None or began >= self._good_until:
                await self._count(now, began, await self._referred(now, policy, forget=False))
            assert self._counted is not None
            return self._counted

    async def _count(self, now: float, began: float, referred: set[bytes]) -> None:
        self._counted = now, await self._artifacts.survey(referred, now - self._fresh)
        ended = self._context.clock.now()
        self._good_until = ended + SHARE * (ended - began)

    async def _referred(self, now: float, policy: RetentionPolicy, forget: bool = True) -> set[bytes]:
        """Every artifact that is to stay, as the 32 bytes of its digest; ``forget``: also what stands in the way of a sweep."""
        found: set[Digest] = set(self._folders())
        named: set[tuple[str, Digest]] = set()
        async with self._context.everywhere.transaction() as tx:
            delivered = {
                str(job)
                for (job,) in await tx.sums(DeliveryRecord, col(DeliveryRecord.size), (col(DeliveryRecord.job),))
            }
        async for job in self._jobs():
            found |= {job.model} - {None} if job.model is not None else set()
            if _is_recent(job, now, policy):
                files = {digest for _, digest in sources(job.spec)}
                files |= set() if job.spec.array is None else await self._inputs(job.spec.array)
                named |= {(job.account_id, digest) for digest in files}
                found |= files | set(job.files.values()) | await self._of_nodes(job, now)
                found |= set() if job.spec.array is None else await self._of_array(job.id)
            else:
                found |= {digest for name, digest in job.files.items() if job.model and name.endswith(".json")}
                if forget and job.id in delivered:
                    await self._forget_deliveries(job)
        found |= await self._uploads(now - policy.uploads * DAY, named, forget)
        return {bytes.fromhex(digest) for digest in found}

    async def _jobs(self) -> AsyncIterator[Job]:
        after: Place | None = None
        while True:
            async with self._context.everywhere.transaction() as tx:
                page = await tx.find(Job, limit=PAGE, after=after)
            for job in page:
                yield job
            if len(page) < PAGE:
                return
            after = (page[-1].created, page[-1].id)

    async def _of_nodes(self, job: Job, now: float) -> set[Digest]:
        """What nodes have stored for a job, as far as the run, an audit or a dispute still needs it."""
        of_audits = col(Audit.job).equals(job.id)
        async with self._context.everywhere.transaction() as tx:
            runs = await tx.find(RunRecord, col(RunRecord.job).equals(job.id))
            audits = await tx.sums(
                Audit,
                col(Audit.round),
                (col(Audit.opening), col(Audit.made), col(Audit.anchor), col(Audit.state)),
                of_audits,
                col(Audit.deadline) > now - PASSED_S,
            )
            # Whatever waits for the operator's machine waits as long as that is away.
            waiting = await tx.sums(
                Audit,
                col(Audit.round),
                (col(Audit.opening), col(Audit.made), col(Audit.anchor), col(Audit.state)),
                of_audits,
                col(Audit.state).in_(OPEN),
            )
            failed = await tx.sums(
                Audit,
                col(Audit.round),
                (col(Audit.opening), col(Audit.anchor)),
                of_audits,
                col(Audit.state).equals("failed"),
            )
            disputes = await tx.find(DisputeRecord, col(DisputeRecord.job).equals(job.id))
            fresh = await tx.find(
                DeliveryRecord,
                col(DeliveryRecord.job).equals(job.id),
                col(DeliveryRecord.created) > now - FRESH_S,
            )
        found = {str(digest) for key in (*audits, *waiting) for digest in key[:3] if digest is not None}
        found |= {str(digest) for key in failed for digest in key if digest is not None}
        found |= {delivery.artifact for delivery in fresh}
        for run in (record.run for record in runs):
            found |= {*run.checkpoints, *(state for point in run.points for state in point.checkpoints)}
            seats = () if run.round is None else run.round.seats
            found |= {digest for seat in seats for digest in (seat.state, seat.checkpoint) if digest is not None}
            total = None if run.round is None or run.round.sum is None else run.round.sum.total
            found |= set() if total is None else {total}
        for dispute in (record.dispute for record in disputes):
            found |= {digest for digest in (dispute.replay.opening, dispute.replay.anchor) if digest is not None}
            found |= {said.inputs for said in dispute.said.values() if said.inputs is not None}
        return found

    async def _of_array(self, job: str) -> set[Digest]:
        """Results of an array's elements, and what somebody looks at before it is one."""
        of_job = col(ElementCourse.job).equals(job)
        async with self._context.everywhere.transaction() as tx:
            results = await tx.sums(ElementCourse, col(ElementCourse.size), (col(ElementCourse.result),), of_job)
            begun = await tx.find(ElementCourse, of_job, col(ElementCourse.state).equals("open"))
        looked_at = {digest for course in begun for one in course.tries for digest in (one.result, one.of)}
        return {str(digest) for digest in {*(digest for (digest,) in results), *looked_at} if digest is not None}

    async def _inputs(self, array: ArraySpec) -> set[Digest]:
        """What an array's elements read."""
        try:
            elements = await elements_of(self._artifacts, array.elements)
        except NotFoundError:  # Its job ended long ago, and the list went with an earlier sweep.
            return set()
        return {digest for element in elements for digest in element.inputs.values()}

    async def _forget_deliveries(self, job: Job) -> None:
        async with self._context.everywhere.transaction() as tx:
            await tx.forget(DeliveryRecord, col(DeliveryRecord.job).equals(job.id))

    async def _uploads(self, since: float, named: set[tuple[str, Digest]], forget: bool) -> set[Digest]:
        """Uploaded files; those that are older, and that no job of their account names, are given up (``forget``: for ever)."""
        found: set[Digest] = set()
        after: Place | None = None
        while True:
            async with self._context.everywhere.transaction() as tx:
                page = await tx.find(FileRecord, limit=PAGE, after=after)
                for file in page:
                    if file.created >= since or (file.account_id, file.artifact) in named:
                        found.add(file.artifact)
                    elif forget:
                        await tx.delete(file)
            if len(page) < PAGE:
                return found
            after = (page[-1].created, page[-1].artifact)


def _is_recent(job: Job, now: float, policy: RetentionPolicy) -> bool:
    """Whether what a job needs is still kept."""
    if job.state in LIVE:
        return True
    return job.ended is not None and now - job.ended < (policy.job_files * DAY if job.escrow else UNPAID_S)
