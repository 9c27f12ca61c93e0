"""What the ledger's pages show: transactions, audits, totals that must balance, a node's account, a round's evidence."""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, cast

from common.untrusted_text import untrusted
from coordinator.domain.audits.trust import Audit, AuditState
from coordinator.domain.job import Job
from coordinator.domain.lease import Lease
from coordinator.errors import NotFoundError
from coordinator.services.audits.disputes import evidence_digest, evidence_of
from coordinator.services.audits.evidence import read_evidence
from coordinator.services.core.context import Context
from coordinator.services.core.display_names import names_in, readable
from coordinator.services.core.leases import Leases
from coordinator.services.network.nodes import Nodes
from coordinator.services.payments import tallies
from coordinator.services.payments.chain import ChainPort
from coordinator.services.payments.promises import PromiseService
from coordinator.services.views import resources
from coordinator.services.views.restores import restores_of
from coordinator.store.ports import Condition, Place, Scalar, Transaction, col
from coordinator.store.records import CommitRecord, DisputeRecord, NodeRecord, OutboxKind, OutboxRecord, RoundRecord
from ledger.errors import LedgerError
from ledger.states import EscrowState
from protocol import disputes as wire
from protocol.evidence import RoundEvidence
from protocol.node import ShareState, Unpaid
from protocol.pay_reasons import SHARES
from protocol.rest import ledger

MAX_NODE_JOBS = 100  # Of a node, those it worked for last.
MAX_LOOKS = 5  # At so many leases of a node each: one that is often in, and never works, has fewer jobs on its page.
MAX_RECENT = 100  # Audits and payouts on a node's page; the rest is under the job that they belong to.
_WORK_BY = (
    col(CommitRecord.job),
    col(CommitRecord.state),
    col(CommitRecord.why),
    col(CommitRecord.settlement),
    col(CommitRecord.promised),
)
MAX_IDS = 1000  # Named in one query: databases limit its parameters.

LOG = logging.getLogger(__name__)


