"""What follows once the ledger has confirmed a row: shares are paid, escrows are funded, what was returned is noted."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import NamedTuple

import msgspec

from coordinator.client.text import money
from coordinator.domain.job import Job, JobState
from coordinator.services.core.display_names import listed
from coordinator.services.core.domain_events import PaymentConfirmed, SharesPromised
from coordinator.services.core.unit_of_work import JobDesk, UnitOfWork
from coordinator.services.network.machine_days import Added, add
from coordinator.services.payments.chain import ChainPort, Deposit
from coordinator.services.payments.escrows import sum_of
from coordinator.services.payments.funding import FundingService, receive
from coordinator.services.payments.outbox_dispatcher import totals_of
from coordinator.services.payments.promises import PromiseService
from coordinator.store.ports import col
from coordinator.store.records import CommitRecord, NodeRecord, OutboxRecord
from ledger import events as ledger_events
from ledger.errors import LedgerUnavailableError
from ledger.states import EscrowState
from protocol.node import Promised

_SEEN = ("fund", "accept", "refund")  # Kinds after which the escrow is read.


class _Happened(NamedTuple):
    """What is known of a confirmed row: its escrow, proofs by payee, deposits, and payees that it could not pay."""

    row: OutboxRecord
    state: EscrowState | None
    told: Mapping[str, Promised]
    deposits: Sequence[Deposit]
    left_out: AbstractSet[str]


class Confirmations:
    """Takes over into the job what has become final on the ledger."""

    def __init__(self, desk: JobDesk, chain: ChainPort, promises: PromiseService, funding: FundingService) -> None:
        self._desk = desk
        self._chain = chain
        self._promises = promises
        self._funding = funding

    async def follow_up(self, job: Job, row: OutboxRecord) -> None:
        """Store what a confirmed row has brought about, with everything that it makes due.

        Raises:
            LedgerUnavailableError: the endpoint does not know of it yet.
        """
        state = await self._chain.escrow(job.submitter, job.id) if row.kind in _SEEN else None
        if row.kind in _SEEN and (state is None or _is_behind(row, state)):
            raise LedgerUnavailableError(f"the ledger's endpoint is behind the {row.kind} of job {job.id}: ask again")
        told = await self._promises.told(job, row) if row.kind == "promise" else {}
        deposits = await self._chain.deposits(job.submitter, job.id) if row.kind == "accept" else ()
        left_out = frozenset[str]()
        if row.kind == "settle":
            left_out = frozenset(await self._chain.left_out(job.submitter, job.id, totals_of(row)))
        happened = _Happened(row, state, told, deposits, left_out)
        await self._desk.ask(row.job, partial(self._take_over, job, happened))

    async def _take_over(self, job: Job, happened: _Happened, work: UnitOfWork) -> None:
        row, state = happened.row, happened.state
        work.count("ledger_confirmed_total")
        if row.kind == "refund" and state is not None:
            row = _refunded(work, row, state)
            await self._close_tables(work)
        elif row.kind == "settle":
            row = msgspec.structs.replace(row, amount=await self._paid(work, row, happened.left_out))
        await work.tx.update(msgspec.structs.replace(row, state="confirmed"))
        match row.kind:
            case "fund" if state is not None and work.job.state is JobState.CREATED:
                await self._funding.accept(work, state)
            case "fund" if state is not None:
                await self._funding.follow_up(work, state)
            case "accept" if state is not None and not state.ended:
                if await self._funding.follow_up(work, state):
                    await receive(work, state, happened.deposits)
            case "promise":
                work.note("promised", f"{money(row.amount)} was promised {row.detail}")
                work.record(SharesPromised(happened.told))
            case "slash":
                node, reason = str(row.payload["node"]), str(row.payload["reason"])
                event = ledger_events.Slashed(job=job.id, node=node, amount=row.amount, reason=reason)
                work.memo(f"slashed:{row.id}", event)
                work.note("slashed", f"node {node} lost {money(row.amount)} of its stake")
            case _:
                pass

    async def _close_tables(self, work: UnitOfWork) -> None:
        """Give back the lookup tables of a job that has ended, and with them their rent."""
        rows = await work.tx.find(
            OutboxRecord, col(OutboxRecord.job).equals(work.job.id), col(OutboxRecord.kind).equals("settle")
        )
        for table in sorted({row.lookup for row in rows} - {""}):
            payload: dict[str, str | int] = {"table": table}
            await work.store_now(OutboxRecord(f"table:{table}", work.job.id, "table", payload, work.now))

    async def _paid(self, work: UnitOfWork, row: OutboxRecord, left_out: AbstractSet[str]) -> int:
        """Take note of a payout, and return its amount; who has closed its token account is promised its part."""
        covered = await work.tx.find(
            CommitRecord, col(CommitRecord.job).equals(row.job), col(CommitRecord.settlement).equals(row.id)
        )
        unpaid = [commit for commit in covered if commit.payout in left_out]
        unpaid = await work.tx.update_all([msgspec.structs.replace(one, settlement=None) for one in unpaid], unpaid)
        if any(commit.promised is None for commit in unpaid):
            nodes, lost = listed(list(dict.fromkeys(commit.node for commit in unpaid))), money(sum_of(unpaid))
            work.note("promised", f"{lost} cannot be paid to {nodes}, whose token account is closed: it can be claimed")
            await self._promises.queue(work, unpaid, always=True)
        paid = [commit for commit in covered if commit.payout not in left_out]
        if not paid:
            return 0
        amount = sum_of(paid)
        work.change(paid=work.job.paid + amount)
        work.note("paid", f"{money(amount)} was paid {row.detail}")
        earned: dict[str, int] = defaultdict(int)
        for commit in paid:
            earned[commit.node] += commit.amount
        await work.hold_shared()
        before = await work.tx.find(NodeRecord, col(NodeRecord.address).in_(tuple(sorted(earned))))
        after = [msgspec.structs.replace(record, earned=record.earned + earned[record.address]) for record in before]
        await work.tx.update_all(after, before)
        await add(work.tx, work.now, {node: Added(earned=part) for node, part in earned.items()})
        work.record(PaymentConfirmed())
        return amount


def _is_behind(row: OutboxRecord, state: EscrowState) -> bool:
    """Whether an escrow was read as it was before the row, which is confirmed."""
    return (row.kind == "refund" and not state.ended) or state.deposited < int(row.payload.get("total", 0))


def _refunded(work: UnitOfWork, row: OutboxRecord, state: EscrowState) -> OutboxRecord:
    """Take over what the ledger returned, which includes what was deposited after the escrow had been seen."""
    back = int(state.refunded)
    work.change(refunded=back, escrow=int(state.deposited))
    if back:
        work.note("refunded", f"{money(back)} went back to the submitter")
        return msgspec.structs.replace(row, amount=back)
    return msgspec.structs.replace(row, amount=0, detail="nothing was left: the escrow is closed to new deposits")
