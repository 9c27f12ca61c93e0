"""Money that comes in: a job's escrow is opened, seen on the ledger, accepted and added to.

``escrows`` says what an escrow has to be. The coordinator opens those of the test wallet itself, and looks for all others.
"""

from collections.abc import Sequence

import msgspec

from common.untrusted_text import untrusted
from coordinator.client.text import money
from coordinator.domain.job import ENDED_EARLY, LIVE, Job, JobState, Wish
from coordinator.errors import FundsError
from coordinator.services.core.unit_of_work import JobDesk, UnitOfWork
from coordinator.services.payments.chain import ChainPort, Deposit
from coordinator.services.payments.escrows import asked_of, escrow_deadline, payable, problem
from coordinator.services.payments.settlement import Settlement
from coordinator.store.ports import Condition, col
from coordinator.store.records import OPEN_ROWS, OutboxRecord
from ledger import events as ledger_events
from ledger.states import EscrowState
from protocol.job.document_digest import document_digest

MAX_ACCEPTANCES = 3
"""Rows of a job: each is refused several times before it is given up, which its submitter may provoke."""


class FundingService:
    """Queues what opens and accepts escrows, and takes note of what came into them."""

    def __init__(self, desk: JobDesk, chain: ChainPort, coordinator: str, settlement: Settlement) -> None:
        self._desk = desk
        self._chain = chain
        self._coordinator = coordinator
        self._settlement = settlement

    async def queue_funding(self, work: UnitOfWork) -> None:
        """Open the escrow from the test wallet, once."""
        key = f"fund:{work.job.id}"
        if not await work.tx.find(
            OutboxRecord, col(OutboxRecord.key).equals(key), col(OutboxRecord.state).in_((*OPEN_ROWS, "confirmed"))
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
            if work.job.state is JobState.CREATED and not await self.accept(work, state):
                refused = f"the program has refused escrow {state.address} {MAX_ACCEPTANCES} times"
                raise FundsError(f"{refused}: cancel the job, which returns the deposit, and submit it again", "escrow")

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

    async def accept(self, work: UnitOfWork, state: EscrowState) -> bool:
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
            document = document_digest(job.spec)
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

    async def follow_up(self, work: UnitOfWork, state: EscrowState) -> bool:
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
            await self._settlement.finish(work)
            return True
        return False

    async def _take_note(self, job: Job, state: EscrowState) -> None:
        deposits = await self._chain.deposits(job.submitter, job.id)
        async with self._desk.open(job.id) as work:
            if await self.follow_up(work, state):
                await receive(work, state, deposits)


async def receive(work: UnitOfWork, state: EscrowState, deposits: Sequence[Deposit]) -> None:
    """Add the receipts of an escrow that an outside wallet opened; the test wallet's is the row that opened it."""
    where: tuple[Condition, ...] = (col(OutboxRecord.job).equals(work.job.id), col(OutboxRecord.kind).equals("fund"))
    rows = await work.tx.find(OutboxRecord, *where, col(OutboxRecord.state).in_((*OPEN_ROWS, "confirmed")))
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
