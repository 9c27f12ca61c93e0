"""Money: what is due is queued in the same transaction that makes it due; a loop carries the queue to the ledger.

``carrier`` signs, stores, sends and follows; here stands what is due and what follows. Payouts are cumulative, so even a
repeated one pays nothing more.
"""

import asyncio
import hashlib
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal

import msgspec

from common.untrusted_text import untrusted
from coordinator.client.text import money
from coordinator.domain import pricing
from coordinator.domain.job import LIVE, Job, JobState, Wish
from coordinator.errors import FundsError
from coordinator.services.core.context import Context
from coordinator.services.core.display_names import listed
from coordinator.services.core.domain_events import LedgerRowQueued, PaymentConfirmed, SharesPromised
from coordinator.services.core.unit_of_work import JobDesk, UnitOfWork
from coordinator.services.payments.chain import ChainPort, Deposit
from coordinator.services.payments.escrows import asked_of, escrow_deadline, owed, payable, problem, sum_of, unsecured
from coordinator.services.payments.outbox_dispatcher import Carrier, totals_of
from coordinator.services.payments.promises import PromiseService
from coordinator.store.ports import Condition, col
from coordinator.store.records import CommitRecord, NodeRecord, OutboxKind, OutboxRecord, OutboxState
from ledger import events as ledger_events
from ledger.errors import LedgerAnswerError, LedgerError, LedgerUnavailableError
from ledger.program.codes import MAX_BATCH
from ledger.states import EscrowState
from protocol.codec import encode_json

MAX_PAYEES_A_ROW = MAX_BATCH  # What one transaction pays; their token accounts and a lookup table are there by then.
MAX_LANES = 16  # Jobs whose money moves at the same time: the ledger's endpoint limits connections.
MAX_ROWS = 500  # Loaded at a time.
POLL_S = 0.5
CLAIM_S = 600.0  # Between two claims of a payee.
MAX_CLAIMS = 5_000  # Within that time: about one transaction in eight of the coordinator's capacity.

MAX_ACCEPTANCES = (
    3  # Rows of a job: each is refused several times before it is given up, which its submitter may provoke.
)

_OPEN: tuple[OutboxState, ...] = ("queued", "sent")
_SEEN = ("fund", "accept", "refund")  # Kinds after which the escrow is read.
_MONEY: tuple[OutboxKind, ...] = ("settle", "promise", "refund", "fund", "accept")
ENDED_EARLY = (JobState.CANCELLED, JobState.FAILED)

_ATTEMPTS: Mapping[OutboxKind, str] = {
    "fund": "opening the escrow",
    "accept": "accepting the escrow",
    "settle": "paying the nodes",
    "promise": "promising earnings",
    "refund": "the refund",
    "slash": "taking the stake",
    "verdict": "deciding a dispute on the ledger",
    "event": "writing an event",
    "table": "closing a lookup table",
}

LOG = logging.getLogger(__name__)