class BookService:
    """Implements ``ports.LedgerPort``. Reads only."""

    def __init__(
        self,
        context: Context,
        chain: ChainPort,
        nodes: Nodes,
        leases: Leases,
        coordinator: str,
        promises: PromiseService,
    ) -> None:
        self._context = context
        self._promises = promises
        self._chain = chain
        self._nodes = nodes
        self._leases = leases
        self._coordinator = coordinator

    async def entries(
        self, kinds: Sequence[str], job: str | None, before: int | None, limit: int
    ) -> Sequence[ledger.LedgerEntry]:
        """Transactions, newest first."""
        where: list[Condition] = [col(OutboxRecord.id) < before] if before is not None else []
        async with self._context.everywhere.transaction() as tx:
            if job is not None:
                await _job(tx, job)
                found = await _rows_of(tx, job, kinds, where, limit)
            else:
                # Kind by kind, each in the order of its index: together all of them would be read, and put in order then.
                named = cast(Sequence[OutboxKind], kinds)
                of_kind = [[col(OutboxRecord.kind).equals(kind), *where] for kind in named] or [where]
                parts = [await tx.find(OutboxRecord, *one, newest=True, limit=limit) for one in of_kind]
                found = sorted((row for part in parts for row in part), key=lambda row: -row.id)[:limit]
            return await _shown(tx, found)

    async def audits(
        self, state: str | None, job: str | None, offset: int, limit: int, after: tuple[int, str] | None = None
    ) -> Sequence[ledger.NodeAudit]:
        """Audits, those of the latest rounds first."""
        # A step that was forged to test an auditor must look like any other to it: such audits are never listed.
        where: list[Condition] = [col(Audit.canary).equals(False)]
        where += [col(Audit.state).equals(cast(AuditState, state))] if state is not None else []
        where += [col(Audit.job).equals(job)] if job is not None else []
        async with self._context.everywhere.transaction() as tx:
            found = await tx.find(Audit, *where, newest=True, limit=limit, offset=offset, after=after)
            names = await names_in(tx, [audit.detail for audit in found])
        return [_audit(audit, "audited", names) for audit in found]

    async def totals(self) -> ledger.LedgerTotals:
        """Where all the money is."""
        async with self._context.everywhere.transaction() as tx:
            confirmed: Condition = col(OutboxRecord.state).equals("confirmed")
            of_kind = await tx.sums(OutboxRecord, col(OutboxRecord.amount), (col(OutboxRecord.kind),), confirmed)
            of_jobs = [await tx.sums(Job, field, ()) for field in (col(Job.escrow), col(Job.paid), col(Job.refunded))]
        escrow, paid, refunded = (found.get((), (0, 0))[1] for found in of_jobs)
        return _totals({str(kind): amount for (kind,), (_, amount) in of_kind.items()}, escrow - paid - refunded)

    async def job(self, job: str) -> ledger.JobLedger:
        """A job's escrow, as the ledger has it now; as the books have it where the ledger does not answer."""
        async with self._context.everywhere.transaction() as tx:
            stored = await _job(tx, job)
            of_kind = await tx.sums(
                OutboxRecord,
                col(OutboxRecord.amount),
                (col(OutboxRecord.kind),),
                col(OutboxRecord.job).equals(job),
                col(OutboxRecord.state).equals("confirmed"),
            )
            restores = await restores_of(tx, job)
        moved = {str(kind): amount for (kind,), (_, amount) in of_kind.items()}
        state = await self._escrow(stored)
        slashed = moved.get("slash", 0)
        return ledger.JobLedger(
            job=job,
            escrow=self._chain.escrow_address(stored.submitter, job),
            submitter=stored.submitter,
            coordinator=self._coordinator,
            program=self._chain.program,
            mint=self._chain.mint,
            rpc=self._chain.url,
            on_chain=state is not None,
            totals=_totals(moved, stored.escrow - stored.paid - stored.refunded)
            if state is None
            else ledger.LedgerTotals(
                deposited=int(state.deposited),
                paid=int(state.paid),
                refunded=int(state.refunded),
                held=int(state.balance),
                slashed=slashed,
                difference=int(state.deposited - state.paid - state.refunded - state.balance),
            ),
            restores=restores,
        )

    async def node(self, node: str) -> ledger.NodeAccount:
        """A node's account with the market."""
        async with self._context.everywhere.transaction() as tx:
            records = await tx.find(NodeRecord, col(NodeRecord.address).equals(node))
            if not records:
                raise NotFoundError(
                    f"there is no node {node[:60]}: the network page lists those that were here", "node"
                )
            counts = await tx.sums(
                Audit,
                col(Audit.round),
                (col(Audit.state),),
                col(Audit.node).equals(node),
                col(Audit.canary).equals(False),
            )
            done = await tx.find(
                Audit, col(Audit.node).equals(node), col(Audit.canary).equals(False), newest=True, limit=MAX_RECENT
            )
            did = await tx.find(
                Audit, col(Audit.auditor).equals(node), col(Audit.canary).equals(False), newest=True, limit=MAX_RECENT
            )
            names = await names_in(tx, [records[0].reason, *(audit.detail for audit in (*done, *did))])
            slashes = await tx.find(OutboxRecord, col(OutboxRecord.kind).equals("slash"), newest=True)
            jobs, rows = await _work_of(tx, node)
            shown = await _shown(tx, rows)
            taken = await _shown(tx, [row for row in slashes if row.payload.get("node") == node])
        far = self._nodes.elsewhere.get(node)
        online = far is not None or self._nodes.session(node) is not None
        busy = node in self._leases.busy() if far is None else far.busy
        return ledger.NodeAccount(
            node=resources.node_view(records[0], online, busy),
            reason=readable(records[0].reason, names),
            stake=await self._stake(node),
            jobs=jobs,
            audits={str(state[0]): count for state, (count, _) in sorted(counts.items())},
            recent=tuple([_audit(a, "audited", names) for a in done] + [_audit(a, "auditor", names) for a in did]),
            slashes=tuple(taken),
            payouts=tuple(shown),
        )

    async def disputes(
        self, job: str | None, offset: int, limit: int, after: tuple[float, str] | None = None
    ) -> Sequence[wire.DisputeView]:
        """Disputes, newest first."""
        where: tuple[Condition, ...] = () if job is None else (col(DisputeRecord.job).equals(job),)
        async with self._context.everywhere.transaction() as tx:
            records = await tx.find(DisputeRecord, *where, newest=True, limit=limit, offset=offset, after=after)
            return [await _dispute(tx, record) for record in records]

    async def dispute(self, audit: str) -> wire.DisputeDetail:
        """A dispute, with all that was said once it is over."""
        async with self._context.everywhere.transaction() as tx:
            records = await tx.find(DisputeRecord, col(DisputeRecord.id).equals(audit))
            if not records:
                raise NotFoundError(f"there is no dispute over audit {audit}: the list has all of them", "audit")
            evidence = evidence_of(records[0]) if records[0].over else None
            return wire.DisputeDetail(await _dispute(tx, records[0]), evidence)

    async def promise(self, job: str) -> ledger.PromiseView:
        """What of a job can be claimed from the ledger."""
        return await self._promises.view(job)

    async def evidence(self, job: str, number: int) -> Sequence[RoundEvidence]:
        """What is published about a round, for each time that it was completed."""
        where: tuple[Condition, ...] = (
            col(RoundRecord.job).equals(job),
            col(RoundRecord.number).equals(number),
            col(RoundRecord.state).equals("complete"),
        )
        async with self._context.everywhere.transaction() as tx:
            await _job(tx, job)
            records = [record for record in await tx.find(RoundRecord, *where) if record.steps > 0]
            if not records:
                raise NotFoundError(f"job {job} has completed no round {number} yet: its rounds count from 0", "round")
            return [await read_evidence(tx, record) for record in records]

    async def _escrow(self, job: Job) -> EscrowState | None:
        try:
            return await self._chain.escrow(job.submitter, job.id)
        except LedgerError as error:
            LOG.warning("the escrow of job %s cannot be read: %s", job.id, error)
            return None

    async def _stake(self, node: str) -> ledger.StakeView | None:
        try:
            state = await self._chain.stake(node)
        except LedgerError as error:
            LOG.warning("the stake of node %s cannot be read: %s", node, error)
            return None
        if state is None:
            return None
        return ledger.StakeView(
            address=state.address,
            balance=int(state.balance),
            deposited=int(state.deposited),
            slashed=int(state.slashed),
            withdrawn=int(state.withdrawn),
            requested=int(state.requested),
            unlock_at=state.unlock_at,
            treasury=state.treasury,
        )


