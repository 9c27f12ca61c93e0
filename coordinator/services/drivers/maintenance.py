"""What time alone brings about: leases run out, audits and starts become overdue, escrows appear, models are put together."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from coordinator.domain.job import ENDED_EARLY, LIVE, RESTING, Job, JobAction, JobState
from coordinator.domain.lease import Lease
from coordinator.errors import CottageError, FundsError, StoreAwayError
from coordinator.services.artifacts.file_ownership import dataset_name
from coordinator.services.artifacts.models import ModelWorkshop
from coordinator.services.audits.late_openings import Returns
from coordinator.services.core.context import Context
from coordinator.services.core.leases import Leases
from coordinator.services.core.unit_of_work import JobDesk, UnitOfWork
from coordinator.services.drivers.node_protocol import NodeProtocol
from coordinator.services.payments.escrows import ESCROW_MARGIN
from coordinator.services.payments.funding import FundingService
from coordinator.services.recovery.keepers import RecordKeepers
from coordinator.services.training.runs import Runs
from coordinator.store.ports import Condition, col
from coordinator.store.records import RoundRecord
from ledger.errors import LedgerError

MAX_ASSEMBLIES = 3  # Tries; a model that cannot be put together three times has damaged checkpoints.
ESCROW_POLL_S = 3.0
TOGETHER = 16  # Jobs that are looked at in one transaction: what nodes report comes in between.
LOOKS = 5  # Looking at all jobs takes one part in so many of the time at most: 250 jobs take a second.
MAX_POLLED = 20  # Escrows looked for at a time: of jobs that wait for one, and of unfunded ended ones, in turn.

LOG = logging.getLogger(__name__)


class Maintenance:
    """The coordinator's regular rounds."""

    def __init__(
        self,
        context: Context,
        desk: JobDesk,
        leases: Leases,
        conversation: NodeProtocol,
        runs: Runs,
        funding: FundingService,
        models: ModelWorkshop,
        returns: Returns,
        keepers: RecordKeepers | None = None,
    ) -> None:
        self._context = context
        self._keepers = keepers
        self._returns = returns
        self._desk = desk
        self._leases = leases
        self._conversation = conversation
        self._runs = runs
        self._funding = funding
        self._models = models
        self._active: dict[str, float] = {}
        self._ended_seen = 0
        self._waiting_seen = 0
        self._to_assemble: asyncio.Queue[str] = asyncio.Queue()
        self._assembling: set[str] = set()
        desk.on_stored(self._notice)

    async def recover(self) -> None:
        """Continue an earlier process's jobs; its open audits get their full time again."""
        async with self._context.store.transaction() as tx:
            jobs = await tx.find(Job, col(Job.state).in_(tuple(sorted(LIVE))))
        for job in jobs:
            if job.state is not JobState.CREATED:
                await self._guarded(job.id, self._desk.ask(job.id, self._resume))

    async def tick(self) -> None:
        """Everything that is due now."""
        await self._expire_leases()
        await self._look_at_jobs()
        await self._tell()

    async def run(self) -> None:
        """Tick for ever. Where all jobs take long to look at, they are so less often: what nodes say moves each by itself."""
        clock = self._context.clock
        due = clock.now()
        while True:
            await self._expire_leases()
            if (began := clock.now()) >= due:
                await self._look_at_jobs(self._context.config.tick_seconds)
                due = clock.now() + (LOOKS - 1) * (clock.now() - began)
            await self._tell()
            await clock.sleep(self._context.config.tick_seconds)

    async def _expire_leases(self) -> None:
        for lease in self._leases.expired():
            held = self._leases.get(lease)
            if held is None:
                continue
            async with self._desk.open(held.job) as work:
                await self._expire(held, work)
        await self._returns.attend()

    async def _look_at_jobs(self, seconds: float = 0.0) -> None:
        """At those that nobody has looked at for so long."""
        due = [job for job in self._active if self._runs.is_due(job, seconds)]
        due.sort(key=lambda job: (self._active[job], job))  # Who came first is served first.
        for at in range(0, len(due), TOGETHER):
            asked = [(job, self._desk.ask(job, self._advance)) for job in due[at : at + TOGETHER]]
            for job, done in asked:
                await self._guarded(job, done)

    async def _tell(self) -> None:
        await self._conversation.flush()
        if self._keepers is not None:
            await self._keepers.hand_out()

    async def watch_escrows(self) -> None:
        """Notice what outside wallets deposit, and look after paused jobs, for ever."""
        while True:
            await self.look_for_escrows()
            await self.look_at_paused()
            await self._context.clock.sleep(ESCROW_POLL_S)

    async def look_for_escrows(self) -> None:
        """Fund jobs whose escrow has appeared, and give back what came for jobs that had ended without one."""
        since = self._context.clock.time() - ESCROW_MARGIN  # Later, the submitter takes it back without anybody.
        unfunded: tuple[Condition, ...] = (
            col(Job.state).in_(tuple(sorted(ENDED_EARLY))),
            col(Job.escrow).equals(0),
            col(Job.deadline) > since,
        )
        async with self._context.store.transaction() as tx:
            created: Condition = col(Job.state).equals(JobState.CREATED)
            waiting = await tx.find(Job, created, newest=True, limit=MAX_POLLED // 2)
            older = await tx.find(
                Job, created, newest=True, limit=MAX_POLLED // 2, offset=MAX_POLLED // 2 + self._waiting_seen
            )
            ended = await tx.find(Job, *unfunded, newest=True, limit=MAX_POLLED, offset=self._ended_seen)
            at_work = await tx.find(Job, col(Job.state).in_(tuple(sorted(LIVE - {JobState.CREATED}))))
        added = [job for job in at_work if not job.test_wallet and job.escrow < job.spec.budget][-MAX_POLLED:]
        await self._look(self._funding.see_escrow, waiting)
        found = await self._look(self._funding.see_escrow, older)
        self._waiting_seen = self._waiting_seen + len(older) - found if len(older) == MAX_POLLED // 2 else 0
        await self._look(self._funding.see_deposit, added)
        found = await self._look(self._funding.return_deposit, ended)  # Next time they are not among these.
        self._ended_seen = self._ended_seen + MAX_POLLED - found if len(ended) == MAX_POLLED else 0

    async def _look(self, look: Callable[[Job], Awaitable[bool | None]], jobs: Sequence[Job]) -> int:
        """At each of these jobs; for how many it was so."""
        found = 0
        for job in jobs:
            try:
                found += bool(await look(job))
            except StoreAwayError:
                raise
            except (CottageError, LedgerError):
                continue  # Not there yet, or not to be asked now: a later turn looks again.
        return found

    async def look_at_paused(self) -> None:
        """Go on with jobs whose budget was added to; what is left paused until its deadline is kept, and the rest refunded."""
        async with self._context.store.transaction() as tx:
            paused = await tx.find(Job, col(Job.state).equals(JobState.PAUSED))
        for job in paused:
            if job.deadline < self._context.clock.time():
                await self._guarded(job.id, self._desk.ask(job.id, self._end_paused))
            elif job.halt == "":
                await self._guarded(job.id, self._desk.ask(job.id, self._go_on))

    async def _end_paused(self, work: UnitOfWork) -> None:
        if work.job.state is not JobState.PAUSED:
            return
        if work.run is not None and work.run.checkpoints:
            work.change(halt="deadline")
            await self._runs.ask(work, JobAction.STOP)
        else:
            await self._runs.stop(work, JobState.CANCELLED, "its deadline passed while it was paused")

    async def _go_on(self, work: UnitOfWork) -> None:
        try:
            await self._runs.ask(work, JobAction.RESUME)
        except FundsError:
            work.change(halt="budget")  # What was added is not enough for a round.

    async def assemble(self) -> None:
        """Put finished models together, one after the other, for ever."""
        while True:
            await self.assemble_next()

    async def assemble_next(self) -> None:
        """Put the model together that waits longest, as soon as one does."""
        job = await self._to_assemble.get()
        try:
            await self._assemble(job)
        except (StoreAwayError, OSError):
            self._to_assemble.put_nowait(job)  # For the next try.
            raise

    def waiting(self) -> bool:
        """Whether a model waits to be put together."""
        return not self._to_assemble.empty()

    async def _assemble(self, job: str) -> None:
        """Put one model together; after a few failures the job fails and what is left goes back."""
        problem = "no try was made"
        for _ in range(MAX_ASSEMBLIES):
            async with self._desk.open(job) as work:
                if work.job.model is not None or work.job.state is not JobState.VERIFYING or work.run is None:
                    return
                stored, checkpoints = work.job, work.run.checkpoints
                rounds = await work.tx.find(
                    RoundRecord, col(RoundRecord.job).equals(job), col(RoundRecord.state).equals("complete")
                )
                data = await dataset_name(work.tx, stored)
            try:
                model = await self._models.assemble(stored, checkpoints, rounds, data)
                fault = await self._template_fault(stored)
            except StoreAwayError:
                raise
            except CottageError as error:
                problem = error.detail
                LOG.warning("job %s: the model could not be put together: %s", job, problem)
                continue
            async with self._desk.open(job) as work:
                work.change(model=model)
                work.note("model", "the model folder is ready")
                if fault:
                    work.note("model", f"{fault}; the model continues texts, and cannot chat")
            return
        async with self._desk.open(job) as work:
            await self._runs.stop(work, JobState.FAILED, f"the model could not be put together: {problem}")

    async def _template_fault(self, job: Job) -> str:
        """Why nobody can chat with the job's model though it has a template for that; empty: somebody can, or nobody knows."""
        try:
            return await self._models.template_fault(job.spec.tokenizer)
        except CottageError as error:
            LOG.warning("job %s: its chat template was not looked at: %s", job.id, error.detail)
            return ""

    async def _guarded(self, job: str, done: Awaitable[None]) -> None:
        """Wait until something is done with a job; a fault in one must not stop the others, and what failed is not stored."""
        try:
            await done
        except StoreAwayError:
            raise
        except Exception:  # The boundary of one job: logged whole, tried again at the next turn.
            LOG.exception("job %s", job)

    async def _resume(self, work: UnitOfWork) -> None:
        self._runs.resume(work)

    async def _advance(self, work: UnitOfWork) -> None:
        self._conversation.final_traffic(work)
        await self._runs.advance(work)

    async def _expire(self, held: Lease, work: UnitOfWork) -> None:
        work.count("leases_expired_total")
        self._conversation.final_traffic(work)
        away, silence = self._leases.was_cut(held.node), self._context.config.lease_seconds
        heard = f"has not been heard of for {silence:g} s"
        why = heard if away is None or away >= silence else f"lost its connection {away:.1f} s ago, is not back"
        if self._leases.died(held.id):
            why = "has lost its worker, whose records it has,"
        work.note("lost", f"node {held.node} {why} and is given up")
        work.end(held.id, "expired", "the lease ran out")
        await self._runs.advance(work)

    def _notice(self, work: UnitOfWork) -> None:
        if work.job.state in LIVE - RESTING:
            self._active[work.job.id] = work.job.created
        else:
            self._active.pop(work.job.id, None)
            self._runs.ended(work.job.id)
            self._assembling.discard(work.job.id)
        trained = work.job.state is JobState.VERIFYING and work.job.spec.trains
        if trained and work.job.model is None and work.job.id not in self._assembling:
            self._assembling.add(work.job.id)
            self._to_assemble.put_nowait(work.job.id)