class Settlement:
    """Queues and carries out payouts, refunds, slashes and lifecycle events."""

    def __init__(
        self, context: Context, desk: JobDesk, chain: ChainPort, coordinator: str, promises: PromiseService
    ) -> None:
        self._context = context
        self._desk = desk
        self._chain = chain
        self._promises = promises
        self._coordinator = coordinator
        self._carrier = Carrier(context, chain)
        self._trouble = ""
        self._claimed: dict[str, float] = {}
        self._wake = asyncio.Event()
        desk.on(LedgerRowQueued, lambda _work, _event: self._wake.set())

    # --- what is due ----------------------------------------------------------------------------------------------------

    async def settle_if_due(self, work: UnitOfWork) -> None:
        """Queue payouts once enough rounds are verified; who has earned less than is worth the fee is promised it."""
        commits = await self._unsettled(work)
        if len({(commit.epoch, commit.round) for commit in commits}) >= self._context.config.settle_every:
            worth = self._worth(commits, pricing.worth_paying)
            paid = {commit.payout for commit in worth}
            await self._settle(work, worth)
            await self._promises.queue(work, [commit for commit in commits if commit.payout not in paid])

    async def settle_now(self, work: UnitOfWork) -> None:
        """Queue what is verified and more than its fee: the job rests, and nobody knows for how long."""
        await self._settle(work, self._worth(await self._unsettled(work), pricing.worth_claiming))

    async def claim(self, payee: str) -> None:
        """Queue what a payee has earned in all jobs and asks for; what the fee alone would eat waits on.

        Once in CLAIM_S: each costs a transaction of the coordinator's.
        """
        now = self._context.clock.time()
        self._claimed = {who: at for who, at in self._claimed.items() if at + CLAIM_S > now}
        if payee in self._claimed or len(self._claimed) >= MAX_CLAIMS:
            return
        mine: tuple[Condition, ...] = (
            col(CommitRecord.payout).equals(payee),
            col(CommitRecord.state).equals("verified"),
            col(CommitRecord.settlement).equals(None),
        )
        async with self._context.store.transaction() as tx:
            jobs = {commit.job for commit in await tx.find(CommitRecord, *mine, limit=MAX_ROWS)}
        if not jobs:
            return  # Nor is it remembered: whoever has earned nothing keeps nobody from claiming.
        self._claimed[payee] = now
        for job in sorted(jobs):
            async with self._desk.open(job) as work:
                commits = [commit for commit in await self._unsettled(work) if commit.payout == payee]
                if work.job.state in LIVE:
                    await self._settle(work, self._worth(commits, pricing.worth_claiming))

    def _worth(self, commits: Sequence[CommitRecord], worth: Callable[[int, int, int], bool]) -> list[CommitRecord]:
        """Commits of those whose payout is worth its part of a transaction's fee."""
        earned: dict[str, int] = defaultdict(int)
        for commit in commits:
            earned[commit.payout] += commit.amount
        fee = -(-pricing.SIGNATURE_LAMPORTS // max(1, min(len(earned), MAX_PAYEES_A_ROW)))
        paid = {who for who, amount in earned.items() if worth(amount, fee, self._context.config.sol_price)}
        return [commit for commit in commits if commit.payout in paid]

    async def finish(self, work: UnitOfWork) -> None:
        """Queue the last payouts and the refund, once; nothing where no escrow was seen.

        An escrow that is spent is refunded as well: only that keeps it from taking deposits that nobody would look for, and
        lets the submitter have its rent back.
        """
        refunds = await work.tx.find(
            OutboxRecord, col(OutboxRecord.job).equals(work.job.id), col(OutboxRecord.kind).equals("refund"), limit=1
        )
        if work.job.escrow == 0 or refunds:
            return
        await self._settle(work, await self._unsettled(work))
        rest = work.job.escrow - work.job.verified
        key = f"refund:{work.job.id}"
        detail = f"back to wallet {work.job.submitter}"
        await work.store_now(
            OutboxRecord(key, work.job.id, "refund", {}, work.now, amount=rest, detail=untrusted(detail))
        )

    async def is_done(self, work: UnitOfWork) -> bool:
        """Whether no money of the job is still on its way."""
        where: tuple[Condition, ...] = (
            col(OutboxRecord.job).equals(work.job.id),
            col(OutboxRecord.kind).in_(_MONEY),
            col(OutboxRecord.state).in_(_OPEN),
        )
        return not await work.tx.find(OutboxRecord, *where, limit=1)

    async def queue_funding(self, work: UnitOfWork) -> None:
        """Open the escrow from the test wallet, once."""
        key = f"fund:{work.job.id}"
        if not await work.tx.find(
            OutboxRecord, col(OutboxRecord.key).equals(key), col(OutboxRecord.state).in_((*_OPEN, "confirmed"))
        ):
            tries = len(
                await work.tx.find(
                    OutboxRecord, col(OutboxRecord.job).equals(work.job.id), col(OutboxRecord.kind).equals("fund")
                )
            )
            budget = work.job.spec.budget
            payload: dict[str, str | int] = {"deadline": escrow_deadline(work.job)}
            key = key if tries == 0 else f"{key}:{tries}"
            detail = f"from the test wallet {work.job.submitter}"
            await work.store_now(OutboxRecord(key, work.job.id, "fund", payload, work.now, budget, untrusted(detail)))

    async def queue_deposit(self, work: UnitOfWork, amount: int) -> None:
        """Add to the escrow from the test wallet; what the row names is the sum of all deposits, so it adds once."""
        total = work.job.spec.budget
        payload: dict[str, str | int] = {"total": total}
        detail = f"from the test wallet {work.job.submitter}"
        key = f"fund:{work.job.id}:to:{total}"
        await work.store_now(OutboxRecord(key, work.job.id, "fund", payload, work.now, amount, untrusted(detail)))

    async def see_deposit(self, job: Job) -> None:
        """Look on the ledger for what was added to a funded job's escrow, and take note of it.

        Raises:
            FundsError: less than the job's budget is there, or the escrow's cap keeps it from being paid.
            LedgerError: the ledger does not answer.
        """
        state = await self._chain.escrow(job.submitter, job.id)
        if state is None or state.ended or state.deposited <= job.escrow:
            missing = money(job.spec.budget - job.escrow)
            raise FundsError(f"the escrow of job {job.id} holds no more than before: deposit {missing}", field="escrow")
        if payable(state) <= job.escrow:
            cap, held = money(state.cap), money(state.deposited)
            raise FundsError(f"escrow {state.address} lets at most {cap} be paid: raise its cap to {held}", "escrow")
        await self._take_note(job, state)

    async def see_escrow(self, job: Job) -> None:
        """Look on the ledger for the job's escrow, and have the program accept it: then the job is funded.

        Raises:
            FundsError: there is none, or it does not serve this job, or the program has refused it too often.
            LedgerError: the ledger does not answer.
        """
        state = await self._chain.escrow(job.submitter, job.id)
        if state is None:
            address = self._chain.escrow_address(job.submitter, job.id)
            missing = money(job.spec.budget)
            raise FundsError(f"there is no escrow {address} for job {job.id} yet: open it with {missing}", "escrow")
        if found := problem(job, state, self._coordinator):
            raise FundsError(found, field="escrow")
        async with self._desk.open(job.id) as work:
            if work.job.state is JobState.CREATED and not await self._accept(work, state):
                refused = f"the program has refused escrow {state.address} {MAX_ACCEPTANCES} times"
                raise FundsError(f"{refused}: cancel the job, which returns the deposit, and submit it again", "escrow")

    async def _accept(self, work: UnitOfWork, state: EscrowState) -> bool:
        """Queue the acceptance of an escrow with the memo of the funding; False: it was refused too often."""
        job = work.job
        tried = await work.tx.find(
            OutboxRecord, col(OutboxRecord.job).equals(job.id), col(OutboxRecord.kind).equals("accept")
        )
        if any(row.state != "failed" for row in tried):
            return True
        if len(tried) >= MAX_ACCEPTANCES:
            return False
        if not tried:  # Who has not paid has nothing written on the ledger: each memo costs the coordinator a fee.
            document = hashlib.sha256(encode_json(job.spec)).hexdigest()
            work.memo("created", ledger_events.Created(job=job.id, budget=job.spec.budget, document=document))
        asked, memo = asked_of(job), ledger_events.Funded(job=job.id, amount=state.deposited)
        payload: dict[str, str | int] = {
            "deadline": asked.deadline,
            "cap": asked.cap,
            "amount": asked.amount,
            "max_payees": asked.max_payees,
            "text": ledger_events.encode(memo),
        }
        key, detail = f"accept:{job.id}:{len(tried)}", f"of wallet {job.submitter}"
        await work.store_now(OutboxRecord(key, job.id, "accept", payload, work.now, detail=untrusted(detail)))
        return True

    async def return_deposit(self, job: Job) -> bool:
        """Give back what has come into the escrow of a job that had ended without one; whether something had.

        Raises:
            LedgerError: the ledger does not answer.
        """
        state = await self._chain.escrow(job.submitter, job.id)
        if state is None or state.coordinator != self._coordinator or not state.balance or state.ended:
            return False
        await self._take_note(job, state)
        return True

    async def _take_note(self, job: Job, state: EscrowState) -> None:
        deposits = await self._chain.deposits(job.submitter, job.id)
        async with self._desk.open(job.id) as work:
            if await self._fund(work, state):
                await _receive(work, state, deposits)

    async def _fund(self, work: UnitOfWork, state: EscrowState) -> bool:
        """Follow up on an escrow that was seen; whether it was news. That of a job that waits for it was accepted."""
        if work.job.state is JobState.CREATED:
            work.change(escrow=payable(state))
            work.advance(JobState.FUNDED, f"the job is funded: {money(state.deposited)} is in escrow")
            return True
        if work.job.state in LIVE and work.job.escrow < payable(state):
            more = payable(state) - work.job.escrow
            work.change(escrow=payable(state), warned=False)
            if work.job.halt == "budget":  # A pause that has not begun is not needed; one that has ends by itself.
                work.change(halt="", wish=Wish.NONE)
            work.note("funded", f"{money(more)} came into escrow: {money(payable(state))} are there in all")
            return True
        if work.job.state in ENDED_EARLY and work.job.escrow == 0:
            work.change(escrow=int(state.deposited))  # Funded while it was being cancelled, or later: give it back.
            work.note("funded", f"{money(state.deposited)} came into escrow, but the job has ended")
            await self.finish(work)
            return True
        return False

    async def _unsettled(self, work: UnitOfWork) -> list[CommitRecord]:
        where: tuple[Condition, ...] = (
            col(CommitRecord.job).equals(work.job.id),
            col(CommitRecord.state).equals("verified"),
            col(CommitRecord.settlement).equals(None),
        )
        return await work.tx.find(CommitRecord, *where)

    async def _settle(self, work: UnitOfWork, commits: Sequence[CommitRecord]) -> None:
        """Queue cumulative payouts to everybody who has something new, and mark what they cover."""
        if not commits:
            return
        verified = await work.tx.find(
            CommitRecord, col(CommitRecord.job).equals(work.job.id), col(CommitRecord.state).equals("verified")
        )
        total: dict[str, int] = defaultdict(int)
        for commit in verified:
            total[commit.payout] += commit.amount
        new: dict[str, list[CommitRecord]] = defaultdict(list)
        for commit in commits:
            new[commit.payout].append(commit)
        payees = sorted(new)
        before = len(
            await work.tx.find(
                OutboxRecord, col(OutboxRecord.job).equals(work.job.id), col(OutboxRecord.kind).equals("settle")
            )
        )
        for part, start in enumerate(range(0, len(payees), MAX_PAYEES_A_ROW)):
            chosen = payees[start : start + MAX_PAYEES_A_ROW]
            covered = [commit for payee in chosen for commit in new[payee]]
            amount = sum(commit.amount for commit in covered)
            nodes = list(dict.fromkeys(c.node for c in sorted(covered, key=lambda c: (c.replica, c.stage))))
            detail = f"to {listed(nodes)} for {_rounds(covered)}"
            record = await work.store_now(
                OutboxRecord(
                    f"settle:{work.job.id}:{before + part}",
                    work.job.id,
                    "settle",
                    {payee: total[payee] for payee in chosen},
                    work.now,
                    amount,
                    untrusted(detail),
                )
            )
            for commit in covered:
                await work.tx.update(msgspec.structs.replace(commit, settlement=record.id))

    # --- carrying it out ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Carry rows for ever. Begun anew, it learns anew which nonces are free: some were taken for what was never stored."""
        self._carrier.forget()
        while True:
            self._wake.clear()
            if not await self.drain():
                await self._pause()

    async def drain(self) -> bool:
        """Carry what is open as far as it goes now; whether anything was finished."""
        async with self._context.store.transaction() as tx:
            rows = await tx.find(OutboxRecord, col(OutboxRecord.state).in_(_OPEN), limit=MAX_ROWS)
            sent = (
                await tx.find(OutboxRecord, col(OutboxRecord.state).equals("sent")) if len(rows) == MAX_ROWS else rows
            )
        try:
            await self._carrier.open((*rows, *sent))
        except (LedgerUnavailableError, LedgerAnswerError) as error:
            self._unanswered(error)
            return False
        lanes: dict[tuple[str, str], list[OutboxRecord]] = defaultdict(list)
        for row in rows:
            # Money of a job moves in order: the refund ends what payouts are made from. The rest needs not wait for it.
            lanes[row.job, "money" if row.kind in _MONEY else row.kind].append(row)
        for lane in lanes.values():
            lane.sort(key=lambda row: row.kind == "refund")  # Also what has turned out to be owed since goes before it.
        gate = asyncio.Semaphore(MAX_LANES)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._carry_lane(gate, lane), name="carry") for lane in lanes.values()]
        return any(task.result() for task in tasks)

    async def _pause(self) -> None:
        try:
            async with self._context.clock.timeout(POLL_S):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _carry_lane(self, gate: asyncio.Semaphore, rows: Sequence[OutboxRecord]) -> bool:
        finished = False
        async with gate:
            for row in rows:
                try:
                    if not await self._carry(row):
                        break
                except (LedgerUnavailableError, LedgerAnswerError) as error:
                    self._unanswered(error)
                    break
                finished = True
        return finished

    def _unanswered(self, error: LedgerError) -> None:
        self._context.metrics.count("ledger_unavailable_total")
        if str(error) != self._trouble:  # An outage is told once and not at each turn.
            self._trouble = str(error)
            LOG.warning("payments wait for the ledger: %s", error)

    async def _carry(self, row: OutboxRecord) -> bool:
        """Bring one row on; whether it is over."""
        async with self._context.store.transaction() as tx:
            job = await tx.get(Job, row.job)
        opening = row.kind == "accept" or (row.kind == "fund" and "total" not in row.payload)
        if row.state == "queued" and opening and job.state is not JobState.CREATED:
            await self._give_up(row, f"the job is {job.state} already")
            return True
        if row.state == "queued" and row.kind == "refund" and (waits := await self._secure(row)):
            return waits == "given up"
        carried = await self._carrier.carry(job, row)
        match carried.state:
            case "waiting":
                return False
            case "confirmed":
                await self._confirmed(job, carried.row)
            case "refused":
                await self._give_up(carried.row, carried.reason)
        self._carrier.over(carried.row)
        return True

    async def _secure(self, row: OutboxRecord) -> Literal["", "waiting", "given up"]:
        """Promise what could not be paid before the rest goes back; whether the refund has to wait, or must not be."""
        async with self._desk.open(row.job) as work:
            left = await owed(work.tx, row.job)
            if not left:
                return ""
            promises = await work.tx.find(
                OutboxRecord, col(OutboxRecord.job).equals(row.job), col(OutboxRecord.kind).equals("promise")
            )
            if any(promise.state in _OPEN for promise in promises):
                return "waiting"
            if not any(promise.state == "failed" and promise.id > row.id for promise in promises):
                shares = [msgspec.structs.replace(c, settlement=None) for c in await unsecured(work.tx, row.job)]
                await self._promises.queue(work, [await work.tx.update(share) for share in shares], always=True)
                return "waiting"
            submitter = work.job.submitter
        state = await self._chain.escrow(submitter, row.job)
        if state is None or state.ended:
            return ""  # Its submitter has taken it back: that is taken note of.
        await self._give_up(row, f"{money(left)} of verified work can be neither paid nor promised, so all of it stays")
        return "given up"

    async def _give_up(self, row: OutboxRecord, reason: str) -> None:
        self._context.metrics.count("ledger_failed_total")
        async with self._desk.open(row.job) as work:
            detail = f"{row.detail}: {reason}" if row.detail else reason
            await work.tx.update(msgspec.structs.replace(row, state="failed", detail=detail[:500]))
            if row.kind == "promise":
                await self._promises.given_up(work.tx, row)
            if row.kind not in ("event", "table"):
                work.note("ledger", f"{_ATTEMPTS[row.kind]} failed: {reason}")

    # --- what follows ---------------------------------------------------------------------------------------------------

    async def _confirmed(self, job: Job, row: OutboxRecord) -> None:
        self._context.metrics.count("ledger_confirmed_total")
        state = await self._chain.escrow(job.submitter, job.id) if row.kind in _SEEN else None
        if row.kind in _SEEN and (state is None or _is_behind(row, state)):
            raise LedgerUnavailableError(f"the ledger's endpoint is behind the {row.kind} of job {job.id}: ask again")
        told = await self._promises.told(job, row) if row.kind == "promise" else {}
        deposits = await self._chain.deposits(job.submitter, job.id) if row.kind == "accept" else ()
        left_out = frozenset[str]()
        if row.kind == "settle":
            left_out = frozenset(await self._chain.left_out(job.submitter, job.id, totals_of(row)))
        async with self._desk.open(row.job) as work:
            if row.kind == "refund" and state is not None:
                row = _refunded(work, row, state)
                await self._close_tables(work)
            elif row.kind == "settle":
                row = msgspec.structs.replace(row, amount=await self._paid(work, row, left_out))
            await work.tx.update(msgspec.structs.replace(row, state="confirmed"))
            match row.kind:
                case "fund" if state is not None and work.job.state is JobState.CREATED:
                    await self._accept(work, state)
                case "fund" if state is not None:
                    await self._fund(work, state)
                case "accept" if state is not None and not state.ended:
                    if await self._fund(work, state):
                        await _receive(work, state, deposits)
                case "promise":
                    work.note("promised", f"{money(row.amount)} was promised {row.detail}")
                    work.record(SharesPromised(told))
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
        for place, commit in enumerate(unpaid):
            unpaid[place] = await work.tx.update(msgspec.structs.replace(commit, settlement=None))
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
        for node, part in sorted(earned.items()):
            record = await work.tx.get(NodeRecord, node)
            await work.tx.update(msgspec.structs.replace(record, earned=record.earned + part))
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


