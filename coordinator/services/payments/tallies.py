"""What each node's work in a job stands for, share by share: what it is told of its pay, and why there is no more."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Literal, cast

from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import Job
from coordinator.domain.lease import Lease
from coordinator.store.ports import Condition, Scalar, Transaction, col
from coordinator.store.records import CommitRecord, OutboxRecord
from protocol.node import JobEarned, SeatState, ShareState, Tally, Unpaid

_BY = (
    col(CommitRecord.node),
    col(CommitRecord.state),
    col(CommitRecord.why),
    col(CommitRecord.settlement),
    col(CommitRecord.promised),
)


async def of_nodes(tx: Transaction, job: str, nodes: Collection[str] | None = None) -> dict[str, JobEarned]:
    """The account of each of these nodes (None: of all) that ever had a lease of the job; empty where there is no such job."""
    jobs = await tx.find(Job, col(Job.id).equals(job))
    if not jobs:
        return {}
    newest: dict[str, Lease] = {}
    seated: set[str] = set()
    for lease in await tx.find(Lease, col(Lease.job).equals(job)):
        newest[lease.node] = lease
        if lease.seat is not None:
            seated.add(lease.node)
    rows = {
        row.id: row
        for row in await tx.find(
            OutboxRecord, col(OutboxRecord.job).equals(job), col(OutboxRecord.kind).in_(("settle", "promise"))
        )
    }
    tallies: dict[str, dict[ShareState, tuple[int, int]]] = defaultdict(dict)
    receipts: dict[str, int] = defaultdict(int)
    for (node, state, why, settlement, promised), (count, amount) in (
        await tx.sums(CommitRecord, col(CommitRecord.amount), _BY, col(CommitRecord.job).equals(job))
    ).items():
        share = state_of(str(state), cast(Unpaid, why), row_of(rows, settlement), row_of(rows, promised))
        before = tallies[str(node)].get(share, (0, 0))
        tallies[str(node)][share] = before[0] + count, before[1] + amount
        if share == "paid" and settlement is not None:
            receipts[str(node)] = max(receipts[str(node)], int(settlement))
    for (node,), (count, amount) in (await _looked_for(tx, job)).items():
        whole = tallies[str(node)].pop("unaudited")
        tallies[str(node)]["looking"] = count, amount
        if whole[0] > count:
            tallies[str(node)]["unaudited"] = whole[0] - count, whole[1] - amount
    wanted = newest.keys() if nodes is None else newest.keys() & set(nodes)
    return {
        node: _account(jobs[0], _seat(newest[node], node in seated), tallies[node], row_of(rows, receipts[node]))
        for node in sorted(wanted)
    }


async def _looked_for(tx: Transaction, job: str) -> dict[tuple[Scalar, ...], tuple[int, int]]:
    """Node -> shares, and what they are worth, that wait with a step which one of the operator's auditors has to look at."""
    where: tuple[Condition, ...] = (
        col(Audit.job).equals(job),
        col(Audit.state).equals("replaying"),
        col(Audit.look).equals(True),
    )
    nodes = tuple(sorted({audit.node for audit in await tx.find(Audit, *where)}))
    if not nodes:
        return {}
    waiting: tuple[Condition, ...] = (
        col(CommitRecord.job).equals(job),
        col(CommitRecord.state).equals("pending"),
        col(CommitRecord.node).in_(nodes),
    )
    return await tx.sums(CommitRecord, col(CommitRecord.amount), (col(CommitRecord.node),), *waiting)


def _account(
    job: Job, seat: SeatState, tallies: Mapping[ShareState, tuple[int, int]], receipt: OutboxRecord | None
) -> JobEarned:
    told = tuple(Tally(state, count, amount) for state, (count, amount) in sorted(tallies.items()))
    return JobEarned(
        job=job.id,
        verified=sum(tally.amount for tally in told if tally.state not in ("unaudited", "looking")),
        paid=sum(tally.amount for tally in told if tally.state == "paid"),
        signature=receipt.signature if receipt is not None else "",
        state=job.state.value,
        seat=seat,
        tallies=told,
    )


def state_of(
    state: str, why: Unpaid | Literal[""], settlement: OutboxRecord | None, promise: OutboxRecord | None
) -> ShareState:
    """One share, from its row and the transactions that are to pay it. ``why`` of shares from before it was kept is not known."""
    if state == "pending":
        return "unaudited"
    if state != "verified":
        known: Unpaid = "late" if state == "void" else "expelled"
        return known if why == "" else why
    if settlement is not None:
        paying: dict[str, ShareState] = {"confirmed": "paid", "failed": "stuck"}
        return paying.get(settlement.state, "paying")
    return "promised" if promise is not None and promise.state == "confirmed" else "saving"


def _seat(lease: Lease, seated: bool) -> SeatState:
    if not seated:
        return "spare"
    if lease.state != "ended":
        return "held"
    match lease.end:
        case "inputs" | "numbers":
            return "failed"
        case how:
            return how or "stopped"


def row_of(rows: Mapping[int, OutboxRecord], number: object) -> OutboxRecord | None:
    """The row of that number, where there is one."""
    return rows.get(number) if isinstance(number, int) else None