async def _dispute(tx: Transaction, record: DisputeRecord) -> wire.DisputeView:
    dispute, replay = record.dispute, record.dispute.replay
    memos = await tx.find(OutboxRecord, col(OutboxRecord.key).equals(f"ruled:{record.id}:{record.job}"))
    return wire.DisputeView(
        record.id,
        record.job,
        replay.round,
        replay.stage,
        replay.replica,
        dispute.prover,
        dispute.challenger,
        record.over,
        dispute.winner,
        dispute.why,
        dispute.detail,
        dispute.step,
        dispute.index,
        dispute.questions,
        record.began,
        record.ended,
        evidence_digest(record) if record.over else None,
        memos[0].signature if memos else "",
    )


async def _job(tx: Transaction, job: str) -> Job:
    found = await tx.find(Job, col(Job.id).equals(job))
    if not found:
        raise NotFoundError(f"there is no job {job}: look it up in the list of jobs", "job")
    return found[0]


async def _names_of(tx: Transaction, jobs: Iterable[str]) -> Mapping[str, Job]:
    return {job.id: job for job in await tx.find(Job, col(Job.id).in_(tuple(sorted(set(jobs)))))}


async def _shown(tx: Transaction, rows: Sequence[OutboxRecord]) -> list[ledger.LedgerEntry]:
    jobs = await _names_of(tx, (row.job for row in rows))
    names = await names_in(tx, (row.detail for row in rows))
    return [
        ledger.LedgerEntry(
            id=row.id,
            job=row.job,
            job_name=jobs[row.job].name if row.job in jobs else untrusted(""),
            kind=row.kind,
            state=row.state,
            amount=row.amount,
            signature=row.signature,
            time=row.created,
            detail=readable(row.detail, names),
            payload=row.payload,
        )
        for row in rows
    ]


async def _rows_of(
    tx: Transaction, job: str, kinds: Sequence[str], where: Sequence[Condition], limit: int
) -> list[OutboxRecord]:
    """A job's newest rows of these kinds, or of all."""
    found: list[OutboxRecord] = []
    size = MAX_IDS if kinds else limit
    while len(found) < limit:
        page = await tx.find(OutboxRecord, col(OutboxRecord.job).equals(job), *where, newest=True, limit=size)
        found += [row for row in page if not kinds or row.kind in kinds]
        if len(page) < size:
            break
        where = [col(OutboxRecord.id) < page[-1].id]
    return found[:limit]


