"""What a job's restores from backups have left without records: published as what it is, so that whoever checks can say so."""

from collections import defaultdict

from coordinator.services.recovery.restoration import RECEIPT
from coordinator.store.ports import Transaction, col
from coordinator.store.records import CommitRecord, EventRecord, OutboxRecord
from protocol.rest.ledger import RestoredPayout, RestoreView


async def restores_of(tx: Transaction, job: str) -> tuple[RestoreView, ...]:
    """Each restore of a job, oldest first, with what the ledger had paid by then and no known round accounts for."""
    told = await tx.find(EventRecord, col(EventRecord.job).equals(job), col(EventRecord.kind).equals("restored"))
    if not told:
        return ()
    # Work has a lease; a share without one is what a restore has found paid.
    shares = await tx.find(CommitRecord, col(CommitRecord.job).equals(job), col(CommitRecord.lease).equals(""))
    numbers = tuple(sorted({share.settlement for share in shares if share.settlement is not None}))
    rows = await tx.find(OutboxRecord, col(OutboxRecord.id).in_(numbers)) if numbers else []
    restored = {row.id: row.created for row in rows if row.key.startswith(RECEIPT)}
    unknown: dict[float, list[RestoredPayout]] = defaultdict(list)
    for share in shares:
        if share.settlement in restored:
            unknown[restored[share.settlement]].append(RestoredPayout(share.payout, share.amount))
    times = sorted({*unknown, *(event.time for event in told)})
    return tuple(RestoreView(time, tuple(sorted(unknown[time], key=lambda one: one.payee))) for time in times)
