"""What a job's escrow has to be, and what is still owed for verified work: payment that nothing on the ledger secures yet.

An escrow's terms are compared twice: here, in words that its submitter can act on, and by the program, which accepts it in the
transaction that carries the memo of the funding. Nothing is delivered of a job whose money can still go back to its submitter.
"""

from collections.abc import Sequence

from coordinator.client.text import money
from coordinator.domain.job import LIVE, Job
from coordinator.errors import ConflictError
from coordinator.services.payments.payees import ROOM
from coordinator.store.ports import Condition, Scalar, Transaction, col
from coordinator.store.records import CommitRecord, OutboxRecord
from ledger.client import Consent
from ledger.money import Amount
from ledger.states import Asked, EscrowState

ESCROW_MARGIN = 6 * 3600  # After the deadline of the job, for the last audits and payouts.
CLOSING_S = 2 * 3600  # Of it, for payouts alone: an outage of the ledger may last as long.


def escrow_deadline(job: Job) -> int:
    """When the submitter may take the escrow back alone."""
    return int(job.deadline) + ESCROW_MARGIN


def closing(job: Job) -> int:
    """From when on audits are not waited for any more, so that what is verified is paid in time."""
    return escrow_deadline(job) - CLOSING_S


def asked_of(job: Job) -> Asked:
    """The terms that a job's escrow must have; a budget below the price pauses the job where it ends."""
    due = Amount(min(job.quote.price, job.spec.budget))
    return Asked(escrow_deadline(job), due, due, ROOM, Consent.ADMIT | Consent.END)


def payable(state: EscrowState) -> int:
    """What an escrow lets be paid in all. Anybody may deposit, and what is beyond the cap goes back at the end."""
    return min(state.deposited, state.cap)


def problem(job: Job, state: EscrowState, coordinator: str) -> str:
    """Why an escrow does not serve a job that is not funded yet, and what its submitter can do; empty: it does."""
    asked, where = asked_of(job), f"escrow {state.address}"
    anew = "cancel the job, which returns the deposit, and submit it again"
    if state.coordinator != coordinator:
        return f"{where} names coordinator {state.coordinator}: it must name {coordinator}"
    if state.ended:
        return f"{where} has been refunded: submit the job again"
    if state.max_payees < asked.max_payees:
        return f"{where} has room for {state.max_payees} payees, and {asked.max_payees} are needed: {anew}"
    if state.consent != asked.consent:
        return f"{where} does not let its coordinator admit payees and return what is left: {anew}"
    if not state.accepted and (state.listed or state.paid or state.committed):
        return f"{where} lists {state.listed} payees already, and only its coordinator may choose them: {anew}"
    what = "price" if asked.amount == job.quote.price else "budget"
    if state.cap < asked.cap:
        cap, due = money(state.cap), money(asked.cap)
        return f"{where} lets at most {cap} be paid, the {what} is {due}: raise its cap"
    if state.deposited < asked.amount:
        missing, held, due = money(asked.amount - state.deposited), money(state.deposited), money(asked.amount)
        return f"{where} holds {held}, the {what} is {due}: add {missing}"
    if state.deadline < asked.deadline:
        return f"{where} ends at {state.deadline}, before {asked.deadline}, as was asked for: postpone its deadline"
    return ""


async def owed(tx: Transaction, job: str) -> int:
    """What verified work of a job has earned that is neither paid nor promised in blocks that can never be undone."""
    sure, by = await _sure(tx, job), (col(CommitRecord.settlement), col(CommitRecord.promised))
    sums = await tx.sums(
        CommitRecord,
        col(CommitRecord.amount),
        by,
        col(CommitRecord.job).equals(job),
        col(CommitRecord.state).equals("verified"),
    )
    return sum(amount for rows, (_, amount) in sums.items() if not sure.intersection(rows))


async def payable_work(tx: Transaction, job: str) -> int:
    """What all shares of a job are worth that are or may be paid: of a restored job that may be more than its known rounds."""
    due: tuple[Condition, ...] = (
        col(CommitRecord.job).equals(job),
        col(CommitRecord.state).in_(("pending", "verified")),
    )
    sums = await tx.sums(CommitRecord, col(CommitRecord.amount), (), *due)
    return sum(amount for _, amount in sums.values())


async def unsecured(tx: Transaction, job: str) -> list[CommitRecord]:
    """The shares that ``owed`` sums up."""
    sure = await _sure(tx, job)
    verified = await tx.find(
        CommitRecord, col(CommitRecord.job).equals(job), col(CommitRecord.state).equals("verified")
    )
    return [commit for commit in verified if commit.amount and not sure & {commit.settlement, commit.promised}]


def sum_of(commits: Sequence[CommitRecord]) -> int:
    """What these shares are worth."""
    return sum(commit.amount for commit in commits)


async def _sure(tx: Transaction, job: str) -> set[Scalar]:
    where: tuple[Condition, ...] = (
        col(OutboxRecord.job).equals(job),
        col(OutboxRecord.kind).in_(("settle", "promise")),
        col(OutboxRecord.state).equals("confirmed"),
    )
    return {row.id for row in await tx.find(OutboxRecord, *where)}


async def check_delivery(tx: Transaction, job: Job, now: float) -> None:
    """Refuse to hand anything out of a job whose submitter could have, or had, the money for it back.

    Raises:
        ConflictError: it has ended, or its escrow's deadline has passed, with verified work that is not paid for sure.
    """
    if job.state in LIVE and now < escrow_deadline(job):
        return
    left = await owed(tx, job.id)
    if left:
        unpaid = f"{money(left)} of verified work is neither paid nor promised"
        raise ConflictError(f"nothing of job {job.id} is handed out: {unpaid}", field="escrow")
