"""Brings the books of a restored coordinator to where the ledger and its nodes are, one job in one transaction.

The ledger is read first: what it has paid is paid, whoever remembers for what. Then come the records that nodes have returned.
Last, epochs and fences jump ahead of everything that was ever said, so that what nodes say of newer rounds is none of this
coordinator's, and a lease that comes back keeps its worker. All of it may be done again, after a crash in the middle.
"""

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from common.untrusted_text import untrusted
from coordinator.client.text import money
from coordinator.domain import lease as lease_rules
from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import LIVE, Job, JobState
from coordinator.domain.lease import TAKES_ANY, Lease
from coordinator.domain.rounds.run import RESTORED_EPOCHS, Base, PriceFrom, Run, RunPoint
from coordinator.services.audits.sampling import FORGOTTEN
from coordinator.services.payments.escrows import payable, payable_work, sum_of
from coordinator.services.payments.outbox_dispatcher import forgotten_key
from coordinator.services.recovery.job_records import JobRecords, newest_first
from coordinator.store.kinds import KINDS
from coordinator.store.ports import R, Transaction, col
from coordinator.store.records import (
    OPEN_ROWS,
    CommitRecord,
    DisputeRecord,
    EventRecord,
    NodeRecord,
    OutboxRecord,
    RoundRecord,
    RunRecord,
)
from ledger.states import EscrowState
from protocol.node import NodeProfile

FENCES = 1_000_000  # Ahead, as epochs are.
SETTLED_SINCE = "its money was settled after the backup that this coordinator was restored from"
RECEIPT = "restored:"  # How keys of rows begin that stand for what was paid since the backup.
PAID_SINCE = "paid after the backup that this coordinator was restored from; what for is on the ledger"
_UNKNOWN = NodeProfile(untrusted(""), untrusted("not known any more"), "cpu", 1, 0.0, "", "process")

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class LedgerTruth:
    """What the ledger shows of a job.

    Attributes:
        paid: payee to all that it has received. memos: lifecycle events -> signature.
    """

    escrow: EscrowState | None
    paid: Mapping[str, int] = field(default_factory=dict)
    memos: Mapping[str, str] = field(default_factory=dict)