async def _work_of(tx: Transaction, node: str) -> tuple[tuple[ledger.NodeJob, ...], Sequence[OutboxRecord]]:
    """A node's jobs, newest first, and the transactions that paid it."""
    groups = await _work_in_newest(tx, node)
    ids = sorted({int(number) for key in groups for number in key[3:] if number is not None}, reverse=True)
    rows: list[OutboxRecord] = []
    for start in range(0, len(ids), MAX_IDS):
        asked = tuple(ids[start : start + MAX_IDS])
        rows += await tx.find(OutboxRecord, col(OutboxRecord.id).in_(asked), newest=True)
    by_id = {row.id: row for row in rows}
    jobs = await _names_of(tx, (str(key[0]) for key in groups))
    kept = sorted(jobs.values(), key=lambda job: job.created, reverse=True)
    sums: dict[str, defaultdict[str, int]] = {job.id: defaultdict(int) for job in kept}
    unpaid: dict[str, defaultdict[ShareState, int]] = {job.id: defaultdict(int) for job in kept}
    for (job, state, why, settlement, promised), (count, amount) in groups.items():
        if (figures := sums.get(str(job))) is None:
            continue
        share = tallies.state_of(
            str(state), cast(Unpaid, why), tallies.row_of(by_id, settlement), tallies.row_of(by_id, promised)
        )
        unpaid[str(job)][share] += count * (share != "paid")
        if state != "void":
            figures["rounds"] += count
            figures["rejected"] += count * (state == "rejected")
            figures["verified"] += amount * (state == "verified")
            figures["paid"] += amount * (share == "paid")
    found = tuple(
        ledger.NodeJob(
            job.id,
            job.name,
            job.state.value,
            sums[job.id]["rounds"],
            sums[job.id]["rejected"],
            sums[job.id]["verified"],
            sums[job.id]["paid"],
            _sentences(unpaid[job.id]),
        )
        for job in kept
    )
    return found, [row for row in rows if row.kind == "settle"][:MAX_RECENT]


async def _work_in_newest(tx: Transaction, node: str) -> dict[tuple[Scalar, ...], tuple[int, int]]:
    """What a node has done in the jobs that it took a seat in last, as many as its page has: however long it has been here."""
    found: dict[tuple[Scalar, ...], tuple[int, int]] = {}
    jobs: set[str] = set()  # That it has worked in; it left others before a round was done.
    seen: set[str] = set()
    after: Place | None = None
    for _ in range(MAX_LOOKS):
        held = await tx.find(Lease, col(Lease.node).equals(node), newest=True, limit=MAX_NODE_JOBS, after=after)
        some = tuple(dict.fromkeys(lease.job for lease in held if lease.job not in seen))
        seen |= set(some)
        of_node: Condition = col(CommitRecord.node).equals(node)
        in_some: Condition = col(CommitRecord.job).in_(some)
        sums = await tx.sums(CommitRecord, col(CommitRecord.amount), _WORK_BY, of_node, in_some) if some else {}
        worked = {str(key[0]) for key in sums}
        jobs |= set([job for job in some if job in worked][: MAX_NODE_JOBS - len(jobs)])
        found |= {key: figures for key, figures in sums.items() if str(key[0]) in jobs}
        if len(held) < MAX_NODE_JOBS or len(jobs) == MAX_NODE_JOBS:
            break
        after = (held[-1].granted, held[-1].fence, held[-1].id)
    return found


def _sentences(unpaid: Mapping[ShareState, int]) -> tuple[str, ...]:
    """Of every share that is not paid, how many there are and why."""
    return tuple(
        f"{count} round{'' if count == 1 else 's'}: {SHARES[share]}" for share, count in sorted(unpaid.items()) if count
    )


def _audit(audit: Audit, role: Literal["audited", "auditor"], names: Mapping[str, str]) -> ledger.NodeAudit:
    return ledger.NodeAudit(audit.job, role, audit.epoch, resources.audit_view(audit, readable(audit.detail, names)))


def _totals(moved: Mapping[str, int], held: int) -> ledger.LedgerTotals:
    """Sums of transactions beside what is left by another count; the two agree, or the difference says by how much not."""
    amount = {kind: moved.get(kind, 0) for kind in ("fund", "settle", "refund", "slash")}
    rest = amount["fund"] - amount["settle"] - amount["refund"]
    return ledger.LedgerTotals(
        deposited=amount["fund"],
        paid=amount["settle"],
        refunded=amount["refund"],
        held=held,
        slashed=amount["slash"],
        difference=rest - held,
    )