async def _receive(work: UnitOfWork, state: EscrowState, deposits: Sequence[Deposit]) -> None:
    """Add the receipts of an escrow that an outside wallet opened; the test wallet's is the row that opened it."""
    where: tuple[Condition, ...] = (col(OutboxRecord.job).equals(work.job.id), col(OutboxRecord.kind).equals("fund"))
    rows = await work.tx.find(OutboxRecord, *where, col(OutboxRecord.state).in_((*_OPEN, "confirmed")))
    if any(row.key.startswith("fund:") for row in rows):
        return
    detail = f"from wallet {state.submitter}"
    told = {row.signature for row in rows}
    deposits = [deposit for deposit in deposits if deposit.signature not in told]
    unknown = int(state.deposited) - sum(deposit.amount for deposit in deposits) - sum(row.amount for row in rows)
    if unknown > 0:  # Sent straight to the escrow's token account, or not in the ledger's history yet.
        deposits = [*deposits, Deposit("", unknown, work.now)]
    for number, deposit in enumerate(deposits, len(rows)):
        record = OutboxRecord(f"deposit:{work.job.id}:{number}", work.job.id, "fund", {}, deposit.time, deposit.amount)
        await work.tx.insert(
            msgspec.structs.replace(record, detail=detail, state="confirmed", signature=deposit.signature)
        )


def _rounds(commits: Sequence[CommitRecord]) -> str:
    """Rounds of commits as people count them, from 1."""
    first, last = min(commit.round for commit in commits) + 1, max(commit.round for commit in commits) + 1
    return f"round {first}" if first == last else f"rounds {first} to {last}"