class JobRestoration:
    """Brings one job up to date within a transaction."""

    def __init__(
        self, tx: Transaction, now: float, ledger: LedgerTruth, stored: Callable[[str], Awaitable[bool]]
    ) -> None:
        """``stored``: whether an artifact is here."""
        self._tx, self._now, self._ledger, self._stored = tx, now, ledger, stored
        self._rows: dict[int, int | None] = {}  # Outbox rows of entries -> those here.

    async def bring_up(self, job: str, entries: Sequence[JobRecords]) -> None:
        """Take over what nodes have returned, then what the ledger shows; the job goes on from there."""
        runs = await self._tx.find(RunRecord, col(RunRecord.job).equals(job))
        stands = (runs[0].run.epoch, runs[0].run.done) if runs else (-1, 0)
        newer = [one for one in newest_first(entries) if one.entry.stands > stands]
        for records in reversed(newer):
            await self._take(records)
        if newer:
            await self._close(newer[0])
        await self._find_rows(job)
        adopted = await self._adopt(job)
        if newer:
            await self._void_unknown(newer[0])
        await self._go_on(job, newer[0] if newer else None, adopted)

    # --- what nodes have returned ---------------------------------------------------------------------------------------

    async def _take(self, records: JobRecords) -> None:
        for row in reversed(records.outbox):
            self._rows[row.id] = (await self._put_row(row)).id
        for commit in records.commits:
            paid, promised = self._row(commit.settlement), self._row(commit.promised)
            await self._put(msgspec.structs.replace(commit, settlement=paid, promised=promised))
        for record in (*records.rounds, *records.audits):
            await self._put(record)
        for lease in records.leases:
            await self._put(msgspec.structs.replace(lease, seq=TAKES_ANY))
        await self._put(records.job)
        runs = await self._tx.find(RunRecord, col(RunRecord.job).equals(records.job.id))
        version = runs[0].version if runs else 0
        await self._put(RunRecord(records.job.id, records.run, version))

    async def _put(self, record: R) -> R:
        """Keep a record in place of the one with its key."""
        kind = type(record)
        names = KINDS[kind].key
        where = [col(getattr(kind, name)).equals(getattr(record, name)) for name in names]
        found = await self._tx.find(kind, *where)
        if not found:
            return await self._tx.insert(record)
        return await self._tx.update(msgspec.structs.replace(record, version=getattr(found[0], "version", 0)))

    async def _put_row(self, row: OutboxRecord) -> OutboxRecord:
        """Keep a row of the outbox, which has another number here; one that is confirmed stays so."""
        found = await self._tx.find(OutboxRecord, col(OutboxRecord.key).equals(row.key))
        if not found:
            return await self._tx.insert(row)
        if found[0].state == "confirmed":
            return found[0]
        return await self._tx.update(msgspec.structs.replace(row, id=found[0].id, version=found[0].version))

    def _row(self, number: int | None) -> int | None:
        """A row's number here; older ones than an entry's are from before the backup, and have kept theirs."""
        return number if number is None else self._rows.get(number, number)

    async def _close(self, newest: JobRecords) -> None:
        """End what the backup has as under way and the newest records do not."""
        job, tx = newest.job.id, self._tx
        here = {lease.id for lease in newest.leases}
        for lease in await tx.find(Lease, col(Lease.job).equals(job), col(Lease.state).in_(("starting", "ready"))):
            if lease.id not in here:
                await tx.update(lease_rules.end(lease, "stopped", self._now, "it ended after the backup"))

    # --- what the ledger shows ------------------------------------------------------------------------------------------

    async def _find_rows(self, job: str) -> None:
        """Confirm events that are on the ledger, and keep those that nobody knows. Nothing is slashed twice."""
        told = {
            str(row.payload.get("text", ""))
            for row in await self._tx.find(OutboxRecord, col(OutboxRecord.job).equals(job))
        }
        for text, signature in self._ledger.memos.items():
            if text not in told:
                row = OutboxRecord("", job, "event", {"text": text}, self._now, state="confirmed", signature=signature)
                await self._tx.insert(msgspec.structs.replace(row, key=forgotten_key(row)))
        for row in await self._tx.find(
            OutboxRecord, col(OutboxRecord.job).equals(job), col(OutboxRecord.state).in_(OPEN_ROWS)
        ):
            written = self._ledger.memos.get(str(row.payload.get("text", "")))
            if row.kind == "event" and written is not None:
                await self._tx.update(msgspec.structs.replace(row, state="confirmed", signature=written))
            elif row.kind == "slash":
                LOG.warning("the slash of node %s in job %s is not carried on", row.payload.get("node"), job)
                detail = untrusted(f"{row.detail}: whether it was carried out before the restore is not known")
                await self._tx.update(msgspec.structs.replace(row, state="failed", detail=detail))

    async def _adopt(self, job: str) -> tuple[int, int]:
        """Take what the ledger has paid beyond the books into them; returns the amount, and that of rounds not known here.

        First it covers shares that wait, for payment or, as far as is known here, to be verified, oldest first: whatever was
        paid was verified. What is left is of rounds that nobody remembers.
        """
        rows = {row.id: row for row in await self._tx.find(OutboxRecord, col(OutboxRecord.job).equals(job))}
        commits = await self._tx.find(CommitRecord, col(CommitRecord.job).equals(job))
        beyond = defaultdict(int, self._ledger.paid)
        waiting: dict[str, list[CommitRecord]] = defaultdict(list)
        for commit in commits:
            row = None if commit.settlement is None else rows.get(commit.settlement)
            if commit.state not in ("verified", "pending"):
                continue
            if row is not None and row.state != "failed":
                beyond[commit.payout] -= commit.amount  # Paid, or about to be confirmed by its row.
            else:
                waiting[commit.payout].append(commit)
        covered: list[CommitRecord] = []
        left: dict[str, int] = {}
        for payee, amount in sorted(beyond.items()):
            for commit in waiting[payee]:
                if 0 < commit.amount <= amount:
                    amount -= commit.amount
                    covered.append(commit)
            if amount > 0:
                left[payee] = amount
        total = sum_of(covered) + sum(left.values())
        if total:
            await self._write_receipt(job, rows, commits, covered, left)
        return total, sum(left.values())

    async def _write_receipt(
        self,
        job: str,
        rows: Mapping[int, OutboxRecord],
        commits: Sequence[CommitRecord],
        covered: Sequence[CommitRecord],
        left: Mapping[str, int],
    ) -> None:
        total = sum_of(covered) + sum(left.values())
        number = sum(row.key.startswith(f"{RECEIPT}{job}:") for row in rows.values())
        payees = {*left, *(commit.payout for commit in covered)}
        row = await self._tx.insert(
            OutboxRecord(
                f"{RECEIPT}{job}:{number}",
                job,
                "settle",
                {payee: self._ledger.paid[payee] for payee in sorted(payees)},
                self._now,
                total,
                untrusted(PAID_SINCE),
                "confirmed",
            )
        )
        paid = [msgspec.structs.replace(commit, state="verified", settlement=row.id) for commit in covered]
        await self._tx.update_all(paid, covered)
        nodes = {commit.payout: commit.node for commit in commits}
        # Before whatever comes after the restore.
        epoch = max((commit.epoch for commit in commits), default=0) + RESTORED_EPOCHS - 1
        for place, (payee, amount) in enumerate(sorted(left.items())):
            await self._tx.insert(
                CommitRecord(
                    job=job,
                    epoch=epoch,
                    round=0,
                    stage=0,
                    replica=place,
                    lease="",
                    node=nodes.get(payee, payee),
                    payout=payee,
                    root="0" * 64,
                    leaves=0,
                    pseudo_gradient="0" * 64,
                    tokens=0,
                    operations=0,
                    drawable=False,
                    state="verified",
                    amount=amount,
                    settlement=row.id,
                )
            )

    async def _void_unknown(self, newest: JobRecords) -> None:
        """Shares that no entry says the end of, and that nothing was paid for: they were looked at, and not found right."""
        known = newest.may_wait
        for commit in await self._tx.find(
            CommitRecord, col(CommitRecord.job).equals(newest.job.id), col(CommitRecord.state).equals("pending")
        ):
            if (commit.epoch, commit.round) not in known:
                await self._tx.update(msgspec.structs.replace(commit, state="void"))

    # --- how the job goes on --------------------------------------------------------------------------------------------

    async def _go_on(self, name: str, newest: JobRecords | None, adopted: tuple[int, int]) -> None:
        found = await self._tx.find(Job, col(Job.id).equals(name))
        if not found:
            return
        job, escrow, (total, unknown) = found[0], self._ledger.escrow, adopted
        commits = await self._tx.find(CommitRecord, col(CommitRecord.job).equals(name))
        confirmed = {
            row.id
            for row in await self._tx.find(
                OutboxRecord, col(OutboxRecord.job).equals(name), col(OutboxRecord.state).equals("confirmed")
            )
        }
        verified = [commit for commit in commits if commit.state == "verified"]
        paid = sum_of([commit for commit in verified if commit.settlement in confirmed])
        job = msgspec.structs.replace(job, paid=paid, verified=sum_of(verified))
        runs = await self._tx.find(RunRecord, col(RunRecord.job).equals(name))
        if runs and job.state in LIVE:
            ahead = await self._ahead(runs[0].run)
            if (
                newest is None
            ):  # What peers keep is of the backup's round: they have gone on since, and keep no older state.
                ahead = msgspec.structs.replace(ahead, kept=(), moments=())
            if unknown:  # What was paid for them stays paid; the rest of the price is spread over what is left.
                spent = await payable_work(self._tx, name)
                ahead = msgspec.structs.replace(ahead, price_from=PriceFrom(job.tokens_done, spent))
            await self._tx.update(msgspec.structs.replace(runs[0], run=ahead))
            await self._give_up_what_was_asked(name)
        if escrow is not None and job.state in LIVE:
            job = await self._with_escrow(job, escrow)
        await self._tx.update(job)
        for node in sorted(
            {commit.node for commit in commits} | {one.node for one in (newest.leases if newest else ())}
        ):
            await self._count_earned(node, verified)
        where = (
            "from the backup alone" if newest is None else f"from what its nodes keep, after round {newest.run.done}"
        )
        text = f"the coordinator was restored: the job goes on {where}"
        if total:
            text += f"; {money(total)} more had been paid than was known"
        await self._tx.insert(EventRecord(name, self._now, "restored", untrusted(text)))
        LOG.info("job %s: %s", name, text)

    async def _ahead(self, run: Run) -> Run:
        """The run beyond everything that was said of it, from a state that can still be had."""
        points = tuple([point for point in run.points if await self._has(point.checkpoints)])
        base, checkpoints = run.base, run.checkpoints
        if checkpoints and not await self._has(checkpoints):
            newest = points[-1] if points else RunPoint(Base(), ())
            base, checkpoints = newest.base, newest.checkpoints
        return msgspec.structs.replace(
            run,
            epoch=run.epoch + RESTORED_EPOCHS,
            fence=run.fence + FENCES,
            round=None,
            current=(),
            members=(),
            local={},
            residues={},
            restarts=0,
            asked_from=run.epoch + RESTORED_EPOCHS,
            points=points,
            base=base,
            checkpoints=checkpoints,
        )

    async def _has(self, checkpoints: Sequence[str]) -> bool:
        return all([await self._stored(digest) for digest in checkpoints])

    async def _give_up_what_was_asked(self, job: str) -> None:
        """The round in flight, and audits that were not over: their answers were lost here, and nobody gives them twice.

        Nor is anything asked of what is drawn later of these rounds (``Run.asked_from``): whoever did them may have no record of
        them. Their shares are paid as they stand, since nobody could know that nobody would look.
        """
        for record in await self._tx.find(
            RoundRecord, col(RoundRecord.job).equals(job), col(RoundRecord.state).in_(("training", "applying"))
        ):
            await self._tx.update(msgspec.structs.replace(record, state="void", ended=self._now))
        for audit in await self._tx.find(Audit, col(Audit.job).equals(job)):
            if not audit.over:
                lost = msgspec.structs.replace(audit, state="void", look=False, detail=untrusted(FORGOTTEN))
                await self._tx.update(lost)
        for dispute in await self._tx.find(
            DisputeRecord, col(DisputeRecord.job).equals(job), col(DisputeRecord.over).equals(False)
        ):
            await self._tx.delete(dispute)

    async def _with_escrow(self, job: Job, escrow: EscrowState) -> Job:
        """Money as the ledger has it; where it is settled the job is over."""
        job = msgspec.structs.replace(job, escrow=max(job.escrow, payable(escrow)))
        if not escrow.ended:
            return job
        for lease in await self._tx.find(
            Lease, col(Lease.job).equals(job.id), col(Lease.state).in_(("starting", "ready"))
        ):
            await self._tx.update(lease_rules.end(lease, "stopped", self._now, SETTLED_SINCE))
        back = int(escrow.refunded)
        for row in await self._tx.find(
            OutboxRecord, col(OutboxRecord.job).equals(job.id), col(OutboxRecord.kind).equals("refund")
        ):
            await self._tx.update(msgspec.structs.replace(row, state="confirmed", amount=back))
            break
        else:
            await self._tx.insert(
                OutboxRecord(
                    f"refund:{job.id}", job.id, "refund", {}, self._now, back, untrusted(PAID_SINCE), "confirmed"
                )
            )
        return msgspec.structs.replace(
            job,
            state=JobState.SETTLED if job.model is not None else JobState.FAILED,
            reason=untrusted(SETTLED_SINCE),
            ended=self._now,
            escrow=int(escrow.deposited),
            refunded=back,
        )

    async def _count_earned(self, node: str, verified: Sequence[CommitRecord]) -> None:
        """A node's earnings are what its shares of all jobs were paid."""
        known = await self._tx.find(NodeRecord, col(NodeRecord.address).equals(node))
        payout = next((commit.payout for commit in verified if commit.node == node), node)
        record = known[0] if known else await self._tx.insert(NodeRecord(node, payout, _UNKNOWN, self._now, self._now))
        by = (col(CommitRecord.settlement),)
        sums = await self._tx.sums(
            CommitRecord,
            col(CommitRecord.amount),
            by,
            col(CommitRecord.node).equals(node),
            col(CommitRecord.state).equals("verified"),
        )
        numbers = tuple(int(row) for (row,) in sums if row is not None)
        rows = await self._tx.find(OutboxRecord, col(OutboxRecord.id).in_(numbers)) if numbers else []
        confirmed = {row.id for row in rows if row.state == "confirmed"}
        earned = sum(amount for (row,), (_, amount) in sums.items() if row in confirmed)
        if earned != record.earned:
            await self._tx.update(msgspec.structs.replace(record, earned=earned))
