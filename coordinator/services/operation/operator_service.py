"""What an operator sees and orders, in one place: nodes, jobs of all accounts, what the ledger is still to be told, files."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from common.untrusted_text import untrusted
from coordinator.config import RetentionPolicy
from coordinator.domain.account import Account
from coordinator.domain.job import ENDINGS, LIVE, Job, JobState
from coordinator.domain.lease import Lease
from coordinator.errors import InvalidError, NotFoundError
from coordinator.services.accounts.accounts import AccountService
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.disk_space import JOBS_BYTES, MIN_FREE_BYTES
from coordinator.services.artifacts.retention import Keeping
from coordinator.services.core.context import Context
from coordinator.services.core.leases import Leases
from coordinator.services.jobs.job_views import JobViews
from coordinator.services.jobs.jobs import JobService
from coordinator.services.jobs.ports import ListWindow
from coordinator.services.network.nodes import Nodes
from coordinator.services.operation.node_orders import NodeOrders
from coordinator.services.operation.ports import NodeQuery, NodeSlice, OrderedBy
from coordinator.services.serving.homes import Homes
from coordinator.services.views.resources import TrafficOf
from coordinator.store.ports import Condition, Transaction, col
from coordinator.store.records import OPEN_ROWS, OutboxRecord, OutboxState
from protocol.rest.admin import (
    MAX_REASON,
    AdminJob,
    AdminJobState,
    AdminNode,
    AdminRow,
    AdminRowState,
    AdminStorage,
    NodeOrder,
    RemovableFile,
)

GIVEN_UP: tuple[OutboxState, ...] = ("failed",)


class OperatorService:
    """Implements ``ports.OperatorPort``."""

    def __init__(
        self,
        context: Context,
        leases: Leases,
        nodes: Nodes,
        jobs: JobService,
        artifacts: ArtifactStore,
        keeping: Keeping,
        traffic_of: TrafficOf,
        homes: Homes,
    ) -> None:
        self._context = context
        self._leases = leases
        self._jobs = jobs
        self._artifacts = artifacts
        self._keeping = keeping
        self._orders = NodeOrders(context, leases, nodes)
        self._accounts = AccountService(context.store, context.clock)
        self._views = JobViews(context, traffic_of, homes)

    async def nodes(self, asked: NodeQuery, window: ListWindow) -> NodeSlice:
        """As ``OperatorPort.nodes``."""
        return await self._orders.find(asked, window)

    async def node(self, node: str) -> AdminNode:
        """As ``OperatorPort.node``."""
        return await self._orders.one(node)

    async def order(self, node: str, order: NodeOrder, reason: str, by: OrderedBy) -> AdminNode:
        """As ``OperatorPort.order``."""
        return await self._orders.order(node, order, reason, by)

    async def jobs(self, state: AdminJobState | None, window: ListWindow) -> Sequence[AdminJob]:
        """As ``OperatorPort.jobs``."""
        states = () if state is None else tuple(sorted(LIVE)) if state == "live" else (JobState(state),)
        where: list[Condition] = [col(Job.state).in_(states)] if states else []
        async with self._context.everywhere.transaction() as tx:
            found = await tx.find(Job, *where, newest=True, limit=window.limit, after=window.after)
            return await self._shown(tx, found)

    async def job(self, job: str) -> AdminJob:
        """As ``OperatorPort.job``."""
        async with self._context.everywhere.transaction() as tx:
            return (await self._shown(tx, [await _stored(tx, job)]))[0]

    async def cancel(self, job: str, reason: str, by: OrderedBy) -> AdminJob:
        """As ``OperatorPort.cancel``.

        Raises:
            InvalidError: no reason is given.
            ConflictError: it has ended otherwise.
        """
        reason = untrusted(reason.strip(), MAX_REASON)
        if not reason:
            raise InvalidError(
                "to cancel a job of somebody needs a reason: its owner reads it in the timeline", "reason"
            )
        async with self._context.everywhere.transaction() as tx:
            stored = await _stored(tx, job)
        if stored.state is JobState.CANCELLED or (stored.wish in ENDINGS and stored.state in LIVE):
            return await self.job(job)
        await self._jobs.cancel(job, f"the operator cancelled the job: {reason}")
        await self._accounts.note(by.who, by.via, "job.cancelled", f"{job}: {reason}", by.address)
        return await self.job(job)

    async def outbox(self, state: AdminRowState | None, before: int | None, limit: int) -> Sequence[AdminRow]:
        """As ``OperatorPort.outbox``."""
        states = {None: OPEN_ROWS + GIVEN_UP, "open": OPEN_ROWS, "failed": GIVEN_UP}[state]
        where: list[Condition] = [col(OutboxRecord.state).in_(states)]
        where += [] if before is None else [col(OutboxRecord.id) < before]
        async with self._context.everywhere.transaction() as tx:
            rows = await tx.find(OutboxRecord, *where, newest=True, limit=limit)
        now = self._context.clock.time()
        return [_row(row, now) for row in rows]

    async def storage(self, job_files: int | None = None, uploads: int | None = None) -> AdminStorage:
        """As ``OperatorPort.storage``."""
        config = self._context.config
        kept = config.retention
        policy = RetentionPolicy(kept.job_files if job_files is None else job_files, uploads or kept.uploads)
        counted, stock = await self._keeping.survey(policy)
        database = config.data / "coordinator.db" if config.database_url is None else None
        return AdminStorage(
            place=config.store or "disk",
            counted=counted,
            files=stock.files,
            removable=stock.removable,
            size=stock.size,
            removable_size=stock.removable_size,
            total=self._artifacts.total(),
            free=self._artifacts.free(),
            kept_free=MIN_FREE_BYTES + JOBS_BYTES,
            database=None if database is None else _size(database),
            job_files_days=policy.job_files,
            uploads_days=policy.uploads,
            largest=tuple(RemovableFile(digest, size) for size, digest in stock.largest),
        )

    async def _shown(self, tx: Transaction, jobs: Sequence[Job]) -> list[AdminJob]:
        views = await self._views.views(tx, jobs)
        owners = {job.id: job.account_id for job in jobs}
        accounts = await tx.find(Account, col(Account.id).in_(tuple(sorted(set(owners.values())))))
        names = {account.id: account.name for account in accounts}
        seated = await self._seated(tx, jobs)
        return [
            AdminJob(
                id=view.id,
                name=view.name,
                account=owners[view.id],
                owner=untrusted(names.get(owners[view.id], "")),
                state=view.state,
                sentence=view.sentence,
                created=view.created,
                ended=view.ended,
                rounds_done=view.rounds_done,
                rounds_total=view.rounds_total,
                nodes=seated[view.id],
                escrow=view.escrow,
                paid=view.paid,
                refunded=view.refunded,
            )
            for view in views
        ]

    async def _seated(self, tx: Transaction, jobs: Sequence[Job]) -> Counter[str]:
        """How many nodes have a seat in each of them; of other cells' jobs the store alone knows."""
        if self._context.cell.of == 1:
            return Counter(lease.job for lease in self._leases.seated())
        ids = tuple(job.id for job in jobs)
        held = await tx.find(Lease, col(Lease.job).in_(ids), col(Lease.state).in_(("starting", "ready")))
        return Counter(lease.job for lease in held if lease.seat)


async def _stored(tx: Transaction, job: str) -> Job:
    found = await tx.find(Job, col(Job.id).equals(job))
    if not found:
        raise NotFoundError(f"there is no job {job}: `cottage admin jobs` and /admin/jobs list all", "job")
    return found[0]


def _row(row: OutboxRecord, now: float) -> AdminRow:
    assert row.state != "confirmed"
    return AdminRow(
        id=row.id,
        job=row.job,
        kind=row.kind,
        state=row.state,
        amount=row.amount,
        detail=row.detail,
        created=row.created,
        age=max(0.0, now - row.created),
        attempts=row.attempts,
        signature=row.signature,
    )


def _size(path: Path) -> int | None:
    """Bytes of a database's file, with what it writes ahead."""
    files = [path, path.with_name(f"{path.name}-wal")]
    return sum(file.stat().st_size for file in files if file.is_file()) if path.is_file() else None
